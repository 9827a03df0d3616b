"""The driver's side of a session on a Dask cluster: who owns which partitions, passes, and what becomes of lost workers."""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import uuid4

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.engine.block_state import CheckpointedState
from dfact.engine.cluster.demand import demand
from dfact.engine.cluster.host import Report, Share
from dfact.engine.cluster.journal import Journal
from dfact.engine.cluster.members import Member, Members, MembersLost, Unsettled
from dfact.engine.cluster.placement import Tree, split, tree, without
from dfact.engine.cluster.rows import ChunkOfRows, WrittenRows, landmark
from dfact.engine.cluster.transport import packed, unpacked
from dfact.engine.cluster.watchdog import Watchdog
from dfact.engine.memory_plan import Plan, WorkerResources, cluster_workers
from dfact.engine.partitions import Partitions
from dfact.engine.passes import PartialSums, Pass, visited_partitions
from dfact.engine.reduction import TreeSum
from dfact.engine.session import CheckpointableSession
from dfact.engine.shard import consecutive
from dfact.engine.threads import single_threaded
from dfact.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

P = TypeVar("P", bound=PartialSums)
T = TypeVar("T")
_ROWS_BYTES = 1 << 24  # of rows that one message brings to the driver
_LOOK = 1.0  # seconds between two looks for workers that have joined
_WORTHWHILE = 4  # partitions for each thread that is asked for
_UNEVEN = 1.25  # a pass takes so much longer than with partitions in proportion to speed: they move
_WORTH = 0.02  # and by so many seconds at least: less would not pay for the move
_PATIENCE = 3  # passes in a row for which that must hold
_TREND = 0.25  # of a worker's speed the last pass tells so much: what else runs on its machine comes and goes
_RESPITE = 10  # passes before partitions move again
logger = logging.getLogger("dfact.cluster")


class ClusterSession(CheckpointableSession):
    """A shard on each worker, whose sums travel up a tree of workers.

    The driver keeps a journal of all passes since the last checkpoint. When a worker is lost, the others divide its
    partitions among them, start these from the checkpoint and run the journal's passes for them alone. Then the pass
    that was interrupted is asked for again; who has finished it answers from memory. So the bits are the same.
    """

    def __init__(self, client: "Client", partitions: Partitions, plan: Plan) -> None:
        self._client, self._partitions = client, partitions
        self._members = Members(client, (len(partitions), plan.resident_states, plan.resident_values))
        self._journal = Journal()
        self._stored: list[CheckpointedState] = []
        self._done = self._epoch = 0
        self._sent = b""
        """The pass object that all members have."""
        self._behind = False
        """Whether some partitions have not been through all passes yet."""
        self._uneven = self._respite = 0
        self._next_look = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._journal)
            # For the driver's own products: more threads give other bits than those of a session on this machine.
            stack.enter_context(single_threaded())
            stack.enter_context(demand(self._client, len(self._partitions) // _WORTHWHILE))
            stack.callback(self._members.close)
            self._members.welcome(self._members.workers())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    # Passes

    def run(self, pass_: Pass[Any, P], broadcast: Any) -> P:
        self._tend()
        self._journal.append(packed(pass_), packed(broadcast))
        parts = len(visited_partitions(pass_, len(self._partitions)))
        sums, report = self._surviving(lambda: self._pass([self._done + 1], parts))
        self._done += 1
        if report.stateless:
            self._stored = []
            self._journal.clear(self._done)
        if parts == len(self._partitions):
            self._learn(report)
        result: P = sums.result
        return result

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        first, count = 0, 1
        while first < len(self._partitions):
            found, rows = self._surviving(partial(self._rows, name, first, count))
            first, count = first + found, max(1, _ROWS_BYTES * found // max(1, rows.nbytes))
            yield rows

    def _rows(self, name: str, first: int, count: int) -> tuple[int, NDArray[Any]]:
        """Rows of a few partitions of one member, and how many these are."""
        member, run = next((m, run) for m in self._members.all for run in m.runs if first in run)
        last = min(first + count, run.stop)
        return last - first, unpacked(self._members.ask(member, "rows", name=name, first=first, last=last))

    def write_rows(self, name: str, convert: Callable[[NDArray[Any]], NDArray[Any]], target: zarr.Array[Any]) -> bool:
        rows = WrittenRows(name, convert, target, self._partitions.layout.partition_rows)
        with landmark(target) as mark:
            return self._surviving(partial(self._write, rows, mark))

    def _write(self, rows: WrittenRows, mark: str) -> bool:
        """Have the members write the rows, each the chunks that begin with it; False if one cannot, or they cannot reach each other."""
        owners = self._members.owners
        probe = {"content": packed((rows.target, mark))}
        if self._members.star or not all(map(unpacked, self._members.ask_all("reaches", dict.fromkeys(owners, probe)).values())):
            return False
        pieces = sorted(((run.start, run.stop, member) for member in owners for run in member.runs), key=lambda piece: piece[0])
        n, step, size = rows.target.shape[0], rows.target.chunks[0], rows.partition_rows
        chunks: dict[Member, list[ChunkOfRows]] = {}
        for start in range(0, n, step):
            stop = min(start + step, n)
            first, last = start // size, -(-stop // size)
            having = [(*member.peer, max(a, first), min(b, last)) for a, b, member in pieces if a < last and first < b]
            chunks.setdefault(next(member for a, b, member in pieces if a <= first < b), []).append((start, stop, having))
        content = packed(rows)
        self._members.ask_all("write", {member: {"content": content, "chunks": found} for member, found in chunks.items()})
        return True

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        def stored() -> list[CheckpointedState]:
            # Under a name of its own each: a worker that was given up for lost may still be writing.
            content, owners = packed(group), self._members.owners
            calls = {member: {"content": content, "stream": f"{i}-{uuid4().hex}"} for i, member in enumerate(owners)}
            found = [described for reply in self._members.ask_all("store", calls).values() for described in unpacked(reply)]
            return [CheckpointedState.from_description(group, described) for described in found]

        self._stored = self._surviving(stored)
        self._journal.clear(self._done)
        return self._stored

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        assert not self._members.owners, "nothing has run yet"
        self._stored = list(states)

    def _pass(self, numbers: Sequence[int], parts: int) -> tuple[TreeSum[Any], Report]:
        """Passes of the journal over all partitions that have not been through them; the sums of the last, over ``parts`` partitions.

        With 0 ``parts`` no sums are wanted.
        """
        sums, report = TreeSum[Any](parts), Report({}, stateless=True)
        shares: list[Share] = [(*member.peer, [(run.start, run.stop) for run in member.runs]) for member in self._members.owners]
        firsts = [runs[0][0] for *_, runs in shares]
        trees: list[Tree[Share]] = [(share, []) for share in shares] if self._members.star else [tree(shares, firsts)]
        entries = [self._journal[number] for number in numbers]
        sent = [self._sent, *(pass_ for pass_, _ in entries)]
        message: dict[str, Any] = {"epoch": self._epoch, "numbers": list(numbers), "parts": parts}
        message["passes"] = [None if pass_ == before else pass_ for (pass_, _), before in zip(entries, sent, strict=False)]
        message["broadcasts"] = [broadcast for _, broadcast in entries]
        calls = {self._members.by_key(key): {"runs": runs, "below": below, **message} for (_, key, runs), below in trees}
        for reply in self._members.ask_all("run", calls).values():
            nodes, told = unpacked(reply)
            sums.update(nodes)
            report.update(told)
        self._sent = sent[-1]
        return sums, report

    # Partitions without an owner

    def _surviving(self, action: Callable[[], T]) -> T:
        """What the action gives, once all partitions are where the last pass left them; again when members are lost on the way."""
        from dask import config

        losses, allowed = Counter[int](), int(config.get("distributed.scheduler.allowed-failures", 3))
        while True:
            try:
                self._settle()
                return action()
            except MembersLost as lost:
                # By partitions: many workers may go at once for reasons of their own, but not all that get the same partition.
                losses.update(number for member in lost.members for run in member.runs for number in run)
                self._members.forget(lost.members)
                count = max(losses.values(), default=0)
                if count > allowed:
                    raise ClusterError(
                        f"one worker after the other was lost in the same pass, {count} in all: {lost}; is their memory limit too low?"
                    ) from lost
            except Unsettled as error:
                logger.warning("%s", error)

    def _settle(self) -> None:
        """Give partitions without an owner to the members, and repeat for them what the journal holds."""
        everything = [range(len(self._partitions))]
        orphans = without(everything, [run for member in self._members.all for run in member.runs])
        if orphans:
            self._adopt(orphans)
        if self._behind:
            for numbers in self._journal.batches(self._done):
                self._pass(numbers, 0)
            self._behind = False

    def _adopt(self, orphans: list[range]) -> None:
        """Divide partitions among the members."""
        self._members.wait_for_some()
        members, weights = self._weighted()
        shares = split(orphans, weights)
        self._arrange()
        self._behind = True
        calls = {
            member: [{"epoch": self._epoch, "content": packed(self._begun(run))} for run in share]
            for member, share in zip(members, shares, strict=True)
            if share
        }
        # Not before all have got them: what a host was given earlier, in a move that failed, may lack its state.
        owned = {
            member: consecutive(number for run in [*member.runs, *share] for number in run)
            for member, share in zip(members, shares, strict=True)
        }
        try:
            self._members.ask_each("add", calls)
        except MembersLost as lost:
            for member in lost.members:  # it may be these partitions that it could not bear
                member.runs = owned[member]
            raise
        for member, runs in owned.items():
            member.runs = runs

    def _arrange(self) -> None:
        """From now on partitions lie elsewhere: calls that are still on their way no longer count."""
        self._epoch += 1
        self._sent = b""

    def _begun(self, run: range) -> tuple[Partitions, int, list[CheckpointedState]]:
        """Partitions as the journal begins with them: after which pass, and their states then."""
        overlaps = [(max(s.first, run.start), min(s.last, run.stop), s) for s in self._stored]
        states = [state.part(first, last) for first, last, state in overlaps if first < last]
        return self._partitions.part(run.start, run.stop), self._journal.base, states

    # Balance

    def _tend(self) -> None:
        """Between passes: welcome workers that have joined, and move partitions from slow ones to fast ones."""
        self._respite -= 1
        joined = False
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            before, workers = len(self._members.all), self._members.workers()
            self._members.forget_missing(workers)
            self._members.welcome(workers)
            joined = before < len(self._members.all)
        if self._members.owners and (joined or (self._uneven >= _PATIENCE and self._respite <= 0)):
            try:
                self._balance()
            except MembersLost as lost:
                self._members.forget(lost.members)

    def _learn(self, report: Report) -> None:
        """Note how fast the members were, and whether the slowest held up the others."""
        owners = self._members.owners
        for member in owners:
            visits, seconds = report.seconds.get(member.key, (0, 0.0))
            if visits and visits == member.load:
                speed = visits / max(seconds, 1e-6)
                member.speed = speed if np.isnan(member.speed) else member.speed + _TREND * (speed - member.speed)
        if any(np.isnan(member.speed) for member in owners):
            return
        slowest = max(member.load / member.speed for member in owners)
        ideal = len(self._partitions) / sum(member.speed for member in owners)
        partition = max(1 / member.speed for member in owners)  # which cannot be divided
        self._uneven = self._uneven + 1 if slowest > max(_UNEVEN * ideal, ideal + partition, ideal + _WORTH) else 0

    def _balance(self) -> None:
        """Let the members own partitions in proportion to their speed."""
        members, weights = self._weighted()
        shares = split([range(len(self._partitions))], weights)
        moves = {
            member: [
                (source, range(max(own.start, run.start), min(own.stop, run.stop)))
                for run in without(share, member.runs)
                for source in members
                for own in source.runs
                if source is not member and own.start < run.stop and run.start < own.stop
            ]
            for member, share in zip(members, shares, strict=True)
        }
        self._uneven, self._respite = 0, _RESPITE
        self._arrange()
        calls = {
            member: [
                {"epoch": self._epoch, "content": packed((self._partitions.part(run.start, run.stop), self._done)), "source": source.peer}
                for source, run in taken
            ]
            for member, taken in moves.items()
            if taken
        }
        try:
            self._members.ask_each("take", calls)
        except Unsettled as error:
            logger.warning("%s; partitions stay where they are", error)  # the next pass drops what was taken
            return
        for member, share in zip(members, shares, strict=True):
            member.runs = share

    def _weighted(self) -> tuple[list[Member], list[float]]:
        """The members in the order of their partitions, those without any in the middle, where they displace the fewest; their speeds."""
        members = self._members.owners
        middle = len(members) // 2
        members[middle:middle] = [member for member in self._members.all if not member.runs]
        speeds = [member.speed / member.threads for member in members if not np.isnan(member.speed)]
        usual = float(np.median(speeds)) if speeds else 1.0
        return members, [member.threads * usual if np.isnan(member.speed) else member.speed for member in members]


class DistributedExecutor:
    """The workers of a Dask cluster."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        if not found:
            with demand(self.client, 1):
                Watchdog(self.client).some_workers()
            found = self.client.scheduler_info(n_workers=-1)["workers"]
        limits = [worker["memory_limit"] or sys.maxsize for worker in found.values()]
        return cluster_workers(limits, max(worker["nthreads"] for worker in found.values()), memory_limit)

    def open(self, partitions: Partitions, plan: Plan) -> ClusterSession:
        return ClusterSession(self.client, partitions, plan)
