"""Comparison of groups of participants: whether their factors agree, and which items favour one of them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError
from dfact.models.estimator import Factorization
from dfact.models.parameters import check_count, describe_value, is_in_range
from dfact.models.provenance import Comparison
from dfact.models.traits import Vocabulary
from dfact.progress import Iteration
from dfact.selection.fitted_data import fitted_dataset
from dfact.selection.folds import resolve_random_state
from dfact.selection.item_effects import anchored_tests
from dfact.selection.item_screens import Groups, make_strata, mantel_screen
from dfact.selection.refits import Matching, Refits, converged_start, fitted_confounders, fitted_weights, refit_inputs
from dfact.selection.resamples import GroupFits, RefittedLoadings
from dfact.selection.results_store import ResultsStore, describe_model
from dfact.selection.scheduler import run_fits

Array = NDArray[np.float64]
_LEAST_RESAMPLES = 30  # for a standard error


def compare_groups(
    model: Factorization,
    X: Any,
    by: Any,
    *,
    levels: Sequence[Any] | None = None,
    n_resamples: int = 100,
    n_permutations: int = 200,
    level: float = 0.95,
    scales: Mapping[str, str] | None = None,
    keys: Mapping[str, int] | None = None,
    confounders: Any = None,
    sample_weight: Any = None,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    checkpoint: str | PathLike[str] | None = None,
) -> Comparison:
    """Compare groups of participants: whether they have the same factors, and which items favour one of them.

    **Factors.** The model is fitted to each group separately, with its own parameters and from its loadings, in which only the group
    is no confounder. The factors are matched with the model's, one to one, as :func:`dfact.selection.bootstrap` does, and each
    group is compared with the first one, the reference, by Tucker's congruence of each factor. From 0.95 on factors count as the
    same, below 0.85 as different. As two samples never have a congruence of 1, the test is by permutation: the p value of a factor is
    the share of permutations of the groups whose congruence is as low, adjusted by Holm's procedure over factors and groups. The
    interval describes the size: resamples are drawn within the groups, and its ends are percentiles corrected for bias by z₀, or the
    congruence itself if it is beyond.

    **Items.** Two tests look for uniform differential item functioning: a difference between members of the groups who agree in the
    factors. The first one splits the differences of the items, all other confounders of the model held equal, into the impact,
    a difference of the factors that most items agree on, and effects on single items (see :func:`dfact.linalg.dif.anchored_dif`).
    It takes continuous answers and survey weights, and flags an item at a false discovery rate of 5 % over items and groups if
    the effect is 0.17 standard deviations of the item or more. Mantel's test compares participants with the same total of the item's
    scale, without the items that it flags, which leave the total one at a time; participants with a missing answer in the scale are left
    out there. It flags classes B and C of the Educational Testing Service at the same rate. An item that both flag is a finding;
    where Mantel's test is not possible, the first one decides. The guide ``evidence`` has their measured error rates.

    Parameters
    ----------
    model : fitted estimator
        A model of participants and items: :class:`dfact.ICQF`, :class:`dfact.L1NMF` or :class:`dfact.FactorAnalysis`. It is not
        changed. Refits use its ``executor`` and ``memory_limit``.
    X : array (n, m) of any kind, path or Dataset
        The data that the model was fitted to. If it does not fit in memory, refits share their reads.
    by : str, or labels (n,)
        Name of a confounder of X, or the group of each row. Rows without a group are left out. The first level is the reference.
    levels : sequence, optional
        The groups to compare, by default all. Rows of others are left out of the comparison, and stay in the model.
    n_resamples : int
        Number of resamples, from 30 to 100,000.
    n_permutations : int
        Number of permutations: at least 200 for small p values, at most 100,000, 0 for none.
    level : float
        Coverage of the intervals of the congruences and of the impact.
    scales, keys : mappings from items, optional
        Scale of each item, and its key 1 or −1; by default those of the codebook, else the factor with the largest loading and its sign.
    confounders, sample_weight : optional
        Those passed to ``model.fit``. A Dataset or path brings its own.
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
        A model of other data; ``by`` is no categorical confounder; numbers out of range; a checkpoint of another call.
    DataError
        The data is not the fitted data; fewer than two groups; a group with fewer than 50 rows, or with an item that
        has no answers or does not vary there; a group that cannot be fitted; or fewer than 2 resamples that can be.
    MemoryPlanError
        The same conditions as for ``model.fit``.

    Warns
    -----
    UserWarning
        Some resamples or permutations cannot be fitted; answers are no ordered categories, which leaves out Mantel's test; the anchor of
        a factor is arbitrary, as it has fewer than four items or fewer than half of the factor's.

    References
    ----------
    Lorenzo-Seva & ten Berge (2006); Efron (1981); Mantel (1963); Benjamini & Hochberg (1995); Holm (1979); Holland & Wainer (1993);
    Zwick et al. (1997).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> traits = rng.normal(size=(400, 2)) @ np.kron(np.eye(2), np.ones(5))
    >>> answers = np.clip(np.rint(2 + traits + rng.normal(size=(400, 10))), 0, 4)
    >>> model = dfact.FactorAnalysis(n_components=2).fit(answers)
    >>> groups = np.repeat(["a", "b"], 200)
    >>> comparison = dfact.selection.compare_groups(model, answers, groups, n_resamples=30, n_permutations=50, random_state=0)
    >>> comparison.congruence.shape, bool((comparison.congruence > 0.95).all()), len(comparison.findings)
    ((1, 2), True, 0)
    """
    _check(model, n_resamples, n_permutations, level)
    dataset = fitted_weights(model, fitted_dataset(model, as_dataset(X, confounders)), sample_weight)
    encoded = getattr(model, "confounder_encoding_", None) is not None
    frame = fitted_confounders(model, dataset, confounders if encoded else None)
    groups = Groups.of(by, dataset, levels)
    members = groups.datasets(dataset)
    strata = make_strata(model, dataset, groups, scales, keys)
    identity = {"data": None if checkpoint is None else dataset.fingerprint, "seed": resolve_random_state(random_state)}
    identity |= {"model": f"{describe_model(model)}, components {describe_value(np.asarray(model.components_))}"}
    store = ResultsStore(checkpoint, identity | {"groups": f"{groups.by}, {describe_value(groups.labels)}"})
    congruences = _Congruences(model, groups, n_resamples, n_permutations)
    congruences.fit(dataset, frame, members, store, callbacks)
    scale_names, mantel, unscreened = mantel_screen(model, dataset, groups, *strata)
    item_tests, untested = anchored_tests(model, dataset, frame, groups)
    (congruence, low, high, p), (n_fitted, n_permuted) = congruences.summarize(level), congruences.counts
    return Comparison(
        groups.by,
        list(groups.levels),
        np.bincount(groups.labels[groups.labels >= 0]),
        congruence,
        low,
        high,
        p,
        float(level),
        n_fitted,
        n_permuted,
        [str(label) for label in model.column_labels_],
        scale_names,
        item_tests,
        untested,
        mantel,
        unscreened,
    )


def _check(model: Any, n_resamples: Any, n_permutations: Any, level: Any) -> None:
    if not isinstance(model, Factorization) or model.traits.vocabulary != Vocabulary():
        found = "the class" if isinstance(model, type) else f"a {type(model).__name__},"
        raise ParameterError(
            f"model is {found} which is not one of participants and items; expected a fitted ICQF, L1NMF or FactorAnalysis"
        )
    check_is_fitted(model)
    check_count("n_resamples", n_resamples, _LEAST_RESAMPLES, 100_000)
    check_count("n_permutations", n_permutations, 0, 100_000)
    if not is_in_range(level, 0, 1) or level in (0, 1):
        raise ParameterError(f"level is {level!r}, expected a number between 0 and 1, such as 0.95")


class _Congruences:
    """Fits to the groups, to resamples within them, and to permuted groups; the congruences of their factors."""

    def __init__(self, model: Any, groups: Groups, n_resamples: int, n_permutations: int) -> None:
        self._model, self._groups, self._matching = model, groups, Matching.of(model)
        # Numbers of draws: 0 are the groups, odd ones resamples, even ones permutations, so that fewer of them are the first of more.
        self._draws = [0, *range(1, 2 * n_resamples, 2), *range(2, 2 * n_permutations + 1, 2)]
        self._values: dict[int, Array] = {}

    def fit(
        self,
        dataset: Dataset,
        frame: pd.DataFrame | None,
        members: Sequence[Dataset],
        store: ResultsStore,
        callbacks: Sequence[Callable[[Iteration], None]],
    ) -> None:
        """Run the fits that ``store`` lacks, and compute the congruences of all draws."""
        model, groups, size = self._model, self._groups, len(self._groups.levels)
        refits = Refits(store, [draw * size + group for draw in self._draws for group in range(size)], callbacks, self._describe)
        if refits.pending:
            others = None if frame is None else frame.drop(columns=[groups.by] if groups.is_confounder and groups.by in frame else [])
            refit, inputs = refit_inputs(model, dataset, others)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the fit itself has warned
                fits = GroupFits.of_groups(refit, inputs, members, groups.labels, store.seed)
            if "init" in model.get_params(deep=False):
                fits = converged_start(model, fits, self._matching, store)
            run_fits(fits, refits.pending, refits.keep, model.executor, model.memory_limit)
        failed = [number for number in range(size) if number in refits.failed]
        if failed:
            raise DataError(f"{self._describe(failed[0])} cannot be fitted: {refits.failed[failed[0]]}")
        loadings = refits.loadings()
        for number, draw in enumerate(self._draws):
            found = self._congruence(loadings[number * size : (number + 1) * size])
            if found is not None:
                self._values[draw] = found
        n_fitted, n_resamples = self.counts[0], sum(draw % 2 for draw in self._draws)
        if n_fitted < 2:
            first = min(number for number in refits.failed if number // size % 2)
            few = f"{n_fitted} of {n_resamples} resamples could be fitted in all groups, expected at least 2"
            raise DataError(f"{few}; the {self._describe(first)}: {refits.failed[first]}")

    def _describe(self, number: int) -> str:
        draw, group = divmod(number, len(self._groups.levels))
        kind = "" if draw == 0 else f"permutation {draw // 2} of " if draw % 2 == 0 else f"resample {draw // 2 + 1} of "
        return f"{kind}{self._groups.by}={self._groups.levels[group]}"

    def _congruence(self, refits: Sequence[RefittedLoadings | None]) -> Array | None:
        """Return the congruences (g, k) of the matched factors of each group with those of the first; None if a fit failed."""
        matched = [self._matching.match(refit.components)[1] - self._matching.centre for refit in refits if refit is not None]
        if len(matched) < len(refits):
            return None
        norms = [np.linalg.norm(H, axis=1) for H in matched]
        products = [(matched[0] * H).sum(axis=1) for H in matched[1:]]
        lengths = [norms[0] * norm for norm in norms[1:]]
        return np.stack([np.divide(p, n, out=np.zeros_like(n), where=n > 0) for p, n in zip(products, lengths, strict=True)])

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of the resamples and of the permutations that could be fitted."""
        resamples = sum(draw % 2 for draw in self._values)
        return resamples, len(self._values) - resamples - 1

    def summarize(self, level: float) -> tuple[Array, Array, Array, Array]:
        """Return the congruences (g, k), both ends of their intervals, and their p values."""
        observed = self._values[0]
        resampled = np.stack([value for draw, value in self._values.items() if draw % 2])
        low, high = bias_corrected(observed, resampled, level)
        permuted = [value for draw, value in self._values.items() if draw and draw % 2 == 0]
        p = np.full(observed.shape, np.nan)
        if permuted:
            p = holm((1 + (np.stack(permuted) <= observed).sum(axis=0)) / (len(permuted) + 1))
        return observed, low, high, p


def bias_corrected(estimate: Array, samples: Array, level: float) -> tuple[Array, Array]:
    """Return both ends of Efron's bias-corrected percentile intervals of estimates (…) from resamples (B, …).

    With z₀ = Φ⁻¹ of the share of resamples below the estimate, the ends are the percentiles Φ(2z₀ ± z). An estimate beyond an end
    takes its place.
    """
    below = ((samples < estimate).sum(axis=0) + 0.5 * (samples == estimate).sum(axis=0)) / len(samples)
    z0 = norm.ppf(np.clip(below, 0.5 / len(samples), 1 - 0.5 / len(samples)))
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        shares = norm.cdf(2 * z0 + norm.ppf(tail))
        ends.append(_quantiles(samples, shares))
    return np.minimum(ends[0], estimate), np.maximum(ends[1], estimate)


def _quantiles(samples: Array, shares: Array) -> Array:
    flat = samples.reshape(len(samples), -1)
    return np.asarray([np.quantile(flat[:, i], share) for i, share in enumerate(shares.ravel())]).reshape(shares.shape)


def holm(p: Array) -> Array:
    """Return p values of any shape adjusted by Holm's procedure."""
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")
    steps = np.minimum(np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1)), 1.0)
    adjusted = np.empty_like(flat)
    adjusted[order] = steps
    return adjusted.reshape(p.shape)
