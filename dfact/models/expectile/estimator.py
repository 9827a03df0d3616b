"""Expectile matrix factorization of skewed, partly observed data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset, implicit_as_missing
from dfact.data.dataset import Dataset
from dfact.data.sources.entrance import as_column, as_numbers
from dfact.data.validation import require_observed, warn_unobserved_columns, warn_unobserved_rows
from dfact.engine.memory_plan import Footprint
from dfact.engine.passes import BlockView
from dfact.engine.requests import FusedSolver, Solver, run, run_fused, state_rows
from dfact.engine.threads import single_threaded
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.parts import begins_badly, find_column_parts
from dfact.linalg.svd import gram_size, right_singular, tiled_gram_size
from dfact.models.expectile.alternation import Alternation
from dfact.models.expectile.growth import ColumnSurrogate, GrowthPass, grow_columns, solve_rows, start_of
from dfact.models.expectile.held_out_errors import ErrorMeasure, ExpectileErrors, ExpectileErrorsPass
from dfact.models.expectile.measured_passes import (
    MeasuredMatrix,
    RegressionPass,
    alternate_measured,
    check_measurements,
    measured_start,
)
from dfact.models.expectile.measurements import Measurements
from dfact.models.expectile.passes import ExactPass, Loss, OriginalUnits, Point, RowsPass, RowStart, SurrogatePass, original_units
from dfact.models.expectile.sampled_entries import record_crossings, root_mean_square
from dfact.models.expectile.sampled_start import random_columns, start_best, start_on_sample
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing
from dfact.models.growth.halves import ROUNDS
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.scikit_learn import check_is_fitted
from dfact.models.traits import ModelTraits, Vocabulary
from dfact.parameters import COUNT, FINITE, NOT_NEGATIVE, Values, is_in_range, resolve_seed
from dfact.progress import Iteration, Reporter, remaining_change

_SPARSE = 0.4  # observed share up to which rows are solved exactly by default: a pass takes longer, but fewer are needed
_START_TOLERANCE = 0.1  # of the singular vectors of the start
_RUNAWAY = 2.0  # times the largest entry of the data: a root mean square of the model that is reported


def largest_entry(dataset: Dataset) -> float:
    """Return the largest magnitude of the observed entries, in original units; 1 if all are 0."""
    observed = dataset.statistics.observed > 0
    limits = [(limit + dataset.offset)[observed] for limit in (dataset.statistics.minimum, dataset.statistics.maximum)]
    return float(np.abs(limits).max()) or 1.0


@dataclass(eq=False)
class _End:
    """The end of the iterations: the objective is near its limit, or their number is."""

    max_iter: int
    tol: float
    report: Reporter
    n_iter: int = 0
    converged: bool = False
    remaining: float = float("nan")

    @property
    def reached(self) -> bool:
        return self.converged or self.n_iter >= self.max_iter

    def check(self, history: list[float]) -> None:
        """Count an iteration, after which the ``history`` holds the objectives of its two half-steps."""
        self.n_iter += 1
        objectives = history[1::2]
        self.report.iteration(objectives)
        self.remaining = remaining_change(objectives, quarter=True)
        self.converged = self.remaining < self.tol


_EXPECTILES = Values(lambda value: is_in_range(value, 1e-6, 1 - 1e-6), "a number between 1e-6 and 1 - 1e-6; 0.5 is least squares")
_RIDGES = Values(lambda value: FINITE.accepts(value) and value > 0, "a number above 0, which rows with few observed entries need")
_STARTS = Values(lambda value: not isinstance(value, str) or value in ("svd", "random"), "'svd', 'random' or an array (k, m)")


class ExpectileMF(Growing):
    """Expectile matrix factorization.

    Finds factors X (n, k) of the rows and Y (m, k) of the columns that

        minimize  Σ ρ_τ(b_ij − x_iᵀy_j) + ridge·(‖X‖² + ‖Y‖²),   ρ_τ(t) = t²·|τ − 1(t < 0)|,

    over the observed entries b_ij, so that x_iᵀy_j is the τ-th conditional expectile of an entry.
    τ = ½ is (half of) least squares; τ < ½ draws the model to the lower, denser side of data that is
    skewed to the right. Missing entries (NaN, missing code, implicit entries of a sparse matrix) are left out.

    Rows and columns are solved alternately, in one pass over the rows per iteration: every row is solved to its minimum given Y by
    Newton's method on the signs of its residuals, and the pass sums the Newton step of the columns. The next pass begins with the
    objective after that step; if it has risen, the step is halved. After 30 iterations the steps have momentum. If most entries are
    observed, rows take one step of the same kind with a curvature that all rows share up to a factor, without momentum: no matrix is
    summed and factorized for each row. A fit of large data starts with passes over a sample of its rows, which are not counted as
    iterations.

    Parameters
    ----------
    n_components : int
        Number of components k.
    tau : float
        Level τ of the expectile, ω in the paper, 1e-6 ≤ τ < 1 − 1e-6. :meth:`fit_each` fits several.
    ridge : float
        Weight of ‖X‖² + ‖Y‖², above 0: rows with fewer than k observed entries need it. It has the entries' unit. With the
        default, a noiseless matrix with entries of about 1 or more is recovered to well below 1e-6; far smaller entries
        need a smaller ridge. Noisy data with few entries needs a far larger one, which
        :func:`dfact.selection.select_by_held_out` chooses: of simulated ratings from 1 to 5, of which 6% are known, the
        default predicts held-out ones with errors of 18 to 3800 for 2 to 10 components, 0.5 with 0.92 to 1.17 (4 seeds). No
        default fits both kinds of data, so a warning reports a ridge that is too small.
    solver : "exact", "surrogate" or None
        Solver of the rows; by default "exact" if at most 40% of the entries are observed. Both have the same minimum.
    init : "svd", "random" or array (k, m)
        Initial factors: by the SVD of the data, with 0 for missing entries, divided by the observed share, or random. An array holds
        given factors of the columns.
    orthogonalize : bool
        Whether the factors are transformed to UΣ^½ and VΣ^½ of XYᵀ after every half-step of the columns, which leaves the product
        unchanged and minimizes the ridge's term; the paper takes the QR decomposition.
    max_iter : int
        Maximum number of iterations.
    tol : float
        Stop when the estimated distance of the objective from its limit, relative to its value, falls below this. It needs
        at least 11 iterations; see :func:`dfact.progress.remaining_change`.
    random_state : int, RandomState or None
        Seed of the random start.

    Attributes
    ----------
    row_factors_ : array (n, k)
        X; a Zarr array if the data is stored. Rows without any observed entry have 0.
    column_factors_ : array (m, k)
        Y; the components in the order of their singular values, each with its largest factor of a column positive. Updates scale
        them alone.
    components_ : array (k, m)
        Yᵀ.
    objective_history_ : array
        Objective at the start and after each half-step (rows, columns, rows, …), and of the model itself (last).
    n_iter_, converged_ : int, bool
    remaining_ : float
        Estimated distance of the objective from its limit, relative to its value; NaN after fewer than 11 iterations.
    taus_, crossed_ : arrays (r,)
        After :meth:`fit_each` and :func:`dfact.selection.select_each_by_held_out`: the τ of the r other models, and the share
        of entries at which this model and the other are in the wrong order, the lower τ above the higher one. Separate fits can lead to
        this. The share refers to all rows, or to evenly spaced ones with 4 million entries. Updates drop both.

    Raises
    ------
    DataError
        No observed entry, or infinite entries.
    ParameterError
        τ outside its range, a ridge that is not above 0.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    Warns
    -----
    UserWarning
        Rows or columns without any observed entry: their factors are 0. The root mean square of the model's entries (those of
        ``crossed_``) is above twice the largest observed magnitude: the ridge is too small for the noise.

    References
    ----------
    Zhu et al. (2017): equations (1)-(3), algorithm 1, theorem 2.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> M = rng.random((60, 3)) @ rng.random((3, 40))
    >>> model = dfact.ExpectileMF(n_components=3, tau=0.1).fit(np.where(rng.random(M.shape) < 0.5, M, np.nan))
    >>> bool(np.allclose(model.predict_entries([0, 1], [5, 6]), M[[0, 1], [5, 6]], atol=1e-3))
    True
    """

    traits = ModelTraits(
        Vocabulary("component", "components", "rows", "columns", "Factors of the columns", "factor", "entries"),
        implicit="missing",
        original_units=True,
        limited_parameters=("ridge",),
    )

    objective_history_: Annotated[NDArray[Any], Shape((None,), finite=False)]
    n_iter_: int
    converged_: bool
    remaining_: Annotated[float, OPTIONAL]
    row_factors_: Annotated[Any, Shape(("n", "k"), rows=True)]
    column_factors_: Annotated[NDArray[Any], Shape(("m", "k"))]
    sums_: Annotated[ColumnSurrogate, OPTIONAL]
    saved_sums = (ColumnSurrogate,)
    taus_: Annotated[NDArray[np.float64], Shape(("others",)), OPTIONAL]
    crossed_: Annotated[NDArray[np.float64], Shape(("others",), low=0), OPTIONAL]

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 10,
        *,
        tau: Annotated[float, _EXPECTILES] = 0.5,
        ridge: Annotated[float, _RIDGES] = 1e-8,
        solver: Literal["exact", "surrogate"] | None = None,
        init: Annotated[Literal["svd", "random"] | Any, _STARTS] = "svd",
        orthogonalize: bool = True,
        max_iter: Annotated[int, COUNT] = 200,
        tol: Annotated[float, NOT_NEGATIVE] = 1e-4,
        random_state: Any = None,
        executor: Any = None,
        memory_limit: int | str | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 10,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.tau = tau
        self.ridge = ridge
        self.solver = solver
        self.init = init
        self.orthogonalize = orthogonalize
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def fit_each(self, X: Any, taus: Sequence[float]) -> list[Self]:
        """Fit a model for each τ, with the other parameters of this one. The fits share each read of X, and write no checkpoint.

        The models have the shares of entries at which their order is wrong in ``crossed_``.

        Parameters
        ----------
        X : array (n, m), path or Dataset
            NaN is missing.
        taus : sequence of floats
            Levels τ of the expectiles, between 0 and 1.

        Returns
        -------
        list of ExpectileMF
            The fitted models, in the order of the levels.
        """
        if np.ndim(taus) != 1 or not len(taus):
            raise ParameterError(f"taus is {taus!r}, expected a list of at least one number between 0 and 1")
        models = [type(self)(**self.get_params(deep=False) | {"tau": tau}) for tau in taus]
        for model in models:
            model._check_parameters()
        task = models[0].prepare(X)
        with task.times(len(models)).open_session() as session:
            solvers = [FusedSolver(model.solve(task)) for model in models]
            run_fused(solvers, session, task.dtype)
        record_crossings(models)
        return models

    def _loss(self) -> Loss:
        return Loss(float(self.tau), float(self.ridge))  # numbers of other types would compile kernels of their own

    def _prepare(self, X: Any) -> FitTask[OriginalUnits]:
        dataset = self._observed(X, reset=True)
        return self._task(dataset, original_units(dataset))

    def _solve(self, task: FitTask[Any]) -> Solver[None]:
        dtype = task.dtype
        if isinstance(task.problem, MeasuredMatrix):
            yield from self._solve_measured(task)
            return
        row_start, Y, uneven = yield from self.initial_factors(task)
        problem = (task.problem, self._loss(), row_start, dtype)
        pass_: Any = ExactPass(*problem) if self._is_exact(task.dataset) else SurrogatePass(*problem)
        alternation = Alternation(pass_.loss, Y, dtype, orthogonalize=self.orthogonalize)
        report = Reporter(self.callbacks, self.max_iter)
        if uneven:
            pass_, alternation = yield from start_best(pass_, alternation, task.dataset, report)
        else:
            pass_ = yield from start_on_sample(pass_, alternation, task.dataset, report)
        end = _End(self.max_iter, self.tol, report)
        while not end.reached:
            alternation.update((yield from run(pass_, alternation.point)))
            end.check(alternation.history)
        point, sums, objective = yield from solve_rows(GrowthPass(*problem), alternation)
        self._set_end(end, np.asarray([*alternation.history, objective]))
        self.sums_ = ColumnSurrogate.of(sums, point.Y)
        self._begin_growth(task, sums)
        self.column_factors_, rows = point.Y.astype(dtype), (yield from state_rows("factors"))
        self.row_factors_ = task.gather(replace(rows, convert=partial(np.asarray, dtype=dtype)), self.n_components)
        if task.wants_rows:
            self._warn_of_runaway_entries(task.dataset)

    def _no_sums(self) -> str:
        return super()._no_sums().replace("was saved", "was fitted to linear measurements, or saved")

    def _prepare_update(self, X: Any) -> FitTask[OriginalUnits]:
        dataset = self._observed(X, reset=False)
        return self._task(dataset, original_units(dataset))

    def _measure(self, task: FitTask[OriginalUnits]) -> Solver[Baseline]:
        Y = self.column_factors_.astype(np.float64)
        pass_ = GrowthPass(task.problem, self._loss(), start_of(task, Y), task.dtype)
        return (yield from run(pass_, Point(Y)))

    def _grow(self, task: FitTask[OriginalUnits]) -> Solver[Added]:
        new, loss, report = task.dataset.shape[0], self._loss(), Reporter(self.callbacks, ROUNDS)
        share, Y = new / (new + self.growth_.n_rows), self.column_factors_.astype(np.float64)
        update = yield from grow_columns(self.sums_, task, share, loss, Y, report, orthogonalize=self.orthogonalize)
        self.objective_history_ = np.asarray([*self.objective_history_, *update.objectives])
        self.column_factors_, self.sums_ = update.Y.astype(self.column_factors_.dtype), update.surrogate
        for name in ("taus_", "crossed_"):  # they compare the model with others of the same rows
            self.__dict__.pop(name, None)
        return Added((yield from state_rows("factors")), update.sums, update.gain, update.scales)

    def _set_row_factors(self, factors: Any) -> None:
        self.row_factors_ = factors

    def _warn_of_runaway_entries(self, dataset: Dataset) -> None:
        largest = largest_entry(dataset)
        size = root_mean_square(self)
        if size > _RUNAWAY * largest:
            found = f"the model's entries have a root mean square of {size:.3g}, and the largest of the data is {largest:.4g}"
            cause = f"{self.n_components} components fit the noise of few entries with a ridge of {self.ridge:g}"
            remedy = "choose the ridge with dfact.selection.select_by_held_out or dfact select emf"
            warn(f"{found}: {cause}; {remedy}")

    def _set_end(self, end: _End, history: NDArray[np.float64]) -> None:
        self.objective_history_, self.n_iter_, self.converged_, self.remaining_ = history, end.n_iter, end.converged, end.remaining

    def initial_factors(self, task: FitTask[OriginalUnits]) -> Solver[tuple[RowStart, NDArray[np.float64], bool]]:
        """Return the start of the rows' factors, Y (m, k), and whether it begins near a saddle: columns with entries begin near 0."""
        dataset, units = task.dataset, task.problem
        m, k = dataset.shape[1], self.n_components
        if isinstance(self.init, str) and self.init == "svd":
            rank = min(k, m)  # the other components begin at 0
            parts = yield from find_column_parts(dataset, task.dtype, loose=True)
            V, sigma = yield from right_singular(m, rank, task.dtype, view=units, tolerance=_START_TOLERANCE, parts=parts)
            root = np.sqrt(sigma / (1 - dataset.missing_rate))
            Y, projection = np.zeros((m, k)), np.zeros((m, k))
            Y[:, :rank] = V * root
            projection[:, :rank] = V * (root / np.where(sigma > 0, sigma, 1.0))
            return RowStart(units, projection), Y, begins_badly(Y, parts, dataset)
        if isinstance(self.init, str):
            seed = yield from resolve_seed(self.random_state)
            statistics = dataset.statistics
            largest = max(-statistics.minimum.min(), statistics.maximum.max())
            Y = random_columns(m, k, largest, seed)
        else:
            Y = as_numbers("init", self.init).T.copy()
        return RowStart(units, np.zeros((m, k))), Y, False

    def held_out_errors(self, task: FitTask[OriginalUnits], held_out: BlockView, measure: ErrorMeasure) -> Solver[ExpectileErrors]:
        """Solve the task on a view of the blocks. Return the errors on the entries of the view ``held_out``."""
        yield from self.solve(task)
        pass_ = ExpectileErrorsPass(task.problem, measure, self.tau, task.dtype)
        return (yield from run(pass_, self.column_factors_.astype(np.float64), held_out))

    def fit_measurements(self, A: Any, b: Any, shape: tuple[int, int]) -> Self:
        """Fit linear measurements b_i ≈ ⟨A_i, XYᵀ⟩ of an n×m matrix, ``shape``.

        The method minimizes Σ ρ_τ(b_i − ⟨A_i, XYᵀ⟩) + ridge·(‖X‖² + ‖Y‖²) over X and Y in turn, each half-step to its minimum
        (algorithm 1). It starts from the SVD of Σ b_i A_i and works in double precision; ``init``, ``solver`` and ``dtype`` are
        ignored. The matrices A_i are finite, row-major in A (p, n, m), (p, n·m) or sparse (p, n·m); the measurements are b (p,).

        Those of a dataset or its path are read block by block, with the executor and within the memory limit. A trial of Newton's
        method is one pass over them, and two to four are needed for a half-step. The normal equations, of width max(n, m)·k, are in
        memory. Implicit entries of a sparse dataset are 0.

        Parameters
        ----------
        A : array (p, n, m) or (p, n·m), or sparse (p, n·m), path or Dataset (p, n·m)
            The matrices A_i.
        b : array (p,)
            The measurements.
        shape : (int, int)
            Numbers n and m of rows and columns.

        Returns
        -------
        self
            The fitted model.
        """
        if isinstance(A, (str, PathLike, Dataset)):
            return self.fit_prepared(self.prepare_measurements(A, b, shape))
        self._check_parameters()
        measurements, loss = Measurements.from_arrays(A, b, shape), self._loss()
        with single_threaded():
            X, Y = measurements.start(self.n_components)
            history = [measurements.objective(X, Y, loss)]

            end = _End(self.max_iter, self.tol, Reporter(self.callbacks, self.max_iter))
            while not end.reached:
                X, Y = measurements.alternate(X, Y, loss, history, orthogonalize=self.orthogonalize)
                end.check(history)
        self._set_end(end, np.asarray([*history, measurements.objective(X, Y, loss)]))
        self.row_factors_, self.column_factors_ = X, Y
        for name in ("sums_", "growth_"):  # of an earlier fit to rows
            self.__dict__.pop(name, None)
        self._describe_measured(shape[1])
        return self

    def prepare_measurements(self, A: Any, b: Any, shape: tuple[int, int]) -> FitTask[MeasuredMatrix]:
        """Check and plan :meth:`fit_measurements` of a dataset or its path, which ``fit_prepared`` runs; nothing is fitted.

        Parameters
        ----------
        A, b, shape
            Measurement matrices, measurements and shape of the matrix, as for :meth:`fit_measurements`; A is a dataset or its path.

        Returns
        -------
        FitTask
            The task of a copy of this model.
        """
        fitted = type(self)(**self.get_params(deep=False))
        fitted._check_parameters()
        dataset = as_dataset(A)
        problem, values = check_measurements(dataset, b, shape)
        fitted._describe_measured(problem.m)
        footprint = problem.footprint(self.n_components)
        return fitted._task(
            dataset, problem, covariates=values[:, None], footprint=footprint, dtype=np.dtype(np.float64), measured=(problem.n, problem.m)
        )

    def _solve_measured(self, task: FitTask[MeasuredMatrix]) -> Solver[None]:
        pass_ = RegressionPass(task.problem, self._loss())
        X, Y = yield from measured_start(task.problem, self.n_components)
        start = yield from run(pass_, ("rows", Y, X.ravel(), X.ravel()))
        ridge, loss = self._loss().ridge, float(start.loss)
        history = [loss + ridge * float(np.vdot(X, X) + np.vdot(Y, Y))]
        end = _End(self.max_iter, self.tol, Reporter(self.callbacks, self.max_iter))
        while not end.reached:
            X, Y, loss = yield from alternate_measured(pass_, X, Y, history, orthogonalize=self.orthogonalize)
            end.check(history)
        self._set_end(end, np.asarray([*history, loss + ridge * float(np.vdot(X, X) + np.vdot(Y, Y))]))
        self.row_factors_, self.column_factors_ = X, Y

    def _describe_measured(self, m: int) -> None:
        """Set the attributes that describe the columns of a measured matrix, and none of a dataset."""
        self.n_features_in_ = m
        self.column_labels_ = np.arange(m).astype(str).astype(object)
        self.offset_ = self.fingerprint_ = self.row_labels_ = self.codebook_ = None
        self.variants_ = self.data_kind_ = self.row_populations_ = None

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the factors (n, k) of rows X (n, m) given those of the columns, each row at its minimum.

        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._observed(X, reset=False)
        units, task = original_units(dataset), self._task(dataset)
        Y = self.column_factors_.astype(np.float64)
        pass_ = RowsPass(units, self._loss(), RowStart(units, np.zeros_like(Y)), task.dtype)
        return task.compute_rows(pass_, Point(Y), Y.shape[1], out, partial(np.asarray, dtype=task.dtype))[1]

    def inverse_transform(self, factors: Any) -> NDArray[Any]:
        """Return the model's entries (n, m) for factors of the rows (n, k)."""
        factors = self._as_factors(factors)
        entries: NDArray[Any] = (factors @ self.column_factors_.T).astype(factors.dtype)
        return entries

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the model's entries (n, m) of rows X, known or not: each row at its minimum given the factors of the columns.

        Parameters
        ----------
        X : array (n, m), path or Dataset
            Rows with the columns of the fit. NaN is missing.

        Returns
        -------
        array (n, m)
            The entries, in memory.
        """
        return self.inverse_transform(np.asarray(self.transform(X)))

    def predict_entries(self, rows: Any, columns: Any) -> NDArray[Any]:
        """Return the model's entries at pairs of fitted rows and columns, numbered from 0, of equal or broadcastable shapes.

        Parameters
        ----------
        rows, columns : arrays of int
            Numbers of the rows and columns of each pair, of equal or broadcastable shapes.

        Returns
        -------
        array (…)
            The entries, in the broadcast shape.

        Raises
        ------
        DataError
            A number is outside the fitted data.
        """
        check_is_fitted(self)
        indices = []
        for kind, argument, size in (("rows", rows, self.row_factors_.shape[0]), ("columns", columns, len(self.column_factors_))):
            numbers = np.asarray(as_column(argument, kind))
            if numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= size):
                raise DataError(f"{kind} hold {numbers.ravel()[:5].tolist()}…, expected whole numbers from 0 to {size - 1}")
            indices.append(numbers.astype(np.intp))
        i, j = np.broadcast_arrays(*indices)
        unique_rows, inverse = np.unique(i, return_inverse=True)
        # Each row of a Zarr array is read once.
        X = np.asarray(self.row_factors_.oindex[unique_rows] if hasattr(self.row_factors_, "oindex") else self.row_factors_[unique_rows])
        entries: NDArray[Any] = np.einsum("...k,...k->...", X[inverse.reshape(i.shape)], self.column_factors_[j])
        return entries

    @property
    def components_(self) -> NDArray[Any]:  # type: ignore[override]  # derived from the columns' factors
        """Factors of the columns (k, m)."""
        return self.column_factors_.T

    @property
    def factors_(self) -> Any:
        """Factors of the rows, under the name that all factorizations share."""
        return self.row_factors_

    def _observed(self, X: Any, *, reset: bool) -> Dataset:
        """Return X with its implicit entries as missing. Warn of unobserved rows and columns."""
        dataset = implicit_as_missing(self._dataset(X, None, reset=reset))
        if reset:
            require_observed(dataset)
        warn_unobserved_rows(dataset)
        if reset:
            self._check_init(dataset.shape[1])
            warn_unobserved_columns(dataset)
        return dataset

    def _check_init(self, m: int) -> None:
        if isinstance(self.init, str):
            return
        k = self.n_components
        if np.shape(self.init) != (k, m):
            raise ParameterError(f"init has shape {np.shape(self.init)}, expected (n_components, n_features) = ({k}, {m})")
        if not np.isfinite(as_numbers("init", self.init)).all():
            raise ParameterError("init holds NaN or infinity, expected finite factors")

    def _check_observed(self, dataset: Dataset, *, reset: bool) -> None:
        """Do nothing: ``_observed`` checks after implicit entries have become missing."""

    def _is_exact(self, dataset: Dataset) -> bool:
        if self.solver is not None:
            return self.solver == "exact"
        return dataset.source.is_sparse or 1 - dataset.missing_rate <= _SPARSE

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        k, m, size = self.n_components, shape[1], dtype.itemsize
        columns = m * (2 * k + 6 + k * (k + 1) // 2)
        return Footprint(
            state_per_row=2 * 8 * k,
            work_per_row=2 * size * m + 12 * m + 4 * 8 * k,
            broadcast=8 * (columns + gram_size(m, k)) + size * tiled_gram_size(m, k),
            result_per_row=size * k,
            tiled=8 * tiled_gram_size(m, k),
        )
