"""The likelihood of a block of rows by tiles of columns: its slopes and curvatures, and steps of the rows alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Workspace
from dfact.kernels.binomial import EDGE, add_log_likelihoods, count_rows, newton_rows, row_slopes

_TILE = 1024  # columns whose arrays in floating point are in the cache together
FALL = 1e-6
"""Fall of a row's log-likelihood, relative, from which it takes the EM's step."""

Floats = NDArray[np.float64]


def normalized(Q: Floats) -> Floats:
    """Return memberships (rows, K) with each row scaled to sum 1, at least 1e-5."""
    Q = np.maximum(Q / Q.sum(axis=1, keepdims=True), EDGE)
    scaled: Floats = Q / Q.sum(axis=1, keepdims=True)
    return scaled


@dataclass(frozen=True, eq=False)
class ColumnWeights:
    """Weights of the columns in the likelihood: whole numbers, equal within each run of consecutive columns."""

    edges: NDArray[np.intp]
    """First column of each run, and the number of columns (runs + 1,)."""
    weights: NDArray[np.int64]
    """Weight of the columns of each run (runs,)."""

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first column, the column after the last, and the weight of each run; runs of weight 0 are left out."""
        return ((int(a), int(b), int(w)) for (a, b), w in zip(pairwise(self.edges), self.weights, strict=True) if w)

    def count(self, G: NDArray[np.uint8], trials: int) -> Floats:
        """Return the sum of the weights of the observed entries of each row (rows,)."""
        total = np.zeros(len(G))
        for first, last, weight in self.runs():
            total += weight * (G[:, first:last] <= trials).sum(axis=1)
        return total


@dataclass(frozen=True, eq=False)
class RowBlock:
    """The counts of a block, with the frequencies and the working memory of a pass."""

    G: NDArray[np.uint8]
    P: NDArray[Any]
    """Frequencies (K, m)."""
    trials: int
    work: Workspace
    weights: ColumnWeights | None = None

    @property
    def tiles(self) -> Iterator[tuple[slice, int]]:
        """The columns whose arrays in floating point are in the cache together, with their weight."""
        runs = [(0, self.P.shape[1], 1)] if self.weights is None else self.weights.runs()
        return ((slice(j, min(j + _TILE, end)), weight) for begin, end, weight in runs for j in range(begin, end, _TILE))

    @cached_property
    def pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows and columns of a lower triangle (K(K+1)/2)."""
        return np.tril_indices(len(self.P))

    @property
    def observed(self) -> Floats:
        """Number of observed entries of each row (rows,), each as often as its column's weight."""
        if self.weights is not None:
            return self.weights.count(self.G, self.trials)
        counts = np.empty(len(self.G))
        count_rows(self.G, self.trials, counts)
        return counts

    def expected(self, Q: NDArray[Any], tile: slice) -> NDArray[Any]:
        """Return F = QP (rows, c) of a tile."""
        return np.matmul(Q, self.P[:, tile], out=self.array("expected", tile))

    def array(self, name: str, tile: slice) -> NDArray[Any]:
        return self.work.array(name, (len(self.G), tile.stop - tile.start), self.P.dtype)

    def slopes(self, Q: Floats, *, curved: bool) -> tuple[Floats, Floats, Floats]:
        """Return the log-likelihood of each row (rows,), its slope (rows, K) up to a number, and minus its Hessian (rows, K(K+1)/2).

        Hessians are those on the simplex, 0 unless ``curved``: with Σ_k d_k = 0, dᵀHd = Σ_j (a/f + b/(1 − f)) (Σ_k p_kj d_k)², and
        the p of a column may be shifted by their mean: steps are the same, and rounding errors are smaller.
        """
        (first, second), narrow = self.pairs, Q.astype(self.P.dtype)
        logs, slope, curvature = np.zeros(len(Q)), np.zeros(Q.shape), np.zeros((len(Q), len(first)))
        for tile, weight in self.tiles:
            F, C, S = self.expected(narrow, tile), self.array("c", tile), self.array("s", tile)
            P = self.P[:, tile] - self.P[:, tile].mean(axis=0)
            row_slopes(self.G, tile.start, F, self.trials, C, S)
            logs += weight * self._log_likelihoods(F, tile)
            slope += weight * (C @ P.T)
            if curved:
                products = self.work.array("products", (len(first), P.shape[1]), P.dtype)
                curvature += weight * (S @ np.multiply(P[first], P[second], out=products).T)
        return logs, slope, curvature

    def log_likelihoods(self, Q: Floats) -> Floats:
        """Return the log-likelihood of each row (rows,)."""
        logs, narrow = np.zeros(len(Q)), Q.astype(self.P.dtype)
        for tile, weight in self.tiles:
            logs += weight * self._log_likelihoods(self.expected(narrow, tile), tile)
        return logs

    def _log_likelihoods(self, F: NDArray[Any], tile: slice) -> Floats:
        logs = np.zeros(len(F))
        add_log_likelihoods(self.G, tile.start, F, self.trials, logs)
        return logs

    def em(self, Q: Floats, slope: Floats) -> Floats:
        """Return the EM's step of each row, q·T scaled to sum 1: T is the slope with qᵀT = M·(number of observed entries)."""
        total = self.trials * self.observed
        T = slope - (Q * slope).sum(axis=1, keepdims=True) + total[:, None]
        return np.where(total[:, None] > 0, normalized(np.maximum(Q * T, 1e-300)), Q)

    def climb(self, Q: Floats, steps: int, last: Floats, em: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Take some Newton steps of every row, and the EM's where one was too long. Return also the last changes.

        ``last`` and ``em`` are the log-likelihoods before the last step and the EM's step from there, which replaces it if it was too
        long: given for the step that led to Q, returned for the last one, so that further steps may follow.
        """
        for _ in range(steps):
            logs, slope, curvature = self.slopes(Q, curved=True)
            if (worse := logs < last - FALL * np.abs(last)).any():
                Q = np.where(worse[:, None], em, Q)
                logs, slope, curvature = self.slopes(Q, curved=True)
            last, em, begin = logs, self.em(Q, slope), Q
            Q = Q.copy()
            newton_rows(Q, slope, curvature)
            Q = np.where(self.observed[:, None] > 0, Q, begin)
        return Q, last, em, np.abs(Q - begin).max(axis=1)
