"""Expectile matrix factorization of linear measurements whose matrices A_i are the rows of a dataset: the passes, and the alternation.

A half-step is the expectile regression of b on the design A_i Y, or A_iᵀ X. Newton's method on the signs of the residuals needs its
weighted normal equations alone, which a pass sums over blocks of measurements. So neither all A_i nor the design of all are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.entrance import as_numbers
from dfact.data.stored_dataset import open_dataset
from dfact.engine.block_state import BlockState
from dfact.engine.memory_plan import Footprint
from dfact.engine.passes import Block, PartialSums, Pass, Withheld
from dfact.engine.requests import Solver, run
from dfact.errors import DataError, ParameterError
from dfact.models.expectile.alternation import balance
from dfact.models.expectile.measurements import HALVINGS, ROUNDING, ROUNDS, Measurements, start_factors
from dfact.models.expectile.passes import Loss
from dfact.parameters import is_count
from dfact.storage.location import Location

Array = NDArray[np.float64]
_DOUBLE = np.dtype(np.float64)
_STAYS = Withheld("measurements of one matrix belong to no rows that a site could hold")


@dataclass(frozen=True)
class MeasuredMatrix:
    """The shape of the matrix that is measured."""

    n: int
    m: int

    def block(self, block: Block) -> Measurements:
        """Return the measurements of a block; its covariate holds b."""
        assert block.covariates is not None, "the covariate holds the measurements"
        return Measurements(block.matrix, np.ascontiguousarray(block.covariates[:, 0]), (self.n, self.m))

    def footprint(self, k: int) -> Footprint:
        """Return the memory of a fit with k components: per measurement A_i twice, reordered, and its design; the normal equations."""
        width = max(self.n, self.m) * k
        return Footprint(0, 8 * (3 * self.n * self.m + 3 * width), 8 * (4 * width**2 + 2 * self.n * self.m), 0)


@dataclass
class MeasuredTotal(PartialSums, name="measured_total", disclosure=_STAYS):
    """Σ b_i A_i (n·m,)."""

    total: Array


@dataclass
class MeasuredScale(PartialSums, name="measured_scale", disclosure=_STAYS):
    """Σ b_i r_i and Σ r_i² for the model's measurements r_i."""

    cross: Array
    squares: Array


@dataclass
class NormalEquations(PartialSums, name="measured_normal_equations", disclosure=_STAYS):
    """Weighted normal equations of an expectile regression at a point x (q,) of the side that is solved for."""

    gram: Array
    """Σ w_i d_i d_iᵀ (q, q)."""
    cross: Array
    """Σ w_i b_i d_i (q,)."""
    loss: Array
    """Σ ρ_τ(b_i − d_iᵀx)."""
    changed: Array
    """Number of residuals whose sign differs from that at the previous point."""


@dataclass(frozen=True)
class TotalPass(Pass[BlockState, None, MeasuredTotal]):
    """The sum from whose SVD the alternation starts."""

    problem: MeasuredMatrix
    dtype: np.dtype[Any] = _DOUBLE
    changes_state = False

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, MeasuredTotal]:
        return state, MeasuredTotal(self.problem.block(block).total())


@dataclass(frozen=True)
class ScalePass(Pass[BlockState, Array, MeasuredScale]):
    """The fit of a matrix (n·m,) to the measurements, up to its scale."""

    problem: MeasuredMatrix
    dtype: np.dtype[Any] = _DOUBLE
    changes_state = False

    def step(self, block: Block, state: BlockState, broadcast: Array) -> tuple[BlockState, MeasuredScale]:
        return state, MeasuredScale(*map(np.asarray, self.problem.block(block).scale_sums(broadcast)))


@dataclass(frozen=True)
class RegressionPass(Pass[BlockState, tuple[str, Array, Array, Array], NormalEquations]):
    """The normal equations of one side, "rows" or "columns", given the factors of the other, at a point and with the signs of another.

    ``broadcast`` is the side, the factors of the other one, the previous point and the point (q,).
    """

    problem: MeasuredMatrix
    loss: Loss
    dtype: np.dtype[Any] = _DOUBLE
    changes_state = False

    def step(self, block: Block, state: BlockState, broadcast: tuple[str, Array, Array, Array]) -> tuple[BlockState, NormalEquations]:
        side, others, previous, x = broadcast
        measured, tau = self.problem.block(block), self.loss.tau
        D, b = measured.design(side, others), measured.b
        r = b - D @ x
        w = np.where(r >= 0, tau, 1 - tau)
        scaled = D * w[:, None]
        changed = np.count_nonzero((r >= 0) != (b - D @ previous >= 0)) if x is not previous else 0
        sums = np.sum(w * r * r), changed
        return state, NormalEquations(scaled.T @ D, scaled.T @ b, *map(np.asarray, sums))


def regress(pass_: RegressionPass, side: str, others: Array, start: Array) -> Solver[tuple[Array, float]]:
    """Minimize Σ ρ_τ(b − Dx) + ridge‖x‖² from ``start``, as :func:`dfact.models.expectile.measurements.expectile_regression` does,
    with one pass for each trial. Return the factors of the side and Σ ρ_τ.
    """
    ridge, x = pass_.loss.ridge, start.ravel()
    sums = yield from run(pass_, (side, others, x, x))
    objective = float(sums.loss) + ridge * float(x @ x)
    for _ in range(ROUNDS):
        end = cho_solve(cho_factor(sums.gram + ridge * np.eye(len(x))), sums.cross)
        trial, halvings = (yield from run(pass_, (side, others, x, end))), 0
        value = float(trial.loss) + ridge * float(end @ end)
        while not value <= objective * (1 + ROUNDING) and halvings < HALVINGS:  # NaN does not count as descent
            halvings, end = halvings + 1, (x + end) / 2
            trial = yield from run(pass_, (side, others, x, end))
            value = float(trial.loss) + ridge * float(end @ end)
        if halvings == HALVINGS:  # rounding is all that is left to gain
            break
        x, sums, objective = end, trial, value
        if halvings == 0 and not trial.changed:
            break
    return x.reshape(start.shape), float(sums.loss)


def measured_start(problem: MeasuredMatrix, k: int) -> Solver[tuple[Array, Array]]:
    """Return X (n, k) and Y (m, k) of the rank-k SVD of Σ b_i A_i, scaled to fit b best."""
    total = (yield from run(TotalPass(problem), None)).total.reshape(problem.n, problem.m)

    def scale(model: Array) -> Solver[tuple[float, float]]:
        sums = yield from run(ScalePass(problem), model)
        return float(sums.cross), float(sums.squares)

    return (yield from start_factors(total, k, scale))


def alternate_measured(
    pass_: RegressionPass, X: Array, Y: Array, history: list[float], *, orthogonalize: bool
) -> Solver[tuple[Array, Array, float]]:
    """Minimize in X given Y, and then in Y given X, and append the objective after each to the history. Return X, Y and Σ ρ_τ."""
    ridge = pass_.loss.ridge
    X, loss = yield from regress(pass_, "rows", Y, X)
    history.append(loss + ridge * float(np.vdot(X, X) + np.vdot(Y, Y)))
    Y, loss = yield from regress(pass_, "columns", X, Y)
    history.append(loss + ridge * float(np.vdot(X, X) + np.vdot(Y, Y)))
    if orthogonalize:
        rotation, row_rotation = balance(X.T @ X, Y)
        X, Y = X @ row_rotation.T, Y @ rotation
    return X, Y, loss


def check_measurements(dataset: Dataset, b: Any, shape: Any) -> tuple[MeasuredMatrix, Array]:
    """Return the shape of the measured matrix, and b (p,). Refuse matrices A_i of another shape, and entries that are missing."""
    if np.shape(shape) != (2,) or not all(map(is_count, shape)):
        raise ParameterError(f"shape is {shape!r}, expected numbers of rows and of columns")
    n, m = map(int, shape)
    if dataset.shape[1:] != (n * m,):
        found = f"{dataset.path} has {dataset.shape[1]} columns" if len(dataset.shape) == 2 else f"{dataset.path} has shape {dataset.shape}"
        raise DataError(f"{found}, expected {n * m}: the entries of an {n}×{m} matrix A_i for each measurement, row by row")
    if dataset.offset.any():
        raise DataError(
            f"{dataset.path} holds answers that were shifted by their minimum, expected the numbers themselves; import an array"
        )
    if dataset.missing_rate > 0:
        raise DataError(f"{dataset.path} has missing entries, expected complete matrices A_i; leave out the measurements with them")
    values = as_numbers("b", b, "a number for each measurement")
    if values.shape != dataset.shape[:1] or not len(values) or not np.isfinite(values).all():
        found = f"{values.shape}" if values.shape != dataset.shape[:1] else "missing or infinite numbers"
        raise DataError(f"b has {found}, expected {dataset.shape[:1]} finite numbers: one for each of the rows of {dataset.path}")
    return MeasuredMatrix(n, m), values.astype(np.float64)


def prepare(model: Any, dataset: Dataset, *, measurements: Location | None, shape: tuple[int, int] | None) -> Any:
    """Prepare the fit of the matrices A_i in a dataset to the measurements in another one with a single column."""
    if measurements is None or shape is None:
        raise ParameterError("--measurements and --shape go together: the measurements, and the shape of the matrix that they measure")
    column = open_dataset(measurements)
    if column.shape[1:] != (1,):
        raise DataError(f"{measurements} has shape {column.shape}, expected one column with a number for each measurement")
    parts = [column.source.read(rows.start, rows.stop)[:, 0] for rows in column.source.read_ranges(Layout.of(column.shape))]
    values = np.concatenate(parts).astype(np.float64)
    if column.missing_code is not None:
        values[values == column.missing_code] = np.nan
    return model.prepare_measurements(dataset, values + column.offset[0], shape)
