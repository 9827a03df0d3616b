"""Solvers of bounded non-negative factorization: updates of the loadings between passes, and initial loadings.

The variables ``Q`` hold the transpose Qᵀ (k+c, m) of the paper's loadings. R is the model [W, C]Qᵀ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.entrance import as_numbers
from dfact.engine.block_state import StateArrays
from dfact.engine.passes import BlockView, Pass
from dfact.engine.requests import Solver, map_columns, run, state_rows
from dfact.engine.session import StateRows
from dfact.linalg.parts import begins_badly, find_column_parts
from dfact.linalg.svd import nndsvd
from dfact.models.bounded_nmf.passes import ADMMPass, MMPass, RowsPass, RowStart, Sums, WeightedRows
from dfact.models.bounded_nmf.problem import Problem, solve_columns
from dfact.parameters import resolve_seed
from dfact.progress import Reporter, relative_change, remaining_change

_SWEEPS, _TOLERANCE = 200, 1e-7  # for the loadings; as these are few, they are solved nearly exactly
_COLUMN_SECONDS = 2.5e-9  # of an item, times the square of the number of factors, with some 25 sweeps
_RHO_START, _RHO_GROWTH, _RHO_END = 1 / 6, 1.03, 4.0  # first and largest ρ as multiples of problem.rho; growth in a pass
_RHO_GIVEN = 1 / 2  # with given loadings: near the optimum the multipliers of the bounds converge slowly while ρ is small
_BOUNDS_MET = 1e-3  # ratio to the loss of the bounds' terms of the Lagrangian up to which the bounds count as met
_MOMENTUM_DELAY = 6  # Nesterov's weights have 3; a larger value slows the first iterations, in which a fit may lose a factor
_MAX_MOMENTUM = 0.8  # of the last step of Q; with more, the multipliers of many active bounds converge slowly
_MAX_MOMENTUM_BOUNDS_MET = 0.95  # the same while the bounds are met with a ρ below problem.rho: few are active
_SAMPLE_PASSES, _SAMPLE_TOLERANCE = 80, 1e-5
_MIN_RHO = 2**0.5
_BALANCE = 5.0  # ratio of the residuals beyond which ρ changes
_ROUNDS = (100, 8), (300, 3)  # passes of a descent, and how many of the starts they are made from: the best of the round before
_SETTLED = 1e-6  # estimated distance from the limit, relative, at which a descent ends
SAMPLE_SHARE = 0.1
"""Share of the partitions in the sample to which the start is fitted."""


class EarlierRows(Protocol):
    """Rows of which a solver knows only sums; see :mod:`dfact.models.bounded_nmf.growth`."""

    def add_to(self, sums: Sums) -> Sums:
        """Return the sums of a pass with those of these rows."""
        ...

    def objective(self, problem: Problem, Q: NDArray[Any]) -> float:
        """Return their share in the objective at the loadings Qᵀ, without the penalty of the loadings."""
        ...


@dataclass(frozen=True)
class Start:
    """The start of a fit."""

    Q: NDArray[Any]
    """Initial loadings (k+c, m)."""
    row_start: RowStart
    uneven: bool
    """Whether it begins near a saddle: columns are in several parts, or have loadings near 0 though they have entries."""


class ADMM:
    """The paper's ADMM, equations (1)-(4), with Z = R split off; Z and its dual A share one array of state.

    An adaptive ρ is doubled or halved when one of the residuals ‖Z − R‖ and ρ‖ΔZ‖ is five times the
    other (Boyd et al. 2011, section 3.4.1). It stays at or above √2, as the paper's proposition 1 asks, and changes less and
    less often, so that it converges. The spectral rule that the paper cites (Xu et al. 2017) needs three more arrays of the data's size.
    """

    earlier: EarlierRows | None = None

    def __init__(self, problem: Problem, row_start: RowStart, dtype: np.dtype[Any], *, adaptive: bool) -> None:
        self.problem, self._adaptive = problem, adaptive
        self.pass_ = ADMMPass(problem, row_start, dtype, adaptive)
        self._previous_rho = self._rho = problem.rho
        self._passes, self._next_change = 0, 4

    def broadcast(self, Q: NDArray[Any]) -> tuple[NDArray[Any], float, float]:
        """Return the input of the next pass: Qᵀ, the ρ of the previous pass, and ρ."""
        return Q, self._previous_rho, self._rho

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> Solver[NDArray[Any]]:
        """Take step 2 of an iteration, from the sums of a pass: steps 3 and 4 of the previous one (Z and A), and step 1 (W)."""
        rho, self._previous_rho = self._rho, self._rho
        self._passes += 1
        if self._adaptive and self._passes == self._next_change:
            self._next_change = 2 * self._passes
            self._rho = self._balance_rho(*sums.residuals)
        return (yield from _solve(self.problem, sums, Q, rho))

    def _balance_rho(self, primal: float, dual: float) -> float:
        """Return the next ρ, given ‖Z − R‖² and ‖ΔZ‖²."""
        ratio = np.sqrt(primal) / max(self._rho * np.sqrt(dual), np.finfo(float).tiny)
        factor = 2.0 if ratio > _BALANCE else 0.5 if ratio < 1 / _BALANCE else 1.0
        return max(_MIN_RHO, self._rho * factor)

    def next_point(self, Q: NDArray[Any]) -> NDArray[Any]:
        """Return the loadings at which the next pass begins: the same, without extrapolation."""
        return Q


class MM:
    """Majorization-minimization (MM) on an augmented Lagrangian that splits off the bounds of Z alone.

    Missing entries are filled in by the model. A pass minimizes a quadratic majorizer of the augmented Lagrangian
    (see :func:`dfact.kernels.bound_fill.bound_fill`), in W and then in Q. Between passes Q is extrapolated along its last step
    with Nesterov's weights, which restart when the step reverses the extrapolation (O'Donoghue & Candès 2015, section 3.2).
    ρ starts at a sixth of ``problem.rho``. While the bounds' terms of the Lagrangian exceed a thousandth of the loss, it
    grows by 3% in each pass, up to four times ``problem.rho``. The objective falls fastest while ρ is small. When ρ is too
    small for many active bounds, their multipliers oscillate, and the objective with them.
    """

    def __init__(self, problem: Problem, row_start: RowStart, dtype: np.dtype[Any], rho: float | None = None) -> None:
        """``rho`` is the initial ρ, by default a sixth of the problem's."""
        self.problem = problem
        self.pass_ = MMPass(problem, row_start, dtype)
        self.rho = _RHO_START * problem.rho if rho is None else rho
        self._previous: NDArray[Any] | None = None
        self._point: NDArray[Any] | None = None
        self._steps = 0
        self._bounds_met = False
        self.earlier: EarlierRows | None = None
        """Rows that the loadings have to fit, too, of which only sums are known."""

    @classmethod
    def from_given_loadings(cls, problem: Problem, row_start: RowStart, dtype: np.dtype[Any]) -> Self:
        """Make the solver for a start at given loadings, with a higher initial ρ."""
        return cls(problem, row_start, dtype, _RHO_GIVEN * problem.rho)

    @classmethod
    def with_sample_start(
        cls,
        problem: Problem,
        Q: NDArray[Any],
        row_start: RowStart,
        dtype: np.dtype[Any],
        layout: Layout,
        report: Reporter,
    ) -> Solver[tuple[Self, NDArray[Any]]]:
        """Make the solver. Return it with its initial loadings Qᵀ (k+c, m): those fitted to a sample of the rows, if there are enough."""
        partitions = layout.sample(SAMPLE_SHARE)
        if not partitions:
            return cls(problem, row_start, dtype), Q
        rows = [layout.rows(i, i + 1) for i in partitions]
        share = sum(part.stop - part.start for part in rows) / layout.n_rows
        solver = cls(problem.on_share(share), row_start, dtype)
        solver.pass_ = MMPass(problem, row_start, dtype)
        descent = yield from descend(solver, Q, _SAMPLE_PASSES, _SAMPLE_TOLERANCE, report.on_sample, relative_change, sample=partitions)
        Q = descent.Q
        return cls(problem, RowStart.from_loadings(Q[: problem.k]), dtype, solver.rho), Q

    def broadcast(self, Q: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Return the input of the next pass: Qᵀ and ρ."""
        return Q, self.rho

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> Solver[NDArray[Any]]:
        """Return the next loadings, from the sums of a pass, and raise ρ unless the bounds are met."""
        loss = 0.5 * float(sums.squares)
        self._bounds_met = abs(float(sums.lagrangian) - loss) <= _BOUNDS_MET * loss
        if not self._bounds_met:
            self.rho = min(_RHO_END * self.problem.rho, _RHO_GROWTH * self.rho)
        return (yield from _solve(self.problem, self.with_earlier(sums), Q, 1.0))

    def with_earlier(self, sums: Sums) -> Sums:
        """Return the sums of a pass with those of the earlier rows."""
        return sums if self.earlier is None else self.earlier.add_to(sums)

    def next_point(self, Q: NDArray[Any]) -> NDArray[Any]:
        """Return the loadings extrapolated along their last step, at which the next pass begins."""
        previous, point = self._previous, self._point
        self._previous = self._point = Q
        if previous is not None and point is not None:
            step = Q - previous
            self._steps = 0 if float(np.vdot(point - Q, step)) > 0 else self._steps + 1
            largest = _MAX_MOMENTUM_BOUNDS_MET if self._bounds_met and self.rho < self.problem.rho else _MAX_MOMENTUM
            weight = min(largest, self._steps / (self._steps + _MOMENTUM_DELAY))
            self._point = np.clip(Q + Q.dtype.type(weight) * step, 0, self.problem.q_max).astype(Q.dtype)
        return self._point


class MMForNMF(MM):
    """MM that sets the loadings of a factor to 0 if no row has it: only the penalty determines them."""

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> Solver[NDArray[Any]]:
        solved = yield from super().loadings(sums, Q)
        if np.max(self.problem.loadings_penalty) > 0 or self.problem.loadings_ridge > 0:
            solved[self.with_earlier(sums).gram.diagonal() == 0] = 0
        return solved


@dataclass(frozen=True)
class Descent:
    """Result of :func:`descend`."""

    Q: NDArray[Any]
    """Last loadings (k+c, m)."""
    objectives: list[float]
    """Objective at the beginning of each iteration."""
    lagrangians: list[float]
    """Augmented Lagrangian at the beginning of each iteration."""
    converged: bool
    remaining: float
    """Estimated distance of the objective from its limit, relative to its value."""
    sums: Sums
    """Sums of the last pass, from which Q follows."""


MakeSolver = Callable[[NDArray[Any], RowStart], Any]
"""Function that makes a solver which begins at loadings (k+c, m) and this start of the rows."""
Measure = Callable[[Sequence[float]], float]
"""Function that estimates from a history of objectives how far the last one is from the limit."""


def descend(
    solver: ADMM | MM,
    Q: NDArray[Any],
    max_iter: int,
    tol: float,
    report: Callable[[Sequence[float]], None] | None,
    measure: Measure = remaining_change,
    *,
    sample: tuple[int, ...] | None = None,
    view: BlockView | None = None,
    reset: bool = False,
) -> Solver[Descent]:
    """Alternate between a pass over the rows and an update of the loadings Qᵀ (k+c, m).

    Stop when the ``measure`` is less than ``tol`` for the objectives and for the augmented Lagrangians. ``report`` is called
    with all objectives after each pass. The passes run on a ``sample`` of the partitions, by default on all, and on a ``view`` of the
    blocks. With ``reset`` the rows' earlier state is discarded.
    """
    problem, point, earlier = solver.problem, Q, solver.earlier
    pass_: Pass[Any, Any, Sums] = solver.pass_
    objectives: list[float] = []
    lagrangians: list[float] = []
    remaining = float("nan")
    for _ in range(max_iter):
        sums = yield from run(pass_, solver.broadcast(point), view, sample=sample, reset=reset and not objectives)
        penalties = problem.penalties(float(sums.penalty_w), point) + (0.0 if earlier is None else earlier.objective(problem, point))
        objectives.append(sums.loss + penalties)
        lagrangians.append(float(sums.lagrangian) + penalties)
        if report is not None:
            report(objectives)
        Q = yield from solver.loadings(sums, point)
        remaining = max(measure(objectives), measure(lagrangians))
        if remaining < tol:
            return Descent(Q, objectives, lagrangians, converged=True, remaining=remaining, sums=sums)
        point = solver.next_point(Q)
    return Descent(Q, objectives, lagrangians, converged=False, remaining=remaining, sums=sums)


def fit_loadings(
    model: Any,
    solver: ADMM | MM,
    Q: NDArray[Any],
    report: Reporter,
    dtype: np.dtype[Any],
    rows_pass: Callable[..., RowsPass] = RowsPass,
    *,
    reset: bool = False,
) -> Solver[tuple[Descent, Any, StateRows]]:
    """Descend from the loadings Qᵀ (k+c, m), solve every row to its optimum, and set the fitted attributes that ICQF and NMF share.

    Returns the descent, the sums of the ``rows_pass`` that solved the rows, and the row factors [W, C] (n, k+c). With ``reset`` the
    rows begin at their start, though earlier passes have left factors.
    """
    problem = solver.problem
    descent = yield from descend(solver, Q, model.max_iter, model.tol, report.iteration, reset=reset)
    Q = descent.Q
    sums = yield from run(rows_pass(problem, RowStart.from_loadings(Q[: problem.k]), dtype), Q)
    objective = sums.loss + problem.penalties(float(sums.penalty_w), Q)
    model.objective_history_ = np.asarray([*descent.objectives, objective])
    model.n_iter_, model.converged_, model.remaining_ = len(descent.objectives), descent.converged, descent.remaining
    model.explained_share_, model.components_, model.problem_ = sums.explained_share(), Q[: problem.k].copy(), problem
    return descent, sums, (yield from state_rows("factors"))


def initial_loadings(
    init: Any,
    random_state: Any,
    dataset: Dataset,
    problem: Problem,
    n_covariates: int,
    dtype: np.dtype[Any],
    unit: float = 1.0,
    sample: tuple[int, ...] | None = None,
) -> Solver[Start]:
    """Return the start of a fit, with 0 for the loadings of confounders.

    ``init`` is "nndsvd", "random" or loadings (k, m). For weighted rows, "nndsvd" takes the weights divided by ``unit``. It takes the
    rows of a ``sample`` of the partitions, by default all, and all if the columns are in several parts.
    """
    k, m = problem.k, dataset.shape[1]
    uneven = False
    if isinstance(init, str) and init == "random":
        seed = yield from resolve_seed(random_state)
        # Loadings without an upper bound are drawn up to the highest answer.
        upper = np.minimum(problem.q_max, dataset.statistics.maximum.max())
        loadings = np.random.default_rng(seed).uniform(0, upper, (k, m))
        row_start = RowStart(None, seed)
    elif isinstance(init, str):
        view, tolerance = WeightedRows(problem, unit), problem.start_tolerance
        parts = yield from find_column_parts(dataset, dtype, loose=True)
        sample = sample if parts.connected else None
        loadings, projection = yield from nndsvd(m, k, dtype, view=view, tolerance=tolerance, sample=sample, parts=parts)
        row_start = RowStart(projection)
        uneven = begins_badly(loadings.T, parts, dataset)
    else:
        loadings = as_numbers("init", init)
        row_start = RowStart.from_loadings(loadings)
    Q = np.zeros((k + n_covariates, m), dtype)
    Q[:k] = np.clip(loadings, 0, problem.q_max)
    return Start(Q, row_start, uneven)


def best_start(start: Start, problem: Problem, dataset: Dataset, make: MakeSolver) -> Solver[Start]:
    """Return the start from which a short descent ends lowest: this one, or one of random loadings.

    Data whose columns are hardly connected has many local minima, in which components of one group of columns belong to others of
    the next group. The random numbers are the same for all data. The best few are compared after more passes: from a point between,
    with rows at their start for its loadings, a descent may end elsewhere.
    """
    starts = [start]
    for number in range(_ROUNDS[0][1] - 1):
        random = yield from initial_loadings("random", number, dataset, problem, len(start.Q) - problem.k, start.Q.dtype)
        starts.append(random)
    for passes, count in _ROUNDS:
        starts, ends = starts[:count], list[float]()
        for each in starts:
            descent = yield from descend(make(each.Q, each.row_start), each.Q, passes, _SETTLED, None, reset=True)
            ends.append(descent.objectives[-1])
        starts = [starts[i] for i in np.argsort(ends, kind="stable")]
    return replace(starts[0], uneven=True)


def _solve(problem: Problem, sums: Sums, Q: NDArray[Any], weight: float) -> Solver[NDArray[Any]]:
    """Return the Qᵀ with 0 ≤ Q ≤ q_max that minimizes weight/2 ‖B − [W, C]Qᵀ‖² + βγ·penalty(Q), B being the target of the pass."""
    finite = np.isfinite(problem.q_max)
    tolerance = _TOLERANCE * (float(np.min(problem.q_max)) if finite.all() else 1.0)
    strength, upper = (np.full(Q.shape[1], of, np.float64) for of in (problem.loadings_penalty / weight, problem.q_max))
    given = {"Q": Q, "cross": sums.cross, "strength": strength, "upper": upper}
    gram = sums.gram + problem.loadings_ridge * np.eye(len(Q)) if problem.loadings_ridge else sums.gram
    lasso = _Lasso((problem.penalty, problem.norm_p, problem.norm_q), problem.inner, gram, tolerance)
    return (yield from map_columns(lasso, given, column_seconds=_COLUMN_SECONDS * len(Q) ** 2))


@dataclass(frozen=True, eq=False)
class _Lasso:
    """The problems of some items, which share one Gram matrix."""

    penalty: tuple[str, float, float]
    inner: str
    gram: NDArray[np.float64]
    tolerance: float

    def __call__(self, given: StateArrays) -> NDArray[Any]:
        solution = given["Q"].astype(np.float64)
        settings = given["strength"], given["upper"], _SWEEPS, self.tolerance
        solve_columns(self.penalty, self.inner, solution, given["cross"].copy(), self.gram, *settings)
        return solution.astype(given["Q"].dtype)
