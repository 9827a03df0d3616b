"""Finished results of a selection in a store, from which it resumes after an interruption."""

import itertools
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Self

from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.environment import as_fields, environments_from, result_environments, warn_changed
from dfact.engine.session import CheckpointableSession, Session
from dfact.models.fit_task import RUNTIME_PARAMETERS
from dfact.parameters import describe_value, random_generator
from dfact.storage.location import Location, parse_location
from dfact.storage.records import Records

Key = tuple[int, ...]
Results = Sequence[NDArray[Any]]
"""The arrays that a fit returns."""
_RESULT, _BATCH = "result-", "passes-"  # prefixes of the names of results, and of the checkpoints of batches


def describe_parameters(parameters: Mapping[str, Any]) -> str:
    """Return the parameters as text; different parameters have different texts."""
    return ", ".join(f"{name}={describe_value(value)}" for name, value in parameters.items())


def describe_model(model: Any) -> str:
    """Return the estimator's name and the parameters on which its results depend."""
    parameters = model.get_params(deep=False)
    parameters = {name: parameters[name] for name in sorted(parameters) if name not in RUNTIME_PARAMETERS}
    return f"{type(model).__name__}({describe_parameters(parameters)})"


def resolve_random_state(random_state: Any) -> int | None:
    """Return a seed for what scikit-learn accepts as random state; None for None."""
    return None if random_state is None else int(random_generator(random_state).randint(2**31))


class ResultsStore:
    """The arrays of finished fits by key, which says which fit it is, in a store at ``path``; nothing is stored without a path.

    The results follow from the ``identity``: a store with another one is refused. Its ``seed`` may be None for
    any seed: an existing store's seed is then used, otherwise one is drawn. Each result is complete or absent. Beside the
    results stand the checkpoints of the fits that are not finished.
    """

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        seed = identity["seed"]
        self.seed = int(random_generator(None).randint(2**31)) if seed is None else seed
        self.entries: dict[Key, Results] = {}
        self._records = None if path is None else Records(path, "selection", identity, seed=self.seed)
        if self._records is not None:
            self.seed = int(self._records.recorded_seed)
            self._records.remove_incomplete()
            earlier: list[Mapping[str, str]] = []
            for name in self._records.names(_RESULT):
                attributes, arrays = self._records.read(name)
                self.entries[tuple(attributes["key"])] = list(arrays)
                earlier += attributes.get("environments", ())  # which earlier checkpoints lack
            warn_changed(f"the checkpoint {self._records.location}", environments_from(earlier))

    @classmethod
    def of_fits(cls, path: str | PathLike[str] | None, dataset: Dataset, model: str, random_state: Any, **settings: Any) -> Self:
        """Open the store of fits of a model, which a text describes, to a dataset; the ``settings`` determine them, too."""
        data = None if path is None else dataset.fingerprint
        return cls(path, {"data": data, "model": model, **settings, "seed": resolve_random_state(random_state)})

    def add(self, key: Key, results: Results) -> None:
        """Store the results of a fit."""
        self.entries[key] = results
        if self._records is not None:
            environments = [as_fields(environment) for environment in result_environments()]
            self._records.write(_RESULT + "-".join(map(str, key)), results, key=key, environments=environments)

    def n_finished(self, *prefix: int) -> int:
        """Return the number of fits, numbered from 0 after the ``prefix`` of their keys, that are finished without a gap."""
        return next(number for number in itertools.count() if (*prefix, number) not in self.entries)

    def checkpoint(self, name: str) -> Location | None:
        """Return the location for a fit's checkpoint next to the results."""
        return None if self._records is None else parse_location(f"{self._records.location}/{name}")

    def interrupted_batch(self, stage: int) -> range:
        """Return the numbers of the fits of a stage that shared their reads when they were interrupted; none if there is no checkpoint."""
        prefix = f"{_BATCH}{stage}-"
        names = [] if self._records is None else self._records.names(prefix)
        first, count = map(int, names[0].removeprefix(prefix).split("-")) if names else (0, 0)
        return range(first, first + count)

    def checkpoint_batch(self, session: CheckpointableSession, stage: int, batch: range, every: int) -> Session:
        """Return the session with a checkpoint for a batch of fits that share their reads; delete those of other batches.

        The checkpoint holds the passes of all these fits and serves the same batch alone. A version is written after ``every`` new passes.
        """
        if self._records is None:
            return session
        self._records.check_owner()
        name = f"{_BATCH}{stage}-{batch.start:06d}-{len(batch):06d}"
        self.remove_batches(but=name)
        return CheckpointedSession(session, parse_location(f"{self._records.location}/{name}"), every, {})

    def remove_batches(self, but: str = "") -> None:
        """Delete the checkpoints of batches."""
        if self._records is not None:
            for name in set(self._records.names(_BATCH)) - {but}:
                # Without its attributes a record is incomplete, and stays so if its removal is interrupted.
                self._records.group[name].attrs.put({})
                self._records.remove(name)
