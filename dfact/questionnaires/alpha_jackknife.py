"""Standard error of Cronbach's alpha by leaving out each row once, with missing answers and weights, from one pass over the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.kernels.entries import filled
from dfact.linalg.correlation import Moments

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AlphaParts:
    """Broadcast of the pass: figures of a scale for its alphas without each row. x is an answer minus its shift, times the item's key."""

    columns: NDArray[np.intp]
    """Positions of the m items in the data."""
    keys: Array
    """1 or −1 by item (m)."""
    shifts: Array
    """(m)."""
    means: Array
    """Means of x_i over the rows in which item j is observed as well (m, m)."""
    covariances: Array
    """Pairwise covariances of the turned items (m, m)."""
    unit: Array
    """1/(W(1 − 2/n)) of each pair (m, m), for the sum of weights W of its rows and their effective number n."""
    inflation: Array
    """n/(n − 1) of each pair (m, m)."""

    @classmethod
    def of(cls, moments: Moments, columns: NDArray[np.intp], keys: Array, shifts: Array) -> Self:
        """Take them from the moments of the items of a scale, whose columns in ``moments`` are all of them."""
        signs = np.outer(keys, keys)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = moments.sums / moments.total_weights * keys[:, None]
            n = np.where(moments.effective_counts > 2, moments.effective_counts, np.nan)
            return cls(columns, keys, shifts, means, moments.covariances() * signs, 1 / (moments.total_weights * (1 - 2 / n)), n / (n - 1))

    @property
    def totals(self) -> tuple[float, float]:
        """Sum of all covariances, and of the variances."""
        return float(self.covariances.sum()), float(np.trace(self.covariances))


@dataclass
class AlphaSums(
    PartialSums,
    name="alpha_sums",
    disclosure=Released("sums of the changes of alpha without each row, and of their squares", counts=("rows",)),
):
    """Sums over the rows with an answer to any item of a scale, for each scale (S)."""

    rows: NDArray[Any]
    """Number of these rows."""
    changes: NDArray[Any]
    """Σ of alpha without the row less alpha."""
    squares: NDArray[Any]
    """Σ of the squares of these changes."""

    def standard_errors(self) -> Array:
        """Return the jackknife's standard errors of alpha (S), √((n − 1)/n·Σ(α₋ᵢ − ᾱ)²); NaN for fewer than two rows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.where(self.rows > 1, self.rows, np.nan)
            return np.asarray(np.sqrt(np.maximum((n - 1) / n * (self.squares - self.changes**2 / n), 0)))


@dataclass(frozen=True)
class AlphaPass(Pass[BlockState, Sequence[AlphaParts], AlphaSums]):
    """The alphas of scales without each row.

    Without row i the covariance of two items that it answers falls by w_i·u·(n/(n − 1)·d_j d_k − c_jk), for the deviations d from the
    means of the pair's rows; this is exact for equal weights w. So alpha without the row costs a few products of the row with
    matrices (m, m).
    """

    dtype: np.dtype[Any]
    complete_only: bool
    """Whether to leave out rows with missing answers to an item of the scale."""
    weighted: bool = False
    """Whether the last of a block's covariates is the weight of its rows. Rows of weight 0 do not count."""

    def step(self, block: Block, state: BlockState, broadcast: Sequence[AlphaParts]) -> tuple[BlockState, AlphaSums]:
        weights = np.ones(len(block.values))
        if self.weighted:
            assert block.covariates is not None, "the last covariate holds the weights"
            weights = block.covariates[:, -1].astype(np.float64)
        sums = [self._sums(block.values[:, parts.columns], weights, parts) for parts in broadcast]
        return state, AlphaSums(*(np.asarray(column, np.float64) for column in zip(*sums, strict=True)))

    def _sums(self, values: NDArray[Any], weights: Array, parts: AlphaParts) -> tuple[float, float, float]:
        missing = np.isnan(values)
        counted = (weights > 0) & ~(missing.any(axis=1) if self.complete_only else missing.all(axis=1))
        seen = np.logical_not(missing[counted]).astype(np.float64)
        x = filled((values[counted] - parts.shifts) * parts.keys)
        A, mu = parts.unit * parts.inflation, parts.means
        # Σ over pairs of A·(x_j − μ_jk)(x_k − μ_kj) − u·c, and the same over the variances alone.
        products = ((x @ A) * x - 2 * (x @ (A * mu.T)) * seen + (seen @ (A * mu * mu.T - parts.unit * parts.covariances)) * seen).sum(
            axis=1
        )
        own = parts.unit.diagonal() * (parts.inflation.diagonal() * (x - mu.diagonal()) ** 2 - parts.covariances.diagonal())
        (total, trace), m = parts.totals, len(mu)
        w = weights[counted]
        with np.errstate(divide="ignore", invalid="ignore"):
            changed = (trace - w * (own * seen).sum(axis=1)) / (total - w * products)
            change = -m / (m - 1) * (changed - trace / total)
        return float(len(change)), float(change.sum()), float((change**2).sum())


def jackknife_interval(alpha: float, se: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Return both ends of alpha ± t·se, for the t distribution with n − 1 degrees of freedom, the upper one at most 1, the highest alpha.

    They are NaN without a standard error.
    """
    if not n > 1 or not np.isfinite(se):
        return np.nan, np.nan
    half = float(stdtrit(n - 1, (1 + level) / 2)) * se
    return alpha - half, min(alpha + half, 1.0)
