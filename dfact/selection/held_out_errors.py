"""TODO dfact.selection.held_out_errors"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Block, PartialSums, Pass, State


@dataclass
class SquaredErrors(PartialSums, name="squared_errors"):
    squares: NDArray[Any]
    count: NDArray[Any]


def clipped_errors(M: NDArray[Any], R: NDArray[Any], lower: Any, upper: Any) -> tuple[float, int]:
    """Σ (M − clip(R))² over the entries of M that are not NaN, and their number."""
    errors = M - np.clip(R, lower, upper)
    seen = ~np.isnan(errors)
    return float(np.square(errors[seen], dtype=np.float64).sum()), int(np.count_nonzero(seen))


@dataclass(frozen=True)
class SquaredErrorPass(Pass[NDArray[Any], SquaredErrors]):
    """Squared errors of the model of the factors X (k+c, rows) in the state, clipped to its bounds."""

    problem: Any
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, broadcast: NDArray[Any]) -> tuple[State | None, SquaredErrors]:
        """``broadcast`` is Qᵀ (k+c, m)."""
        assert state is not None
        R = block.work.matmul(state["factors"].T, broadcast, "model")
        squares, count = clipped_errors(block.values, R, self.problem.lower, self.problem.upper)
        return state, SquaredErrors(np.asarray(squares), np.asarray(count))
