"""Fits of one model to all the data from several starts, on shared reads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dfact.data.sources.entrance import as_arrays
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import FusedSolver, Solver
from dfact.models.estimator import Factorization
from dfact.models.fit_task import FitTask
from dfact.selection.running.estimators import takes_confounders, with_parameters
from dfact.selection.running.scheduler import run_on_shared_reads


@dataclass(frozen=True, eq=False)
class StartFits:
    """Fits that differ in their starts alone; fits of :mod:`dfact.selection.running.scheduler`, by their models."""

    task: FitTask[Any]
    """The fit from any start."""

    def footprint(self, which: Factorization) -> Footprint:
        """Return what a fit holds in memory, with the row factors until all fits of a batch have ended."""
        one = self.task.footprint
        return replace(one, state_per_row=one.state_per_row + one.result_per_row)

    def shared(self, which: Factorization, keep: Callable[[Factorization], None]) -> FusedSolver[None]:
        """Return the solver of a fit."""
        return FusedSolver(self._fit(which, keep))

    def _fit(self, model: Factorization, keep: Callable[[Factorization], None]) -> Solver[None]:
        yield from model.solve(self.task)
        keep(model)


def fit_starts(
    model: Any, parameters: dict[str, Any], seeds: Iterable[int], X: Any, confounders: Any, sample_weight: Any = None, *, own: bool
) -> list[Any]:
    """Fit the model with these parameters from its ``own`` start, if wanted, and from a random start for each seed, in this order."""
    starts = [with_parameters(model, **parameters)] if own else []
    starts += [with_parameters(model, **parameters, init="random", random_state=int(seed) % 2**31) for seed in seeds]
    arguments = {} if confounders is None or not takes_confounders(model) else {"confounders": confounders}
    arguments |= {} if sample_weight is None else {"sample_weight": sample_weight}
    if not isinstance(model, Factorization):
        X = as_arrays(X)  # estimators of other packages ignore masks
        return [start.fit(X, **arguments) for start in starts]
    task = starts[0].prepare(X, **arguments)
    run_on_shared_reads(StartFits(task), starts, lambda *_: None, task.executor, model.memory_limit)
    return starts


def lowest_objective(fits: Sequence[Any]) -> Any:
    """Return the fit with the lowest objective, the first of equals."""
    return min(fits, key=lambda fit: float(fit.objective_history_[-1])) if len(fits) > 1 else fits[0]
