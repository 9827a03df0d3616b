"""Frequencies on which new rows are projected: the expected ones given the estimates.

Estimates p̂_j (K,) of a column differ between components by more than the true p_j, as they have sampling errors. New rows, which had no
part in these errors, would therefore be placed nearer to the middle. With p_j ~ N(p̄_j 1, p̄_j(1 − p̄_j)Φ), as populations that drift from
a common one, and p̂_j ~ N(p_j, C_j⁻¹), with the curvatures C_j of the log-likelihood, the expectation is

    E[p_j | p̂_j] = p̄_j 1 + Φ(Φ + W_j)⁻¹(p̂_j − p̄_j 1),   W_j = C_j⁻¹/(p̄_j(1 − p̄_j)),

within the contrasts of components, whose sum is 0. Φ is estimated by moments over the columns. This is regression calibration (Carroll et
al. 2006) for the regression of a row's counts on the frequencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import StateArrays
from dfact.engine.passes import NoSums, PartialSums, Withheld
from dfact.engine.requests import Solver, read_tiles, step_tiles
from dfact.engine.tiles import Tile
from dfact.kernels.binomial import EDGE

_COLUMNS = 512  # whose matrices are in memory together
_RIDGE = 1e-8  # of a curvature, relative to its mean diagonal

Floats = NDArray[np.float64]


@dataclass
class ContrastSums(PartialSums, name="binomial_contrasts", disclosure=Withheld("has not been reviewed for single rows")):
    """Sums over the columns."""

    outer: NDArray[Any]
    """Σ of the outer products of the contrasts of p̂ (K − 1, K − 1)."""
    noise: NDArray[Any]
    """Σ of the covariances of their sampling errors (K − 1, K − 1)."""
    scale: NDArray[Any]
    """Σ p̄(1 − p̄)."""


@dataclass(frozen=True)
class Contrasts:
    """Sums over a tile with the frequencies "P" and the "curvature" of their log-likelihood in its state."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        rank = len(tile.state["P"]) - 1
        outer, noise, scale = np.zeros((rank, rank)), np.zeros((rank, rank)), 0.0
        for _, u, covariance, spread in _contrasts(tile):
            outer += u.T @ u
            noise += covariance.sum(axis=0)
            scale += float(spread.sum())
        return {**tile.state}, ContrastSums(outer, noise, np.asarray(scale))


@dataclass(frozen=True, eq=False)
class Calibrate:
    """The expected frequencies of a tile, as the array "expected"."""

    covariance: Floats
    """Φ in the basis of the contrasts (K − 1, K − 1)."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        P, basis = tile.state["P"], contrast_basis(len(tile.state["P"]))
        expected = np.empty_like(P)
        for part, u, covariance, spread in _contrasts(tile):
            prior = spread[:, None, None] * self.covariance
            shrunk = (prior @ np.linalg.solve(prior + covariance, u[:, :, None]))[:, :, 0]
            expected[:, part] = P[:, part].mean(axis=0) + basis @ shrunk.T
        return {**tile.state, "expected": np.clip(expected, EDGE, 1 - EDGE)}, NoSums()


def contrast_basis(k: int) -> Floats:
    """Return an orthonormal basis (K, K − 1) of the vectors whose sum is 0."""
    basis: Floats = np.linalg.qr(np.eye(k) - 1 / k)[0][:, : k - 1]
    return basis


def _contrasts(tile: Tile) -> Iterator[tuple[slice, Floats, Floats, Floats]]:
    """Yield parts of a tile's columns, their contrasts (c, K − 1), the covariances of these, and p̄(1 − p̄) (c,)."""
    P, curvature = tile.state["P"], tile.state["curvature"]
    k = len(P)
    basis, (first, second) = contrast_basis(k), np.tril_indices(k)
    for start in range(0, P.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        C = np.empty((P[:, part].shape[1], k, k))
        C[:, first, second] = C[:, second, first] = curvature[:, part].T
        C += (_RIDGE * np.trace(C, axis1=1, axis2=2) / k + np.finfo(float).tiny)[:, None, None] * np.eye(k)
        mean = P[:, part].mean(axis=0)
        yield part, P[:, part].T @ basis, basis.T @ np.linalg.inv(C) @ basis, mean * (1 - mean)


def expected_frequencies(k: int) -> Solver[Floats | None]:
    """Return the expected frequencies (K, m), from the tiles' arrays "P" and "curvature".

    Return None if the sampling errors exceed the differences between components in a direction: Φ has no estimate there, and all new rows
    would be placed in the middle. Errors by the curvature are too large for rare alleles, whose frequencies lie at a bound.
    """
    if k == 1:
        return (yield from read_tiles("P", np.dtype(np.float64)))
    sums = yield from step_tiles(Contrasts())
    covariance = (sums.outer - sums.noise) / sums.scale
    if np.linalg.eigvalsh(covariance)[0] <= 0:
        return None
    yield from step_tiles(Calibrate(covariance))
    return (yield from read_tiles("expected", np.dtype(np.float64)))
