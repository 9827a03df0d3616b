"""Run tasks in memory, each on its own copy of the data, or fused on shared reads of the stored data."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.base import RowSource
from dfact.engine.driver import drive_together
from dfact.engine.memory_plan import Footprint, Plan, WorkerResources, make_plan
from dfact.engine.partitions import Partitions
from dfact.engine.session import Executor
from dfact.engine.threads import single_threaded
from dfact.models.fit_task import FitTask
from dfact.selection.fold_fits import FoldFits, FoldTask, GroupResult, WarmStarts
from dfact.selection.folds import Folds

Keep = Callable[[FoldTask, GroupResult], None]
"""Called with each result of a task, from the threads of several."""


def load(parts: Partitions, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the values (n, m), NaN where missing, and the covariates of all rows."""
    return np.concatenate([block.values for block in parts.blocks(dtype)]), parts.covariates


def run_in_memory(
    fits: FoldFits,
    parts: Partitions,
    dtype: np.dtype[Any],
    folds: Sequence[Folds],
    tasks: list[FoldTask],
    keep: Keep,
    executor: Executor,
) -> None:
    """Run each task on its own, on threads or on workers."""
    pairs = [(task, folds[task.repeat]) for task in tasks]
    executor.map(partial(_run_task, fits), pairs, partial(load, parts, dtype), lambda pair, result: keep(pair[0], result), _fit_context)


def _run_task(fits: FoldFits, pair: tuple[FoldTask, Folds], data: tuple[NDArray[Any], NDArray[Any] | None]) -> Iterator[GroupResult]:
    task, folds = pair
    return fits.run(*data, folds, task)


@contextmanager
def _fit_context() -> Iterator[None]:
    """Use one BLAS thread, and ignore warnings about rows of which a fold leaves no answer.

    The context encloses all threads, as warning filters belong to the process: two threads would undo each other's.
    """
    with single_threaded(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "row .* no observed entry", UserWarning)
        yield


def fits_in_memory(shape: tuple[int, ...], dtype: np.dtype[Any], workers: WorkerResources) -> bool:
    """Whether the data, and for each thread a copy of it with the working arrays of a fit, fit within the memory limit."""
    size = shape[0] * shape[1] * dtype.itemsize
    return workers.baseline + size * (1 + 2 * workers.threads) <= workers.limit


def run_on_shared_reads(
    fits: WarmStarts,
    fit: FitTask[Any],
    folds: Sequence[Folds],
    tasks: list[FoldTask],
    keep: Keep,
    executor: Executor,
    memory_limit: int | str | None,
) -> None:
    """Run the tasks in batches that share their reads, each as large as the memory allows; ``fit`` is the largest fit."""
    source, dtype = fit.dataset.source, fit.dtype
    workers, pending = executor.workers(memory_limit), list(tasks)
    while pending:
        count, plan = largest_batch(source, dtype, [fit.footprint] * len(pending), workers)
        batch, pending = pending[:count], pending[count:]
        with executor.open(fit.partitions, plan) as session:
            drive_together([fits.fused(folds[task.repeat], task, partial(keep, task)) for task in batch], session, dtype)


def largest_batch(source: RowSource, dtype: np.dtype[Any], fits: Sequence[Footprint], workers: WorkerResources) -> tuple[int, Plan]:
    """Return the largest number of fits, from the first one, whose states fit in memory together, and the plan for them.

    It is at least one: a single fit may spill its state.
    """
    row = source.shape[1] * dtype.itemsize  # the masked copy of a block
    for count in range(len(fits), 0, -1):
        batch = fits[:count]
        work = max(one.work_per_row for one in batch) + row
        footprint = Footprint(sum(one.state_per_row for one in batch), work, sum(one.broadcast for one in batch), 0)
        plan = make_plan(source, dtype, footprint, workers)
        if count == 1 or (plan.fits and plan.state_in_memory == plan.n_partitions):
            break
    plan.check()
    return count, plan
