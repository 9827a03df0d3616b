"""Stability of a fitted model's loadings over refits to bootstrap resamples of the rows."""

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.errors import ParameterError
from dfact.models.bounded_nmf.effects import item_scale, split_differences
from dfact.models.cp.base import CPModel
from dfact.models.estimator import Factorization
from dfact.models.parameters import check_count, describe_value, is_in_range
from dfact.models.provenance import Stability, TensorStability
from dfact.progress import Iteration
from dfact.selection.fitted_data import fitted_dataset
from dfact.selection.folds import resolve_random_state, resolve_strata
from dfact.selection.refits import Matching, Refits, converged_start, fitted_confounders, fitted_weights, refit_inputs
from dfact.selection.resamples import RefittedLoadings, ResampleFits
from dfact.selection.results_store import ResultsStore, describe_model
from dfact.selection.scheduler import run_fits
from dfact.selection.tensor_bootstrap import bootstrap_tensor


def bootstrap(
    model: Factorization,
    X: Any,
    n_resamples: int = 100,
    *,
    level: float = 0.95,
    warm_start: bool = True,
    confounders: Any = None,
    sample_weight: Any = None,
    stratify: Any = None,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    checkpoint: str | PathLike[str] | None = None,
) -> Stability | TensorStability:
    """Estimate how a fitted model varies from sample to sample: similarities of refits, and intervals of the loadings
    and of the impact and effects of confounders.

    Each of ``n_resamples`` refits draws n of the n participants with replacement, with their answers,
    confounders and weights, and fits the model to them with its own parameters. The factors of a refit are matched with the
    model's, one to one, so that the sum of their similarities

        s = |hᵀh'| / ‖h‖‖h'‖   of the loadings h and h',

    Tucker's congruence, is the largest. If the product is negative the sign of the refit's factor is flipped.
    Loadings that cannot be negative keep their signs. Classes (:class:`dfact.GradeOfMembership`) are compared by
    the differences of their expected responses from the mean of the classes. The interval of a loading is a
    percentile interval of the matched loadings; refits are not rescaled. From a similarity of 0.95 factors count as
    the same, below 0.85 as different (Lorenzo-Seva & ten Berge).

    With ``warm_start`` refits start from the model's loadings, if the model accepts a start. They then stay near its
    optimum: they show how this optimum varies with the sample, not whether another sample would lead to another one.
    So near to an optimum the objective falls slowly, and refits with the default tolerance would hardly move. Therefore
    the model is first fitted further to all rows, and the refits start from the result, both with a ``tol`` of 2e-5 or the
    model's if that is smaller. ``warm_start=False`` refits with the model's own start (``init``) and ``tol``: the
    result then includes the variation due to start and stopping, and takes more passes. Grade of membership and factor
    analysis need no start. Random numbers within a fit have another seed in each refit.

    Some models determine their factors up to a rotation and choose that of the singular vectors (expectile
    factorization). Their factors with nearly equal singular values rotate among each other from sample to sample and are
    reported as unstable. Intervals of penalized and of bounded loadings refer to the estimates, which the penalty
    shrinks to 0: a loading that is 0 in nearly every refit has an interval of width 0.

    Impact and effects of confounders are identified by the anchor of :func:`dfact.linalg.anchor.anchor`, refit by refit. Their
    estimates are those without the penalty's shrinkage, which would leave most effects at 0: the differences of the residuals between
    the groups are added to those of the loadings. Their intervals are basic ones: percentiles of the refits, of rank (B + 1)·α,
    reflected at the estimate.

    For the CP decomposition of a tensor the rows are the slices of mode 1, and the result is a :class:`TensorStability`.
    Its components are matched so that the sum of |Π_n cos| of their vectors of modes 2 to N is largest, and each vector gets the
    model's sign. Loadings are these vectors at length 1, so that scale plays no part; mode 1 has no intervals, as its slices are
    the sample. Penalties and non-negativity would pull intervals to 0 or to a bound. Therefore each refit of an ElasticCP goes on
    from its solution to least squares without them: that is what the intervals of loadings and weights are for. Similarities and
    selection frequencies are those of the penalized refits. A component that more than (1 − level)/2 of the refits have lost has no
    interval. The interval of a weight γ_r is for the root mean square of the component's row factors, as least squares estimates
    them, noise included, times √n.

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
        Coverage of the intervals: the fraction of the refits' loadings within them.
    warm_start : bool
        Whether refits start from the model's loadings.
    confounders : table of n rows, optional
        The confounders passed to ``model.fit``. A Dataset or path brings its own.
    sample_weight : numbers (n,), optional
        The weights passed to ``model.fit``. A Dataset or path brings its own. A model that was fitted without weights is refitted
        without.
    stratify : labels (n,) or a table of n rows, optional
        Each resample draws from the rows of each level, or combination of levels, as many rows as it has. Continuous numbers are cut
        into quarters.
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
        Fewer than 2 resamples; a level outside (0, 1); a checkpoint of another call.
    DataError
        The data differs from the fitted data in shape, labels, fingerprint, or in having confounders or weights; or fewer than 2
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
    Efron & Tibshirani (1993), chapter 13; Lorenzo-Seva & ten Berge (2006).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.normal(size=(500, 2)) @ np.kron(np.eye(2), np.ones(6)) + rng.normal(size=(500, 12))
    >>> model = dfact.FactorAnalysis(n_components=2).fit(answers)
    >>> model.stability_ = dfact.selection.bootstrap(model, answers, random_state=0)
    >>> model.stability_.similarity.shape, bool(np.median(model.stability_.similarity) > 0.95)
    ((100, 2), True)
    """
    _check(model, n_resamples, level)
    if isinstance(model, CPModel):
        if confounders is not None or sample_weight is not None:
            raise ParameterError(f"confounders or sample_weight are given, and a {type(model).__name__} takes neither; leave them out")
        shared: dict[str, Any] = {"stratify": stratify, "random_state": random_state, "callbacks": callbacks, "checkpoint": checkpoint}
        return bootstrap_tensor(model, X, n_resamples, level=level, warm_start=warm_start, **shared)
    dataset = fitted_weights(model, fitted_dataset(model, as_dataset(X, confounders)), sample_weight)
    strata = resolve_strata(stratify, None, dataset.shape[0])
    fingerprint = None if checkpoint is None else dataset.fingerprint
    identity = {"data": fingerprint, "model": _describe(model, warm_start), "seed": resolve_random_state(random_state)}
    identity |= {"strata": None if strata is None else describe_value(strata)}
    store = ResultsStore(checkpoint, identity)
    fits, matching = _make_fits(model, dataset, confounders, store.seed, strata), Matching.of(model)
    refits = Refits(store, range(n_resamples), callbacks)
    if refits.pending:
        if warm_start and "init" in model.get_params(deep=False):
            fits = converged_start(model, fits, matching)
        run_fits(fits, refits.pending, refits.keep, model.executor, model.memory_limit)
    return _summarize(model, matching, refits.loadings(), level)


def _check(model: Any, n_resamples: Any, level: Any) -> None:
    if not isinstance(model, Factorization):
        found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ParameterError(f"model is {found}, whose rows cannot be resampled; expected a fitted model such as ICQF()")
    check_is_fitted(model)
    check_count("n_resamples", n_resamples, 2, 100_000)
    if not is_in_range(level, 0, 1) or level == 0:
        raise ParameterError(f"level is {level!r}, expected a number between 0 and 1, such as 0.95")


def _describe(model: Factorization, warm_start: bool) -> str:
    """Return the part of the checkpoint's identity that describes the fitted model and the starts."""
    return f"{describe_model(model)}, components {describe_value(np.asarray(model.components_))}, warm_start={bool(warm_start)}"


def _make_fits(model: Any, dataset: Dataset, confounders: Any, seed: int, strata: NDArray[Any] | None) -> ResampleFits:
    frame = fitted_confounders(model, dataset, confounders)
    refit, unlabelled = refit_inputs(model, dataset, frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the fit itself has warned
        return ResampleFits.make(refit, unlabelled, seed=seed, strata=strata)


def _summarize(model: Any, matching: Matching, refits: Sequence[RefittedLoadings | None], level: float) -> Stability:
    k, m = matching.loadings.shape
    similarity = np.full((len(refits), k), np.nan)
    matched: list[NDArray[np.float64]] = []
    for number, refit in enumerate(refits):
        if refit is not None:
            similarity[number], loadings = matching.match(refit.components)
            matched.append(loadings)
    mean, low, high, selected = (np.empty((k, m)) for _ in range(4))
    for factor in range(k):  # one factor at a time bounds the memory of the copies
        samples = np.stack([loadings[factor] for loadings in matched])
        mean[factor], selected[factor] = samples.mean(axis=0), (samples != 0).mean(axis=0)
        low[factor], high[factor] = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Stability(similarity, mean, low, high, float(level), selected, *_summarize_effects(model, matching, refits, level))


def _summarize_effects(
    model: Any, matching: Matching, refits: Sequence[RefittedLoadings | None], level: float
) -> Sequence[NDArray[np.float64] | None]:
    """Return the parts of a Stability about confounders: means, interval ends and standard errors of effects, and those of the impact.

    Each refit's differences are anchored by its own loadings. They are those without the penalty's shrinkage, which would leave many
    effects at 0 in nearly every refit.
    """
    encoding = getattr(model, "confounder_encoding_", None)
    matrix = np.zeros((0, 0)) if encoding is None else encoding.differences()[1]
    fitted = [refit for refit in refits if refit is not None and refit.differences is not None]
    if not len(matrix) or not fitted:
        return [None] * 8
    scale = item_scale(model)
    impacts, effects = [], []
    for refit in fitted:
        assert refit.confounders is not None, "the refits have the model's confounders"
        split = split_differences(refit.components, matrix @ refit.confounders, refit.differences, scale, shrunken=False)
        impacts.append(split.impact[:, matching.assign(refit.components.astype(np.float64))[1]])
        effects.append(split.effects)
    estimate = None
    if model.differences_ is not None:
        estimate = split_differences(model.components_, matrix @ model.confounder_components_, model.differences_, scale, shrunken=False)
    own = (None, None) if estimate is None else (estimate.effects, estimate.impact)
    return [*_summarize_samples(effects, own[0], level), *_summarize_samples(impacts, own[1], level)]


def _summarize_samples(
    samples: Sequence[NDArray[np.float64]], estimate: NDArray[np.float64] | None, level: float
) -> list[NDArray[np.float64]]:
    """Return means, both ends of the basic intervals and standard errors of arrays (q, …); NaN where the samples have one.

    A basic interval reflects the percentiles at the estimate, by default the mean of the refits. Items with effects draw the anchor to
    their side, in the refits once more than in the estimate: percentiles would have that bias twice.
    """
    parts = [np.empty(samples[0].shape) for _ in range(4)]
    for row in range(len(parts[0])):  # one difference at a time bounds the memory of the copies
        stacked = np.stack([sample[row] for sample in samples])
        # Of B refits, the order statistics (B + 1)·α: interpolation between them by B − 1 would make the intervals too short.
        ends = np.quantile(stacked, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
        mean = stacked.mean(axis=0)
        low, high = 2 * (mean if estimate is None else estimate[row]) - ends[::-1]
        for part, values in zip(parts, (mean, low, high, stacked.std(axis=0, ddof=1)), strict=True):
            part[row] = values
    return parts
