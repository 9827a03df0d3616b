"""Fits to the entries that a mask leaves, which share their reads, and their results for the entries that it holds out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import FusedSolver, Solver
from dfact.models.fit_task import FitTask
from dfact.models.provenance import SelectionRecord
from dfact.selection.grid import Parameters
from dfact.selection.result import RULES, Selection
from dfact.selection.running.estimators import with_parameters
from dfact.selection.running.results_store import Results, ResultsStore
from dfact.selection.running.scheduler import BatchCheckpoints, run_on_shared_reads


@dataclass(frozen=True, eq=False)
class EntryFit:
    """A fit of one configuration to the entries that a mask leaves."""

    model: Any
    """Model with the parameters of the configuration, not fitted."""
    task: FitTask[Any]
    mask: Any
    """An ``EntryMask`` or a ``CodeMask`` of :mod:`dfact.selection.cross_validation.masks`, with which blocks lose the held-out entries."""

    @property
    def held_out(self) -> Any:
        """View of the held-out entries alone."""
        return replace(self.mask, held_out=True)


@dataclass(frozen=True, eq=False)
class EntryFits:
    """Fits of :mod:`dfact.selection.running.scheduler`: each solver runs on the entries that its mask leaves."""

    task: FitTask[Any]
    """The fit of any configuration: all have the same data and precision."""
    solve: Callable[[EntryFit], Solver[Results]]
    """Returns the solver of a fit."""

    def footprint(self, which: EntryFit) -> Footprint:
        """Return what a fit holds in memory."""
        return which.task.footprint

    def shared(self, which: EntryFit, keep: Callable[[Results], None]) -> FusedSolver[None]:
        """Return the solver of a fit, with its mask as the view of the data."""
        return FusedSolver(self._solve(which, keep), which.mask)

    def _solve(self, which: EntryFit, keep: Callable[[Results], None]) -> Solver[None]:
        keep((yield from self.solve(which)))


def run_entry_fits(
    solve: Callable[[EntryFit], Solver[Results]],
    which: Sequence[EntryFit],
    store: ResultsStore,
    stage: int = 0,
    finished: Callable[[EntryFit], None] | None = None,
) -> list[Results]:
    """Run the fits of a stage, and return the results of each; the store holds those that are finished.

    ``finished`` is called after each fit that has ended.
    """
    task = which[0].task

    def keep(fit: EntryFit, results: Results) -> None:
        store.add((stage, which.index(fit)), results)
        if finished is not None:
            finished(fit)

    checkpoints = BatchCheckpoints(store, stage, which[0].model.checkpoint_every)
    run_on_shared_reads(EntryFits(task, solve), which, keep, task.executor, task.model.memory_limit, checkpoints)
    return [store.entries[stage, number] for number in range(len(which))]


def fit_chosen(
    model: Any,
    X: Any,
    table: pd.DataFrame,
    configurations: Sequence[Parameters],
    score: str,
    se: str | None,
    checkpoint: Any,
    rule: str = "min",
) -> Selection:
    """Return the selection of the configuration that the rule chooses by a score in the table, with the model fitted to all of X."""
    best = int(RULES[rule](table.rename(columns={score: "error"}).reset_index()))
    fitted = with_parameters(model, **configurations[best]).fit(X, checkpoint=checkpoint)
    fitted.selection_ = SelectionRecord.from_table(table, best, score, rule, se)
    return Selection(table, configurations[best], fitted)
