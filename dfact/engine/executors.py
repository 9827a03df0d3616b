"""Executors: the same walk over the same partitions, inline, on Dask's threads, or on a Dask cluster.

A session keeps the state of every partition from pass to pass. The order of all sums is fixed by
the partitions, so every executor gives the same bits.
"""

import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.partition import InOrder, Partition, add_up, one_ahead, walk
from dfact.engine.passes import Partial, Pass, State
from dfact.engine.plan import GATHERED, Plan, Workers, cluster_workers, local_workers
from dfact.engine.spill import SpilledState, SpillWriter
from dfact.engine.threads import single_threaded
from dfact.errors import ParameterError

if TYPE_CHECKING:
    from distributed import Client, Future

P = TypeVar("P", bound=Partial)
KeptState = list[State | None] | SpilledState | None


def visit(
    partition: Partition, pass_: Pass[Any, P], shared: Any, kept: KeptState, spill_to: Path | None, *, own: bool
) -> tuple[KeptState, P]:
    """One pass over one partition; the task of every executor.

    ``own`` says that the state is ours to overwrite; otherwise every block gets a copy, as a
    task that may run twice must find its inputs unchanged.
    """
    states: Any = [None] * partition.n_blocks if kept is None else kept
    if isinstance(kept, SpilledState):
        states = one_ahead(kept)
    elif not own:
        states = ({name: array.copy() for name, array in state.items()} if state else None for state in states)
    if spill_to is None:
        new: list[State | None] = []
        total = walk(partition, pass_, shared, states, new.append)
        return (new if any(state is not None for state in new) else None), total
    with SpillWriter(spill_to) as writer:
        total = walk(partition, pass_, shared, states, writer.keep)
    return writer.result, total


def _rows_of(kept: KeptState, name: str) -> NDArray[Any]:
    """A state array (k, rows) of all blocks of a partition as (rows, k)."""
    assert kept is not None, "no pass has kept a state yet"
    return np.concatenate([state[name].T for state in kept if state is not None])


class Session(Protocol):
    """The partitions of one data set with the state the passes keep for them."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def run(self, pass_: Pass[Any, P], shared: Any) -> P:
        """One pass over all rows; the sum of the partial results in block order."""
        ...

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        """A state array, rows first, a partition at a time in order."""
        ...


class Executor(Protocol):
    """Where passes run."""

    def workers(self, memory_limit: int | str | None) -> Workers: ...

    def open(self, partitions: list[Partition], plan: Plan) -> Session: ...


class _Versions:
    """Places for the spilled states of every partition.

    On this machine two files take turns: one is read while the other is written over. Workers get a
    new file for every pass, as one that was given up for lost may still be writing an old one.
    """

    def __init__(self, plan: Plan, *, take_turns: bool) -> None:
        self._take_turns = take_turns
        self._n_resident = plan.state_in_memory
        self._spills = plan.state_in_memory < plan.n_partitions
        self._folder = Path()
        self._version = 0

    def next_pass(self) -> None:
        if self._spills and self._version == 0:
            self._folder = Path(tempfile.mkdtemp(prefix="dfact-state-"))
        self._version += 1

    def place(self, partition: int) -> Path | None:
        """Where the partition's new state goes; None if it stays in memory."""
        if partition < self._n_resident:
            return None
        version = self._version % 2 if self._take_turns else self._version
        return self._folder / f"{partition}-{version}.state"

    def remove(self) -> None:
        if self._spills and self._version:
            shutil.rmtree(self._folder, ignore_errors=True)


class LocalSession:
    """In this process: one partition after the other, or several at once on Dask's threads."""

    def __init__(self, partitions: list[Partition], plan: Plan, threads: int) -> None:
        self._partitions, self._plan, self._threads = partitions, plan, threads
        self._kept: list[KeptState] = [None] * len(partitions)
        self._versions = _Versions(plan, take_turns=True)
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
        indices = range(len(self._partitions))
        if self._threads == 1:
            return add_up(self._visit(i, pass_, shared) for i in indices)
        from dask.threaded import get

        sums: InOrder[P] = InOrder(2 * self._threads)
        next_index = itertools.count().__next__

        def work() -> None:
            index = next_index()  # in the partitions' order, which is not Dask's
            try:
                sums.add(index, self._visit(index, pass_, shared))
            except BaseException:
                sums.fail()
                raise

        tasks = {f"visit-{i}": (work,) for i in indices}
        get(tasks, list(tasks), num_workers=self._threads)
        return sums.result

    def _visit(self, index: int, pass_: Pass[Any, P], shared: Any) -> P:
        if not self._loaded[index]:
            self._partitions[index] = self._partitions[index].load()
            self._loaded[index] = True
        place = self._versions.place(index)
        self._kept[index], total = visit(self._partitions[index], pass_, shared, self._kept[index], place, own=True)
        return total

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        for kept in self._kept:
            yield _rows_of(kept, name)


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


def _task(partition: Partition, pass_and_shared: tuple[Pass[Any, P], Any], kept: KeptState, spill_to: Path | None) -> tuple[KeptState, P]:
    pass_, shared = pass_and_shared
    with single_threaded():
        return visit(partition, pass_, shared, kept, spill_to, own=False)


def _identity(value: Any) -> Any:
    return value


def _item(pair: tuple[Any, Any], index: int) -> Any:
    return pair[index]


class DistributedSession:
    """Chains of pure futures, one for each partition: what a lost worker held is computed again.

    Spilled states are files that all workers can reach; only their names travel.
    """

    def __init__(self, client: "Client", partitions: list[Partition], plan: Plan) -> None:
        self._client, self._plan = client, plan
        self._versions = _Versions(plan, take_turns=False)
        self._kept: list[Any] = [None] * len(partitions)  # Future[KeptState], SpilledState or None
        self._sources = partitions
        self._partitions: list[Future] = []

    def __enter__(self) -> Self:
        import dask

        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "10GB"}):
            # Data in memory travels to the workers once, as the task that returns it.
            for i, partition in enumerate(self._sources):
                load = Partition.load if i < self._plan.values_in_memory else _identity
                self._partitions.append(self._submit(load, partition))
        self._sources = []
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._partitions, self._kept = [], []  # the cluster forgets what nobody holds
        self._versions.remove()

    def _submit(self, function: Any, *args: Any) -> "Future":
        return self._client.submit(function, *args, pure=False)

    def run(self, pass_: Pass[Any, P], shared: Any) -> P:
        self._versions.next_pass()
        broadcast = self._submit(_identity, (pass_, shared))
        totals, handles = [], {}
        for i, partition in enumerate(self._partitions):
            place = self._versions.place(i)
            result = self._submit(_task, partition, broadcast, self._kept[i], place)
            kept = self._submit(_item, result, 0)
            totals.append(self._submit(_item, result, 1))
            if place is None:
                self._kept[i] = kept
            else:
                handles[i] = kept
        batches = (totals[start : start + GATHERED] for start in range(0, len(totals), GATHERED))
        sums: P = add_up(total for batch in batches for total in self._client.gather(batch))
        for i, state in zip(handles, self._client.gather(list(handles.values())), strict=True):
            # The driver holds the names of the files, so a version may go once the next is written.
            if isinstance(self._kept[i], SpilledState):
                self._kept[i].delete()
            self._kept[i] = state
        return sums

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        for kept in self._kept:
            yield self._submit(_rows_of, kept, name).result()


class DistributedExecutor:
    """The workers of a Dask cluster."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    def workers(self, memory_limit: int | str | None) -> Workers:
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        if not found:
            self.client.wait_for_workers(1, timeout=60)
            found = self.client.scheduler_info(n_workers=-1)["workers"]
        limits = [worker["memory_limit"] or sys.maxsize for worker in found.values()]
        return cluster_workers(limits, max(worker["nthreads"] for worker in found.values()), memory_limit)

    def open(self, partitions: list[Partition], plan: Plan) -> DistributedSession:
        return DistributedSession(self.client, partitions, plan)


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
