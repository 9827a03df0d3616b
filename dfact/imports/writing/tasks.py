"""Tasks of an import side by side: inline, on threads, on processes or on a Dask cluster, with results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype

from dfact.data.lazy_results import client_of_cluster
from dfact.errors import ClusterError, ParameterError, StoreError
from dfact.internals.zarr import sync
from dfact.settings import processors
from dfact.storage.location import Location, absolute
from dfact.storage.zarr_stores import location_of

R = TypeVar("R")
T = TypeVar("T")
_MOST_THREADS = 16
"""Largest number of threads unless the user asks for more: each takes memory, and they share one file."""
_RUNNING = "running"
"""Key in the scratch store that exists while the import runs: tasks of a stopped import find it missing and end."""


@dataclass(frozen=True)
class TaskPool:
    """A pool of tasks, of which a limited number is submitted at a time."""

    executor: Executor
    window: int
    """Number of tasks that run or wait for a worker: it limits the memory for results that cannot be used yet."""
    scratch: Store

    def run(self, function: Callable[[T], R], tasks: Iterable[T], receive: Callable[[R], object]) -> None:
        """Pass the results of all tasks to ``receive`` in the order of the tasks; the error of the first of them is raised.

        No task runs any more when this returns or raises, so that none writes to a store that is deleted.
        """
        pending: deque[Future[R]] = deque()
        try:
            for task in tasks:
                pending.append(self.executor.submit(function, task))
                if len(pending) >= self.window:
                    receive(pending.popleft().result())
            while pending:
                receive(pending.popleft().result())
        except BaseException as error:
            # Dask reports a running task as cancelled at once, so tasks end by the key instead.
            with suppress(Exception):  # the first error counts, not that of a store that is out of reach
                sync(self.scratch.delete(_RUNNING))
            wait(pending)
            if _is_lost_worker(error):
                raise ClusterError(f"a process of the import was lost ({error}); give it more memory, or use fewer (n_readers=)") from error
            raise


def _is_lost_worker(error: BaseException) -> bool:
    return isinstance(error, BrokenExecutor) or type(error).__module__.startswith("distributed")


@contextmanager
def open_pool(executor: Any, n_readers: int | None, scratch: Store) -> Iterator[TaskPool]:
    """Yield a pool for the ``executor`` and ``n_readers`` of :func:`import_table`."""
    if n_readers is not None and not (isinstance(n_readers, int) and n_readers >= 1):
        raise ParameterError(f"n_readers is {n_readers!r}, expected a positive whole number, or None for one task on each core")
    executor = client_of_cluster(executor) or executor
    sync(scratch.set(_RUNNING, default_buffer_prototype().buffer.from_bytes(b"1")))
    if hasattr(executor, "get_executor"):  # a client of a Dask cluster, without importing Dask
        n_workers = n_readers or sum(executor.nthreads().values())
        yield TaskPool(executor.get_executor(pure=False), 2 * max(1, n_workers), scratch)
    elif isinstance(executor, Executor):
        n_workers = n_readers or getattr(executor, "_max_workers", None) or os.cpu_count() or 1
        yield TaskPool(executor, 2 * n_workers, scratch)
    elif executor in (None, "inline", "threads"):
        threads = 1 if executor == "inline" else n_readers or min(processors(), _MOST_THREADS)
        with _Inline() if threads == 1 else ThreadPoolExecutor(threads, "import") as pool:
            yield TaskPool(pool, 1 if threads == 1 else 2 * threads, scratch)
    else:
        expected = "expected None, 'inline', 'threads', a concurrent.futures.Executor, a Dask client or cluster"
        raise ParameterError(f"executor is {executor!r}, {expected}")


def location_for_tasks(store: Store) -> Location:
    """Return the location by which tasks in other processes open the store."""
    location = location_of(store)
    if location is None:
        raise TypeError(f"{store} has no location")
    return absolute(location)


def check_running(scratch: Store) -> None:
    """Raise StoreError in a task whose import has stopped."""
    if not sync(scratch.exists(_RUNNING)):
        raise StoreError(f"the import that uses {scratch} has stopped; this task ends")


class _Inline(Executor):
    """The calling thread: each task runs when it is submitted."""

    def submit(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> "Future[R]":
        future: Future[R] = Future()
        future.set_result(function(*args, **kwargs))
        return future
