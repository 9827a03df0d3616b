"""Growth of expectile matrix factorization: the surrogate of the rows that a model has seen, and the update by new rows.

With the row factors fixed, the loss of a column is piecewise quadratic in its factors. The sums of the last pass are the quadratic
with the weights of the last residuals, which has its value, gradient and curvature there. It stands for these rows in an update
(Mairal et al. 2010). It lies above their loss where no residual changes its sign, so an update takes its objective as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Block, Pass, Released
from dfact.engine.requests import Solver, run
from dfact.kernels.expectile import expectile_rows, stored_residual_sums
from dfact.models.expectile.alternation import Alternation
from dfact.models.expectile.passes import ExactPass, ExpectileState, Loss, OriginalUnits, Point, RowsPass, RowStart, Sums
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import Shape
from dfact.models.growth.baseline import ITEM_SUMS, Baseline, factor_sums
from dfact.models.growth.halves import HALVES, OWN_TOLERANCE, ROUNDS, ROWS_PER_FACTOR, TOLERANCE, Half, compare_halves
from dfact.models.growth.record import Gain
from dfact.progress import Reporter, relative_change

Array = NDArray[Any]


@dataclass
class GrowthSums(
    Baseline,
    name="expectile_growth",
    disclosure=Released("products of row factors and gradients, summed over rows; moments of row factors"),
):
    """Sums of rows at their minimum, from which a model grows."""

    loss: Array
    """Σ ρ_τ of each column (m,)."""
    gram: Array
    """XXᵀ (k, k)."""
    gradient: Array
    """Σ w r x of each column (m, k)."""
    curvature: Array
    """Σ w x xᵀ of each column (m, k(k+1)/2), the lower triangle row by row."""

    @property
    def size(self) -> float:
        """‖X‖²."""
        return float(np.trace(self.gram))


@dataclass(frozen=True)
class GrowthPass(Pass[ExpectileState, Point, GrowthSums]):
    """Every row at its minimum given Y (m, k), with the sums from which the model grows."""

    units: OriginalUnits
    loss: Loss
    row_start: RowStart
    dtype: np.dtype[Any]
    state_type = ExpectileState

    def start(self, block: Block) -> ExpectileState:
        X = self.row_start.factors(block, np.dtype(np.float64))
        return ExpectileState(X, X)

    def step(self, block: Block, state: ExpectileState, broadcast: Point) -> tuple[ExpectileState, GrowthSums]:
        Y, M = broadcast.Y, self.units.entries(block)
        (m, k), (previous, X) = Y.shape, broadcast.rows(state)
        X = X.astype(np.float64, copy=False)
        before, after, items = np.zeros(m), np.zeros(m), np.zeros((ITEM_SUMS, m))
        gradient, curvature = block.work.zeros((m, k)), block.work.zeros((m, k * (k + 1) // 2))
        expectile_rows(*M, Y, self.loss.tau, self.loss.ridge, X, before, after, gradient, curvature)
        stored_residual_sums(*M, Y, X, items)
        figures = factor_sums(X.T, np.ones(X.shape[1]))
        sums = GrowthSums(**figures, items=items, loss=after, gram=X @ X.T, gradient=gradient, curvature=curvature)
        return ExpectileState(X, previous), sums


@dataclass(frozen=True, eq=False)
class ColumnSurrogate:
    """A quadratic function of each column's factors y, ℓ − 2gᵀ(y − z) + (y − z)ᵀH(y − z): the loss of rows that a model has seen."""

    centre: Annotated[Array, Shape(("m", "k"))]
    """Factors z of the columns (m, k) at which it touches the loss."""
    loss: Annotated[Array, Shape(("m",), low=0)]
    """Loss ℓ of each column (m,)."""
    gradient: Annotated[Array, Shape(("m", "k"))]
    """g (m, k), −½ of the gradient."""
    curvature: Annotated[Array, Shape(("m", "column_pairs"))]
    """H of each column (m, k(k+1)/2), the lower triangle row by row."""
    gram: Annotated[Array, Shape(("k", "k"))]
    """XᵀX (k, k) of the rows' factors."""

    @classmethod
    def of(cls, sums: GrowthSums, Y: Array, earlier: ColumnSurrogate | None = None) -> Self:
        """Return the surrogate of rows at their minimum given Y (m, k), plus an earlier one."""
        found = [np.asarray(value, np.float64) for value in (sums.loss, sums.gradient, sums.curvature, sums.gram)]
        if earlier is not None:
            loss, gradient = earlier.at(Y)
            found = [a + b for a, b in zip(found, (loss, gradient, earlier.curvature, earlier.gram), strict=True)]
        loss, gradient, curvature, gram = found
        return cls(Y.copy(), np.maximum(loss, 0), gradient, curvature, gram)

    def at(self, Y: Array) -> tuple[Array, Array]:
        """Return the value (m,) and −½ of the gradient (m, k) at Y (m, k)."""
        step = Y - self.centre
        product = np.zeros_like(step)
        for column, (a, b) in zip(self.curvature.T, _pairs(step.shape[1]), strict=True):
            product[:, a] += column * step[:, b]
            if a != b:
                product[:, b] += column * step[:, a]
        loss = self.loss - np.einsum("ij,ij->i", step, 2 * self.gradient - product)
        return loss, self.gradient - product

    def add_to(self, sums: Sums, Y: Array) -> Sums:
        """Return the sums of a pass over new rows at Y with those of all rows, for the step of the columns."""
        loss, gradient = self.at(Y)
        size = np.trace(self.gram)
        return replace(
            sums,
            before=sums.before + loss,
            after=sums.after + loss,
            size_before=sums.size_before + size,
            gram=sums.gram + self.gram,
            gradient=sums.gradient + gradient,
            curvature=sums.curvature + self.curvature,
        )

    def scaled(self, scales: Array) -> Self:
        """Return the surrogate after the components of the rows are multiplied by ``scales`` (k,), those of the columns divided."""
        pairs = np.array([scales[a] * scales[b] for a, b in _pairs(len(scales))])
        return replace(
            self,
            centre=self.centre / scales,
            gradient=self.gradient * scales,
            curvature=self.curvature * pairs,
            gram=self.gram * np.multiply.outer(scales, scales),
        )


def _pairs(k: int) -> list[tuple[int, int]]:
    """Return the entries of the lower triangle of a matrix (k, k), row by row."""
    return [(a, b) for a in range(k) for b in range(a + 1)]


class GrowingAlternation(Alternation):
    """Alternation over new rows, with the surrogate of earlier ones. Components are scaled, but not rotated, so that they stay the same."""

    def __init__(self, loss: Loss, Y: Array, dtype: np.dtype[Any], earlier: ColumnSurrogate, *, orthogonalize: bool) -> None:
        super().__init__(loss, Y, dtype, orthogonalize=orthogonalize)
        self.earlier = earlier
        """The earlier rows, scaled as the next pass scales the new ones."""
        self.scales = np.ones(Y.shape[1])
        """Scales of the earlier rows' factors (k,) since the beginning."""

    def update(self, sums: Sums) -> None:
        super().update(self.earlier.add_to(sums, self.point.Y))
        if self.point.rotation is not None:
            scales = self.point.rotation.diagonal()
            self.earlier, self.scales = self.earlier.scaled(scales), self.scales * scales

    def _balance(self, gram: Array, Y: Array) -> tuple[Array, Array]:
        """Return scales at which ‖X‖² + ‖Y‖² is least, as matrices by which Y is multiplied from the right, and X (k, n) from the left."""
        rows, columns = np.sqrt(gram.diagonal()), np.linalg.norm(Y, axis=0)
        known = (rows > 0) & (columns > 0) & self._orthogonalize
        scales = np.sqrt(np.divide(columns, rows, out=np.ones_like(rows), where=known))
        return np.diag(1 / scales), np.diag(scales)

    def final_objective(self, loss: float, size: float, Y: Array) -> float:
        return super().final_objective(loss + float(self.earlier.at(Y)[0].sum()), size + float(np.trace(self.earlier.gram)), Y)


def solve_rows(pass_: GrowthPass, alternation: Alternation, *, reset: bool = False) -> Solver[tuple[Point, GrowthSums, float]]:
    """Bring every row to its minimum given the final columns' factors: those after the last step, or before it if it is rejected."""
    for point in alternation.end_points():
        sums = yield from run(pass_, point, reset=reset)
        objective = alternation.final_objective(float(sums.loss.sum()), sums.size, point.Y)
        if alternation.accepts(objective):
            break
    return point, sums, objective


@dataclass(frozen=True)
class Update:
    """Result of :func:`grow_columns`."""

    Y: Array
    """Factors of the columns (m, k)."""
    scales: Array
    """Scales by which the earlier rows' factors are multiplied (k,)."""
    sums: GrowthSums
    """Sums of the new rows at their minimum, which are the state."""
    surrogate: ColumnSurrogate
    """That of all rows."""
    objectives: list[float]
    """Objective of all rows at the start, after each half-step, and at the end."""
    gain: Gain


def start_of(task: FitTask[OriginalUnits], Y: Array) -> RowStart:
    """Return the start of new rows given the columns' factors Y (m, k)."""
    return RowStart.from_columns(task.problem, Y, max(1 - task.dataset.missing_rate, 1e-3))


def grow_columns(
    earlier: ColumnSurrogate, task: FitTask[OriginalUnits], share: float, loss: Loss, Y: Array, report: Reporter, *, orthogonalize: bool
) -> Solver[Update]:
    """Update the columns' factors Y (m, k) by the task's rows, which are this share of all, and solve these.

    The state holds the rows' factors given Y, from the pass that measured drift.
    """
    start = task.problem, loss, start_of(task, Y), task.dtype
    alternation = GrowingAlternation(loss, Y, np.dtype(np.float64), earlier, orthogonalize=orthogonalize)
    yield from _alternate(ExactPass(*start), alternation, TOLERANCE, report)
    gain = yield from _estimate_gain(task, 0.5 * share, loss, alternation.point.Y, orthogonalize=orthogonalize)
    point, sums, objective = yield from solve_rows(GrowthPass(*start), alternation, reset=True)
    surrogate = ColumnSurrogate.of(sums, point.Y, alternation.earlier)
    return Update(point.Y, alternation.scales, sums, surrogate, [*alternation.history, objective], gain)


def _alternate(
    pass_: ExactPass, alternation: Alternation, tolerance: float, report: Reporter | None, view: Half | None = None
) -> Solver[None]:
    for i in range(ROUNDS):
        alternation.update((yield from run(pass_, alternation.point, view, reset=view is not None and i == 0)))
        objectives = alternation.history[1::2]
        if report is not None:
            report.iteration(objectives)
        if relative_change(objectives) < tolerance and not alternation.rejected:
            break


def _estimate_gain(task: FitTask[OriginalUnits], share: float, loss: Loss, Y: Array, *, orthogonalize: bool) -> Solver[Gain]:
    """Estimate what a complete fit would gain, by columns' factors fitted to each half of the new rows.

    A half, whose share of all rows is s, has the objective Σ ρ_τ + ridge·‖X‖² + s·ridge·‖Y‖². With X·s^-¼ and Y·s^¼ that is the objective
    of these rows alone, whose ridge is √s·ridge.
    """
    own_loss, Y = replace(loss, ridge=sqrt(share) * loss.ridge), Y * share**0.25
    start = task.problem, own_loss, start_of(task, Y), task.dtype

    def alternation(Y: Array) -> Alternation:
        return Alternation(own_loss, Y, np.dtype(np.float64), orthogonalize=orthogonalize)

    def objective(Y: Array, half: Half) -> Solver[float]:
        sums = yield from run(RowsPass(*start), Point(Y), half, reset=True)
        return alternation(Y).final_objective(float(sums.loss), float(sums.size), Y)

    def fit(half: Half) -> Solver[Array]:
        own = alternation(Y)
        yield from _alternate(ExactPass(*start), own, OWN_TOLERANCE, None, half)
        return next(own.end_points()).Y

    before = [(yield from objective(Y, HALVES[0])), (yield from objective(Y, HALVES[1]))]
    (m, k), rows = Y.shape, 0.5 * task.dataset.shape[0]
    free = (m - k) * k  # the factors are determined up to a linear transformation
    degrees = 0.5 * float(task.dataset.statistics.observed.sum()) - rows * k - free
    if rows < ROWS_PER_FACTOR * k or free <= 0 or degrees <= 0 or min(before) <= 0:
        return Gain()
    return (yield from compare_halves(before, sqrt(2 * free) / degrees, fit, objective))
