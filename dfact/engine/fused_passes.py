"""Fused passes: many solvers run on the same data, and the next passes of all of them share one read of every block."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Block, PartialSums, Pass, SampledPass, State
from dfact.engine.session import Arrays, Session

T = TypeVar("T")
P = TypeVar("P", bound=PartialSums)

BlockView = Callable[[Block], Block]
"""A function that returns a member's view of a block. It is sent to workers, so it must be a module's function or a dataclass."""


def whole(block: Block) -> Block:
    """Return the block itself."""
    return block


@dataclass(frozen=True)
class Member:
    """One of the passes that are fused."""

    name: str
    """Name of the solver."""
    view: BlockView
    """Its view of the data."""
    pass_: Pass[Any, Any]


@dataclass
class FusedSums(PartialSums, name="fused"):
    """The sums of each member."""

    parts: list[Any]

    def accumulator(self) -> Self:
        return type(self)([part.accumulator() for part in self.parts])

    def add(self, other: Self) -> None:
        for part, other_part in zip(self.parts, other.parts, strict=True):
            part.add(other_part)


@dataclass(frozen=True)
class FusedPass(Pass[Sequence[Any], FusedSums]):
    """The passes of several members on one read of each block. State: the arrays of each member, under names with its own as prefix."""

    members: tuple[Member, ...]
    dtype: np.dtype[Any] | None

    def step(self, block: Block, state: State | None, broadcast: Sequence[Any]) -> tuple[State | None, FusedSums]:
        # Members without a pass have finished, so their state is dropped.
        old = state or {}
        new: State = {}
        parts = []
        view: BlockView | None = None
        for member, member_broadcast in zip(self.members, broadcast, strict=True):
            prefix = f"{member.name}."
            member_state: State | None = {
                name.removeprefix(prefix): array for name, array in old.items() if name.startswith(prefix)
            } or None
            if member.view != view:  # consecutive members with the same view share the viewed block
                view, viewed = member.view, member.view(block)
            if member_state is None:
                member_state = member.pass_.start(viewed)
            member_state, part = member.pass_.step(viewed, member_state, member_broadcast)
            new |= {prefix + name: array for name, array in (member_state or {}).items()}
            parts.append(part)
        return new or None, FusedSums(parts)


@dataclass(frozen=True)
class SampledFusedPass(SampledPass):
    """The passes of several members over the same sample; the state of the other members stays as it is."""

    fused: FusedPass

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.fused.dtype

    def step(self, block: Block, state: State | None, broadcast: Sequence[Any]) -> tuple[State | None, FusedSums]:
        new, parts = self.fused.step(block, state, broadcast)
        names = {member.name for member in self.fused.members}
        others = {name: array for name, array in (state or {}).items() if name.split(".")[0] not in names}
        return others | (new or {}) or None, parts


class FusedSession(Session):
    """A member's session: a pass waits until all other members have one to run as well."""

    def __init__(self, members: "Members", name: str, view: BlockView = whole) -> None:
        self._members, self.name, self.view = members, name, view

    def run(self, pass_: Pass[Any, P], broadcast: Any) -> P:
        sums: P = self._members.request(Member(self.name, self.view, pass_), broadcast)
        return sums

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        yield from self._members.session.rows(f"{self.name}.{name}")

    def memo(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        return self._members.session.memo(f"{self.name}.{name}", compute)


class Members:
    """A driver of functions that each run many passes over the same data: the next passes of all of them are fused.

    Each function has a thread of its own and mostly waits there; ``run`` runs the fused passes in the calling thread.
    """

    def __init__(self, session: Session, dtype: np.dtype[Any]) -> None:
        self.session, self._dtype = session, dtype
        self._change = threading.Condition()
        self._requests: dict[str, tuple[Member, Any, Future[Any]]] = {}
        self._busy = 0
        self._stopped = False

    def request(self, member: Member, broadcast: Any) -> Any:
        """Return the sums of the member's pass, once all others have requested one."""
        reply: Future[Any] = Future()
        with self._change:
            if self._stopped:
                raise InterruptedError("the passes of the others have failed")
            self._requests[member.name] = member, broadcast, reply
            self._busy -= 1
            self._change.notify_all()
        return reply.result()

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of the functions, in their order. The first error of any of them, or of a pass, is raised."""
        self._busy = len(functions)
        with ThreadPoolExecutor(len(functions), thread_name_prefix="dfact-member") as pool:
            futures = [pool.submit(self._work, function) for function in functions]
            try:
                while self._wait():
                    self._run_fused()
            finally:
                self._stop()
        # Functions that were stopped because of another's error are not its cause.
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, InterruptedError)), errors[0])
        return [future.result() for future in futures]

    def _work(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except BaseException:
            self._stop()
            raise
        finally:
            with self._change:
                self._busy -= 1
                self._change.notify_all()

    def _wait(self) -> bool:
        """Wait until all functions wait for a pass or have ended; returns whether any has requested a pass."""
        with self._change:
            self._change.wait_for(lambda: self._busy == 0 or self._stopped)
            return bool(self._requests) and not self._stopped

    def _run_fused(self) -> None:
        # Ordered by name, as the order of arrival depends on the machine.
        requests = [self._requests[name] for name in sorted(self._requests)]
        # Sampled passes first: a pass over all blocks waits until all members have requested one.
        samples = [member.pass_.partitions for member, _, _ in requests if isinstance(member.pass_, SampledPass)]
        if samples:
            requests = [one for one in requests if isinstance(one[0].pass_, SampledPass) and one[0].pass_.partitions == samples[0]]
        fused = FusedPass(tuple(member for member, _, _ in requests), self._dtype)
        sums = self.session.run(SampledFusedPass(samples[0], fused) if samples else fused, [broadcast for _, broadcast, _ in requests])
        with self._change:
            for member, _, _ in requests:
                del self._requests[member.name]
            self._busy = len(requests)
        for (_, _, reply), part in zip(requests, sums.parts, strict=True):
            reply.set_result(part)

    def _stop(self) -> None:
        with self._change:
            self._stopped = True
            replies = [reply for _, _, reply in self._requests.values()]
            self._requests.clear()
            self._change.notify_all()
        for reply in replies:
            reply.set_exception(InterruptedError("the passes of the others have failed"))
