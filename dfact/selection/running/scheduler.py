"""Run many fits of one dataset: each on its own in memory, or together on shared reads, as many at once as the memory allows."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from dfact.data.sources.base import RowSource
from dfact.engine.environment import computed_in
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import Footprint, Plan, WorkerResources, make_plan
from dfact.engine.requests import FusedSolver, run_fused
from dfact.engine.session import CheckpointableSession, Executor, Session
from dfact.engine.threads import single_threaded
from dfact.models.fit_task import FitTask
from dfact.selection.running.results_store import ResultsStore

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class SharedFits(Protocol[T_contra, R_co]):
    """Fits of one kind that can share their reads: T says which, and each has one or several results R."""

    @property
    def task(self) -> FitTask[Any]:
        """The data and the precision of all fits."""
        ...

    def footprint(self, which: T_contra) -> Footprint:
        """Return what a fit holds in memory on shared reads."""
        ...

    def shared(self, which: T_contra, keep: Callable[[R_co], None]) -> FusedSolver[None]:
        """Return the solver of a fit that shares its reads with others; it keeps its results as they come."""
        ...


class Fits(SharedFits[T_contra, R_co], Protocol):
    """Fits that can also run in memory, each on its own."""

    ignored_warnings: ClassVar[str]
    """Pattern of the warnings that concern a part of the data alone."""

    def fits_in_memory(self, count: int, workers: WorkerResources) -> bool:
        """Return whether ``count`` fits can run in memory, one on each thread."""
        ...

    def prepare_in_memory(self) -> Callable[[T_contra], Iterable[R_co]]:
        """Load the data. Return a function that runs a fit and yields its results."""
        ...


@dataclass(frozen=True)
class BatchCheckpoints:
    """The checkpoints of a stage, from which an interrupted batch of fits that share their reads resumes."""

    store: ResultsStore
    """Holds the finished fits of the ``stage``, by stage and number."""
    stage: int
    every: int
    """Passes between two versions of a checkpoint."""

    def pending(self, count: int) -> range:
        """Return the numbers of the batch to begin with: the interrupted one, else all of the ``count`` fits that are not finished."""
        done, interrupted = self.store.n_finished(self.stage), self.store.interrupted_batch(self.stage)
        return interrupted if done in interrupted else range(done, count)

    def attach(self, session: CheckpointableSession, batch: range) -> Session:
        """Return the session of a batch with its checkpoint."""
        return self.store.checkpoint_batch(session, self.stage, batch, self.every)


def run_fits(
    fits: Fits[T, R],
    which: Sequence[T],
    keep: Callable[[T, R], None],
    executor: Any,
    memory_limit: int | str | None,
    *,
    in_memory: bool | None = None,
) -> None:
    """Run the fits in memory if they fit, each as a task of its own, else on shared reads; ``in_memory`` overrides the choice.

    ``keep`` is called with each result, from the threads of several fits.
    """
    if in_memory is not False:
        tasks = resolve_executor(executor, 2, tasks=True)  # several fits run at once even if the data is a single partition
        if in_memory or fits.fits_in_memory(len(which), tasks.workers(memory_limit)):
            tasks.map(_run_alone, which, fits.prepare_in_memory, keep, partial(_fit_context, fits.ignored_warnings))
            return
    with _fit_context(fits.ignored_warnings):
        run_on_shared_reads(fits, which, keep, resolve_executor(executor, len(fits.task.partitions)), memory_limit)


def _run_alone(which: T, run: Callable[[T], Iterable[R]]) -> Iterable[R]:
    return run(which)


@contextmanager
def _fit_context(ignored_warnings: str) -> Iterator[None]:
    """Use one BLAS thread, and ignore some warnings.

    The context encloses all threads, as warning filters belong to the process: two threads would undo each other's.
    """
    with single_threaded(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ignored_warnings, UserWarning)
        yield


def run_on_shared_reads(
    fits: SharedFits[T, R],
    which: Sequence[T],
    keep: Callable[[T, R], None],
    executor: Executor,
    memory_limit: int | str | None,
    checkpoints: BatchCheckpoints | None = None,
) -> None:
    """Run the fits in batches that share each read, as large as the memory allows.

    With ``checkpoints`` an interrupted batch resumes, unless it no longer fits in memory. Its finished fits are kept again.
    """
    task = fits.task
    workers, footprints = executor.workers(memory_limit), [fits.footprint(one) for one in which]
    batch = range(len(which)) if checkpoints is None else checkpoints.pending(len(which))
    while batch:
        count, plan = largest_batch(task.dataset.source, task.dtype, footprints[batch.start : batch.stop], workers)
        batch, opened = batch[:count], executor.open(task.partitions, plan)
        with opened if checkpoints is None else checkpoints.attach(opened, batch) as session, computed_in(lambda: session.environments):
            run_fused([fits.shared(which[i], partial(keep, which[i])) for i in batch], session, task.dtype)
        batch = range(batch.stop, len(which))


def largest_batch(source: RowSource, dtype: np.dtype[Any], fits: Sequence[Footprint], workers: WorkerResources) -> tuple[int, Plan]:
    """Return the largest number of fits, from the first one, whose states fit in memory together, and the plan for them.

    It is at least one: a single fit may spill its state.
    """
    row = source.shape[1] * dtype.itemsize  # the masked copy of a block
    for count in range(len(fits), 0, -1):
        batch = fits[:count]
        work = max(one.work_per_row for one in batch) + row
        broadcast, driver = (sum(getattr(one, name) for one in batch) for name in ("fused_broadcast", "driver"))
        footprint = Footprint(sum(one.state_per_row for one in batch), work, broadcast, 0, driver=driver)
        plan = make_plan(source, dtype, footprint, workers)
        if count == 1 or (plan.fits and plan.state_in_memory == plan.n_partitions):
            break
    plan.check()
    return count, plan
