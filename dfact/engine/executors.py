"""Executors: the same passes over the same partitions, inline, on threads, or on a Dask cluster.

A session keeps the state of every partition from pass to pass. The partitions fix the order of all sums,
so all executors give bit-identical results.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.lazy_results import active_client, client_of_cluster
from dfact.data.sources.dask import dask_array
from dfact.engine.block_state import CheckpointedState
from dfact.engine.column_map import ColumnMap
from dfact.engine.memory_plan import Plan, WorkerResources, local_workers
from dfact.engine.partitions import Partitions
from dfact.engine.passes import PartialSums, RunPass, TiledPass
from dfact.engine.session import Arrays, CheckpointableSession, Executor
from dfact.engine.shard import Shard
from dfact.engine.threads import run_items
from dfact.engine.tiles import TileStates, TileStep, group_leaves, n_columns, tile_total
from dfact.errors import ParameterError
from dfact.monitoring import metrics
from dfact.settings import processors, setting

P = TypeVar("P", bound=PartialSums)
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
_ROWS_PARTITIONS = 16  # number of partitions whose rows are yielded together
_stopped: ContextVar[threading.Event | None] = ContextVar("stopped", default=None)  # of a thread for tasks: set once they are to stop


class LocalSession(CheckpointableSession):
    """A session in this process, with a single shard, which runs one partition after the other, or several at once on threads.

    It is the driver's part of what a :class:`Shard` does for itself and for workers alike: it numbers the passes, holds the state of the
    tiles, and ends where the task that it runs in is to stop.
    """

    def __init__(self, partitions: Partitions, plan: Plan, threads: int) -> None:
        self._partitions, self._pass, self._threads = partitions, 0, threads
        self._shard = Shard(partitions.layout, threads, plan.resident_states, plan.resident_values, plan.resident_sums)
        self.tile_states = TileStates(n_columns(partitions.source))
        self._pending = False
        """Whether the sums of the last pass wait for a step on tiles."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(metrics.fit())
            stack.callback(self.tile_states.close)
            stack.enter_context(self._shard)
            self._shard.add(self._partitions, 0)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, request: RunPass[P]) -> P:
        if (stopped := _stopped.get()) is not None and stopped.is_set():
            raise CancelledError
        self._pass += 1
        self._shard.run(self._pass, request.with_broadcast(self.tile_states.resolve(request.broadcast)))
        self._pending = isinstance(request.pass_, TiledPass)
        metrics.add(fit_passes=1)
        [total] = self._shard.sums(self._pass).values()
        sums: P = total
        return sums

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        last = self._partitions.last
        for first in range(self._partitions.first, last, _ROWS_PARTITIONS):
            yield self._shard.rows(name, first, min(first + _ROWS_PARTITIONS, last))

    def step_tiles(
        self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str = "", sums: Mapping[str, NDArray[Any]] | None = None
    ) -> PartialSums:
        pending = self._pending and sums is None

        def tile_sums(number: int) -> Arrays:
            if not pending:
                return {}
            return tile_total([self._shard.tile_sums(self._pass, number)], group_leaves(self._partitions.layout))

        total = self.tile_states.run(step, given, prefix, sums, tile_sums, self._shard.map)
        if pending:
            self._drop_sums()
        return total

    def tiled_sums(self) -> Arrays:
        tiles = [self._shard.tile_sums(self._pass, number) for number in range(len(self.tile_states.columns))]
        total = self.tile_states.join([arrays for nodes in tiles for arrays in nodes.values()])  # one for each, as this is the only shard
        self._drop_sums()
        return total

    def _drop_sums(self) -> None:
        self._shard.drop_sums()
        self._pending = False

    def map_columns(self, request: ColumnMap) -> NDArray[Any]:
        return request.map(self._shard.map, self._threads) if self._threads > 1 and request.suits_threads else request()

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        return self._shard.save(group, "partitions")

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        for state in states:
            self._shard.restore(state)


class ThreadsExecutor:
    """Threads of this process: as many as ``num_workers`` of ``dask.config``, by default one per core."""

    kind = "threads"

    def __init__(self, threads: int | None = None) -> None:
        self.threads = int(threads or setting("num_workers") or processors())

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        return local_workers(self.kind, self.threads, memory_limit)

    def open(self, partitions: Partitions, plan: Plan) -> LocalSession:
        return LocalSession(partitions, plan, self.threads)

    def map(
        self,
        function: Callable[[T, D], Iterable[R]],
        tasks: Sequence[T],
        load: Callable[[], D],
        on_result: Callable[[T, R], None],
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Run the tasks on the threads; see :class:`dfact.engine.session.Executor`. Results are reported as they come.

        After an error, or a signal to stop, the other tasks end at their next result or pass.
        """
        stopped = threading.Event()

        def work(task: T, data: D) -> None:
            _stopped.set(stopped)
            try:
                for result in function(task, data):
                    on_result(task, result)
                    if stopped.is_set():
                        return
            except CancelledError:
                if not stopped.is_set():
                    raise

        # The context may change state of the process, such as warning filters: it is entered once, not in each thread.
        with context():
            data = load()
            with ThreadPoolExecutor(self.threads) as pool:
                run_items(partial(work, data=data), tasks, pool, self.threads, stopped=stopped)


class InlineExecutor(ThreadsExecutor):
    """The calling thread alone for passes, and one thread for tasks."""

    kind = "inline"

    def __init__(self) -> None:
        self.threads = 1


def resolve_executor(executor: Any, n_partitions: int, *, tasks: bool = False) -> Executor:
    """Return the executor that a parameter names. With ``tasks`` it must be able to map over tasks too, not only to run passes.

    None stands for inline if there is one partition, else for the cluster of the active Dask client or, without a client, for
    threads. Other values are "inline", "threads", "distributed" (the active client), a ``distributed.Client``, a cluster such
    as ``distributed.LocalCluster``, the address of a scheduler such as "tcp://10.0.0.1:8786", or an Executor.

    Raises ParameterError for other values and for an asynchronous client or cluster, ClusterError for a closed one, and DfactError if no
    scheduler answers at an address.
    """
    if executor is None:
        if n_partitions == 1:
            return InlineExecutor()
        client = active_client()
        return ThreadsExecutor() if client is None else _on_cluster(client)
    named = executor if isinstance(executor, str) else ""
    if named == "inline":
        return InlineExecutor()
    if named == "threads":
        return ThreadsExecutor()
    if named == "distributed":
        client = active_client()
        if client is None:
            raise ParameterError("executor is 'distributed', expected an active dask.distributed.Client; create one or pass it as executor")
        return _on_cluster(client)
    if (client := client_of_cluster(executor)) is not None:
        return _on_cluster(client)
    if hasattr(executor, "scheduler_info"):
        return _on_cluster(executor)
    if "://" in named:
        from dfact.engine.cluster.connection import client_at

        return _on_cluster(client_at(named))
    methods = ("workers", "open", "map") if tasks else ("workers", "open")
    missing = [name for name in methods if not callable(getattr(executor, name, None))]
    if not missing:
        chosen: Executor = executor
        return chosen
    if len(missing) < len(methods):
        raise ParameterError(f"executor is {executor!r} without the method {missing[0]!r}, expected one with {', '.join(methods)}; add it")
    found = repr(named) if named else f"a {type(executor).__name__}"
    expected = "None, 'inline', 'threads', 'distributed', an address such as 'tcp://10.0.0.1:8786', a distributed.Client or a cluster"
    raise ParameterError(f"executor is {found}, expected {expected}")


def _on_cluster(client: Any) -> Executor:
    """Return the executor of a client's cluster; its modules are imported on first use, as most fits need none."""
    from dfact.engine.cluster.connection import usable_client
    from dfact.engine.cluster.session import DistributedExecutor

    return DistributedExecutor(usable_client(client))


def data_client(X: Any, executor: Any) -> Any:
    """Return the client of the cluster that computes a Dask array; None for other data, and where passes run in this process."""
    array = dask_array(X)
    if array is None or not array.ndim:
        return None
    return getattr(resolve_executor(executor, Layout.of(array.shape).n_partitions), "client", None)
