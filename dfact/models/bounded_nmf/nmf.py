"""NMF: non-negative matrix factorization with the losses, penalties and names of scikit-learn."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.sources.sparse import SparseSource
from dfact.data.statistics import as_float
from dfact.data.validation import locate_outside
from dfact.data.weights import WeightSummary, check_weights, weight_series
from dfact.engine.memory_plan import Footprint
from dfact.engine.passes import BlockView
from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.models.bounded_nmf.divergence import DivergenceDescent, DivergenceRowsPass, LossPass
from dfact.models.bounded_nmf.growth import Surrogate, grow_loadings
from dfact.models.bounded_nmf.passes import RowsPass, RowStart
from dfact.models.bounded_nmf.problem import STARTS, NMFProblem, Problem, check_size
from dfact.models.bounded_nmf.solvers import SAMPLE_SHARE, MMForNMF, best_start, descend, fit_loadings, initial_loadings
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing
from dfact.models.growth.halves import ROUNDS
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.scikit_learn import OF_NMF, check_is_fitted
from dfact.models.traits import ModelTraits
from dfact.parameters import COUNT, FINITE, NOT_NEGATIVE, Values, is_in_range
from dfact.progress import Iteration, Reporter

RHO = 3.0  # without bounds it has no effect
_STORED_BYTES = 32  # of a stored entry at the end of a fit: the entry and its square in double precision, and their positions
_SAMPLE_ROWS = 50  # least rows of a sample for each component, for singular vectors of the sample alone
_COLUMN_SUMS = 12  # of each column, at the end of a fit
_SHARE = Values(lambda value: is_in_range(value, 0) and value <= 1, "a number from 0 to 1")
_FINITE_OR_SAME = Values(
    lambda value: value == "same" if isinstance(value, str) else is_in_range(value, 0) and value < np.inf,
    "a finite number of at least 0, or 'same'",
)


class NMF(Growing):
    """Non-negative matrix factorization.

    Finds factors W (n, k) of the rows and loadings Q (m, k) of the columns that

        minimize  L(M, WQᵀ) + α_W m (ρ‖W‖₁ + (1 − ρ)/2 ‖W‖²) + α_H n (ρ‖Q‖₁ + (1 − ρ)/2 ‖Q‖²),   W, Q ≥ 0,

    for data M (n, m) ≥ 0. The loss L sums over the observed entries x and their model r: ½(x − r)² ("frobenius"), or
    x log (x/r) − x + r ("kullback-leibler"), the likelihood of Poisson counts. It is scikit-learn's objective, with ρ = ``l1_ratio``.
    Entries that a sparse matrix does not store are zeros, which are observed. With weights s of the rows, relative to their mean, a
    row's terms of the loss and of the penalty are multiplied by s.

    The squared loss is minimized by the solver of :class:`dfact.ICQF` without bounds: coordinate descent of the rows and of the
    columns with extrapolated loadings. Missing entries are filled in by the model. The Kullback-Leibler divergence is minimized by
    coordinate descent with Newton steps in the rows (Hsieh & Dhillon 2011; Hien & Gillis 2021), and by multiplicative steps (Lee &
    Seung 2001) in the columns, which are extrapolated in their logarithms. An iteration is one pass over the rows. At the end every
    row is solved to its optimum given Q, so that ``factors_`` equals the ``transform`` of the same rows. Sparse data without
    missing entries costs time in proportion to the stored entries. Confounders of a dataset are not used.

    Parameters
    ----------
    n_components : int
        Number of components k.
    loss : "frobenius" or "kullback-leibler"
        Loss of an entry: squared error, or the Kullback-Leibler divergence, which suits counts.
    alpha_W : float
        Weight α_W of the penalty of the factors.
    alpha_H : float or "same"
        Weight α_H of the penalty of the loadings; "same" takes that of the factors.
    l1_ratio : float
        Share ρ of the ℓ1 penalty, from 0 to 1; the rest is the squared ℓ2 penalty.
    init : "nndsvd", "random" or array (k, m)
        Initial loadings: NNDSVD of the data with zeros for the missing entries, or uniformly random up to the highest entry. An
        array holds given loadings. With the Kullback-Leibler divergence, zeros are replaced by a tenth of the component's mean.
    max_iter : int
        Maximum number of iterations.
    tol : float
        Stop when the estimated distance of the objective from its limit, relative to its value, falls below this. It needs
        at least 11 iterations; see :func:`dfact.progress.remaining_change`.
    random_state : int, RandomState or None
        Seed of the random start.

    Attributes
    ----------
    components_ : array (k, m)
        Qᵀ.
    factors_ : array (n, k)
        W; a Zarr array if the data is stored.
    loadings_ : DataFrame
        Q as a table, columns of the data × components.
    objective_history_ : array
        Objective at the start, after each iteration, and of the model itself (last).
    reconstruction_err_ : float
        √(2 L) of the model, which is ‖M − WQᵀ‖ for the squared loss and complete data, as scikit-learn's.
    n_iter_, converged_ : int, bool
    remaining_ : float
        Estimated distance of the objective from its limit, relative to its value; NaN after fewer than 11 iterations.
    explained_share_ : float
        1 − L(M, WQᵀ)/L(M, column means): the share of the variance, or of the deviance, that the model explains.
    weighted_ : bool
        Whether the rows have weights.
    n_effective_ : float
        Kish's effective number of rows, (Σw)²/Σw²; n without weights. It leaves out strata and clusters of the sample.

    Raises
    ------
    DataError
        Negative or infinite entries, a column without any entry.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    References
    ----------
    Cichocki & Phan (2009), doi:10.1587/transfun.E92.A.708; Lee & Seung (2001); Hsieh & Dhillon (2011), doi:10.1145/2020408.2020577;
    Hien & Gillis (2021), doi:10.1007/s10915-021-01504-0.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> counts = np.random.default_rng(0).poisson(2.0, (200, 12))
    >>> model = dfact.NMF(n_components=3, loss="kullback-leibler").fit(counts)
    >>> model.loadings_.shape
    (12, 3)
    """

    objective_history_: Annotated[NDArray[Any], Shape((None,), finite=False)]
    n_iter_: int
    converged_: bool
    remaining_: Annotated[float, OPTIONAL]
    explained_share_: float
    reconstruction_err_: float
    factors_: Annotated[Any, Shape(("n", "k"), rows=True)]
    problem_: NMFProblem
    sums_: Annotated[Surrogate, OPTIONAL]
    saved_sums = (Surrogate,)
    traits = ModelTraits(
        nonnegative=True,
        copies_weights=True,
        warm_starts=True,
        limited_parameters=("alpha_W",),
        loading_intervals=False,  # the data hardly determine the scale of a factor
    )
    saved_types = (NMFProblem,)
    foreign = OF_NMF

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 8,
        *,
        loss: Literal["frobenius", "kullback-leibler"] = "frobenius",
        alpha_W: Annotated[float, FINITE] = 0.0,
        alpha_H: Annotated[float | str, _FINITE_OR_SAME] = "same",
        l1_ratio: Annotated[float, _SHARE] = 0.0,
        init: Annotated[Literal["nndsvd", "random"] | Any, STARTS] = "nndsvd",
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
        self.loss = loss
        self.alpha_W = alpha_W
        self.alpha_H = alpha_H
        self.l1_ratio = l1_ratio
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def fit(self, X: Any, y: None = None, *, sample_weight: Any = None, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Fit the data X (n, m): any array, path or Dataset; NaN is missing.

        ``sample_weight`` holds n numbers of at least 0, such as survey weights; a Dataset or path has its own, and
        ``Dataset.with_weights(None)`` leaves them out. A weight, divided by the mean of all weights above 0, multiplies its row's
        terms of the objective and its share of the penalty, so only their ratios matter. ``checkpoint`` overrides the parameter.
        """
        del y
        return self.fit_prepared(self.prepare(X, sample_weight=sample_weight), checkpoint=checkpoint)

    def _prepare(self, X: Any, sample_weight: Any = None) -> FitTask[Any]:
        dataset = self._dataset(X, None, sample_weight, reset=True)
        self._check_range(dataset)
        check_size(self.n_components, self.init, dataset)
        weights = self._weight_summary(dataset)
        problem = self._make_problem(dataset, weights)
        if weights is None:
            return self._task(dataset, problem)
        relative = np.asarray(dataset.weights, np.float64) / weights.mean
        return self._task(dataset, problem, covariates=relative[:, None].astype(self._working_dtype(dataset)))

    def _make_problem(self, dataset: Dataset, weights: WeightSummary | None) -> Problem:
        m = dataset.shape[1]
        n = dataset.shape[0] if weights is None else weights.n_positive
        factors = m * float(self.alpha_W)
        loadings = n * float(self.alpha_W if self.alpha_H == "same" else self.alpha_H)
        return NMFProblem(
            self.n_components,
            factors * self.l1_ratio,
            1.0,
            RHO,
            np.inf,
            np.inf,
            0.0,
            np.inf,
            weighted=weights is not None,
            loss=self.loss,
            ridge_w=factors * (1 - self.l1_ratio),
            l1_q=loadings * self.l1_ratio,
            ridge_q=loadings * (1 - self.l1_ratio),
            masked=_has_missing(dataset),
        )

    def _solve(self, task: FitTask[Any]) -> Solver[None]:
        report = Reporter(self.callbacks, self.max_iter)
        solver, Q, reset = yield from self._start(task, report)
        descent, sums, rows = yield from fit_loadings(self, solver, Q, report, task.dtype, _rows_pass, reset=reset)
        if not task.problem.divergence:
            self.sums_ = Surrogate.of(descent.sums, descent.Q, sums)
            self._begin_growth(task, sums)
        self.reconstruction_err_ = float(np.sqrt(2 * max(sums.loss, 0.0)))
        self.factors_ = task.gather(rows, task.problem.k)

    def _never_grows(self) -> str:
        if self.loss == "kullback-leibler":
            return "an NMF with the loss 'kullback-leibler' keeps no sums of its rows, expected 'frobenius' to add rows; fit all again"
        return ""

    def _prepare_update(self, X: Any, sample_weight: Any = None) -> FitTask[Any]:
        dataset = self._new_rows(X, None, sample_weight)
        self._check_range(dataset)
        if dataset.weights is not None:
            raise DataError("the rows have weights, whose mean over all rows is the unit of the objective; fit all rows again")
        problem = self._grown_problem(dataset.shape[0])
        return self._task(dataset, replace(problem, masked=_has_missing(dataset)) if isinstance(problem, NMFProblem) else problem)

    def _grown_problem(self, n: int) -> Problem:
        """Return the problem with n more rows, in proportion to whose number the loadings are penalized."""
        return self.problem_.on_share(1 + n / self.growth_.n_rows)

    def _measure(self, task: FitTask[Any]) -> Solver[Baseline]:
        Q = self.components_.astype(task.dtype)
        return (yield from run(RowsPass(task.problem, RowStart.from_loadings(Q), task.dtype), Q))

    def _grow(self, task: FitTask[Any]) -> Solver[Added]:
        n, seen = task.dataset.shape[0], self.growth_.n_rows
        report, Q = Reporter(self.callbacks, ROUNDS), self.components_.astype(task.dtype)
        update = yield from grow_loadings(self, task.problem, Q, report, task.dtype, n / (n + seen), MMForNMF)
        self.n_effective_ += n
        self.reconstruction_err_ = float(np.sqrt(2 * max(self.sums_.loss(update.Q), 0.0)))
        return Added(update.rows, update.sums, update.gain)

    def held_out_deviance(self, task: FitTask[Any], held_out: BlockView) -> Solver[NDArray[np.float64]]:
        """Solve the task on a view of the blocks.

        Return the loss of the entries of the view ``held_out``, their number, and the number of passes; both weighted if the rows are.
        """
        task = replace(task, problem=replace(task.problem, masked=True))
        solver, Q, reset = yield from self._start(task, Reporter((), self.max_iter))
        descent = yield from descend(solver, Q, self.max_iter, self.tol, None, reset=reset)
        losses = yield from run(LossPass(task.problem, task.dtype), descent.Q, held_out)
        return np.array([float(losses.total), float(losses.count), float(len(descent.objectives))])

    def _start(self, task: FitTask[Any], report: Reporter) -> Solver[tuple[Any, NDArray[Any], bool]]:
        """Return the solver, the initial loadings Qᵀ (k, m), and whether earlier passes have left factors that do not belong to them."""
        problem, dtype = task.problem, task.dtype
        unit, weights = 1.0, task.dataset.weight_summary()
        if isinstance(problem, NMFProblem) and weights is not None:
            unit = weights.unit / weights.mean  # weights of whole numbers start as copies do
        sample = self._start_sample(task)
        start = yield from initial_loadings(self.init, self.random_state, task.dataset, problem, 0, dtype, unit, sample)

        def make(Q: NDArray[Any], row_start: RowStart) -> Any:
            if problem.divergence:
                return DivergenceDescent(problem, DivergenceDescent.fill_start(Q), dtype)
            return MMForNMF(problem, row_start, dtype)

        if start.uneven:
            start = yield from best_start(start, problem, task.dataset, make)
        elif isinstance(self.init, str) and not problem.divergence:
            sampled = MMForNMF.with_sample_start(problem, start.Q, start.row_start, dtype, task.layout, report)
            return *(yield from sampled), False
        Q = start.Q
        return make(Q, start.row_start), DivergenceDescent.fill_start(Q) if problem.divergence else Q, start.uneven

    def _start_sample(self, task: FitTask[Any]) -> tuple[int, ...] | None:
        """Return the partitions of which the singular vectors of the start are those, None for all.

        With the stored entries alone, a pass for these costs more than one of the fit, which begins with the same sample.
        """
        layout = task.layout
        sample = layout.sample(SAMPLE_SHARE) if task.footprint.reads_stored and not task.problem.divergence else ()
        n_rows = sum(rows.stop - rows.start for rows in (layout.rows(i, i + 1) for i in sample))
        return sample if n_rows >= _SAMPLE_ROWS * self.n_components else None

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the factors W (n, k) of rows X (n, m) given the loadings, each row at its optimum.

        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, None, reset=False)
        self._check_range(dataset)
        problem: Problem = replace(self.problem_, weighted=False)
        if isinstance(problem, NMFProblem):
            problem = replace(problem, masked=_has_missing(dataset))
        task = self._task(dataset, problem)
        Q = self.components_.astype(task.dtype)
        return task.compute_rows(_rows_pass(task.problem, RowStart.from_loadings(Q), task.dtype), Q, len(Q), out)[1]

    def column_loadings(self, X: Any, *, sample_weight: Any = None) -> NDArray[Any]:
        """Return the loadings of other columns of the fitted rows, each at its optimum given the factors.

        Parameters
        ----------
        X : array of any kind, path or Dataset (n, m)
            Other columns of the rows of the fit, in their order.
        sample_weight : array (n,), optional
            Weights of the rows, of which only ratios matter; all are equal by default.

        Returns
        -------
        array (m, k)
            Their loadings.
        """
        check_is_fitted(self)
        p, W = self.problem_, np.asarray(self.factors_, np.float64)
        scale: NDArray[np.floating] = np.ones(len(W))
        if sample_weight is not None:
            check_weights(series := weight_series(sample_weight, len(W)))
            relative = series.to_numpy() / WeightSummary.of(series).mean
            scale = relative if p.divergence else np.sqrt(relative)
        other = as_dataset(X)
        columns: Any = as_float(other.source.read_native(0, other.shape[0]), other.missing_code, np.dtype(np.float64)).T
        dataset = as_dataset(columns.multiply(scale).tocsr() if other.source.is_sparse else np.ascontiguousarray(columns * scale))
        problem = replace(p, beta=p.l1_q, ridge_w=p.ridge_q, weighted=False, masked=_has_missing(dataset))
        task = self._task(dataset, problem)
        transposed = np.ascontiguousarray((W * scale[:, None]).T, task.dtype)
        pass_ = _rows_pass(problem, RowStart.from_loadings(transposed), task.dtype)
        return np.asarray(task.compute_rows(pass_, transposed, len(transposed), None)[1])

    def inverse_transform(self, W: Any) -> NDArray[Any]:
        """Return the model's entries WQᵀ (n, m) for factors W (n, k)."""
        W = self._as_factors(W)
        entries: NDArray[Any] = (W @ self.components_).astype(W.dtype)
        return entries

    def _check_range(self, dataset: Dataset) -> None:
        lowest = dataset.statistics.minimum[dataset.statistics.observed > 0].min(initial=0)
        if lowest < 0:
            where = locate_outside(dataset, 0.0, np.inf)
            found = f"Negative values in data passed to {type(self).__name__}: {where}"
            raise DataError(f"{found}; shift the answers to start at 0, and mark missing ones as NaN")

    def _task(self, dataset: Dataset, problem: Any = None, **settings: Any) -> FitTask[Any]:
        """Return the task of a fit, whose passes read the stored entries alone if no entry of sparse data is missing."""
        task = super()._task(dataset, problem, **settings)
        source = dataset.source
        if not isinstance(source, SparseSource) or source.implicit_value != 0 or _has_missing(dataset):
            return task
        m, k, size = dataset.shape[1], self.n_components, task.dtype.itemsize
        entries = ceil(source.row_entries) * (_STORED_BYTES + 2 * size)
        footprint = replace(
            task.footprint,
            work_per_row=entries + (4 * size + 5 * 8) * k,
            broadcast=task.footprint.broadcast + 8 * _COLUMN_SUMS * m,
            reads_stored=True,
        )
        return replace(task, footprint=footprint)

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        size, m, k = dtype.itemsize, shape[1], self.n_components
        doubles = 6 * m if self.loss == "kullback-leibler" else 0  # of the sums at the end of a fit
        return Footprint(
            state_per_row=size * k,
            work_per_row=size * (3 * m + 3 * k) + 8 * doubles,
            broadcast=8 * (2 * k * m + k * k),
            result_per_row=size * k,
        )


def _rows_pass(problem: Any, row_start: RowStart, dtype: np.dtype[Any]) -> Any:
    """Return the pass that solves every row to its optimum."""
    return DivergenceRowsPass(problem, dtype) if problem.divergence else RowsPass(problem, row_start, dtype)


def _has_missing(dataset: Dataset) -> bool:
    return bool((dataset.statistics.observed < dataset.shape[0]).any())
