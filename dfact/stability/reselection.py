"""A model's selection repeated in each bootstrap resample, so that intervals include the variation of the chosen parameters."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.catalogue import find_part, find_public
from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.congruence import congruence, match
from dfact.models.provenance import SelectionRecord, Stability
from dfact.progress import Iteration, Reporter, TimeLeft
from dfact.selection.cross_validation.block_cross_validation import block_cross_validate
from dfact.selection.running.estimators import with_parameters
from dfact.selection.running.results_store import ResultsStore, describe_parameters
from dfact.stability.intervals import INDEPENDENT, SAME_FACTOR, factor_intervals, is_penalized
from dfact.stability.refits import Matching

N_FOLDS = 5
"""Default number of folds of a repeated cross-validation."""
_N_BLOCKS = 10
_FEWEST = 10
"""Fewest refits with a factor from which its loadings have an interval."""

Reselect = Callable[[Dataset, NDArray[np.intp], int], Any]
"""Repeats a selection on a resample, given the number of the original of each row, and a seed; returns the chosen model."""


def make_reselection(model: Any, n_folds: int) -> tuple[Reselect, list[dict[str, Any]]]:
    """Return the function that repeats the selection of a model, and its candidates.

    Raises ParameterError for a model without ``selection_``, or with one that cannot be repeated on a resample.
    """
    record: SelectionRecord | None = getattr(model, "selection_", None)
    if record is None:
        raise ParameterError("the model has no selection_ to repeat, expected one that a selection chose; leave out reselect (--reselect)")
    candidates = [dict(zip(record.names, map(_as_number, values), strict=True)) for values in record.values]
    if any(isinstance(value, str) for candidate in candidates for value in candidate.values()):
        raise ParameterError(f"the selection varied {', '.join(record.names)}, expected numbers alone to repeat it; leave out reselect")
    unfitted = with_parameters(model, callbacks=())
    sizes = [int(candidate.get("n_components", 0)) for candidate in candidates]
    if record.criterion == "error":
        grid = {name: list(dict.fromkeys(candidate[name] for candidate in candidates)) for name in record.names}
        if len(candidates) != len(list(product(*grid.values()))):
            raise ParameterError("the candidates of the selection are not a grid, expected all combinations of their values to repeat it")

        def cross_validate(resample: Dataset, originals: NDArray[np.intp], seed: int) -> Any:
            blocks = (min(_N_BLOCKS, len(np.unique(originals))), min(_N_BLOCKS, resample.shape[1]))
            settings: dict[str, Any] = {"rule": record.rule, "groups": originals, "random_state": seed}
            return block_cross_validate(unfitted, resample, grid, blocks, n_folds, **settings).model

        return cross_validate, candidates
    if record.criterion == "modularity":
        of_classes = find_public("selection.select_by_modularity")
        return lambda resample, _, __: of_classes(unfitted, resample, sizes).model, candidates
    if hasattr(unfitted, "correlate"):  # of common factors
        part = find_part("number_of_factors", "the choice of a number of factors")
        criteria = {score: criterion for criterion, (score, _) in part.CRITERIA.items()}
        if criterion := criteria.get(record.criterion):
            return lambda resample, _, __: part.select_number_of_factors(unfitted, resample, sizes, criterion=criterion).model, candidates
    known = "block cross-validation, modularity, PA, MAP or BIC"
    raise ParameterError(f"the selection is by {record.criterion!r}, which is not repeated on resamples; expected {known}")


def _as_number(value: float | str) -> float | int | str:
    """Return whole numbers as integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def reselect(
    model: Any,
    dataset: Dataset,
    confounders: pd.DataFrame | None,
    strata: NDArray[Any] | None,
    n_resamples: int,
    n_folds: int,
    level: float,
    store: ResultsStore,
    callbacks: Sequence[Callable[[Iteration], None]],
) -> Stability:
    """Repeat the selection and the fit of a model in each of ``n_resamples`` bootstrap resamples of the rows."""
    repeat, candidates = make_reselection(model, n_folds)
    left, reporter, failures = TimeLeft(n_resamples), Reporter(callbacks, n_resamples), dict[int, DataError]()
    for number in range(n_resamples):
        if (number,) not in store.entries:
            resample, rows = _draw(dataset, confounders, strata, store.seed, number)
            try:
                with warnings.catch_warnings(action="ignore", category=UserWarning):  # the selection itself has warned
                    seed = int(np.random.SeedSequence([store.seed, number]).generate_state(1)[0] >> 1)
                    chosen = repeat(resample, rows, seed)
                store.add((number,), [np.asarray(chosen.components_, np.float64), np.asarray([_number(chosen, candidates)])])
            except DataError as error:
                failures[number] = error
        reporter.reached(number + 1, left.text(number + 1))
    if n_resamples - len(failures) < 2:
        raise DataError(f"{len(failures)} of {n_resamples} selections failed, such as {next(iter(failures.values()))}; expected at least 2")
    if failures:
        warn(f"{len(failures)} of {n_resamples} selections failed, such as {next(iter(failures.values()))}")
    fitted = [None if number in failures else store.entries[number,] for number in range(n_resamples)]
    return _summarize(model, fitted, candidates, level)


def _draw(
    dataset: Dataset, confounders: pd.DataFrame | None, strata: NDArray[Any] | None, seed: int, number: int
) -> tuple[Dataset, NDArray[np.intp]]:
    """Return n of n rows drawn with replacement, or of each stratum as many as it has, with the numbers of their originals."""
    generator, n = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,))), dataset.shape[0]
    groups = [np.arange(n)] if strata is None else [np.flatnonzero(strata == level) for level in np.unique(strata)]
    rows = np.sort(np.concatenate([group[generator.integers(len(group), size=len(group))] for group in groups]))
    resample = dataset.take_rows(rows)
    weights = None if dataset.weights is None else dataset.weights.iloc[rows].reset_index(drop=True)
    frame = None if confounders is None else confounders.iloc[rows].reset_index(drop=True)
    return replace(resample, confounder_source=frame, weights=weights), rows


def _number(chosen: Any, candidates: list[dict[str, Any]]) -> int:
    """Return the number of the candidate that a selection chose."""
    parameters = chosen.get_params(deep=False)
    return next(i for i, candidate in enumerate(candidates) if all(parameters[name] == value for name, value in candidate.items()))


def _summarize(model: Any, fitted: Sequence[Any], candidates: list[dict[str, Any]], level: float) -> Stability:
    matching, estimate = Matching.of(model), np.asarray(model.components_, np.float64)
    k, m = estimate.shape
    similarity, samples = np.full((len(fitted), k), np.nan), np.full((len(fitted), k, m), np.nan)
    counts = np.zeros(len(candidates), np.int64)
    for number, entry in enumerate(fitted):
        if entry is None:
            continue
        components, choice = entry
        counts[int(choice[0])] += 1
        cosines = congruence(estimate - matching.centre, components - matching.centre)
        scores = np.abs(cosines) if matching.signed else cosines
        rows, columns = match(scores)
        similarity[number] = 0.0  # of a factor that the refit has not
        similarity[number, rows] = scores[rows, columns]
        signs = np.where(matching.signed & (cosines[rows, columns] < 0), -1.0, 1.0)
        samples[number, rows] = components[columns] * signs[:, None]
    mean, low, high, selected, se = (np.full((k, m), np.nan) for _ in range(5))
    for factor in range(k):
        found = similarity[:, factor] >= SAME_FACTOR
        if found.sum() < 2:
            continue
        of_factor = samples[found, factor]
        mean[factor], selected[factor] = of_factor.mean(axis=0), (of_factor != 0).mean(axis=0)
        ends = factor_intervals(
            estimate[factor],
            of_factor,
            similarity[found, factor],
            level,
            INDEPENDENT,
            nonnegative=model.traits.nonnegative,
            penalized=is_penalized(model),
        )
        usual = found.sum() >= max(_FEWEST, len(fitted) / 2) and model.traits.loading_intervals
        se[factor], low[factor], high[factor] = ends if usual else (np.nan, np.nan, np.nan)
    texts = [describe_parameters(candidate) for candidate in candidates]
    return Stability(similarity, mean, low, high, float(level), selected, estimate=estimate, se=se, choices=texts, choice_counts=counts)
