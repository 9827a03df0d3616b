"""Growth of CP: the surrogate of the slices of mode 1 that a model has seen, and the update by new slices.

With the factors of mode 1 fixed, the objective of these slices is a function of the other modes that follows from sums over them. It
lies above the objective with the best factors of mode 1, and touches it at the modes of the last pass (Mairal et al. 2010). An update
minimizes this function plus the objective of the new slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, Pass, Released
from dfact.engine.requests import Solver, run
from dfact.kernels.elastic_net import row_optima
from dfact.models.cp.passes import GRAM_COLUMNS, RowsPass, RowSums, SlicesPass
from dfact.models.cp.problem import (
    ElasticNet,
    Factors,
    Prior,
    contract,
    estimate_prior,
    extrapolated_squares,
    grams_product,
    khatri_rao,
    penalty_norms,
    row_squares,
    unfold,
)
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import AtLeast, Shape
from dfact.models.growth.baseline import ITEM_SUMS, Baseline, factor_sums
from dfact.models.growth.halves import HALVES, OWN_TOLERANCE, ROUNDS, ROWS_PER_FACTOR, TOLERANCE, Half, compare_halves
from dfact.models.growth.record import Gain
from dfact.progress import Reporter, relative_change

LARGEST = 1 << 22
"""Numbers in the Gram matrices of all entries of a slice, which slices with missing entries need, up to which a fit keeps them."""
_INNER = 5  # rounds over the other modes between two passes, which read no data
_TOLERANCE = 1e-12  # of the factors of the other modes
Array = NDArray[Any]


def pairs_size(shape: tuple[int, ...], k: int) -> int:
    """Return how many numbers the Gram matrices of all entries of a slice have."""
    return prod(shape[1:]) * (k * (k + 1) // 2)


@dataclass
class GrowthSums(
    RowSums,
    Baseline,
    name="cp_growth",
    disclosure=Released("products of row factors with one another and with the data, summed over rows; moments of row factors"),
):
    """Sums of slices at their optimum, from which a model grows. The slices of mode 2 are the items."""

    cross: Array
    """A⁽¹⁾ᵀ(Δ∘Z) (R, I_2⋯I_N)."""
    grams: Array
    """Σ δ a aᵀ over the slices, lower triangles row by row, for each entry of a slice (R(R+1)/2, I_2⋯I_N), or one for all."""
    columns: Array
    """Σ Z² of each entry of a slice (I_2⋯I_N)."""
    rows_squares: Array
    """Σ of the slices' squares, extrapolated to their missing entries."""


@dataclass(frozen=True)
class GrowthPass(Pass[BlockState, Array, GrowthSums]):
    """Every slice at its optimum given the other modes, with the sums from which the model grows."""

    rows: RowsPass
    items: int
    """Number of slices of mode 2."""
    by_entry: bool
    """Whether entries may be missing, so that each entry of a slice has a Gram matrix of its own."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def step(self, block: Block, state: BlockState, broadcast: Array) -> tuple[RowFactors, GrowthSums]:
        """``broadcast`` is H (R, I_2⋯I_N) in double precision."""
        items = np.zeros((ITEM_SUMS, self.items))
        X, Z, sums = self.rows.solve(block, broadcast, items)
        squares, counts, columns = row_squares(block)
        total = extrapolated_squares(squares, counts, len(columns)).sum()
        grams = _entry_grams(block, X) if self.by_entry else (X @ X.T)[np.tril_indices(len(X))][:, None]
        figures = factor_sums(X.T, np.ones(X.shape[1])) | {"items": items} | vars(sums)
        added = GrowthSums(**figures, cross=X @ Z, grams=grams, columns=columns, rows_squares=np.asarray(total))
        return RowFactors(X.astype(self.dtype)), added


def _entry_grams(block: Block, X: Array) -> Array:
    """Return Σ δ x xᵀ over the rows for each column (R(R+1)/2, m), computed as products of factors times the mask."""
    V, work, (low, high) = unfold(block), block.work, np.tril_indices(len(X))
    products, grams = X[low] * X[high], np.empty((len(low), V.shape[1]))
    for start in range(0, V.shape[1], GRAM_COLUMNS):
        part = slice(start, start + GRAM_COLUMNS)
        mask = work.converted("mask", ~np.isnan(V[:, part]), np.float64)
        grams[:, part] = products @ mask
    return grams


@dataclass(frozen=True, eq=False)
class SliceSurrogate:
    """The objective of the slices that a model has seen, with their factors fixed, as a function of the products H of the other modes.

    Its loss is ½(norm − 2⟨cross, H⟩ + Σ_j h_jᵀG_j h_j).
    """

    cross: Annotated[Array, Shape(("k", "slice_entries"))]
    """A⁽¹⁾ᵀ(Δ∘Z) (R, I_2⋯I_N)."""
    grams: Annotated[Array, Shape(("gram_entries", "gram_columns"))]
    """G_j (R(R+1)/2, I_2⋯I_N), lower triangles row by row; (R(R+1)/2, 1) of slices without missing entries."""
    norm: Annotated[float, AtLeast(0)]
    """‖Δ∘Z‖²."""
    sizes: Annotated[Array, Shape(("norms", "k"), low=0)]
    """aᵀR₁⁻¹a and ‖a‖₁ of A⁽¹⁾ (2, R)."""
    gram: Annotated[Array, Shape(("k", "k"))]
    """A⁽¹⁾ᵀA⁽¹⁾ (R, R)."""
    columns: Annotated[Array, Shape(("slice_entries",), low=0)]
    """Σ Z² of each entry of a slice (I_2⋯I_N)."""
    observed: Annotated[Array, Shape(("slice_entries",), low=0)]
    """Number of slices with this entry (I_2⋯I_N)."""
    rows_squares: Annotated[float, AtLeast(0)]
    """Σ of the slices' squares, extrapolated to their missing entries."""

    @classmethod
    def of(cls, sums: GrowthSums, dataset: Dataset) -> Self:
        """Return the surrogate of a dataset whose slices are at their optimum."""
        arrays = {name: np.asarray(getattr(sums, name), np.float64) for name in ("cross", "grams", "sizes", "gram", "columns")}
        observed = dataset.statistics.observed.astype(np.float64).ravel()
        return cls(**arrays, norm=float(sums.norm), observed=observed, rows_squares=float(sums.rows_squares))

    def plus(self, other: SliceSurrogate) -> Self:
        """Return the surrogate of both."""
        return type(self)(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def arranged(self, order: NDArray[np.intp], scales: Array) -> Self:
        """Return the surrogate after component ``order[i]`` of mode 1, times ``scales[i]``, becomes component i."""
        low, high = np.tril_indices(len(order))
        number = np.zeros((len(order), len(order)), np.intp)
        number[low, high] = number[high, low] = np.arange(len(low))
        return replace(
            self,
            cross=self.cross[order] * scales[:, None],
            grams=self.grams[number[order[low], order[high]]] * (scales[low] * scales[high])[:, None],
            sizes=self.sizes[:, order] * np.abs(np.stack([scales**2, scales])),
            gram=self.gram[np.ix_(order, order)] * np.multiply.outer(scales, scales),
        )

    def with_variances(self, factor: float) -> Self:
        """Return the surrogate after the variances R₁ are multiplied by a factor."""
        return replace(self, sizes=self.sizes / np.array([[factor], [1.0]]))

    def loss(self, H: Array) -> float:
        """Return the value at H (R, I_2⋯I_N) without penalties."""
        low, high = np.tril_indices(len(H))
        if self.grams.shape[1] == 1:
            products = (H @ H.T)[low, high][:, None]
            quadratic = np.vdot(np.where(low == high, 1.0, 2.0)[:, None] * self.grams, products)
        else:
            quadratic = sum(
                (1.0 if a == b else 2.0) * np.einsum("j,j,j->", g, H[a], H[b]) for g, a, b in zip(self.grams, low, high, strict=True)
            )
        return 0.5 * max(self.norm - 2 * float(np.vdot(self.cross, H)) + float(quadratic), 0.0)

    def prior(self, rank: int, n: int, slice_shape: tuple[int, ...]) -> Prior:
        """Return the estimate of the prior from all n slices."""
        squares, observed = (values.reshape(slice_shape) for values in (self.columns, self.observed))
        return estimate_prior(rank, (n, *slice_shape), squares, observed.astype(np.int64), self.rows_squares)


def update_others(others: Factors, sums: SliceSurrogate, net: ElasticNet, prior: Prior, share: float = 1.0) -> None:
    """Bring each of the other modes (R, I_n) in turn to its optimum given the rest, a few times, in place.

    Their penalties are multiplied by ``share``.
    """
    low, high = np.tril_indices(len(others[0]))
    for _ in range(_INNER if len(others) > 1 else 1):
        for n, A in enumerate(others):
            if sums.grams.shape[1] == 1:
                grams = grams_product([_unpack(sums.grams, len(A))[0], *(B @ B.T for i, B in enumerate(others) if i != n)])[None]
            else:
                grams = _unpack(contract(sums.grams, [B[low] * B[high] for B in others], n), len(A))
            ridge = share * net.ridge(prior.others[n])
            row_optima(A, contract(sums.cross, others, n), grams, ridge, share * net.l1, net.nonnegative, _TOLERANCE)


def _unpack(packed: Array, k: int) -> Array:
    """Return matrices (count, k, k) from their lower triangles row by row (k(k+1)/2, count)."""
    low, high = np.tril_indices(k)
    full = np.empty((packed.shape[1], k, k))
    full[:, low, high] = full[:, high, low] = packed.T
    return full


@dataclass(frozen=True)
class NewSlices:
    """Slices to be added, and the problem of all."""

    task: FitTask[Any]
    net: ElasticNet
    prior: Prior
    by_entry: bool

    @property
    def rows_pass(self) -> RowsPass:
        return RowsPass(self.net, self.prior.rows, self.task.dtype)

    def run(self, others: Factors, view: Half | None = None) -> Solver[GrowthSums]:
        """Bring the slices to their optimum given the other modes (R, I_n), with the sums from which the model grows."""
        return (yield from run(GrowthPass(self.rows_pass, others[0].shape[1], self.by_entry), khatri_rao(others), view))

    def penalty(self, sizes: Array, others: Factors, share: float = 1.0) -> float:
        """Return the penalties of mode 1, whose norms are ``sizes`` (2, R), and those of the others times ``share``."""
        norms = sum(penalty_norms(A, variances) for A, variances in zip(others, self.prior.others, strict=True))
        return self.net.penalty(sizes + share * norms)


@dataclass(frozen=True)
class Update:
    """Result of :func:`grow_modes`."""

    others: Factors
    """Factors of the other modes (R, I_n)."""
    scales: Array
    """Scales by which the factors of the earlier slices are multiplied (R,)."""
    sums: GrowthSums
    """Sums of the new slices at their optimum, whose factors are the state."""
    surrogate: SliceSurrogate
    """That of all slices."""
    prior: Prior
    loss: float
    """½‖Δ∘(Z − X)‖² of all slices."""
    objectives: list[float]
    """Objective of all slices at the start of each round, and at the end."""
    gain: Gain


def grow_modes(
    earlier: SliceSurrogate, seen: int, task: FitTask[Any], net: ElasticNet, prior: Prior, others: Factors, report: Reporter
) -> Solver[Update]:
    """Update the other modes (R, I_n) by the task's slices, and solve these; the model has ``seen`` so many before."""
    dataset, n = task.dataset, task.dataset.shape[0]
    if prior.rows.kind == "estimate":
        found = yield from run(SlicesPass(task.dtype), None)
        observed = dataset.statistics.observed.astype(np.float64).ravel()
        both = replace(
            earlier,
            columns=earlier.columns + found.columns,
            observed=earlier.observed + observed,
            rows_squares=earlier.rows_squares + float(found.rows),
        )
        before, prior = prior.rows.scale, both.prior(len(others[0]), seen + n, dataset.shape[1:])
        earlier = earlier.with_variances(prior.rows.scale / before)
    slices = NewSlices(task, net, prior, dataset.missing_rate > 0)
    others, earlier, scales, objectives = yield from _descend(slices, others, earlier, report)
    gain = yield from _estimate_gain(slices, 0.5 * n / (seen + n), others)
    # Rounded to the precision of the model, so that transform gives the same rows.
    others = [A.astype(task.dtype).astype(np.float64) for A in others]
    sums = yield from slices.run(others)
    surrogate = earlier.plus(SliceSurrogate.of(sums, dataset))
    loss = 0.5 * float(sums.squares) + earlier.loss(khatri_rao(others))
    objectives.append(loss + slices.penalty(surrogate.sizes, others))
    return Update(others, scales, sums, surrogate, prior, loss, objectives, gain)


def _descend(
    slices: NewSlices, others: Factors, earlier: SliceSurrogate, report: Reporter
) -> Solver[tuple[Factors, SliceSurrogate, Array, list[float]]]:
    """Alternate between the new slices and the other modes.

    Return the other modes, the surrogate of the earlier slices and the scales of their factors since the beginning, and the objectives.
    """
    order, scales, objectives = np.arange(len(others[0])), np.ones(len(others[0])), list[float]()
    for _ in range(ROUNDS):
        sums = yield from slices.run(others)
        both = earlier.plus(SliceSurrogate.of(sums, slices.task.dataset))
        objectives.append(0.5 * float(sums.squares) + earlier.loss(khatri_rao(others)) + slices.penalty(both.sizes, others))
        report.iteration(objectives)
        if relative_change(objectives) < TOLERANCE:
            break
        others = [A.copy() for A in others]
        update_others(others, both, slices.net, slices.prior)
        norms = [penalty_norms(A, variances) for A, variances in zip(others, slices.prior.others, strict=True)]
        first, *rest = slices.net.balancing_scales(np.stack([both.sizes, *norms]))
        others = [A * c[:, None] for A, c in zip(others, rest, strict=True)]
        earlier, scales = earlier.arranged(order, first), scales * first
    return others, earlier, scales, objectives


def _estimate_gain(slices: NewSlices, share: float, others: Factors) -> Solver[Gain]:
    """Estimate what a complete fit would gain, by other modes fitted to each half of the new slices, which is this share of all."""

    def value(sums: RowSums, others: Factors) -> float:
        return 0.5 * float(sums.squares) + slices.penalty(sums.sizes, others, share)

    def objective(others: Factors, half: Half) -> Solver[float]:
        return value((yield from run(slices.rows_pass, khatri_rao(others), half)), others)

    def fit(half: Half) -> Solver[Factors]:
        own, objectives = others, list[float]()
        for _ in range(ROUNDS):
            sums = yield from slices.run(own, half)
            objectives.append(value(sums, own))
            if relative_change(objectives) < OWN_TOLERANCE:
                break
            own = [A.copy() for A in own]
            update_others(own, SliceSurrogate.of(sums, slices.task.dataset), slices.net, slices.prior, share)
        return own

    sums = yield from slices.run(others, HALVES[0])
    first, second = value(sums, others), (yield from objective(others, HALVES[1]))
    k, rows = len(others[0]), float(sums.rows[0])
    free = sum(int((A != 0).sum()) for A in others) - k * len(others)  # the scales of the modes are not determined
    degrees = 0.5 * float(slices.task.dataset.statistics.observed.sum()) - rows * k - free
    if rows < ROWS_PER_FACTOR * k or free <= 0 or degrees <= 0 or min(first, second) <= 0:
        return Gain()
    noise = float(np.sqrt(0.5 * free) * float(sums.squares) / degrees) / first
    return (yield from compare_halves([first, second], noise, fit, objective))
