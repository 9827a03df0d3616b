"""The EM algorithm of probabilistic PCA (Tipping & Bishop 1999): components of data with missing entries.

The scores of a row are integrated out given its observed entries; a tile of columns then has its loadings and means by least squares
with the expectations. The scores may have any mean and covariance, which the loadings take up (parameter expansion, Liu, Rubin & Wu
1998): the likelihood still never falls, and takes far fewer passes to its maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import StateArrays
from dfact.engine.passes import NoSums, PartialSums, Released
from dfact.engine.requests import Solver, read_tiles, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from dfact.kernels.principal import regress_columns
from dfact.models.pca.passes import ExpectationPass, Floats, Standardized

_LEAST_NOISE = 1e-9
"""Least noise variance, relative to the mean variance of the columns: data of rank k have none, and steps would end."""


@dataclass(frozen=True, eq=False)
class Expectations:
    """Sums of the expectations of rows with ẑ = (z, 1), as :class:`~dfact.models.pca.passes.ExpectationSums` has them."""

    grams: Floats
    """Σ E[ẑẑᵀ] over the rows that have an entry in the column, packed (t, m)."""
    cross: Floats
    """Σ E[ẑ] x (k+1, m)."""
    total: Floats
    """Σ E[ẑẑᵀ] over all rows, packed (t,)."""

    @property
    def scores(self) -> Floats:
        """Σ E[ẑ] over the rows that have an entry in the column (k+1, m): the last row of the packed matrices."""
        return self.grams[-len(self.cross) :]

    def moved(self, A: Floats) -> "Expectations":
        """Return the sums of A ẑ in place of ẑ, with A (k+1, k+1)."""
        first, second = np.tril_indices(len(A))
        packed = A[np.ix_(first, first)] * A[np.ix_(second, second)]
        packed += np.where(first != second, A[np.ix_(first, second)] * A[np.ix_(second, first)], 0)
        return Expectations(packed @ self.grams, A @ self.cross, packed @ self.total)

    def centred(self, mean: Floats, scale: Floats) -> "Expectations":
        """Return the sums with the entries (x − mean) / scale, given those (m,) of each column."""
        return replace(self, cross=(self.cross - self.scores * mean) / scale)

    def plus(self, other: "Expectations") -> "Expectations":
        """Return the sums of both."""
        return Expectations(self.grams + other.grams, self.cross + other.cross, self.total + other.total)


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
    sums: Expectations | None = None
    """Those of all rows, given loadings of the last pass or the last but one."""

    def principal(self) -> tuple[Floats, Floats, Floats]:
        """Return the singular values (k,) and right singular vectors (k, m) of W, of which those have a positive largest entry.

        Also the rotation (k, k) of z that turns W into their product.
        """
        U, values, vectors = np.linalg.svd(self.loadings, full_matrices=False)
        signs = np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1))
        return values, vectors * signs, U.T * signs


def begin(tile: Tile) -> tuple[StateArrays, PartialSums]:
    """Return the given loadings as the state of the tile."""
    return {"loadings": tile.given["loadings"].astype(np.float64)}, NoSums()


def keep_sums(tile: Tile) -> tuple[StateArrays, PartialSums]:
    """Return the loadings with the sums of the last pass as the state of the tile."""
    return {"loadings": tile.state["loadings"], "grams": tile.sums["grams"], "cross": tile.sums["cross"]}, NoSums()


@dataclass
class Residuals(PartialSums, name="pca_residuals", disclosure=Released("sums of squared residuals")):
    squares: NDArray[Any]
    """Σ E[(x − Wᵀz − a)²] over the observed entries."""


@dataclass(frozen=True)
class Regress:
    """The loadings (k+1, c) of a tile's columns by least squares, for scores that are moved to mean 0 and covariance I."""

    rotation: Floats
    """Factor R of the covariance RRᵀ of the scores (k, k)."""
    centre: Floats
    """Mean of the scores (k,)."""
    keeps: bool
    """Whether the sums of the pass stay with the tile."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        grams, cross = tile.sums["grams"], tile.sums["cross"]
        if "grams" in tile.given:  # sums of earlier rows
            grams, cross = grams + tile.given["grams"], cross + tile.given["cross"]
        found = np.empty(cross.shape)
        regress_columns(np.ascontiguousarray(grams), np.ascontiguousarray(cross), found)
        residuals = np.asarray((tile.given["squares"] - (found * cross).sum(axis=0)).sum())
        W, a = found[:-1], found[-1]
        kept = {"grams": tile.sums["grams"], "cross": tile.sums["cross"]} if self.keeps else {}
        return {"loadings": np.vstack([self.rotation.T @ W, a + self.centre @ W]), **kept}, Residuals(residuals)

    @property
    def movement(self) -> Floats:
        """The matrix (k+1, k+1) that moves the scores, (z, 1), likewise."""
        k = len(self.centre)
        moved = np.eye(k + 1)
        moved[:k] = np.linalg.solve(self.rotation, np.hstack([np.eye(k), -self.centre[:, None]]))
        return moved


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
    keeps_sums: bool = False,
    earlier: Expectations | None = None,
    n_earlier: float = 0,
) -> Solver[ProbabilisticPCA]:
    """Maximize the likelihood from the loadings above the means, ``start`` (k+1, m), and the variance of the noise.

    ``squares`` (m,) are the sums of squares of the columns' observed standardized entries, ``n_observed`` entries in all. The fit ends
    when the mean log-likelihood of an entry rises by at most ``tol`` in a pass. The expectations of ``earlier`` rows, which have
    ``n_earlier`` of the entries, stay as they are (incremental EM, Neal & Hinton 1998): the bound of the likelihood of all rows never
    falls. That of the new rows alone may, so that the fit ends when it changes by at most ``tol``.
    """
    k, history, converged = len(start) - 1, list[float](), False
    least = max(_LEAST_NOISE * float(squares.sum()) / n_observed, np.finfo(np.float64).tiny)
    noise, moved = max(noise, least), np.eye(k + 1)
    pass_ = ExpectationPass(view.dtype, view, k)
    yield from step_tiles(begin, {"loadings": start})
    for number in range(max_iter):
        sums = yield from run(pass_, TileBroadcast("loadings", np.dtype(np.float64), noise))
        history.append(float(sums.log_likelihood) / (n_observed - n_earlier))
        report(history)
        change = history[-1] - history[-2] if number > 0 else np.inf
        converged = (change if earlier is None else abs(change)) <= tol
        if converged:
            moved = np.eye(k + 1)
            if keeps_sums:
                yield from step_tiles(keep_sums)
            break
        mean, covariance = _moments(sums.total if earlier is None else sums.total + earlier.total, k)
        rotation = np.asarray(np.linalg.cholesky(covariance), np.float64)
        regress = Regress(rotation, mean, keeps=keeps_sums and number == max_iter - 1)
        given = {} if earlier is None else {"grams": earlier.grams, "cross": earlier.cross}
        residuals = yield from step_tiles(regress, {"squares": squares, **given})
        noise, moved = max(float(residuals.squares) / n_observed, least), regress.movement
        earlier = None if earlier is None else earlier.moved(moved)
    loadings = yield from read_tiles("loadings", np.dtype(np.float64))
    all_sums = None
    if keeps_sums:
        grams, cross = (yield from read_tiles("grams", loadings.dtype)), (yield from read_tiles("cross", loadings.dtype))
        all_sums = Expectations(grams, cross, np.asarray(sums.total, np.float64)).moved(moved)
        all_sums = all_sums if earlier is None else all_sums.plus(earlier)
    return ProbabilisticPCA(loadings[:-1], loadings[-1], noise, history, converged, all_sums)


def _moments(total: NDArray[Any], k: int) -> tuple[Floats, Floats]:
    """Return mean (k,) and covariance (k, k) of the scores from the packed Σ E[ẑẑᵀ]."""
    first, second = np.tril_indices(k + 1)
    S = np.zeros((k + 1, k + 1))
    S[first, second] = S[second, first] = total
    S /= S[k, k]
    mean = S[:k, k].copy()  # not strided: BLAS may round otherwise, and a worker receives it without strides
    return mean, S[:k, :k] - np.outer(mean, mean)
