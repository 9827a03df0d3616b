"""Sums of items by groups of rows, for differences of the items and covariances within the groups, with replicates for the jackknife.

Shapes: n rows, m items, p columns of the regressors Z, L groups, g contrasts of a group with the first, G parts of the rows, k factors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Withheld

Array = NDArray[np.float64]
N_LABELS = 3
"""Columns of the covariates before Z: the group of the row, −1 for none, its part, and its weight."""


@dataclass(frozen=True)
class _Rows:
    """The rows of a block that are in a group."""

    groups: NDArray[np.intp]
    parts: NDArray[np.intp]
    weights: Array
    Z: Array
    """(rows, p)."""
    values: Array
    """(rows, m); 0 where missing."""
    observed: Array
    """(rows, m): 1 or 0."""


def _rows(block: Block) -> _Rows:
    assert block.covariates is not None, "the covariates hold groups, parts, weights and regressors"
    C = block.covariates
    kept = np.flatnonzero((C[:, 0] >= 0) & (C[:, 2] > 0))
    C, values = C[kept], block.values[kept]
    missing = np.isnan(values)
    codes = C[:, :2].astype(np.intp)
    return _Rows(codes[:, 0], codes[:, 1], C[:, 2], C[:, N_LABELS:], np.where(missing, 0.0, values), 1.0 - missing)


@dataclass
class NormalEquations(PartialSums, name="item_regressions", disclosure=Withheld("has not been reviewed for single rows")):
    """Normal equations of the weighted regression of each item on Z, from the rows with an answer to it."""

    gram: NDArray[Any]
    """Σ w z zᵀ (m, p, p)."""
    products: NDArray[Any]
    """Σ w z x (m, p), x an answer minus the item's shift."""


@dataclass(frozen=True)
class NormalEquationsPass(Pass[BlockState, Array, NormalEquations]):
    """The normal equations, given the broadcast shifts of the items (m)."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: Array) -> tuple[BlockState, NormalEquations]:
        rows = _rows(block)
        weighted = rows.Z * rows.weights[:, None]
        squares = (weighted[:, :, None] * rows.Z[:, None, :]).reshape(len(weighted), -1)
        gram = (rows.observed.T @ squares).reshape(-1, *2 * (rows.Z.shape[1],))
        return state, NormalEquations(gram, ((rows.values - broadcast) * rows.observed).T @ weighted)


@dataclass
class ResidualSums(PartialSums, name="item_residuals", disclosure=Withheld("has sums by group, which few rows may be in")):
    """Sums of the residuals r of the regressions."""

    scores: NDArray[Any]
    """Σ w z r by part (G, p, m)."""
    weights: NDArray[Any]
    """Σ w of the answers by group and part (L, G, m)."""
    cross: NDArray[Any]
    """Σ w r_i r_j by group and part (L, G, m, m)."""
    pairs: NDArray[Any]
    """Σ w of the rows with both answers (L, G, m, m); (L, G, 1, 1) without missing answers."""


@dataclass(frozen=True)
class ResidualsPass(Pass[BlockState, tuple[Array, Array], ResidualSums]):
    """The sums of the residuals, given the broadcast shifts (m) and coefficients (m, p)."""

    dtype: np.dtype[Any]
    n_groups: int
    parts: tuple[int, int] | None
    """The range of parts whose sums are taken separately; None for all rows as one part."""
    complete: bool
    """Whether no answer is missing."""

    def step(self, block: Block, state: BlockState, broadcast: tuple[Array, Array]) -> tuple[BlockState, ResidualSums]:
        rows, (shift, B) = _rows(block), broadcast
        m, p = B.shape
        first, last = (0, 1) if self.parts is None else self.parts
        parts = np.zeros_like(rows.parts) if self.parts is None else rows.parts - first
        size, L = last - first, self.n_groups
        r = (rows.values - shift - rows.Z @ B.T) * rows.observed
        pair_shape = (1, 1) if self.complete else (m, m)
        sums = ResidualSums(*(block.work.zeros(shape) for shape in ((size, p, m), (L, size, m), (L, size, m, m), (L, size, *pair_shape))))
        inside = (parts >= 0) & (parts < size)
        codes = np.where(inside, rows.groups * size + parts, L * size)
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(L * size + 1))
        for code in np.flatnonzero(np.diff(bounds)):
            chosen = order[bounds[code] : bounds[code + 1]]
            group, part = divmod(int(code), size)
            w, R, seen = rows.weights[chosen], r[chosen], rows.observed[chosen]
            weighted = R * w[:, None]
            sums.scores[part] += rows.Z[chosen].T @ weighted
            sums.weights[group, part] = w @ seen
            np.matmul(weighted.T, R, out=sums.cross[group, part])
            sums.pairs[group, part] = w.sum() if self.complete else (seen * w[:, None]).T @ seen
        return state, sums


@dataclass(frozen=True, eq=False)
class Curves:
    """The traits against which the curvature of the items is taken, of one contrast."""

    group: int
    """Number of the group; the other one is group 0."""
    scale: Array
    """Units of the items (m)."""
    loadings: Array
    """Λ (m, k), of factors with unit variance."""
    precision: Array
    """Weights 1/ψ of the items (m)."""


@dataclass
class CurvatureSums(PartialSums, name="item_curvatures", disclosure=Withheld("has sums by group, which few rows may be in")):
    """Sums of Σ w r_j t_j² by contrast, group and part (g, 2, G, m), t_j the common part of item j without its own answer."""

    sums: NDArray[Any]


@dataclass(frozen=True)
class CurvaturePass(Pass[BlockState, tuple[Array, Array, tuple[Curves, ...]], CurvatureSums]):
    """The sums of the curvature, given the broadcast shifts (m), coefficients (m, p) and curves of each contrast.

    With Bartlett's scores y = (ΛᵀPΛ)⁻¹ΛᵀPr and h_j = p_j λ_jᵀ(ΛᵀPΛ)⁻¹λ_j, the common part that the other items predict is
    t_j = (λ_jᵀy − h_j r_j)/(1 − h_j). A missing answer takes its expectation given the row's other answers.
    """

    dtype: np.dtype[Any]
    n_parts: int

    def step(self, block: Block, state: BlockState, broadcast: tuple[Array, Array, tuple[Curves, ...]]) -> tuple[BlockState, CurvatureSums]:
        rows, (shift, B, curves) = _rows(block), broadcast
        r = (rows.values - shift - rows.Z @ B.T) * rows.observed
        sums = block.work.zeros((len(curves), 2, self.n_parts, len(B)))
        for contrast, curve in enumerate(curves):
            for side, group in enumerate((0, curve.group)):
                member = np.flatnonzero(rows.groups == group)
                products = _curvature(r[member] / curve.scale, rows.observed[member], curve) * rows.weights[member, None]
                np.add.at(sums[contrast, side], rows.parts[member], products)
        return state, CurvatureSums(sums)


def _curvature(r: Array, observed: Array, curve: Curves) -> Array:
    """Return r_j t_j² of each row and item (rows, m)."""
    L, p = curve.loadings, curve.precision
    weighted = L * p[:, None]
    inverse = np.linalg.pinv(L.T @ weighted, rcond=1e-10, hermitian=True)  # a factor may have no loadings
    incomplete = np.flatnonzero(observed.min(axis=1, initial=1) == 0)
    filled = r
    if len(incomplete):
        information = np.einsum("nj,jk,jl->nkl", observed[incomplete], weighted, L, optimize=True) + np.eye(L.shape[1])
        scores = np.linalg.solve(information, (r[incomplete] @ weighted)[..., None])[..., 0]
        filled = r.copy()
        filled[incomplete] += (1 - observed[incomplete]) * (scores @ L.T)
    h = np.minimum(np.einsum("jk,kl,jl->j", weighted, inverse, L), MOST_LEVERAGE)
    t = (filled @ weighted @ inverse @ L.T - h * filled) / (1 - h)
    products: Array = r * t**2
    return products


MOST_LEVERAGE = 0.98
"""Largest share of an item in its own score that leaves something to the others."""
