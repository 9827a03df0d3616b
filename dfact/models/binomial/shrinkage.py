"""Frequencies on which new rows are projected: those of the places where the likelihood puts rows of a single component.

Estimates p̂_j (K,) of a column differ between components by more than the true p_j, as they have sampling errors with covariances V_j. New
rows, which had no part in these errors, are therefore placed nearer to the middle. A row of memberships q, whose expected slope is 0 at the
true frequencies, has at the estimates, to second order in the errors,

    S(q) = Σ_j M [p̂_j qᵀV_jq (1 − 2f)/(f(1 − f))² − V_jq/(f(1 − f))],   f = qᵀp̂_j,

and moves by H(q)⁻¹S(q) within the contrasts of memberships, H(q) = Σ_j M p̂_j p̂_jᵀ/(f(1 − f)). The first term counts for rare alleles: an
allele of a single component is never observed with a bias, since the slope q(p − p̂)/(q p̂) is linear in the errors, and the second term
alone would correct for one. For populations that drift from a common one with frequencies of all sizes, the second term is nearly all.

The movement is computed at one q for each component, the composition of its typical rows, and extended linearly: a row q is placed at
Tᵀq. With the frequencies T p̂_j in place of p̂_j its place is q. V_j is the inverse of the expected information. The observed one has no
inverse that would state the errors of a frequency at a bound, where its slope is not 0: an allele that no row of the component has would
count as one of large error, and all differences of rare alleles as errors. Compare regression calibration (Carroll et al. 2006), which
takes the frequencies themselves as normally distributed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import StateArrays
from dfact.engine.passes import Block, PartialSums, Released, TiledPass, Withheld
from dfact.engine.requests import Solver, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from dfact.kernels.binomial import EDGE
from dfact.models.binomial.codes import Codes
from dfact.models.binomial.passes import Frequencies, Memberships
from dfact.models.binomial.row_block import RowBlock

_COLUMNS = 512  # whose matrices are in memory together
_RIDGE = 1e-8  # of an information matrix, relative to its mean diagonal
_PUREST = 0.95  # of the points at which places are computed: nearer to a corner, frequencies at a bound rule their expansion
_BOUND = 2 * EDGE  # up to which an estimate is at its bound

Floats = NDArray[np.float64]


@dataclass
class InformationSums(
    PartialSums, name="binomial_information", disclosure=Released("expected curvatures of allele frequencies, summed over rows")
):
    information: NDArray[Any]
    """Σ q qᵀ M/(f(1 − f)) of each column over its observed entries, as lower triangles (K(K+1)/2, m)."""


@dataclass(frozen=True)
class InformationPass(TiledPass[Memberships, Frequencies, InformationSums]):
    """Expected information on the frequencies, with the memberships in the state and the broadcast P; nothing moves."""

    codes: Codes
    k: int
    dtype: np.dtype[Any]
    memberships: str = "factors"
    """Name of the state array with the memberships that belong to P."""
    state_type = Memberships
    changes_state = False
    tiled = ("information",)

    def zeros(self, n_columns: int) -> InformationSums:
        return InformationSums(np.zeros((self.k * (self.k + 1) // 2, n_columns)))

    def accumulate(self, block: Block, state: Memberships, broadcast: Frequencies, total: InformationSums) -> Memberships:
        rows, factors = RowBlock(self.codes(block), broadcast[0], self.codes.trials, block.work), state.arrays()[self.memberships].T
        narrow = np.where(np.isnan(factors), 0, factors).astype(self.dtype)
        (first, second), trials = rows.pairs, self.codes.trials
        products = np.ascontiguousarray((narrow[:, first] * narrow[:, second]).T)
        for tile, _ in rows.tiles:
            F = np.clip(rows.expected(narrow, tile), EDGE, 1 - EDGE)
            weights = np.where(rows.G[:, tile] <= trials, trials / (F * (1 - F)), 0).astype(self.dtype, copy=False)
            total.information[:, tile] += rows.work.matmul(products, weights, "sums")
        return state


@dataclass
class PlaceSums(PartialSums, name="binomial_places", disclosure=Withheld("has not been reviewed for single rows")):
    """Sums over the columns, at each of some memberships."""

    slope: NDArray[Any]
    """S (K, K)."""
    curvature: NDArray[Any]
    """H (K, K, K)."""


@dataclass(frozen=True, eq=False)
class Place:
    """Sums over a tile with the frequencies "P"."""

    points: Floats
    """Memberships (K, K), by rows."""
    trials: int
    expected: bool
    """Whether the last pass has summed the expected information. Otherwise the state has the observed "curvature"; frequencies at a
    bound then count as known."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        k = len(self.points)
        slope, curvature = np.zeros((k, k)), np.zeros((k, k, k))
        for P, V in self._errors(tile):
            for i, q in enumerate(self.points):
                f = np.clip(q @ P, EDGE, 1 - EDGE)
                weights, Vq = self.trials / (f * (1 - f)), V @ q
                slope[i] += P @ (weights * (Vq @ q) * (1 - 2 * f) / (f * (1 - f))) - weights @ Vq
                curvature[i] += (P * weights) @ P.T
        return {**tile.state}, PlaceSums(slope, curvature)

    def _errors(self, tile: Tile) -> Iterator[tuple[Floats, Floats]]:
        """Yield the frequencies (K, c) of parts of the columns, and the covariances of their errors (c, K, K)."""
        k, m = tile.state["P"].shape
        information = tile.sums["information"] if self.expected else tile.state["curvature"]
        first, second = np.tril_indices(k)
        for start in range(0, m, _COLUMNS):
            P = tile.state["P"][:, start : start + _COLUMNS]
            C, free = np.empty((P.shape[1], k, k)), np.ones((P.shape[1], k), bool)
            C[:, first, second] = C[:, second, first] = information[:, start : start + _COLUMNS].T
            if not self.expected:
                free = ((P > _BOUND) & (P < 1 - _BOUND)).T
                C = np.where(free[:, :, None] & free[:, None, :], C, ~free[:, :, None] * np.eye(k))
            C += (_RIDGE * np.trace(C, axis1=1, axis2=2) / k + np.finfo(float).tiny)[:, None, None] * np.eye(k)
            yield P, np.asarray(np.linalg.inv(C) * (free[:, :, None] & free[:, None, :]), np.float64)


def contrast_basis(k: int) -> Floats:
    """Return an orthonormal basis (K, K − 1) of the vectors whose sum is 0."""
    basis: Floats = np.linalg.qr(np.eye(k) - 1 / k)[0][:, : k - 1]
    return basis


def typical_memberships(moments: Floats) -> Floats:
    """Return the memberships (K, K), by rows, of typical rows of each component.

    The share of the component is its mean over rows weighted with its cube, from the sums of the first four powers of memberships
    (4, K), and at most 0.95; the other components have equal shares.
    """
    k = moments.shape[1]
    purity = np.divide(moments[3], moments[2], out=np.ones(k), where=moments[2] > 0)
    share = np.clip(purity, (1 + 1 / k) / 2, _PUREST)
    return np.asarray(np.where(np.eye(k, dtype=bool), share[:, None], (1 - share[:, None]) / max(k - 1, 1)), np.float64)


def find_places(points: Floats, trials: int, information: InformationPass | None = None) -> Solver[Floats | None]:
    """Return where the likelihood, at the estimates "P" of the tiles, places rows of each component alone: T (K, K), by rows.

    ``points`` (K, K) are the memberships at which places are computed. ``information`` is the pass that sums the expected information,
    with the memberships in the state; without one the tiles' "curvature" stands for it. Return None if rows of some mixtures of
    components cannot be told from each other, as the errors are as large as the differences.
    """
    k = len(points)
    if k == 1:
        return np.ones((1, 1))
    if information is not None:
        yield from run(information, TileBroadcast("P", information.dtype))
    sums = yield from step_tiles(Place(points, trials, information is not None))
    basis, moved = contrast_basis(k), points.copy()
    for i, (slope, curvature) in enumerate(zip(sums.slope, sums.curvature, strict=True)):
        moved[i] += basis @ np.linalg.solve(basis.T @ curvature @ basis, basis.T @ slope)
    places = np.asarray(np.linalg.solve(points, moved), np.float64)
    return places if np.linalg.eigvals(places).real.min() > 0 else None
