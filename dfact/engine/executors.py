"""Executors: the same passes over the same partitions, inline, on threads, or on a Dask cluster.

A session keeps the state of every partition from pass to pass. The order of all sums is fixed by
the partitions, so every executor gives the same bits.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import zarr
from numpy.typing import NDArray

from dfact.data.lazy_results import active_client
from dfact.engine.block_state import CheckpointedState
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.memory_plan import Plan, WorkerResources, local_workers
from dfact.engine.partitions import Partitions
from dfact.engine.passes import PartialSums, Pass
from dfact.engine.session import CheckpointableSession, Executor
from dfact.engine.shard import Shard
from dfact.errors import ParameterError

P = TypeVar("P", bound=PartialSums)
_ROWS = 16  # partitions whose rows are handed on together


class LocalSession(CheckpointableSession):
    """A single shard in this process: one partition after the other, or several at once on threads."""

    def __init__(self, partitions: Partitions, plan: Plan, threads: int) -> None:
        self._partitions, self._pass = partitions, 0
        self._shard = Shard(len(partitions), threads, plan.resident_states, plan.resident_values)

    def __enter__(self) -> Self:
        self._shard.__enter__()
        self._shard.add(self._partitions, 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._shard.__exit__(kind, error, trace)

    def run(self, pass_: Pass[Any, P], broadcast: Any) -> P:
        self._pass += 1
        self._shard.run(self._pass, pass_, broadcast)
        [total] = self._shard.sums(self._pass).values()
        sums: P = total
        return sums

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        n = len(self._partitions)
        for first in range(0, n, _ROWS):
            yield self._shard.rows(name, first, min(first + _ROWS, n))

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        return self._shard.store(group, "partitions")

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        for state in states:
            self._shard.restore(state)


class InlineExecutor:
    """The calling thread alone; no Dask."""

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        return local_workers("inline", 1, memory_limit)

    def open(self, partitions: Partitions, plan: Plan) -> LocalSession:
        return LocalSession(partitions, plan, 1)


class ThreadsExecutor:
    """Dask's threads: ``dask.config`` ``num_workers``, by default one for each core."""

    def __init__(self, threads: int | None = None) -> None:
        import dask
        from dask.system import CPU_COUNT

        self.threads = int(threads or dask.config.get("num_workers", None) or CPU_COUNT)

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        return local_workers("threads", self.threads, memory_limit)

    def open(self, partitions: Partitions, plan: Plan) -> LocalSession:
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
        client = active_client()
        return ThreadsExecutor() if client is None else DistributedExecutor(client)
    if executor == "inline":
        return InlineExecutor()
    if executor == "threads":
        return ThreadsExecutor()
    if executor == "distributed":
        client = active_client()
        if client is None:
            raise ParameterError("executor='distributed' needs an active dask.distributed.Client; make one, or pass it as executor")
        return DistributedExecutor(client)
    if hasattr(executor, "scheduler_info"):
        return DistributedExecutor(executor)
    if hasattr(executor, "open") and hasattr(executor, "workers"):
        return executor  # type: ignore[no-any-return]  # checked by its methods
    raise ParameterError(f"executor is {executor!r}, expected None, 'inline', 'threads', 'distributed' or a distributed.Client")
