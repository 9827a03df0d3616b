"""ℓ1-NMF: non-negative matrix factorization with sparse factors and loadings, the ICQF paper's baseline."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.validation import locate_outside
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.models.bounded_nmf.growth import ROUNDS, Surrogate, grow_loadings
from dfact.models.bounded_nmf.passes import RowsPass, RowStart, Sums
from dfact.models.bounded_nmf.problem import STARTS, Problem, check_size
from dfact.models.bounded_nmf.solvers import Splitless, fit_loadings, initial_loadings
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.scikit_learn import check_is_fitted
from dfact.models.traits import ModelTraits
from dfact.parameters import COUNT, FINITE, NOT_NEGATIVE
from dfact.progress import Iteration, Reporter

_RHO = 3.0  # without bounds it has no effect


class L1NMF(Growing):
    """Non-negative matrix factorization with ℓ1 penalties.

    Finds factors W (n, k) of the participants and loadings Q (m, k) of the items that

        minimize  ½‖O∘(M − WQᵀ)‖² + β‖W‖₁ + β‖Q‖₁,   W, Q ≥ 0,

    for answers M (n, m) ≥ 0 with mask O (0 where missing). It is the first baseline of the ICQF
    paper, with β = 0.1 and the NNDSVD start. The paper names the algorithm's source (Cichocki & Phan)
    and no scaling of the penalties, so both have the weight β itself here. On complete data the model is
    scikit-learn's ``NMF(alpha_W=β/m, alpha_H=β/n, l1_ratio=1)``.

    The solver is that of ICQF without bounds (``solver="mm"``): missing entries are filled in by
    the model, and coordinate descent solves the row and item problems, which are non-negative Lassos. An iteration is one pass
    over the rows; a fit of large data starts with up to 80 passes over a tenth of its rows. At the end every row is
    solved to its optimum given Q, so that ``factors_`` equals the ``transform`` of the same rows.
    Confounders of a dataset are not used.

    Parameters
    ----------
    n_components : int
        Number of factors k.
    beta : float
        Weight β of both penalties.
    init : "nndsvd", "random" or array (k, m)
        Initial loadings: NNDSVD of the answers with zeros for the missing ones, or uniformly random up to the highest answer. An
        array holds given loadings.
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
        Q as a table, items × factors.
    objective_history_ : array
        Objective at the start, after each iteration, and of the model itself (last).
    n_iter_, converged_ : int, bool
    remaining_ : float
        Estimated distance of the objective from its limit, relative to its value; NaN after fewer than 11 iterations.
    explained_share_ : float
        Share of the answers' variance about their column means that the model explains.
    weighted_ : bool
        Whether the rows have weights.
    n_effective_ : float
        Kish's effective number of rows, (Σw)²/Σw²; n without weights. It leaves out strata and clusters of the sample.

    Raises
    ------
    DataError
        Negative or infinite answers, a column without any answer.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    References
    ----------
    Cichocki & Phan (2009); Lam et al. (2023), section 4.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> model = dfact.L1NMF(n_components=3).fit(answers)
    >>> model.loadings_.shape
    (12, 3)
    """

    objective_history_: Annotated[NDArray[Any], Shape((None,), finite=False)]
    n_iter_: int
    converged_: bool
    remaining_: Annotated[float, OPTIONAL]
    explained_share_: float
    factors_: Annotated[Any, Shape(("n", "k"), rows=True)]
    problem_: Problem
    sums_: Annotated[Surrogate, OPTIONAL]
    saved_sums = (Surrogate,)
    traits = ModelTraits(
        nonnegative=True,
        warm_starts=True,
        limited_parameters=("beta",),
        loading_intervals=False,  # 87 to 90% of them covered at 95%: the data hardly determine the scale of a factor
    )
    saved_types = (Problem,)

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 8,
        *,
        beta: Annotated[float, FINITE] = 0.1,
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
        self.beta = beta
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
        """Fit the answers X (n, m): any array, path or Dataset; NaN is missing.

        ``sample_weight`` holds n numbers of at least 0, such as survey weights; a Dataset or path has its own, and
        ``Dataset.with_weights(None)`` leaves them out. A weight, divided by the mean of all weights above 0, multiplies its row's
        terms of the objective and its share of the penalty, so only their ratios matter. ``checkpoint`` overrides the parameter.
        """
        del y
        return self.fit_prepared(self.prepare(X, sample_weight=sample_weight), checkpoint=checkpoint)

    def _prepare(self, X: Any, sample_weight: Any = None) -> FitTask[Problem]:
        dataset = self._dataset(X, None, sample_weight, reset=True)
        _check_range(dataset)
        check_size(self.n_components, self.init, dataset)
        # The problem of an ICQF without upper bounds, and with γ = 1.
        weights = self._row_weights(dataset)
        problem = Problem(
            self.n_components, float(self.beta), 1.0, _RHO, np.inf, np.inf, 0.0, np.inf, "l1", "cd", weighted=weights is not None
        )
        if weights is None:
            return self._task(dataset, problem)
        relative = weights / weights[weights > 0].mean()
        return self._task(dataset, problem, covariates=relative[:, None].astype(self._working_dtype(dataset)))

    def _solve(self, task: FitTask[Problem]) -> Solver[None]:
        report, problem = Reporter(self.callbacks, self.max_iter), task.problem
        Q, row_start = yield from initial_loadings(self.init, self.random_state, task.dataset, problem, 0, task.dtype)
        solver = _Solver(problem, row_start, task.dtype)
        if isinstance(self.init, str):
            solver, Q = yield from _Solver.with_sample_start(problem, Q, row_start, task.dtype, task.layout, report)
        descent, sums, rows = yield from fit_loadings(self, solver, Q, report, task.dtype)
        self.sums_ = Surrogate.of(descent.sums, descent.Q, sums)
        self._begin_growth(task, sums)
        self.factors_ = task.gather(rows, problem.k)

    def _prepare_update(self, X: Any, sample_weight: Any = None) -> FitTask[Problem]:
        dataset = self._new_rows(X, None, sample_weight)
        _check_range(dataset)
        if dataset.weights is not None:
            raise DataError("the rows have weights, whose mean over all rows is the unit of the objective; fit all rows again")
        return self._task(dataset, self.problem_)

    def _measure(self, task: FitTask[Problem]) -> Solver[Baseline]:
        Q = self.components_.astype(task.dtype)
        return (yield from run(RowsPass(task.problem, RowStart.from_loadings(Q), task.dtype), Q))

    def _grow(self, task: FitTask[Problem]) -> Solver[Added]:
        n, seen = task.dataset.shape[0], self.growth_.n_rows
        report, Q = Reporter(self.callbacks, ROUNDS), self.components_.astype(task.dtype)
        update = yield from grow_loadings(self, task.problem, Q, report, task.dtype, n / (n + seen), _Solver)
        self.n_effective_ += n
        return Added(update.rows, update.sums, update.gain)

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the factors W (n, k) of participants X (n, m) given the loadings, each row at its optimum.

        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, None, reset=False)
        _check_range(dataset)
        task = self._task(dataset, replace(self.problem_, weighted=False))
        Q = self.components_.astype(task.dtype)
        return task.compute_rows(RowsPass(task.problem, RowStart.from_loadings(Q), task.dtype), Q, len(Q), out)[1]

    def inverse_transform(self, W: Any) -> NDArray[Any]:
        """Return the model's answers WQᵀ (n, m) for factors W (n, k)."""
        W = self._as_factors(W)
        answers: NDArray[Any] = (W @ self.components_).astype(W.dtype)
        return answers

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        size, m, k = dtype.itemsize, shape[1], self.n_components
        return Footprint(
            state_per_row=size * k, work_per_row=size * (3 * m + 3 * k), broadcast=8 * (2 * k * m + k * k), result_per_row=size * k
        )


class _Solver(Splitless):
    """Solver of ICQF that sets the loadings of a factor to 0 if no row has it: only the penalty determines them."""

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> Solver[NDArray[Any]]:
        solved = yield from super().loadings(sums, Q)
        if self.problem.beta > 0:
            solved[self.with_earlier(sums).gram.diagonal() == 0] = 0
        return solved


def _check_range(dataset: Dataset) -> None:
    lowest = dataset.statistics.minimum[dataset.statistics.observed > 0].min(initial=0)
    if lowest < 0:
        where = locate_outside(dataset, 0.0, np.inf)
        raise DataError(f"Negative values in data passed to L1NMF: {where}; shift the answers to start at 0, and mark missing ones as NaN")
