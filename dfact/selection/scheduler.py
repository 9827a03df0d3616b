"""Run tasks in memory, each on its own copy of the data, or fused on shared reads of the stored data."""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.base import RowSource
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.cluster.transport import Pickled
from dfact.engine.cluster.watchdog import Watchdog
from dfact.engine.fused_passes import Members
from dfact.engine.memory_plan import Footprint, Plan, WorkerResources, make_plan
from dfact.engine.partitions import Partitions
from dfact.engine.session import Executor
from dfact.engine.threads import single_threaded
from dfact.selection.fold_fits import FoldFits, FoldSession, FoldTask, FusedFoldSession, GroupResult, WarmStarts
from dfact.selection.folds import Folds

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
D = TypeVar("D")
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
    """Run each task as one Dask task, on threads or on workers."""
    if isinstance(executor, DistributedExecutor):

        def keep_all(number: int, results: list[GroupResult]) -> None:
            for result in results:
                keep(tasks[number], result)

        works = [partial(_run_task, fits, folds[task.repeat], task) for task in tasks]
        on_workers(executor.client, partial(load, parts, dtype), works, keep_all)
        return
    with _fit_context():
        M, C = load(parts, dtype)
        on_threads(lambda task: fits.run(M, C, folds[task.repeat], task), tasks, keep, executor.workers(None).threads)


@contextmanager
def _fit_context() -> Iterator[None]:
    """Use one BLAS thread, and ignore warnings about rows of which a fold leaves no answer.

    The context encloses all threads, as warning filters belong to the process: two threads would undo each other's.
    """
    with single_threaded(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "row .* no observed entry", UserWarning)
        yield


def on_threads(run: Callable[[T], Iterable[D]], chains: Sequence[T], keep: Callable[[T, D], None], threads: int) -> None:
    """Run each chain as a task on Dask's threads, and keep what comes of it as it comes."""
    from dask.threaded import get

    stopped = threading.Event()

    def work(chain: T) -> None:
        try:
            for done in run(chain):
                keep(chain, done)
                if stopped.is_set():
                    return
        except BaseException:
            stopped.set()
            raise

    tasks = {f"fold-{i}": (partial(work, chain),) for i, chain in enumerate(chains)}
    with ThreadPoolExecutor(threads) as pool:
        try:
            get(tasks, list(tasks), pool=pool)
        finally:
            stopped.set()


def on_workers(client: "Client", data: Callable[[], T], works: Sequence[Callable[[T], D]], keep: Callable[[int, D], None]) -> None:
    """Run each work on the data as a task on the workers, and keep what comes of it, with its number."""
    import dask

    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "10GB"}):
        # The data travels to the workers once, as the task that returns it.
        held = client.submit(data, pure=False)
        tasks = [client.submit(_apply, Pickled(work), held, pure=False) for work in works]
    try:
        for number, finished in Watchdog(client, progress=False).completed(tasks):
            keep(number, finished)
    finally:
        client.cancel(tasks)


def _apply(work: Pickled[Callable[[T], D]], data: T) -> D:
    return work.value(data)


def _run_task(fits: FoldFits, folds: Folds, task: FoldTask, data: tuple[NDArray[Any], NDArray[Any] | None]) -> list[GroupResult]:
    """Run a task on a worker."""
    with _fit_context():
        return list(fits.run(*data, folds, task))


def fits_in_memory(shape: tuple[int, ...], dtype: np.dtype[Any], workers: WorkerResources) -> bool:
    """Whether the data, and for each thread a copy of it with the working arrays of a fit, fit within the memory limit."""
    size = shape[0] * shape[1] * dtype.itemsize
    return workers.baseline + size * (1 + 2 * workers.threads) <= workers.limit


def run_on_shared_reads(
    fits: WarmStarts,
    source: RowSource,
    parts: Partitions,
    footprint: Footprint,
    folds: Sequence[Folds],
    tasks: list[FoldTask],
    keep: Keep,
    executor: Executor,
    memory_limit: int | str | None,
) -> None:
    """Run the tasks in batches that share their reads, each as large as the memory allows."""
    dtype = fits.settings.dtype

    def work(session: FoldSession, task: FoldTask) -> None:
        for result in fits.run_in(session, task):
            keep(task, result)

    workers, pending = executor.workers(memory_limit), list(tasks)
    while pending:
        count, plan = largest_batch(source, dtype, [footprint] * len(pending), workers)
        batch, pending = pending[:count], pending[count:]
        with executor.open(parts, plan) as session:
            members = Members(session, dtype)
            sessions = [FusedFoldSession(members, f"{i:06d}", folds[task.repeat], task.fold, dtype) for i, task in enumerate(batch)]
            members.run([partial(work, session, task) for session, task in zip(sessions, batch, strict=True)])


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
