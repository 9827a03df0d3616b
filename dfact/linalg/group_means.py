"""Mean residuals of groups of rows, by one pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass


@dataclass
class GroupSums(PartialSums, name="group_residuals"):
    """Weighted sums over the observed entries of each group."""

    sums: NDArray[Any]
    """Σ w (M − WQᵀ) (groups, m)."""
    weights: NDArray[Any]
    """Σ w (groups, m)."""

    def means(self) -> NDArray[np.float64]:
        """Return the means (groups, m); NaN without observed entries."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means: NDArray[np.float64] = self.sums / self.weights
        return means


@dataclass(frozen=True)
class GroupResidualsPass(Pass[BlockState, NDArray[Any], GroupSums]):
    """Sums of the residuals M − WQᵀ by group, given the broadcast Qᵀ (k, m).

    A block's covariates are the number of the row's group, −1 for none, its weight, and W (rows, k).
    """

    dtype: np.dtype[Any]
    n_groups: int

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, GroupSums]:
        assert block.covariates is not None, "the covariates hold groups, weights and factors"
        groups, weights, W = block.covariates[:, 0], block.covariates[:, 1], block.covariates[:, 2:]
        residuals = block.values - W @ broadcast
        observed = ~np.isnan(residuals)
        members = np.where(groups == np.arange(self.n_groups)[:, None], weights, 0.0)
        return state, GroupSums(members @ np.where(observed, residuals, 0.0), members @ observed)
