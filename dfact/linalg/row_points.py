"""The rows of the data, or their coordinates, as points: passes that embed them, and take rows by number or by score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, NoSums, PartialSums, Pass, Withheld
from dfact.engine.requests import Solver, run
from dfact.lazy import sp
from dfact.linalg.svd import Matrix, View


@dataclass
class Embedding(BlockState):
    """State that an :class:`EmbedPass` computes."""

    embedding: NDArray[Any]
    """Coordinates (k, rows)."""


class Points(Protocol):
    """A point for every row."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The type in which blocks are read; None if the points come from the state alone."""
        ...

    def of(self, block: Block, state: BlockState) -> Matrix:
        """Return the points (rows, d) of a block."""
        ...


@dataclass(frozen=True)
class Coordinates:
    """The leading ``k`` coordinates of an :class:`EmbedPass`; scaled to length 1 if ``unit`` (0 stays 0)."""

    k: int
    unit: bool = False
    dtype: None = None

    def of(self, block: Block, state: BlockState) -> NDArray[Any]:
        return self.scaled(Embedding.of(state.arrays()).embedding[: self.k]).T

    def scaled(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the coordinates (k, rows), scaled to length 1 if ``unit``."""
        if not self.unit:
            return X
        norms = np.linalg.norm(X, axis=0)
        directions: NDArray[Any] = X / np.where(norms > 0, norms, 1)
        return directions


@dataclass(frozen=True)
class DataRows:
    """The rows of the viewed matrix."""

    dtype: np.dtype[Any]
    view: View

    def of(self, block: Block, state: BlockState) -> Matrix:
        return self.view(block)


@dataclass(frozen=True)
class EmbedPass(Pass[BlockState, NDArray[Any], NoSums]):
    """Coordinates M·P of the viewed rows M, with the broadcast P (m, k); state ``embedding`` (k, rows)."""

    dtype: np.dtype[Any]
    view: View

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, NoSums]:
        return Embedding(block.work.matmul(self.view(block), broadcast, "product").T.copy()), NoSums()


@dataclass
class RowMaximum(PartialSums, name="row_maximum", disclosure=Withheld("shows single rows")):
    """The row with the highest score for each of s searches; the first of equals."""

    scores: NDArray[Any]
    """Scores (s,)."""
    rows: NDArray[Any]
    """Row numbers (s,); −1 where there is none."""
    points: NDArray[Any]
    """Points (s, d); shorter ones are padded with zeros."""

    def add(self, other: Self) -> None:
        better = other.scores > self.scores
        for mine, theirs in ((self.scores, other.scores), (self.rows, other.rows), (self.points, other.points)):
            mine[better] = theirs[better]


@dataclass
class Taken(PartialSums, name="rows_by_number", disclosure=Withheld("shows single rows")):
    """Points that were selected, one below the other."""

    points: NDArray[Any]

    def add(self, other: Self) -> None:
        self.points = np.concatenate([self.points, other.points])


@dataclass(frozen=True)
class TakePass(Pass[BlockState, NDArray[np.int64], Taken]):
    """The points of the broadcast row numbers, which are ascending."""

    points: Points

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.points.dtype

    def step(self, block: Block, state: BlockState, broadcast: NDArray[np.int64]) -> tuple[BlockState, Taken]:
        first, last = np.searchsorted(broadcast, [block.start, block.start + block.matrix.shape[0]])
        chosen = broadcast[first:last] - block.start
        return state, Taken(dense(self.points.of(block, state)[chosen]))


def take(points: Points, rows: NDArray[np.int64]) -> Solver[NDArray[np.float64]]:
    """Return the points (r, d) of these rows."""
    unique, inverse = np.unique(rows, return_inverse=True)
    sums = yield from run(TakePass(points), unique)
    return sums.points[inverse]


def dense(M: Matrix) -> NDArray[Any]:
    """Return the matrix as an array."""
    return M if isinstance(M, np.ndarray) else np.asarray(M.toarray())


def row_maximum(scores: Sequence[NDArray[Any]], points: Sequence[Matrix], start: int) -> RowMaximum:
    """Return the best row of a block for each search; ``start`` is the block's first row. A block without points gives row −1."""
    width = max(found.shape[1] for found in points)
    best = RowMaximum(np.full(len(points), -np.inf), np.full(len(points), -1.0), np.zeros((len(points), width)))
    for s, (score, found) in enumerate(zip(scores, points, strict=True)):
        if not len(score):
            continue
        i = int(score.argmax())
        best.scores[s], best.rows[s] = score[i], start + i
        best.points[s, : found.shape[1]] = dense(found[[i]])[0]
    return best


def squared_norms(M: Matrix) -> NDArray[Any]:
    """Return ‖M(i, :)‖² of every row."""
    if isinstance(M, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", M, M))
    return np.asarray(sp.csr_array(M.multiply(M)).sum(axis=1))
