"""Principal component analysis of large data, with missing entries by probabilistic PCA."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.sources.base import SelectedColumns
from dfact.engine.memory_plan import Footprint
from dfact.engine.passes import BlockView
from dfact.engine.requests import Solver, run, state_rows
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.parts import find_column_parts
from dfact.linalg.svd import is_wide, singular_pairs, uses_gram
from dfact.models.fit_task import FitTask, fitted_attributes
from dfact.models.fitted_schema import OPTIONAL, AtLeast, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Axes, Growing
from dfact.models.lazy_transform import lazy_of_dask
from dfact.models.pca.expectation import ProbabilisticPCA, maximize_likelihood
from dfact.models.pca.footprint import fit_footprint, keeps_expectations, variances_footprint
from dfact.models.pca.growth import ROUNDS, Current, LatentSums, LeadingSums, ProductSums
from dfact.models.pca.passes import (
    ColumnMomentsPass,
    Floats,
    HeldOutPass,
    HeldOutSquares,
    LikelihoodPass,
    Loadings,
    MeasurePass,
    PairSums,
    Projection,
    ScorePass,
    Standardized,
)
from dfact.models.pca.spectrum import COMPONENTS, Columns, Spectrum, Variances, check_number, decompose, find_variances, shrinkage
from dfact.models.scikit_learn import OF_PCA, check_is_fitted, component_labels
from dfact.models.traits import ModelTraits, Vocabulary
from dfact.parameters import COUNT, NOT_NEGATIVE, YES_OR_NO, TooManyComponentsError, is_count
from dfact.progress import LOG_LIKELIHOOD, Iteration, Reporter

_ROUNDING = 1e-8  # least noise of a likelihood, relative to the largest variance: without noise there is none outside the components


@dataclass(frozen=True)
class PCAProblem:
    """The data of a fit, as far as the solver needs them."""

    expects: bool
    """Whether missing entries are taken by expectation."""


class PCA(Growing):
    """Principal component analysis, of data with missing entries by probabilistic PCA.

    The rows of X (n, m), centred by the means μ of the columns, are projected on the k orthonormal directions of largest variance:

        T = (X − 1μᵀ) D⁻¹ Pᵀ,   P (k, m) the leading eigenvectors of the covariance matrix of the columns of X D⁻¹,

    with D the ``scale`` of the columns. Up to 512 columns the components come from the covariance matrix, in one pass. Beyond, block
    Krylov iteration computes them, one block of k + 10 vectors in each pass (Musco & Musco 2015). Signs are scikit-learn's: the
    largest loading of each component is positive.

    Missing entries: with ``missing="em"`` the parameters of probabilistic PCA (Tipping & Bishop 1999),

        x = μ + D Wᵀz + D ε,   z ~ N(0, I),   ε ~ N(0, σ²I),

    maximize the likelihood of the observed entries, by an EM algorithm with parameter expansion. The components are the
    singular vectors of W. The score of a row is expected given its observed entries: the missing ones take their expectations. With
    ``missing="mean"`` they count as the mean of their column, which pulls components and scores to 0. Data without missing entries
    have the same components by both.

    Parameters
    ----------
    n_components : int, float or None
        Number of components k. :func:`dfact.selection.select_number_of_components` chooses it. A fraction between 0 and 1 takes the
        smallest number whose shares of the variance sum above it, and None the smaller of n and m, as scikit-learn's default does:
        both need all m variances, so n ≥ m − 10 or at most 512 columns, and no missing entries, or ``missing="mean"``. The default is
        2, as scores of all rows and columns would be as large as the data.
    scale : None, "standard" or "binomial"
        Divisor of the centred columns: none, their standard deviation, or √(2p(1 − p)) for genotypes, counts 0 to 2 of an allele
        with frequency p = μ/2 (Patterson et al. 2006).
    whiten : bool
        Divide the scores by their standard deviations.
    unshrink : bool
        Divide the scores of ``transform`` by ``shrinkage_``, so that rows that were not fitted are comparable with those that were.
    missing : "em" or "mean"
        Missing entries by probabilistic PCA ("em"), or as the mean of their column ("mean").
    tol : float
        With missing entries: stop when the mean log-likelihood of an observed entry rises by at most this much in a pass.
    max_iter : int
        Maximum number of passes of the EM algorithm, and of the block Krylov iteration, which takes at most 30.

    Attributes
    ----------
    components_ : array (k, m)
        P, of the scaled columns; in the order of their variance.
    explained_variance_, explained_variance_ratio_ : array (k,)
        Variance of each component with n − 1 degrees of freedom, and its share of the total variance of the scaled columns.
    explained_share_ : float
        Sum of these shares.
    singular_values_ : array (k,)
        √((n − 1) variance): those of the centred, scaled data if it is complete.
    mean_ : array (m,)
        μ, of the data as it was given.
    scale_ : array (m,)
        Diagonal of D; 1 without ``scale``, and for columns that do not vary.
    noise_variance_ : float
        σ² of probabilistic PCA with n − 1 degrees of freedom: the mean variance of the min(n, m) − k further components.
    factors_ : array (n, k)
        Scores T; a Zarr array if the data is stored. NaN for rows without any entry. After ``partial_fit`` those of the new rows equal
        their ``transform``. Those of earlier rows, whose entries an update does not read, are turned to the new axes and means, and lack
        what the earlier components left out; ``transform`` of these rows gives their scores.
    shrinkage_ : array (k,)
        Estimated ratio of the standard deviation of new rows' scores to that of the fitted rows' scores (Dey & Lee 2019), from 0 to 1;
        see :func:`dfact.models.pca.spectrum.shrinkage`.
    n_samples_ : int
        Number n of rows with any entry.
    n_iter_, converged_ : int, bool
        Number of passes after the moments of the columns, and whether the last one met ``tol``, or the accuracy of the components.
    log_likelihood_history_ : array
        With missing entries: mean log-likelihood of an observed standardized entry in each pass.

    Raises
    ------
    DataError
        Infinite entries, columns without any entry, genotypes outside 0 to 2 with ``scale="binomial"``.
    MemoryPlanError
        The minimum that the fit needs exceeds ``memory_limit``.

    Warns
    -----
    UserWarning
        Rows without any entry.

    References
    ----------
    Tipping & Bishop (1999); Liu, Rubin & Wu (1998); Musco & Musco (2015); Patterson et al. (2006); Dey & Lee (2019),
    doi:10.1016/j.jmva.2019.02.007, for the shrinkage; Ross et al. (2008), doi:10.1007/s11263-007-0075-7, for updates of many columns.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 20)) + 0.1 * rng.normal(size=(300, 20))
    >>> X[rng.random(X.shape) < 0.1] = np.nan
    >>> model = dfact.PCA(n_components=2).fit(X)
    >>> model.components_.shape, round(model.explained_share_, 2)
    ((2, 20), 1.0)
    """

    traits = ModelTraits(
        Vocabulary("component", "components", "rows", "columns", "Loadings of the components", "loading", "entries"),
        counts_empty_rows=True,
        original_units=True,
    )

    foreign = OF_PCA

    factors_: Annotated[Any, Shape(("n", "k"), rows=True)]
    explained_variance_: Annotated[NDArray[Any], Shape(("k",), low=0)]
    explained_variance_ratio_: Annotated[NDArray[Any], Shape(("k",), low=0)]
    singular_values_: Annotated[NDArray[Any], Shape(("k",), low=0)]
    explained_share_: float
    mean_: Annotated[NDArray[Any], Shape(("m",))]
    scale_: Annotated[NDArray[Any], Shape(("m",), low=1e-100)]
    noise_variance_: Annotated[float, AtLeast(0, finite=True)]
    shrinkage_: Annotated[NDArray[Any], Shape(("k",), low=1e-100, high=1)]
    n_samples_: int
    n_iter_: int
    converged_: bool
    log_likelihood_history_: Annotated[NDArray[Any], Shape((None,)), OPTIONAL]
    sums_: Annotated[ProductSums | LeadingSums | LatentSums, OPTIONAL]
    saved_sums = (ProductSums, LeadingSums, LatentSums)

    def __init__(
        self,
        n_components: Annotated[int | float | None, COMPONENTS] = 2,
        *,
        scale: Literal["standard", "binomial"] | None = None,
        whiten: Annotated[bool, YES_OR_NO] = False,
        unshrink: Annotated[bool, YES_OR_NO] = False,
        missing: Literal["em", "mean"] = "em",
        tol: Annotated[float, NOT_NEGATIVE] = 1e-7,
        max_iter: Annotated[int, COUNT] = 200,
        executor: Any = None,
        memory_limit: int | str | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 10,
        callbacks: Sequence[Callable[[Iteration], None]] = (),
        dtype: Any = None,
    ) -> None:
        self.n_components = n_components
        self.scale = scale
        self.whiten = whiten
        self.unshrink = unshrink
        self.missing = missing
        self.tol = tol
        self.max_iter = max_iter
        self.executor = executor
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.callbacks = callbacks
        self.dtype = dtype

    def prepare_held_out(self, X: Any) -> FitTask[PCAProblem]:
        """Prepare a fit without some of the observed entries of X (n, m)."""
        task = self.prepare(X)
        footprint = self._footprint_for(task.dataset.shape, task.dtype, expects=self.missing == "em")
        return replace(task, footprint=footprint)

    def held_out_squares(self, task: FitTask[PCAProblem], held_out: BlockView) -> Solver[HeldOutSquares]:
        """Fit, and return the squared errors of the entries that the view ``held_out`` shows; the model does not change."""
        fitted = type(self)(**self.get_params(deep=False))
        fitted.__dict__.update(fitted_attributes(self))
        yield from fitted._find(task)
        view = fitted._view(task)
        yield from run(ScorePass(task.dtype, view), fitted._projection())
        components = (fitted.components_ * fitted._divisors[:, None]).astype(task.dtype)
        return (yield from run(HeldOutPass(task.dtype, view), components, held_out))

    def prepare_variances(self, X: Any) -> FitTask[PCAProblem]:
        """Prepare :meth:`find_variances` of X (n, m)."""
        task = self.prepare(X)
        m = task.dataset.shape[1]
        if self.scale is None and not uses_gram(m, self._most_components(task.dataset.shape)):
            found = f"scale is None for {m} {self.vocabulary.items}, expected equal variances for parallel analysis of more than 512"
            raise ParameterError(f"{found}; use scale='standard' (--scale standard), or criterion='held_out' (--criterion held_out)")
        return replace(task, footprint=variances_footprint(task.footprint, m, task.dtype))

    def find_variances(self, task: FitTask[PCAProblem]) -> Solver[Variances]:
        """Compute the variances from which :func:`dfact.selection.select_number_of_components` chooses."""
        columns = yield from self.standardize(task)
        return (yield from find_variances(columns, task.dtype, self._most_components(task.dataset.shape), self.max_iter))

    def _prepare(self, X: Any) -> FitTask[PCAProblem]:
        dataset = self._dataset(X, None, reset=True)
        (n, m), k = dataset.shape, self._most_components(dataset.shape)
        if min(n, m + 1) < 2:
            raise DataError(f"X has n_samples={n} and n_features={m}, expected at least 2 rows")
        if k > min(n, m):
            raise TooManyComponentsError(k, n, m)
        self._check_genotypes(dataset)
        expects = self._expects(dataset)
        check_number(self.n_components, n, m, self.vocabulary.items, expects=expects)
        return self._task(dataset, PCAProblem(expects))

    def _most_components(self, shape: tuple[int, ...]) -> int:
        """Return the number of components, or the most that may be fitted; of a fitted model its own."""
        if self.n_components is not None and is_count(self.n_components):
            return int(self.n_components)
        return len(self.components_) if hasattr(self, "components_") else min(shape[0], shape[1])

    def _expects(self, dataset: Dataset) -> bool:
        """Return whether entries are missing, in rows with others, and taken by expectation."""
        statistics = dataset.statistics
        if _lacks_columns(dataset):
            return True
        return self.missing == "em" and bool(statistics.observed.min() < dataset.shape[0] - statistics.n_empty_rows)

    def _check_genotypes(self, dataset: Dataset) -> None:
        if self.scale != "binomial":
            return
        low, high = (dataset.statistics.minimum + dataset.offset).min(), (dataset.statistics.maximum + dataset.offset).max()
        if low < 0 or high > 2:
            raise DataError(f"X has entries from {low:g} to {high:g}, expected genotypes from 0 to 2; use scale='standard' for other data")

    def _solve(self, task: FitTask[PCAProblem]) -> Solver[None]:
        columns, spectrum, model = yield from self._find(task, keeps_sums=True)
        self._set_shrinkage(columns, spectrum if model is None else None)
        if model is not None and model.sums is not None:
            self.sums_ = LatentSums.of(columns, model)
        elif model is None and spectrum.gram is not None:
            found = spectrum.pair_sums
            self.sums_ = ProductSums.of(columns, PairSums.complete(spectrum.gram, columns.rows) if found is None else found)
        elif model is None and spectrum.leading is not None:
            self.sums_ = LeadingSums.of(columns, spectrum.leading.astype(task.dtype))
        if getattr(self, "sums_", None) is None:
            sums: Any = yield from run(ScorePass(task.dtype, self._view(task)), self._projection())
        else:
            sums = yield from run(MeasurePass(task.dtype, self._view(task)), self._projection())
            self._begin_growth(task, sums)
        _warn_empty(int(sums.empty), task.dataset.shape[0])
        self.factors_ = task.gather((yield from state_rows("factors")), len(self.components_))

    def _find(self, task: FitTask[PCAProblem], *, keeps_sums: bool = False) -> Solver[tuple[Columns, Spectrum, ProbabilisticPCA | None]]:
        """Set all attributes but the scores. If the fit ``keeps_sums``, missing entries are counted."""
        report = Reporter(self.callbacks, self.max_iter, LOG_LIKELIHOOD)
        columns = yield from self.standardize(task)
        view, (n, m), expects = columns.view(task.dtype), task.dataset.shape, task.problem.expects
        k = self._most_components((n, m))
        pairwise = keeps_sums and not expects and bool((columns.observed < columns.rows).any())
        spectrum = yield from decompose(view, m, k, self.max_iter, _of_pass(report), pairwise=pairwise)
        if isinstance(self.n_components, (float, np.floating)):
            spectrum = spectrum.explaining(float(self.n_components))
        self._set_spectrum(columns, spectrum, task.dtype)
        if not expects:
            return columns, spectrum, None
        model = yield from self._maximize(columns, report, task, keeps_sums=keeps_sums and keeps_expectations(k, m))
        self._set_model(columns, model, self.n_iter_, task.dtype)
        return columns, spectrum, model

    def _prepare_update(self, X: Any) -> FitTask[PCAProblem]:
        dataset = self._dataset(X, None, reset=False)
        self._check_genotypes(dataset)
        if self._expects(dataset):
            check_number(len(self.components_), dataset.shape[0], dataset.shape[1], self.vocabulary.items, expects=True)
            if isinstance(self.sums_, ProductSums):
                self.sums_ = self.sums_.expected(self._current(), self.scale)
            elif isinstance(self.sums_, LeadingSums):
                found = f"the new rows have missing entries and the fitted ones, of {len(self.mean_)} columns, none"
                raise DataError(f"{found}, expected complete rows; use missing='mean' (--missing mean), or fit all rows again")
        latent = isinstance(self.sums_, LatentSums)
        footprint = self._footprint_for(dataset.shape, self._working_dtype(dataset), expects=latent)
        return self._task(dataset, PCAProblem(expects=latent), footprint=footprint)

    def _expected_figures(self) -> Baseline:
        return super()._expected_figures().arranged(np.arange(len(self.shrinkage_)), self.shrinkage_)

    def _measure(self, task: FitTask[PCAProblem]) -> Solver[Baseline]:
        return (yield from run(MeasurePass(task.dtype, self._view(task)), self._projection()))

    def _grow(self, task: FitTask[PCAProblem]) -> Solver[Added]:
        points = (self.components_ * self._divisors[:, None]).astype(np.float64) * self.scale_, self.mean_  # ends of the axes, origin
        if isinstance(self.sums_, LatentSums):
            report, current = Reporter(self.callbacks, ROUNDS, LOG_LIKELIHOOD), self._current()
            columns, model, self.sums_ = yield from self.sums_.update(task, self.scale, current, self.tol, report.iteration)
            self._set_model(columns, model, 0, task.dtype)
            self._set_shrinkage(columns, None)
        else:
            on_pass, k = _of_pass(Reporter(self.callbacks, self.max_iter)), len(self.components_)
            columns, spectrum, self.sums_ = yield from self.sums_.update(task, self.scale, k, self.max_iter, on_pass)
            self._set_spectrum(columns, spectrum, task.dtype)
            self._set_shrinkage(columns, spectrum)
        sums = yield from run(MeasurePass(task.dtype, self._view(task)), self._projection())
        _warn_empty(int(sums.empty), task.dataset.shape[0])
        ends, origin = points
        axes = Axes(self._on_axes(ends), self._on_axes(origin - self.mean_))
        return Added((yield from state_rows("factors")), sums, self.sums_.gain, axes=axes)

    def _on_axes(self, differences: Floats) -> Floats:
        """Return the scores (…, k) of differences from the means (…, m) of the columns."""
        return np.asarray(differences / self.scale_ @ self.components_.T.astype(np.float64) / self._divisors, np.float64)

    def _no_sums(self) -> str:
        m, k = len(self.mean_), len(self.components_)
        expected = hasattr(self, "log_likelihood_history_")
        if is_wide(m, k) if not expected else not keeps_expectations(k, m):
            return f"{m} columns are too many for the sums of an update, so that none are kept; fit all rows again"
        return super()._no_sums()

    def _current(self) -> Current:
        """Return the probabilistic model, whose variances are those of maximum likelihood."""
        share = (self.n_samples_ - 1) / self.n_samples_
        W = self.components_ * np.sqrt(share * np.maximum(self.explained_variance_ - self.noise_variance_, 0))[:, None]
        return Current(W.astype(np.float64), self.mean_, self.scale_, share * self.noise_variance_)

    def standardize(self, task: FitTask[Any]) -> Solver[Columns]:
        """Compute means and scales of the columns, in one pass."""
        statistics, offset = task.dataset.statistics, task.dataset.offset
        shift = (statistics.minimum + statistics.maximum) / 2
        found = yield from run(ColumnMomentsPass(task.dtype), shift)
        return Columns.of(found, shift, offset, self.scale)

    def _set_spectrum(self, columns: Columns, spectrum: Spectrum, dtype: np.dtype[Any]) -> None:
        """Set the attributes to the components of mean-filled data."""
        pairs, m, k = spectrum.pairs, len(columns.mean), len(spectrum.pairs.values)
        variances, total = pairs.values**2 / (columns.rows - 1), float(columns.squares.sum()) / (columns.rows - 1)
        rest = min(columns.rows, m) - k
        noise = max(total - float(variances.sum()), 0) / rest if rest > 0 else 0.0
        self._set_components(columns, columns.mean, pairs.vectors.T, variances, noise, total, dtype)
        self.n_iter_, self.converged_ = pairs.n_passes, pairs.converged

    def _maximize(self, columns: Columns, report: Reporter, task: FitTask[PCAProblem], *, keeps_sums: bool) -> Solver[ProbabilisticPCA]:
        """Maximize the likelihood from the components of mean-filled data."""
        noise, view, observed = self.noise_variance_, columns.view(task.dtype), float(columns.observed.sum())
        parts = yield from find_column_parts(task.dataset, task.dtype)
        components, variances = self.components_.astype(np.float64), self.explained_variance_[:, None]
        if not parts.connected:
            pairs = yield from singular_pairs(len(columns.mean), len(components), task.dtype, view=view, parts=parts)
            components, variances = pairs.vectors.T, pairs.values.T**2 / np.maximum(columns.observed - 1, 1)
        W = components * np.sqrt(np.maximum(variances - noise, 1e-3 * noise))
        start = np.vstack([W, np.zeros((1, W.shape[1]))])
        limits: dict[str, Any] = {"tol": self.tol, "max_iter": self.max_iter, "report": report.iteration, "keeps_sums": keeps_sums}
        return (yield from maximize_likelihood(view, start, noise, columns.squares, observed, **limits))

    def _set_model(self, columns: Columns, model: ProbabilisticPCA, n_passes: int, dtype: np.dtype[Any]) -> None:
        """Set the attributes to the components of probabilistic PCA, which was found after ``n_passes`` others."""
        values, vectors, _ = model.principal()
        freedom = columns.rows / (columns.rows - 1)
        variances, noise = freedom * (values**2 + model.noise), freedom * model.noise
        total = float(variances.sum()) + (vectors.shape[1] - len(values)) * noise
        mean = columns.mean + columns.scale * model.mean
        self._set_components(columns, mean, vectors, variances, noise, total, dtype)
        self.log_likelihood_history_ = np.asarray(model.history)
        self.n_iter_, self.converged_ = n_passes + len(model.history), model.converged

    def _set_components(
        self, columns: Columns, mean: Floats, components: Floats, variances: Floats, noise: float, total: float, dtype: np.dtype[Any]
    ) -> None:
        self.components_ = np.ascontiguousarray(components, dtype)
        self.explained_variance_ = variances
        self.explained_variance_ratio_ = variances / total if total > 0 else np.zeros_like(variances)
        self.explained_share_ = min(float(self.explained_variance_ratio_.sum()), 1.0)
        self.singular_values_ = np.sqrt(variances * (columns.rows - 1))
        self.mean_, self.scale_, self.noise_variance_ = mean + columns.offset, columns.scale, noise
        self.n_samples_ = columns.rows

    def _set_shrinkage(self, columns: Columns, spectrum: Spectrum | None) -> None:
        """Set the shrinkage of new rows, given the spectrum of the data; without one the further directions have equal variance."""
        variances, m = self.explained_variance_, len(columns.mean)
        if spectrum is None:
            n, further, rest = float(columns.observed.mean()), np.empty(0), (m - len(variances)) * self.noise_variance_
        else:
            n, further = float(columns.rows), spectrum.further_variances(columns.rows)
            rest = max(float(columns.squares.sum()) / (n - 1) - float(variances.sum()) - float(further.sum()), 0.0)
        self.shrinkage_ = shrinkage(variances, further, rest, n, m)

    def _view(self, task: FitTask[Any]) -> Standardized:
        """Return the view of the entries as the task's data store them."""
        return Standardized(self.mean_ - task.dataset.offset, self.scale_, task.dtype)

    def _projection(self, *, fills_zeros: bool | None = None) -> Projection:
        fills_zeros = self.missing == "mean" if fills_zeros is None else fills_zeros
        noise = self.noise_variance_
        weights = np.sqrt(np.maximum(self.explained_variance_ - noise, 0))
        least = np.finfo(np.float64).eps * max(float(self.explained_variance_[0]), np.finfo(np.float64).tiny)
        return Projection(self.components_.astype(np.float64), weights, max(noise, least), self._divisors, fills_zeros)

    @property
    def _divisors(self) -> Floats:
        """Numbers by which the projections on the components are divided to whiten them."""
        if not self.whiten:
            return np.ones(len(self.components_))
        return np.sqrt(np.where(self.explained_variance_ > 0, self.explained_variance_, 1.0))

    @lazy_of_dask
    def transform(self, X: Any, *, out: str | PathLike[str] | None = None) -> Any:
        """Return the scores (n, k) of rows X (n, m), expected from their observed entries; NaN for those without any.

        With ``unshrink`` they are divided by ``shrinkage_``: do so for rows that were not fitted alone.
        Genotypes are matched with the fitted SNPs by name or position, alleles and strand; see
        :func:`dfact.genetics.matcher.match_columns`. If X lacks some, missing entries are taken by expectation, also with
        ``missing="mean"``: their means would pull all scores to 0.
        Stored data gives a Zarr array, at ``out`` or in a temporary folder.
        A Dask array gives a Dask array, computed on demand, or at once with ``out``.
        """
        check_is_fitted(self)
        dataset = self._dataset(X, None, reset=False)
        task = self._task(dataset)
        projection = self._projection(fills_zeros=False) if _lacks_columns(dataset) else self._projection()
        if self.unshrink:
            projection = replace(projection, divisors=projection.divisors * self.shrinkage_)
        sums, scores = task.compute_rows(ScorePass(task.dtype, self._view(task)), projection, len(self.components_), out)
        _warn_empty(int(sums.empty), dataset.shape[0])
        return scores

    def inverse_transform(self, scores: Any) -> NDArray[Any]:
        """Return the model's entries μ + T P D (n, m) for scores T (n, k), without ``unshrink``."""
        T = self._as_factors(scores)
        entries: NDArray[Any] = (self.mean_ + (T * self._divisors) @ self.components_ * self.scale_).astype(T.dtype)
        return entries

    def get_covariance(self) -> Floats:
        """Return the covariances of the columns, in their own units, by the model: D (Pᵀ (Λ − σ² I) P + σ² I) D.

        Returns
        -------
        ndarray (m, m)
            The covariances.
        """
        check_is_fitted(self)
        P, above = self._model_variances()
        covariance = (P.T * above) @ P + self.noise_variance_ * np.eye(P.shape[1])
        return np.asarray(covariance * np.outer(self.scale_, self.scale_), np.float64)

    def get_precision(self) -> Floats:
        """Return the inverse of :meth:`get_covariance`; without noise outside the components there is none.

        Returns
        -------
        ndarray (m, m)
            The inverse.

        Raises
        ------
        DataError
            If ``noise_variance_`` is 0.
        """
        check_is_fitted(self)
        P, above = self._model_variances()
        if not self.noise_variance_ > 0:
            found = f"noise_variance_ is {self.noise_variance_:g}, so that the covariances of {P.shape[1]} columns have no inverse"
            raise DataError(f"{found}; expected variance outside the {len(P)} components: fit fewer")
        noise = float(self.noise_variance_)
        precision = (np.eye(P.shape[1]) - (P.T * (above / (above + noise))) @ P) / noise
        return np.asarray(precision / np.outer(self.scale_, self.scale_), np.float64)

    def _model_variances(self) -> tuple[Floats, Floats]:
        """Return the components (k, m) and their variances above the noise (k,)."""
        above = np.maximum(self.explained_variance_ - self.noise_variance_, 0).astype(np.float64)
        return self.components_.astype(np.float64), above

    def score(self, X: Any, y: None = None) -> float:  # type: ignore[override]  # transform takes no further inputs
        """Return the mean log-likelihood of the rows of X (n, m) by probabilistic PCA, of their observed entries.

        It is scikit-learn's for complete data. Rows without any entry do not count.

        Parameters
        ----------
        X : array (n, m), path or Dataset
            Rows and columns. NaN is missing.
        y : None
            Ignored.

        Returns
        -------
        float
            Higher is better.
        """
        del y
        return self._likelihoods(X)[0]

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return the log-likelihood (n,) of each row of X (n, m) by probabilistic PCA, of its observed entries; NaN without any."""
        return self._likelihoods(X)[1]

    def _likelihoods(self, X: Any) -> tuple[float, NDArray[np.float64]]:
        check_is_fitted(self)
        task = self._task(self._dataset(X, None, reset=False), dtype=np.dtype(np.float64))
        largest = float(self.explained_variance_.max())
        noise = max(self.noise_variance_, _ROUNDING * largest, np.finfo(np.float64).tiny)
        W = self.components_ * np.sqrt(np.maximum(self.explained_variance_ - noise, 0))[:, None]
        pass_ = LikelihoodPass(task.dtype, self._view(task), np.log(self.scale_))
        loadings: Loadings = np.vstack([W, np.zeros((1, W.shape[1]))]), noise
        sums, rows = task.compute_rows(pass_, loadings, 1, None)
        return float(sums.log_likelihood / sums.rows), np.asarray(rows, np.float64)[:, 0]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the components: PC1, PC2, …."""
        super().get_feature_names_out(input_features)
        return np.array(component_labels(self._n_features_out, "PC"), dtype=object)

    @property
    def explained_(self) -> pd.DataFrame:
        """Table with the ``variance`` of each component, its ``share`` of all, and the ``cumulative`` share."""
        share = self.explained_variance_ratio_
        columns = {"variance": self.explained_variance_, "share": share, "cumulative": share.cumsum()}
        return pd.DataFrame(columns, index=pd.Index(self.get_feature_names_out(), name="component"))

    def _check_loaded(self) -> None:
        super()._check_loaded()
        if isinstance(sums := getattr(self, "sums_", None), LatentSums) and sums.n_latent != (k := len(self.components_)):
            raise DataError(f"sums_ has expectations of {sums.n_latent} components, expected {k}")

    def _check_columns(self, dataset: Dataset, offset: NDArray[np.float64] | None) -> None:
        """Refuse columns other than the fitted ones; what an import subtracted from them may differ, as the model adds it."""
        super()._check_columns(dataset, None)

    def _task(self, dataset: Dataset, problem: Any = None, **settings: Any) -> FitTask[Any]:
        if settings.get("footprint") is None:
            dtype = settings.get("dtype") or self._working_dtype(dataset)
            settings["footprint"] = self._footprint_for(dataset.shape, dtype, expects=self._expects(dataset))
        return super()._task(dataset, problem, **settings)

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        return self._footprint_for(shape, dtype, expects=self.missing == "em")

    def _footprint_for(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, expects: bool) -> Footprint:
        return fit_footprint(self._most_components(shape), shape[1], dtype, expects=expects)


def _of_pass(report: Reporter) -> Callable[[int], None]:
    """Return what reports the passes of a decomposition."""
    return lambda number: report.reached(number, f"pass {number} of the decomposition")


def _lacks_columns(dataset: Dataset) -> bool:
    """Return whether new genotypes lack SNPs of the model."""
    return isinstance(dataset.source, SelectedColumns) and dataset.source.n_absent > 0


def _warn_empty(empty: int, n: int) -> None:
    if empty:
        warn(f"{empty} of {n} rows have no observed entry; their scores are NaN")
