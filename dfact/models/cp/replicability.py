"""Number of components of a CP decomposition by replicability: do fits to other rows of mode 1 find the same components?"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError, warn
from dfact.models.cp.base import CPModel
from dfact.models.cp.core_consistency import core_consistency
from dfact.models.cp.factor_match import match_components
from dfact.models.provenance import SelectionRecord
from dfact.parameters import check_count, describe_value, is_in_range
from dfact.progress import Iteration, Reporter, TimeLeft
from dfact.selection.cross_validation.folds import assign_folds, resolve_strata
from dfact.selection.grid import expand
from dfact.selection.result import Selection
from dfact.selection.running.estimators import is_tensor_model, restrict_to_rows, with_parameters
from dfact.selection.running.restarts import fit_starts, lowest_objective
from dfact.selection.running.results_store import ResultsStore, describe_model

SAME = 0.9
"""Similarity from which two components count as the same, by default."""
CONSISTENT = 50.0
"""Least core consistency of a choice, by default: near 50% a model has variation that is not trilinear (Bro & Kiers 2003)."""
_HALVED = 20  # rows from which two halves are compared by default; a half of fewer has too few for several components
_SPLITS = 5  # into halves, by default
_FEW_FOLDS, _FEW_SPLITS = 5, 3  # folds of fewer rows, and splits into them, by default
_FULL = 0  # number of the fit to all rows, among the fits of a number of components
_LOW = 0.05  # quantile of the scores of the pairs


def replicability(
    model: CPModel,
    X: Any,
    n_components: Iterable[int] = range(1, 7),
    *,
    n_folds: int | None = None,
    n_repeats: int | None = None,
    n_starts: int = 3,
    threshold: float = SAME,
    least_consistency: float | None = CONSISTENT,
    stratify: Any = None,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    checkpoint: str | PathLike[str] | None = None,
) -> Selection:
    """Choose the number of components by their replicability in halves of mode 1, and by core consistency; the choice may be none.

    The rows, the slices of mode 1, are split at random into halves, several times. For each number R of components the model is
    fitted to each half, from several starts, of which the lowest objective counts. The fits of two halves have no row in common. They are
    compared by the vectors a_r⁽ⁿ⁾ of modes 2 to N, which do not depend on the rows: the similarity of matched components is

        s_r = Π_{n≥2} |cos(a_r⁽ⁿ⁾, b_{π(r)}⁽ⁿ⁾)|,   π the matching with the largest sum,

    and the factor match score (FMS) is its mean, without the components' weights. Components beyond the number that the data determines
    depend on the noise and on the sample: the score falls after it. As the mean hides one such component among many, the rule looks at
    the weakest component: a number is replicable if its lowest similarity has a median over all splits of at least ``threshold``.
    Fewer components than there are may be replicable or not. The similarity of halves is that of two independent samples of n/2 rows. Two
    samples of n rows agree at least as well.

    Fewer than 20 rows leave too few in a half. Then, as with any ``n_folds`` above 2, the fits leave out one of F = 5 folds each. Two
    share (F − 2)/(F − 1) of their rows and differ by much less than independent samples do. By the jackknife of F groups, the squared
    differences of independent samples are (F − 1)²/F times as large, and so are the small angles' 1 − cos. The printed similarity is

        max(0, 1 − max(1, (F − 1)²/F)·(1 − s_r)).

    The factor is exact for small differences. It is too small where another sample would find other components altogether, the more so
    the more folds there are. Prefer halves.

    Replicable components may still be no components of the data: two of them may share one source and cancel each other, in all
    rows alike. The :func:`core_consistency` of the fit to all rows shows that. It is above 90 for trilinear data, near 50 for data with
    variation of another structure, and near 0 or negative for an invalid model (Bro & Kiers 2003). It alone does not see components
    that follow noise. The largest replicable number is chosen whose core consistency is at least ``least_consistency``. Without one,
    the choice is none: no component returns in other rows.

    Parameters
    ----------
    model : ElasticCP or CPALS
        The fits use all of its parameters but ``n_components`` and the seed. It is not changed. Penalties shrink components away,
        and lost components count 0; use a small ``lam``, such as 1e-8, for ElasticCP.
    X : array (I_1, …, I_N) of any kind, path or Dataset
        NaN is missing.
    n_components : numbers
        Candidates.
    n_folds : int, optional
        Number of folds, from 2 (halves) to the number of rows; by default 2, and 5 for fewer than 20 rows.
    n_repeats : int, optional
        Number of splits into folds; by default 5 into halves, 3 into the five folds of few rows, and 1 into others. Pairs are formed
        within a split.
    n_starts : int
        Number of starts of each fit: the model's own, and random ones.
    threshold : float
        Similarity from which components count as replicable.
    least_consistency : float or None
        Core consistency, in percent, from which a number can be chosen; None for any.
    stratify : labels (n,) or a table of n rows, optional
        Each fold gets the same share of each level, or combination of levels.
    random_state : int, RandomState or None
        Seed of the folds and of all starts.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each fit.
    checkpoint : path, optional
        Folder for the finished fits. The same call resumes from it; a different call is refused.

    Returns
    -------
    Selection
        ``table`` with a row for each number: ``replicability``, the median over pairs of fits of the weakest component's similarity;
        ``core_consistency`` of the fit to all rows, NaN without a component left; ``fms`` and ``fms_low``, the median and the 5th
        percentile of the pairs' FMS; ``fms_full``, the median FMS of a part's fit and the fit to all rows, which share rows and agree
        better than samples do; ``explained``, the explained share of the latter. ``folds`` has the FMS of each part's fit and the fit to
        all rows, with a column for each (repeat, fold). ``model`` is fitted to all rows with the chosen number, and ``rule`` states the
        rule and what each of its conditions supports. If none is chosen, ``best_params`` is ``{"n_components": None}`` and ``model`` None.

    Raises
    ------
    ParameterError
        No CP model; a given start, which has a number of components; an invalid number of folds, repeats, starts or components, or
        threshold; a checkpoint of another call.
    DataError
        The same conditions as for ``model.fit``.

    Warns
    -----
    UserWarning
        Fits to a part of the rows that failed, whose scores are 0.

    References
    ----------
    Harshman & DeSarbo (1984) on split halves; Adali et al. (2022) on the score; Yan et al. (2024), whose pairs of folds and best runs
    these are; Busing et al. (1999) on the jackknife of groups; Bro & Kiers (2003) on core consistency.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((size, 2)) for size in (40, 10, 8))
    >>> Z = np.einsum("ir,jr,kr->ijk", A, B, C) + 0.5 * rng.standard_normal((40, 10, 8))
    >>> model = dfact.ElasticCP(lam=1e-8, max_iter=100)
    >>> dfact.selection.replicability(model, Z, range(1, 4), random_state=0).best_params
    {'n_components': 2}
    """
    candidates = _candidates(model, n_components)
    dataset = as_dataset(X)
    folds, n_repeats = _check(dataset.shape[0], n_folds, n_repeats, n_starts, threshold, least_consistency)
    strata = resolve_strata(stratify, None, dataset.shape[0])
    any_number = describe_model(with_parameters(model, n_components=1, random_state=None))
    settings: dict[str, Any] = {"folds": folds, "starts": n_starts, "strata": None if strata is None else describe_value(strata)}
    settings["figures"] = "explained, core consistency"  # earlier checkpoints have no core consistency
    store = ResultsStore.of_fits(checkpoint, dataset, any_number, random_state, **settings)
    fits = _FoldFits(model, dataset, store, n_starts, _assign(dataset.shape[0], folds, n_repeats, store.seed, strata))
    fits.run([(k, number) for k in candidates for number in range(1 + folds * n_repeats)], callbacks)
    rows, scores = zip(*(_scores(fits, k, folds, n_repeats) for k in candidates), strict=True)
    index = pd.Index(candidates, name="n_components")
    table = pd.DataFrame(list(rows), index=index)
    columns = pd.MultiIndex.from_product([range(n_repeats), range(folds)], names=["repeat", "fold"])
    of_folds = pd.DataFrame(list(scores), index=index, columns=columns)
    rule = _Rule(threshold, -np.inf if least_consistency is None else least_consistency)
    best = rule.choose(table)
    if best is None:
        return Selection(table, {"n_components": None}, None, of_folds, rule.describe(table))
    chosen = fits.fit(candidates[best], _FULL)
    chosen.selection_ = SelectionRecord.from_table(table, best, "replicability", rule.name)
    return Selection(table, {"n_components": candidates[best]}, chosen, of_folds, rule.describe(table))


def _candidates(model: Any, n_components: Iterable[int]) -> list[int]:
    if not is_tensor_model(model):
        raise ParameterError(f"model is a {type(model).__name__}, expected an ElasticCP or CPALS")
    if not isinstance(model.get_params(deep=False)["init"], str):
        raise ParameterError("model has given factors as init, expected a start for any number of components, such as init='random'")
    return sorted({one["n_components"] for one in expand(model, {"n_components": list(n_components)})})


def _check(n: int, n_folds: Any, n_repeats: Any, starts: Any, threshold: Any, least_consistency: Any) -> tuple[int, int]:
    """Return the numbers of folds and of repeats."""
    if n < 3:
        raise DataError(f"X has {n} rows in mode 1, expected at least 3, so that a fold leaves several")
    folds = (2 if n >= _HALVED else min(n, _FEW_FOLDS)) if n_folds is None else n_folds
    check_count("n_folds", folds, 2, n)
    few = _FEW_SPLITS if n_folds is None and folds < n else 1  # leaving out single rows, there is one split
    repeats = (_SPLITS if folds == 2 else few) if n_repeats is None else n_repeats
    check_count("n_repeats", repeats, 1, 1000)
    check_count("n_starts", starts, 1, 1000)
    if not is_in_range(threshold, 0, 1):
        raise ParameterError(f"threshold is {threshold!r}, expected a number between 0 and 1, such as {SAME}")
    if least_consistency is not None and not (is_in_range(least_consistency, -np.inf) and least_consistency <= 100):
        raise ParameterError(
            f"least_consistency is {least_consistency!r}, expected a number of at most 100, such as {CONSISTENT:g}, or None"
        )
    return int(folds), int(repeats)


def _assign(n: int, folds: int, repeats: int, seed: int, strata: NDArray[np.int64] | None) -> list[NDArray[Any]]:
    """Return the fold of each row (n,) in each repeat."""
    generators = (np.random.default_rng([seed, repeat]) for repeat in range(repeats))
    return [assign_folds((n, 1), (folds, 1), folds, generator, strata).rows for generator in generators]


@dataclass(frozen=True)
class _Rule:
    """The rule that chooses a row of the table."""

    threshold: float
    least_consistency: float

    @property
    def name(self) -> str:
        return "largest replicable" + (" and consistent" if np.isfinite(self.least_consistency) else "")

    def choose(self, table: pd.DataFrame) -> int | None:
        """Return the position of the largest number that is replicable and consistent; None without one."""
        enough = np.flatnonzero((table["replicability"] >= self.threshold) & self._consistent(table))
        return int(enough[-1]) if len(enough) else None

    def describe(self, table: pd.DataFrame) -> str:
        """Return the rule in words, and the largest number by each of its conditions."""
        replicable, consistent = table.index[table["replicability"] >= self.threshold], table.index[self._consistent(table)]
        words = f"best: the largest number whose weakest component has a replicability of at least {self.threshold:g}"
        counted = [("replicability", replicable)]
        if np.isfinite(self.least_consistency):
            words += f" and whose core consistency is at least {self.least_consistency:g}%"
            counted.append(("core consistency", consistent))
        found = ", ".join(f"{int(numbers[-1]) if len(numbers) else 'none'} by {name}" for name, numbers in counted)
        none = " None is chosen: no number meets the rule." if self.choose(table) is None else ""
        return f"{words}. Largest: {found}.{none}"

    def _consistent(self, table: pd.DataFrame) -> NDArray[np.bool_]:
        if not np.isfinite(self.least_consistency):
            return np.ones(len(table), bool)
        return np.asarray(table["core_consistency"] >= self.least_consistency)


@dataclass(frozen=True, eq=False)
class _FoldFits:
    """Fits to all rows (number 0), to each half or without each fold, for each number of components."""

    model: Any
    dataset: Dataset
    store: ResultsStore
    starts: int
    assignments: list[NDArray[Any]]

    def run(self, which: Sequence[tuple[int, int]], callbacks: Sequence[Callable[[Iteration], None]]) -> None:
        """Run the fits that the store does not hold, by number of components and number of the fit, and store their vectors."""
        left, reporter, failures = TimeLeft(len(which)), Reporter(callbacks, len(which)), list[str]()
        for done, key in enumerate(sorted(which, key=lambda key: key[::-1]), start=1):  # all fits to the same rows follow each other
            if key not in self.store.entries:
                try:
                    fitted = self.fit(*key)
                    vectors = [np.asarray(A, np.float64).T for A in fitted.factors_[1:]]
                    self.store.add(key, [self._figures(fitted, key[1]), *vectors])
                except DataError as error:
                    if key[1] == _FULL:
                        raise
                    failures.append(f"{key[0]} components: {error}")
                    self.store.add(key, [np.full(2, np.nan), *(np.zeros((key[0], size)) for size in self.dataset.shape[1:])])
            reporter.reached(done, left.text(done))
        if failures:
            message = f"{len(failures)} of {len(which)} fits failed, and their scores are 0, such as {failures[0]}"
            warn(message)

    def fit(self, k: int, number: int) -> Any:
        """Fit k components from all starts; return the fit with the lowest objective."""
        seeds = np.random.SeedSequence([self.store.seed, k, number]).generate_state(self.starts)
        model, dataset = self._part(number)
        own = with_parameters(model, n_components=k, random_state=int(seeds[0] >> 1), callbacks=())
        if not model.traits.in_memory:
            fits = fit_starts(own, {}, seeds[1:], dataset, None, own=True)
        else:
            others = [with_parameters(own, init="random", random_state=int(seed >> 1)) for seed in seeds[1:]]
            fits = [start.fit(dataset) for start in (own, *others)]
        return lowest_objective(fits)

    def _part(self, number: int) -> tuple[Any, Dataset]:
        if number == _FULL:
            return self.model, self.dataset
        repeat, fold = divmod(number - 1, int(self.assignments[0].max()) + 1)
        rows = np.flatnonzero(self.assignments[repeat] != fold)
        return restrict_to_rows(self.model, rows), self.dataset.take_rows(rows)

    def vectors(self, k: int, number: int) -> list[NDArray[Any]]:
        """Return the vectors (k, I_n) of modes 2 to N of a fit."""
        return [array for array in self.store.entries[k, number][1:] if array is not None]

    def _figures(self, fitted: Any, number: int) -> NDArray[np.float64]:
        """Return the explained share of a fit and, of one to all rows with a component left, its core consistency."""
        whole = number == _FULL and fitted.rank_ > 0
        return np.array([fitted.explained_share_, core_consistency(fitted, self.dataset) if whole else np.nan])

    def figures(self, k: int) -> list[float]:
        """Return the explained share and the core consistency of the fit to all rows."""
        return [float(value) for value in self.store.entries[k, _FULL][0]]


def _scores(fits: _FoldFits, k: int, folds: int, repeats: int) -> tuple[dict[str, float], list[float]]:
    """Return the row of the table, and the score of each fold's fit and the fit to all rows."""
    parts = [fits.vectors(k, 1 + number) for number in range(folds * repeats)]
    of_repeats = (parts[first : first + folds] for first in range(0, len(parts), folds))
    matches = [match_components(*pair).similarity for of_repeat in of_repeats for pair in combinations(of_repeat, 2)]
    pairs = independent_similarity(np.array(matches), folds)
    scores = [match_components(fits.vectors(k, _FULL), part).score for part in parts]
    low, median = np.quantile(pairs.mean(axis=1), [_LOW, 0.5])
    weakest, (explained, consistency) = np.median(pairs.min(axis=1)), fits.figures(k)
    row = {"replicability": weakest, "core_consistency": consistency, "fms": median, "fms_low": low}
    row |= {"fms_full": np.median(scores), "explained": explained}
    return {name: float(value) for name, value in row.items()}, scores


def independent_similarity(similarity: NDArray[np.float64], folds: int) -> NDArray[np.float64]:
    """Return the similarity of fits to independent samples, given that of fits without one of several folds; halves are independent."""
    return np.maximum(0.0, 1 - max(1.0, (folds - 1) ** 2 / folds) * (1 - similarity))
