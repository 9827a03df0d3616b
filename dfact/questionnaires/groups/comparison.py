"""Comparison of groups of participants: whether their factors agree, and which items function differently."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.clusters import require_clusters, resolve_clusters
from dfact.data.coerce import as_dataset
from dfact.errors import ParameterError
from dfact.models.estimator import Factorization
from dfact.models.provenance import Comparison
from dfact.models.scikit_learn import check_is_fitted
from dfact.models.traits import Vocabulary
from dfact.parameters import check_count, describe_value, is_in_range
from dfact.progress import Iteration
from dfact.questionnaires.groups.factor_congruences import FactorCongruences, resolve_draws
from dfact.questionnaires.groups.item_effects import anchored_tests
from dfact.questionnaires.groups.mantel_test import Groups, make_strata, mantel_figures
from dfact.selection.running.estimators import fitted_dataset
from dfact.selection.running.results_store import ResultsStore, describe_model
from dfact.stability.refits import fitted_confounders, fitted_weights

Array = NDArray[np.float64]
_LEAST_RESAMPLES = 30  # for an interval


def compare_groups(
    model: Factorization,
    X: Any,
    by: Any,
    *,
    groups: Sequence[Any] | None = None,
    n_resamples: int | None = None,
    test: bool = True,
    level: float = 0.95,
    scales: Mapping[str, Sequence[str]] | str | PathLike[str] | None = None,
    keys: Mapping[str, int] | None = None,
    confounders: Any = None,
    sample_weight: Any = None,
    clusters: Any = None,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    checkpoint: str | PathLike[str] | None = None,
) -> Comparison:
    """Compare groups of participants: whether they have the same factors, and which items function differently.

    **Factors.** The model is fitted to each group separately, with its own parameters and from its loadings, in which only the group
    is not a confounder. The factors are matched with the model's, one to one, as :func:`dfact.selection.bootstrap` does, and each
    group is compared with the first one, the reference, by Tucker's congruence of each factor. As a rotation alone lowers it, the
    factors of :class:`dfact.FactorAnalysis` are also rotated to the model's, obliquely if these correlate, with loadings in the same
    units in all groups; what follows is of the rotated ones. Two samples never have a congruence of 1. Therefore

    - *p* tests that the groups have equal loadings, whatever their means, variances, residuals and missing answers: the share of draws with
      equal loadings whose congruence is as low, adjusted by Holm's procedure over factors and groups;
    - *population* estimates the congruence of the loadings of the two populations, which is higher than the samples' congruence;
    - its interval inverts the test, and ends at 1 if equal loadings cannot be rejected.

    The bounded models, ICQF and NMF, have neither estimate nor interval, because these did not reach their nominal level in simulations.

    A draw of a factor analysis resamples the rows of each group. The differences of the resample's loadings from the group's are added
    to the mean of both groups' loadings. In the bounded models, where loadings may be 0, a draw is a fit to simulated answers: each
    person's factors under the common loadings, plus residuals of other people of the same group. With polychoric correlations there
    is no test. It would need the variances of the normal variables under the answers.

    The limits of 0.95 for the same factor and 0.85 for a different one apply to loadings with signs (Lorenzo-Seva & ten Berge). Unrelated
    non-negative loadings already have congruences of 0.3 to 0.9, so :class:`dfact.ICQF` and :class:`dfact.NMF` also have *centred*: the
    congruence after each item's mean over the factors is subtracted. The guide ``evidence`` has the error rates, and the guide
    ``stability`` a table of both congruences for equal and for unrelated factors.

    **Items.** Two tests look for uniform differential item functioning: a difference between members of the groups who agree in the
    factors. The first one splits the differences of the items, all other confounders of the model held equal, into the impact, a
    difference of the factors that most items agree on, and effects on single items (see
    :func:`dfact.questionnaires.groups.dif.anchored_dif`). It takes continuous answers and survey weights, and flags an item at a
    false discovery rate of 5% over items and groups if the effect is 0.17 standard deviations of the item or more. Mantel's test
    compares participants with the same total of the item's scale, without the items that it flags, which leave the total one at a
    time; participants with a missing answer in the scale are left out there. It flags classes B and C of the Educational Testing
    Service at the same rate. An item that both flag is one of the ``dif_items``; where Mantel's test is not possible, the first one
    decides. The guide ``evidence`` has their measured error rates.

    Parameters
    ----------
    model : fitted estimator
        A model of participants and items: :class:`dfact.ICQF`, :class:`dfact.NMF` or :class:`dfact.FactorAnalysis`. It is not
        changed. Refits use its ``executor`` and ``memory_limit``.
    X : array (n, m) of any kind, path or Dataset
        The data that the model was fitted to. If it does not fit in memory, refits share their reads.
    by : str, or labels (n,)
        Name of a confounder of X, or the group of each row. Rows without a group are left out.
    groups : sequence, optional
        The groups to compare, by default all, the commonest first. The first one is the reference. Rows of others are left out of the
        comparison, and stay in the model.
    n_resamples : int, optional
        Number of draws, from 30 to 100,000: at least 20 for each factor and group that is tested. By default 200, or as many as these.
    test : bool
        Whether to compute p values of the factors. Without them, fewer draws are enough for the intervals.
    level : float
        Coverage of the intervals of the congruences and of the impact.
    scales : dict from scale to its items, or path, optional
        A path leads to a csv file with a column item and columns scale and key. By default the scales of the codebook, else the factor
        with each item's largest loading.
    keys : dict from item to 1 or −1, optional
        −1 reverses an item; by default what goes with the scales, of a factor the signs of the loadings.
    confounders, sample_weight : optional
        Those passed to ``model.fit``. A Dataset or path brings its own.
    clusters : str, or labels (n,), optional
        Name of a confounder of X, or the cluster of each row, such as its school, if rows of the same cluster are alike. The jackknife then
        leaves out whole clusters, and the draws of a factor analysis draw whole clusters of each group. Each group needs at least
        ten. Bounded models have no test of equal loadings then, and Mantel's test takes rows as independent.
    random_state : int, RandomState or None
        Seed of all random numbers. The result does not depend on the executor.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each refit, such as ``dfact.Progress("refits")``.
    checkpoint : path, optional
        Folder for the finished refits. The same call resumes from it; a different call is refused.

    Returns
    -------
    Comparison
        Assign it to ``model.comparison_`` to save and report it with the model.

    Raises
    ------
    ParameterError
        A model of other data; clusters that are not of X; ``by`` is not a categorical confounder; numbers out of range, or fewer draws
        than a test needs; a checkpoint of another call.
    DataError
        The data is not the fitted data; fewer than two groups; a group with fewer than 50 rows, or with an item that
        has no answers or does not vary there; a row without a cluster, or fewer than ten clusters in a group; a group that cannot be
        fitted; or fewer than 2 resamples that can be.
    MemoryPlanError
        The same conditions as for ``model.fit``.

    Warns
    -----
    UserWarning
        Some draws cannot be fitted; answers are not ordered categories, which leaves out Mantel's test; the anchor of
        a factor is arbitrary, as it has fewer than four items or fewer than half of the factor's.

    References
    ----------
    Lorenzo-Seva & ten Berge (2006); Korth & Tucker (1976), "Procrustes matching by congruence coefficients", doi:10.1007/BF02296973; Hall &
    Wilson (1991), "Two guidelines for bootstrap hypothesis testing", doi:10.2307/2532163; Mantel (1963); Benjamini & Hochberg (1995);
    Holm (1979); Holland & Wainer (1993); Zwick et al. (1997).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> traits = rng.normal(size=(400, 2)) @ np.kron(np.eye(2), np.ones(5))
    >>> answers = np.clip(np.rint(2 + traits + rng.normal(size=(400, 10))), 0, 4)
    >>> model = dfact.FactorAnalysis(n_components=2).fit(answers)
    >>> groups = np.repeat(["a", "b"], 200)
    >>> comparison = dfact.selection.compare_groups(model, answers, groups, n_resamples=40, random_state=0)
    >>> comparison.congruence.shape, bool((comparison.congruence > 0.95).all()), len(comparison.dif_items)
    ((1, 2), True, 0)
    >>> bool((comparison.p > 0.05).all()), bool((comparison.high == 1).all())
    (True, True)
    """
    _check(model, n_resamples, test, level)
    dataset = fitted_weights(model, fitted_dataset(model, as_dataset(X, confounders)), sample_weight)
    clustered = resolve_clusters(clusters, dataset)
    encoded = getattr(model, "confounder_encoding_", None) is not None
    frame = fitted_confounders(model, dataset, confounders if encoded else None)
    compared = Groups.of(by, dataset, groups)
    described = f"{describe_model(model)}, components {describe_value(np.asarray(model.components_))}"
    if clustered is not None:
        require_clusters(clustered, compared.labels, compared.names)
        described += f", clusters {describe_value(clustered)}"
    n_draws = resolve_draws(n_resamples, len(model.components_) * (len(compared.levels) - 1), test=test)
    members = compared.datasets(dataset)
    strata = make_strata(model, dataset, compared, scales, keys)
    store = ResultsStore.of_fits(checkpoint, dataset, described, random_state, groups=f"{compared.by}, {describe_value(compared.labels)}")
    congruences = FactorCongruences(model, compared, n_draws, test=test, clusters=clustered)
    congruences.fit(dataset, frame, members, store, callbacks)
    scale_names, mantel, unscreened = mantel_figures(model, dataset, compared, *strata)
    item_tests, untested = anchored_tests(model, dataset, frame, compared, clustered)
    factors = congruences.compare(level)
    return Comparison(
        compared.by,
        list(compared.levels),
        np.bincount(compared.labels[compared.labels >= 0]),
        factors.congruence,
        factors.low,
        factors.high,
        factors.p,
        float(level),
        factors.n_resamples,
        factors.rotated,
        factors.centred,
        factors.population,
        factors.untested,
        [str(label) for label in model.column_labels_],
        scale_names,
        item_tests,
        untested,
        mantel,
        unscreened,
        0 if clustered is None else int(clustered.max()) + 1,
    )


def _check(model: Any, n_resamples: Any, test: Any, level: Any) -> None:
    if not isinstance(test, bool):
        raise ParameterError(f"test is {test!r}, expected True or False")
    if not isinstance(model, Factorization) or model.traits.vocabulary != Vocabulary():
        found = "the class" if isinstance(model, type) else f"a {type(model).__name__},"
        raise ParameterError(f"model is {found} which is not one of participants and items; expected a fitted ICQF, NMF or FactorAnalysis")
    check_is_fitted(model)
    if n_resamples is not None:
        check_count("n_resamples", n_resamples, _LEAST_RESAMPLES, 100_000)
    if not is_in_range(level, 0, 1) or level in (0, 1):
        raise ParameterError(f"level is {level!r}, expected a number between 0 and 1, such as 0.95")
