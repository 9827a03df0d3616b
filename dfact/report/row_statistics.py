"""Distributions and correlations of the row factors, computed by chunks of rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.export.tables import row_chunks

BINS = 40


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Statistics of k factors over the rows without NaN."""

    n: int
    """Number of rows with factors."""
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    zeros: NDArray[np.float64]
    """Share of rows whose factor is 0."""
    correlations: NDArray[np.float64]
    """(k, k); NaN for factors without variance."""
    edges: NDArray[np.float64]
    """Edges of bins of equal width from minimum to maximum (k, BINS + 1)."""
    counts: NDArray[np.int64]
    """Rows in each bin (k, BINS)."""

    @classmethod
    def of(cls, factors: Any) -> "RowStatistics":
        """Read row factors (n, k) twice: for moments and range, then for the counts."""
        k = factors.shape[1]
        n, total, cross, zeros = 0, np.zeros(k), np.zeros((k, k)), np.zeros(k)
        limits, shift = np.array([np.full(k, np.inf), np.full(k, -np.inf)]), np.zeros(k)
        for W in _complete_rows(factors):
            if not len(W):
                continue
            shift = W.mean(axis=0) if n == 0 else shift  # centring first avoids cancellation in the covariance
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
        for W in _complete_rows(factors):
            counts += [np.histogram(column, bins)[0] for column, bins in zip(W.T, edges, strict=True)]
        return cls(n, mean + shift, deviation, limits[0], limits[1], zeros / max(n, 1), correlations, edges, counts)

    def table(self, names: list[str]) -> pd.DataFrame:
        """Return a table of factors × statistics."""
        columns = {"mean": self.mean, "standard deviation": self.deviation, "minimum": self.minimum, "maximum": self.maximum}
        return pd.DataFrame(columns | {"share at 0": self.zeros}, index=pd.Index(names, name="factor"))


def _complete_rows(factors: Any) -> Iterator[NDArray[np.float64]]:
    """Yield chunks of the rows without NaN in double precision."""
    for W in row_chunks(factors):
        yield W[~np.isnan(W).any(axis=1)].astype(np.float64)
