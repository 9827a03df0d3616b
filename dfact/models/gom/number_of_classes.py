"""Number of classes of a grade-of-membership model: parallel analysis, deviance of held-out answers, or fuzzy modularity."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.engine.requests import drive, run
from dfact.engine.threads import single_threaded
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.correlation import MomentsPass
from dfact.linalg.parallel_analysis import FactorCount, component_eigenvalues, parallel_analysis, parallel_analysis_of_many
from dfact.models.gom.estimator import GradeOfMembership
from dfact.models.gom.modularity import candidate_numbers, describe_sizes, select_by_modularity
from dfact.models.gom.passes import Respondents
from dfact.models.provenance import SelectionRecord
from dfact.progress import Iteration
from dfact.selection.cross_validation.entry_cross_validation import entry_deviances
from dfact.selection.cross_validation.entry_fits import fit_chosen
from dfact.selection.result import Selection
from dfact.selection.running.estimators import require_method, with_parameters
from dfact.selection.running.results_store import resolve_random_state

CRITERIA = ("PA", "deviance", "modularity")
ABOVE_CHANCE = "above chance"
"""The rule of parallel analysis, as a selection records it."""
_EXCESS = 0.02
"""Least relative excess over a random eigenvalue that counts: without more classes, variances that differ between classes give some."""
_NEAR = 0.03
"""Distance of an excess from the least one within which it may lie on either side of it."""
_MOST_ITEMS = 512
"""Most items of which random correlations are drawn; with more, random eigenvalues alone, as of answers that are complete."""
_DEPENDENT = 1e-6
"""Variance up to which a combination of a nominal item's columns is constant."""
_TOL = 1e-3
"""Least ``tol`` of the fits without a fold: a nat or two may be left, and the deviance of a fold varies by tens of them."""


def select_number_of_classes(
    model: GradeOfMembership,
    X: Any,
    n_components: Iterable[int] | None = range(1, 11),
    *,
    criterion: str = "PA",
    n_folds: int = 5,
    n_resamples: int = 0,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> Selection:
    """Choose the number of classes, and return the model fitted with it.

    With "PA", parallel analysis (Horn 1965) counts the leading eigenvalues of the items' correlations that exceed those of unrelated
    items, their 95th percentile, by 2% or more: variances that differ between classes raise eigenvalues by less.
    Expected answers ΠΘᵀ of K classes, whatever their sizes, have K − 1 dimensions about their mean, so there is a class more than such
    eigenvalues. The columns of a nominal item (see :func:`dfact.expand_categories`) are made uncorrelated first. Missing answers are
    left out. Subjects without any response do not count.

    With "deviance", a hash of row, column and seed assigns every observed answer r to a fold (Wold 1978). The model of each number of
    classes is fitted without the answers of each fold, by maximum likelihood, and predicts them by μ = ΠΘᵀ; chosen is the lowest

        deviance = mean over the observed answers of r log(r/μ) + (M − r) log((M − r)/(M − μ)),   0 log 0 = 0.

    An answer of 0 is a response like others. Answers that vary more than binomial ones make the fits too sure of themselves: this
    criterion then chooses too few classes, often one.

    With "modularity", chosen is the highest fuzzy modularity, the rule of the paper, as :func:`select_by_modularity` does. It assumes
    classes of equal sizes (condition 1 of the paper), and merges small ones with others: its choice is a lower limit when sizes differ.

    Parameters
    ----------
    model : GradeOfMembership
        The model that is returned has all of its parameters but ``n_components``. It is not changed. With "deviance", the fits without
        a fold have its ``max_iter`` and ``max_response``, and a ``tol`` of at least 0.001.
    X : array (N, J) of any kind, path or Dataset
        Responses; NaN is none.
    n_components : numbers, optional
        Candidates; None for those of the paper, 1 to min(N, J).
    criterion : "PA", "deviance" or "modularity"
        What the choice is made by.
    n_folds : int
        Number of folds of "deviance", from 2 to 1000.
    n_resamples : int
        Number of resamples of "modularity"; 0 for none.
    random_state : int, RandomState or None
        Seed of the random eigenvalues (None is 0), of the folds, or of the resamples.
    checkpoint : path, optional
        Store (folder or URL) for the progress of the fits. After an interruption the same call resumes from it with bit-identical results.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each finished fit without a fold, such as ``dfact.Progress("select")``.

    Returns
    -------
    Selection
        ``table`` with the ``modularity`` of each candidate K, and the ``eigenvalue`` of rank K − 1, the ``random`` one and the
        relative ``excess``; or the ``deviance``, its standard error ``se`` over the folds, that of its difference from the lowest,
        ``se_difference``, and the ``passes`` of its fits; or that of :func:`select_by_modularity`. ``rule`` has the sizes of the
        classes, and names the numbers that cannot be told from the chosen one.

    Raises
    ------
    ParameterError
        Invalid arguments; a checkpoint of another call.
    DataError, MemoryPlanError
        Fewer than two items that vary; the same conditions as for ``model.fit`` with the largest candidate.

    Warns
    -----
    UserWarning
        The number of classes by parallel analysis is none of the candidates; the nearest of them is chosen.

    References
    ----------
    Horn (1965); Qing (2023), section 6; Wold (1978); Alexander & Lange (2011).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> classes = rng.choice(3, 200, p=[0.8, 0.1, 0.1])
    >>> answers, model = rng.binomial(4, rng.random((3, 20))[classes]), dfact.GradeOfMembership(random_state=0)
    >>> dfact.selection.select_number_of_classes(model, answers, range(1, 5)).best_params
    {'n_components': 3}
    """
    require_method(model, "fit_candidates", "a GradeOfMembership")
    if criterion not in CRITERIA:
        raise ParameterError(f"criterion is {criterion!r}, expected one of {', '.join(map(repr, CRITERIA))}")
    if criterion == "modularity":
        model = with_parameters(model, callbacks=callbacks or model.callbacks)
        return select_by_modularity(model, X, n_components, n_resamples=n_resamples, random_state=random_state, checkpoint=checkpoint)
    if n_resamples:
        raise ParameterError(f"n_resamples is {n_resamples} with criterion={criterion!r}, expected 0; resamples belong to 'modularity'")
    dataset = as_dataset(X)
    candidates = candidate_numbers(n_components, dataset.shape)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit with the chosen number warns again
        scores = with_parameters(model, likelihood="none", callbacks=()).fit_candidates(dataset, candidates)
    if criterion == "PA":
        return _by_parallel_analysis(model, dataset, candidates, scores, random_state, checkpoint)
    configurations = [{"n_components": k} for k in candidates]
    refined = with_parameters(model, likelihood="binomial", tol=max(model.tol, _TOL))
    settings = {"n_components": candidates}
    table, store = entry_deviances(refined, dataset, configurations, settings, n_folds, random_state, checkpoint, callbacks)
    table["modularity"] = scores
    found = fit_chosen(model, dataset, table, configurations, "deviance", "se", store.checkpoint("model"))
    return replace(found, rule="\n".join([describe_sizes(found.model), *describe_choice(table, found.best_params["n_components"])]))


def _by_parallel_analysis(
    model: GradeOfMembership, dataset: Dataset, candidates: Sequence[int], scores: Sequence[float], random_state: Any, checkpoint: Any
) -> Selection:
    seed = resolve_random_state(random_state)
    counted = _count(model, dataset, 0 if seed is None else seed)
    assert counted.reference is not None, "parallel analysis has one"
    found = 1 + int(np.argmin(np.append(counted.values > (1 + _EXCESS) * counted.reference, False)))
    best = min(candidates, key=lambda k: abs(k - found))
    if best != found:
        text = f"PA finds {found} classes, expected one of the candidates {min(candidates)} to {max(candidates)}"
        warn(f"{text}; {best} was chosen; try other candidates: n_components= (--components)")
    # The eigenvalue of rank K − 1 is the last that K classes have; one class has none.
    ranks = np.array(candidates) - 1
    columns = {}
    for name, values in (("eigenvalue", counted.values), ("random", counted.reference)):
        ranked = np.concatenate([[np.nan], values, np.full(max(candidates), np.nan)])
        columns[name] = ranked[ranks]
    columns |= {"excess": columns["eigenvalue"] / columns["random"] - 1, "modularity": np.array(scores)}
    table = pd.DataFrame(columns, index=pd.Index(candidates, name="n_components"))
    fitted = with_parameters(model, n_components=best).fit(dataset, checkpoint=checkpoint)
    fitted.selection_ = SelectionRecord.from_table(table, candidates.index(best), "excess", ABOVE_CHANCE, None)
    return Selection(table, {"n_components": best}, fitted, rule="\n".join([describe_sizes(fitted), *describe_choice(table, best)]))


def _count(model: GradeOfMembership, dataset: Dataset, seed: int) -> FactorCount:
    """Count the eigenvalues of the correlations of the items above those of unrelated items."""
    statistics = dataset.statistics
    task = with_parameters(model, n_components=1, likelihood="none", callbacks=()).prepare(dataset).for_views().without_rows()
    pairs = 8 * 4 * dataset.shape[1] ** 2  # the moments of all pairs of items
    task = replace(task, footprint=replace(task.footprint, broadcast=task.footprint.broadcast + pairs))
    with task.open_session() as session:
        pass_ = MomentsPass(task.dtype, complete_only=False)
        moments = drive(run(pass_, (statistics.minimum + statistics.maximum) / 2, Respondents(dataset.offset)), session)
    n = int(moments.rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        R = moments.correlations()
    varies = ~np.isnan(R.diagonal())
    if varies.sum() < 2:
        raise DataError(f"{int(varies.sum())} of {len(R)} items vary, expected at least 2 to compare their correlations")
    pairs_kept = np.ix_(varies, varies)
    R, shares = np.nan_to_num(R[pairs_kept]), np.maximum(moments.counts[pairs_kept], 1) / n
    W, of = _uncorrelated(R, dataset.column_labels[varies], (statistics.maximum - statistics.minimum)[varies])
    R, shares = W.T @ R @ W, shares[np.ix_(of, of)]
    with single_threaded():
        if len(R) <= _MOST_ITEMS:
            return parallel_analysis(R, n, seed=seed, shares=shares)
        rows = max(2, round(n * float(shares.mean())))
        return parallel_analysis_of_many(component_eigenvalues(R), rows, len(R), float(np.trace(R)), seed=seed)


def _uncorrelated(R: NDArray[np.float64], labels: NDArray[Any], ranges: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return W (m, r), with which the columns of each nominal item become uncorrelated, and for each of the r a column of its item.

    The columns of a nominal item are 0 or 1 and named "item=code". They depend on each other whatever the classes.
    """
    groups: dict[str, list[int]] = {}
    for j, (label, width) in enumerate(zip(map(str, labels), ranges, strict=True)):
        item, equals, _ = label.rpartition("=")
        groups.setdefault(f"{item}=" if equals and width == 1 else f"{j}", []).append(j)
    columns, of = list[NDArray[np.float64]](), list[int]()
    for members in groups.values():
        values, V = np.linalg.eigh(R[np.ix_(members, members)])
        for value, vector in zip(values, V.T, strict=True):
            if value > _DEPENDENT:  # the columns of all categories have a constant sum
                column = np.zeros(len(R))
                column[members] = vector / np.sqrt(value)
                columns.append(column)
                of.append(members[0])
    return np.column_stack(columns), np.array(of)


def describe_choice(table: pd.DataFrame, best: int) -> list[str]:
    """Return sentences about the numbers that cannot be told from the ``best``, and about a lower number by modularity."""
    notes = _near_deviances(table, best) if "deviance" in table else _near_eigenvalues(table, best)
    if "modularity" in table and (separated := int(table.index[int(table["modularity"].argmax())])) < best:
        notes.append(f"Modularity is highest for {separated}, a lower limit when sizes differ: it merges small classes with others.")
    return notes


def _near_eigenvalues(table: pd.DataFrame, best: int) -> list[str]:
    """Return a sentence if the eigenvalue of the last class, or of one class more, is near the random one."""
    near, reasons = [best], []
    for k, other in ((best, best - 1), (best + 1, best + 1)):
        if k in table.index and abs(table["excess"][k] - _EXCESS) < _NEAR:
            near.append(other)
            reasons.append(f"the eigenvalue of {k} classes, {table['eigenvalue'][k]:.2f}, is near the random one, {table['random'][k]:.2f}")
    if not reasons:
        return []
    return [f"The number of classes cannot be told: {' or '.join(map(str, sorted(near)))}, as {', and '.join(reasons)}."]


def _near_deviances(table: pd.DataFrame, best: int) -> list[str]:
    """Return a sentence if other numbers predict as well as the best."""
    near = table.index[table["deviance"] <= table["deviance"][best] + table["se_difference"].fillna(0)]
    if len(near) < 2:
        return []
    numbers = " or ".join(f"{k:g}" for k in sorted(near))
    reason = "which predict held-out answers equally well, within one standard error of the difference"
    return [f"The number of classes cannot be told: {numbers}, {reason}."]
