"""Correlations of columns with missing entries, by one pass over the rows: the sums are m×m, whatever the number of rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.kernels.entries import filled

_INDEFINITE = 1e-6  # times the number of columns: a more negative eigenvalue is not a rounding error of single precision
_FLOOR = 1e-10  # smoothing raises smaller eigenvalues to this value, as psych's cor.smooth does
ONE_ROW = 1e-9
"""Excess over 1 up to which an effective number of rows counts as one row."""


@dataclass
class Moments(
    PartialSums, name="moments", disclosure=Released("products of the columns, summed over rows", counts=("counts", "rows"), products=True)
):
    """Sums over the rows in which both of two columns are observed; x is a column's value minus its shift."""

    counts: NDArray[Any]
    """Number of these rows (m, m)."""
    sums: NDArray[Any]
    """Σ x_i over the rows where column j is observed as well (m, m), each row times its weight, as in all sums of x."""
    squares: NDArray[Any]
    """Σ x_i² over the same rows (m, m)."""
    cross: NDArray[Any]
    """Σ x_i x_j (m, m)."""
    rows: NDArray[Any]
    """Number of rows that contributed."""

    @property
    def total_weights(self) -> NDArray[Any]:
        """Σ w over the rows of each pair of columns (m, m); without weights their number."""
        return self.counts

    @property
    def effective_counts(self) -> NDArray[Any]:
        """Kish's effective number of the rows of each pair of columns, (Σw)²/Σw² (m, m); without weights their number."""
        return self.counts

    @property
    def effective_rows(self) -> float:
        """Kish's effective number of the rows that contributed; without weights their number."""
        return float(self.rows)

    def cells(self, broadcast: Any) -> Iterator[NDArray[Any]]:
        """Yield the numbers of rows with an answer to one column and none to another (m, m)."""
        del broadcast
        yield np.rint(self.counts.diagonal()[:, None] - self.counts)

    def items_of(self, broadcast: Any) -> int:
        """Return the number of columns."""
        del broadcast
        return len(self.sums)

    def part(self, columns: NDArray[np.intp]) -> Self:
        """Return the moments of some of the columns."""
        pairs = np.ix_(columns, columns)
        return replace(self, **{name: value[pairs] for name, value in vars(self).items() if np.ndim(value) == 2})

    def means(self) -> NDArray[np.float64]:
        """Return the means of the columns minus their shifts (m)."""
        means: NDArray[np.float64] = self.sums.diagonal() / self.total_weights.diagonal()
        return means

    def deviations(self) -> NDArray[np.float64]:
        """Return the standard deviations of the columns (m): mean square deviations times n/(n − 1), with the effective n."""
        total, n = self.total_weights.diagonal(), self.effective_counts.diagonal()
        squares = self.squares.diagonal() - self.sums.diagonal() ** 2 / total
        variances = squares / np.where(n > 1 + ONE_ROW, total - total / n, 1)
        deviations: NDArray[np.float64] = np.sqrt(np.maximum(variances, 0))
        return deviations

    def covariances(self) -> NDArray[np.float64]:
        """Return covariances (m, m), each about the means of its own rows: mean products times n/(n − 1), with the effective n.

        NaN for pairs of columns that share fewer than two rows.
        """
        total, n = self.total_weights, self.effective_counts
        products = self.cross - self.sums * self.sums.T / total
        C: NDArray[np.float64] = products / np.where(n > 1 + ONE_ROW, total - total / n, np.nan)
        return (C + C.T) / 2

    def correlations(self) -> NDArray[np.float64]:
        """Return Pearson correlations (m, m), each with the means and variances of its own rows, as R's ``use="pairwise"``.

        A correlation is NaN if two columns share fewer than two rows, or one of them is constant in those.
        """
        n, s = self.total_weights, self.sums
        covariances = n * self.cross - s * s.T
        spread = n * self.squares - s**2
        # A smaller spread is the cancellation error of a constant column.
        spread = np.where(spread > 1e-11 * n * self.squares, spread, np.nan)
        R: NDArray[np.float64] = np.clip(covariances / np.sqrt(spread * spread.T), -1, 1)
        np.fill_diagonal(R, np.where(np.isnan(spread.diagonal()), np.nan, 1.0))
        return (R + R.T) / 2


@dataclass
class WeightedMoments(
    Moments,
    name="weighted_moments",
    disclosure=Released("weights, and products of the columns, summed over rows", counts=("counts", "rows"), products=True),
):
    """Moments of rows with weights. Rows of weight 0 do not count."""

    weights: NDArray[Any]
    """Σ w over the rows where both of two columns are observed (m, m)."""
    squared_weights: NDArray[Any]
    """Σ w² over the same rows (m, m)."""
    row_weights: NDArray[Any]
    """Σ w and Σ w² of the rows that contributed (2,)."""

    @property
    def total_weights(self) -> NDArray[Any]:
        return self.weights

    @property
    def effective_counts(self) -> NDArray[Any]:
        effective: NDArray[np.float64] = self.weights**2 / self.squared_weights
        return effective

    @property
    def effective_rows(self) -> float:
        total, squares = self.row_weights
        return float(total**2 / squares) if squares else 0.0


@dataclass(frozen=True)
class MomentsPass(Pass[BlockState, NDArray[Any], Moments]):
    """The moments of the columns about the broadcast shifts (m), which keep the sums free of cancellation."""

    dtype: np.dtype[Any]
    complete_only: bool
    """Whether to leave out rows with missing entries. Otherwise all observed entries contribute."""
    weighted: bool = False
    """Whether the last of a block's covariates is the weight of its rows; the sums are then :class:`WeightedMoments`."""

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, Moments]:
        if self.weighted:
            return state, self._weighted_moments(block, broadcast)
        work, shape = block.work, block.values.shape
        M = np.subtract(block.values, broadcast.astype(self.dtype), out=work.array("shifted", shape, self.dtype))
        missing = np.isnan(M, out=work.array("missing", shape, bool))
        if self.complete_only:
            M, missing = (part[~missing.any(axis=1)] for part in (M, missing))
        m = M.shape[1]
        if not missing.any():
            n = np.asarray(len(M), np.float64)
            counts, sums, squares = (work.until_next_block((m, m), np.float64) for _ in range(3))
            counts[:] = n
            sums[:] = M.sum(axis=0, dtype=np.float64)[:, None]
            squares[:] = np.einsum("ij,ij->j", M, M, dtype=np.float64)[:, None]
            return state, Moments(counts, sums, squares, work.matmul(M.T, M), n)
        rows = np.asarray((~missing.all(axis=1)).sum(), np.float64)
        X, XX = (work.array(name, M.shape, self.dtype) for name in ("filled", "squares"))
        np.square(filled(M, out=X), out=XX)
        seen = work.converted("observed", np.logical_not(missing, out=missing), self.dtype)
        return state, Moments(work.matmul(seen.T, seen), work.matmul(X.T, seen), work.matmul(XX.T, seen), work.matmul(X.T, X), rows)

    def _weighted_moments(self, block: Block, shifts: NDArray[Any]) -> WeightedMoments:
        """Return the moments of a block, in double precision, as products with weights round in single precision."""
        assert block.covariates is not None, "the last covariate holds the weights"
        work, weights = block.work, block.covariates[:, -1].astype(np.float64)
        missing = np.isnan(block.values, out=work.array("missing", block.values.shape, bool))
        contributes = (weights > 0) & ~(missing.any(axis=1) if self.complete_only else missing.all(axis=1))
        w, missing, values = weights[contributes], missing[contributes], block.values[contributes]
        X, weighted, seen = (work.array(name, values.shape, np.float64) for name in ("shifted", "weighted", "observed"))
        filled(np.subtract(values, shifts, out=weighted), out=X)
        np.logical_not(missing, out=seen, casting="unsafe")
        counts, cross = work.matmul(seen.T, seen), work.matmul(np.multiply(X, w[:, None], out=weighted).T, X)
        sums = work.matmul(weighted.T, seen)
        squares = work.matmul(np.multiply(weighted, X, out=weighted).T, seen)
        total = work.matmul(np.multiply(seen, w[:, None], out=weighted).T, seen)
        squared = work.matmul(np.multiply(weighted, w[:, None], out=weighted).T, seen)
        rows, row_weights = np.asarray(len(w), np.float64), np.array([w.sum(), (w**2).sum()])
        return WeightedMoments(counts, sums, squares, cross, rows, total, squared, row_weights)


def is_indefinite(R: NDArray[np.float64]) -> bool:
    """Return whether the matrix has a negative eigenvalue and is therefore no correlation matrix."""
    return bool(np.linalg.eigvalsh(R)[0] < -_INDEFINITE * len(R))


def smoothed(R: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a positive definite correlation matrix near R (m, m): pairwise correlations may be indefinite.

    Eigenvalues below 1e-10 are raised to it, the others scaled so that all keep their sum m, and the
    diagonal is scaled back to 1: the smoothing of Wothke (1993), as in psych's ``cor.smooth``.
    """
    values, V = np.linalg.eigh(R)
    values = np.maximum(values, _FLOOR)
    S = (V * (values * len(R) / values.sum())) @ V.T
    scale = np.sqrt(S.diagonal())
    S = np.asarray(S / np.outer(scale, scale), np.float64)
    np.fill_diagonal(S, 1.0)
    return S
