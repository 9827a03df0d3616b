"""Expectile matrix factorization's passes: the rows given the columns' factors, and what the columns' step adds up."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.passes import Block, PartialSums, Pass, State
from dfact.kernels.expectile import count_observed, expectile_rows, take_observed
from dfact.kernels.expectile_dense import surrogate_rows
from dfact.linalg.svd import Matrix, zero_filled

_LANES = 32  # entries that a loop takes at a time
_RESTART_STEPS = 8  # of a row that begins far from its minimum
_RESTART_GAIN = 0.003  # relative to its loss
_ROUNDING = {"float32": 1e-5, "float64": 1e-13}  # of a row's loss, a sum over its entries


class Entries(NamedTuple):
    """Observed entries, row after row."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float64]


@dataclass(frozen=True)
class OriginalUnits:
    """The data as it was given: with what an import subtracted from each column, NaN where missing."""

    offset: NDArray[Any] | None
    """(m,); None if nothing was subtracted"""

    def values(self, block: Block) -> NDArray[Any]:
        """(rows, m)."""
        V = block.values
        if self.offset is None:
            return V
        given = block.work.array("measured", V.shape, V.dtype)
        np.add(V, self.offset.astype(V.dtype), out=given)
        return given

    def entries(self, block: Block) -> Entries:
        """The observed entries alone, which may lie in working memory of the block."""
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
            # "clip", though all columns are there: to raise, NumPy would go through a copy.
            offsets = np.take(self.offset, indices, out=work.array("offsets", data.shape, self.offset.dtype), mode="clip")
            data = np.add(data, offsets, out=work.array("measured", data.shape, np.float64))
        return Entries(indptr, indices, data)

    def __call__(self, block: Block) -> Matrix:
        """With 0 for missing entries: what the start is the singular vectors of."""
        if self.offset is None:
            return zero_filled(block)
        indptr, indices, data = self.entries(block)
        data = block.work.converted("narrow", data, block.matrix.dtype)
        return sp.csr_array((data, indices, indptr), shape=block.matrix.shape)


def measured_of(dataset: Dataset) -> OriginalUnits:
    """Return the view of the dataset that the passes take."""
    return OriginalUnits(dataset.offset if dataset.offset.any() else None)


@dataclass(frozen=True)
class Loss:
    """Σ ρ_ω(b − xᵀy) + ridge‖x‖² + ridge‖y‖² over the observed entries."""

    omega: float
    ridge: float


@dataclass(frozen=True, eq=False)
class Point:
    """What a pass is given: the factors of the columns, and from which of the rows' it goes on."""

    Y: NDArray[np.float64]
    """(m, k)."""
    turn: NDArray[np.float64] | None = None
    """The rows' factors X (k, rows) become turn·X (k, k)."""
    again: bool = False
    """From the rows' factors with which the pass before began: its Y was refused."""
    restart: bool = False
    """From the start of the pass, whatever the rows' factors are: they belong to other factors of the columns."""
    momentum: float = 0.0
    """The share of their last change by which the rows' factors go on before they are turned."""

    @cached_property
    def _eigen(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, U = np.linalg.eigh(self.Y.T @ self.Y)
        return values, np.ascontiguousarray(U)

    def quadratic(self, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
        """Yᵀ (k, m) in this type, with columns of 0 up to a multiple of 32, and the eigenvalues (k) and eigenvectors (k, k) of YᵀY."""
        m, k = self.Y.shape
        Y = np.zeros((k, -(-m // _LANES) * _LANES), dtype)
        Y[:, :m] = self.Y.T
        return Y, *self._eigen

    def rows(self, state: State) -> tuple[NDArray[Any], NDArray[Any]]:
        """X (k, rows) to go back to if this Y is refused, and an array of its own to begin with; not after a restart."""
        previous = state["previous" if self.again else "factors"]
        if self.turn is not None:
            previous = self.turn.astype(previous.dtype) @ previous
        if not self.momentum:
            return previous, previous.copy()
        X = previous - (state["previous"] if self.turn is None else self.turn.astype(previous.dtype) @ state["previous"])
        X *= X.dtype.type(self.momentum)
        X += previous
        return previous, X


@dataclass
class Sums(PartialSums, name="expectile"):
    """What a sweep adds up over the rows."""

    before: NDArray[Any]
    """Σ ρ_ω of each column (m,) with the X that the pass began with."""
    after: NDArray[Any]
    """The same with the new X."""
    n_rows: NDArray[Any]
    size_before: NDArray[Any]
    """‖X‖² of the X that the pass began with."""
    gram: NDArray[Any]
    """XXᵀ (k, k) of the new X (k, n)."""
    gradient: NDArray[Any]
    """Σ w r x of each column (m, k): −½ of the gradient of its loss."""
    curvature: NDArray[Any]
    """Σ w x xᵀ of each column (m, k(k+1)/2), the lower triangle row by row; or Σ w (m,), which stands for Σ w/n · XXᵀ."""


@dataclass(frozen=True)
class Start:
    """The rows' factors to begin with: M·P of the zero-filled data M with the projection P (m, k)."""

    measured: OriginalUnits
    projection: NDArray[Any]

    def factors(self, block: Block, dtype: np.dtype[Any]) -> NDArray[Any]:
        """X (k, rows)."""
        M = self.measured(block)
        return np.ascontiguousarray(block.work.matmul(M, self.projection.astype(M.dtype), "product").T.astype(dtype))  # a copy


@dataclass(frozen=True)
class ExactPass:
    """Every row at its minimum given Y, by its observed entries alone; the columns' Newton step is summed up.

    State, as in the other pass: the rows' factors X (k, rows), and those that the pass began with.
    """

    measured: OriginalUnits
    loss: Loss
    begin: Start
    dtype: np.dtype[Any]

    def start(self, block: Block) -> State:
        X = self.begin.factors(block, np.dtype(np.float64))
        return {"factors": X, "previous": X}

    def step(self, block: Block, state: State | None, broadcast: Point) -> tuple[State, Sums]:
        assert state is not None
        (m, k), M = broadcast.Y.shape, self.measured.entries(block)
        previous, X = broadcast.rows(self.start(block) if broadcast.restart else state)
        size, before, after = np.asarray(np.vdot(X, X)), np.zeros(m), np.zeros(m)
        gradient, curvature = block.work.zeros((m, k)), block.work.zeros((m, k * (k + 1) // 2))
        expectile_rows(*M, broadcast.Y, self.loss.omega, self.loss.ridge, X, before, after, gradient, curvature)
        return {"factors": X, "previous": previous}, Sums(before, after, np.asarray(X.shape[1]), size, X @ X.T, gradient, curvature)


@dataclass(frozen=True)
class SurrogatePass:
    """One step of every row, and the columns' step summed up, without a matrix of its own for any row.

    Around X a row's objective has the curvature Σ w y yᵀ. Where entries are missing and signs differ
    without regard to Y, that is nearly c·YYᵀ with c = Σ w/m, which all rows share but for a number.
    The step with this curvature is halved where it does not lower the row's objective; with c = max(ω, 1 − ω)
    the quadratic would lie above the objective, so it need not be halved for long.
    """

    measured: OriginalUnits
    loss: Loss
    begin: Start
    dtype: np.dtype[Any]

    def start(self, block: Block) -> State:
        X = self.begin.factors(block, self.dtype)
        return {"factors": X, "previous": X}

    def step(self, block: Block, state: State | None, broadcast: Point) -> tuple[State, Sums]:
        assert state is not None
        previous, X = broadcast.rows(self.start(block) if broadcast.restart else state)
        V, work, m, dtype = self.measured.values(block), block.work, len(broadcast.Y), self.dtype
        Y, values, U = broadcast.quadratic(dtype)
        size = np.asarray(np.vdot(X, X))
        before, after, weights, gradient = (work.zeros(shape, dtype) for shape in (Y.shape[1:], Y.shape[1:], Y.shape[1:], Y.shape))
        # The columns' step is of use where the rows are nearly at their minimum.
        steps, gain = (_RESTART_STEPS, _RESTART_GAIN) if broadcast.restart else (1, 0.0)
        rounding = _ROUNDING[dtype.name]
        surrogate_rows(V, Y, U, values, self.loss.omega, self.loss.ridge, rounding, steps, gain, X, before, after, weights, gradient)
        state = {"factors": X, "previous": previous}
        return state, Sums(before[:m], after[:m], np.asarray(len(V)), size, X @ X.T, gradient.T[:m], weights[:m])


@dataclass
class RowSums(PartialSums, name="expectile_rows"):
    loss: NDArray[Any]
    """Σ ρ_ω."""
    size: NDArray[Any]
    """‖X‖²."""


@dataclass(frozen=True)
class RowsPass(Pass[Point, RowSums]):
    """Every row at its minimum given Y (m, k): from the factors at hand, or from a start where there are none."""

    measured: OriginalUnits
    loss: Loss
    begin: Start
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, broadcast: Point) -> tuple[State, RowSums]:
        m, k = broadcast.Y.shape
        if state is None:
            previous = self.begin.factors(block, np.dtype(np.float64))
            X = previous.copy()
        else:
            previous, X = broadcast.rows(state)
            X = X.astype(np.float64, copy=False)
        M, before, after = self.measured.entries(block), np.zeros(m), np.zeros(m)
        none = np.empty((0, k))
        expectile_rows(*M, broadcast.Y, self.loss.omega, self.loss.ridge, X, before, after, none, none)
        return {"factors": X, "previous": previous}, RowSums(np.asarray(after.sum()), np.asarray(np.vdot(X, X)))
