"""The workers of a session: how they join, how they are called, and how it is found out which of them are lost."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dfact.engine.cluster.host import OPERATION, Peer, as_message, hold_host, open_host
from dfact.engine.cluster.placement import without
from dfact.engine.cluster.transport import unpacked
from dfact.engine.cluster.watchdog import POLL_SECONDS, Watchdog, cluster_errors
from dfact.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client, Future

_OPENING = 10.0  # seconds that a worker may take to join before the others begin without it
_AGAIN = 60.0  # seconds before it is asked again
logger = logging.getLogger("dfact.cluster")


@dataclass(eq=False)
class Member:
    """A worker of the session."""

    address: str
    threads: int
    key: str
    task: "Future | None" = None
    """The one that holds the host."""
    runs: list[range] = field(default_factory=list)
    """Its partitions."""
    speed: float = float("nan")
    """Partitions a second, lately."""

    @property
    def peer(self) -> Peer:
        return self.address, self.key

    @property
    def load(self) -> int:
        return sum(map(len, self.runs))


class MembersLost(Exception):  # noqa: N818  # a signal to recover, not an error: the survivors take over
    """Some members are gone; what they held must be computed again."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__(", ".join(member.address for member in members))
        self.members = members


class Unsettled(Exception):  # noqa: N818  # a signal to rearrange and retry, not an error
    """Nobody is lost, but partitions or calls must be arranged anew."""


class Members:
    """The workers of a session, by their addresses."""

    def __init__(self, client: "Client", size: tuple[int, int, int]) -> None:
        """``size`` is the number of partitions, and of those whose states and values a worker may hold."""
        self._client, self._size, self._watch = client, size, Watchdog(client)
        self._members: dict[str, Member] = {}
        self._refused: dict[str, float] = {}
        """When workers that could not join are asked again."""
        self.star = False
        """Whether the driver calls each worker itself, as workers cannot reach each other."""

    @property
    def all(self) -> list[Member]:
        return list(self._members.values())

    @property
    def owners(self) -> list[Member]:
        """The members with partitions, in the order of these."""
        return sorted((member for member in self._members.values() if member.runs), key=lambda member: member.runs[0].start)

    def by_key(self, key: str) -> Member:
        return next(member for member in self._members.values() if member.key == key)

    def workers(self) -> dict[str, int]:
        """The addresses of all workers with their threads; none if the scheduler is silent."""
        found: dict[str, int] | None = self._client.sync(self._watch.workers)
        return found or {}

    def welcome(self, workers: dict[str, int]) -> str:
        """Make hosts on workers that are not members yet; why one of them could not join."""
        now, refused = time.monotonic(), ""
        joining = sorted(w for w in workers.keys() - self._members.keys() if self._refused.get(w, 0) <= now)
        new = [Member(address, workers[address], f"dfact-shard-{uuid4().hex}") for address in joining]

        async def opened(member: Member) -> Member:
            await asyncio.wait_for(self._client.run(open_host, member.key, *self._size, workers=[member.address]), _OPENING)
            return member

        async def all_opened() -> list[Member | BaseException]:
            return await asyncio.gather(*map(opened, new), return_exceptions=True)

        for asked, member in zip(new, self._client.sync(all_opened) if new else (), strict=True):
            if isinstance(member, Member):
                where = {"workers": [member.address], "allow_other_workers": False, "pure": False, "key": member.key}
                member.task = self._client.submit(hold_host, member.key, priority=10, **where)
                self._members[member.address] = member
            else:
                refused = f"{asked.address}: {str(member) or type(member).__name__}"
                logger.warning("A worker cannot join: %s", refused)
                self._refused[asked.address] = time.monotonic() + _AGAIN
        return refused

    def forget(self, members: Sequence[Member]) -> None:
        for member in members:
            logger.warning("Worker %s is lost; the others compute again what it held", member.address)
            if self._members.pop(member.address, None) is not None and member.task is not None:
                member.task.release()

    def forget_missing(self, workers: dict[str, int]) -> None:
        """Forget the members that are no longer among the workers; of a scheduler that is silent nothing is known."""
        if workers:
            self.forget([member for address, member in self._members.items() if address not in workers])

    def wait_for_some(self) -> list[Member]:
        """All members; without any, those that come, which is waited for as long as the watch has patience."""
        wait, began = self._watch.workers_wait, time.monotonic()
        while not self._members:
            workers = self._watch.some_workers()
            self._refused.clear()
            refused = self.welcome(workers)
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

        with suppress(Exception):  # workers that are not told see that their task is released
            self._client.sync(close)
        for member in members:
            if member.task is not None:
                member.task.release()

    async def _reach(self, member: Member, call: str, **message: Any) -> dict[str, Any]:
        """Call a member through the scheduler, which reaches all workers where the driver may not."""
        content = {"op": OPERATION, "host": member.key, "call": call, "message": as_message(message)}
        if self._client.scheduler is None:
            raise ClusterError("the Dask scheduler is lost: the client was closed")
        found: dict[str, Any] | None = await self._client.scheduler.proxy(worker=member.address, msg=content)
        return {"unknown": member.key} if found is None else found  # None: the address is another process's by now

    async def _answer(self, member: Member, call: str, message: dict[str, Any]) -> Any:
        """The content of a member's answer; MembersLost if it, or another that it calls, is gone."""
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
                raise Unsettled(f"Worker {lacking.address} lacks {sum(len(range(*run)) for run in runs)} of its partitions")
            if "lost" not in reply:
                return reply.get("content")
            await self._examine([self.by_key(key) for _, key in reply["lost"]])
            if call in {"take", "write"} or (call == "run" and not self.star):
                # All are there, so two of them cannot reach each other, but all can be reached through the scheduler.
                self.star = True
                raise Unsettled("Workers cannot reach each other; the driver calls each of them itself")

    async def _examine(self, suspects: Sequence[Member]) -> None:
        """Wait until it is clear whether workers that somebody could not reach are there."""
        for member in suspects:
            while True:
                await asyncio.sleep(0.1)  # the scheduler may not have noticed yet
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
        gone = [member for address, member in self._members.items() if address not in workers]
        if gone:
            raise MembersLost(gone)

    async def _visits(self) -> int:
        """Partitions visited so far by those members that answer."""
        calls = [asyncio.ensure_future(self._reach(member, "status")) for member in self._members.values()]
        for call in (await asyncio.wait(calls, timeout=POLL_SECONDS))[1] if calls else ():
            call.cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        return sum(reply.get("visits", 0) for reply in found if isinstance(reply, dict))

    def ask(self, member: Member, call: str, **message: Any) -> Any:
        return self.ask_all(call, {member: message})[member]

    def ask_all(self, call: str, messages: dict[Member, dict[str, Any]]) -> dict[Member, Any]:
        """The answers of several members to a call each."""
        return {m: found[0] for m, found in self.ask_each(call, {m: [message] for m, message in messages.items()}).items()}

    def ask_each(self, call: str, messages: dict[Member, list[dict[str, Any]]]) -> dict[Member, list[Any]]:
        """The same for several calls each, one after the other."""

        async def answers(member: Member) -> list[Any]:
            return [await self._answer(member, call, message) for message in messages[member]]

        async def all_answers() -> list[list[Any]]:
            tasks = [asyncio.ensure_future(answers(member)) for member in messages]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        with cluster_errors():
            found = self._client.sync(self._watch.wait, all_answers(), self._visits, self._check_members)
        return dict(zip(messages, found, strict=True))
