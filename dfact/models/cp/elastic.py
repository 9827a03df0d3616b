"""ElasticCP: sparse and low-rank PARAFAC decomposition of tensors with missing entries."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.entrance import as_numbers
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import Solver, drive, run, state_rows
from dfact.errors import DataError, ParameterError
from dfact.models.cp.base import (
    CPModel,
    cosines_of_pairs,
    explained_share,
    gather_factors,
    ordered_cosines,
    rows_footprint,
    warn_unconverged,
)
from dfact.models.cp.block_descent import Descent, descend
from dfact.models.cp.initialization import is_exact, make_descent, row_inputs, start_size, uses_vectors
from dfact.models.cp.kept_sample import most_rows
from dfact.models.cp.passes import FACTORS
from dfact.models.cp.path import PathStep, SolutionPath, checked_lambdas, trace_path
from dfact.models.cp.problem import (
    ElasticNet,
    Prior,
    RowPrior,
    check_variances,
    component_weights,
    khatri_rao,
    penalty_norms,
)
from dfact.models.cp.samples import monitor_rows
from dfact.models.cp.stochastic import StochasticDescent, progress, require_samples, resolve_batch_sizes
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.scikit_learn import check_is_fitted
from dfact.parameters import COUNT, FINITE, NOT_NEGATIVE, YES_OR_NO, Values, is_count, is_in_range
from dfact.progress import Iteration, Reporter, remaining_tail

_TRUSTED_COSINE = -0.5  # of two components; below it the objective falls in steps that the history does not announce
_DEFAULT_PENALTY = (1.0, 0.2)  # λ and α


def _is_listed(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_name(value: Any, *names: str) -> bool:
    return isinstance(value, str) and value in names


_SHARE = Values(lambda value: is_in_range(value, 0) and value <= 1, "a number from 0 (ℓ2 alone) to 1 (ℓ1 alone)")
_SIZES = Values(
    lambda value: value is None or (_is_listed(value) and all(map(is_count, value))), "None, or one integer of at least 1 for each mode"
)
_STEP = Values(
    lambda value: is_in_range(value, 0) and 0 < value <= 1, "a number above 0 and up to 1, which is a step to a sample's solution"
)
_PRIORS = Values(
    lambda value: value is None or _is_listed(value) or _is_name(value, "estimate"), "'estimate', None, or a list of variances"
)
_STARTS = Values(
    lambda value: _is_listed(value) or _is_name(value, "auto", "random", "svd"), "'auto', 'random', 'svd', or a list of factors"
)


class ElasticCP(CPModel):
    """Sparse, low-rank PARAFAC (CP) decomposition with the elastic net, of any number of modes and with missing entries.

    Finds factors A⁽ⁿ⁾ (I_n, R), with columns a_r⁽ⁿ⁾, of a tensor Z (I_1, …, I_N), N ≥ 2, that

        minimize  ½‖Δ∘(Z − Σ_r a_r⁽¹⁾∘…∘a_r⁽ᴺ⁾)‖² + λ Σ_r Σ_n [(1−α)/2 a_r⁽ⁿ⁾ᵀR_n⁻¹a_r⁽ⁿ⁾ + α‖a_r⁽ⁿ⁾‖₁],

    Δ being 0 where an entry is missing. The ℓ2 part shrinks superfluous components to 0, so that fewer
    than R may be left; the ℓ1 part sets single entries to 0. The factors contain the scale of the data as
    the penalties have distributed it: Σ_r a_r⁽¹⁾∘…∘a_r⁽ᴺ⁾ is the model, and ``weights_`` must not be multiplied in.

    Mode 1 is the long one: its slices are the rows that passes read. An iteration is one pass, with
    missing entries filled in by the model, from which all modes are updated. Small tensors that are mostly
    missing are solved by the column updates of the paper's algorithm 1. Passes begin at factors extrapolated along their last step;
    if the objective then falls too little, the iteration repeats its pass without extrapolation. Then the scale of each
    component is distributed over the modes so that the penalties are least. At the end every slice is solved to its optimum
    given the other modes, so that the factors of mode 1 equal the ``transform`` of the same slices.

    Parameters
    ----------
    n_components : int
        Number of components R to start from.
    lam : float
        Weight λ of the penalties.
    l1_ratio : float
        Share α of the ℓ1 penalty, from 0 (selects components) to 1 (selects single entries).
    noise_variance, laplace_rate : float, optional
        Variance σ² of the noise, and rate μ of the Laplace part of the prior (equations 3 and 4), both instead of ``lam`` and
        ``l1_ratio``: λ = σ²(1 + μ), α = μ/(1 + μ) (equation 7), for which the objective is σ² times the negative logarithm of the
        posterior. Along a path λ varies, so there they are refused.
    nonnegative : bool
        Constrain all factors to be at least 0.
    solver : "bcd" or "stochastic"
        Block coordinate descent, or stochastic steps on samples. These are Adamax on slices of mode 1 (algorithm 4), for data so large
        that reading it dominates the time. An iteration of these is a pass over a 32nd of the partitions, at least 16: each block takes
        8 to 25 steps from the same factors, and the next iteration begins at the mean of their results, weighted by their
        slices. It ends when the means of three objectives fall less than ``tol``, or than they vary by chance. It needs at least 30
        slices, and a few hundred if the components are nearly collinear.
    missing : "fill", "exact" or "auto"
        Missing entries: imputed by the model in each pass ("fill"), or excluded from each update, in memory ("exact"). "exact" works
        on the residual tensor in memory (algorithm 1 as printed, and the rescaling of the modes). Both descend on
        the same objective. "auto" is "exact" for tensors of up to 2²⁰ entries of which more than half are
        missing, for which filling in converges slowly, else "fill". A stochastic step always solves its slices exactly;
        there "exact" refers to its updates of the other modes, and "auto" is "exact" for any tensor mostly missing.
    batch_sizes : list of N int, optional
        Number of slices of each mode that a stochastic step draws; for mode 1 at most those of a block. The default is for
        mode 1 as many as have 2¹⁶ entries, but at least 16 and at most half of them, and for the other modes all, unless
        a slice of mode 1 then has more than 2¹⁴ entries. Fewer than 20 entries of a slice for each component are refused.
    step_size : float
        Size of a stochastic step, relative to a vector's length. It is divided by five when the objective rises.
    slice_variances : "estimate", None, or list of N arrays (I_n,)
        Variances of the slices in the ℓ2 penalty, the diagonals of R_n: estimated, or all 1 (None). The estimates are R_n(i, i) =
        ‖X(n-slice i)‖²/(Rθ^{N−1}), θ = (‖X‖²/R)^{1/N}, in which the missing entries of a slice count as much as its observed ones
        on average, so that they do not depend on which entries are missing.
    init : "auto", "random", "svd", or list of N arrays (I_n, R)
        Initial factors of modes 2 to N: random, or leading left singular vectors of the unfoldings. Random ones are standard normal, also
        beyond the number of singular vectors. The slices of mode 1 begin at their optimum given these. "svd" and "auto" have one start
        of singular vectors, "auto" unless their Gram matrices have more than 2²² entries; all others are random. A list holds given
        factors of all modes, from which the fit starts as it is.
    n_init : int
        Number of short starts; the fit continues from the best one. Each takes 10 iterations. In the first four the penalties are a
        hundredth, because components would otherwise vanish before they form. The better half takes 20 more. On large data they run on
        some slices, on the driver. Then passes over a 16th and a quarter of the partitions follow, on each until a pass improves the
        objective by less than the sample's noise.
        All these are not counted as iterations.
    max_iter : int
        Maximum number of iterations; along a path, for each λ.
    tol : float
        Stop when the estimated distance of the objective from its limit, relative to its value, falls below this. It needs
        at least 11 iterations; see :func:`dfact.progress.remaining_tail`. The fits of a path, which start
        near their solutions, stop when the relative change of the objective in an iteration falls below this.
    random_state : int, RandomState or None
        Seed of the start.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each iteration, or each λ of a path.

    Attributes
    ----------
    factors_ : list of arrays (I_n, R)
        A⁽ⁿ⁾, components in the order of their weights; A⁽¹⁾ is a Zarr array if the data is stored. The entry of largest
        magnitude of a vector is positive in each mode from the second on.
    weights_ : array (R,)
        γ_r = Π_n ‖a_r⁽ⁿ⁾‖, decreasing. Updates keep the order and the signs of the components.
    rank_ : int
        Number of components whose weights are not 0 (above 1e-9 of the first).
    components_ : array (R, I_2, …, I_N)
        a_r⁽²⁾∘…∘a_r⁽ᴺ⁾, which the factors of mode 1 weight.
    component_cosines_ : array (R, R)
        Π_n cos(a_q⁽ⁿ⁾, a_r⁽ⁿ⁾) of two components, which cancel each other where it is near −1.
    loadings_ : DataFrame
        The vectors of modes 2 to N, scaled to length 1, as a table.
    objective_history_ : array
        Objective at the start, after each iteration, and of the model itself (last). The stochastic solver
        estimates it on a fixed sample of slices at their optimum, except the last, which is exact.
    n_iter_, converged_ : int, bool
    remaining_ : float
        Estimated distance of the objective from its limit, relative to its value; NaN after fewer than 11 iterations, and if two
        components have a cosine of at most −0.5, as the history then does not show what is left. With the stochastic solver it is the
        fall of the objective in the last three iterations, 0 if that is noise, and NaN after fewer than 6.
    explained_share_ : float
        1 − ‖Δ∘(Z − X)‖²/‖Δ∘Z‖².
    n_epochs_ : float
        Number of times that the iterations of the stochastic solver read the data: slices of all chunks that they read, as a share
        of all slices. The variances, and the factors of mode 1 at the end, take a pass each.
    slice_variances_ : Prior
        Variances of the other modes, and the rule for those of mode 1.
    column_labels_, row_labels_, mode_labels_, offset_, n_features_in_, slice_shape_, fingerprint_
        Description of the fitted data: labels of modes 2 and 1 (row labels are those of stored data, or None), a list of those
        of modes 3 to N (None for a mode without), and the shape of a slice of mode 1. ``n_features_in_`` is I_2. The fingerprint
        is that of a stored dataset, else None.

    Raises
    ------
    DataError
        Infinite entries; in transform, slices of another shape.
    ParameterError
        An invalid parameter, or too few slices or entries for the samples of the stochastic solver.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    Warns
    -----
    UserWarning
        Slices, of any mode, without any observed entry: their factors are 0. Two components that cancel each other, with a cosine of at
        most −0.8: the data may have no best decomposition of this rank (Krijnen et al. 2008). A penalty that sets all components to 0.

    References
    ----------
    Shi et al. (2017): equations (7), (20)-(24), (36), (37), (39)-(54), algorithms 1-4.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((size, 2)) for size in (30, 20, 10))
    >>> model = dfact.ElasticCP(n_components=3, lam=0.1, random_state=0).fit(np.einsum("ir,jr,kr->ijk", A, B, C))
    >>> [factor.shape for factor in model.factors_]
    [(30, 3), (20, 3), (10, 3)]
    """

    slice_variances_: Prior
    n_epochs_: Annotated[float, OPTIONAL]
    traits = replace(CPModel.traits, limited_parameters=("lam", "noise_variance", "laplace_rate"))
    saved_types = (Prior, RowPrior)

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 10,
        *,
        lam: Annotated[float, FINITE] = 1.0,
        l1_ratio: Annotated[float, _SHARE] = 0.2,
        noise_variance: Annotated[float | None, FINITE.or_none()] = None,
        laplace_rate: Annotated[float | None, FINITE.or_none()] = None,
        nonnegative: Annotated[bool, Values(YES_OR_NO.accepts, "True or False, for all modes alike")] = False,
        solver: Literal["bcd", "stochastic"] = "bcd",
        missing: Literal["auto", "fill", "exact"] = "auto",
        batch_sizes: Annotated[Sequence[int] | None, _SIZES] = None,
        step_size: Annotated[float, _STEP] = 1.0,
        slice_variances: Annotated[Literal["estimate"] | Any | None, _PRIORS] = "estimate",
        init: Annotated[Literal["auto", "random", "svd"] | Any, _STARTS] = "auto",
        n_init: Annotated[int, COUNT] = 6,
        max_iter: Annotated[int, COUNT] = 200,
        tol: Annotated[float, NOT_NEGATIVE] = 3e-5,
        random_state: Any = None,
        executor: Any = None,
        memory_limit: int | str | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 10,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.lam = lam
        self.l1_ratio = l1_ratio
        self.noise_variance = noise_variance
        self.laplace_rate = laplace_rate
        self.nonnegative = nonnegative
        self.solver = solver
        self.missing = missing
        self.batch_sizes = batch_sizes
        self.step_size = step_size
        self.slice_variances: Any = slice_variances
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def _prepare(self, X: Any, **identity: Any) -> FitTask[ElasticNet]:
        dataset = self._as_slices(X, reset=True)
        if self.solver == "stochastic":
            require_samples(self.batch_sizes, dataset.shape, self.n_components)
        covariates = row_inputs(self, dataset, self._working_dtype(dataset))
        return self._task(dataset, self.elastic_net(), covariates=covariates, **identity)

    def _solve(self, task: FitTask[ElasticNet]) -> Solver[None]:
        net, dtype = task.problem, task.dtype
        report = Reporter(self.callbacks, self.max_iter)
        self.slice_variances_, descent, _ = yield from make_descent(self, task.dataset, dtype, net, report)
        measure = progress if self.solver == "stochastic" else remaining_tail
        objectives, self.converged_ = yield from descend(descent, net, self.max_iter, self.tol, report, measure)
        # Rounded to the precision of factors_, so that transform gives the same rows.
        others = [A.astype(dtype).astype(np.float64) for A in descent.others]
        sums: Any = yield from run(self._last_pass(task, net, self.slice_variances_.rows), khatri_rao(others))
        sizes = sums.sizes + sum(penalty_norms(A, v) for A, v in zip(others, self.slice_variances_.others, strict=True))
        final = 0.5 * float(sums.squares) + net.penalty(sizes)
        weights = component_weights(sums.gram, others)
        self.factors_ = gather_factors((yield from state_rows(FACTORS)), others, weights, task)
        self.objective_history_ = np.asarray([*objectives, final])
        self.component_cosines_ = ordered_cosines(sums.gram, others)
        cosines = cosines_of_pairs(self.component_cosines_, np.sort(weights)[::-1])
        trusted = len(others) == 1 or cosines.min() > _TRUSTED_COSINE
        self.n_iter_, self.remaining_ = len(objectives), measure(objectives) if trusted else float("nan")
        if isinstance(descent, StochasticDescent):
            self.n_epochs_ = descent.n_epochs
        self.explained_share_ = explained_share(float(sums.squares), float(sums.norm))
        self._set_weights(weights)
        self._keep_sums(task, sums, others, weights)
        warn_unconverged(int(sums.unconverged))

    def _penalties(self) -> tuple[ElasticNet, Prior]:
        return self.elastic_net(), self.slice_variances_

    def _set_grown_prior(self, prior: Prior) -> None:
        self.slice_variances_ = prior

    def _no_sums(self) -> str:
        if self.slice_variances_.rows.kind == "given":
            return (
                "slice_variances lists the variances of the fitted slices alone, expected 'estimate' or None to add slices; fit all again"
            )
        return super()._no_sums()

    def path(
        self,
        X: Any,
        lambdas: Sequence[float] | None = None,
        refine: bool = True,
        *,
        checkpoint: str | PathLike[str] | None = None,
    ) -> SolutionPath:
        """Solve along increasing λ (algorithm 3), up to the λ at which all components are 0. The model itself is not changed.

        Each solution starts from the previous one. When the support, the entries that are not 0, changes, the factors are also
        fitted without shrinkage on this support (algorithm 2, λ = 1e-8): the refined solution. ``lambdas`` are by
        default 1e-10, 1e-9, …, 1, then 10, 20, …, 90, 100, 200, …, 1e10. The rows are those of the
        last iteration; for stored data they are written to disk for every step. ``checkpoint`` overrides the parameter;
        it also holds the factors of every step.

        Parameters
        ----------
        X : array (I_1, …, I_N), path or Dataset
            NaN is missing.
        lambdas : increasing numbers, optional
            Values of λ.
        refine : bool
            Whether to compute the refined solutions.
        checkpoint : path, optional
            Store (folder or URL) for the progress, in place of the parameter of this name.

        Returns
        -------
        SolutionPath
            A table of the solutions, and each as a model.
        """
        grid = checked_lambdas(lambdas)
        self._check_parameters()
        if self.noise_variance is not None:
            remedy = f"for their α set l1_ratio={self.elastic_net().l1_ratio:g}"
            raise ParameterError(f"noise_variance and laplace_rate set λ, which varies along a path, expected None for both; {remedy}")
        task = self.prepare(X, lambdas=grid, refine=bool(refine))
        model: Any = task.model
        with task.open(checkpoint) as session:
            model.slice_variances_, steps = drive(self._trace(task, grid, bool(refine)), session)
        return SolutionPath(tuple(steps), model)

    def _trace(self, task: FitTask[ElasticNet], lambdas: list[float], refine: bool) -> Solver[tuple[Prior, list[PathStep]]]:
        report = Reporter(self.callbacks, len(lambdas))
        first = replace(task.problem, lam=lambdas[0])
        prior, descent, norm = yield from make_descent(self, task.dataset, task.dtype, first)

        def gather(descent: Descent, weights: NDArray[np.float64]) -> Solver[list[Any]]:
            return gather_factors((yield from descent.rows()), descent.others, weights, task)

        steps = yield from trace_path(
            descent,
            task.problem,
            lambdas,
            norm=norm,
            max_iter=self.max_iter,
            tol=self.tol,
            refine=refine,
            gather=gather,
            report=lambda step: report.step(f"λ = {step.lam:g}, rank {step.rank}, {step.zeros} zeros"),
        )
        return prior, steps

    @lazy_of_dask
    def transform(self, X: Any, *, slice_variances: Any = None, out: str | PathLike[str] | None = None) -> Any:
        """Return the factors A⁽¹⁾ (n, R) of slices X (n, I_2, …, I_N) given the other modes, each slice at its optimum.

        ``slice_variances`` (n,) holds R_1, for a model whose variances were given as a list; by default all are the mean of its first.
        Stored data gives a Zarr array, at ``out`` or in a temporary folder. A Dask array gives one, computed on demand or for ``out``.
        """
        check_is_fitted(self)
        dataset = self._as_slices(X, reset=False)
        variances = self._row_inputs(dataset.shape[0], slice_variances).get("slice_variances")
        return self._rows(dataset, self.elastic_net(), self.slice_variances_.rows, None if variances is None else variances[:, None], out)

    def _copy_for_transform(self) -> Self:
        light = super()._copy_for_transform()
        light.slice_variances = "estimate"  # given ones have a number for each fitted row; those of the rows are inputs
        return light

    def _row_inputs(self, n: int, slice_variances: Any = None) -> dict[str, Any]:
        if self.slice_variances_.rows.kind == "given":
            given = (
                np.full(n, np.mean(self.slice_variances[0])) if slice_variances is None else as_numbers("slice_variances", slice_variances)
            )
            return {"slice_variances": check_variances([given], [n])[0]}
        if slice_variances is not None:
            raise ParameterError("transform takes slice_variances only with a model whose variances were given as a list")
        return {}

    def _check_parameters(self) -> None:
        lam, l1_ratio, variance, rate = self.lam, self.l1_ratio, self.noise_variance, self.laplace_rate
        if (variance is None) != (rate is None):
            raise ParameterError(f"noise_variance is {variance!r} and laplace_rate is {rate!r}, expected both or neither")
        if variance is not None and (lam, l1_ratio) != _DEFAULT_PENALTY:
            expected = "expected only one pair: leave lam and l1_ratio, or noise_variance and laplace_rate, at their defaults"
            raise ParameterError(f"lam={lam!r} and l1_ratio={l1_ratio!r} are given with noise_variance and laplace_rate, {expected}")
        super()._check_parameters()

    def _check_loaded(self) -> None:
        super()._check_loaded()
        rows, others = self.slice_variances_.rows, self.slice_variances_.others
        is_given, shapes = isinstance(self.slice_variances, (list, tuple)), [variances.shape for variances in others]
        if shapes != [(size,) for size in self.slice_shape_] or not all((variances > 0).all() for variances in others):
            raise DataError(f"slice_variances_ has shapes {shapes}, expected numbers above 0 of the slices {self.slice_shape_}")
        if is_given != (rows.kind == "given") or not np.isfinite(rows.scale):
            raise DataError(f"slice_variances_ has rows by {rows}, expected the kind that the parameter slice_variances sets")
        if is_given:
            check_variances(self.slice_variances, [self.factors_[0].shape[0], *self.slice_shape_])

    def fitted_by_passes(self, **parameters: Any) -> "ElasticCP":
        """Return an unfitted copy with these parameters, whose fits fill missing entries and share reads, on the default executor."""
        here: dict[str, Any] = {"executor": None, "memory_limit": None, "checkpoint": None, "callbacks": ()}
        return ElasticCP(**self.get_params(deep=False) | here | {"solver": "bcd", "missing": "fill"} | parameters)

    def elastic_net(self) -> ElasticNet:
        """Return the penalties by their λ and α, which may follow from σ² and μ (equation 7)."""
        lam, l1_ratio = self.lam, self.l1_ratio
        if self.noise_variance is not None and self.laplace_rate is not None:
            lam, l1_ratio = self.noise_variance * (1 + self.laplace_rate), self.laplace_rate / (1 + self.laplace_rate)
        return ElasticNet(float(lam), float(l1_ratio), bool(self.nonnegative))

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        size, m, k = dtype.itemsize, prod(shape[1:]), self.n_components
        rows, exact = rows_footprint(shape, k, dtype), is_exact(self, shape, 1.0)
        start = start_size(shape) if uses_vectors(self, shape) else 0
        monitor = 8 * m * monitor_rows(shape, resolve_batch_sizes(self.batch_sizes, shape, k)[0]) if self.solver == "stochastic" else 0
        sampled = most_rows(shape, k) if isinstance(self.init, str) and not exact else 0
        kept = sampled * (rows.work_per_row + size * (m + 6 * k))  # on the driver, with all that passes on it need
        # Products of two factors, and their contractions with the data.
        steps = 4 * k * (k + 1) * m // Layout.of(shape).block_rows if self.solver == "stochastic" else 0
        return replace(
            rows,
            work_per_row=rows.work_per_row + steps,
            broadcast=max(rows.broadcast, 8 * start, size * m * sampled),
            state_per_row=(3 * size + 1) * k + size,  # factors, refined factors and their support, factors before the last step
            result_per_row=rows.result_per_row + (8 * 3 * m if exact else 0) + -(-(monitor + kept) // max(1, shape[0])),
        )
