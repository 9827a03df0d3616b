"""Bounded non-negative factorization's solvers: what the driver does between passes, and where it begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.engine.passes import SampledView
from dfact.engine.session import Session
from dfact.linalg.svd import nndsvd
from dfact.models.bounded_nmf.passes import ADMMPass, RowStart, SplitlessPass, Sums, WeightedRows
from dfact.models.bounded_nmf.problem import Problem
from dfact.models.parameters import resolve_seed
from dfact.progress import Reporter, relative_change, remaining_change

_SWEEPS, _TOLERANCE = 200, 1e-7  # for the loadings, of which there are few
_RHO_START, _RHO_GROWTH, _RHO_END = 1 / 6, 1.03, 4.0
_RHO_NEAR = 1 / 2  # where the loadings are given: from_given_loadings the end the bounds' multipliers lag behind while ρ is small
_SETTLED = 1e-3  # of the loss: what the bounds add to it where they are met well enough
_MOMENTUM_DELAY = 6  # Nesterov's weights have 3; the larger, the more carefully a fit begins, where it may lose a factor
_MAX_MOMENTUM = 0.8  # of a step by which Q is extrapolated; more, and the multipliers of many active bounds lag behind
_MAX_MOMENTUM_BOUNDS_MET = 0.95  # where ρ has not risen to its value, so few bounds are active
_SAMPLE_SHARE = 0.1  # of the partitions
_SAMPLE_PASSES, _SAMPLE_TOLERANCE = 80, 1e-5
_LEAST_RHO = 2**0.5
_BALANCE = 5.0  # between the residuals, beyond which ρ changes


class ADMM:
    """The paper's algorithm 1, with Z = [W, C]Qᵀ split off and its dual kept as one array of state.

    An adaptive ρ is doubled or halved where one of the residuals ‖Z − R‖ and ρ‖ΔZ‖ is five times the
    other (Boyd et al. 2011, section 3.4.1), from √2 on, where proposition 1 holds, and less and less often, so
    that it settles. The spectral rule that the paper cites needs three more arrays of the data's size.
    """

    def __init__(self, problem: Problem, row_start: RowStart, dtype: np.dtype[Any], *, adaptive: bool) -> None:
        self.problem, self._adaptive = problem, adaptive
        self.pass_ = ADMMPass(problem, row_start, dtype, adaptive)
        self._before = self._rho = problem.rho
        self._passes, self._next_change = 0, 4

    def broadcast(self, Q: NDArray[Any]) -> tuple[NDArray[Any], float, float]:
        return Q, self._before, self._rho

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> NDArray[Any]:
        """Step 2 of an iteration, from the sums of a pass: steps 3 and 4 of the one before (Z and A), and step 1 (W)."""
        rho, self._before = self._rho, self._rho
        self._passes += 1
        if self._adaptive and self._passes == self._next_change:
            self._next_change = 2 * self._passes
            self._rho = self._balance_rho(*sums.residuals)
        return _solve(self.problem, sums, Q, rho)

    def _balance_rho(self, primal: float, dual: float) -> float:
        ratio = np.sqrt(primal) / max(self._rho * np.sqrt(dual), np.finfo(float).tiny)
        factor = 2.0 if ratio > _BALANCE else 0.5 if ratio < 1 / _BALANCE else 1.0
        return max(_LEAST_RHO, self._rho * factor)

    def next_point(self, Q: NDArray[Any]) -> NDArray[Any]:
        return Q


class Splitless:
    """Only the bounds of Z are split off; missing entries are filled in by the model.

    A pass minimises a quadratic above the augmented Lagrangian (see :func:`dfact.kernels.bound_fill.bound_fill`),
    in W and then in Q. Between passes Q is extrapolated along its last step with Nesterov's weights,
    which begin anew when the step goes back on the extrapolation (O'Donoghue & Candès 2015, section 3.2).
    ρ starts at a sixth of its value, and is raised by 3 % a pass, up to four times its value, while the bounds' terms of
    the Lagrangian are more than a thousandth of the loss. The objective falls fastest while ρ is small. Where it is too
    small for many active bounds, their multipliers go on swinging, and the objective with them.
    """

    def __init__(self, problem: Problem, row_start: RowStart, dtype: np.dtype[Any], rho: float | None = None) -> None:
        """``rho`` is where ρ starts; by default at a sixth of the problem's."""
        self.problem = problem
        self.pass_: SplitlessPass | SampledView = SplitlessPass(problem, row_start, dtype)
        self.rho = _RHO_START * problem.rho if rho is None else rho
        self._previous: NDArray[Any] | None = None
        self._point: NDArray[Any] | None = None
        self._steps = 0
        self._settled = False

    @classmethod
    def from_given_loadings(cls, problem: Problem, row_start: RowStart, dtype: np.dtype[Any]) -> Self:
        """The solver for loadings that are given, so that ρ starts higher."""
        return cls(problem, row_start, dtype, _RHO_NEAR * problem.rho)

    @classmethod
    def with_sample_start(
        cls,
        session: Session,
        problem: Problem,
        Q: NDArray[Any],
        row_start: RowStart,
        dtype: np.dtype[Any],
        layout: Layout,
        report: Reporter,
    ) -> tuple[Self, NDArray[Any]]:
        """The solver, and the loadings Qᵀ (k+c, m) to begin with: those of a sample of the rows, where there are enough of them."""
        partitions = layout.sample(_SAMPLE_SHARE)
        if not partitions:
            return cls(problem, row_start, dtype), Q
        rows = [layout.rows(i, i + 1) for i in partitions]
        share = sum(run.stop - run.start for run in rows) / layout.n_rows
        solver = cls(replace(problem, gamma=share * problem.gamma), row_start, dtype)
        solver.pass_ = SampledView(partitions, SplitlessPass(problem, row_start, dtype))
        Q = descend(session, solver, Q, _SAMPLE_PASSES, _SAMPLE_TOLERANCE, report.on_sample, relative_change).Q
        return cls(problem, RowStart.from_loadings(Q[: problem.k]), dtype, solver.rho), Q

    def broadcast(self, Q: NDArray[Any]) -> tuple[NDArray[Any], float]:
        return Q, self.rho

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> NDArray[Any]:
        loss = 0.5 * float(sums.squares)
        self._settled = abs(float(sums.lagrangian) - loss) <= _SETTLED * loss
        if not self._settled:
            self.rho = min(_RHO_END * self.problem.rho, _RHO_GROWTH * self.rho)
        return _solve(self.problem, sums, Q, 1.0)

    def next_point(self, Q: NDArray[Any]) -> NDArray[Any]:
        previous, point = self._previous, self._point
        self._previous = self._point = Q
        if previous is not None and point is not None:
            step = Q - previous
            self._steps = 0 if float(np.vdot(point - Q, step)) > 0 else self._steps + 1
            most = _MAX_MOMENTUM_BOUNDS_MET if self._settled and self.rho < self.problem.rho else _MAX_MOMENTUM
            weight = min(most, self._steps / (self._steps + _MOMENTUM_DELAY))
            self._point = np.clip(Q + Q.dtype.type(weight) * step, 0, self.problem.q_max).astype(Q.dtype)
        return self._point


@dataclass(frozen=True)
class Descent:
    """What an alternation came to."""

    Q: NDArray[Any]
    """The last loadings (k+c, m)."""
    objectives: list[float]
    """Of each iteration, at the factors with which it began."""
    lagrangians: list[float]
    converged: bool
    remaining: float
    """The estimated distance to the end, relative to the objective."""


Measure = Callable[[Sequence[float]], float]


def descend(
    session: Session,
    solver: ADMM | Splitless,
    Q: NDArray[Any],
    max_iter: int,
    tol: float,
    report: Callable[[Sequence[float]], None] | None,
    measure: Measure = remaining_change,
) -> Descent:
    """One pass over the rows and one solution for the loadings Qᵀ (k+c, m) after the other.

    Ends when the ``measure`` of the objectives, and that of the augmented Lagrangians, is less than ``tol``. ``report`` is called
    with the objectives so far after each pass.
    """
    problem, point = solver.problem, Q
    objectives: list[float] = []
    lagrangians: list[float] = []
    remaining = float("nan")
    for _ in range(max_iter):
        sums = session.run(solver.pass_, solver.broadcast(point))
        penalties = problem.penalties(float(sums.penalty_w), point)
        objectives.append(0.5 * float(sums.squares) + penalties)
        lagrangians.append(float(sums.lagrangian) + penalties)
        if report is not None:
            report(objectives)
        Q = solver.loadings(sums, point)
        remaining = max(measure(objectives), measure(lagrangians))
        if remaining < tol:
            return Descent(Q, objectives, lagrangians, converged=True, remaining=remaining)
        point = solver.next_point(Q)
    return Descent(Q, objectives, lagrangians, converged=False, remaining=remaining)


def initial_loadings(
    init: Any, random_state: Any, session: Session, dataset: Dataset, problem: Problem, n_covariates: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], RowStart]:
    """The loadings Qᵀ (k+c, m) to begin with, confounders at 0, and the rows' start; ``init`` is "nndsvd", "random" or loadings (k, m)."""
    k, m = problem.k, dataset.shape[1]
    if isinstance(init, str) and init == "random":
        seed = resolve_seed(random_state, session)
        # Without an upper bound up to the highest answer.
        top = np.minimum(problem.q_max, dataset.statistics.maximum.max())
        loadings = np.random.default_rng(seed).uniform(0, top, (k, m))
        row_start = RowStart(None, seed)
    elif isinstance(init, str):
        loadings, projection = nndsvd(session, m, k, dtype, view=WeightedRows(problem))
        row_start = RowStart(projection)
    else:
        loadings = np.asarray(init, np.float64)
        row_start = RowStart.from_loadings(loadings)
    Q = np.zeros((k + n_covariates, m), dtype)
    Q[:k] = np.clip(loadings, 0, problem.q_max)
    return Q, row_start


def _solve(problem: Problem, sums: Sums, Q: NDArray[Any], weight: float) -> NDArray[Any]:
    """The minimum over 0 ≤ Q ≤ q_max of weight/2 ‖B − [W, C]Q‖² + βγ·size(Q)."""
    solution = Q.astype(np.float64)
    finite = np.isfinite(problem.q_max)
    tolerance = _TOLERANCE * (float(np.min(problem.q_max)) if finite.all() else 1.0)
    problem.solve(solution, sums.cross, sums.gram, problem.loadings_penalty / weight, problem.q_max, _SWEEPS, tolerance)
    return solution.astype(Q.dtype)
