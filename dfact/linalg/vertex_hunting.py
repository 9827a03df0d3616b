"""Vertex hunting: the rows that span the others, by successive projection, or on the margin of their cone.

The rows nearest to the centres of K-means, a third way, come from :func:`dfact.linalg.kmeans.nearest_rows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, Pass
from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.lazy import optimize
from dfact.linalg.kmeans import cluster_centers
from dfact.linalg.row_points import Coordinates, Points, RowMaximum, Taken, row_maximum, squared_norms

_ROUNDS = 100  # maximum number of passes that extend the working set; some five to twenty complete it
_POOL = 1 << 15  # number of rows near the margin among which corners are searched
_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # fractions of all rows that are tried as those near the margin


@dataclass(frozen=True)
class FarthestPass(Pass[BlockState, Sequence[NDArray[np.float64] | None], RowMaximum]):
    """The point of each search with the largest part outside the span of the vertices so far.

    The broadcast is an orthonormal basis (j, d) of that span for each search, None at the start.
    """

    points: tuple[Points, ...]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.points[0].dtype

    def step(self, block: Block, state: BlockState, broadcast: Sequence[NDArray[np.float64] | None]) -> tuple[BlockState, RowMaximum]:
        matrices = [points.of(block, state) for points in self.points]
        scores = []
        for X, basis in zip(matrices, broadcast, strict=True):
            inside = 0 if basis is None else np.square(X @ basis[:, : X.shape[1]].T.astype(X.dtype)).sum(axis=1)
            scores.append((squared_norms(X) - inside).astype(np.float64))
        return state, row_maximum(scores, matrices, block.start)


def successive_projection(points: Sequence[Points], counts: Sequence[int]) -> Solver[list[NDArray[np.int64]]]:
    """Return the row numbers of ``counts[s]`` vertices for each search s (Araújo et al. 2001), by one pass per vertex.

    Each step selects the row with the largest norm and projects all rows on its complement. Raises DataError if the rows span
    fewer dimensions.
    """
    rows: list[list[int]] = [[] for _ in points]
    bases: list[list[NDArray[np.float64]]] = [[] for _ in points]
    largest = np.zeros(len(points))
    for step in range(max(counts)):
        active = [s for s in range(len(points)) if counts[s] > step]
        broadcast = [np.array(bases[s]) if step else None for s in active]
        best = yield from run(FarthestPass(tuple(points[s] for s in active)), broadcast)
        for s, score, row, point in zip(active, best.scores, best.rows, best.points, strict=True):
            largest[s] = max(largest[s], score)
            precision = np.finfo(points[s].dtype or np.float32).eps
            if score <= 100 * precision * largest[s]:
                raise DataError(f"the rows span {step} dimensions, expected {counts[s]}; fit at most {step} classes")
            rest = point
            for _ in range(2):  # twice, to remove the rounding errors of the first projection
                for direction in bases[s]:
                    rest = rest - (direction @ rest) * direction
            bases[s].append(rest / np.linalg.norm(rest))
            rows[s].append(int(row))
    return [np.array(vertices) for vertices in rows]


@dataclass(frozen=True)
class MarginPass(Pass[BlockState, NDArray[np.float64], Taken]):
    """The rows of each block lowest along the broadcast normal w (d,): ``count`` of them or the fraction ``share``, if that is more.

    The points (r, 1 + d) have row numbers in their first column. The point 0 has no direction and is left out.
    """

    points: Coordinates
    count: int
    share: float = 0.0
    dtype: None = None

    def step(self, block: Block, state: BlockState, broadcast: NDArray[np.float64]) -> tuple[BlockState, Taken]:
        X = self.points.of(block, state).astype(np.float64)
        rows = np.flatnonzero(X.any(axis=1))
        heights = X[rows] @ broadcast
        count = max(self.count, int(np.ceil(self.share * len(X))))
        rows = rows[np.argsort(heights, kind="stable")[:count]]
        return state, Taken(np.column_stack([block.start + rows, X[rows]]))


def cone_normal(points: Coordinates, precision: float) -> Solver[NDArray[np.float64]]:
    """Compute the normal w of the cone's margin: minimize ½‖w‖² subject to xᵢ·w ≥ 1 for the unit points xᵢ of all rows.

    This is the one-class SVM in the hard-margin limit. It has only d unknowns, so it is solved on a
    working set of rows, to which each pass adds the rows of every block that are lowest along w, until none is
    below 1 − ``precision``. On the working set it is the least-distance problem of Lawson &
    Hanson (1974, chapter 23): non-negative least squares on its dual.
    """
    w: NDArray[np.float64] = np.eye(points.k)[0]  # along the first singular vector all rows are positive
    working = np.empty((0, 1 + points.k))
    for _ in range(_ROUNDS):
        low = (yield from run(MarginPass(points, points.k), w)).points
        if len(working) and (low[:, 1:] @ w).min() >= 1 - precision:
            break
        working = np.unique(np.vstack([working, low]), axis=0)
        w = least_distance(working[:, 1:])
    return w


def least_distance(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shortest w with X w ≥ 1, X (n, d). Raises DataError if there is none."""
    multipliers: NDArray[np.float64] = optimize.nnls(np.vstack([X.T, np.ones(len(X))]), np.eye(X.shape[1] + 1)[-1])[0]
    rest = 1 - float(multipliers.sum())
    if rest <= np.finfo(float).eps * len(X):
        raise DataError("the rows lie on all sides of the origin, expected a cone; use vertex_hunting='kmeans', which needs none")
    w: NDArray[np.float64] = X.T @ multipliers / rest
    return w


def cone_vertices(points: Coordinates, n_rows: int, precision: float, seed: int) -> Solver[NDArray[np.int64]]:
    """Return the row numbers of the corners of the unit points' cone: SVM-cone (Mao et al. 2018, algorithm 1).

    K-means groups the rows within δ of the margin into as many groups as points have coordinates, and the row nearest to each
    centre becomes a corner. Each δ of a grid contains a given fraction of all rows; the corners that span the largest volume
    are returned. Too small a δ misses a corner, too large a one moves the corners inward.
    """
    w = yield from cone_normal(points, precision)
    pool = (yield from run(MarginPass(points, 8 * points.k, min(1.0, _POOL / n_rows)), w)).points
    pool = pool[np.argsort(pool[:, 1:] @ w, kind="stable")]
    rows, X = pool[:, 0].astype(np.int64), pool[:, 1:]
    margins = X @ w - 1
    best, volume = rows[: points.k], -1.0
    for size in sorted({max(points.k, int(share * n_rows)) for share in (0.0, *_SHARES)}):
        if size > len(pool):
            break
        near = X[margins <= margins[size - 1] + precision]
        centers = cluster_centers(near, points.k, seed)
        corners = np.array([int(np.square(near - center).sum(axis=1).argmin()) for center in centers])
        spanned = abs(np.linalg.det(X[corners]))
        if spanned > volume:
            best, volume = rows[corners], spanned
    return best
