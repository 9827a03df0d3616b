"""Pass of factor analysis that computes the scores of the rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, Pass, Released
from dfact.kernels.entries import filled
from dfact.models.growth.baseline import Baseline, compute_baseline


@dataclass(frozen=True)
class Scorer:
    """Constants of the factor scores f = (Φ⁻¹ + Λ_oᵀΨ_o⁻¹Λ_o)⁻¹ Λ_oᵀΨ_o⁻¹ z_o, with o the answered items."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    """Ψ⁻¹Λ (m, k)."""
    information: NDArray[np.float64]
    """Λ_jᵀΛ_j / Ψ_j of each item (m, k·k)."""
    precision: NDArray[np.float64]
    """Φ⁻¹ (k, k)."""
    pattern: NDArray[np.float64]
    """Λ (m, k)."""

    @classmethod
    def from_loadings(
        cls,
        components: NDArray[Any],
        uniquenesses: NDArray[np.float64],
        correlations: NDArray[np.float64],
        mean: NDArray[np.float64],
        scale: NDArray[np.float64],
    ) -> "Scorer":
        """Make the constants for loadings ``components`` (k, m) of factors with these correlations (k, k)."""
        loadings = components.T.astype(np.float64)
        weights = loadings / uniquenesses[:, None]
        information = (weights[:, :, None] * loadings[:, None, :]).reshape(len(loadings), -1)
        return cls(mean, scale, weights, information, np.asarray(np.linalg.inv(correlations), np.float64), loadings)


@dataclass
class ScoreSums(Baseline, name="factor_scores", disclosure=Released("moments of scores and of residuals")):
    nonrespondents: NDArray[Any]
    """Number of rows without any answer."""


@dataclass(frozen=True)
class ScorePass(Pass[BlockState, Scorer, ScoreSums]):
    """Scores of every row, and its residuals z − Λf in standard deviations of the items."""

    dtype: np.dtype[Any]
    weighted: bool = False
    """Whether the last of a block's covariates is the weight of its rows."""

    def step(self, block: Block, state: BlockState, broadcast: Scorer) -> tuple[BlockState, ScoreSums]:
        s, M, work = broadcast, block.values, block.work
        missing = np.isnan(M, out=work.array("missing", M.shape, bool))
        rows = np.flatnonzero(missing.any(axis=1))
        Z = np.subtract(M, s.mean, out=work.array("scaled", M.shape, np.float64))
        Z /= s.scale
        zero_filled = filled(Z, out=work.array("filled", M.shape, np.float64))
        B = work.matmul(zero_filled, s.weights, "product").T  # (k, rows), in double precision like the weights
        F = np.linalg.solve(s.precision + s.information.sum(axis=0).reshape(s.precision.shape), B)
        if rows.size:
            gaps = np.take(missing, rows, axis=0, out=work.array("gaps", (len(rows), M.shape[1]), bool), mode="clip")
            observed = work.converted("observed", np.logical_not(gaps, out=gaps), np.float64)
            matrices = work.matmul(observed, s.information, "matrices")
            matrices += s.precision.ravel()
            F[:, rows] = np.linalg.solve(matrices.reshape(-1, *s.precision.shape), B.T[rows, :, None])[:, :, 0].T
        nonrespondents = missing.all(axis=1)
        F[:, nonrespondents] = np.nan
        weights = block.covariates[:, -1] if self.weighted and block.covariates is not None else None
        figures = compute_baseline(Z, work.matmul(F.T, s.pattern.T, "model"), F.T, weights)
        return RowFactors(F.astype(self.dtype)), ScoreSums(**figures, nonrespondents=np.asarray(nonrespondents.sum()))
