"""How the factors of the rows are distributed, and how they go together; of any number of rows, by chunks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.report.text import row_chunks

BINS = 40


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Of k factors over the rows that have any; rows with NaN have none."""

    n: int
    """Rows with factors."""
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    zeros: NDArray[np.float64]
    """Share of the rows whose factor is 0."""
    correlations: NDArray[np.float64]
    """(k, k); NaN with a factor that does not vary."""
    edges: NDArray[np.float64]
    """(k, BINS + 1), of bins of the same width from the least to the largest."""
    counts: NDArray[np.int64]
    """(k, BINS)."""

    @classmethod
    def of(cls, factors: Any) -> "RowStatistics":
        """Two reads of row factors (n, k): moments and range, then the counts in bins."""
        k = factors.shape[1]
        n, total, cross, zeros = 0, np.zeros(k), np.zeros((k, k)), np.zeros(k)
        limits, shift = np.array([np.full(k, np.inf), np.full(k, -np.inf)]), np.zeros(k)
        for W in map(_known, row_chunks(factors)):
            if not len(W):
                continue
            shift = W.mean(axis=0) if n == 0 else shift  # products of what is near 0 keep their digits
            n, zeros = n + len(W), zeros + (W == 0).sum(axis=0)
            limits = np.array([np.minimum(limits[0], W.min(axis=0)), np.maximum(limits[1], W.max(axis=0))])
            total, cross = total + (W - shift).sum(axis=0), cross + (W - shift).T @ (W - shift)
        if n == 0:
            limits[:] = 0
        mean = total / max(n, 1)
        covariance = cross / max(n, 1) - np.outer(mean, mean)
        deviation = np.sqrt(np.maximum(covariance.diagonal(), 0))
        scale = np.outer(deviation, deviation)
        correlations = np.divide(covariance, scale, out=np.full((k, k), np.nan), where=scale > 0)
        edges = np.linspace(limits[0], np.where(limits[1] > limits[0], limits[1], limits[0] + 1), BINS + 1).T
        counts = np.zeros((k, BINS), np.int64)
        for W in map(_known, row_chunks(factors)):
            counts += [np.histogram(column, of)[0] for column, of in zip(W.T, edges, strict=True)]
        return cls(n, mean + shift, deviation, limits[0], limits[1], zeros / max(n, 1), correlations, edges, counts)

    def table(self, names: list[str]) -> pd.DataFrame:
        """Factors × figures."""
        columns = {"mean": self.mean, "standard deviation": self.deviation, "least": self.minimum, "largest": self.maximum}
        return pd.DataFrame(columns | {"share at 0": self.zeros}, index=pd.Index(names, name="factor"))


def _known(W: NDArray[Any]) -> NDArray[np.float64]:
    """The rows that have factors, in double precision."""
    known: NDArray[np.float64] = W[~np.isnan(W).any(axis=1)].astype(np.float64)
    return known
