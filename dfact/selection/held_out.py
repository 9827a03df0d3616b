"""Passes over data of which a part is hidden, and many of them at one visit of a block."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.executors import Session
from dfact.engine.passes import Block, Partial, Pass, Startless, State
from dfact.selection.folds import Folds

T = TypeVar("T")


class FoldSession(Protocol):
    """A session on the data without what a fold hides."""

    def run(self, pass_: Pass[Any, Any], shared: Any) -> Any: ...

    def score(self, problem: Any, Q: NDArray[Any]) -> tuple[float, int]:
        """Σ (M − R)² over the hidden answers, with the model R of the factors of the last pass and of Qᵀ (k+c, m), and their number."""
        ...


@dataclass(frozen=True)
class Anew:
    """A pass from its start, whatever state there was."""

    pass_: Pass[Any, Any]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.pass_.dtype

    def start(self, block: Block) -> None:
        """The step makes it."""

    def step(self, block: Block, state: State | None, shared: Any) -> tuple[State | None, Any]:
        return self.pass_.step(block, self.pass_.start(block), shared)


@dataclass
class Errors(Partial):
    squares: NDArray[Any]
    count: NDArray[Any]


def clipped_errors(M: NDArray[Any], R: NDArray[Any], lower: Any, upper: Any) -> tuple[float, int]:
    """Σ (M − clip(R))² over the entries of M that are not NaN, and their number."""
    errors = M - np.clip(R, lower, upper)
    seen = ~np.isnan(errors)
    return float(np.square(errors[seen], dtype=np.float64).sum()), int(np.count_nonzero(seen))


@dataclass(frozen=True)
class ErrorsPass(Startless):
    """Squared errors of the model of the factors X (k+c, rows) in the state, clipped to its bounds."""

    problem: Any
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, shared: NDArray[Any]) -> tuple[State | None, Errors]:
        """``shared`` is Qᵀ (k+c, m)."""
        assert state is not None
        squares, count = clipped_errors(block.values, state["factors"].T @ shared, self.problem.lower, self.problem.upper)
        return state, Errors(np.asarray(squares), np.asarray(count))


@dataclass(frozen=True)
class Member:
    """One of the passes of a visit: whose it is, and what of the data it sees."""

    name: str
    repeat: int
    fold: int
    hidden: bool
    """Whether it sees what the fold hides, and only that."""
    pass_: Pass[Any, Any]


@dataclass
class Parts(Partial):
    """What each member adds up."""

    parts: list[Any]

    def total(self) -> Self:
        return type(self)([part.total() for part in self.parts])

    def add(self, other: Self) -> None:
        for part, more in zip(self.parts, other.parts, strict=True):
            part.add(more)


@dataclass(frozen=True)
class Together(Startless):
    """The passes of several members at one visit of a block. State: that of each, with its name before."""

    members: tuple[Member, ...]
    folds: tuple[Folds, ...]
    """Of each repeat."""
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, shared: Sequence[Any]) -> tuple[State | None, Parts]:
        new: State = {}
        parts = []
        for member, own_shared in zip(self.members, shared, strict=True):
            prefix = f"{member.name}."
            own: State | None = {
                name.removeprefix(prefix): array for name, array in (state or {}).items() if name.startswith(prefix)
            } or None
            seen = self._seen(block, member)
            own, part = member.pass_.step(seen, member.pass_.start(seen) if own is None else own, own_shared)
            new |= {prefix + name: array for name, array in (own or {}).items()}
            parts.append(part)
        return new or None, Parts(parts)

    def _seen(self, block: Block, member: Member) -> Block:
        folds, M = self.folds[member.repeat], block.values
        # NaN where the member sees nothing, else 0: to add it is cheaper than to choose.
        veil = np.where(folds.hidden(member.fold) == member.hidden, 0, np.nan).astype(self.dtype)
        values = veil[folds.rows[block.start : block.start + len(M)]]
        values += M
        return replace(block, matrix=values)


class MemberSession:
    """A member's view of a visit: it waits until all others have a pass to run, too."""

    def __init__(self, members: "Members", name: str, repeat: int, fold: int, dtype: np.dtype[Any]) -> None:
        self._members, self._name, self._repeat, self._fold, self._dtype = members, name, repeat, fold, dtype

    def run(self, pass_: Pass[Any, Any], shared: Any) -> Any:
        return self._members.ask(Member(self._name, self._repeat, self._fold, False, pass_), shared)

    def score(self, problem: Any, Q: NDArray[Any]) -> tuple[float, int]:
        member = Member(self._name, self._repeat, self._fold, True, ErrorsPass(problem, self._dtype))
        errors: Errors = self._members.ask(member, Q)
        return float(errors.squares), int(errors.count)


class Members:
    """Runs functions that each need many passes over the same data, so that the next pass of all of them is one visit.

    Each function has a thread of its own and mostly waits there; ``run`` computes in the calling thread's session.
    """

    def __init__(self, session: Session, folds: tuple[Folds, ...], dtype: np.dtype[Any]) -> None:
        self._session, self._folds, self._dtype = session, folds, dtype
        self._change = threading.Condition()
        self._asked: dict[str, tuple[Member, Any, Future[Any]]] = {}
        self._busy = 0
        self._stopped = False

    def view(self, name: str, repeat: int, fold: int) -> MemberSession:
        return MemberSession(self, name, repeat, fold, self._dtype)

    def ask(self, member: Member, shared: Any) -> Any:
        """The sums of the member's pass, once all others ask for one."""
        answer: Future[Any] = Future()
        with self._change:
            if self._stopped:
                raise InterruptedError("the passes of the others have failed")
            self._asked[member.name] = member, shared, answer
            self._busy -= 1
            self._change.notify_all()
        return answer.result()

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """The results of the functions, in their order; the first error of any of them or of a visit is raised."""
        self._busy = len(functions)
        with ThreadPoolExecutor(len(functions), thread_name_prefix="dfact-fold") as pool:
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
        together = Together(tuple(member for member, _, _ in asked), self._folds, self._dtype)
        sums = self._session.run(together, [shared for _, shared, _ in asked])
        with self._change:
            self._asked.clear()
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
