"""The EM algorithm of probabilistic PCA (Tipping & Bishop 1999): components of data with missing entries.

The scores of a row are integrated out given its observed entries; a tile of columns then has its loadings and means by least squares
with the expectations. The scores may have any mean and covariance, which the loadings take up (parameter expansion, Liu, Rubin & Wu
1998): the likelihood still never falls, and takes far fewer passes to its maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import StateArrays
from dfact.engine.passes import PartialSums
from dfact.engine.requests import Solver, read_tiles, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from dfact.kernels.principal import regress_columns
from dfact.linalg.row_points import NoSums
from dfact.models.pca.passes import ExpectationPass, Floats, Standardized

_LEAST_NOISE = 1e-9
"""Least noise variance, relative to the mean variance of the columns: data of rank k have none, and steps would end."""


@dataclass(frozen=True)
class ProbabilisticPCA:
    """A fitted model of the standardized columns: x = Wᵀz + a + noise."""

    loadings: Floats
    """W (k, m)."""
    mean: Floats
    """a (m,)."""
    noise: float
    """σ²."""
    history: list[float]
    """Mean log-likelihood of an observed entry at each pass."""
    converged: bool


def begin(tile: Tile) -> tuple[StateArrays, PartialSums]:
    """Return the given loadings as the state of the tile."""
    return {"loadings": tile.given["loadings"].astype(np.float64)}, NoSums()


@dataclass
class Residuals(PartialSums, name="pca_residuals"):
    squares: NDArray[Any]
    """Σ E[(x − Wᵀz − a)²] over the observed entries."""


@dataclass(frozen=True)
class Regress:
    """The loadings (k+1, c) of a tile's columns by least squares, for scores that are moved to mean 0 and covariance I."""

    rotation: Floats
    """Factor R of the covariance RRᵀ of the scores (k, k)."""
    centre: Floats
    """Mean of the scores (k,)."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        cross, found = tile.sums["cross"], np.empty(tile.sums["cross"].shape)
        regress_columns(np.ascontiguousarray(tile.sums["grams"]), np.ascontiguousarray(cross), found)
        residuals = np.asarray((tile.given["squares"] - (found * cross).sum(axis=0)).sum())
        W, a = found[:-1], found[-1]
        return {"loadings": np.vstack([self.rotation.T @ W, a + self.centre @ W])}, Residuals(residuals)


def maximize_likelihood(
    view: Standardized,
    start: Floats,
    noise: float,
    squares: Floats,
    n_observed: float,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[list[float]], None],
) -> Solver[ProbabilisticPCA]:
    """Maximize the likelihood from loadings ``start`` (k, m) and the variance of the noise.

    ``squares`` (m,) are the sums of squares of the columns' observed standardized entries, ``n_observed`` entries in all. The fit ends
    when the mean log-likelihood of an entry rises by at most ``tol`` in a pass.
    """
    k, history, converged = len(start), list[float](), False
    least = max(_LEAST_NOISE * float(squares.sum()) / n_observed, np.finfo(np.float64).tiny)
    noise = max(noise, least)
    pass_ = ExpectationPass(view.dtype, view, k)
    yield from step_tiles(begin, {"loadings": np.vstack([start, np.zeros((1, start.shape[1]))])})
    for number in range(max_iter):
        sums = yield from run(pass_, TileBroadcast("loadings", np.dtype(np.float64), noise))
        history.append(float(sums.log_likelihood) / n_observed)
        report(history)
        converged = number > 0 and history[-1] - history[-2] <= tol
        if converged:
            break
        mean, covariance = _moments(sums.total, k)
        residuals = yield from step_tiles(Regress(np.asarray(np.linalg.cholesky(covariance), np.float64), mean), {"squares": squares})
        noise = max(float(residuals.squares) / n_observed, least)
    loadings = yield from read_tiles("loadings", np.dtype(np.float64))
    return ProbabilisticPCA(loadings[:-1], loadings[-1], noise, history, converged)


def _moments(total: NDArray[Any], k: int) -> tuple[Floats, Floats]:
    """Return mean (k,) and covariance (k, k) of the scores from the packed Σ E[ẑẑᵀ]."""
    first, second = np.tril_indices(k + 1)
    S = np.zeros((k + 1, k + 1))
    S[first, second] = S[second, first] = total
    S /= S[k, k]
    mean = S[:k, k]
    return mean, S[:k, :k] - np.outer(mean, mean)
