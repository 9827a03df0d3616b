"""FoldFits of expectile matrix factorizations to data of which single entries are hidden, and their errors on these, on shared reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.executors import resolve_executor
from dfact.engine.fused_passes import FusedSession, Members
from dfact.engine.memory_plan import Footprint
from dfact.engine.partitions import partitions
from dfact.models.expectile.estimator import ExpectileMF
from dfact.models.expectile.passes import original_units
from dfact.selection.hidden_entries import ErrorHistogram, ErrorHistogramPass, ErrorMeasure
from dfact.selection.masks import EntryMask
from dfact.selection.refits import with_parameters
from dfact.selection.results_store import BatchResults, Results
from dfact.selection.scheduler import largest_batch

Work = Callable[[Members, str], Results]
"""What needs passes as a member of this name."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A configuration on what a repeat leaves."""

    model: ExpectileMF
    """Not fitted."""
    repeat: int


@dataclass(frozen=True, eq=False)
class EntryFits:
    """The data, and what all fits share."""

    dataset: Dataset
    measure: ErrorMeasure
    holdout_fraction: float
    kept: BatchResults
    """With the seed of the hidden entries."""
    dtype: np.dtype[Any]
    executor: Any
    memory_limit: int | str | None

    def counts(self, fits: Sequence[Fit]) -> list[ErrorHistogram]:
        """The errors of each fit on what its repeat hides; fits of a repeat stand together."""
        starts = self._starts(fits)
        work = [partial(self._count, fit, starts.get(fit.repeat)) for fit in fits]
        found = self._together("errors", work, [self._footprint(fit.model) for fit in fits])
        return [ErrorHistogram(*results) for results in found]

    def _starts(self, fits: Sequence[Fit]) -> dict[int, NDArray[np.float64]]:
        """Of each repeat the columns' factors (m, k) to start from with the most components, which hold those with fewer."""
        decomposed = [fit for fit in fits if isinstance(fit.model.init, str) and fit.model.init == "svd"]
        if not decomposed:
            return {}
        largest = max((fit.model for fit in decomposed), key=lambda model: model.n_components)
        repeats = list(dict.fromkeys(fit.repeat for fit in decomposed))
        work = [partial(self._start, largest, repeat) for repeat in repeats]
        found = self._together("starts", work, [self._footprint(largest)] * len(repeats))
        return {repeat: start for repeat, (start,) in zip(repeats, found, strict=True)}

    def _start(self, model: ExpectileMF, repeat: int, members: Members, name: str) -> Results:
        session: Any = FusedSession(members, name, self._veil(repeat, hidden=False))
        return [model._initial_factors(session, self.dataset, original_units(self.dataset), self.dtype)[1]]

    def _count(self, fit: Fit, start: NDArray[np.float64] | None, members: Members, name: str) -> Results:
        model, seen, hidden = fit.model, self._veil(fit.repeat, hidden=False), self._veil(fit.repeat, hidden=True)
        if start is not None and isinstance(model.init, str) and model.init == "svd":
            model = with_parameters(model, init=start[:, : model.n_components].T)
        session: Any = FusedSession(members, name, seen)
        model._solve(session, self.dataset, self.dtype)
        pass_ = ErrorHistogramPass(original_units(self.dataset), self.measure, self.dtype)
        found = FusedSession(members, name, hidden).run(pass_, model.column_factors_.astype(np.float64))
        return [found.counts, found.zeros]

    def _veil(self, repeat: int, *, hidden: bool) -> EntryMask:
        return EntryMask(self.holdout_fraction, self.kept.seed, repeat, hidden)

    def _footprint(self, model: ExpectileMF) -> Footprint:
        one = model._footprint(self.dataset.shape, 0, self.dtype)
        return Footprint(one.state_per_row, one.work_per_row, one.broadcast + self.measure.bytes, 0)

    def _together(self, what: str, work: Sequence[Work], footprints: Sequence[Footprint]) -> list[Results]:
        """As many at once on each read as the memory holds the state of, or as were when they were interrupted, if those are fewer."""
        source = self.dataset.source
        parts = partitions(source, self.dataset.missing_code, None)
        executor = resolve_executor(self.executor, len(parts))
        workers, found = executor.workers(self.memory_limit), self.kept.results(what)
        while (first := len(found)) < len(work):
            most = self.kept.begun(what, first) or len(work)
            count, plan = largest_batch(source, self.dtype, footprints[first : first + most], workers)
            now = work[first : first + count]
            with self.kept.keeping(executor.open(parts, plan), what, first, count) as session:
                members = Members(session, self.dtype)
                batch = members.run([partial(one, members, f"{i:06d}") for i, one in enumerate(now)])
            self.kept.add(what, first, batch)
            found += batch
        return found
