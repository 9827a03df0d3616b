"""A fit that is checked and planned, before anything runs, and what its end reports."""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from os import PathLike
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import Footprint, Plan, make_plan
from dfact.engine.partitions import Partitions, partitions
from dfact.engine.passes import PartialSums, Pass, RunPass
from dfact.engine.session import CheckpointableSession, Executor, Session, StateRows
from dfact.errors import ConvergenceWarning, warn
from dfact.models.row_factors import gather_rows
from dfact.monitoring.logs import event_fields
from dfact.parameters import COUNT, describe_value

RUNTIME_PARAMETERS = ("executor", "memory_limit", "callbacks", "checkpoint", "checkpoint_every")
"""Parameters that do not affect the fitted model."""

Q = TypeVar("Q")
B = TypeVar("B")
P = TypeVar("P", bound=PartialSums)
Convert = Callable[[NDArray[Any]], NDArray[Any]]
"""A function of the rows of an array, which workers unpickle."""
_CHECKPOINT_EVERY = 10  # passes, for models without the parameter


class Estimator(Protocol):
    """An estimator, as far as a task needs it."""

    executor: Any
    memory_limit: int | str | None

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class FitTask(Generic[Q]):
    """A fit that is checked and planned."""

    model: Estimator
    """A copy of the estimator with the attributes that describe the data."""
    dataset: Dataset
    problem: Q
    """The objective with its constants, as far as parameters and data determine it."""
    dtype: np.dtype[Any]
    """The working precision."""
    footprint: Footprint
    covariates: NDArray[Any] | None
    """Values (n, …) that go with the rows, such as encoded confounders."""
    extra_identity: Mapping[str, Any]
    """Whatever determines the fit besides data and parameters, by name."""
    wants_rows: bool = True
    """Whether the factors of the rows are gathered; if not, the fitted model has no factors of rows."""

    @cached_property
    def layout(self) -> Layout:
        """Blocks and partitions of the data."""
        return self.footprint.layout(self.dataset.source)

    @property
    def partitions(self) -> Partitions:
        """The rows with their covariates."""
        return partitions(self.dataset.source, self.dataset.missing_code, self.covariates, self.layout)

    def for_views(self) -> Self:
        """Return the task for passes through views of the blocks, which are cut by the data's shape alone."""
        return replace(self, footprint=replace(self.footprint, reads_stored=False))

    def without_rows(self) -> Self:
        """Return the task of a fit whose row factors are not gathered."""
        return replace(self, footprint=replace(self.footprint, result_per_row=0), wants_rows=False)

    def times(self, count: int) -> Self:
        """Return the task with the footprint of ``count`` such fits at once."""
        return replace(self, footprint=self.footprint.scaled(count))

    @property
    def executor(self) -> Executor:
        """The executor of the fit."""
        return resolve_executor(self.model.executor, self.layout.n_partitions)

    def plan(self) -> Plan:
        """Plan memory and disk space."""
        workers = self.executor.workers(self.model.memory_limit)
        return make_plan(self.dataset.source, self.dtype, self.footprint, workers, self.layout)

    def open_session(self) -> CheckpointableSession:
        """Open a session on the data if the memory plan allows it."""
        plan = self.plan()
        plan.check()
        return self.executor.open(self.partitions, plan)

    def open(self, checkpoint: str | PathLike[str] | None = None) -> Session:
        """Open a session for the fit, with its checkpoint: the given one, else the model's, if it has one."""
        session, path = self.open_session(), getattr(self.model, "checkpoint", None) if checkpoint is None else checkpoint
        if path is None:
            return session
        every = getattr(self.model, "checkpoint_every", _CHECKPOINT_EVERY)
        COUNT.check("checkpoint_every", every)
        return CheckpointedSession(session, path, every, self.identity())

    def identity(self) -> dict[str, str]:
        """Describe everything that determines the fit."""
        parameters = self.model.get_params(deep=False)
        parameters = {name: value for name, value in parameters.items() if name not in RUNTIME_PARAMETERS}
        fitted: dict[str, Any] = {"model": type(self.model).__name__, "data": self.dataset.fingerprint}
        fitted |= {"dtype": self.dtype.name, "covariates": self.covariates}
        return {name: describe_value(value) for name, value in (fitted | parameters | dict(self.extra_identity) | fitted).items()}

    def compute_rows(
        self, pass_: Pass[Any, B, P], broadcast: B, k: int, out: str | PathLike[str] | None, convert: Convert = np.asarray
    ) -> tuple[P, NDArray[Any] | zarr.Array[Any]]:
        """Run a pass that keeps the row factors (n, k). Return its sums, and these factors, converted."""
        with self.open_session() as session:
            sums = session.run(RunPass(pass_, broadcast))
            return sums, self.gather(StateRows(session, "factors", convert), k, out)

    def gather(self, rows: Iterable[NDArray[Any]], k: int, out: str | PathLike[str] | None = None) -> NDArray[Any] | zarr.Array[Any]:
        """Collect the row factors (n, k) into an array, or into a Zarr array if the data is stored: at ``out`` or a temporary one."""
        if not self.wants_rows or not self.dataset.source.present_rows:
            return np.empty((0, k), self.dtype)
        return gather_rows(rows, (self.dataset.source.present_rows, k), self.dtype, stored=self.dataset.path is not None, out=out)


def fitted_attributes(model: Any) -> dict[str, Any]:
    """Return the fitted attributes of a model, or of the model of a task those that describe the data."""
    return {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}


_HISTORIES = ("objective_history_", "log_likelihood_history_")
_log = logging.getLogger(__name__)


def end_callbacks(model: Any) -> None:
    """Close the callbacks that can be closed, such as a progress bar, whose last line appears then."""
    for callback in getattr(model, "callbacks", ()):
        close = getattr(callback, "close", None)
        if callable(close):
            close()


def log_end(model: Any) -> None:
    """Log the end of a fit, with its iterations and its last objective if it has them."""
    n_iter = getattr(model, "n_iter_", None)
    history: Sequence[float] = getattr(model, "objective_history_", [])
    objective = float(history[-1]) if len(history) else float("nan")
    steps = "" if n_iter is None else f" after {n_iter} iterations"
    reached = f", objective {objective:.6g}" if len(history) else ""
    fields = event_fields("fit_finished", model=type(model).__name__, iteration=n_iter, objective=objective)
    _log.info(f"{type(model).__name__}: fit finished{steps}{reached}", extra=fields)


def warn_unconverged(model: Any) -> None:
    """Warn of a fit that stopped at its limit of iterations before it converged."""
    if getattr(model, "converged_", True):
        return
    limit, n_iter = getattr(model, "max_iter", None), getattr(model, "n_iter_", None)
    steps = "" if n_iter is None else f" in {n_iter} iterations"
    remedy = "start from other values (random_state)" if limit is None or n_iter is None or n_iter < limit else "increase max_iter or tol"
    histories = [name for name in _HISTORIES if hasattr(model, name)]
    compare = f", and compare {histories[0]}" if histories else ""
    message = f"{type(model).__name__} did not converge{steps}; {remedy}{compare}"
    warn(message, warning_class())


def warning_class() -> type[ConvergenceWarning]:
    """Return dfact's ConvergenceWarning; once scikit-learn's is imported, a class that is both.

    A filter of either class then applies, and a fit need not import scikit-learn: whoever filters its class has imported it.
    """
    return _shared_class() if "sklearn.exceptions" in sys.modules else ConvergenceWarning


@cache
def _shared_class() -> type[ConvergenceWarning]:
    from sklearn.exceptions import ConvergenceWarning as Other

    return type(ConvergenceWarning.__name__, (ConvergenceWarning, Other), {"__module__": ConvergenceWarning.__module__})
