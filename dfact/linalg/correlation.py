"""Correlations of columns with missing entries, by one pass over the rows: the sums are m×m, whatever the number of rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.kernels.entries import filled

_INDEFINITE = 1e-6  # times the number of columns: a more negative eigenvalue is no rounding error of single precision
_FLOOR = 1e-10  # smoothing raises smaller eigenvalues to this value, as psych's cor.smooth does


@dataclass
class Moments(PartialSums, name="moments"):
    """Sums over the rows in which both of two columns are observed; x is a column's value less its shift."""

    counts: NDArray[Any]
    """Number of these rows (m, m)."""
    sums: NDArray[Any]
    """Σ x_i over the rows where column j is observed as well (m, m)."""
    squares: NDArray[Any]
    """Σ x_i² over the same rows (m, m)."""
    cross: NDArray[Any]
    """Σ x_i x_j (m, m)."""
    rows: NDArray[Any]
    """Number of rows that contributed."""

    def means(self) -> NDArray[np.float64]:
        """Return the means of the columns less their shifts (m)."""
        means: NDArray[np.float64] = self.sums.diagonal() / self.counts.diagonal()
        return means

    def deviations(self) -> NDArray[np.float64]:
        """Return the standard deviations of the columns (m), with n − 1 in the denominator."""
        n = self.counts.diagonal()
        variances = (self.squares.diagonal() - self.sums.diagonal() ** 2 / n) / np.maximum(n - 1, 1)
        deviations: NDArray[np.float64] = np.sqrt(np.maximum(variances, 0))
        return deviations

    def covariances(self) -> NDArray[np.float64]:
        """Return covariances (m, m), each about the means of its own rows, with n − 1 in the denominator; NaN for fewer than two rows."""
        n = self.counts
        C: NDArray[np.float64] = (self.cross - self.sums * self.sums.T / n) / np.where(n > 1, n - 1, np.nan)
        return (C + C.T) / 2

    def correlations(self) -> NDArray[np.float64]:
        """Return Pearson correlations (m, m), each with the means and variances of its own rows, as R's ``use="pairwise"``.

        A correlation is NaN if two columns share fewer than two rows, or one of them is constant in those.
        """
        n, s = self.counts, self.sums
        covariances = n * self.cross - s * s.T
        spread = n * self.squares - s**2
        # A smaller spread is the cancellation error of a constant column.
        spread = np.where(spread > 1e-11 * n * self.squares, spread, np.nan)
        R: NDArray[np.float64] = np.clip(covariances / np.sqrt(spread * spread.T), -1, 1)
        np.fill_diagonal(R, np.where(np.isnan(spread.diagonal()), np.nan, 1.0))
        return (R + R.T) / 2


@dataclass(frozen=True)
class MomentsPass(Pass[BlockState, NDArray[Any], Moments]):
    """The moments of the columns about the broadcast shifts (m), which keep the sums free of cancellation."""

    dtype: np.dtype[Any]
    complete_only: bool
    """Whether to leave out rows with missing entries. Otherwise all observed entries contribute."""

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, Moments]:
        work, shape = block.work, block.values.shape
        M = np.subtract(block.values, broadcast.astype(self.dtype), out=work.array("shifted", shape, self.dtype))
        missing = np.isnan(M, out=work.array("missing", shape, bool))
        if self.complete_only:
            M, missing = (part[~missing.any(axis=1)] for part in (M, missing))
        m = M.shape[1]
        if not missing.any():
            n = np.asarray(len(M), np.float64)
            counts, sums, squares = (work.lasting((m, m), np.float64) for _ in range(3))
            counts[:] = n
            sums[:] = M.sum(axis=0, dtype=np.float64)[:, None]
            squares[:] = np.einsum("ij,ij->j", M, M, dtype=np.float64)[:, None]
            return state, Moments(counts, sums, squares, work.matmul(M.T, M), n)
        rows = np.asarray((~missing.all(axis=1)).sum(), np.float64)
        X, XX = (work.array(name, M.shape, self.dtype) for name in ("filled", "squares"))
        np.square(filled(M, out=X), out=XX)
        seen = work.converted("observed", np.logical_not(missing, out=missing), self.dtype)
        return state, Moments(work.matmul(seen.T, seen), work.matmul(X.T, seen), work.matmul(XX.T, seen), work.matmul(X.T, X), rows)


def is_indefinite(R: NDArray[np.float64]) -> bool:
    """Return whether the matrix has a negative eigenvalue and is therefore no correlation matrix."""
    return bool(np.linalg.eigvalsh(R)[0] < -_INDEFINITE * len(R))


def smoothed(R: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a positive definite correlation matrix near R (m, m): pairwise correlations may be indefinite.

    Eigenvalues below 1e-10 are raised to it, the others scaled so that all keep their sum m, and the
    diagonal is scaled back to 1: Wothke's smoothing (1993), as in psych's ``cor.smooth``.
    """
    values, V = np.linalg.eigh(R)
    values = np.maximum(values, _FLOOR)
    S = (V * (values * len(R) / values.sum())) @ V.T
    scale = np.sqrt(S.diagonal())
    S = np.asarray(S / np.outer(scale, scale), np.float64)
    np.fill_diagonal(S, 1.0)
    return S
