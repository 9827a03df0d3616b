"""Many solvers on the same data: the next pass of all of them is one visit of every block."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Block, PartialSums, Pass, SampledPass, State, StatelessStart
from dfact.engine.session import Arrays, Session

T = TypeVar("T")
P = TypeVar("P", bound=PartialSums)

BlockView = Callable[[Block], Block]
"""What a member sees of a block; a plain function or a dataclass, as it travels to the workers."""


def whole(block: Block) -> Block:
    """All of a block."""
    return block


@dataclass(frozen=True)
class Member:
    """One of the passes of a visit: whose it is, and what of the data it sees."""

    name: str
    view: BlockView
    pass_: Pass[Any, Any]


@dataclass
class FusedSums(PartialSums, name="fused"):
    """What each member adds up."""

    parts: list[Any]

    def total(self) -> Self:
        return type(self)([part.total() for part in self.parts])

    def add(self, other: Self) -> None:
        for part, more in zip(self.parts, other.parts, strict=True):
            part.add(more)


@dataclass(frozen=True)
class FusedPass(StatelessStart):
    """The passes of several members at one visit of a block. State: that of each, with its name before."""

    members: tuple[Member, ...]
    dtype: np.dtype[Any] | None

    def step(self, block: Block, state: State | None, broadcast: Sequence[Any]) -> tuple[State | None, FusedSums]:
        # The state of those that do not ask goes: all ask, until they have finished.
        old = state or {}
        new: State = {}
        parts = []
        view: BlockView | None = None
        for member, own_shared in zip(self.members, broadcast, strict=True):
            prefix = f"{member.name}."
            own: State | None = {name.removeprefix(prefix): array for name, array in old.items() if name.startswith(prefix)} or None
            if member.view != view:  # made once for those in a row that see the same
                view, seen = member.view, member.view(block)
            own, part = member.pass_.step(seen, member.pass_.start(seen) if own is None else own, own_shared)
            new |= {prefix + name: array for name, array in (own or {}).items()}
            parts.append(part)
        return new or None, FusedSums(parts)


@dataclass(frozen=True)
class SampledFusedPass(SampledPass):
    """The passes of several members over the same sample; the state of the other members stays as it is."""

    together: FusedPass

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.together.dtype

    def step(self, block: Block, state: State | None, broadcast: Sequence[Any]) -> tuple[State | None, FusedSums]:
        new, parts = self.together.step(block, state, broadcast)
        names = {member.name for member in self.together.members}
        others = {name: array for name, array in (state or {}).items() if name.split(".")[0] not in names}
        return others | (new or {}) or None, parts


class FusedSession(Session):
    """A member's session: a pass waits until all others have one to run, too."""

    def __init__(self, members: "Members", name: str, view: BlockView = whole) -> None:
        self._members, self.name, self.view = members, name, view

    def run(self, pass_: Pass[Any, P], broadcast: Any) -> P:
        sums: P = self._members.ask(Member(self.name, self.view, pass_), broadcast)
        return sums

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        yield from self._members.session.rows(f"{self.name}.{name}")

    def memo(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        return self._members.session.memo(f"{self.name}.{name}", compute)


class Members:
    """Runs functions that each need many passes over the same data, so that the next pass of all of them is one visit.

    Each function has a thread of its own and mostly waits there; ``run`` computes in the calling thread's session.
    """

    def __init__(self, session: Session, dtype: np.dtype[Any]) -> None:
        self.session, self._dtype = session, dtype
        self._change = threading.Condition()
        self._asked: dict[str, tuple[Member, Any, Future[Any]]] = {}
        self._busy = 0
        self._stopped = False

    def ask(self, member: Member, broadcast: Any) -> Any:
        """The sums of the member's pass, once all others ask for one."""
        answer: Future[Any] = Future()
        with self._change:
            if self._stopped:
                raise InterruptedError("the passes of the others have failed")
            self._asked[member.name] = member, broadcast, answer
            self._busy -= 1
            self._change.notify_all()
        return answer.result()

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """The results of the functions, in their order; the first error of any of them or of a visit is raised."""
        self._busy = len(functions)
        with ThreadPoolExecutor(len(functions), thread_name_prefix="dfact-member") as pool:
            futures = [pool.submit(self._work, function) for function in functions]
            try:
                while self._wait():
                    self._visit()
            finally:
                self._stop()
        # Those that were stopped because of another's error are not its cause.
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
        """Wait until nobody computes; whether somebody asks."""
        with self._change:
            self._change.wait_for(lambda: self._busy == 0 or self._stopped)
            return bool(self._asked) and not self._stopped

    def _visit(self) -> None:
        # In the order of their names: who asked first depends on the machine.
        asked = [self._asked[name] for name in sorted(self._asked)]
        # Samples first: a pass over all blocks waits until all members have one.
        samples = [member.pass_.partitions for member, _, _ in asked if isinstance(member.pass_, SampledPass)]
        if samples:
            asked = [one for one in asked if isinstance(one[0].pass_, SampledPass) and one[0].pass_.partitions == samples[0]]
        together = FusedPass(tuple(member for member, _, _ in asked), self._dtype)
        sums = self.session.run(SampledFusedPass(samples[0], together) if samples else together, [broadcast for _, broadcast, _ in asked])
        with self._change:
            for member, _, _ in asked:
                del self._asked[member.name]
            self._busy = len(asked)
        for (_, _, answer), part in zip(asked, sums.parts, strict=True):
            answer.set_result(part)

    def _stop(self) -> None:
        with self._change:
            self._stopped = True
            waiting = [answer for _, _, answer in self._asked.values()]
            self._asked.clear()
            self._change.notify_all()
        for answer in waiting:
            answer.set_exception(InterruptedError("the passes of the others have failed"))
