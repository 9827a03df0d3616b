"""Executors: the same walk over the same partitions, inline, on Dask's threads, or on a Dask cluster.

A session keeps the state of every partition from pass to pass. The order of all sums is fixed by
the partitions, so every executor gives the same bits.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import zarr
from numpy.typing import NDArray

from dfact.engine.cluster import DistributedExecutor
from dfact.engine.kept import KeptState, Versions, rows_of, store, visit
from dfact.engine.partition import InOrder, Partition, Sum
from dfact.engine.passes import Partial, Pass
from dfact.engine.plan import Plan, Workers, local_workers
from dfact.engine.session import Executor, Stateful
from dfact.engine.streams import StoredState
from dfact.engine.threads import single_threaded
from dfact.errors import ParameterError

if TYPE_CHECKING:
    from distributed import Client

P = TypeVar("P", bound=Partial)


class LocalSession(Stateful):
    """In this process: one partition after the other, or several at once on Dask's threads."""

    def __init__(self, partitions: list[Partition], plan: Plan, threads: int) -> None:
        self._partitions, self._plan, self._threads = partitions, plan, threads
        self._kept: list[KeptState] = [None] * len(partitions)
        self._versions = Versions(plan, take_turns=True)
        self._loaded = [i >= plan.values_in_memory for i in range(len(partitions))]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self._versions.remove)
        self._stack.enter_context(single_threaded())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._kept.clear()
        self._partitions = []
        self._stack.close()

    def run(self, pass_: Pass[Any, P], shared: Any) -> P:
        self._versions.next_pass()
        if self._threads == 1:
            total = Sum[P]()
            for i in range(len(self._partitions)):
                total.add(self._visit(i, pass_, shared))
            return total.result
        sums: InOrder[P] = InOrder(2 * self._threads)

        def work(index: int) -> None:
            try:
                sums.add(index, self._visit(index, pass_, shared))
            except BaseException:
                sums.fail()
                raise

        self._on_threads(work)
        return sums.result

    def _on_threads(self, work: Callable[[int], None]) -> None:
        """Do the work of every partition, in their order, which is not that of Dask's threads."""
        if self._threads == 1:
            for index in range(len(self._partitions)):
                work(index)
            return
        from dask.threaded import get

        next_index = itertools.count().__next__
        tasks: dict[str, Any] = {f"visit-{i}": (lambda: work(next_index()),) for i in range(len(self._partitions))}
        get(tasks, list(tasks), num_workers=self._threads)

    def _visit(self, index: int, pass_: Pass[Any, P], shared: Any) -> P:
        if not self._loaded[index]:
            self._partitions[index] = self._partitions[index].load()
            self._loaded[index] = True
        place = self._versions.place(index)
        self._kept[index], total = visit(self._partitions[index], pass_, shared, self._kept[index], place, own=True)
        return total

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        for kept in self._kept:
            yield rows_of(kept, name)

    def save(self, group: zarr.Group) -> list[StoredState | None]:
        states: list[StoredState | None] = [None] * len(self._kept)

        def work(index: int) -> None:
            states[index] = store(self._kept[index], group, f"{index:06d}")
            if isinstance(self._kept[index], StoredState):  # the version it is of will go
                self._kept[index] = states[index]

        self._on_threads(work)
        return states

    def restore(self, states: Sequence[StoredState | None]) -> None:
        self._kept = list(states)


class InlineExecutor:
    """The calling thread alone; no Dask."""

    def workers(self, memory_limit: int | str | None) -> Workers:
        return local_workers("inline", 1, memory_limit)

    def open(self, partitions: list[Partition], plan: Plan) -> LocalSession:
        return LocalSession(partitions, plan, 1)


class ThreadsExecutor:
    """Dask's threads: ``dask.config`` ``num_workers``, by default one for each core."""

    def __init__(self, threads: int | None = None) -> None:
        import dask
        from dask.system import CPU_COUNT

        self.threads = int(threads or dask.config.get("num_workers", None) or CPU_COUNT)

    def workers(self, memory_limit: int | str | None) -> Workers:
        return local_workers("threads", self.threads, memory_limit)

    def open(self, partitions: list[Partition], plan: Plan) -> LocalSession:
        return LocalSession(partitions, plan, self.threads)


def resolve_executor(executor: Any, n_partitions: int) -> Executor:
    """The executor a parameter names.

    None: the active Dask client's cluster or, without one, Dask's threads, for more than one
    partition; inline for one. Otherwise "inline", "threads", "distributed" (the active client), a
    ``distributed.Client``, or an Executor.
    """
    if executor is None:
        if n_partitions == 1:
            return InlineExecutor()
        client = _active_client()
        return ThreadsExecutor() if client is None else DistributedExecutor(client)
    if executor == "inline":
        return InlineExecutor()
    if executor == "threads":
        return ThreadsExecutor()
    if executor == "distributed":
        client = _active_client()
        if client is None:
            raise ParameterError("executor='distributed' needs an active dask.distributed.Client; make one, or pass it as executor")
        return DistributedExecutor(client)
    if hasattr(executor, "scheduler_info"):
        return DistributedExecutor(executor)
    if hasattr(executor, "open") and hasattr(executor, "workers"):
        return executor  # type: ignore[no-any-return]  # checked by its methods
    raise ParameterError(f"executor is {executor!r}, expected None, 'inline', 'threads', 'distributed' or a distributed.Client")


def _active_client() -> "Client | None":
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None
