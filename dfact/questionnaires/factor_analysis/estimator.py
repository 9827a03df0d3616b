"""Exploratory factor analysis of items by minimum residuals, with rotation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import Solver, drive, run, state_rows
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.correlation import MomentsPass
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, Length, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.scikit_learn import check_is_fitted
from dfact.models.traits import ModelTraits
from dfact.parameters import COUNT, NOT_NEGATIVE, YES_OR_NO, TooManyComponentsError, at_least
from dfact.progress import Iteration, Reporter
from dfact.questionnaires.factor_analysis.correlations import Correlations, Tables, checked, correlate, pearson
from dfact.questionnaires.factor_analysis.growth import KEPT_BYTES, MomentSums, TableSums
from dfact.questionnaires.factor_analysis.passes import ScorePass, Scorer, ScoreSums
from dfact.questionnaires.fit_indices import SINGULAR, fit_indices, score_reliability
from dfact.questionnaires.minres import LOWEST, minres
from dfact.questionnaires.polychoric import GATHERED_ROWS, answer_levels, gathered_bytes, table_bytes
from dfact.questionnaires.reliability import keys, omega, omega_total
from dfact.questionnaires.rotation import explained, oblimin, ordered, promax, promax_spss, varimax
from dfact.questionnaires.scale_statistics import why_singular
from dfact.text import format_bytes

_N_STEPS = 3  # reported to the callbacks


@dataclass(frozen=True)
class Factors:
    """Rotated factors of the correlations."""

    pattern: NDArray[np.float64]
    """Loadings Λ (m, k)."""
    correlations: NDArray[np.float64]
    """Correlations Φ of the factors (k, k)."""
    communalities: NDArray[np.float64]
    uniquenesses: NDArray[np.float64]
    """Communality and uniqueness of each item (m,)."""
    rmsr: float
    """Root mean square of the residual correlations."""
    n_iter: int
    converged: bool


_ROUNDING = 1e-6  # of correlations that someone else computed


class FactorAnalysis(Growing):
    """Exploratory factor analysis: minimum residual extraction and rotation.

    The correlations R (m, m) of the items are modelled as ΛΦΛᵀ + Ψ with pattern loadings Λ (m, k) of
    factors with correlations Φ (k, k), and uniquenesses Ψ (m, diagonal). Minimum residuals

        minimize  ½‖R − Ψ − ΛΛᵀ‖²  over Λ and 0.005 ≤ Ψ ≤ 1.

    The model is the ICQF paper's second baseline. One pass over the rows computes R, another the
    scores. With ``missing="pairwise"`` each correlation uses the rows with answers to both items;
    such a matrix need not be a correlation matrix. If it has a negative eigenvalue, it is smoothed
    (like psych's ``cor.smooth``) with a warning.

    With ``correlation="polychoric"`` the answers, whole numbers of at most 10 levels, are categories of normal variables, and R
    holds the correlations of these. Thresholds come from all answers to an item, then the ρ of each pair by maximum likelihood
    (Olsson 1979). An
    empty cell of a 2×2 table counts ½. The tables of all pairs are counted in one pass, or in several if they exceed the memory limit.
    With weights of the rows, a table holds sums of weights and is scaled to Kish's effective number of its rows.

    Scores are Thurstone's, the regression of the factors on the items, with the model's
    correlations: f = ΦΛ_oᵀ(Λ_oΦΛ_oᵀ + Ψ_o)⁻¹z_o. z holds the standardized answers, and o the items that
    the row has answered, so nothing is imputed; a row with fewer answers has scores nearer to 0.
    They are computed from the answers themselves, also with polychoric correlations. psych takes the observed correlations R
    in place of ΛΦΛᵀ + Ψ, which gives slightly different scores. Confounders of a dataset are not used.

    Parameters
    ----------
    n_components : int
        Number of factors k. :func:`dfact.questionnaires.factor_analysis.number_of_factors.number_of_factors` estimates it.
    method : "minres"
        Method of extraction.
    correlation : "pearson" or "polychoric"
        Correlations of the answers ("pearson"), or of normal variables behind ordered answers of at most 10 levels ("polychoric").
    rotation : "promax", "promax-spss", "oblimin", "varimax" or None
        Rotation of the factors: promax (as in psych, or as in SPSS) or oblimin for correlated, varimax for uncorrelated factors. Oblimin
        has γ = 0. Promax fits loadings to a target made of rows of length 1: of rows of length 1 as well ("promax"), or of the rows
        as they are ("promax-spss"). The correlations of the factors may differ by .2.
    kappa : float
        Power to which promax raises the loadings.
    kaiser : bool, optional
        Rotate loadings whose rows are scaled to length 1, Kaiser's normalization, or as they are. By default promax and varimax scale,
        as in psych and factor_analyzer, and oblimin does not, as in psych and GPArotation; SPSS's oblimin does. "promax-spss" has no
        other way.
    missing : "pairwise" or "listwise"
        Correlations from participants who answered both items ("pairwise") or all items ("listwise").
    max_iter : int
        Maximum number of iterations of the extraction.
    tol : float
        The extraction stops when all entries of the gradient by the uniquenesses are at most this.

    Attributes
    ----------
    components_ : array (k, m)
        Λᵀ, the factors ordered by the variance they explain, each with a positive sum of loadings.
    factors_ : array (n, k)
        Scores; a Zarr array if the data is stored. NaN for rows without any answer.
    factor_correlations_ : array (k, k)
        Φ.
    communalities_, uniquenesses_ : array (m,)
        diag(ΛΦΛᵀ), and 1 minus it, at least 0.005.
    loadings_, explained_ : DataFrame
        Loadings, items × factors; and for each factor the explained variance in items, its share of m, and the cumulative share.
    explained_share_ : float
        Share of the items' variance that the factors explain.
    correlations_ : array (m, m)
        R, smoothed if ``smoothed_``.
    n_observations_ : int
        Rows the correlations come from: with any answer, or with all. Rows of weight 0 do not count.
    weighted_ : bool
        Whether the rows have weights.
    n_effective_ : float
        Kish's effective number of these rows, (Σw)²/Σw², which takes the place of n in tests and intervals. It
        ignores strata and clusters of the sample.
    rmsr_ : float
        Root mean square of R − ΛΦΛᵀ off the diagonal.
    fit_ : Series
        χ² with its degrees of freedom and p, RMSEA with its 90% interval, CFI, TLI, SRMR and BIC; see
        :func:`dfact.questionnaires.fit_indices.fit_indices`. With polychoric correlations all but SRMR are descriptive, as χ² then has
        another distribution. χ², p and the interval of RMSEA assume complete, normal answers: of 90% intervals, some 80% covered
        with ordered categories and 35% with a fifth of the answers missing. NaN, except ``df`` and ``srmr``, if R was smoothed or
        is singular, as its determinant is then arbitrary.
    omega_ : Series
        Shares of the variance of the sum of all items that factors explain (McDonald 1999): ``omega`` for one factor, and
        ``omega_total`` for the model's factors. The items of ``reversed_items_`` count with the other sign.
    score_reliability_ : Series
        Squared correlation of each factor with its scores (determinacy²), for rows with all answers; NaN if R is singular.
    thresholds_ : list of m lists, or None
        Thresholds between the categories of each item, for polychoric correlations. Levels without answers are not categories.
    mean_, scale_ : array (m,)
        Mean and standard deviation of each item's answers.
    n_iter_, converged_ : int, bool
        Iterations and convergence of the extraction.

    Raises
    ------
    DataError
        Infinite answers, an item that does not vary, a pair of items with too few common rows. For polychoric correlations, answers
        that are not whole numbers, or of more than 10 levels.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    Warns
    -----
    UserWarning
        Correlations that were smoothed; polychoric correlations at their limit ±0.9999; more parameters
        than correlations; an item whose uniqueness is at its limit (Heywood case); rows without any answer.

    References
    ----------
    Harman & Jones (1966) for minres; Kaiser (1958); Hendrickson & White (1964) and Grieder & Steiner (2022) for promax; Jennrich
    (2002) for oblimin; Olsson (1979) for polychoric correlations; Thomson (1939) and Thurstone (1935) for the scores; and
    Revelle's R package psych, whose conventions are followed.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.normal(size=(500, 2)) @ np.kron(np.eye(2), np.ones(6)) + rng.normal(size=(500, 12))
    >>> dfact.FactorAnalysis(n_components=2).fit(answers).loadings_.shape
    (12, 2)
    """

    traits = ModelTraits(counts_empty_rows=True)

    n_iter_: int
    converged_: bool
    explained_share_: float
    factors_: Annotated[Any, Shape(("n", "k"), rows=True)]
    factor_correlations_: Annotated[NDArray[Any], Shape(("k", "k"))]
    communalities_: Annotated[NDArray[Any], Shape(("m",))]
    uniquenesses_: Annotated[NDArray[Any], Shape(("m",), low=LOWEST)]
    mean_: Annotated[NDArray[Any], Shape(("m",))]
    scale_: Annotated[NDArray[Any], Shape(("m",), low=1e-100)]
    correlations_: Annotated[NDArray[Any], Shape(("m", "m"))]
    n_observations_: int
    n_effective_: float
    weighted_: bool
    smoothed_: bool
    rmsr_: float
    thresholds_: Annotated[list[list[float]], Length(("m",))] | None
    sums_: Annotated[MomentSums | TableSums, OPTIONAL]
    saved_sums = (MomentSums, TableSums)

    def __init__(
        self,
        n_components: Annotated[int, COUNT] = 3,
        *,
        method: Literal["minres"] = "minres",
        correlation: Literal["pearson", "polychoric"] = "pearson",
        rotation: Literal["promax", "promax-spss", "oblimin", "varimax"] | None = "promax",
        kappa: Annotated[float, at_least(1)] = 4.0,
        kaiser: Annotated[bool | None, YES_OR_NO.or_none()] = None,
        missing: Literal["pairwise", "listwise"] = "pairwise",
        max_iter: Annotated[int, COUNT] = 1000,
        tol: Annotated[float, NOT_NEGATIVE] = 1e-6,
        executor: Any = None,
        memory_limit: int | str | None = None,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.correlation = correlation
        self.rotation = rotation
        self.kappa = kappa
        self.kaiser = kaiser
        self.missing = missing
        self.max_iter = max_iter
        self.tol = tol
        self.executor = executor
        self.memory_limit = memory_limit
        self.callbacks = callbacks
        self.dtype = dtype

    def fit(self, X: Any, y: None = None, *, sample_weight: Any = None, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Fit the answers X (n, m): any array, path or Dataset; NaN is missing.

        ``sample_weight`` holds n numbers of at least 0, such as survey weights; a Dataset or path has its own, and
        ``Dataset.with_weights(None)`` leaves them out. Means, variances and correlations are weighted, and variances have the factor
        n/(n − 1) with Kish's effective n: only the ratios of the weights matter, and an integer weight does not equal copies of
        the row. ``checkpoint`` overrides the parameter.
        """
        del y
        return self.fit_prepared(self.prepare(X, sample_weight=sample_weight), checkpoint=checkpoint)

    def _prepare(self, X: Any, sample_weight: Any = None, least: int | None = None) -> FitTask[Tables | None]:
        """Check the parameters and the data, which must allow ``least`` factors, by default all components."""
        dataset = self._dataset(X, None, sample_weight, reset=True)
        _check_answers(dataset, self.n_components if least is None else least)
        weights = self._weight_summary(dataset)
        scaled = None if weights is None else np.asarray(dataset.weights, np.float64)[:, None] / weights.scale
        return self._task(dataset, covariates=scaled)

    def _solve(self, task: FitTask[Tables | None]) -> Solver[None]:
        report = Reporter(self.callbacks, _N_STEPS)
        correlations = yield from correlate(task, complete_only=self.missing == "listwise")
        report.step("correlations")
        sums = yield from self._solve_correlations(task, correlations, report)
        self._keep_sums(correlations, task)
        self._begin_growth(task, sums)
        self.factors_ = task.gather((yield from state_rows("factors")), self.n_components)

    def _solve_correlations(self, task: FitTask[Tables | None], correlations: Correlations, report: Reporter) -> Solver[ScoreSums]:
        """Extract the factors of correlations, score the rows of the task, and set the attributes except those of the rows."""
        factors = self._extract(correlations.R, task)
        report.step("factors")
        self.components_ = np.ascontiguousarray(factors.pattern.T, task.dtype)
        self.factor_correlations_, self.communalities_ = factors.correlations, factors.communalities
        self.uniquenesses_, self.rmsr_ = factors.uniquenesses, factors.rmsr
        self.explained_share_ = float(factors.communalities.mean())
        self.n_iter_, self.converged_ = factors.n_iter, factors.converged
        self.mean_, self.scale_ = correlations.mean, correlations.scale
        self.correlations_, self.n_observations_, self.smoothed_ = correlations.R, correlations.n, correlations.smoothed
        self.n_effective_ = correlations.n_effective
        self.thresholds_ = correlations.thresholds
        self._warn_singular(task.dataset.column_labels)
        sums = yield from run(ScorePass(task.dtype, task.covariates is not None), self._scorer())
        report.step("scores")
        _warn_nonrespondents(int(sums.nonrespondents), task.dataset.shape[0])
        return sums

    def _warn_singular(self, labels: NDArray[Any]) -> None:
        """Warn of correlations without an inverse, for which most figures are not defined."""
        values, vectors = np.linalg.eigh(self.correlations_)
        if values[0] > SINGULAR or self.smoothed_:
            return
        why = why_singular(vectors[:, 0], self.n_observations_, [str(label) for label in labels])
        warn(f"{why}: fit_ and score_reliability_ are NaN, apart from srmr; leave out items, or add participants")

    def _scorer(self) -> Scorer:
        return Scorer.from_loadings(self.components_, self.uniquenesses_, self.factor_correlations_, self.mean_, self.scale_)

    def _keep_sums(self, found: Correlations, task: FitTask[Tables | None]) -> None:
        """Set the sums to which further rows can be added, or remove those of earlier rows if there are none of all."""
        stored = self.__dict__.pop("sums_", None)
        if found.moments is not None and found.shift is not None:
            weights = task.dataset.weight_summary()
            unit = 1.0 if weights is None else weights.scale
            self.sums_ = MomentSums.of(found.moments, found.shift, stored.weight_unit if isinstance(stored, MomentSums) else unit)
        elif task.problem is not None and (tables := TableSums.of(found.tables, task.problem.levels)) is not None:
            self.sums_ = tables

    def _no_sums(self) -> str:
        if self.correlation == "pearson" or getattr(self, "growth_", None) is None:
            return super()._no_sums()
        if self.weighted_:
            return "polychoric tables of weights are rounded for a number of rows, expected no weights to add others; fit all rows again"
        why = f"they exceed {format_bytes(KEPT_BYTES)} or the memory limit of the fit"
        return f"tables of all pairs of items were not kept: {why}; fit all rows again"

    def _prepare_update(self, X: Any, sample_weight: Any = None) -> FitTask[Tables | None]:
        dataset, stored = self._new_rows(X, None, sample_weight), self.sums_
        if isinstance(stored, TableSums):
            low, high = dataset.statistics.minimum, dataset.statistics.maximum
            unseen = dataset.statistics.observed == 0
            low, high = np.minimum(stored.low, np.where(unseen, np.inf, low)), np.maximum(stored.high, np.where(unseen, -np.inf, high))
            levels = answer_levels(low, high, dataset.column_labels)
            return self._task(dataset, Tables(levels, 1, stored.tables(levels, stored.rows + dataset.shape[0])))
        if dataset.weights is None:
            return self._task(dataset)
        return self._task(dataset, covariates=np.asarray(dataset.weights, np.float64)[:, None] / stored.weight_unit)

    def _measure(self, task: FitTask[Tables | None]) -> Solver[Baseline]:
        return (yield from run(ScorePass(task.dtype, task.covariates is not None), self._scorer()))

    def _grow(self, task: FitTask[Tables | None]) -> Solver[Added]:
        report, stored, listwise = Reporter(self.callbacks, _N_STEPS), self.sums_, self.missing == "listwise"
        if isinstance(stored, TableSums):
            found = yield from correlate(task, complete_only=listwise)
        else:
            moments = stored.moments()
            moments.add((yield from run(MomentsPass(task.dtype, listwise, task.covariates is not None), stored.shift)))
            n = self.growth_.n_rows + task.dataset.shape[0]
            found = checked(pearson(moments, stored.shift), n, task.dataset.column_labels, pearson=True)
        report.step("correlations")
        self._keep_sums(found, task)
        sums = yield from self._solve_correlations(task, found, report)
        return Added((yield from state_rows("factors")), sums)

    def correlate(self, X: Any, *, sample_weight: Any = None) -> Correlations:
        """Compute the correlations from which ``fit`` extracts factors, by one pass over X (n, m)."""
        task = self.prepare(X, sample_weight=sample_weight, least=1)
        with task.open_session() as session:
            return drive(correlate(task, complete_only=self.missing == "listwise"), session)

    def _extract(self, R: NDArray[np.float64], task: FitTask[Tables | None]) -> Factors:
        """Extract and rotate the factors of the correlations R."""
        m, k = len(R), self.n_components
        if (m - k) ** 2 < m + k:
            warn(f"{k} factors of {m} items have more parameters than there are correlations")
        extraction = minres(R, k, self.max_iter, self.tol)
        pattern, Phi = extraction.loadings, np.eye(k)
        if self.rotation in ("promax", "promax-spss") and k > 1:
            try:
                if self.rotation == "promax":
                    pattern, Phi = promax(pattern, self.kappa, kaiser=self.kaiser is not False)
                else:
                    pattern, Phi = promax_spss(pattern, self.kappa)
            except np.linalg.LinAlgError as error:
                raise DataError(
                    f"the items determine fewer than {k} factors ({error} in promax); fit fewer, or with another rotation"
                ) from error
        elif self.rotation == "varimax" and k > 1:
            pattern, _ = varimax(pattern, kaiser=self.kaiser is not False)
        elif self.rotation == "oblimin":
            rotated = oblimin(pattern, kaiser=self.kaiser is True)
            pattern, Phi = rotated.pattern, rotated.correlations
        pattern, Phi = ordered(pattern, Phi)
        communalities = np.einsum("jr,rs,js->j", pattern, Phi, pattern)
        residuals = R - pattern @ Phi @ pattern.T
        rmsr = float(np.sqrt(np.mean(residuals[~np.eye(m, dtype=bool)] ** 2)))
        heywood = np.flatnonzero(extraction.uniquenesses <= LOWEST)
        if heywood.size:
            items = ", ".join(repr(str(task.dataset.column_labels[j])) for j in heywood[:5])
            warn(f"the uniqueness of {items} is at its limit {LOWEST} (Heywood case): try fewer factors")
        uniquenesses = np.maximum(1 - communalities, LOWEST)
        return Factors(pattern, Phi, communalities, uniquenesses, rmsr, extraction.n_iter, extraction.converged)

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the factor scores (n, k) of participants X (n, m), from the items they answered; NaN for those without any answer.

        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, None, reset=False)
        dtype = self._working_dtype(dataset)
        task = self._task(dataset, footprint=self._footprint(dataset.shape, 0, dtype), dtype=dtype)
        sums, scores = task.compute_rows(ScorePass(task.dtype), self._scorer(), len(self.components_), out)
        _warn_nonrespondents(int(sums.nonrespondents), dataset.shape[0])
        return scores

    def inverse_transform(self, scores: Any) -> NDArray[Any]:
        """Return the model's expected answers (n, m) for factor scores (n, k)."""
        F = self._as_factors(scores)
        answers: NDArray[Any] = (self.mean_ + F @ self.components_ * self.scale_).astype(F.dtype)
        return answers

    def _check_loaded(self) -> None:
        super()._check_loaded()
        if isinstance(sums := getattr(self, "sums_", None), TableSums):
            sums.check(self.column_labels_)
        correlations = self.factor_correlations_
        lowest = np.linalg.eigvalsh(correlations)[0]
        if not (np.allclose(correlations, correlations.T) and lowest > 0):
            raise DataError(f"factor_correlations_ has the smallest eigenvalue {lowest:.3g}, expected a positive definite matrix")
        R = self.correlations_
        if not (np.allclose(R, R.T) and np.allclose(R.diagonal(), 1) and np.abs(R).max() <= 1 + 1e-6):
            raise DataError(f"correlations_ has values from {R.min():.3g} to {R.max():.3g}, expected a symmetric matrix with diagonal 1")

    def _copy_for_transform(self) -> Self:
        light = super()._copy_for_transform()
        del light.correlations_  # (m, m), not needed for scores
        return light

    @property
    def explained_(self) -> pd.DataFrame:
        """Table with the ``variance`` that each factor explains, in items, its ``share`` of all, and the ``cumulative`` share."""
        variance = explained(self.components_.T.astype(np.float64), self.factor_correlations_)
        share = variance / self.components_.shape[1]
        columns = {"variance": variance, "share": share, "cumulative": share.cumsum()}
        return pd.DataFrame(columns, index=pd.Index(self.get_feature_names_out(), name="factor"))

    @property
    def fit_(self) -> "pd.Series[float]":
        """Indices of the fit of the model's correlations to R."""
        pattern = self.components_.T.astype(np.float64)
        loadings = pattern @ np.linalg.cholesky(self.factor_correlations_)
        return fit_indices(self.correlations_, loadings, self.uniquenesses_, self.n_effective_, regular=not self.smoothed_)

    @property
    def omega_(self) -> "pd.Series[float]":
        """Shares of the variance of the sum of all standardized items that the factors explain.

        ``omega`` is of one factor, and ``omega_total`` of the model's k factors; see :func:`dfact.describe`. The items of
        ``reversed_items_`` count with the other sign: as scored, they would cancel the others in the sum.
        """
        signs = keys(self.correlations_)
        R = self.correlations_ * np.outer(signs, signs)
        return pd.Series({"omega": omega(R), "omega_total": omega_total(R, self.uniquenesses_)}, name="share")

    @property
    def reversed_items_(self) -> list[str]:
        """Items with a negative loading on one factor of all items, or if these are most of them, with a positive one."""
        return [str(item) for item, sign in zip(self.column_labels_, keys(self.correlations_), strict=True) if sign < 0]

    @property
    def score_reliability_(self) -> "pd.Series[float]":
        """Squared correlation of each factor with its scores."""
        values = score_reliability(self.correlations_, self.components_.T.astype(np.float64), self.factor_correlations_)
        return pd.Series(values, index=pd.Index(self.get_feature_names_out(), name="factor"), name="reliability")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.rotation == "promax-spss" and self.kaiser is False:
            raise ParameterError(
                "kaiser is False, expected True or None for rotation 'promax-spss', which takes its target from normalized rows; "
                "rotate by 'promax' to do without"
            )

    def _task(self, dataset: Dataset, problem: Any = None, **settings: Any) -> FitTask[Any]:
        """Return the task, with the arrays of its correlations."""
        if settings.get("footprint") is not None:
            return super()._task(dataset, problem, **settings)
        if self.correlation == "pearson":
            task, m, weighted = super()._task(dataset, problem, **settings), dataset.shape[1], dataset.weights is not None
            base, copies = task.footprint, 2 if hasattr(self, "sums_") else 1
            footprint = replace(base, driver=base.driver + copies * 8 * (6 if weighted else 4) * m * m)  # the sums that the model keeps
            if weighted:  # sums are in double precision, and two more
                footprint = replace(footprint, work_per_row=base.work_per_row + 24 * m, broadcast=base.broadcast + 16 * m * m)
            return replace(task, footprint=footprint)
        return self._tables_task(dataset, problem, **settings)

    def _tables_task(self, dataset: Dataset, update: Tables | None, **settings: Any) -> FitTask[Tables | None]:
        """Return the task with the fewest passes over tables that keep within the memory limit; an update takes one."""
        n, m = dataset.shape
        if update is None:
            levels, earlier = answer_levels(dataset.statistics.minimum, dataset.statistics.maximum, dataset.column_labels), None
        else:
            levels, earlier = update.levels, update.earlier
        dtype, weighted = self._working_dtype(dataset), dataset.weights is not None
        base = self._footprint(dataset.shape, 0, dtype)
        gathered, pairs = gathered_bytes(levels.n_slots, weighted_items=m * weighted) // 2, 16 * m * m * weighted
        tiles = 1
        while True:
            tables = round(table_bytes(levels.n_slots, n, weighted=weighted) / tiles)
            work = base.work_per_row + (4 * m if weighted else levels.n_slots)
            broadcast, summed = base.broadcast + gathered, tables + pairs + gathered
            kept = 0 if earlier is None else 2 * tables  # those of the model, and the same for the levels of all rows
            footprint = replace(base, work_per_row=work, broadcast=broadcast, summed=summed, gathered_rows=GATHERED_ROWS, driver=kept)
            task = super()._task(dataset, Tables(levels, tiles, earlier), footprint=footprint, **settings)
            if tiles >= m or earlier is not None or task.plan().fits:
                return task
            tiles *= 2

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        size, m, k = dtype.itemsize, shape[1], self.n_components
        return Footprint(
            state_per_row=size * k,
            work_per_row=(3 * size + 2) * m + 16 * m + 8 * (3 * k + 2 * k * k),
            # Four sums for Pearson's correlations. Polychoric ones come with two matrices, and with tables that are added by the task.
            broadcast=8 * ((4 if self.correlation == "pearson" else 1) * m * m + m * k * k),
            result_per_row=size * k,
        )


def _check_answers(dataset: Dataset, k: int) -> None:
    """Refuse data without defined correlations."""
    n, m = dataset.shape
    if min(n, m) < 2:
        raise DataError(f"X has n_samples={n} and n_features={m}, expected at least 2 of each")
    if k > min(n, m):
        raise TooManyComponentsError(k, n, m)
    low, high = dataset.statistics.minimum, dataset.statistics.maximum
    if n == m and _is_correlation_matrix(dataset):
        found = f"X is a symmetric matrix of {m} × {m} with 1 on its diagonal, as correlations are, expected the answers of participants"
        raise DataError(f"{found}; fit the answers, as their number and the scores do not follow from correlations")
    constant = np.flatnonzero(low == high)
    if constant.size:
        j = constant[0]
        found = f"item {str(dataset.column_labels[j])!r} holds {low[j]:g} in every row ({constant.size} such items in all)"
        raise DataError(f"{found}, expected items that vary; leave it out")


def _is_correlation_matrix(dataset: Dataset) -> bool:
    """Return whether square data is symmetric, with 1 on the diagonal as the highest entry of each column."""
    statistics = dataset.statistics
    if dataset.missing_rate or statistics.minimum.min() < -1 - _ROUNDING or np.abs(statistics.maximum - 1).max() > _ROUNDING:
        return False
    rows = np.asarray(dataset.source.read(0, dataset.shape[0]), np.float64)
    return bool(np.abs(rows.diagonal() - 1).max() <= _ROUNDING and np.abs(rows - rows.T).max() <= _ROUNDING)


def _warn_nonrespondents(nonrespondents: int, n: int) -> None:
    if nonrespondents:
        warn(f"{nonrespondents} of {n} rows have no answer; their scores are NaN")
