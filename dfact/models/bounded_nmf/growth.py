"""Growth of bounded non-negative factorizations: the surrogate of the rows that a model has seen, and the update by new rows.

The sums of the last pass make a quadratic function of the loadings that lies above the objective of these rows and touches it at the
loadings of that pass, since a pass minimizes a majorizer with the row factors fixed (Mairal et al. 2010). An update minimizes this
function plus the objective of the new rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, run, state_rows
from dfact.engine.session import StateRows
from dfact.models.bounded_nmf.effects import DifferenceSums
from dfact.models.bounded_nmf.passes import RowsPass, RowStart, RowSums, Sums
from dfact.models.bounded_nmf.problem import Problem
from dfact.models.bounded_nmf.solvers import MM, descend
from dfact.models.fitted_schema import AtLeast, Shape
from dfact.models.growth.halves import HALVES, OWN_TOLERANCE, ROUNDS, ROWS_PER_FACTOR, TOLERANCE, Half, compare_halves
from dfact.models.growth.record import Gain
from dfact.progress import Reporter, relative_change

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class DifferenceTotals:
    """The :class:`~dfact.models.bounded_nmf.effects.DifferenceSums` of all rows, with the loadings of their time."""

    gram: Annotated[Array, Shape(("p", "p"))]
    cross: Annotated[Array, Shape(("p", "k"))]
    observed: Annotated[Array, Shape(("p_pairs", "m"))]
    residuals: Annotated[Array, Shape(("p", "m"))]
    spread: Annotated[Array, Shape(("p_pairs", "m"))]
    moments: Annotated[Array, Shape(("moments", "m"))]

    @classmethod
    def of(cls, sums: RowSums, earlier: DifferenceTotals | None = None) -> Self | None:
        """Return the sums of a pass, added to earlier ones; None for a model without confounders."""
        if not isinstance(sums, DifferenceSums):
            return None
        new = {field.name: np.asarray(getattr(sums, field.name), np.float64) for field in fields(cls)}
        return cls(**new if earlier is None else {name: getattr(earlier, name) + value for name, value in new.items()})


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A quadratic function of Qᵀ (k+c, m), constant − ⟨cross, Qᵀ⟩ + ½⟨QᵀQ, gram⟩: the loss of the rows that a model has seen."""

    gram: Annotated[Array, Shape(("width", "width"))]
    """[W, C]ᵀ[W, C] (k+c, k+c)."""
    cross: Annotated[Array, Shape(("width", "m"))]
    """[W, C]ᵀB (k+c, m) with the targets B of the pass."""
    constant: float
    penalty_w: Annotated[float, AtLeast(0)]
    """Penalty of the factors W."""
    moments: Annotated[Array, Shape(("moments", "m"))]
    """Number, sum and sum of squares of each column's answers (3, m)."""
    differences: DifferenceTotals | None = None

    @classmethod
    def of(cls, sums: Sums, Q: Array, rows: RowSums, earlier: Surrogate | None = None) -> Self:
        """Return the surrogate of the last pass, which touches the loss of the rows at their optimum given Qᵀ, plus an earlier one."""
        gram, cross, moments = (np.asarray(value, np.float64) for value in (sums.gram, sums.cross, rows.moments))
        loss, penalty = 0.5 * float(rows.squares), float(rows.penalty_w)
        differences = DifferenceTotals.of(rows, None if earlier is None else earlier.differences)
        if earlier is not None:
            loss, penalty = loss + earlier.loss(Q), penalty + earlier.penalty_w
            gram, cross, moments = gram + earlier.gram, cross + earlier.cross, moments + earlier.moments
        found = cls(gram, cross, 0.0, penalty, moments, differences)
        return replace(found, constant=loss - found.loss(Q))

    def loss(self, Q: Array) -> float:
        """Return the value at Qᵀ."""
        wide = Q.astype(np.float64)
        return self.constant - float(np.vdot(self.cross, wide)) + 0.5 * float(np.vdot(wide @ wide.T, self.gram))

    def objective(self, problem: Problem, Q: Array) -> float:
        """Return the value at Qᵀ with the penalty of the factors."""
        return self.loss(Q) + problem.rows_penalty(self.penalty_w)

    def add_to(self, sums: Sums) -> Sums:
        """Return the sums of a pass over new rows with those of all rows for the step of the loadings."""
        return replace(sums, gram=sums.gram + self.gram, cross=sums.cross + self.cross)

    @property
    def variation(self) -> float:
        """Σ over the columns of the squared deviations of their answers from the mean."""
        count, total, squares = self.moments
        return float((squares - total**2 / np.where(count > 0, count, 1)).sum())


@dataclass(frozen=True)
class Update:
    """Result of :func:`grow_loadings`."""

    Q: Array
    """Loadings Qᵀ (k+c, m)."""
    sums: RowSums
    """Sums of the new rows at their optimum."""
    rows: StateRows
    """Their factors [W, C]."""
    gain: Gain


def grow_loadings(
    model: Any,
    problem: Problem,
    Q: Array,
    report: Reporter,
    dtype: np.dtype[Any],
    share: float,
    solver_type: type[MM] = MM,
    rows_pass: Callable[..., RowsPass] = RowsPass,
) -> Solver[Update]:
    """Update the loadings Qᵀ by the new rows, which are this share of all, and set the attributes that ICQF and NMF share."""
    earlier: Surrogate = model.sums_
    start = RowStart.from_loadings(Q[: problem.k])
    solver = solver_type.from_given_loadings(problem, start, dtype)
    solver.earlier = earlier
    descent = yield from descend(solver, Q, ROUNDS, TOLERANCE, report.iteration, relative_change, reset=True)
    Q = descent.Q
    gain = yield from _estimate_gain(problem.on_share(0.5 * share), Q, dtype, solver_type, solver.rho)
    sums = yield from run(rows_pass(problem, RowStart.from_loadings(Q[: problem.k]), dtype), Q)
    surrogate = Surrogate.of(descent.sums, Q, sums, earlier)
    loss = surrogate.loss(Q)
    objective = loss + problem.penalties(surrogate.penalty_w, Q)
    model.objective_history_ = np.asarray([*model.objective_history_, *descent.objectives, objective])
    model.explained_share_ = 1 - 2 * loss / surrogate.variation if surrogate.variation > 0 else float("nan")
    model.components_, model.problem_, model.sums_ = Q[: problem.k].copy(), problem, surrogate
    return Update(Q, sums, (yield from state_rows("factors")), gain)


def _estimate_gain(problem: Problem, Q: Array, dtype: np.dtype[Any], solver_type: type[MM], rho: float) -> Solver[Gain]:
    """Estimate what a complete fit would gain, by loadings fitted to each half of the new rows; the problem is that of a half."""

    def measure(Q: Array, half: Half) -> Solver[tuple[float, RowSums]]:
        sums = yield from run(RowsPass(problem, RowStart.from_loadings(Q[: problem.k]), dtype), Q, half)
        return 0.5 * float(sums.squares) + problem.penalties(float(sums.penalty_w), Q), sums

    def objective(Q: Array, half: Half) -> Solver[float]:
        return (yield from measure(Q, half))[0]

    def fit(half: Half) -> Solver[Array]:
        solver = solver_type(problem, RowStart.from_loadings(Q[: problem.k]), dtype, rho)
        return (yield from descend(solver, Q, ROUNDS, OWN_TOLERANCE, None, relative_change, view=half, reset=True)).Q

    (first, sums), second = (yield from measure(Q, HALVES[0])), (yield from objective(Q, HALVES[1]))
    free = int(((Q > 0) & (problem.q_max > Q)).sum())
    degrees = float(sums.moments[0].sum()) - float(sums.rows[0]) * problem.k - free
    if sums.rows[0] < ROWS_PER_FACTOR * problem.k or degrees <= 0 or min(first, second) <= 0:
        return Gain()
    noise = float(np.sqrt(0.5 * free) * float(sums.squares) / degrees) / first
    return (yield from compare_halves([first, second], noise, fit, objective))
