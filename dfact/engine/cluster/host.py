"""A worker's side of a session: the shard, and the calls that reach it over the worker's own connections."""

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dfact.engine.block_state import CheckpointedState
from dfact.engine.cluster.memory import keep_freed_memory
from dfact.engine.cluster.meter import meter_of, show_figures
from dfact.engine.cluster.placement import Tree
from dfact.engine.cluster.rows import ChunkOfRows, WrittenRows, reached
from dfact.engine.cluster.transport import packed, unpacked
from dfact.engine.reduction import TreeSum
from dfact.engine.shard import Shard

if TYPE_CHECKING:
    from distributed import Worker

T = TypeVar("T")
OPERATION = "dfact"
"""The name of our handler among those of a Dask worker."""
Peer = tuple[str, str]
"""The address of a worker and the key of its host."""
Share = tuple[str, str, list[tuple[int, int]]]
"""A peer and its partitions, as runs of them."""
_STATES_BYTES = 1 << 26  # of states that one message takes from worker to worker, unless a single partition has more
_LEASE = 600.0  # seconds that a host without its task waits for a call before it closes
_hosts: dict[str, "Host"] = {}
_expiring: set[Any] = set()  # the event loop holds tasks weakly


@dataclass
class Report:
    """Timing and state of the workers that ran a pass, reported to the driver."""

    seconds: dict[str, tuple[int, float]]
    """By key of a host, the number of partitions it has visited in the pass, and the seconds that took."""
    stateless: bool
    """Whether no partition has a state now."""

    def update(self, other: "Report") -> None:
        self.seconds |= other.seconds
        self.stateless &= other.stateless


class Host:
    """A shard in a worker's process, on a thread of its own that does one thing after the other.

    A call that fails at another worker is answered with that worker's name, so that the driver can find out what
    became of it. The host neither knows nor cares which partitions others hold.
    """

    def __init__(self, worker: "Worker", key: str, n_partitions: int, resident_states: int, resident_values: int) -> None:
        self.worker, self.key = worker, key
        self._control = ThreadPoolExecutor(1, "dfact-shard")
        self._shard = Shard(n_partitions, worker.state.nthreads, resident_states, resident_values, self._fetch)
        self._pass: Any = None
        self._epoch = 0
        self._meter = meter_of(worker)
        self.closed = threading.Event()
        self.held = False
        self._called = time.monotonic()

    async def open(self) -> None:
        """Begin, on the thread that all else runs on."""
        keep_freed_memory()
        await self._do(self._shard.__enter__)
        _hosts[self.key] = self

    async def expire(self) -> None:
        """Close if no task has come to hold the host, as when its driver was lost at the start."""
        while not (self.held or self.closed.is_set()):
            await asyncio.sleep(_LEASE / 10)
            if not self.held and time.monotonic() - self._called > _LEASE:
                await self.close()

    # What the driver and other workers call

    async def run(
        self,
        epoch: int,
        numbers: Sequence[int],
        passes: Sequence[bytes | None],
        broadcasts: Sequence[bytes],
        runs: Sequence[tuple[int, int]],
        below: Sequence[Tree[Share]],
        *,
        parts: int,
    ) -> dict[str, Any]:
        """Run passes on these partitions, and at the workers below; returns the sums of the last, over ``parts`` partitions.

        A pass is None where it is the one before. With 0 ``parts`` no sums are wanted: the passes are repeated.
        """
        if not self._is_current(epoch):
            return {"stale": epoch}
        work = partial(self._run, list(zip(numbers, passes, broadcasts, strict=True)), runs, parts)
        if not below:
            return await self._do(lambda: self._finish(work()))
        message: dict[str, Any] = {"epoch": epoch, "numbers": numbers, "passes": passes, "broadcasts": broadcasts, "parts": parts}
        own = asyncio.ensure_future(self._do(work))
        own.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # marks an error as seen when another call has failed first
        asked = [
            asyncio.ensure_future(self.ask((address, key), "run", runs=theirs, below=further, **message))
            for (address, key, theirs), further in below
        ]
        try:
            found: tuple[TreeSum[Any], Report] | None = None
            for task in asyncio.as_completed([own, *asked]):
                reply = await task
                if isinstance(reply, dict) and "content" not in reply:
                    return reply
                found = await self._do(self._joined, found, reply, parts)
            return await self._do(self._finish, found)
        finally:
            for task in asked:
                task.cancel()

    def _is_current(self, epoch: int) -> bool:
        """Return whether the call was sent under the current assignment of partitions."""
        self._epoch = max(epoch, self._epoch)
        return epoch == self._epoch

    def _run(self, entries: Sequence[tuple[int, bytes | None, bytes]], runs: Sequence[tuple[int, int]], parts: int) -> Any:
        lacking = self._shard.hold([range(*run) for run in runs])
        if lacking:
            return {"lacking": [self.key, [(run.start, run.stop) for run in lacking]]}
        began, before = time.perf_counter(), self._shard.visits
        for number, pass_, broadcast in entries:
            if pass_ is not None:
                self._pass = unpacked(pass_)
            if self._shard.lags(number):
                self._shard.run(number, self._pass, unpacked(broadcast), wanted=parts > 0)
        visits = self._shard.visits - before
        self._meter.passes += len(entries)
        self._meter.partitions += visits
        self._meter.rows_per_second = self._shard.rows_per_second
        nodes = self._shard.sums(entries[-1][0]) if parts else {}
        return nodes, Report({self.key: (visits, time.perf_counter() - began)}, self._shard.stateless)

    def _joined(self, found: tuple[TreeSum[Any], Report] | None, reply: Any, parts: int) -> tuple[TreeSum[Any], Report]:
        """Add the sums of this host, or of one below, to those collected so far."""
        if isinstance(reply, dict):
            nodes, report = unpacked(reply["content"])
        else:  # its own sums stay as they are, for the pass may be asked for again
            nodes, report = {node: part.total() for node, part in reply[0].items()}, reply[1]
        if found is None:
            found = TreeSum(parts), report
        else:
            found[1].update(report)
        found[0].update(nodes)
        return found

    def _finish(self, found: Any) -> dict[str, Any]:
        """The answer to a call: what was found as bytes, unless partitions are lacking."""
        if isinstance(found, dict):
            return found
        sums, report = found
        return {"content": serialized(packed((sums.nodes if isinstance(sums, TreeSum) else sums, report)))}

    async def add(self, epoch: int, content: bytes) -> dict[str, Any]:
        """Take over partitions from nobody: from the start, or with the states of a checkpoint."""
        if self._is_current(epoch):
            await self._do(self._add, content)
        return {}

    def _add(self, content: bytes) -> None:
        partitions, done, states = unpacked(content)
        self._shard.add(partitions, done)
        for state in states:
            self._shard.restore(state)

    async def take(self, epoch: int, content: bytes, source: Peer) -> dict[str, Any]:
        """Take over partitions with their states from another worker, which keeps them until the next pass."""
        if not self._is_current(epoch):
            return {"stale": epoch}
        first, last = await self._do(self._take, content)
        while first < last:
            reply = await self.ask(tuple(source), "give", first=first, last=last)  # type: ignore[arg-type]  # msgpack turns the pair into a list
            if "content" not in reply:
                return reply
            if epoch != self._epoch:  # they may be somebody else's by now, or here once more
                return {"stale": epoch}
            first = await self._do(self._put, reply["content"])
        return {}

    def _take(self, content: bytes) -> tuple[int, int]:
        partitions, done = unpacked(content)
        self._shard.add(partitions, done)
        return partitions.first, partitions.last

    def _put(self, content: bytes) -> int:
        states, last = unpacked(content)
        for number, blocks in states:
            self._shard.put(number, blocks)
        return int(last)

    async def give(self, first: int, last: int) -> dict[str, Any]:
        """The states of the partitions from ``first`` on, as many as a message takes."""
        return {"content": await self._do(self._give, first, last)}

    def _give(self, first: int, last: int) -> Any:
        states, size = [], 0
        for number in range(first, last):
            found = list(self._shard.states(number, number + 1))
            states += found
            size += sum(array.nbytes for _, blocks in found for state in blocks for array in (state or {}).values())
            if size >= _STATES_BYTES:
                return serialized(packed((states, number + 1)))
        return serialized(packed((states, last)))

    async def rows(self, name: str, first: int, last: int) -> dict[str, Any]:
        """A state array of some partitions, rows first."""
        return {"content": serialized(await self._do(lambda: packed(self._shard.rows(name, first, last))))}

    async def reaches(self, content: bytes) -> dict[str, Any]:
        """Whether this worker finds what the driver has put beside an array."""
        return {"content": serialized(packed(await self._do(lambda: reached(*unpacked(content)))))}

    async def write(self, content: bytes, chunks: Sequence[ChunkOfRows]) -> dict[str, Any]:
        """Write chunks of a state array to a Zarr array, with rows that lie here or with other workers."""
        written: WrittenRows = unpacked(content)
        for start, stop, pieces in chunks:
            parts = []
            for address, key, first, last in pieces:
                if key == self.key:
                    parts.append(await self._do(self._shard.rows, written.name, first, last))
                    continue
                reply = await self.ask((address, key), "rows", name=written.name, first=first, last=last)
                if "content" not in reply:
                    return reply
                parts.append(unpacked(reply["content"]))
            await self._do(written.write, start, stop, pieces[0][2], parts)
        return {}

    async def store(self, content: bytes, stream: str) -> dict[str, Any]:
        """Write the state of all partitions held here to the group of a checkpoint."""
        states: list[CheckpointedState] = await self._do(lambda: self._shard.store(unpacked(content), stream))
        return {"content": serialized(packed([state.described() for state in states]))}

    async def status(self) -> dict[str, Any]:
        """How many partitions have been visited so far: whether anything moves."""
        return {"visits": self._shard.visits}

    async def close(self) -> dict[str, Any]:
        """End the shard, whatever it does."""
        if not self.closed.is_set():
            self.closed.set()
            _hosts.pop(self.key, None)
            self._shard.stop()
            await asyncio.get_running_loop().run_in_executor(self._control, self._shard.__exit__)
            self._control.shutdown(wait=False)
        return {}

    # What it stands on

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        self._called = time.monotonic()
        return await asyncio.get_running_loop().run_in_executor(self._control, function, *arguments)

    @property
    def leaving(self) -> bool:
        """Whether the host or its worker is being closed, so that an error does not come from the pass."""
        return self.closed.is_set() or self.worker.status.name in {"closing", "closed"}

    async def ask(self, peer: Peer, call: str, **message: Any) -> dict[str, Any]:
        """Call another worker; a reply that says which one is lost if it cannot be reached."""
        address, key = peer
        content = as_message(message)
        try:
            reply: dict[str, Any] | None = await getattr(self.worker.rpc(address), OPERATION)(host=key, call=call, message=content)
        except OSError:
            if self.leaving:
                raise  # its own connections are closed; the other may be there
            return {"lost": [peer]}
        return {"lost": [peer]} if reply is None or "unknown" in reply else reply  # None: another process has the address

    def _fetch(self, keys: Sequence[Hashable]) -> Mapping[Hashable, Any]:
        """The results of Dask's tasks, from this worker or from others; called on the shard's threads."""
        return asyncio.run_coroutine_threadsafe(self._gathered(keys), self.worker.loop.asyncio_loop).result()

    async def _gathered(self, keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        from distributed.utils_comm import gather_from_workers

        found = {key: self.worker.data[key] for key in keys if key in self.worker.data}
        while len(found) < len(keys) and not self.closed.is_set():
            where = await self.worker.scheduler.who_has(keys=[key for key in keys if key not in found])
            there = {key: workers for key, workers in where.items() if workers}
            if there:
                data, *_ = await gather_from_workers(there, rpc=self.worker.rpc)
                found |= data
            if len(found) < len(keys):
                await asyncio.sleep(0.1)  # Dask computes again what a lost worker held
        return found

    def hold(self) -> None:
        """Wait in a task of the worker until the session ends, or until nobody waits for the task any more: then it has no driver."""
        from distributed import get_worker, secede

        worker, task = get_worker(), get_worker().get_current_task()
        secede()
        self.held = True
        with _unprofiled(worker):
            while not self.closed.wait(0.5):
                state = worker.state.tasks.get(task)
                wanted = state is not None and state.state in ("executing", "long-running")
                if not wanted or worker.status.name not in ("running", "paused"):
                    closing = self.close()
                    try:
                        asyncio.run_coroutine_threadsafe(closing, worker.loop.asyncio_loop)
                    except RuntimeError:  # the worker's loop has ended before
                        closing.close()
                    return


@contextmanager
def _unprofiled(worker: "Worker") -> Iterator[None]:
    """Take this thread from those whose stacks Dask samples a hundred times a second: it only waits."""
    thread = threading.get_ident()
    with worker.active_threads_lock:
        task = worker.active_threads.pop(thread)
    try:
        yield
    finally:
        with worker.active_threads_lock:
            worker.active_threads[thread] = task  # where Dask removes it


def serialized(content: "bytes | bytearray | memoryview") -> Any:
    """Bytes as Dask sends them without a copy."""
    from distributed.protocol import to_serialize

    return to_serialize(content)


def as_message(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as Dask sends them: bytes, or lists of them, without a copy."""

    def sent(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [sent(item) for item in value]
        return serialized(value) if isinstance(value, (bytes, bytearray, memoryview)) else value

    return {name: sent(value) for name, value in arguments.items()}


async def handle(host: str, call: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a call to one of the hosts of this process; errors of passes travel as they are."""
    called = _hosts.get(host)
    if called is None:
        return {"unknown": host}
    try:
        found: dict[str, Any] = await getattr(called, call)(**message)
    except Exception as error:
        if called.leaving:  # as a worker that is retired in the midst of a pass
            return {"unknown": host}
        return {"error": serialized(_packed_error(error))}
    return found


def _packed_error(error: Exception) -> bytes:
    try:
        content = packed(error)
        unpacked(content)
    except Exception:  # what cannot travel is told in words
        return packed(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


async def open_host(key: str, n_partitions: int, resident_states: int, resident_values: int, *, dask_worker: "Worker") -> None:
    """Make a host in a worker; Dask runs this on its event loop."""
    dask_worker.handlers.setdefault(OPERATION, handle)
    show_figures(dask_worker)
    host = Host(dask_worker, key, n_partitions, resident_states, resident_values)
    await host.open()
    expiring = asyncio.ensure_future(host.expire())
    _expiring.add(expiring)
    expiring.add_done_callback(_expiring.discard)


def hold_host(key: str) -> None:
    """The task that shows Dask that a worker is busy, and that ends with the session or its driver."""
    host = _hosts.get(key)
    if host is not None:
        host.hold()
