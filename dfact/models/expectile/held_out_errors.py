"""Errors of an expectile matrix factorization on held-out entries: losses, coverage, and quantiles by histogram."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Withheld
from dfact.models.expectile.passes import OriginalUnits

ERRORS = ("relative", "absolute")
N_ROW_GROUPS = 20
"""Number of groups of rows whose sums give the standard errors of a mean loss."""

# Histograms have steps of 0.1% from 1e-5 to 1e5 units. The first step holds errors below, which count as 0, the last
# one errors above, which count as infinite.
_LOG_STEP = float(np.log1p(0.001))
_SMALLEST = 1e-5
N_STEPS = int(np.ceil(np.log(1e10) / _LOG_STEP)) + 2


@dataclass(frozen=True)
class ErrorMeasure:
    """The error that is counted, and the bins of the true value in which it is."""

    error: str
    edges: tuple[float, ...] = ()
    """Increasing edges of the bins. A bin includes its lower edge, the last one its upper edge too; no bins if empty."""
    unit: float = 1.0
    """Unit of absolute errors."""

    @property
    def n_bins(self) -> int:
        return max(0, len(self.edges) - 1)

    @property
    def nbytes(self) -> int:
        """Size of a histogram in bytes."""
        return 8 * (self.n_bins + 1) * N_STEPS

    def count(self, b: NDArray[np.float64], R: NDArray[np.float64]) -> "ErrorHistogram":
        """Return the histogram of the errors of the model R on the entries b."""
        error = np.abs(R - b)
        zeros = 0
        if self.error == "relative":
            nonzero = b != 0
            zeros = int(np.count_nonzero(~nonzero))
            b, error = b[nonzero], error[nonzero]
            error /= np.abs(b)
        steps = np.log(np.maximum(error / self.unit, _SMALLEST / 2) / _SMALLEST) / _LOG_STEP
        step = np.clip(np.floor(steps) + 1, 0, N_STEPS - 1).astype(np.intp)
        counts = np.bincount(self._bins(b) * N_STEPS + step, minlength=(self.n_bins + 1) * N_STEPS)
        return ErrorHistogram(counts.reshape(-1, N_STEPS), np.asarray(zeros))

    def _bins(self, b: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the number of each value's bin; values outside all bins get the number of bins."""
        if not self.edges:
            return np.zeros(len(b), np.intp)
        bins = np.searchsorted(self.edges, b, side="right") - 1
        bins[b == self.edges[-1]] = self.n_bins - 1
        bins[(bins < 0)] = self.n_bins
        return bins

    def quantiles(self, counts: NDArray[np.float64], probabilities: tuple[float, ...]) -> list[float]:
        """Return the quantiles of the counted errors (N_STEPS,), to 0.1%; NaN if none were counted."""
        ends = np.cumsum(counts)
        if not ends[-1]:
            return [float("nan")] * len(probabilities)
        quantiles = []
        for probability in probabilities:
            # NumPy's definition: linear interpolation between neighbours in the order of all errors.
            position = probability * (ends[-1] - 1)
            lower, upper = (self._error_at_rank(counts, ends, np.floor(position) + i) for i in (0, 1))
            fraction = position % 1
            quantiles.append(lower if fraction == 0 else (1 - fraction) * lower + fraction * upper)
        return quantiles

    def _error_at_rank(self, counts: NDArray[np.float64], ends: NDArray[np.float64], rank: float) -> float:
        """Return the error of this rank, from 0; the errors of a step are taken as evenly spaced."""
        step = int(np.searchsorted(ends, min(rank, ends[-1] - 1), side="right"))
        if step in (0, N_STEPS - 1):
            return 0.0 if step == 0 else float("inf")
        within = (rank - (ends[step] - counts[step]) + 0.5) / counts[step]
        return float(self.unit * _SMALLEST * np.exp(_LOG_STEP * (step - 1 + within)))


@dataclass
class ErrorHistogram(PartialSums, name="error_histogram", disclosure=Withheld("has numbers of errors of a size that few rows may have")):
    """Histogram of the errors on held-out entries."""

    counts: NDArray[Any]
    """(bins + 1, N_STEPS); the last row counts errors of true values outside all bins."""
    zeros: NDArray[Any]
    """Number of entries 0, which have no relative error ()."""


@dataclass
class ExpectileErrors(PartialSums, name="expectile_errors", disclosure=Withheld("has numbers of errors of a size that few rows may have")):
    """Errors of an expectile b̂ of the held-out entries b: the histogram of their sizes, the loss, and the sums on either side."""

    counts: NDArray[Any]
    """That of :class:`ErrorHistogram`."""
    zeros: NDArray[Any]
    """That of :class:`ErrorHistogram`."""
    losses: NDArray[Any]
    """Σ ρ_τ(b − b̂) over each group of rows (N_ROW_GROUPS,); row i is in the group i modulo their number."""
    numbers: NDArray[Any]
    """Number of entries in each group of rows (N_ROW_GROUPS,)."""
    sides: NDArray[Any]
    """Number of the entries below b̂, and above it (2,)."""
    deviations: NDArray[Any]
    """Σ (b̂ − b)₊ and Σ (b − b̂)₊ (2,)."""

    def coverage(self, tau: float) -> dict[str, float]:
        """Return the share of the entries below the expectile, that which the definition gives, and the share of the deviations.

        The τ-expectile e of b is defined by (1 − τ) E(e − b)₊ = τ E(b − e)₊. So the share of the deviations |b − e| that lies
        below e is τ. With the mean deviations A of the entries below and B of those above, the share p of the entries below solves
        (1 − τ) p A = τ (1 − p) B. NaN where no entry lies on one of the sides.
        """
        (below, above), (low, high) = self.sides, self.deviations
        with np.errstate(invalid="ignore", divide="ignore"):
            A, B = np.divide(low, below), np.divide(high, above)
            expected = tau * B / (tau * B + (1 - tau) * A)
            shares = np.divide(below, below + above), expected, np.divide(low, low + high)
        return {name: float(share) for name, share in zip(("below", "below_expected", "deviation_below"), shares, strict=True)}


@dataclass(frozen=True)
class ExpectileErrorsPass(Pass[RowFactors, NDArray[Any], ExpectileErrors]):
    """A pass that sums the errors of the model of the rows' factors X (k, rows) in the state."""

    measured: OriginalUnits
    measure: ErrorMeasure
    tau: float
    dtype: np.dtype[Any]
    state_type = RowFactors

    def step(self, block: Block, state: RowFactors, broadcast: NDArray[Any]) -> tuple[RowFactors, ExpectileErrors]:
        """Sum the errors of a block; ``broadcast`` is Y (m, k)."""
        M = self.measured.entries(block)
        rows = np.repeat(np.arange(len(M.indptr) - 1), np.diff(M.indptr))
        R = np.zeros(len(M.data))
        for x, y in zip(state.factors, broadcast.T, strict=True):
            R += x[rows] * y[M.indices]
        residuals = M.data - R
        below = residuals < 0
        losses = np.square(residuals) * np.where(below, 1 - self.tau, self.tau)
        groups = (block.start + rows) % N_ROW_GROUPS
        histogram = self.measure.count(M.data, R)
        return state, ExpectileErrors(
            histogram.counts,
            histogram.zeros,
            np.bincount(groups, losses, N_ROW_GROUPS),
            np.bincount(groups, minlength=N_ROW_GROUPS),
            np.array([below.sum(), (residuals > 0).sum()]),
            np.array([-residuals[below].sum(), residuals[~below].sum()]),
        )
