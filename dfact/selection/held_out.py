"""Passes over data of which a part is hidden."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Block, PartialSums, Pass, Startless, State
from dfact.engine.visits import Member, Members, MemberSession
from dfact.selection.folds import Folds


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
class Errors(PartialSums, name="squared_errors"):
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
        R = block.work.matmul(state["factors"].T, shared, "model")
        squares, count = clipped_errors(block.values, R, self.problem.lower, self.problem.upper)
        return state, Errors(np.asarray(squares), np.asarray(count))


@dataclass(frozen=True)
class Veil:
    """A block without what a fold hides, or with that alone."""

    folds: Folds
    fold: int
    hidden: bool
    """Whether what the fold hides is seen, and only that."""

    def __call__(self, block: Block) -> Block:
        M = block.values
        # NaN where nothing is seen, else 0: to add it is cheaper than to choose.
        veil = np.where(self.folds.hidden(self.fold) == self.hidden, 0, np.nan).astype(M.dtype)
        values = block.work.array("veiled", M.shape, M.dtype)
        np.take(veil, self.folds.rows[block.start : block.start + len(M)], axis=0, out=values, mode="clip")
        values += M
        return block.with_matrix(values)


class FoldMember(MemberSession):
    """A fold's session among those that share their reads."""

    def __init__(self, members: Members, name: str, folds: Folds, fold: int, dtype: np.dtype[Any]) -> None:
        super().__init__(members, name, Veil(folds, fold, hidden=False))
        self._members, self._others, self._dtype = members, Veil(folds, fold, hidden=True), dtype

    def score(self, problem: Any, Q: NDArray[Any]) -> tuple[float, int]:
        errors: Errors = self._members.ask(Member(self.name, self._others, ErrorsPass(problem, self._dtype)), Q)
        return float(errors.squares), int(errors.count)
