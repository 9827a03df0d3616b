"""The workers of a session: joining, calls, and the detection of lost ones."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dfact.engine.cluster.host import OPERATION, Peer, as_message, keep_host, open_host
from dfact.engine.cluster.placement import without
from dfact.engine.cluster.transport import unpacked
from dfact.engine.cluster.watchdog import POLL_SECONDS, Watchdog, cluster_errors
from dfact.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client, Future

_JOIN_TIMEOUT = 10.0  # seconds that a worker may take to join before the others start without it
_RETRY_SECONDS = 60.0  # seconds before another attempt
logger = logging.getLogger("dfact.cluster")


@dataclass(eq=False)
class Member:
    """A worker of the session."""

    address: str
    threads: int
    key: str
    task: "Future | None" = None
    """The task that keeps the host open."""
    runs: list[range] = field(default_factory=list)
    """Its partitions."""
    speed: float = float("nan")
    """Recent speed in partitions per second."""

    @property
    def peer(self) -> Peer:
        return self.address, self.key

    @property
    def load(self) -> int:
        """Number of its partitions."""
        return sum(map(len, self.runs))


class MembersLost(Exception):  # noqa: N818  # not an error: the remaining members take over
    """Raised when members are lost, whose partitions must be recomputed."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__(", ".join(member.address for member in members))
        self.members = members


class Retry(Exception):  # noqa: N818  # not an error: the call is repeated
    """Raised when no member is lost, but a call must be repeated with other partitions or another tree of calls."""


class Members:
    """The workers of a session, by their addresses."""

    def __init__(self, client: "Client", size: tuple[int, int, int]) -> None:
        """Initialize; ``size`` is the number of partitions, and the numbers of those whose states and values a worker may keep."""
        self._client, self._size, self._watch = client, size, Watchdog(client)
        self._members: dict[str, Member] = {}
        self._refused: dict[str, float] = {}
        """Times of the next attempt for workers that could not join."""
        self.star = False
        """Whether the driver calls each worker directly, as workers cannot reach each other."""

    @property
    def all(self) -> list[Member]:
        """All members."""
        return list(self._members.values())

    @property
    def owners(self) -> list[Member]:
        """The members with partitions, in the order of their partitions."""
        return sorted((member for member in self._members.values() if member.runs), key=lambda member: member.runs[0].start)

    def by_key(self, key: str) -> Member:
        return next(member for member in self._members.values() if member.key == key)

    def workers(self) -> dict[str, int]:
        """Return the addresses of all workers with their threads; empty if the scheduler does not answer."""
        workers: dict[str, int] | None = self._client.sync(self._watch.workers)
        return workers or {}

    def add_workers(self, workers: dict[str, int]) -> str:
        """Open hosts on workers that are not members yet. Returns the reason why one of them could not join, if any."""
        now, refused = time.monotonic(), ""
        joining = sorted(w for w in workers.keys() - self._members.keys() if self._refused.get(w, 0) <= now)
        new = [Member(address, workers[address], f"dfact-shard-{uuid4().hex}") for address in joining]

        async def join(member: Member) -> Member:
            await asyncio.wait_for(self._client.run(open_host, member.key, *self._size, workers=[member.address]), _JOIN_TIMEOUT)
            return member

        async def join_all() -> list[Member | BaseException]:
            return await asyncio.gather(*map(join, new), return_exceptions=True)

        for candidate, member in zip(new, self._client.sync(join_all) if new else (), strict=True):
            if isinstance(member, Member):
                where = {"workers": [member.address], "allow_other_workers": False, "pure": False, "key": member.key}
                member.task = self._client.submit(keep_host, member.key, priority=10, **where)
                self._members[member.address] = member
            else:
                refused = f"{candidate.address}: {str(member) or type(member).__name__}"
                logger.warning("A worker cannot join: %s", refused)
                self._refused[candidate.address] = time.monotonic() + _RETRY_SECONDS
        return refused

    def remove(self, members: Sequence[Member]) -> None:
        """Remove lost members."""
        for member in members:
            logger.warning("Worker %s is lost; the others recompute its partitions", member.address)
            if self._members.pop(member.address, None) is not None and member.task is not None:
                member.task.release()

    def remove_missing(self, workers: dict[str, int]) -> None:
        """Remove the members that are not among the workers. Without any workers, the scheduler did not answer."""
        if workers:
            self.remove([member for address, member in self._members.items() if address not in workers])

    def wait_for_some(self) -> list[Member]:
        """Return all members; without any, wait for workers that join, at most for the watchdog's ``worker_timeout``."""
        wait, began = self._watch.worker_timeout, time.monotonic()
        while not self._members:
            workers = self._watch.some_workers()
            self._refused.clear()
            refused = self.add_workers(workers)
            if refused and not self._members:
                if time.monotonic() - began > wait:
                    raise ClusterError(f"for {wait:g} s no worker of the Dask cluster could join: {refused}")
                time.sleep(min(1.0, wait / 4))
        return list(self._members.values())

    def close(self) -> None:
        members, self._members = list(self._members.values()), {}

        async def close() -> None:
            calls = [asyncio.ensure_future(self._reach(member, "close")) for member in members]
            for call in (await asyncio.wait(calls, timeout=POLL_SECONDS))[1] if calls else ():
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

        with suppress(Exception):  # workers that the call does not reach detect that their task is released
            self._client.sync(close)
        for member in members:
            if member.task is not None:
                member.task.release()

    async def _reach(self, member: Member, call: str, **message: Any) -> dict[str, Any]:
        """Call a member through the scheduler, which reaches all workers; the driver may not."""
        content = {"op": OPERATION, "host": member.key, "call": call, "message": as_message(message)}
        if self._client.scheduler is None:
            raise ClusterError("the Dask scheduler is lost: the client was closed")
        reply: dict[str, Any] | None = await self._client.scheduler.proxy(worker=member.address, msg=content)
        return {"unknown": member.key} if reply is None else reply  # None: another process has the address now

    async def _call(self, member: Member, call: str, message: dict[str, Any]) -> Any:
        """Call a member and return its reply's content. Raises MembersLost if it, or another one that it calls, is lost."""
        while True:
            try:
                reply = await self._reach(member, call, **message)
            except OSError:
                reply = {"lost": [member.peer]}
            if "error" in reply:
                raise unpacked(reply["error"])
            if "unknown" in reply:
                raise MembersLost([member])
            if "lacking" in reply:
                key, runs = reply["lacking"]
                lacking = self.by_key(key)
                lacking.runs = without(lacking.runs, [range(*run) for run in runs])
                raise Retry(f"Worker {lacking.address} lacks {sum(len(range(*run)) for run in runs)} of its partitions")
            if "lost" not in reply:
                return reply.get("content")
            await self._examine([self.by_key(key) for _, key in reply["lost"]])
            if call in {"take", "write"} or (call == "run" and not self.star):
                # All are alive, so two of them cannot reach each other, but the scheduler reaches all.
                self.star = True
                raise Retry("Workers cannot reach each other; the driver calls each of them itself")

    async def _examine(self, suspects: Sequence[Member]) -> None:
        """Wait until it is clear whether workers that could not be reached are lost; raises MembersLost if they are."""
        for member in suspects:
            while True:
                await asyncio.sleep(0.1)  # the scheduler may not have detected the loss yet
                self._check_scheduler()
                workers = await self._watch.workers()
                if workers is not None and member.address not in workers:
                    raise MembersLost([member])
                with suppress(OSError):
                    if "unknown" in await self._reach(member, "status"):
                        raise MembersLost([member])
                    break

    def _check_scheduler(self) -> None:
        released = any(member.task is not None and member.task.status == "cancelled" for member in self._members.values())
        if self._client.status != "running" or released:
            raise ClusterError("the Dask scheduler is lost: the connection to it was closed")

    def _check_members(self, workers: dict[str, int]) -> None:
        self._check_scheduler()
        lost = [member for address, member in self._members.items() if address not in workers]
        if lost:
            raise MembersLost(lost)

    async def _n_processed(self) -> int:
        """Return the number of partitions processed so far by those members that answer."""
        calls = [asyncio.ensure_future(self._reach(member, "status")) for member in self._members.values()]
        for call in (await asyncio.wait(calls, timeout=POLL_SECONDS))[1] if calls else ():
            call.cancel()
        replies = await asyncio.gather(*calls, return_exceptions=True)
        return sum(reply.get("processed", 0) for reply in replies if isinstance(reply, dict))

    def call(self, member: Member, call: str, **message: Any) -> Any:
        """Call a member; returns its reply."""
        return self.call_all(call, {member: message})[member]

    def call_all(self, call: str, messages: dict[Member, dict[str, Any]]) -> dict[Member, Any]:
        """Call several members, each with its message; returns their replies."""
        return {m: replies[0] for m, replies in self.call_each(call, {m: [message] for m, message in messages.items()}).items()}

    def call_each(self, call: str, messages: dict[Member, list[dict[str, Any]]]) -> dict[Member, list[Any]]:
        """Call several members, each with its messages one after the other; returns their replies."""

        async def call_one(member: Member) -> list[Any]:
            return [await self._call(member, call, message) for message in messages[member]]

        async def call_members() -> list[list[Any]]:
            tasks = [asyncio.ensure_future(call_one(member)) for member in messages]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        with cluster_errors():
            replies = self._client.sync(self._watch.wait, call_members(), self._n_processed, self._check_members)
        return dict(zip(messages, replies, strict=True))
