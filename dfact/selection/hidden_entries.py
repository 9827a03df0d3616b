"""Single entries hidden at random, and the errors of what a model says of them: their quantiles, of any number of entries."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Block, PartialSums, Pass, State
from dfact.models.expectile.passes import OriginalUnits

ERRORS = ("relative", "absolute")

# Errors are counted in steps of 0.1 %, from 1e-5 to 1e5 of their unit; what lies below counts as 0, what lies above as infinite.
_STEP = float(np.log1p(0.001))
_LOWEST = 1e-5
SIZE = int(np.ceil(np.log(1e10) / _STEP)) + 2


@dataclass(frozen=True)
class ErrorMeasure:
    """Which error is counted, and in which bins of the true value."""

    error: str
    edges: tuple[float, ...] = ()
    """Of the bins, rising: each from its edge to below the next one, the last with its end; none if empty."""
    unit: float = 1.0
    """Of absolute errors."""

    @property
    def n_bins(self) -> int:
        return max(0, len(self.edges) - 1)

    @property
    def bytes(self) -> int:
        """Of the counts."""
        return 8 * (self.n_bins + 1) * SIZE

    def count(self, b: NDArray[np.float64], R: NDArray[np.float64]) -> "ErrorHistogram":
        """Of the entries b and the model R of them."""
        error = np.abs(R - b)
        zeros = 0
        if self.error == "relative":
            known = b != 0
            zeros = int(np.count_nonzero(~known))
            b, error = b[known], error[known]
            error /= np.abs(b)
        steps = np.log(np.maximum(error / self.unit, _LOWEST / 2) / _LOWEST) / _STEP
        place = np.clip(np.floor(steps) + 1, 0, SIZE - 1).astype(np.intp)
        counts = np.bincount(self._bins(b) * SIZE + place, minlength=(self.n_bins + 1) * SIZE)
        return ErrorHistogram(counts.reshape(-1, SIZE), np.asarray(zeros))

    def _bins(self, b: NDArray[np.float64]) -> NDArray[np.intp]:
        """The number of each value's bin; that of the bins for values outside all."""
        if not self.edges:
            return np.zeros(len(b), np.intp)
        bins = np.searchsorted(self.edges, b, side="right") - 1
        bins[b == self.edges[-1]] = self.n_bins - 1
        bins[(bins < 0)] = self.n_bins
        return bins

    def quantiles(self, counts: NDArray[np.float64], shares: tuple[float, ...]) -> list[float]:
        """What these shares of the counted errors (SIZE,) are at most, to 0.1 %; NaN if none were counted."""
        ends = np.cumsum(counts)
        if not ends[-1]:
            return [float("nan")] * len(shares)
        found = []
        for share in shares:
            # Between neighbours in the order of all errors, as NumPy has it.
            position = share * (ends[-1] - 1)
            lower, upper = (self._ordered(counts, ends, np.floor(position) + i) for i in (0, 1))
            part = position % 1
            found.append(lower if part == 0 else (1 - part) * lower + part * upper)
        return found

    def _ordered(self, counts: NDArray[np.float64], ends: NDArray[np.float64], rank: float) -> float:
        """The error of this rank, from 0; those of a step are taken as evenly spread."""
        step = int(np.searchsorted(ends, min(rank, ends[-1] - 1), side="right"))
        if step in (0, SIZE - 1):
            return 0.0 if step == 0 else float("inf")
        within = (rank - (ends[step] - counts[step]) + 0.5) / counts[step]
        return float(self.unit * _LOWEST * np.exp(_STEP * (step - 1 + within)))


@dataclass
class ErrorHistogram(PartialSums, name="error_histogram"):
    """Errors of hidden entries."""

    counts: NDArray[Any]
    """(bins + 1, SIZE), the last for true values outside all bins."""
    zeros: NDArray[Any]
    """Number of entries 0, which have no relative error."""


@dataclass(frozen=True)
class ErrorHistogramPass(Pass[NDArray[Any], ErrorHistogram]):
    """The errors of the model of the rows' factors X (k, rows) in the state, on the entries of a block."""

    measured: OriginalUnits
    measure: ErrorMeasure
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, broadcast: NDArray[Any]) -> tuple[State | None, ErrorHistogram]:
        """``broadcast`` is Y (m, k)."""
        assert state is not None
        M = self.measured.entries(block)
        rows = np.repeat(np.arange(len(M.indptr) - 1), np.diff(M.indptr))
        R = np.zeros(len(M.data))
        for x, y in zip(state["factors"], broadcast.T, strict=True):
            R += x[rows] * y[M.indices]
        return state, self.measure.count(M.data, R)
