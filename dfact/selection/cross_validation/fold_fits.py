"""The fits of one fold of block cross-validation: a warm-started path, or an estimator's own fits."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.base import ArraySource
from dfact.engine.executors import InlineExecutor
from dfact.engine.memory_plan import Footprint, WorkerResources, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.requests import FusedSolver, Solver, drive, run, state_rows
from dfact.errors import MemoryPlanError, ParameterError
from dfact.linalg.svd import nndsvd
from dfact.models.bounded_nmf.passes import RowStart
from dfact.models.bounded_nmf.problem import Problem
from dfact.models.bounded_nmf.solvers import MM, descend
from dfact.models.fit_task import FitTask
from dfact.progress import relative_change
from dfact.selection.cross_validation.folds import Folds
from dfact.selection.cross_validation.masks import FoldMask
from dfact.selection.cross_validation.squared_errors import SquaredErrorPass, sum_squared_errors
from dfact.selection.running.estimators import with_parameters

# Multiples of the model's tolerance: for the first β of a number of components, and for the others, which start from it.
# With 3 and 1 it takes 1.6 times the passes, and errors on eqsq differ by a third of their standard error.
_FIRST_TOLERANCE, _TOLERANCE = 5.0, 2.0


@dataclass(frozen=True)
class Score:
    """The error of a fit on the entries that its fold holds out, and the cost of the fit."""

    squares: float
    count: float
    """Number of these entries, or the sum of their weights."""
    seconds: float
    passes: int


GroupResult = tuple[int, list[Score], NDArray[Any]]
"""Number of a group of configurations, their scores, and the loadings from which the next group starts."""


@dataclass(frozen=True, eq=False)
class FoldTask:
    """The fits of one fold, one after the other."""

    repeat: int
    fold: int
    n_done: int
    """Number of groups of configurations that are finished."""
    previous_loadings: NDArray[Any] | None
    """Loadings from which the next group starts."""


@dataclass(frozen=True, eq=False)
class FoldFits:
    """Base of the fits of all folds, which :mod:`dfact.selection.running.scheduler` runs, by fold."""

    ignored_warnings: ClassVar[str] = "row .* no observed entry"
    task: FitTask[Any]
    """The largest fit, to all of the data."""
    folds: Sequence[Folds]
    """The folds of each repeat."""

    def footprint(self, which: FoldTask) -> Footprint:
        """Return what the fits of a fold hold in memory."""
        return self.task.footprint

    def fits_in_memory(self, count: int, workers: WorkerResources) -> bool:
        """Whether the data, and for each thread a copy of it with the working arrays of a fit, fit within the memory limit."""
        size = int(np.prod(self.task.dataset.shape)) * self.task.dtype.itemsize
        return workers.baseline + size * (1 + 2 * workers.threads) <= workers.limit

    def load_values(self) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the values (n, m), NaN where missing, and the covariates of all rows."""
        parts = self.task.partitions
        return np.concatenate([block.values for block in parts.blocks(self.task.dtype)]), parts.covariates


Scorer = Callable[[Problem, NDArray[Any]], Solver[tuple[float, float]]]
"""Function that returns a solver of Σ (M − R)² over the entries that a fold holds out, and their number, where R is the model of
the last pass's factors and Qᵀ (k+c, m). Both are weighted if the rows have weights."""


class InMemoryScorer:
    """The error on held-out entries in memory: products of the rows and columns of the held-out blocks alone."""

    def __init__(self, M: NDArray[Any], folds: Folds, fold: int, weights: NDArray[Any] | None) -> None:
        positions = [(np.flatnonzero(folds.rows == block), np.flatnonzero(columns)) for block, columns in enumerate(folds.held_out(fold))]
        self._held_out = [(rows, columns, M[np.ix_(rows, columns)]) for rows, columns in positions]
        self._weights = [None if weights is None else weights[rows] for rows, _ in positions]

    def __call__(self, problem: Problem, Q: NDArray[Any]) -> Solver[tuple[float, float]]:
        X = np.concatenate(list((yield from state_rows("factors"))))
        lower, upper = (np.broadcast_to(bound, Q.shape[1]) for bound in (problem.lower, problem.upper))
        errors = [
            sum_squared_errors(M, X[rows] @ Q[:, columns], lower[columns], upper[columns], weights)
            for (rows, columns, M), weights in zip(self._held_out, self._weights, strict=True)
        ]
        return sum(squares for squares, _ in errors), sum(count for _, count in errors)


@dataclass(frozen=True)
class PassScorer:
    """The error on held-out entries by a pass over the data."""

    held_out: FoldMask
    dtype: np.dtype[Any]

    def __call__(self, problem: Problem, Q: NDArray[Any]) -> Solver[tuple[float, float]]:
        errors = yield from run(SquaredErrorPass(problem, self.dtype), Q, self.held_out)
        return float(errors.squares), float(errors.count)


@dataclass(frozen=True)
class GridGroup:
    """Configurations that differ in the penalty alone, in the order in which they are fitted."""

    configurations: tuple[int, ...]
    """Their numbers in the grid."""
    problems: tuple[Problem, ...]
    continues: bool
    """Whether the previous group differs in the number of components alone, which is smaller there."""

    @property
    def k(self) -> int:
        return int(self.problems[0].k)


@dataclass(frozen=True)
class PathSettings:
    """The settings that all fits of a selection share."""

    n_columns: int
    n_covariates: int
    dtype: np.dtype[Any]
    tol: float
    max_iter: int
    restarts: int
    seed: int


@dataclass(frozen=True, eq=False)
class WarmStarts(FoldFits):
    """Fits by passes, each from the solution of the previous one."""

    groups: tuple[GridGroup, ...]
    settings: PathSettings

    def shared(self, which: FoldTask, keep: Callable[[GroupResult], None]) -> FusedSolver[None]:
        """Return the solver of a fold's fits, with the fold's mask as the view of the data."""
        training, held_out = (FoldMask(self.folds[which.repeat], which.fold, held_out=held_out) for held_out in (False, True))
        path = WarmStartPath(self.groups, self.settings, PassScorer(held_out, self.settings.dtype), which)
        return FusedSolver(path.fit_groups(keep), training)

    def prepare_in_memory(self) -> Callable[[FoldTask], Iterator[GroupResult]]:
        """Load the values; return the function that fits to masked copies of them."""
        return partial(_fit_in_memory, *self.load_values(), self.folds, self.groups, self.settings)


def _fit_in_memory(
    M: NDArray[Any],
    C: NDArray[Any] | None,
    folds: Sequence[Folds],
    groups: tuple[GridGroup, ...],
    settings: PathSettings,
    which: FoldTask,
) -> Iterator[GroupResult]:
    """Fit to a copy of the data without the entries that a fold holds out, which are scored apart."""
    mask = FoldMask(folds[which.repeat], which.fold, held_out=False)
    training = mask.apply(M)
    weights = C[:, -1] if groups[0].problems[0].weighted and C is not None else None
    executor, source = InlineExecutor(), ArraySource(training)
    plan = make_plan(source, training.dtype, Footprint(0, 0, 0, 0), executor.workers(None))
    with executor.open(partitions(source, None, C), plan) as session:
        path = WarmStartPath(groups, settings, InMemoryScorer(M, mask.folds, which.fold, weights), which)
        while not path.finished:
            yield drive(path.fit_group(), session)


def from_the_middle(values: Sequence[float]) -> list[int]:
    """Return the positions of the values from the middle one down to the lowest, then of those above it, increasing.

    The middle value is the nearest to all others.
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    middle = (len(order) - 1) // 2
    return order[middle::-1] + order[middle + 1 :]


class WarmStartPath:
    """Fits of the groups of configurations on one fold's data.

    The first configuration of a group starts from the loadings with fewer components, and further
    components from the NNDSVD; the one for the most components holds all others. The rest of the
    group starts from the first. A group depends on ``Qᵀ`` of the previous group alone, so that an
    interrupted path resumes with the same numbers.
    """

    def __init__(self, groups: Sequence[GridGroup], settings: PathSettings, score: Scorer, task: FoldTask) -> None:
        self._groups, self._settings, self._score = groups, settings, score
        self._next, self._previous_loadings = task.n_done, task.previous_loadings
        self._decomposition: tuple[NDArray[Any], NDArray[Any]] | None = None

    @property
    def finished(self) -> bool:
        """Whether all groups have been fitted."""
        return self._next == len(self._groups)

    def fit_groups(self, keep: Callable[[GroupResult], None]) -> Solver[None]:
        """Fit the groups that are not finished, and keep each result."""
        while not self.finished:
            keep((yield from self.fit_group()))

    def fit_group(self) -> Solver[GroupResult]:
        """Fit the next group."""
        s, number, group = self._settings, self._next, self._groups[self._next]
        if self._decomposition is None:
            self._decomposition = yield from nndsvd(s.n_columns, max(group.k for group in self._groups), s.dtype)
        began = time.perf_counter()
        loadings, projection = self._decomposition
        Q, row_start = self._start_group(group, loadings, projection, self._previous_loadings if group.continues else None)
        first, passes = yield from self._fit_first(group.problems[0], Q, row_start)
        Q, scores = first, []
        for i, problem in enumerate(group.problems):
            if i:
                Q, passes, _ = yield from self._fit(problem, Q, None, _TOLERANCE * s.tol)
            squares, count = yield from self._score(problem, Q)
            scores.append(Score(squares, count, time.perf_counter() - began, passes))
            began = time.perf_counter()
        self._next, self._previous_loadings = number + 1, first
        return number, scores, first

    def _start_group(
        self, group: GridGroup, loadings: NDArray[Any], projection: NDArray[Any], previous_loadings: NDArray[Any] | None
    ) -> tuple[NDArray[Any], RowStart]:
        """Return Qᵀ (k+c, m) and the start of the rows."""
        s, k, problem = self._settings, group.k, group.problems[0]
        Q = np.zeros((k + s.n_covariates, s.n_columns), s.dtype)
        Q[:k] = np.clip(loadings[:k], 0, problem.q_max)
        if previous_loadings is None:
            return Q, RowStart(projection[:, :k])
        previous_k = len(previous_loadings) - s.n_covariates
        Q[:previous_k], Q[k:] = previous_loadings[:previous_k], previous_loadings[previous_k:]
        return Q, RowStart.from_loadings(Q[:k])

    def _fit_first(self, problem: Problem, Q: NDArray[Any], row_start: RowStart) -> Solver[tuple[NDArray[Any], int]]:
        """Return the loadings of a group's first fit, from the start with the lowest objective, and the passes of all starts."""
        s, tol = self._settings, _FIRST_TOLERANCE * self._settings.tol
        best, passes, lowest = yield from self._fit(problem, Q, row_start, tol)
        last = best
        for restart in range(s.restarts):
            seed = np.random.SeedSequence(s.seed, spawn_key=(problem.k, restart)).generate_state(1)[0]
            random = np.zeros_like(Q)
            top = np.minimum(problem.q_max, np.finfo(s.dtype).max)
            random[: problem.k] = np.random.default_rng(seed).uniform(0, top, (problem.k, s.n_columns))
            last, n_passes, objective = yield from self._fit(problem, random, RowStart(None, int(seed)), tol)
            passes += n_passes
            if objective < lowest:
                best, lowest = last, objective
        if last is not best:  # the rows' factors belong to another start
            best, n_passes, _ = yield from self._fit(problem, best, RowStart.from_loadings(best[: problem.k]), tol)
            passes += n_passes
        return best, passes

    def _fit(self, problem: Problem, Q: NDArray[Any], row_start: RowStart | None, tol: float) -> Solver[tuple[NDArray[Any], int, float]]:
        """Return loadings, number of passes and objective of a fit; without a row start it starts from the previous fit's rows."""
        s = self._settings
        solver = MM(problem, RowStart(None) if row_start is None else row_start, s.dtype)
        descent = yield from descend(solver, Q, s.max_iter, tol, None, relative_change, reset=row_start is not None)
        return descent.Q, len(descent.objectives), descent.objectives[-1]


@dataclass(frozen=True, eq=False)
class EstimatorFits(FoldFits):
    """Fits by an estimator's own ``fit``, for estimators that accept NaN and rebuild data by ``inverse_transform`` of ``factors_``."""

    model: Any
    configurations: tuple[Mapping[str, Any], ...]

    def shared(self, which: FoldTask, keep: Callable[[GroupResult], None]) -> FusedSolver[None]:
        """Refuse to share reads, as each estimator reads the data itself."""
        raise MemoryPlanError(
            f"the data does not fit in memory, which separate fits of a {type(self.model).__name__} to each fold need; raise memory_limit"
        )

    def prepare_in_memory(self) -> Callable[[FoldTask], Iterator[GroupResult]]:
        """Load the values; return the function that fits the estimator to masked copies of them."""
        weights = None if self.task.dataset.weights is None else self.task.dataset.weights.to_numpy()
        return partial(_fit_estimators, self.load_values()[0], weights, self.folds, self.model, self.configurations)


def _fit_estimators(
    M: NDArray[Any],
    weights: NDArray[Any] | None,
    folds: Sequence[Folds],
    model: Any,
    configurations: tuple[Mapping[str, Any], ...],
    which: FoldTask,
) -> Iterator[GroupResult]:
    """Fit without the columns of which the fold leaves no answer; their answers are modelled as 0."""
    of_repeat = folds[which.repeat]
    held_out = of_repeat.held_out(which.fold)[of_repeat.rows]
    training = np.where(held_out, np.nan, M).astype(M.dtype)
    has_answers = ~np.isnan(training).all(axis=0)
    test = np.where(held_out, M, np.nan)
    for number in range(which.n_done, len(configurations)):
        began = time.perf_counter()
        inline = {"executor": "inline"} if "executor" in model.get_params(deep=False) else {}
        fitted = with_parameters(model, **configurations[number], **inline)
        fitted.fit(np.ascontiguousarray(training[:, has_answers]), **({} if weights is None else {"sample_weight": weights}))
        if not hasattr(fitted, "factors_"):
            raise ParameterError(f"a fitted {type(fitted).__name__} has no factors_, expected an estimator that sets it, such as ICQF()")
        R = np.zeros(M.shape, M.dtype)
        R[:, has_answers] = fitted.inverse_transform(np.asarray(fitted.factors_))
        squares, count = sum_squared_errors(test, R, -np.inf, np.inf, weights)
        yield number, [Score(squares, count, time.perf_counter() - began, getattr(fitted, "n_iter_", 0))], np.empty(0)
