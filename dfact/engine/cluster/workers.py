"""The workers of a session: joining, calls, and the detection of lost ones.

A worker has joined once it has opened a shard, which a task keeps open: a shard whose driver is gone closes by itself. Calls reach a worker
through the scheduler. While the cluster exists, a call ends in one of four ways: with the reply; with the error of the pass; with
:class:`WorkersLost`, once it is certain that these workers are gone; or with :class:`Retry`, if all are alive and the call must be repeated
under another assignment, or by direct calls where workers cannot reach each other.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakSet, WeakValueDictionary

from dfact import signals
from dfact.engine.cluster.handshake import SessionEnvironments, driver_fields, refusal
from dfact.engine.cluster.heartbeats import session_steps
from dfact.engine.cluster.leaving import TOPIC
from dfact.engine.cluster.placement import subtract_runs
from dfact.engine.cluster.reservation import Reservation
from dfact.engine.cluster.transport import unpacked
from dfact.engine.cluster.watchdog import POLL_SECONDS, Watchdog, cluster_errors, until_silent
from dfact.engine.cluster.worker_shard import OPERATION, ShardAddress, ShardSize, as_message, keep_shard, open_shard
from dfact.errors import ClusterError
from dfact.monitoring import metrics

if TYPE_CHECKING:
    from distributed import Client, Future

# Seconds to wait after the last join before starting without the remaining workers; doubled while none has joined.
_JOIN_TIMEOUT = 10.0
_RETRY_SECONDS = 60.0  # seconds before another attempt
_DIRECT_PASSES, _MAX_DIRECT_PASSES = 4, 256  # number of passes with direct calls before workers call each other again; doubled each time
_MAX_ATTEMPTS = 3  # to move the partitions of a leaving worker
_RESERVED = 8  # connections of the client that long calls leave free, for the queries that show whether the cluster is alive
_sessions: "WeakValueDictionary[str, SessionWorkers]" = WeakValueDictionary()  # by the keys of their shards
_subscribed: "WeakSet[Client]" = WeakSet()
_interrupting: set[Any] = set()  # strong references: the event loop holds tasks weakly
logger = logging.getLogger("dfact.cluster")


def _note(event: tuple[float, dict[str, Any]]) -> None:
    """Pass the event of a leaving worker on to its session; Dask's client calls this on its event loop."""
    key = event[1]["key"]
    if (session := _sessions.get(key)) is not None:
        session.note_leaving(key)


@dataclass(eq=False)
class SessionWorker:
    """A worker that has joined the session, as the driver sees it."""

    address: str
    threads: int
    key: str
    task: "Future | None" = None
    """The task that keeps the shard open."""
    runs: list[range] = field(default_factory=list)
    """Its partitions."""
    speed: float = float("nan")
    """Recent speed in partitions per second with all threads busy."""
    placed: bool = False
    """Whether the partitions have been distributed with regard to it since it joined."""
    is_leaving: bool = False
    """Whether it has been told to stop: it ends once its partitions have moved, or its time is up."""
    attempts: int = 0
    """Number of attempts to move its partitions since then."""

    @property
    def shard(self) -> ShardAddress:
        return self.address, self.key

    @property
    def load(self) -> int:
        """Number of its partitions."""
        return sum(map(len, self.runs))


class WorkersLost(Exception):  # noqa: N818  # not an error: the remaining workers take over
    """Raised when workers are lost, whose partitions must be recomputed."""

    def __init__(self, workers: Sequence[SessionWorker]) -> None:
        super().__init__(", ".join(worker.address for worker in workers))
        self.workers = workers


class Retry(Exception):  # noqa: N818  # not an error: the call is repeated
    """Raised when no worker is lost, but a call must be repeated with other partitions or another tree of calls."""


class SessionWorkers:
    """The workers that have joined a session, by their addresses."""

    def __init__(self, client: "Client", size: ShardSize, reservation: Reservation) -> None:
        """Initialize; ``size`` is the layout, the numbers of partitions whose states and values a worker may keep, and that
        of the groups whose tiled sums it may keep. The ``reservation`` is each worker's.
        """
        from dfact.internals.distributed import check_client

        check_client(client)
        self._client, self._size, self._watch = client, size, Watchdog(client)
        self._reservation = reservation
        self._key, self._steps = f"dfact-shard-{uuid4().hex}", (0, 0.0)
        """The beginning of the shards' keys, and the steps of the shards with the age of this figure."""
        self._joined: dict[str, SessionWorker] = {}
        self._keys: dict[str, SessionWorker] = {}
        """The same by the keys of their shards."""
        self._refused: dict[str, float] = {}
        """Times of the next attempt for workers that could not join."""
        self._reasons: set[str] = set()
        self.environments = SessionEnvironments()
        """The environments of the driver and of all workers that have joined."""
        self._direct, self._next_direct = 0, _DIRECT_PASSES
        """Number of further passes in which the driver calls each worker directly, and that after another failure."""
        # All calls and queries share the client's connections. If calls took them all, a query could not show that workers are alive.
        limit = client.rpc.limit
        self._connections = asyncio.Semaphore(max(1, limit - max(1, min(_RESERVED, limit // 2))))
        self._interruptible: int | None = None
        """The epoch of a running pass, if leaving workers may interrupt it."""
        if client not in _subscribed:
            client.subscribe_topic(TOPIC, _note)
            _subscribed.add(client)

    @property
    def direct_calls(self) -> bool:
        """Whether the driver calls each worker directly, as workers could not reach each other."""
        return self._direct > 0

    def end_pass(self) -> None:
        """Count a pass: after a few with direct calls workers call each other again, as what kept them apart may have been transient."""
        if self._direct:
            self._direct -= 1
            if not self._direct:
                metrics.add(fits_with_direct_calls=-1)
                logger.info("From the next pass on workers call each other again")
        else:
            self._next_direct = max(_DIRECT_PASSES, self._next_direct // 2)

    @property
    def all(self) -> list[SessionWorker]:
        """All workers that have joined."""
        return list(self._joined.values())

    @property
    def owners(self) -> list[SessionWorker]:
        """The workers with partitions, in the order of their partitions."""
        return sorted((worker for worker in self.all if worker.runs), key=lambda worker: worker.runs[0].start)

    @property
    def owned_runs(self) -> list[tuple[range, SessionWorker]]:
        """The runs of partitions with their owners, in ascending order."""
        return sorted(((run, worker) for worker in self.all for run in worker.runs), key=lambda piece: piece[0].start)

    def by_key(self, key: str) -> SessionWorker:
        return self._keys[key]

    @property
    def staying(self) -> list[SessionWorker]:
        """The workers that are not leaving; all workers if each is."""
        workers = self.all
        return [worker for worker in workers if not worker.is_leaving] or workers

    @property
    def all_leaving(self) -> bool:
        """Whether all workers are leaving."""
        workers = self.all
        return bool(workers) and all(worker.is_leaving for worker in workers)

    @property
    def evacuable(self) -> list[SessionWorker]:
        """The leaving workers whose partitions can move to others that stay.

        There are none if workers cannot reach each other; then the partitions are recomputed. When the driver itself is stopped, workers
        often are as well, so all of them finish the pass and write the checkpoint.
        """
        if self.direct_calls or self.all_leaving or signals.requested_signal() is not None:
            return []
        return [worker for worker in self.all if worker.is_leaving and worker.attempts < _MAX_ATTEMPTS]

    def note_leaving(self, key: str) -> None:
        """Note that the worker with this shard is leaving. A running pass is interrupted, and resumes once its partitions have moved.

        This is called on the client's event loop.
        """
        worker = self._keys.get(key)
        if worker is None or worker.is_leaving:
            return
        worker.is_leaving = True
        logger.warning("Worker %s is leaving", worker.address)
        epoch = self._interruptible  # read once: the pass may end meanwhile
        if epoch is not None and worker.runs and worker in self.evacuable:
            interrupting = asyncio.gather(*(self._interrupt(owner, epoch) for owner in self.owners), return_exceptions=True)
            _interrupting.add(interrupting)
            interrupting.add_done_callback(_interrupting.discard)

    async def _interrupt(self, worker: SessionWorker, epoch: int) -> None:
        async with self._connections:
            await self._reach(worker, "interrupt", epoch=epoch)

    @contextmanager
    def interruptible(self, epoch: int) -> Iterator[None]:
        """Let leaving workers interrupt the pass that is called within, under this epoch. Raises Retry if one is leaving already."""
        self._interruptible = epoch
        try:
            if any(worker.runs for worker in self.evacuable):  # noted since the last move
                raise Retry("A worker is leaving; its partitions move first")
            yield
        finally:
            self._interruptible = None

    async def _still_replies(self, worker: SessionWorker) -> bool:
        """Return whether a worker that the scheduler has removed still answers and is leaving, rather than lost."""
        try:
            reply = await asyncio.wait_for(self._reach(worker, "status"), POLL_SECONDS)
        except (OSError, TimeoutError):
            return False
        if reply.get("leaving"):
            self.note_leaving(worker.key)
        return bool(reply.get("leaving"))

    def available(self) -> dict[str, int]:
        """Return the addresses of the cluster's workers with their threads; empty if the scheduler does not answer."""
        workers: dict[str, int] | None = self._client.sync(self._watch.workers)
        return workers or {}

    def add(self, available: dict[str, int], timeout: float | None = None) -> str:
        """Open shards on workers that have not joined yet. Returns the reason why one of them could not join, if any."""
        timeout = _JOIN_TIMEOUT if timeout is None else timeout
        now, refused = time.monotonic(), ""
        joining = sorted(w for w in available.keys() - self._joined.keys() if self._refused.get(w, 0) <= now)
        new = [SessionWorker(address, available[address], f"{self._key}-{uuid4().hex}") for address in joining]

        async def join(worker: SessionWorker) -> dict[str, str]:
            settings = {"driver": driver_fields(), "reservation": self._reservation, "workers": [worker.address]}
            async with self._connections:
                replies: dict[str, dict[str, str]] = await self._client.run(open_shard, worker.key, *self._size, **settings)
            return replies[worker.address]

        async def join_all() -> list[dict[str, str] | BaseException]:
            return await until_silent(list(map(join, new)), timeout)

        environments: dict[str, dict[str, str]] = {}
        for worker, reply in zip(new, self._client.sync(join_all) if new else (), strict=True):
            if not isinstance(reply, BaseException):
                environments[worker.address] = reply
                where = {"workers": [worker.address], "allow_other_workers": False, "pure": False, "key": worker.key}
                worker.task = self._client.submit(keep_shard, worker.key, priority=10, **where)
                self._joined[worker.address] = self._keys[worker.key] = worker
                metrics.add(workers=1)
                _sessions[worker.key] = self
            else:
                refused = f"{worker.address}: {refusal(reply)}"
                if refused not in self._reasons:  # a session without workers tries again and again
                    logger.warning("A worker cannot join: %s", refused)
                self._reasons.add(refused)
                self._refused[worker.address] = time.monotonic() + _RETRY_SECONDS
        self.environments.add(environments)
        return refused

    def remove(self, workers: Sequence[SessionWorker]) -> None:
        """Remove lost workers."""
        for worker in workers:
            if self._joined.pop(worker.address, None) is not None:
                logger.warning("Worker %s is lost; the others recompute its partitions", worker.address)
                metrics.add(workers=-1, workers_lost=1)
                if worker.task is not None:
                    worker.task.release()
            self._keys.pop(worker.key, None)

    def remove_missing(self, available: dict[str, int]) -> None:
        """Remove the workers that are no longer ``available`` and do not answer. Without any, the scheduler did not answer."""
        if available:
            self.remove(self._client.sync(self._lost, available))

    async def _lost(self, available: dict[str, int]) -> list[SessionWorker]:
        missing = [worker for worker in self.all if worker.address not in available]
        answers = await asyncio.gather(*map(self._still_replies, missing))
        return [worker for worker, answer in zip(missing, answers, strict=True) if not answer]

    def wait_for_some(self) -> list[SessionWorker]:
        """Return all workers that have joined; without any, wait for workers that join, at most for the watchdog's ``worker_timeout``."""
        wait, began, timeout = self._watch.worker_timeout, time.monotonic(), _JOIN_TIMEOUT
        while not self._joined:
            available = self._watch.some_workers()
            self._refused.clear()
            refused = self.add(available, timeout)
            timeout = min(2 * timeout, max(wait, _JOIN_TIMEOUT))  # on a busy node the imports alone take longer
            if refused and not self._joined:
                if time.monotonic() - began > wait:
                    raise ClusterError(f"for {wait:g} s no worker of the Dask cluster could join: {refused}")
                time.sleep(min(1.0, wait / 4))
        return list(self._joined.values())

    def close(self) -> None:
        metrics.add(fits_with_direct_calls=-self.direct_calls)
        self.release(self.all)

    def release(self, workers: Sequence[SessionWorker]) -> None:
        """Close the shards of workers that are no longer needed."""
        metrics.add(workers=-len(workers))
        for worker in workers:
            del self._joined[worker.address], self._keys[worker.key]

        async def close() -> None:
            calls = [asyncio.ensure_future(self._reach(worker, "close")) for worker in workers]
            for call in (await asyncio.wait(calls, timeout=POLL_SECONDS))[1] if calls else ():
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

        with suppress(Exception):  # workers that the call does not reach detect that their task is released
            self._client.sync(close)
        for worker in workers:
            if worker.task is not None:
                worker.task.release()

    async def _reach(self, worker: SessionWorker, call: str, **message: Any) -> dict[str, Any]:
        """Call a worker through the scheduler, which reaches all workers; the driver may not."""
        content = {"op": OPERATION, "key": worker.key, "call": call, "message": as_message(message)}
        if self._client.scheduler is None:
            raise ClusterError("the Dask scheduler is lost: the client was closed")
        reply: dict[str, Any] | None = await self._client.scheduler.proxy(worker=worker.address, msg=content)
        return {"unknown": worker.key} if reply is None else reply  # None: another process has the address now

    async def _call(self, worker: SessionWorker, call: str, message: dict[str, Any]) -> Any:
        """Call a worker and return its reply's content. Raises WorkersLost if it, or another one that it calls, is lost."""
        while True:
            try:
                async with self._connections:
                    reply = await self._reach(worker, call, **message)
            except OSError:
                reply = {"lost": [worker.shard]}
            if "error" in reply:
                raise unpacked(reply["error"])
            if "unknown" in reply:
                raise WorkersLost([worker])
            if "lacking" in reply:
                key, runs = reply["lacking"]
                lacking = self.by_key(key)
                lacking.runs = subtract_runs(lacking.runs, [range(*run) for run in runs])
                raise Retry(f"Worker {lacking.address} lacks {sum(len(range(*run)) for run in runs)} of its partitions")
            if "lost" not in reply:
                return reply.get("content")
            unreached = [self.by_key(key) for _, key in reply["lost"]]
            await self._examine(unreached)
            if reply.get("leaving") or any(one.is_leaving for one in unreached):  # workers close their connections to one that leaves
                raise Retry(f"Worker {unreached[0].address} could not be reached while a worker is leaving")
            if call in {"take", "write", "step_tiles"} or (call == "run" and not self.direct_calls):
                # All are alive, so two of them cannot reach each other, but the scheduler reaches all.
                metrics.add(fits_with_direct_calls=not self.direct_calls)
                self._direct, self._next_direct = self._next_direct, min(2 * self._next_direct, _MAX_DIRECT_PASSES)
                raise Retry(f"Workers cannot reach each other; the driver calls each of them itself, for {self._direct} passes")

    async def _examine(self, suspects: Sequence[SessionWorker]) -> None:
        """Wait until it is clear whether workers that could not be reached are lost; raises WorkersLost if they are."""
        for worker in suspects:
            while True:
                await asyncio.sleep(0.1)  # the scheduler may not have detected the loss yet
                self._check_scheduler()
                available = await self._watch.workers()
                if available is not None and worker.address not in available and not await self._still_replies(worker):
                    raise WorkersLost([worker])
                with suppress(OSError):
                    if "unknown" in await self._reach(worker, "status"):
                        raise WorkersLost([worker])
                    break

    def _check_scheduler(self) -> None:
        # A client that has lost its scheduler cancels all its tasks at once, so it is enough to look at the oldest.
        oldest = next(iter(self._joined.values()), None)
        released = oldest is not None and oldest.task is not None and oldest.task.status == "cancelled"
        if self._client.status != "running" or released:
            raise ClusterError("the Dask scheduler is lost: the connection to it was closed")

    async def _check_joined(self, available: dict[str, int]) -> None:
        self._check_scheduler()
        lost = await self._lost(available)
        if lost:
            raise WorkersLost(lost)

    async def _n_steps(self) -> tuple[int, float]:
        """Return the number of steps so far by the workers' heartbeats (partitions of passes, arrays of states, chunks of rows), and
        the age of this figure in seconds. If the scheduler does not answer, the last figure.
        """
        with suppress(OSError, TimeoutError):
            self._steps = await asyncio.wait_for(self._client.run_on_scheduler(session_steps, self._key), POLL_SECONDS)
        return self._steps

    def call(self, worker: SessionWorker, call: str, **message: Any) -> Any:
        """Call a worker; returns its reply."""
        return self.call_all(call, {worker: message})[worker]

    def call_all(self, call: str, messages: dict[SessionWorker, dict[str, Any]]) -> dict[SessionWorker, Any]:
        """Call several workers, each with its message; returns their replies."""
        return {m: replies[0] for m, replies in self.call_each(call, {m: [message] for m, message in messages.items()}).items()}

    def call_each(self, call: str, messages: dict[SessionWorker, list[dict[str, Any]]]) -> dict[SessionWorker, list[Any]]:
        """Call several workers, each with its messages one after the other; returns their replies."""

        async def call_one(worker: SessionWorker) -> list[Any]:
            return [await self._call(worker, call, message) for message in messages[worker]]

        async def call_workers() -> list[list[Any]]:
            tasks = [asyncio.ensure_future(call_one(worker)) for worker in messages]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        with cluster_errors():
            replies = self._client.sync(self._watch.wait, call_workers(), self._n_steps, self._check_joined)
        return dict(zip(messages, replies, strict=True))
