"""Stability of a fitted model's loadings over refits to bootstrap resamples of the rows."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dfact.data.clusters import resolve_clusters
from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.errors import ParameterError
from dfact.models.bounded_nmf.effects import group_effects, split_differences, too_few_rows
from dfact.models.cp.base import CPModel
from dfact.models.estimator import Factorization
from dfact.models.provenance import Stability, TensorStability
from dfact.models.scikit_learn import check_is_fitted
from dfact.parameters import check_count, describe_value, is_in_range
from dfact.progress import Iteration
from dfact.selection.cross_validation.folds import resolve_strata
from dfact.selection.running.estimators import fitted_dataset
from dfact.selection.running.results_store import ResultsStore, describe_model
from dfact.selection.running.scheduler import run_fits
from dfact.stability.intervals import INDEPENDENT, Variance, factor_intervals, is_penalized, summarize_samples
from dfact.stability.refits import Matching, Refits, converged_start, fitted_confounders, fitted_weights, refit_inputs
from dfact.stability.resamples import HalfFits, RefittedLoadings, ReplicateFits, ResampleFits
from dfact.stability.reselection import N_FOLDS
from dfact.stability.reselection import reselect as repeat_selection
from dfact.stability.tensor_bootstrap import bootstrap_tensor

RESAMPLINGS: dict[str, type[ResampleFits]] = {"bootstrap": ResampleFits, "halves": HalfFits, "replicates": ReplicateFits}
"""Fits to what is drawn, by its name."""
_PARTS = ("mean", "low", "high", "se")
EFFECTS = tuple(f"{name}_{part}" for name in ("confounder", "impact") for part in _PARTS)


def bootstrap(
    model: Factorization,
    X: Any,
    n_resamples: int = 100,
    *,
    level: float = 0.95,
    warm_start: bool = True,
    resampling: str | None = None,
    reselect: bool | int = False,
    confounders: Any = None,
    sample_weight: Any = None,
    stratify: Any = None,
    clusters: Any = None,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    checkpoint: str | PathLike[str] | None = None,
) -> Stability | TensorStability:
    """Estimate how a fitted model varies from sample to sample: similarities of refits, standard errors and intervals of the
    loadings, their selection frequencies, and intervals of the impact and effects of confounders.

    Each of ``n_resamples`` refits draws n of the n participants with replacement, with their answers,
    confounders and weights, and fits the model to them with its own parameters. The factors of a refit are matched with the
    model's, one to one, so that the sum of their similarities

        s = |hᵀh'| / ‖h‖‖h'‖   of the loadings h and h',

    Tucker's congruence, is the largest. If the product is negative the sign of the refit's factor is flipped.
    Loadings that cannot be negative keep their signs. Classes (:class:`dfact.GradeOfMembership`) are compared by
    the differences of their expected responses from the mean of the classes. Refits are not rescaled. From a similarity of 0.95
    factors with signed loadings count as the same, below 0.85 as different (Lorenzo-Seva & ten Berge); unrelated non-negative ones
    have up to 0.9.

    The interval of a loading is the estimate ± t·se, with its standard error se over the B refits and B − 1 degrees of freedom.
    For a penalized model the bias over the refits is subtracted. It covers the loading that the same model has in the population: that
    of its fit to unlimited data with the same parameters, the same penalty among them, at the scale that n rows give it. An interval
    is not determined, NaN, if

    - the loading is exactly 0, or at its lowest or highest value, in more than one refit: it is at a bound or set to 0 by a penalty,
      and its distribution is not an interval;
    - the interval contains 0, and the model can set loadings to exactly 0;
    - the factor is another one (similarity below 0.85) in more than 1 − ``level`` of the refits;
    - the model is an :class:`dfact.NMF`, whose data hardly determine the scale of a factor: intervals of 95% covered 87 to 90%.

    Such a loading has its *selection frequency*, the share of refits in which it is not 0 (Meinshausen & Bühlmann). The estimand
    takes the number of components and the penalties as given. If they were chosen on the same data (``model.selection_``), the
    intervals do not include the variation of that choice.

    With ``warm_start`` refits start from the model's loadings, if the model accepts a start. They then stay near its
    optimum: they show how this optimum varies with the sample, not whether another sample would lead to another one.
    So near to an optimum the objective falls slowly, and refits with the default tolerance would hardly move. Therefore
    the model is first fitted further to all rows, and the refits start from the result, both with a ``tol`` of 2e-5 or the
    model's if that is smaller. ``warm_start=False`` refits with the model's own start (``init``) and ``tol``: the
    result then includes the variation due to start and stopping, and takes more passes. Grade of membership and factor
    analysis need no start. Random numbers within a fit have another seed in each refit.

    Some models determine their factors up to a rotation and choose the rotation of the singular vectors (expectile
    factorization). Their factors with nearly equal singular values rotate among each other from sample to sample and are
    reported as unstable. Their scale grows with the fourth root of n.

    Impact and effects of confounders are identified by the anchor of :func:`dfact.linalg.anchor.anchor`, refit by refit. Their
    estimates are those without the penalty's shrinkage, which would leave most effects at 0: the differences of the residuals between
    the groups are added to those of the loadings. As for penalized loadings, their intervals are the estimate minus its
    bias over the refits ± t·se.

    For the CP decomposition of a tensor the rows are the slices of mode 1, and the result is a
    :class:`~dfact.models.provenance.TensorStability`. Its components are matched so that the sum of |Π_n cos| of their vectors of
    modes 2 to N is largest, and each vector gets the model's sign. Loadings are these vectors at length 1, so that scale plays no
    part; mode 1 has no intervals, as its slices are the sample. Penalties and non-negativity would pull intervals to 0 or to a
    bound. So each refit of an ElasticCP continues from its solution by least squares without penalties or bounds, and the intervals of
    loadings and weights are those of these estimates. Similarities and selection frequencies are those of the penalized refits. A
    component that more than (1 − level)/2 of the refits have lost has no interval. The interval of a weight γ_r is for the
    root mean square of the component's row factors, as least squares estimates them, noise included, times √n.

    Parameters
    ----------
    model : fitted estimator
        A model such as :class:`dfact.ICQF` or :class:`dfact.ElasticCP`. It is not changed. Refits use its ``executor`` and
        ``memory_limit``.
    X : array (n, m) of any kind, path or Dataset
        The data that the model was fitted to. If it does not fit in memory, refits share their reads.
    n_resamples : int
        Number of resamples, from 2 to 100,000. A smaller number gives the first resamples of a larger one.
    level : float
        Coverage of the intervals.
    warm_start : bool
        Whether refits start from the model's loadings.
    resampling : "bootstrap", "halves" or "replicates", optional
        What a refit is of. "halves" draws half of the rows without replacement, each counting twice, and the next refit takes the other
        half. Standard errors are the same to first order. Selection frequencies of halves have a bound on the expected number of false
        ones: :meth:`dfact.models.provenance.Stability.false_selections`. "replicates" are the replicate weights of the dataset, the
        default if it has any and the model was fitted with its weights: a refit for each of them, whatever ``n_resamples``. Standard
        errors then have the variance formula of their method (:mod:`dfact.data.replicate_weights`) around the estimate, and its degrees
        of freedom. They take strata and clusters of the survey into account, which "bootstrap", the default otherwise, does not.
    reselect : bool or int
        Whether each resample repeats the selection that chose the model's parameters: the candidates, the criterion and the rule of
        ``model.selection_``, on the resample. Then the model is fitted to the resample with the parameters chosen there, from its own
        start, and its factors are matched with the model's as far as both have them. The result has the number of times that each
        candidate was chosen; a factor that a refit does not have has the similarity 0. Loadings of a factor are summarized over the
        refits that have it (similarity from 0.85), and have intervals if at least half of the refits do, and 10. Effects of confounders
        have none. A number sets the folds of a cross-validation, instead of 5; copies of a row are in the same block, so that
        none is predicted from another.
    confounders : table of n rows, optional
        The confounders passed to ``model.fit``. A Dataset or path brings its own.
    sample_weight : numbers (n,), optional
        The weights passed to ``model.fit``. A Dataset or path brings its own. A model that was fitted without weights is refitted
        without.
    stratify : labels (n,) or a table of n rows, optional
        Each resample draws from the rows of each level, or combination of levels, as many rows as it has. Continuous numbers are cut
        into quarters.
    clusters : str, or labels (n,), optional
        Name of a confounder of X, or the cluster of each row, such as its school, if rows of the same cluster are alike. Each resample
        draws as many whole clusters as there are, at least ten, with replacement, and "halves" are halves of the clusters. Intervals
        have as degrees of freedom the number of clusters minus that of strata, or B − 1 if these are fewer. Strata must consist of
        whole clusters. Models of genotypes take individuals as unrelated, which clusters do not mend: leave relatives out.
    random_state : int, RandomState or None
        Seed of all random numbers. The result does not depend on the executor.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each refit, such as ``dfact.Progress("refits")``.
    checkpoint : path, optional
        Folder for the finished refits. The same call resumes from it; a different call is refused.

    Returns
    -------
    Stability or TensorStability
        Assign it to ``model.stability_`` to save and report it with the model.

    Raises
    ------
    ParameterError
        Fewer than 2 resamples; a level outside (0, 1); clusters that are not of X, or strata that divide one; a checkpoint of another
        call.
    DataError
        The data differs from the fitted data in shape, labels, fingerprint, or in having confounders or weights; a row without a cluster,
        or fewer than ten clusters; or fewer than 2
        resamples could be fitted.
    MemoryPlanError
        The same conditions as for ``model.fit``.

    Warns
    -----
    UserWarning
        Some resamples cannot be fitted, for instance because an item is constant in them; their similarities are NaN.
        The model changes when it is fitted further; fit it with a smaller ``tol``.

    References
    ----------
    Efron & Tibshirani (1993), chapters 6, 10 and 12; Meinshausen & Bühlmann (2010); Shah & Samworth (2013); Lorenzo-Seva & ten Berge
    (2006).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.normal(size=(500, 2)) @ np.kron(np.diag([1, 2]), np.ones(6)) + rng.normal(size=(500, 12))
    >>> model = dfact.PCA(n_components=2).fit(answers)
    >>> model.stability_ = dfact.selection.bootstrap(model, answers, random_state=0)
    >>> model.stability_.similarity.shape, bool(np.median(model.stability_.similarity) > 0.95)
    ((100, 2), True)
    """
    _check(model, n_resamples, level, resampling)
    if model.traits.tensor:
        if confounders is not None or sample_weight is not None:
            raise ParameterError(f"confounders or sample_weight are given, and a {type(model).__name__} takes neither; leave them out")
        if resampling not in (None, "bootstrap") or reselect:
            raise ParameterError(f"resampling or reselect is given, and the slices of a {type(model).__name__} have the bootstrap alone")
        if clusters is not None:
            raise ParameterError(f"clusters are given, and the slices of a {type(model).__name__} are drawn one by one; leave them out")
        shared: dict[str, Any] = {"stratify": stratify, "random_state": random_state, "callbacks": callbacks, "checkpoint": checkpoint}
        return bootstrap_tensor(cast("CPModel", model), X, n_resamples, level=level, warm_start=warm_start, **shared)
    dataset = fitted_weights(model, fitted_dataset(model, as_dataset(X, confounders)), sample_weight)
    replicates = dataset.replicate_weights
    if resampling is None:
        resampling = "bootstrap" if replicates is None else "replicates"
    if resampling == "replicates":
        if replicates is None or stratify is not None:
            found = "there are no replicate weights" if replicates is None else "stratify is given"
            raise ParameterError(f"{found}, expected those of a dataset whose weights the model was fitted with, and no strata")
        n_resamples = replicates.n_replicates
    strata = resolve_strata(stratify, None, dataset.shape[0])
    settings: dict[str, Any] = {"strata": None if strata is None else describe_value(strata)}
    settings |= {} if resampling == "bootstrap" else {"resampling": resampling}
    settings |= {"reselect": int(reselect)} if reselect else {}
    clustered = _resolve_clusters(clusters, dataset, strata, resampling, reselect=bool(reselect))
    settings |= {} if clustered is None else {"clusters": describe_value(clustered)}
    store = ResultsStore.of_fits(checkpoint, dataset, _describe(model, warm_start), random_state, **settings)
    if reselect:
        if resampling != "bootstrap":
            raise ParameterError(
                f"reselect repeats the selection in bootstrap resamples, expected resampling='bootstrap', not {resampling!r}"
            )
        frame, n_folds = fitted_confounders(model, dataset, confounders), N_FOLDS if reselect is True else reselect
        return repeat_selection(model, dataset, frame, strata, n_resamples, n_folds, level, store, callbacks)
    fits, matching = _make_fits(model, dataset, confounders, store.seed, strata, resampling, clustered), Matching.of(model)
    variance = INDEPENDENT
    if fits.clusters is not None:
        units = fits.clusters.strata
        variance = Variance(df=float(min(len(units) - units.max() - 1, n_resamples - 1)))
        resampling = f"{'halves' if resampling == 'halves' else 'bootstrap samples'} of {len(units)} clusters"
    if isinstance(fits, ReplicateFits) and replicates is not None:
        fits, variance = dataclasses.replace(fits, replicates=replicates), Variance(replicates.scales, replicates.df)
        resampling = replicates.label
    refits = Refits(store, range(n_resamples), callbacks)
    estimate = np.asarray(model.components_, np.float64)
    if warm_start and "init" in model.get_params(deep=False):
        fits = converged_start(model, fits, matching, store)
        estimate = matching.match(fits.model.get_params(deep=False)["init"])[1]
    if refits.pending:
        run_fits(fits, refits.pending, refits.keep, model.executor, model.memory_limit)
    return _summarize(model, matching, refits.loadings(), estimate, level, resampling, variance)


def _check(model: Any, n_resamples: Any, level: Any, resampling: Any) -> None:
    if not isinstance(model, Factorization):
        found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ParameterError(f"model is {found}, whose rows cannot be resampled; expected a fitted model such as ICQF()")
    check_is_fitted(model)
    check_count("n_resamples", n_resamples, 2, 100_000)
    if resampling is not None and resampling not in RESAMPLINGS:
        raise ParameterError(f"resampling is {resampling!r}, expected one of {', '.join(map(repr, RESAMPLINGS))}")
    if resampling == "halves" and n_resamples % 2:
        raise ParameterError(f"n_resamples is {n_resamples}, expected an even number: each half of the rows comes with the other half")
    if not is_in_range(level, 0, 1) or level == 0:
        raise ParameterError(f"level is {level!r}, expected a number between 0 and 1, such as 0.95")


def _describe(model: Factorization, warm_start: bool) -> str:
    """Return the part of the checkpoint's identity that describes the fitted model and the starts."""
    return f"{describe_model(model)}, components {describe_value(np.asarray(model.components_))}, warm_start={bool(warm_start)}"


def _resolve_clusters(
    clusters: Any, dataset: Dataset, strata: NDArray[Any] | None, resampling: str, *, reselect: bool
) -> NDArray[np.intp] | None:
    """Return the clusters of the rows, numbered from 0; None without any. Refuse what cannot draw them whole."""
    if clusters is not None and (reselect or resampling == "replicates"):
        found = "reselect draws rows" if reselect else "replicate weights state the clusters of their survey"
        raise ParameterError(f"clusters are given, and {found}; leave one of them out")
    numbers = resolve_clusters(clusters, dataset)
    if numbers is not None and strata is not None:
        pairs = np.unique(np.stack([numbers, strata]), axis=1)
        divided = int((np.bincount(pairs[0]) > 1).sum())
        if divided:
            raise ParameterError(f"{divided} clusters have rows in several strata, expected strata of whole clusters; leave out stratify")
    return numbers


def _make_fits(
    model: Any,
    dataset: Dataset,
    confounders: Any,
    seed: int,
    strata: NDArray[Any] | None,
    resampling: str,
    clusters: NDArray[np.intp] | None,
) -> ResampleFits:
    frame = fitted_confounders(model, dataset, confounders)
    refit, unlabelled = refit_inputs(model, dataset, frame)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit itself has warned
        return RESAMPLINGS[resampling].make(refit, unlabelled, seed=seed, strata=strata, clusters=clusters)


def _summarize(
    model: Any,
    matching: Matching,
    refits: Sequence[RefittedLoadings | None],
    estimate: NDArray[np.float64],
    level: float,
    resampling: str,
    variance: Variance,
) -> Stability:
    k, m = matching.loadings.shape
    similarity = np.full((len(refits), k), np.nan)
    matched: list[NDArray[np.float64]] = []
    for number, refit in enumerate(refits):
        if refit is not None:
            similarity[number], loadings = matching.match(refit.components)
            matched.append(loadings)
    fitted = ~np.isnan(similarity[:, 0])
    mean, low, high, selected, se = (np.empty((k, m)) for _ in range(5))
    settings: dict[str, Any] = {
        "level": level,
        "variance": variance,
        "nonnegative": model.traits.nonnegative,
        "penalized": is_penalized(model),
    }
    for factor in range(k):  # one factor at a time bounds the memory of the copies
        samples = np.stack([loadings[factor] for loadings in matched])
        mean[factor], selected[factor] = samples.mean(axis=0), (samples != 0).mean(axis=0)
        se[factor], low[factor], high[factor] = factor_intervals(estimate[factor], samples, similarity[fitted, factor], **settings)
    if not model.traits.loading_intervals:
        se[:], low[:], high[:] = np.nan, np.nan, np.nan
    effects: dict[str, Any] = dict(zip(EFFECTS, _summarize_effects(model, matching, refits, level, variance), strict=True))
    return Stability(similarity, mean, low, high, float(level), selected, **effects, estimate=estimate, se=se, resampling=resampling)


def _summarize_effects(
    model: Any, matching: Matching, refits: Sequence[RefittedLoadings | None], level: float, variance: Variance
) -> Sequence[NDArray[np.float64] | None]:
    """Return the parts of a Stability about confounders: means, interval ends and standard errors of effects, and those of the impact.

    Each refit's differences are anchored by its own loadings. Differences with too few rows on one side are NaN.
    """
    encoding: Any = getattr(model, "confounder_encoding_", None)
    matrix = np.zeros((0, 0)) if encoding is None else encoding.differences()[1]
    fitted = [refit for refit in refits if refit is not None and refit.differences is not None]
    if not len(matrix) or not fitted:
        return [None] * 8
    scale = model.differences_.item_sd
    impacts, effects = [], []
    for refit in fitted:
        assert refit.confounders is not None, "the refits have the model's confounders"
        assert refit.differences is not None, "a refit with confounders has their differences"
        impact, items = split_differences(refit.components, matrix @ refit.confounders, refit.differences, scale)
        impacts.append(impact[:, matching.assign(refit.components.astype(np.float64))[1]])
        effects.append(items)
    own = group_effects(model)
    parts = [*_summarize_samples(effects, own.effects, level, variance), *_summarize_samples(impacts, own.impact, level, variance)]
    for part in parts:
        part[too_few_rows(model)] = np.nan
    return parts


def _summarize_samples(
    samples: Sequence[NDArray[np.float64]], estimate: NDArray[np.float64] | None, level: float, variance: Variance
) -> list[NDArray[np.float64]]:
    """Return means, both ends of the intervals and standard errors of arrays (q, …); NaN where the samples have one.

    Intervals are about the ``estimate``, by default the mean of the samples.
    """
    parts = [np.empty(samples[0].shape) for _ in range(4)]
    for row in range(len(parts[0])):  # one difference at a time bounds the memory of the copies
        centre = None if estimate is None else estimate[row]
        found = summarize_samples(np.stack([sample[row] for sample in samples]), centre, level, variance)
        for part, values in zip(parts, found, strict=True):
            part[row] = values
    return parts
