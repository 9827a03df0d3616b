"""The parameters of an expectile matrix factorization by single entries that are held out."""

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError
from dfact.models.estimator import RUNTIME_PARAMETERS
from dfact.models.expectile.estimator import ExpectileMF
from dfact.models.parameters import COUNT, check, describe_value, is_count, is_in_range
from dfact.models.provenance import SelectionRecord
from dfact.progress import Iteration
from dfact.selection.entry_fits import EntryFits, Fit
from dfact.selection.folds import resolve_random_state
from dfact.selection.grid import Parameters, expand, index_of
from dfact.selection.hidden_entries import ERRORS, ErrorHistogram, ErrorMeasure
from dfact.selection.refits import with_parameters
from dfact.selection.result import Selection
from dfact.selection.results_store import BatchResults, model_text, parameters_text

_SHARED = (*RUNTIME_PARAMETERS, "dtype")  # parameters that all fits share


def select_by_held_out(
    model: ExpectileMF,
    X: Any,
    grid: Mapping[str, Any],
    *,
    holdout_fraction: float = 0.1,
    error: str = "relative",
    bins: Sequence[float] | None = None,
    repeats: int = 1,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> Selection:
    """Choose the number of components, the ridge and ω by how well entries are told that no fit has seen.

    A share of the observed entries, drawn at random, is hidden; every configuration is fitted to the
    others, and tells the hidden entries b by b̂:

        error = |b̂ − b| / |b|   or   |b̂ − b|.

    The configuration with the lowest median is the best, of several the first. All fits share the reads
    of the data, as many at once as the memory plan has room for; starts of "svd" come from one
    decomposition of what is not hidden. Of hidden entries a fit knows how many there are, which says whether rows are
    solved exactly and scales that start; the scale of a random start is the largest entry of all. Quantiles are exact
    to 0.1 %: errors are counted in steps of that width, below 1e-5 as 0 and above 1e5 as infinite, absolute ones in
    units of the largest observed entry.

    Parameters
    ----------
    model : ExpectileMF
        Its parameters are those of the fits where the grid has none; it is left as it is.
    X : array (n, m) of any kind, path or Dataset
        NaN is missing, as is what a sparse matrix does not store.
    grid : dict of lists
        Values to try of each parameter, such as ``{"n_components": range(2, 11), "ridge": [0.01, 0.1, 1], "omega": [0.1]}``;
        all combinations are.
    holdout_fraction : float
        Chance of each observed entry to be hidden, between 0 and 1.
    error : "relative" or "absolute"
        Entries 0 have no relative error: they are left out, and counted.
    bins : rising numbers, optional
        Edges of bins of the true value, whose medians are told beside; an entry is in the bin that begins with it.
    repeats : int
        How often entries are drawn anew; errors of all repeats are taken together.
    random_state : int, RandomState or None
        Seed of the entries.
    checkpoint : path, optional
        A store, a folder or the URL of one, that keeps what is done: after an interruption the same call goes on from there,
        and ends with the same bits; another one is refused. Every ``model.checkpoint_every`` passes it has what all fits
        that share them need to go on, as much as a checkpoint of each of them would hold, until these fits have finished.
        With less memory than before fewer fits share a read: those at hand begin anew then, and their result is the same.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` as the fits advance, such as ``dfact.Progress("select")``.

    Returns
    -------
    Selection
        ``table`` with the ``median`` and the quartiles ``q25`` and ``q75`` of the errors of each configuration, their
        number ``n``, with relative errors the number of ``zeros``, and the median of each bin; ``best_params``;
        and the ``model`` fitted with them on all the data.

    Raises
    ------
    ParameterError
        A share, bins, or a grid that cannot be; a checkpoint of something else.
    DataError, MemoryPlanError
        No entry is hidden that has an error; and as ``model.fit`` does.

    References
    ----------
    Zhu et al., "Expectile matrix factorization for skewed data analysis": relative errors and bins of the section on experiments.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> M = rng.random((200, 3)) @ rng.random((3, 80)) + 0.05 * rng.chisquare(3, (200, 80))
    >>> X = np.where(rng.random(M.shape) < 0.5, M, np.nan)
    >>> dfact.selection.select_by_held_out(dfact.ExpectileMF(ridge=0.1), X, {"n_components": [1, 3, 8]}, random_state=0).best_params
    {'n_components': 3}
    """
    _check(model, holdout_fraction, error, bins, repeats)
    configurations = expand(model, grid)
    progress = _Progress(callbacks)
    models = [_prepared(model, parameters) for parameters in configurations]
    fits = [Fit(progress.watched(one), repeat) for repeat in range(repeats) for one in models]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the fit with the best parameters tells again
        dataset = with_parameters(model)._observed(X, reset=True)
    unit = _largest(dataset) if error == "absolute" else 1.0
    measure = ErrorMeasure(error, () if bins is None else tuple(float(edge) for edge in bins), unit)
    what = {"data": None if checkpoint is None else dataset.fingerprint, "model": model_text(model)}
    what |= {
        "grid": [parameters_text(c) for c in configurations],
        "share": float(holdout_fraction),
        "error": error,
        "bins": describe_value(measure.edges),
    }
    kept = BatchResults(checkpoint, what | {"repeats": int(repeats), "seed": resolve_random_state(random_state)}, model.checkpoint_every)
    found = EntryFits(dataset, measure, holdout_fraction, kept, model._working_dtype(dataset), model.executor, model.memory_limit).counts(
        fits
    )
    totals = [_sum(found[i :: len(models)]) for i in range(len(models))]
    if not all(total.counts.any() for total in totals):
        observed = int(dataset.statistics.observed.sum())
        raise DataError(
            f"no entry is hidden that has a {error} error: a share of {holdout_fraction:g} of {observed} entries; expected a larger one"
        )
    table = _table(configurations, measure, totals)
    place = int(table["median"].to_numpy().argmin())
    fitted = with_parameters(model, **configurations[place]).fit(X, checkpoint=kept.last())
    fitted.selection_ = SelectionRecord.of_table(table, place, "median", "lowest")
    return Selection(table, configurations[place], fitted)


def _check(model: Any, holdout_fraction: Any, error: Any, bins: Any, repeats: Any) -> None:
    if not isinstance(model, ExpectileMF):
        raise ParameterError(f"model is a {type(model).__name__}, expected an ExpectileMF; for others see block_cross_validate")
    if not is_in_range(holdout_fraction, 0, 1) or holdout_fraction == 0:
        raise ParameterError(f"share is {holdout_fraction!r}, expected a number between 0 and 1, such as 0.1")
    if error not in ERRORS:
        raise ParameterError(f"error is {error!r}, expected one of {', '.join(map(repr, ERRORS))}")
    if not is_count(repeats):
        raise ParameterError(f"repeats is {repeats!r}, expected {COUNT}")
    check(model, {"checkpoint_every": (is_count(model.checkpoint_every), COUNT)})
    if bins is not None and (len(bins) < 2 or not all(low < high for low, high in pairwise(bins))):
        raise ParameterError(f"bins are {list(bins)!r}, expected at least two numbers, each larger than the one before")


def _prepared(model: ExpectileMF, parameters: Parameters) -> ExpectileMF:
    broadcast = [name for name in parameters if name in _SHARED]
    if broadcast:
        raise ParameterError(f"grid has {broadcast[0]!r}, which all fits share; set it in the model")
    configuration: ExpectileMF = with_parameters(model, **parameters)
    configuration._check_parameters()
    return configuration


def _largest(dataset: Dataset) -> float:
    """The size of the largest observed entry, as it was given."""
    seen = dataset.statistics.observed > 0
    limits = [(limit + dataset.offset)[seen] for limit in (dataset.statistics.minimum, dataset.statistics.maximum)]
    return float(np.abs(limits).max()) or 1.0


def _sum(counts: Sequence[ErrorHistogram]) -> ErrorHistogram:
    total = counts[0].accumulator()
    for more in counts[1:]:
        total.add(more)
    return total


def _table(configurations: list[Parameters], measure: ErrorMeasure, totals: list[ErrorHistogram]) -> pd.DataFrame:
    rows = []
    for total in totals:
        overall = total.counts.sum(axis=0)
        median, q25, q75 = measure.quantiles(overall, (0.5, 0.25, 0.75))
        row: dict[str, Any] = {"median": median, "q25": q25, "q75": q75, "n": int(overall.sum())}
        if measure.error == "relative":
            row["zeros"] = int(total.zeros)
        medians = (measure.quantiles(counts, (0.5,))[0] for counts in total.counts)
        rows.append(row | {f"{low:g} to {high:g}": median for (low, high), median in zip(pairwise(measure.edges), medians, strict=False)})
    return pd.DataFrame(rows, index=index_of(configurations))


class _Progress:
    """Tells of all fits as one, whose threads call."""

    def __init__(self, callbacks: Sequence[Callable[[Iteration], None]]) -> None:
        self._callbacks, self._began, self._lock = callbacks, time.perf_counter(), threading.Lock()
        self._limit = 0
        self._numbers: list[int] = []

    def watched(self, model: ExpectileMF) -> ExpectileMF:
        """The model, told of."""
        self._limit += int(model.max_iter)
        self._numbers.append(0)
        watched: ExpectileMF = with_parameters(model, callbacks=[partial(self._tell, len(self._numbers) - 1)])
        return watched

    def _tell(self, fit: int, iteration: Iteration) -> None:
        with self._lock:
            self._numbers[fit] = iteration.number
            seconds, text = time.perf_counter() - self._began, f"{len(self._numbers)} fits, iteration {iteration.number}"
            for callback in self._callbacks:
                callback(Iteration(sum(self._numbers), self._limit, float("nan"), float("nan"), seconds, text))
