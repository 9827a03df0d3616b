"""ICQF: interpretability-constrained questionnaire factorization."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.confounders import Confounder, ConfounderEncoding, as_frame
from dfact.data.dataset import Dataset
from dfact.data.sources.entrance import as_numbers
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import Solver, run
from dfact.errors import DataError, ParameterError, warn
from dfact.lazy import pd
from dfact.models.bounded_nmf.effects import AdjustedDifferences, DifferencesPass, group_effects, impact_table, warn_of_effects
from dfact.models.bounded_nmf.growth import DifferenceTotals, Surrogate, grow_loadings
from dfact.models.bounded_nmf.passes import RowsPass, RowStart
from dfact.models.bounded_nmf.problem import PENALTIES, STARTS, Problem, check_range, make_problem, parse_penalty
from dfact.models.bounded_nmf.solvers import ADMM, MM, best_start, fit_loadings, initial_loadings
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing, total_weight
from dfact.models.growth.halves import ROUNDS
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.row_factors import select_columns
from dfact.models.scikit_learn import check_is_fitted
from dfact.models.traits import ModelTraits
from dfact.parameters import COUNT, FINITE, NOT_NEGATIVE, Values, is_in_range
from dfact.progress import Iteration, Reporter

_ACTIVE_SHARE = 0.04  # of the entries: the bounds that the plan takes to be active; questionnaires have up to 0.016


def _is_range(value: Any) -> bool:
    if len(value) != 2:
        return False
    low, high = (as_numbers("bounds", limit) for limit in value)
    return bool(np.all(low >= 0) and np.all(low < high))


_BOUND = Values(lambda value: value > 0, "a number above 0")
_BOUNDS_OF_ITEMS = Values(lambda value: bool(np.all(as_numbers("q_max", value) > 0)), "numbers above 0").or_none()
_RANGE = Values(_is_range, "(low, high) with 0 ≤ low < high").or_none()


class ICQF(Growing):
    """Interpretability-constrained questionnaire factorization.

    Finds factors W (n, k) of the participants and loadings Q = [Qr, Qc] (m, k + c) of the items that

        minimize  ½‖O∘(M − [W, C]Qᵀ)‖² + β‖W‖₁ + βγ‖Q‖₁,   γ = (n/m)·q_max,
        subject to  0 ≤ W ≤ w_max,  0 ≤ Q ≤ q_max,  bounds[0] ≤ [W, C]Qᵀ ≤ bounds[1],

    for answers M (n, m) with mask O (0 where missing) and confounders C (n, c). C has an indicator for each level of a categorical
    confounder, x and 1 − x of a continuous one scaled to [0, 1], and a column of ones.

    An iteration is one pass over the rows; coordinate descent solves the row and item problems. A fit of large data starts with
    up to 80 passes over a tenth of its rows, which are not counted as iterations; their loadings are the start of the passes
    over all rows. At the end every row is solved to its optimum given Q, so that ``factors_`` equals the ``transform`` of
    the same rows. Without penalty and bounds (``beta=0``, infinite ``w_max``, ``q_max`` and upper bound)
    the model is non-negative matrix factorization.

    Parameters
    ----------
    n_components : int
        Number of factors k.
    beta : float
        Weight β of the sparsity penalties.
    penalty : "l1", "l2", "l2,1" or two numbers (p, q)
        Norm of the penalties: "l1" for sparse factors and loadings, "l2" for small ones, "l2,1" for few participants and items with any,
        or two numbers p, q from 1 to 20. Each ‖A‖₁ is replaced by ‖A‖_{p,q}^q / q, where ‖A‖_{p,q} = (Σ_i (Σ_r A_ir^p)^(q/p))^(1/q)
        over the rows i of W or Q, confounders included, and γ is that of the row. With q = 1 this is the paper's norm: "l2,1" is
        (2, 1), "l1" is (1, 1). With q > 1 its power makes the rows separable, so that a participant's factors do not depend on the
        others; a solution of either is one of the other with another weight. "l2" is (2, 2), ½‖A‖². Other pairs than (1, 1) and
        (2, 2) need ``subproblem_solver="cd"``.
    solver : "mm" or "admm"
        Optimization method: MM on the augmented Lagrangian ("mm"), or the paper's "admm", which needs at least three times as
        many passes. "mm" stores the multipliers of the active bounds alone and fills missing entries with the model. "admm"
        splits off Z = [W, C]Qᵀ with a dual, n×m numbers of state.
    subproblem_solver : "cd" or "fista"
        Solver of the row and item problems: coordinate descent (the paper's appendix 6.2), or accelerated proximal gradient (FISTA,
        its algorithm 1).
    rho : float or "adaptive"
        Penalty parameter ρ of the augmented Lagrangian; "admm" also takes "adaptive". "mm" starts with a sixth of it, or
        with half of it if ``init`` holds loadings, and raises it up to four times its value while the bounds are far from met. With
        "admm" and ρ ≥ √2 the augmented Lagrangian never increases (proposition 1), if the subproblems are solved exactly and no
        bound on the reconstruction is active: its proof bounds the step of the dual by the step of Z. With active bounds it may rise,
        by up to 3e-7 of its value for ρ near √2 in the tests. "adaptive" never falls below √2.
    w_max : float
        Upper bound of the factors.
    q_max : float or array (m,), optional
        Upper bound of the loadings; by default the maximum of each item's answer range. γ then differs between items.
    bounds : (low, high), each a float or an array (m,), optional
        Range of the reconstructed answers; by default 0 to the maximum of each item's answer range. The paper has one range for all
        items, min(M) to max(M). Stored answers start at 0, which is then the minimum of both.
    init : "nndsvd", "random" or array (k, m)
        Initial loadings: NNDSVD of the answers with zeros for the missing ones, or uniformly random. An array holds given
        loadings.
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
        Loadings of the items on the factors, Qrᵀ.
    confounder_components_ : array (c, m)
        Loadings of the items on the confounder columns, Qcᵀ; (0, m) without confounders.
    factors_ : array (n, k)
        W; a Zarr array if the data is stored.
    loadings_, confounder_loadings_ : DataFrame
        Loadings as tables, items × factors and items × confounder columns.
    confounder_effects_, confounder_impact_ : DataFrame
        Differences that the confounders make, each adjusted for the others: each level of a confounder minus the commonest one, the
        highest value of a continuous confounder minus the lowest. The effects (items × differences, in points, of either sign) are
        differences on an item at equal factors, the impact (factors × differences) differences of the factors. The data determines the
        pair up to a shift between the two, and the anchor of :func:`dfact.linalg.anchor.anchor` fixes it: most items have no
        effect. ``factors_`` and ``confounder_loadings_`` depend on how the penalty splits it.
    differences_ : AdjustedDifferences or None
        Differences of W and of the residuals, from which the pair follows; None without confounders.
    objective_history_ : array
        Objective at the start, after each iteration, and of the model itself (last).
    lagrangian_history_ : array
        Augmented Lagrangian of each iteration.
    n_iter_, converged_ : int, bool
    remaining_ : float
        Estimated distance of the objective from its limit, relative to its value; NaN after fewer than 11 iterations.
    explained_share_ : float
        Share of the answers' variance about their column means that the model explains.
    confounder_encoding_ : ConfounderEncoding or None
    weighted_ : bool
        Whether the rows have weights.
    n_effective_ : float
        Kish's effective number of rows, (Σw)²/Σw²; n without weights. It ignores strata and clusters of the sample.

    Raises
    ------
    DataError
        Negative or infinite answers, answers above the bounds, a row or column without any answer.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    References
    ----------
    Lam et al. (2023): equations (1)-(4) are the ADMM, algorithm 1 is FISTA, and proposition 1 is about ρ.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> model = dfact.ICQF(n_components=3).fit(answers)
    >>> model.loadings_.shape
    (12, 3)
    """

    objective_history_: Annotated[NDArray[Any], Shape((None,), finite=False)]
    n_iter_: int
    converged_: bool
    lagrangian_history_: Annotated[NDArray[Any], Shape((None,), finite=False)]
    remaining_: Annotated[float, OPTIONAL]
    explained_share_: float
    factors_: Annotated[Any, Shape(("n", "k"), rows=True)]
    confounder_components_: Annotated[NDArray[Any], Shape(("c", "m"))]
    confounder_encoding_: ConfounderEncoding | None
    problem_: Problem
    differences_: AdjustedDifferences | None
    sums_: Annotated[Surrogate, OPTIONAL]
    saved_sums = (Surrogate, DifferenceTotals)
    traits = ModelTraits(nonnegative=True, copies_weights=True, warm_starts=True, limited_parameters=("bounds", "w_max", "q_max", "beta"))
    saved_types = (Problem, ConfounderEncoding, Confounder, AdjustedDifferences)

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 8,
        *,
        beta: Annotated[float, FINITE] = 0.1,
        penalty: Annotated[str | tuple[float, float], PENALTIES] = "l1",
        solver: Literal["admm", "mm"] = "mm",
        subproblem_solver: Literal["cd", "fista"] = "cd",
        rho: float | str = 3.0,
        w_max: Annotated[float, _BOUND] = 1.0,
        q_max: Annotated[Any, _BOUNDS_OF_ITEMS] = None,
        bounds: Annotated[tuple[Any, Any] | None, _RANGE] = None,
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
        self.penalty = penalty
        self.solver = solver
        self.subproblem_solver = subproblem_solver
        self.rho = rho
        self.w_max = w_max
        self.q_max = q_max
        self.bounds = bounds
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

    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        confounders: Any = None,
        sample_weight: Any = None,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Fit the answers X (n, m): any array, path or Dataset; NaN is missing.

        ``confounders`` is a table of n rows, ``sample_weight`` holds n numbers of at least 0; a Dataset or path has its own,
        and ``Dataset.with_weights(None)`` leaves them out. A weight, such as a survey weight, multiplies its row's terms of
        the objective, its share of the penalty and of n in γ included: an integer weight equals as many copies of the row.
        The start takes weights that are not all whole numbers relative to their mean, so that their ratios alone matter.
        ``checkpoint`` overrides the parameter.
        """
        del y
        return self.fit_prepared(self.prepare(X, confounders=confounders, sample_weight=sample_weight), checkpoint=checkpoint)

    def _prepare(self, X: Any, confounders: Any = None, sample_weight: Any = None) -> FitTask[Problem]:
        dataset = self._dataset(X, confounders, sample_weight, reset=True)
        problem = make_problem(self, dataset, self._weight_summary(dataset))
        self.confounder_encoding_ = None if dataset.confounders is None else ConfounderEncoding.of(dataset.confounder_summaries())
        return self._task_of(dataset, problem)

    def _task_of(self, dataset: Dataset, problem: Problem) -> FitTask[Problem]:
        """Return the task of rows with their encoded confounders and weights."""
        weights = None if dataset.weights is None else np.asarray(dataset.weights, np.float64)
        C = self._encode(dataset.confounders, dataset.shape[0])
        dtype = self._working_dtype(dataset)
        columns = [values.astype(dtype) for values in (C, weights) if values is not None]
        covariates = np.column_stack(columns) if columns else None
        return self._task(dataset, problem, covariates=covariates, n_covariates=0 if C is None else C.shape[1])

    def fit_prepared(self, task: FitTask[Any], *, checkpoint: str | PathLike[str] | None = None) -> Self:
        super().fit_prepared(task, checkpoint=checkpoint)
        warn_of_effects(self)
        return self

    def _solve(self, task: FitTask[Problem]) -> Solver[None]:
        problem, dtype, report = task.problem, task.dtype, Reporter(self.callbacks, self.max_iter)
        n_covariates = 0 if task.covariates is None else task.covariates.shape[1] - problem.weighted  # the last one holds the weights
        weights = task.dataset.weight_summary()
        unit = 1.0 if weights is None else weights.unit
        start = yield from initial_loadings(self.init, self.random_state, task.dataset, problem, n_covariates, dtype, unit)
        if start.uneven:
            start = yield from best_start(start, problem, task.dataset, lambda _, rows: MM(problem, rows, dtype))
        Q, row_start = start.Q, start.row_start
        solver: ADMM | MM
        if self.solver == "admm":
            solver = ADMM(problem, row_start, dtype, adaptive=self.rho == "adaptive")
        elif start.uneven:
            solver = MM(problem, row_start, dtype)
        elif isinstance(self.init, str):
            solver, Q = yield from MM.with_sample_start(problem, Q, row_start, dtype, task.layout, report)
        else:
            solver = MM.from_given_loadings(problem, row_start, dtype)
        descent, sums, rows = yield from fit_loadings(self, solver, Q, report, dtype, self._rows_pass, reset=start.uneven)
        self.differences_ = None if self.confounder_encoding_ is None else AdjustedDifferences.from_sums(sums)
        if self.solver != "admm":
            self.sums_ = Surrogate.of(descent.sums, descent.Q, sums)
        self._begin_growth(task, sums)
        self.lagrangian_history_ = np.asarray(descent.lagrangians)
        self.confounder_components_ = descent.Q[problem.k :].copy()
        _warn_unconverged(int(sums.unconverged))
        self.factors_ = task.gather(replace(rows, convert=partial(select_columns, columns=slice(problem.k))), problem.k)

    @property
    def _rows_pass(self) -> Callable[..., RowsPass]:
        """The last pass over the rows, with the sums that differences of confounders need."""
        encoding = self.confounder_encoding_
        return RowsPass if encoding is None else partial(DifferencesPass, columns=encoding.contrast_columns())

    def _no_sums(self) -> str:
        if self.solver == "admm" and getattr(self, "growth_", None) is not None:
            return "solver is 'admm', whose splitting leaves no surrogate of the rows to which others could be added, expected 'mm'"
        return super()._no_sums()

    def _prepare_update(self, X: Any, confounders: Any = None, sample_weight: Any = None) -> FitTask[Problem]:
        dataset = self._new_rows(X, confounders, sample_weight)
        problem = replace(self.problem_, gamma=self.problem_.gamma * (1 + total_weight(dataset) / self.growth_.weight))
        check_range(dataset, problem)
        return self._task_of(dataset, problem)

    def _all_loadings(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the loadings Qᵀ (k+c, m) of factors and confounders."""
        return np.vstack([self.components_, self.confounder_components_]).astype(dtype)

    def _measure(self, task: FitTask[Problem]) -> Solver[Baseline]:
        Q = self._all_loadings(task.dtype)
        return (yield from run(RowsPass(task.problem, RowStart.from_loadings(Q[: task.problem.k]), task.dtype), Q))

    def _grow(self, task: FitTask[Problem]) -> Solver[Added]:
        problem, report = task.problem, Reporter(self.callbacks, ROUNDS)
        new = total_weight(task.dataset)
        share = new / (new + self.growth_.weight)
        Q = self._all_loadings(task.dtype)
        update = yield from grow_loadings(self, problem, Q, report, task.dtype, share, rows_pass=self._rows_pass)
        self.confounder_components_ = update.Q[problem.k :].copy()
        if self.differences_ is not None:
            self.differences_ = AdjustedDifferences.from_sums(self.sums_.differences)
        total, squares = self.growth_.baseline.rows + update.sums.rows
        self.n_effective_ = float(total**2 / squares)
        _warn_unconverged(int(update.sums.unconverged))
        rows = replace(update.rows, convert=partial(select_columns, columns=slice(problem.k)))
        return Added(rows, update.sums, update.gain)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not (is_in_range(self.rho, 1e-6, 1e6) or (self.rho == "adaptive" and self.solver == "admm")):
            raise ParameterError(f"rho is {self.rho!r}, expected a number from 1e-6 to 1e6, or with solver='admm' 'adaptive'")
        if parse_penalty(self.penalty)[0] == "norm" and self.subproblem_solver == "fista":
            raise ParameterError(f"subproblem_solver is 'fista', expected 'cd' with penalty={self.penalty!r}; FISTA has 'l1' and 'l2' only")

    def _check_loaded(self) -> None:
        super()._check_loaded()
        rows, encoding = len(self.confounder_components_), self.confounder_encoding_
        columns = () if encoding is None else encoding.columns
        if rows != len(columns) or any(len(c.means) != len(c.columns) for c in (() if encoding is None else encoding.confounders)):
            raise DataError(f"confounder_components_ have {rows} rows, expected those of the encoded columns {list(columns)}")
        for each in () if encoding is None else encoding.confounders:
            if len(each.counts) not in (0, len(each.levels)) or not 0 <= each.reference < max(1, len(each.levels)):
                numbers = f"the reference {each.reference} and the counts {each.counts}"
                raise DataError(f"confounder {each.name!r} has {numbers}, expected those of its {len(each.levels)} levels")
        found = 0 if self.differences_ is None else len(self.differences_.factors)
        expected = 0 if encoding is None else len(encoding.differences()[0])
        if self.differences_ is not None and found != expected:
            raise DataError(f"differences_ has {found} differences, expected those of the confounders, {expected}")

    def _row_inputs(self, n: int, confounders: Any = None) -> dict[str, Any]:
        frame = None if confounders is None else as_frame(confounders, n)
        self._encode(None if frame is None else frame.iloc[:0], n)  # refuses a table without the fitted confounders
        return {} if frame is None else {"confounders": frame}

    @lazy_of_dask
    def transform(self, X: Any, *, confounders: Any = None, out: str | PathLike[str] | None = None) -> Any:
        """Return the factors W (n, k) of participants X (n, m) given the loadings, each row at its optimum.

        A model with confounders needs those of the new rows, from X (a Dataset) or from ``confounders``.
        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, confounders, reset=False)
        problem, dtype = replace(self.problem_, weighted=False), self._working_dtype(dataset)
        check_range(dataset, problem)
        C = self._encode(dataset.confounders, dataset.shape[0])
        Q = self._all_loadings(dtype)
        row_start = RowStart.from_loadings(Q[: problem.k])
        task = self._task(dataset, problem, covariates=None if C is None else C.astype(dtype), n_covariates=0 if C is None else C.shape[1])
        leading = partial(select_columns, columns=slice(problem.k))
        sums, W = task.compute_rows(RowsPass(problem, row_start, dtype), Q, problem.k, out, leading)
        _warn_unconverged(int(sums.unconverged))
        return W

    def inverse_transform(self, W: Any, *, confounders: Any = None) -> NDArray[Any]:
        """Return the model's answers [W, C]Qᵀ (n, m), clipped to the bounds, for factors W (n, k)."""
        W = self._as_factors(W)
        C = self._encode(None if confounders is None else as_frame(confounders, len(W)), len(W))
        R = W @ self.components_ + (0 if C is None else C @ self.confounder_components_)
        answers: NDArray[Any] = np.clip(R, self.problem_.lower, self.problem_.upper).astype(W.dtype)
        return answers

    @property
    def confounder_loadings_(self) -> "pd.DataFrame":
        """Loadings of the confounders as a table, items × encoded confounder columns."""
        columns = [] if self.confounder_encoding_ is None else list(self.confounder_encoding_.columns)
        return pd.DataFrame(self.confounder_components_.T, index=self._items, columns=columns)

    @property
    def confounder_effects_(self) -> "pd.DataFrame":
        """Effects of the confounders on the items at equal factors, in points, as a table, items × differences.

        NaN for differences with fewer than 50 rows on one side.
        """
        names = () if self.confounder_encoding_ is None else self.confounder_encoding_.differences()[0]
        return pd.DataFrame(group_effects(self).effects.T, index=self._items, columns=list(names))

    @property
    def confounder_errors_(self) -> "pd.DataFrame":
        """Standard errors of ``confounder_effects_``, of the same form. They take the loadings and the anchor as known."""
        effects = self.confounder_effects_
        return pd.DataFrame(group_effects(self).errors.T, index=effects.index, columns=effects.columns)

    @property
    def confounder_impact_(self) -> "pd.DataFrame":
        """Differences that the confounders make to the factors, as a table, factors × differences."""
        return impact_table(self)

    def _encode(self, frame: "pd.DataFrame | None", n_rows: int) -> NDArray[np.float64] | None:
        if self.confounder_encoding_ is None:
            return None
        if frame is None:
            raise DataError(
                f"the model was fitted with confounders {list(self.confounder_encoding_.names)}; pass them for these {n_rows} rows"
            )
        return self.confounder_encoding_.encode(frame)

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        size, m, width = dtype.itemsize, shape[1], self.n_components + n_covariates
        split = size * m if self.solver == "admm" else round(_ACTIVE_SHARE * m * (4 + size))
        return Footprint(
            state_per_row=split + size * width,
            work_per_row=size * (3 * m + 3 * width + n_covariates * (n_covariates + 1)),
            broadcast=8 * (2 * width * m + width * width) + 24 * n_covariates * (n_covariates + 1) * m,
            result_per_row=size * width,
        )


def _warn_unconverged(rows: int) -> None:
    """Warn of rows without factors within the bounds: those whose confounders alone exceed the bounds."""
    if rows:
        message = f"{rows} rows have no factors that keep the model within the bounds to the tolerance; the nearest are returned"
        warn(message)
