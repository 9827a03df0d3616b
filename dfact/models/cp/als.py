"""CP by alternating least squares in memory, the baseline of ElasticCP. TensorLy runs the iterations."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.memory_plan import Footprint
from dfact.engine.partitions import partitions
from dfact.engine.requests import Solver, run, state_rows
from dfact.errors import DataError, DfactError, ParameterError
from dfact.kernels.cp import subtract
from dfact.linalg.parts import Parts, parts_of
from dfact.models.cp.base import CPModel, explained_share, gather_factors, ordered_cosines, rows_footprint, warn_unconverged
from dfact.models.cp.elastic import ElasticCP
from dfact.models.cp.passes import FACTORS
from dfact.models.cp.problem import ElasticNet, Prior, RowPrior, component_weights, khatri_rao, unfold
from dfact.models.fit_task import FitTask
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.scikit_learn import check_is_fitted
from dfact.parameters import COUNT, NOT_NEGATIVE, random_generator
from dfact.progress import Iteration, Reporter, remaining_change

_LEAST_SQUARES, _NO_PRIOR = ElasticNet(0.0, 0.0), RowPrior("none")
_EPSILON = 1e-8  # singular values, relative to the largest, up to which vectors are orthogonal to the data: a saddle
_COPIES = 8  # of the data in double precision that TensorLy holds at once: filled, mask, model, products of them


class CPALS(CPModel):
    """PARAFAC (CP) decomposition by alternating least squares, of any number of modes and with missing entries.

    Finds factors A⁽ⁿ⁾ (I_n, R), with columns a_r⁽ⁿ⁾, of a tensor Z (I_1, …, I_N), N ≥ 2, that

        minimize  ½‖Δ∘(Z − Σ_r a_r⁽¹⁾∘…∘a_r⁽ᴺ⁾)‖²,

    Δ being 0 where an entry is missing. Each mode in turn is solved by least squares given the others; missing entries are
    filled in by the model of the previous iteration (EM). It is a baseline: the number of components is not determined, and
    superfluous components cancel each other (see :func:`dfact.selection.core_consistency`). The iterations are TensorLy's
    ``parafac``, on the complete tensor in memory (``pip install 'dfact[tensor]'``). At the end every slice of mode 1 is solved to
    its optimum, so that its factors equal the ``transform`` of the same slices. The low-rank tensor imputation (LRTI), with ℓ2
    penalties, is ``ElasticCP(l1_ratio=0)``.

    Parameters
    ----------
    n_components : int
        Number of components R.
    init : "svd" or "random"
        Start: leading left singular vectors of the unfoldings (random beyond their number), or uniformly random.
    max_iter : int
        Maximum number of iterations.
    tol : float
        Stop when the estimated distance of the objective from its limit, relative to its value, falls below this. It needs
        at least 11 iterations; see :func:`dfact.progress.remaining_change`.
    random_state : int, RandomState or None
        Seed of the start.
    executor : None, "inline", "threads", "distributed", distributed.Client or cluster
        Executor of ``transform`` and of the last update of mode 1; the iterations run in this process.

    Attributes
    ----------
    factors_ : list of arrays (I_n, R)
        A⁽ⁿ⁾, components in the order of their weights. The entry of largest magnitude of a vector is positive in each mode from the
        second on.
    weights_ : array (R,)
        γ_r = Π_n ‖a_r⁽ⁿ⁾‖, decreasing; the factors carry them. Updates keep the order of the components.
    rank_ : int
        Number of components whose weights are not 0 (above 1e-9 of the first).
    components_ : array (R, I_2, …, I_N)
        a_r⁽²⁾∘…∘a_r⁽ᴺ⁾, which the factors of mode 1 weight.
    component_cosines_ : array (R, R)
        Π_n cos(a_q⁽ⁿ⁾, a_r⁽ⁿ⁾) of two components, which cancel each other where it is near −1.
    loadings_ : DataFrame
        The vectors of modes 2 to N, scaled to length 1, as a table.
    objective_history_ : array
        Objective at the start, after each iteration, and of the model itself (last).
    n_iter_, converged_ : int, bool
    remaining_ : float
        Estimated distance of the objective from its limit, relative to its value; NaN after fewer than 11 iterations.
    explained_share_ : float
        1 − ‖Δ∘(Z − X)‖²/‖Δ∘Z‖².
    column_labels_, row_labels_, mode_labels_, offset_, n_features_in_, slice_shape_, fingerprint_
        Description of the fitted data; see :class:`dfact.ElasticCP`.

    Raises
    ------
    DfactError
        TensorLy is not installed.
    DataError
        Infinite entries, zeros alone, or components that are collinear to rounding; in transform, slices of another shape.
    ParameterError
        More components than a slice of the longest mode has entries.
    MemoryPlanError
        The copies of the tensor exceed ``memory_limit``.

    Warns
    -----
    UserWarning
        Slices, of any mode, without any observed entry. Two components that cancel each other, with a cosine of at most −0.8.

    References
    ----------
    Carroll & Chang (1970); Harshman (1970); Kossaifi et al. (2019).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((size, 2)) for size in (30, 20, 10))
    >>> model = dfact.CPALS(n_components=2, random_state=0).fit(np.einsum("ir,jr,kr->ijk", A, B, C))
    >>> round(model.explained_share_, 3)
    1.0
    """

    traits = replace(CPModel.traits, in_memory=True)

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 10,
        *,
        init: Literal["svd", "random"] = "svd",
        max_iter: Annotated[int, COUNT] = 500,
        tol: Annotated[float, NOT_NEGATIVE] = 3e-5,
        random_state: Any = None,
        executor: Any = None,
        memory_limit: int | str | None = None,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.callbacks = callbacks
        self.dtype = dtype

    def fitted_by_passes(self, **parameters: Any) -> ElasticCP:
        """Return an unfitted :class:`dfact.ElasticCP` with λ = 0, whose objective is the same, and these parameters."""
        return ElasticCP(self.n_components, lam=0.0, slice_variances=None, missing="fill", dtype=self.dtype, **parameters)

    def _prepare(self, X: Any) -> FitTask[None]:
        _parafac()
        dataset = self._as_slices(X, reset=True)
        shape, k = dataset.shape, self.n_components
        if k > prod(shape) // max(shape):  # the least squares of the longest mode have more unknowns than equations
            found = f"n_components={k} is larger than the data allows: slices of the longest mode of shape {shape}"
            raise ParameterError(f"{found} have {prod(shape) // max(shape)} entries")
        if not dataset.statistics.minimum.any() and not dataset.statistics.maximum.any():
            raise DataError("X holds 0 in every observed entry, expected other numbers: its components are not determined")
        return self._task(dataset)

    def fit_prepared(self, task: FitTask[Any], *, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Run the fit, which TensorLy does in memory; it has no checkpoint."""
        if checkpoint is not None:
            raise ParameterError(f"checkpoint is {checkpoint!r}, expected None: TensorLy's iterations cannot be resumed")
        task.plan().check()
        Z = _values(task.dataset)
        iterations = _Iterations(Z, self.tol, Reporter(self.callbacks, self.max_iter))
        self._iterate(_parafac(), Z.reshape(task.dataset.shape), iterations)
        return super().fit_prepared(replace(task, problem=iterations))

    def _solve(self, task: FitTask["_Iterations"]) -> Solver[None]:
        iterations = task.problem
        self.n_iter_, self.remaining_ = len(iterations.objectives) - 1, iterations.remaining
        self.converged_ = iterations.remaining < self.tol
        # Rounded to the precision of factors_, so that transform gives the same rows.
        order = np.argsort(-_weights(iterations.factors), kind="stable")
        others = [np.ascontiguousarray(A[:, order].T, task.dtype).astype(np.float64) for A in iterations.factors[1:]]
        sums: Any = yield from run(self._last_pass(task, _LEAST_SQUARES, _NO_PRIOR), khatri_rao(others))
        warn_unconverged(int(sums.unconverged))
        weights = component_weights(sums.gram, others)
        first, *rest = gather_factors((yield from state_rows(FACTORS)), others, weights, task)
        self._keep_sums(task, sums, others, weights)
        self.factors_ = [np.asarray(first), *rest]
        self._set_weights(_weights([np.asarray(A, np.float64) for A in self.factors_]))
        final = iterations.objective(self.factors_)
        self.objective_history_ = np.asarray([*iterations.objectives, final])
        self.explained_share_ = explained_share(2 * final, iterations.norm)
        self.component_cosines_ = ordered_cosines(sums.gram, others)

    def _penalties(self) -> tuple[ElasticNet, Prior]:
        return _LEAST_SQUARES, Prior(_NO_PRIOR, tuple(np.ones(size) for size in self.slice_shape_))

    def _iterate(self, parafac: Any, Z: NDArray[np.float64], iterations: "_Iterations") -> None:
        missing = np.isnan(Z)
        seed = int(random_generator(self.random_state).randint(np.iinfo(np.int32).max))
        settings = {"init": self._start(Z), "random_state": seed, "n_iter_max": self.max_iter, "tol": 0}
        mask = (~missing).astype(np.float64) if missing.any() else None
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Trying to compute SVD", UserWarning)  # vectors beyond the rank are random
                # Without return_errors, TensorLy does not compute the factors that it passes to the callback.
                parafac(np.where(missing, 0.0, Z), self.n_components, **settings, mask=mask, callback=iterations, return_errors=True)
        except np.linalg.LinAlgError as error:
            raise DataError(
                f"the components are collinear ({error}); expected data that determine {self.n_components}; fit fewer components"
            ) from error

    def _start(self, Z: NDArray[np.float64]) -> Any:
        """Return TensorLy's name of the start or, for entries in several parts, a start from the singular vectors of each."""
        parts = [Parts(parts_of(Z, mode)) for mode in range(Z.ndim)] if self.init == "svd" and np.isnan(Z).any() else []
        if all(each.connected for each in parts):
            return self.init
        factors, filled = [], np.nan_to_num(Z)
        rng = np.random.default_rng(random_generator(self.random_state).randint(np.iinfo(np.int32).max))
        for mode, each in enumerate(parts):
            U = np.moveaxis(filled, mode, 0).reshape(Z.shape[mode], -1)
            A = rng.standard_normal((Z.shape[mode], self.n_components))
            for slices in each.columns:
                vectors, values, _ = np.linalg.svd(U[slices], full_matrices=False)
                j = min(self.n_components, int(np.count_nonzero(values > _EPSILON * values[0])))
                A[slices, :j] = vectors[:, :j]
            factors.append(A)
        return np.ones(self.n_components), factors

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the factors A⁽¹⁾ (n, R) of slices X (n, I_2, …, I_N) given the other modes, by least squares on observed entries.

        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        return self._rows(self._as_slices(X, reset=False), _LEAST_SQUARES, _NO_PRIOR, None, out)

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        rows = rows_footprint(shape, self.n_components, dtype)
        return replace(rows, result_per_row=rows.result_per_row + 8 * _COPIES * prod(shape[1:]))


class _Iterations:
    """Callback of TensorLy that records the factors and the objectives, and returns True to stop."""

    def __init__(self, Z: NDArray[np.float64], tol: float, report: Reporter) -> None:
        self._Z, self._tol, self._report = Z, tol, report
        self.objectives: list[float] = []
        self.factors: list[NDArray[np.float64]] = []
        self.remaining = float("nan")

    def __call__(self, cp: Any, _: Any) -> bool:
        weights, factors = cp
        self.factors = [np.asarray(factors[0] * weights), *map(np.array, factors[1:])]
        self.objectives.append(self.objective(self.factors))
        if len(self.objectives) > 1:  # the first belongs to the start
            self._report.iteration(self.objectives)
        # The start is left out: the first iteration may raise its objective.
        self.remaining = remaining_change(self.objectives[1:])
        return self.remaining < self._tol

    @property
    def norm(self) -> float:
        """‖Δ∘Z‖²."""
        return float(np.nansum(self._Z * self._Z))

    def objective(self, factors: Sequence[NDArray[Any]]) -> float:
        """Return ½‖Δ∘(Z − X)‖²."""
        A, *others = (np.asarray(factor, np.float64) for factor in factors)
        return 0.5 * subtract(self._Z, A @ khatri_rao([B.T for B in others]))


def _weights(factors: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.prod([np.linalg.norm(A, axis=0) for A in factors], axis=0))


def _values(dataset: Dataset) -> NDArray[np.float64]:
    """Return all of the data with a row for each slice of mode 1 (I_1, I_2⋯I_N), NaN where missing."""
    parts = partitions(dataset.source, dataset.missing_code, None)
    return np.concatenate([unfold(block) for block in parts.blocks(np.dtype(np.float64))])


def _parafac() -> Any:
    try:
        from tensorly.decomposition import parafac
    except ImportError as error:
        raise DfactError("CPALS needs TensorLy, which is not installed: pip install 'dfact[tensor]'") from error
    return parafac
