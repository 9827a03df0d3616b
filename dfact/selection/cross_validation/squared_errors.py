"""Squared errors of a model on held-out entries."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.models.bounded_nmf.problem import Problem


@dataclass
class SquaredErrors(PartialSums, name="squared_errors", disclosure=Released("sums of squared held-out errors")):
    """Squared errors on held-out entries."""

    squares: NDArray[Any]
    """Σ (M − R)² (), each entry times the weight of its row."""
    count: NDArray[Any]
    """Number of entries (), or the sum of their weights."""


def sum_squared_errors(
    M: NDArray[Any], R: NDArray[Any], lower: Any, upper: Any, weights: NDArray[Any] | None = None
) -> tuple[float, float]:
    """Return Σ (M − clip(R))² over the entries of M (n, m) that are not NaN, and their number.

    With ``weights`` of the rows (n,), both sums are weighted.
    """
    errors = M - np.clip(R, lower, upper)
    observed = ~np.isnan(errors)
    if weights is None:
        return float(np.square(errors[observed], dtype=np.float64).sum()), int(np.count_nonzero(observed))
    w = weights.astype(np.float64)
    return float(w @ np.square(errors, where=observed, out=np.zeros(M.shape), dtype=np.float64).sum(axis=1)), float(
        w @ observed.sum(axis=1)
    )


@dataclass(frozen=True)
class SquaredErrorPass(Pass[RowFactors, NDArray[Any], SquaredErrors]):
    """A pass that sums the squared errors of the model of the factors X (k+c, rows) in the state, clipped to its bounds."""

    problem: Problem
    dtype: np.dtype[Any]
    state_type = RowFactors

    def step(self, block: Block, state: RowFactors, broadcast: NDArray[Any]) -> tuple[RowFactors, SquaredErrors]:
        """Sum the errors of a block; ``broadcast`` is Qᵀ (k+c, m)."""
        R = block.work.matmul(state.factors.T, broadcast, "model")
        weights = self.problem.sample_weight(block, np.float64) if self.problem.weighted else None
        squares, count = sum_squared_errors(block.values, R, self.problem.lower, self.problem.upper, weights)
        return state, SquaredErrors(np.asarray(squares), np.asarray(count))
