"""Passes of CP: squares of the slices, an iteration over mode 1 with the sums for the other modes, rows at their optimum."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Released, Workspace
from dfact.kernels.cp import fill_missing, slice_residuals
from dfact.kernels.elastic_net import column_updates, row_optima
from dfact.kernels.entries import filled
from dfact.models.cp.problem import ElasticNet, RowPrior, extrapolated_squares, penalty_norms, row_squares, unfold

FACTORS, REFINED = "factors", "refined"
GRAM_COLUMNS = 1 << 9  # columns whose products of loadings are held at once
EPSILON = 1e-9  # largest absolute value that counts as 0 (equation 37)

_SWEEPS = 5  # coordinate sweeps of a row in an iteration: cheap compared with the products with the data
_ROW_TOLERANCE, _START_TOLERANCE = 1e-12, 1e-2  # of rows at their optimum, and of those that column updates will move
_TILE_PRODUCTS = 10**6  # multiplications up to which OpenBLAS multiplies matrices without packing them first
_TILE_BYTES, _TILE_ROWS = 3 << 17, 32  # of a tile of the data, which stays in cache beside its target; fewer rows make slow products


@dataclass
class UnfoldingGrams(
    PartialSums, name="cp_unfolding_grams", disclosure=Released("products of the data's columns, summed over rows", products=True)
):
    """Gram matrices XX ᵀ of the unfoldings of modes 2, …, N, flat, one after the other."""

    grams: NDArray[Any]


@dataclass(frozen=True)
class UnfoldingsPass(Pass[BlockState, None, UnfoldingGrams]):
    """Gram matrices of the unfoldings, with 0 for missing entries."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, UnfoldingGrams]:
        X = filled_rows(block).reshape(block.values.shape)
        grams = []
        for n in range(1, X.ndim):
            U = np.moveaxis(X, n, 0).reshape(X.shape[n], -1)
            grams.append((U @ U.T).ravel())
        return state, UnfoldingGrams(np.concatenate(grams))


def filled_rows(block: Block) -> NDArray[Any]:
    """Return a copy of the unfolding along mode 1 with 0 for missing entries, in the block's working memory."""
    V = unfold(block)
    return filled(V, out=block.work.array("filled", V.shape, V.dtype))


@dataclass(frozen=True)
class RowStart:
    """Initial factors of mode 1: at their optimum given the other modes, or the last R covariates."""

    rank: int
    net: ElasticNet
    H: NDArray[Any] | None
    """Products of the other modes' factors (R, I_2⋯I_N), in double precision; None for factors from the covariates."""

    def factors(self, block: Block, variances: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return A (R, rows), given the variances (rows,); rows without any entry are 0."""
        if self.H is not None:
            return np.ascontiguousarray(row_solutions(block, filled_rows(block), self.H, self.net, variances, _START_TOLERANCE)[0], dtype)
        assert block.covariates is not None
        V, A = unfold(block), block.covariates[:, -self.rank :].T.astype(dtype)
        A[:, np.isnan(V, out=block.work.array("missing", V.shape, bool)).all(axis=1)] = 0
        return np.ascontiguousarray(np.abs(A) if self.net.nonnegative else A, dtype)


@dataclass
class SliceSums(PartialSums, name="cp_slices", disclosure=Released("sums of squares of the data's slices")):
    columns: NDArray[Any]
    """Σ X² over the rows (m,)."""
    rows: NDArray[Any]
    """Σ of the rows' squares, extrapolated to their missing entries."""


@dataclass(frozen=True)
class SlicesPass(Pass[BlockState, None, SliceSums]):
    """Sums for the estimate of the prior."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, SliceSums]:
        squares, counts, columns = row_squares(block)
        return state, SliceSums(columns, np.asarray(extrapolated_squares(squares, counts, len(columns)).sum()))


@dataclass
class Sums(PartialSums, name="cp", disclosure=Released("products of row factors with one another and with the data, summed over rows")):
    """Sums of an iteration over the rows."""

    gram: NDArray[Any]
    """A⁽¹⁾ᵀA⁽¹⁾ (R, R) with the new A⁽¹⁾."""
    cross: NDArray[Any]
    """Target contracted with the new A⁽¹⁾ (R, I_2⋯I_N)."""
    squares: NDArray[Any]
    """‖Δ∘(Z − X)‖² of the factors at the beginning of the pass."""
    sizes: NDArray[Any]
    """aᵀR₁⁻¹a and ‖a‖₁ of A⁽¹⁾ at the beginning of the pass, and of the new A⁽¹⁾ (2, 2, R)."""


@dataclass(frozen=True)
class Point:
    """Point at which a pass begins: products of the other modes' factors, and the change of mode 1 that leads there."""

    H: NDArray[Any]
    """(R, I_2⋯I_N)."""
    gram: NDArray[Any]
    """HHᵀ (R, R)."""
    scales: NDArray[Any]
    """Scales of A⁽¹⁾ (R,) to apply first."""
    weight: float = 0.0
    """Share of the last step by which A⁽¹⁾ is extrapolated."""
    back: bool = False
    """Whether A⁽¹⁾ is first reset to its value before the last pass extrapolated it."""


def extrapolate(A: NDArray[Any], previous: NDArray[Any], weight: float, *, nonnegative: bool) -> NDArray[Any]:
    """Return A + weight · (A − previous), with the zeros of A, and clipped at 0 if ``nonnegative``."""
    point = np.where(A == 0, A, A + A.dtype.type(weight) * (A - previous))
    return np.maximum(point, 0, out=point) if nonnegative else point


@dataclass
class CPState(RowFactors):
    """State of mode 1: its factors A (R, rows), and what their updates need."""

    variances: NDArray[Any]
    """R_1 (1, rows)."""
    norm: NDArray[np.float64]
    """‖Z‖² (1) of a block without missing entries, with which the model need not be formed; NaN for the others."""
    previous: NDArray[Any] | None = None
    """The factors (R, rows) from which the last pass extrapolated."""
    support: NDArray[np.uint8] | None = None
    """1 where the factors of a refinement may differ from 0 (R, rows)."""
    refined: NDArray[Any] | None = None
    """Factors of the refinement (R, rows)."""

    @classmethod
    def of_block(cls, block: Block, A: NDArray[Any], variances: NDArray[Any]) -> Self:
        """Return the state of a block with these factors (R, rows) and variances (rows,)."""
        V = unfold(block)
        return cls(A, variances[None], np.atleast_1d(np.einsum("ij,ij->", V, V, dtype=np.float64)))

    def refinement(self) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Return the factors of the refinement and their support."""
        assert self.refined is not None, "no support was set"
        assert self.support is not None, "no support was set"
        return self.refined, self.support


@dataclass(frozen=True)
class FillPass(Pass[CPState, Point, Sums]):
    """One iteration over mode 1. Missing entries are filled in by the model, which gives a quadratic above the
    objective that touches it at the current point; then follow column updates of the rows, and the sums for the other modes.

    ``key`` names the factors to update; "refined" ones are updated where the state's ``support`` is 1.
    """

    net: ElasticNet
    prior: RowPrior
    row_start: RowStart
    dtype: np.dtype[Any]
    key: str = FACTORS
    move: bool = True
    """Whether the factors are updated; otherwise only the squares are summed."""
    state_type = CPState

    def start(self, block: Block) -> CPState:
        variances = self.prior.variances(block, self.dtype)
        return CPState.of_block(block, self.row_start.factors(block, variances, self.dtype), variances)

    def step(self, block: Block, state: CPState, broadcast: Point) -> tuple[CPState, Sums]:
        V, H, gram, variances, work = unfold(block), broadcast.H, broadcast.gram, state.variances[0], block.work
        A = state.refinement()[0] if self.key == REFINED else state.factors
        if broadcast.back:
            assert state.previous is not None, "no pass has extrapolated the factors"
            A[...] = state.previous
        A *= broadcast.scales[:, None]
        if self.move:
            if state.previous is None:
                state.previous = A.copy()
            previous = state.previous
            point = extrapolate(A, previous, broadcast.weight, nonnegative=self.net.nonnegative) if broadcast.weight > 0 else A
            previous[...], A[...] = A, point
        initial_sizes = penalty_norms(A, variances)
        if np.isnan(state.norm[0]):
            squares, cross = self._filled(V, A, H, gram, state, work)
        else:
            squares, cross = self._complete(V, A, H, gram, state, work)
        return state, Sums(A @ A.T, cross, np.asarray(squares), np.stack([initial_sizes, penalty_norms(A, variances)]))

    def _filled(
        self, V: NDArray[Any], A: NDArray[Any], H: NDArray[Any], gram: NDArray[Any], state: CPState, work: Workspace
    ) -> tuple[float, NDArray[Any]]:
        """Return the squares and the contracted target of a block with missing entries, summed by tiles of rows."""
        squares, cross, ridge = 0.0, work.zeros(H.shape, H.dtype), self._ridge(state)
        groups = [(columns.start, H[:, columns], cross[:, columns]) for columns in column_groups(V, len(H))]
        for rows in tiles(V):
            X, values = A[:, rows], V[rows]
            targets, products = [], []
            for i, (first, h, _) in enumerate(groups):
                B = np.matmul(X.T, h, out=work.array(f"target {i}", (len(values), h.shape[1]), h.dtype))
                squares += fill_missing(values, B, first)
                targets.append(B)
                if self.move:
                    products.append(h @ B.T)
            if self.move:
                self._update(A, reduce(np.add, products), gram, ridge, state, rows)
                for B, (_, h, total) in zip(targets, groups, strict=True):
                    np.add(total, np.matmul(X, B, out=work.array("part", h.shape, h.dtype)), out=total)
        return squares, cross

    def _complete(
        self, V: NDArray[Any], A: NDArray[Any], H: NDArray[Any], gram: NDArray[Any], state: CPState, work: Workspace
    ) -> tuple[float, NDArray[Any]]:
        """Return the squares and the contracted target of a block without missing entries, whose model need not be formed."""
        cross, ridge = work.zeros(H.shape, H.dtype), self._ridge(state)
        groups = [(columns, H[:, columns], cross[:, columns]) for columns in column_groups(V, len(H))]
        # Differences of large numbers: in double precision.
        wide, product = A.astype(np.float64), 0.0
        for rows in tiles(V):
            U = reduce(np.add, (h @ V[rows, columns].T for columns, h, _ in groups))
            product += float(np.vdot(wide[:, rows], U.astype(np.float64)))
            if self.move:
                self._update(A, U, gram, ridge, state, rows)
                for columns, _, total in groups:
                    np.add(total, work.matmul(A[:, rows], V[rows, columns], "part"), out=total)
        return max(0.0, float(state.norm[0] - 2 * product + np.vdot(wide @ wide.T, gram.astype(np.float64)))), cross

    def _ridge(self, state: CPState) -> NDArray[Any]:
        return self.net.ridge(state.variances[0]).astype(self.dtype)

    def _update(self, A: NDArray[Any], U: NDArray[Any], gram: NDArray[Any], ridge: NDArray[Any], state: CPState, rows: slice) -> None:
        X = np.ascontiguousarray(A[:, rows])
        support = np.ascontiguousarray(state.refinement()[1][:, rows]).astype(self.dtype) if self.key == REFINED else X[:0]
        column_updates(X, U, gram, ridge[rows], self.net.l1, self.net.nonnegative, support, _SWEEPS)
        A[:, rows] = X


def tiles(V: NDArray[Any]) -> Iterator[slice]:
    """Split the rows into groups of about equal size whose entries stay in cache."""
    n, row_bytes = len(V), V.itemsize * V.shape[1]
    count = -(-n // max(_TILE_ROWS, _TILE_BYTES // row_bytes))
    step = -(-n // count)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def column_groups(V: NDArray[Any], k: int) -> list[slice]:
    """Split the columns into groups of about equal size, such that products of a tile's rows with k components are small."""
    rows, m = next(tiles(V)).stop, V.shape[1]
    step = -(-m // -(-rows * m * k // _TILE_PRODUCTS))
    return [slice(start, min(start + step, m)) for start in range(0, m, step)]


@dataclass
class SupportCounts(PartialSums, name="cp_support", disclosure=Released("numbers of row factors above zero")):
    """Counts per component over the entries of mode 1 (R,)."""

    zeros: NDArray[Any]
    changed: NDArray[Any]
    """Entries that have become 0 or nonzero since the previous count."""


@dataclass(frozen=True)
class SupportPass(Pass[CPState, None, SupportCounts]):
    """Counts zeros, and sets the state ``support`` and, as the start of a refinement, ``refined``."""

    dtype: None = None
    state_type = CPState

    def step(self, block: Block, state: CPState, broadcast: None) -> tuple[CPState, SupportCounts]:
        support = (np.abs(state.factors) > EPSILON).astype(np.uint8)
        previous = np.ones_like(support) if state.support is None else state.support
        counts = SupportCounts((support == 0).sum(axis=1), (support != previous).sum(axis=1))
        return replace(state, support=support, refined=state.factors * support), counts


@dataclass
class RowSums(PartialSums, name="cp_rows", disclosure=Released("sums of squared residuals")):
    squares: NDArray[Any]
    norm: NDArray[Any]
    """‖Δ∘Z‖²."""
    sizes: NDArray[Any]
    gram: NDArray[Any]
    """A⁽¹⁾ᵀA⁽¹⁾ (R, R)."""
    unconverged: NDArray[Any]
    """Number of rows that are not at their optimum to the tolerance."""


@dataclass(frozen=True)
class RowsPass(Pass[BlockState, NDArray[np.float64], RowSums]):
    """Factors of every row at their optimum given the other modes, on the row's observed entries, independent of the previous state."""

    net: ElasticNet
    prior: RowPrior
    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: NDArray[np.float64]) -> tuple[RowFactors, RowSums]:
        """``broadcast`` is H (R, I_2⋯I_N) in double precision."""
        X, _, sums = self.solve(block, broadcast)
        return RowFactors(X.astype(self.dtype)), sums

    def solve(
        self, block: Block, H: NDArray[np.float64], items: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], RowSums]:
        """Return the factors (R, rows), the data with 0 for missing entries (rows, m), and the sums.

        Figures of the residuals of each slice of mode 2 are added to ``items`` (5, I_2).
        """
        V, work, wide = unfold(block), block.work, np.dtype(np.float64)
        variances = self.prior.variances(block, wide)
        Z = work.converted("wide", filled_rows(block), wide)
        X, unconverged = row_solutions(block, Z, H, self.net, variances, _ROW_TOLERANCE)
        norm = np.einsum("ij,ij->", Z, Z)
        squares = 0.0
        for rows in tiles(V):
            model = work.matmul(X[:, rows].T, H, "target")
            if items is not None:
                slice_residuals(V[rows], model, items)
            squares += fill_missing(V[rows], model)
        return X, Z, RowSums(np.asarray(squares), norm, penalty_norms(X, variances), X @ X.T, np.asarray(unconverged))


def row_solutions(
    block: Block, Z: NDArray[Any], H: NDArray[np.float64], net: ElasticNet, variances: NDArray[Any], tolerance: float
) -> tuple[NDArray[np.float64], int]:
    """Return the factors (R, rows) of each row at its optimum given the other modes' products H (R, m), on its observed entries.

    Products with the data Z (rows, m), 0 where missing, are computed in its precision. Returns also the number of rows that are
    not at their optimum to the tolerance.
    """
    V, work = unfold(block), block.work
    # Scale to a length of about 1, as products of four numbers may be too large for single precision.
    sizes = np.abs(H).max(axis=1)
    sizes = np.ldexp(1.0, np.frexp(np.where(sizes > 0, sizes, 1.0))[1])
    unit = (H / sizes[:, None]).astype(Z.dtype)
    U = sizes[:, None] * work.matmul(unit, Z.T, "linear")
    gaps = np.isnan(V, out=work.array("missing", V.shape, bool))
    grams = row_grams(np.logical_not(gaps, out=gaps), unit, work) if gaps.any() else (unit @ unit.T)[None].astype(np.float64)
    grams = sizes[:, None] * grams * sizes
    X = np.zeros_like(U)
    return X, row_optima(X, U, grams, net.ridge(variances).astype(np.float64), net.l1, net.nonnegative, tolerance)


def row_grams(observed: NDArray[np.bool_], H: NDArray[Any], work: Workspace) -> NDArray[np.float64]:
    """Return Σ h_j h_jᵀ over the observed entries j of each row (rows, R, R), computed as mask times products of loadings.

    The products are computed in the precision of H.
    """
    k, (low, high) = len(H), np.tril_indices(len(H))
    packed = work.array("packed", (len(observed), len(low)), H.dtype)
    packed.fill(0)
    for start in range(0, H.shape[1], GRAM_COLUMNS):
        part = H[:, start : start + GRAM_COLUMNS]
        products, others = (work.array(name, (len(low), part.shape[1]), H.dtype) for name in ("products", "others"))
        np.take(part, low, axis=0, out=products, mode="clip")
        products *= np.take(part, high, axis=0, out=others, mode="clip")
        mask = work.converted("mask", observed[:, start : start + GRAM_COLUMNS], H.dtype)
        packed += work.matmul(mask, products.T, "sums")
    grams = work.array("grams", (len(observed), k, k), np.float64)
    grams[:, low, high] = grams[:, high, low] = packed
    return grams
