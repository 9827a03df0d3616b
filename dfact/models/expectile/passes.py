"""Passes of expectile matrix factorization: the rows given the columns' factors, and the sums for the columns' step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.block_state import RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.kernels.expectile import count_observed, expectile_rows, take_observed
from dfact.kernels.expectile_dense import surrogate_rows
from dfact.lazy import sp
from dfact.linalg.svd import Matrix, zero_filled

_LANES = 32  # entries that a vectorised loop processes at a time
_RESTART_STEPS = 8  # maximum of a row that begins far from its minimum
_RESTART_GAIN = 0.003  # least gain of such a step, relative to the row's loss
_ROUNDING = {"float32": 1e-5, "float64": 1e-13}  # relative, of a row's loss, a sum over its entries


class Entries(NamedTuple):
    """Observed entries in CSR form."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float64]


@dataclass(frozen=True)
class OriginalUnits:
    """View of the data in its original units: the values that an import subtracted are added again."""

    offset: NDArray[Any] | None
    """Value subtracted from each column (m,); None if nothing was subtracted."""

    def values(self, block: Block) -> NDArray[Any]:
        """Return the values (rows, m), NaN where missing."""
        V = block.values
        if self.offset is None:
            return V
        original = block.work.array("original units", V.shape, V.dtype)
        np.add(V, self.offset.astype(V.dtype), out=original)
        return original

    def entries(self, block: Block) -> Entries:
        """Return the observed entries alone, possibly in working memory of the block."""
        M, work = block.matrix, block.work
        if isinstance(M, np.ndarray):
            indptr = np.empty(len(M) + 1, np.int64)
            count_observed(M, indptr)
            indices, data = (work.array(name, (indptr[-1],), dtype) for name, dtype in (("columns", np.int32), ("entries", np.float64)))
            take_observed(M, indptr, indices, data)
        else:
            indptr, indices = M.indptr.astype(np.int64), work.converted("columns", M.indices, np.int32)
            data = work.converted("entries", M.data, np.float64)
            missing = np.isnan(data, out=work.array("missing", data.shape, bool))
            if missing.any():
                indptr = np.concatenate([[0], np.cumsum(~missing)])[indptr]
                indices, data = indices[~missing], data[~missing]
        if self.offset is not None:
            # "clip", though all indices are valid: mode "raise" makes NumPy buffer the output.
            offsets = np.take(self.offset, indices, out=work.array("offsets", data.shape, self.offset.dtype), mode="clip")
            data = np.add(data, offsets, out=work.array("original units", data.shape, np.float64))
        return Entries(indptr, indices, data)

    def __call__(self, block: Block) -> Matrix:
        """Return the data with 0 for missing entries, whose singular vectors are a start."""
        if self.offset is None:
            return zero_filled(block)
        indptr, indices, data = self.entries(block)
        data = block.work.converted("narrow", data, block.matrix.dtype)
        return sp.csr_array((data, indices, indptr), shape=block.matrix.shape)


def original_units(dataset: Dataset) -> OriginalUnits:
    """Make the view of a dataset in its original units."""
    return OriginalUnits(dataset.offset if dataset.offset.any() else None)


@dataclass(frozen=True)
class Loss:
    """Σ ρ_τ(b − xᵀy) + ridge‖x‖² + ridge‖y‖² over the observed entries."""

    tau: float
    ridge: float


@dataclass
class ExpectileState(RowFactors):
    """The factors X (k, rows), and those at the beginning of the pass."""

    previous: NDArray[Any]


def above_rounding(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the eigenvalues (k,) of a Gram matrix, in ascending order, with those at rounding level raised to it.

    Along their eigenvectors a gradient is a rounding error. Divided by a small ridge alone, it would exceed all other steps.
    """
    return np.maximum(values, len(values) * np.finfo(np.float64).eps * max(float(values[-1]), 0.0))


@dataclass(frozen=True, eq=False)
class Point:
    """Broadcast value of a pass: the factors of the columns, and the rows' factors from which it continues."""

    Y: NDArray[np.float64]
    """Factors of the columns (m, k)."""
    rotation: NDArray[np.float64] | None = None
    """Transformation (k, k) after which the rows' factors X (k, rows) are rotation·X."""
    retry: bool = False
    """Whether to begin at the rows' factors of the previous pass's beginning, because its Y was rejected."""
    restart: bool = False
    """Whether to begin at the start of the pass, because the rows' factors belong to other factors of the columns."""
    momentum: float = 0.0
    """Share of their last change by which the rows' factors are extrapolated before they are transformed."""

    @cached_property
    def _eigen(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, U = np.linalg.eigh(self.Y.T @ self.Y)
        return above_rounding(values), np.ascontiguousarray(U)

    def quadratic(self, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
        """Return Yᵀ (k, m) in this type, padded with 0 to a multiple of 32 columns, and eigenvalues (k) and eigenvectors (k, k) of YᵀY."""
        m, k = self.Y.shape
        Y = np.zeros((k, -(-m // _LANES) * _LANES), dtype)
        Y[:, :m] = self.Y.T
        return Y, *self._eigen

    def rows(self, state: ExpectileState) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return X (k, rows) to return to if this Y is rejected, and a separate array to begin with; not for a restart."""
        previous = state.previous if self.retry else state.factors
        if self.rotation is not None:
            previous = self.rotation.astype(previous.dtype) @ previous
        if not self.momentum:
            return previous, previous.copy()
        X = previous - (state.previous if self.rotation is None else self.rotation.astype(previous.dtype) @ state.previous)
        X *= X.dtype.type(self.momentum)
        X += previous
        return previous, X


@dataclass
class Sums(
    PartialSums, name="expectile", disclosure=Released("products of row factors with one another and with the data, summed over rows")
):
    """Sums of a pass over the rows."""

    before: NDArray[Any]
    """Σ ρ_τ of each column (m,) at the beginning of the pass."""
    after: NDArray[Any]
    """Σ ρ_τ of each column (m,) with the new X."""
    n_rows: NDArray[Any]
    size_before: NDArray[Any]
    """‖X‖² at the beginning of the pass."""
    gram: NDArray[Any]
    """XXᵀ (k, k) of the new X (k, n)."""
    gradient: NDArray[Any]
    """Σ w r x of each column (m, k): −½ of the gradient of its loss."""
    curvature: NDArray[Any]
    """Σ w x xᵀ of each column (m, k(k+1)/2), the lower triangle row by row; or Σ w (m,), which stands for Σ w/n · XXᵀ."""


@dataclass(frozen=True)
class RowStart:
    """Initial factors of the rows: M·P of the zero-filled data M with the projection P (m, k)."""

    units: OriginalUnits
    projection: NDArray[Any]

    @classmethod
    def from_columns(cls, units: OriginalUnits, Y: NDArray[np.float64], observed: float) -> Self:
        """Start near the least squares given Y (m, k), if entries are missing at random and this share of them is observed."""
        return cls(units, np.linalg.pinv(Y, rcond=1e-6).T / observed)  # pinv, as components may be 0

    def factors(self, block: Block, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return X (k, rows)."""
        M = self.units(block)
        return np.ascontiguousarray(block.work.matmul(M, self.projection.astype(M.dtype), "product").T.astype(dtype))  # a copy


@dataclass(frozen=True)
class ExactPass(Pass[ExpectileState, Point, Sums]):
    """Every row at its minimum given Y, on its observed entries alone, with the sums for the columns' Newton step."""

    units: OriginalUnits
    loss: Loss
    row_start: RowStart
    dtype: np.dtype[Any]
    state_type = ExpectileState

    def start(self, block: Block) -> ExpectileState:
        X = self.row_start.factors(block, np.dtype(np.float64))
        return ExpectileState(X, X)

    def step(self, block: Block, state: ExpectileState, broadcast: Point) -> tuple[ExpectileState, Sums]:
        (m, k), M = broadcast.Y.shape, self.units.entries(block)
        previous, X = broadcast.rows(self.start(block) if broadcast.restart else state)
        size, before, after = np.asarray(np.vdot(X, X)), np.zeros(m), np.zeros(m)
        gradient, curvature = block.work.zeros((m, k)), block.work.zeros((m, k * (k + 1) // 2))
        expectile_rows(*M, broadcast.Y, self.loss.tau, self.loss.ridge, X, before, after, gradient, curvature)
        return ExpectileState(X, previous), Sums(before, after, np.asarray(X.shape[1]), size, X @ X.T, gradient, curvature)


@dataclass(frozen=True)
class SurrogatePass(Pass[ExpectileState, Point, Sums]):
    """One step of every row, with the sums for the columns' step, without a separate matrix for each row.

    Around X a row's objective has the curvature Σ w y yᵀ. If missing entries and signs of residuals are independent
    of Y, that is nearly c·YYᵀ with c = Σ w/m, a matrix that all rows share up to a factor.
    The step with this curvature is halved while it does not lower the row's objective. With c = max(τ, 1 − τ)
    the quadratic would lie above the objective, so few halvings suffice.
    """

    units: OriginalUnits
    loss: Loss
    row_start: RowStart
    dtype: np.dtype[Any]
    state_type = ExpectileState

    def start(self, block: Block) -> ExpectileState:
        X = self.row_start.factors(block, self.dtype)
        return ExpectileState(X, X)

    def step(self, block: Block, state: ExpectileState, broadcast: Point) -> tuple[ExpectileState, Sums]:
        previous, X = broadcast.rows(self.start(block) if broadcast.restart else state)
        V, work, m, dtype = self.units.values(block), block.work, len(broadcast.Y), self.dtype
        Y, values, U = broadcast.quadratic(dtype)
        size = np.asarray(np.vdot(X, X))
        before, after, weights, gradient = (work.zeros(shape, dtype) for shape in (Y.shape[1:], Y.shape[1:], Y.shape[1:], Y.shape))
        # The columns' step is useful only if the rows are near their minimum.
        steps, gain = (_RESTART_STEPS, _RESTART_GAIN) if broadcast.restart else (1, 0.0)
        rounding = _ROUNDING[dtype.name]
        surrogate_rows(V, Y, U, values, self.loss.tau, self.loss.ridge, rounding, steps, gain, X, before, after, weights, gradient)
        sums = Sums(before[:m], after[:m], np.asarray(len(V)), size, X @ X.T, gradient.T[:m], weights[:m])
        return ExpectileState(X, previous), sums


@dataclass
class RowSums(PartialSums, name="expectile_rows", disclosure=Released("sums of losses")):
    loss: NDArray[Any]
    """Σ ρ_τ."""
    size: NDArray[Any]
    """‖X‖²."""


@dataclass(frozen=True)
class RowsPass(Pass[ExpectileState, Point, RowSums]):
    """Every row at its minimum given Y (m, k), from the current factors, or from a start if there are none."""

    units: OriginalUnits
    loss: Loss
    row_start: RowStart
    dtype: np.dtype[Any]
    state_type = ExpectileState

    def start(self, block: Block) -> ExpectileState:
        X = self.row_start.factors(block, np.dtype(np.float64))
        return ExpectileState(X, X)

    def step(self, block: Block, state: ExpectileState, broadcast: Point) -> tuple[ExpectileState, RowSums]:
        m, k = broadcast.Y.shape
        previous, X = broadcast.rows(state)
        X = X.astype(np.float64, copy=False)
        M, before, after = self.units.entries(block), np.zeros(m), np.zeros(m)
        unused = np.empty((0, k))  # no sums for the columns' step
        expectile_rows(*M, broadcast.Y, self.loss.tau, self.loss.ridge, X, before, after, unused, unused)
        return ExpectileState(X, previous), RowSums(np.asarray(after.sum()), np.asarray(np.vdot(X, X)))
