"""The worker's side of a session: its shard, and the calls that reach it over the worker's own connections.

The driver opens a shard on each worker, and a task keeps it open. An epoch is an assignment of partitions to workers; calls of
an earlier one are refused. A reply has one key, or none if there is nothing to report: a result (``content``); the ``error`` of a
call; the partitions that a shard is ``lacking``; shards that are ``lost``, as their workers could not be reached; the ``stale`` epoch
of the call; or the key of a shard that is ``unknown`` to the process. A status, and a reply about lost shards, also state whether the
worker is ``leaving``.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dfact.data.layout import Layout
from dfact.data.lazy_results import exit_quickly
from dfact.data.sources.dask import DaskRows
from dfact.engine.block_state import CheckpointedState, StateArrays
from dfact.engine.cluster.handshake import verify_versions
from dfact.engine.cluster.heartbeats import meter_of, show_metrics
from dfact.engine.cluster.leaving import install_hand_over, is_leaving, notify_driver
from dfact.engine.cluster.placement import Tree
from dfact.engine.cluster.reservation import Reservation, release, reserve
from dfact.engine.cluster.rows import ChunkOfRows, WrittenRows, reaches
from dfact.engine.cluster.transport import packed, unpacked
from dfact.engine.partitions import Leaves, Node, Partitions, TreeSum
from dfact.engine.shard import Shard
from dfact.engine.tiles import TileSums, add_tiles

if TYPE_CHECKING:
    from distributed import Worker

T = TypeVar("T")
OPERATION = "dfact"
"""Name of the handler that is added to those of a Dask worker."""
ShardAddress = tuple[str, str]
"""The address of a worker and the key of its shard."""
Share = tuple[str, str, list[tuple[int, int]]]
"""The address of a worker, the key of its shard, and its partitions as runs (first, last + 1)."""
LeafCounts = Sequence[int]
"""The numbers of leaves in each segment of a tree of sums."""
ShardSize = tuple[Layout, int, int, int]
"""The layout of the data, and the numbers of states, values and sums that may stay in memory."""
_STATES_BYTES = 1 << 26  # maximum size of the states in one message between workers, unless a single partition has more
_LEASE = 600.0  # seconds that a shard without its task waits for a call before it closes
_shards: dict[str, "WorkerShard"] = {}
_expiring: set[Any] = set()  # strong references: the event loop holds tasks weakly


@dataclass
class Report:
    """Timing and state of the workers that ran a pass, reported to the driver."""

    seconds: dict[str, tuple[int, float]]
    """Number of partitions processed in the pass and seconds taken, by key of the shard."""
    stateless: bool
    """Whether no partition has a state after the pass."""
    interrupted: bool = False
    """Whether a leaving worker has interrupted the pass, so that sums are missing."""

    def update(self, other: "Report") -> None:
        self.seconds |= other.seconds
        self.stateless &= other.stateless
        self.interrupted |= other.interrupted


class WorkerShard:
    """A shard in a worker's process, with a thread that processes one call after the other.

    If a call fails at another worker, the reply names that worker, so that the driver can determine whether it
    is lost. It has no information on the partitions of others. ``size`` is as in :class:`Shard`: the layout, and what may stay in
    memory.
    """

    def __init__(self, worker: "Worker", key: str, size: ShardSize) -> None:
        self.worker, self.key = worker, key
        self._control = ThreadPoolExecutor(1, "dfact-shard")
        layout, states, values, sums = size
        self._shard = Shard(layout, worker.state.nthreads, states, values, sums)
        self._request: Any = None  # the pass of the last call, without its broadcast
        self._epoch, self._interrupted_epoch = 0, -1
        self._interrupting = threading.Lock()
        """Held while the epoch and the shard's readiness for passes change, on the event loop or on the thread of the calls."""
        self._meter = meter_of(worker)
        self.closed = threading.Event()
        self.task_started = False
        self._last_call = time.monotonic()

    async def open(self) -> None:
        """Enter the shard, on the thread that processes all calls."""
        keep_freed_memory()
        await self._do(self._shard.__enter__)
        _shards[self.key] = self
        self._meter.shards[self.key] = self._shard

    async def expire(self) -> None:
        """Close the shard if its task does not start in time, for example because the driver was lost before."""
        while not (self.task_started or self.closed.is_set()):
            await asyncio.sleep(_LEASE / 10)
            if not self.task_started and time.monotonic() - self._last_call > _LEASE:
                await self.close()

    # Calls of the driver and of other workers

    async def run(
        self,
        epoch: int,
        pass_numbers: Sequence[int],
        passes: Sequence[bytes | None],
        broadcasts: Sequence[bytes],
        runs: Sequence[tuple[int, int]],
        below: Sequence[Tree[Share]],
        *,
        leaves: LeafCounts | None,
    ) -> dict[str, Any]:
        """Run passes on these partitions, and at the workers below. Returns the sums of the last pass, over ``leaves``: their number in
        each segment.

        ``pass_numbers`` count the passes of the session, ``runs`` the partitions. A pass None is the same as the one before.
        Without ``leaves`` no sums are wanted, as the passes are repeated.
        """
        if not self._is_current(epoch):
            return {"stale": epoch}
        work = partial(self._run, epoch, list(zip(pass_numbers, passes, broadcasts, strict=True)), runs, leaves)
        if not below:
            return await self._do(lambda: self._finish(work()))
        message: dict[str, Any] = {
            "epoch": epoch,
            "pass_numbers": pass_numbers,
            "passes": passes,
            "broadcasts": broadcasts,
            "leaves": leaves,
        }
        local = asyncio.ensure_future(self._do(work))
        # Retrieves an error, so that asyncio does not report it as never retrieved when another call has failed first.
        local.add_done_callback(lambda task: task.cancelled() or task.exception())
        remote = [
            asyncio.ensure_future(self.call_shard((address, key), "run", runs=shard_runs, below=subtrees, **message))
            for (address, key, shard_runs), subtrees in below
        ]
        try:
            result: Any = None
            for missing, task in zip(range(len(remote), -1, -1), asyncio.as_completed([local, *remote]), strict=True):
                reply = await task
                if isinstance(reply, dict) and "content" not in reply:
                    return reply
                # The last step also makes the reply, in the same call of the thread, as all workers above wait for it.
                result = await self._do(self._combine if missing else self._complete, result, reply, leaves)
            return dict(result)
        finally:
            for task in remote:
                task.cancel()

    def _is_current(self, epoch: int) -> bool:
        """Return whether the call was sent under the current assignment of partitions."""
        self._epoch = max(epoch, self._epoch)
        return epoch == self._epoch

    async def interrupt(self, epoch: int) -> dict[str, Any]:
        """Interrupt passes under this assignment of partitions, as the driver is about to move those of this worker."""
        if self._is_current(epoch):
            with self._interrupting:
                self._interrupted_epoch = epoch
                self._shard.interrupt_pass()
        return {}

    async def sums(self, epoch: int, pass_number: int) -> dict[str, Any]:
        """Return the sums of this shard alone in the pass with this number, even if it was interrupted; none if it has not begun."""
        if not self._is_current(epoch):
            return {"stale": epoch}
        return {"content": serialized(await self._do(lambda: packed(self._shard.sums(pass_number))))}

    def _run(
        self, epoch: int, entries: Sequence[tuple[int, bytes | None, bytes]], runs: Sequence[tuple[int, int]], leaves: LeafCounts | None
    ) -> Any:
        """Run passes on the shard. Returns its sums by node of the tree over the partitions, with a report; or a reply if it lacks some."""
        with self._interrupting:
            if epoch > self._interrupted_epoch:
                self._shard.allow_passes()
        lacking = self._shard.retain([range(*run) for run in runs])
        if lacking:
            return {"lacking": [self.key, [(run.start, run.stop) for run in lacking]]}
        began, previous, interrupted = time.perf_counter(), self._shard.n_processed, False
        for pass_number, pass_, broadcast in entries:
            if pass_ is not None:
                self._request = unpacked(pass_)
            if self._shard.has_pending(pass_number):
                self._shard.run(pass_number, self._request.with_broadcast(unpacked(broadcast)), wanted=leaves is not None)
                interrupted = self._shard.has_pending(pass_number)
                if interrupted:
                    break
                self._meter.passes += 1
        processed = self._shard.n_processed - previous
        self._meter.partitions += processed
        self._meter.rows_per_second = self._shard.rows_per_second
        nodes = self._shard.sums(entries[-1][0]) if leaves else {}
        return nodes, Report({self.key: (processed, time.perf_counter() - began)}, self._shard.stateless, interrupted)

    def _combine(self, combined: tuple[TreeSum[Any], Report] | None, reply: Any, leaves: LeafCounts | None) -> tuple[TreeSum[Any], Report]:
        """Add the sums of this shard, or of one below, to those collected so far."""
        if isinstance(reply, dict):
            nodes, report = unpacked(reply["content"])
        else:  # the shard's sums are copied, as the pass may be requested again
            nodes, report = {node: part.accumulator() for node, part in reply[0].items()}, reply[1]
        if combined is None:
            combined = TreeSum(Leaves(tuple(leaves or ()))), report
        else:
            combined[1].update(report)
        combined[0].update(nodes)
        return combined

    def _complete(self, combined: tuple[TreeSum[Any], Report] | None, reply: Any, leaves: LeafCounts | None) -> dict[str, Any]:
        """Add the last sums, and return the reply to the call."""
        return self._finish(self._combine(combined, reply, leaves))

    def _finish(self, result: Any) -> dict[str, Any]:
        """Return the reply to a call: the pickled result, unless partitions are lacking."""
        if isinstance(result, dict):
            return result
        sums, report = result
        return {"content": serialized(packed((sums.nodes if isinstance(sums, TreeSum) else sums, report)))}

    async def tile_sums(self, pass_number: int, tiles: Sequence[int]) -> dict[str, Any]:
        """Return the sums of some tiles in a tiled pass over the groups of partitions of this worker."""
        return {"content": serialized(await self._do(lambda: packed(self._tile_sums(pass_number, tiles))))}

    def _tile_sums(self, pass_number: int, tiles: Sequence[int]) -> list[dict[Node, StateArrays]]:
        return [self._shard.tile_sums(pass_number, tile) for tile in tiles]

    async def step_tiles(
        self, epoch: int, pass_number: int, groups: LeafCounts, tiles: Sequence[int], sources: Sequence[ShardAddress], content: bytes
    ) -> dict[str, Any]:
        """Collect the sums of some tiles from all shards, and return the tiles' new states and small sums.

        Without ``sources`` the step gets no sums.
        """
        if not self._is_current(epoch):
            return {"stale": epoch}
        totals = [TreeSum[TileSums](Leaves(tuple(groups))) for _ in tiles]
        first = tiles[0] % max(1, len(sources))  # not all workers begin with the same one
        for address, key in [*sources[first:], *sources[:first]]:
            if key == self.key:
                parts = await self._do(self._tile_sums, pass_number, tiles)
            else:
                reply = await self.call_shard((address, key), "tile_sums", pass_number=pass_number, tiles=tiles)
                if "content" not in reply:
                    return reply
                parts = await self._do(unpacked, reply["content"])
            await self._do(add_tiles, totals, parts)
            self._shard.advance()
        sums = [total.result.arrays if sources else {} for total in totals]
        return {"content": serialized(await self._do(self._step_tiles, content, sums))}

    def _step_tiles(self, content: bytes, sums: Sequence[StateArrays]) -> bytes:
        step, tiles = unpacked(content)
        own = [replace(tile, sums=arrays) for tile, arrays in zip(tiles, sums, strict=True)]
        return packed(self._shard.map(step, own))

    async def add(self, epoch: int, content: bytes) -> dict[str, Any]:
        """Add partitions that no other worker has, without states or with those of a checkpoint."""
        if self._is_current(epoch):
            await self._do(self._add, content)
        return {}

    def _add(self, content: bytes) -> None:
        partitions, done, states = unpacked(content)
        self._shard.add(self._readable(partitions), done)
        for state in states:
            self._shard.restore(state)

    async def take(self, epoch: int, content: bytes, source: ShardAddress) -> dict[str, Any]:
        """Take over partitions with their states from another worker, which drops them at the next pass."""
        if not self._is_current(epoch):
            return {"stale": epoch}
        first, last = await self._do(self._take, content)
        address, key = source  # which msgpack turns into a list
        while first < last:
            reply = await self.call_shard((address, key), "give", first=first, last=last)
            if "content" not in reply:
                return reply
            if epoch != self._epoch:  # another worker may own them by now, or this one once more
                return {"stale": epoch}
            first = await self._do(self._put, reply["content"])
        return {}

    def _take(self, content: bytes) -> tuple[int, int]:
        partitions, done = unpacked(content)
        self._shard.add(self._readable(partitions), done)
        return partitions.first, partitions.last

    def _put(self, content: bytes) -> int:
        states, last = unpacked(content)
        for partition, done, blocks in states:
            self._shard.put(partition, done, blocks)
        return int(last)

    async def give(self, first: int, last: int) -> dict[str, Any]:
        """Return the states of the partitions from ``first`` on, as many as fit into one message."""
        return {"content": await self._do(self._give, first, last)}

    def _give(self, first: int, last: int) -> Any:
        states, size = [], 0
        for partition in range(first, last):
            added = list(self._shard.states(partition, partition + 1))
            states += added
            size += sum(array.nbytes for *_, blocks in added for state in blocks for array in state.values())
            if size >= _STATES_BYTES:
                return serialized(packed((states, partition + 1)))
        return serialized(packed((states, last)))

    async def rows(self, name: str, first: int, last: int) -> dict[str, Any]:
        """Return a state array of some partitions, rows first."""
        return {"content": serialized(await self._do(lambda: packed(self._shard.rows(name, first, last))))}

    async def reaches(self, content: bytes) -> dict[str, Any]:
        """Return whether this worker finds the marker that the driver has written next to an array."""
        return {"content": serialized(packed(await self._do(lambda: reaches(*unpacked(content)))))}

    async def write(self, content: bytes, chunks: Sequence[ChunkOfRows]) -> dict[str, Any]:
        """Write chunks of a state array to a Zarr array, from rows of this worker and of others."""
        written: WrittenRows = unpacked(content)
        for start, stop, pieces in chunks:
            parts = []
            for address, key, first, last in pieces:
                if key == self.key:
                    parts.append(await self._do(self._shard.rows, written.name, first, last))
                    continue
                reply = await self.call_shard((address, key), "rows", name=written.name, first=first, last=last)
                if "content" not in reply:
                    return reply
                parts.append(unpacked(reply["content"]))
            await self._do(written.write, start, stop, pieces[0][2], parts)
            self._shard.advance()
        return {}

    async def save(self, content: bytes, stream: str) -> dict[str, Any]:
        """Write the states of all partitions of this worker to the group of a checkpoint."""
        states: list[CheckpointedState] = await self._do(lambda: self._shard.save(unpacked(content), stream))
        return {"content": serialized(packed([state.describe() for state in states]))}

    async def status(self) -> dict[str, Any]:
        """Return whether the worker is leaving; any answer shows that the shard is open."""
        return {"leaving": is_leaving(self.worker)}

    async def close(self) -> dict[str, Any]:
        """Stop the shard, even in a pass, and close it."""
        if not self.closed.is_set():
            self.closed.set()
            _shards.pop(self.key, None)
            self._meter.shards.pop(self.key, None)
            self._shard.stop()
            try:
                await asyncio.get_running_loop().run_in_executor(self._control, self._shard.__exit__)
            finally:
                release(self.worker, self.key)
                self._control.shutdown(wait=False)
        return {}

    # Helpers

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        self._last_call = time.monotonic()
        return await asyncio.get_running_loop().run_in_executor(self._control, function, *arguments)

    @property
    def ended(self) -> bool:
        """Whether the shard is closed or its worker has ended, so that an error may not come from the pass."""
        return self.closed.is_set() or self.worker.status.name == "closed"

    async def call_shard(self, shard: ShardAddress, call: str, **message: Any) -> dict[str, Any]:
        """Call another worker. If it cannot be reached, the reply names it as lost."""
        address, key = shard
        content = as_message(message)
        try:
            reply: dict[str, Any] | None = await getattr(self.worker.rpc(address), OPERATION)(key=key, call=call, message=content)
        except OSError:
            if self.ended:
                raise  # this worker's connections are closed, and the other may be alive
            return {"lost": [shard], "leaving": is_leaving(self.worker)}
        return {"lost": [shard]} if reply is None or "unknown" in reply else reply  # None: another process has the address

    def _readable(self, partitions: Partitions) -> Partitions:
        """Return partitions as they are read in this process: those of a Dask array fetch its chunks."""
        source = partitions.source
        return replace(partitions, source=replace(source, fetch=self._fetch)) if isinstance(source, DaskRows) else partitions

    def _fetch(self, keys: Sequence[Hashable]) -> Mapping[Hashable, Any]:
        """Return the results of Dask's tasks from this worker or from others; called on the shard's threads."""
        return asyncio.run_coroutine_threadsafe(self._gather(keys), self.worker.loop.asyncio_loop).result()

    async def _gather(self, keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        from dfact.internals.distributed import gather_from_workers

        results = {key: self.worker.data[key] for key in keys if key in self.worker.data}
        while len(results) < len(keys) and not self.closed.is_set():
            owners = await self.worker.scheduler.who_has(keys=[key for key in keys if key not in results])
            available = {key: workers for key, workers in owners.items() if workers}
            if available:
                data, *_ = await gather_from_workers(available, rpc=self.worker.rpc)
                results |= data
            if len(results) < len(keys):
                await asyncio.sleep(0.1)  # Dask recomputes the results of lost workers
        return results

    def wait_closed(self) -> None:
        """Wait in a task of the worker until the session ends, or until the driver is lost and no longer waits for the task."""
        from distributed import get_worker, secede

        worker, task = get_worker(), get_worker().get_current_task()
        secede()
        self.task_started, notified = True, False
        with _unprofiled(worker):
            while not self.closed.wait(0.5):
                if is_leaving(worker) and not notified:  # the scheduler moves the results of tasks before it closes the worker
                    notify_driver(worker, self.key)
                    notified = True
                state = worker.state.tasks.get(task)
                wanted = state is not None and state.state in ("executing", "long-running")
                if not (wanted or is_leaving(worker)) or worker.status.name == "closed":
                    closing = self.close()
                    try:
                        asyncio.run_coroutine_threadsafe(closing, worker.loop.asyncio_loop)
                    except RuntimeError:  # the worker's event loop has ended already
                        closing.close()
                    return


@contextmanager
def _unprofiled(worker: "Worker") -> Iterator[None]:
    """Exclude this thread from those whose stacks Dask samples a hundred times a second, as it only waits."""
    thread = threading.get_ident()
    with worker.active_threads_lock:
        task = worker.active_threads.pop(thread)
    try:
        yield
    finally:
        with worker.active_threads_lock:
            worker.active_threads[thread] = task  # Dask will remove it


def serialized(content: "bytes | bytearray | memoryview") -> Any:
    """Wrap bytes so that Dask sends them without a copy."""
    from dfact.internals.distributed import to_serialize

    return to_serialize(content)


def as_message(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap the bytes, or lists of bytes, among the arguments of a call so that Dask sends them without a copy."""

    def wrap(value: Any) -> Any:
        return serialized(value) if isinstance(value, (bytes, bytearray, memoryview)) else value

    # Not any deeper: the tree of a thousand workers holds no bytes, and is long.
    return {name: [wrap(item) for item in value] if isinstance(value, (list, tuple)) else wrap(value) for name, value in arguments.items()}


async def handle(key: str, call: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a call to one of the shards of this process; the reply contains an error of a pass as it was raised."""
    called = _shards.get(key)
    if called is None:
        return {"unknown": key}
    try:
        reply: dict[str, Any] = await getattr(called, call)(**message)
    except Exception as error:
        if called.ended or is_leaving(called.worker):  # its connections may be closed; others meet an error of the pass itself again
            return {"unknown": key}
        return {"error": serialized(_packed_error(error))}
    return reply


def _packed_error(error: Exception) -> bytes:
    try:
        content = packed(error)
        unpacked(content)
    except Exception:  # an error that cannot be pickled is sent as text
        return packed(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


async def open_shard(
    key: str, *size: *ShardSize, dask_worker: "Worker", driver: Mapping[str, str] | None = None, reservation: Reservation | None = None
) -> dict[str, str]:
    """Open a shard in a worker, and return the worker's environment; Dask runs this on its event loop.

    Raises ClusterError if the versions are not those of the driver, MemoryPlanError if other fits hold the memory.
    """
    from dfact.internals.distributed import check_worker

    environment = verify_versions(driver)
    check_worker(dask_worker)
    exit_quickly()
    assert reservation is not None, "a driver of this version sends one"
    await install_hand_over(dask_worker, lambda worker: [shard for shard in _shards.values() if shard.worker is worker])
    dask_worker.handlers.setdefault(OPERATION, handle)
    show_metrics(dask_worker)
    reserve(dask_worker, key, reservation)
    try:
        shard = WorkerShard(dask_worker, key, size)
        await shard.open()
    except BaseException:
        release(dask_worker, key)
        raise
    expiring = asyncio.ensure_future(shard.expire())
    _expiring.add(expiring)
    expiring.add_done_callback(_expiring.discard)
    return environment


def keep_shard(key: str) -> None:
    """Run as a task as long as the session and its driver exist. The task shows Dask that the worker is busy."""
    shard = _shards.get(key)
    if shard is not None:
        shard.wait_closed()


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for later allocations, which is its default.

    Dask's nannies start workers with settings that return freed memory to the system at once. The first access to new memory
    then costs as much as the arithmetic.
    """
    with suppress(OSError, AttributeError):  # another C library does not have these settings
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold, largest = -1, -3, 32 << 20
        libc.mallopt(mmap_threshold, largest)
        libc.mallopt(trim_threshold, 4 * largest)
