"""Selection of the parameters of an expectile matrix factorization by the loss of held-out entries."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.engine.requests import Solver
from dfact.errors import DataError, ParameterError
from dfact.models.expectile.estimator import ExpectileMF, largest_entry
from dfact.models.expectile.held_out_errors import ERRORS, N_ROW_GROUPS, ErrorMeasure, ExpectileErrors
from dfact.models.expectile.passes import OriginalUnits
from dfact.models.expectile.sampled_entries import record_crossings
from dfact.models.fit_task import RUNTIME_PARAMETERS, FitTask
from dfact.parameters import COUNT, check_count, describe_value, is_in_range
from dfact.progress import Iteration, Reporter
from dfact.selection.cross_validation.entry_fits import EntryFit, fit_chosen, run_entry_fits
from dfact.selection.cross_validation.masks import EntryMask
from dfact.selection.grid import Parameters, expand, make_index
from dfact.selection.result import Selection, fold_errors
from dfact.selection.running.estimators import is_tensor_model, require_method, with_parameters
from dfact.selection.running.results_store import Results, ResultsStore, describe_model, describe_parameters

_COMMON = (*RUNTIME_PARAMETERS, "dtype")  # parameters that are the same for all fits
_STARTS, _ERRORS = range(2)  # the stages of the fits


def select_by_held_out(
    model: ExpectileMF,
    X: Any,
    grid: Mapping[str, Any],
    *,
    holdout_fraction: float = 0.1,
    error: str = "expectile",
    bins: Sequence[float] | None = None,
    n_repeats: int = 1,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> Selection:
    """Choose the number of components and the ridge by the expectile loss of held-out entries.

    A fraction of the observed entries, drawn at random, is held out: a speckled hold-out (Wold 1978). Every configuration is fitted to the
    others and predicts the τ-expectile of the held-out entries b by b̂. The configuration with the lowest mean loss

        ρ_τ(b − b̂) = (b − b̂)²·|τ − 1(b < b̂)|

    is chosen, in a tie the first. In expectation this loss is lowest at the τ-expectile and nowhere else, so it is a consistent
    score of the target. τ itself says what is predicted and is not chosen: losses of different τ cannot be compared, and
    the best prediction by |b̂ − b| / |b| is the same for all of them. :func:`select_each_by_held_out` chooses for several τ.

    As many fits as the memory plan
    allows share each read of the data. In each repeat, the fits with ``init="svd"`` start from one decomposition
    of the remaining entries. Two statistics of the data include the held-out entries: the observed share, which
    decides whether rows are solved exactly and scales the start of "svd", and the largest entry, which scales a
    random start. Quantiles have a relative accuracy of 0.1%. Errors below 1e-5 count as 0 and those above 1e5 as
    infinite, where the unit of absolute errors is the largest observed magnitude.

    Parameters
    ----------
    model : ExpectileMF
        The model whose parameters the fits use unless the grid varies them. It is not changed.
    X : array (n, m) of any kind, path or Dataset
        NaN is missing, and so are the implicit entries of a sparse matrix.
    grid : dict of lists
        Values to try for each parameter, in all combinations, such as
        ``{"n_components": range(2, 11), "ridge": [0.01, 0.1, 1]}``. A single τ may be among them.
    holdout_fraction : float
        Probability with which each observed entry is held out, between 0 and 1.
    error : "expectile", "relative" or "absolute"
        The score that chooses: the mean expectile loss, or the median of |b̂ − b| / |b| or of |b̂ − b|, which are not consistent
        scores of an expectile. The table has the quantiles of absolute errors if they choose, otherwise of relative errors. Entries
        equal to 0 have no relative error: they are excluded from the quantiles and counted.
    bins : increasing numbers, optional
        Edges of bins of the true value, with a median for each bin. A bin includes its lower edge.
    n_repeats : int
        Number of draws of held-out entries, at most 1000. The errors of all repeats are pooled.
    random_state : int, RandomState or None
        Seed of the draws.
    checkpoint : path, optional
        Store (folder or URL) for the progress. After an interruption the same call resumes from it with bit-identical
        results; the checkpoint of a different call is refused. After every ``model.checkpoint_every`` passes the state of the fits
        that currently share their reads is saved, which takes as much space as a checkpoint of each of them and is deleted once
        they finish. If less memory is available on resumption, fewer fits share a read, and those in progress start over, with
        the same result.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each iteration of a fit, such as ``dfact.Progress("select")``.

    Returns
    -------
    Selection
        ``table`` with, for each configuration, the mean ``loss``; its standard error ``se``, and that of its difference from the
        lowest, ``se_difference``, over 20 groups of rows in place of folds (see
        :func:`dfact.selection.result.fold_errors`); the coverage of the held-out entries; the ``median`` and the quartiles
        ``q25`` and ``q75`` of the errors, the number ``n`` of errors, the number of ``zeros`` (relative errors only), and the median
        of each bin. ``best_params``; and the ``model`` fitted with them to the complete data.

        The coverage has three columns. ``below`` is the share of the entries below b̂. ``below_expected`` is the share that the
        definition of the expectile gives: with the mean distances A of the entries below and B of those above,
        τB / (τB + (1 − τ)A). ``deviation_below`` is the share of the entries' total distance Σ|b − b̂| that the
        entries below contribute; it is τ if b̂ is the τ-expectile. A higher value says that the predictions are too high.

    Raises
    ------
    ParameterError
        Invalid arguments; a checkpoint of another call.
    DataError, MemoryPlanError
        No held-out entry, or none for which the error that chooses is defined; and the same conditions as for ``model.fit``.

    References
    ----------
    Zhu et al. (2017): relative errors and bins of the section on experiments; Gneiting (2011): the consistent score of an
    expectile; Newey & Powell (1987): its definition.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> M = rng.random((200, 3)) @ rng.random((3, 80)) + 0.05 * rng.chisquare(3, (200, 80))
    >>> X = np.where(rng.random(M.shape) < 0.5, M, np.nan)
    >>> dfact.selection.select_by_held_out(dfact.ExpectileMF(ridge=0.1), X, {"n_components": [1, 3, 8]}, random_state=0).best_params
    {'n_components': 3}
    """
    taus = list(dict.fromkeys(grid.get("tau", ())))
    if len(taus) > 1:
        found = f"grid has {len(taus)} values of tau, expected one: tau is the target, and losses of different targets do not compare"
        raise ParameterError(f"{found}; call select_each_by_held_out, which chooses for each of them")
    settings = _Settings(holdout_fraction, error, () if bins is None else tuple(bins), n_repeats, random_state, checkpoint, callbacks)
    return _select(model, X, [grid], settings)[0]


def select_each_by_held_out(
    model: ExpectileMF,
    X: Any,
    grid: Mapping[str, Any],
    taus: Sequence[float],
    *,
    holdout_fraction: float = 0.1,
    error: str = "expectile",
    bins: Sequence[float] | None = None,
    n_repeats: int = 1,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> list[Selection]:
    """Choose the number of components and the ridge for each τ of ``taus``, and return the selections in their order.

    All candidates share each read of the data. The arguments are those of :func:`select_by_held_out`; ``model.tau`` is
    not used. Fits of different τ are independent, so that a lower expectile may come out above a higher one:
    the models have the shares of entries where it does in ``taus_`` and ``crossed_``, see :class:`dfact.ExpectileMF`.

    Returns
    -------
    list of Selection
        One for each τ, in their order.

    Raises
    ------
    ParameterError, DataError, MemoryPlanError
        The same conditions as for :func:`select_by_held_out`; an τ that is listed twice, or in the grid.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((100, 2)) @ rng.random((2, 60)) * rng.exponential(1, (100, 60))
    >>> grid = {"n_components": [1, 2], "ridge": [0.1, 1]}
    >>> low, high = dfact.selection.select_each_by_held_out(dfact.ExpectileMF(), X, grid, [0.1, 0.9], random_state=0)
    >>> low.model.tau, high.model.tau, low.model.crossed_.shape
    (0.1, 0.9, (1,))
    """
    if "tau" in grid:
        raise ParameterError("grid has 'tau', expected other parameters; list the values of tau in taus")
    if np.ndim(taus) != 1 or not len(taus) or len(set(taus)) < len(taus):
        raise ParameterError(f"taus is {taus!r}, expected a list of at least one number between 0 and 1, each once")
    settings = _Settings(holdout_fraction, error, () if bins is None else tuple(bins), n_repeats, random_state, checkpoint, callbacks)
    selections = _select(model, X, [{**grid, "tau": [tau]} for tau in taus], settings)
    record_crossings([selection.model for selection in selections])
    return selections


@dataclass(frozen=True)
class _Settings:
    """Arguments of a selection."""

    holdout_fraction: float
    error: str
    bins: tuple[float, ...]
    repeats: int
    random_state: Any
    checkpoint: str | PathLike[str] | None
    callbacks: Sequence[Callable[[Iteration], None]]


def _select(model: ExpectileMF, X: Any, grids: Sequence[Mapping[str, Any]], settings: _Settings) -> list[Selection]:
    """Fit the configurations of all grids to the same masks; return the selection from each grid, whose configurations have one τ."""
    error, repeats, holdout_fraction = settings.error, settings.repeats, settings.holdout_fraction
    _check(model, settings)
    each = [expand(model, grid) for grid in grids]
    configurations = [configuration for of_grid in each for configuration in of_grid]
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit with the best parameters warns again
        dataset = model.prepare(X).dataset
        tasks = [_configure(model, parameters).prepare(dataset).without_rows() for parameters in configurations]
    unit = largest_entry(dataset) if error == "absolute" else 1.0
    measure = ErrorMeasure("absolute" if error == "absolute" else "relative", tuple(float(edge) for edge in settings.bins), unit)
    identity = {"grid": [describe_parameters(c) for c in configurations], "holdout_fraction": float(holdout_fraction)}
    identity |= {"error": error, "row_groups": N_ROW_GROUPS, "bins": describe_value(measure.edges), "repeats": int(repeats)}
    store = ResultsStore.of_fits(settings.checkpoint, dataset, describe_model(model), settings.random_state, **identity)
    progress = _Progress(settings.callbacks, repeats * sum(int(task.model.get_params()["max_iter"]) for task in tasks))
    masks = [EntryMask(holdout_fraction, store.seed, repeat, held_out=False) for repeat in range(repeats)]
    fits = [_entry_fit(progress.attach(task.model), task, mask, measure) for mask in masks for task in tasks]
    errors = held_out_errors(fits, measure, store)
    found = [errors[i :: len(tasks)] for i in range(len(tasks))]
    if not all(sum(part.numbers.sum() if error == "expectile" else part.counts.sum() for part in parts) for parts in found):
        observed = int(dataset.statistics.observed.sum())
        raise DataError(
            f"no held-out entry has a {error} error: holdout_fraction is {holdout_fraction:g} of {observed} entries, expected a larger one"
        )
    store.remove_batches()
    selections, first, score = [], 0, "loss" if error == "expectile" else "median"
    for i, of_grid in enumerate(each):
        part = slice(first, first := first + len(of_grid))
        table = _tabulate(of_grid, measure, found[part], [fit.model.tau for fit in fits[part]])
        path = store.checkpoint("model" if len(each) == 1 else f"model-{i}")
        selections.append(fit_chosen(model, X, table, of_grid, score, "se" if score == "loss" else None, path))
    return selections


def _check(model: Any, settings: _Settings) -> None:
    holdout_fraction, error, bins = settings.holdout_fraction, settings.error, settings.bins
    remedies = ("for other models use block_cross_validate", "for tensors use select_penalty or replicability")
    require_method(model, "held_out_errors", f"an ExpectileMF; {remedies[is_tensor_model(model)]}")
    if not is_in_range(holdout_fraction, 0, 1) or holdout_fraction == 0:
        raise ParameterError(f"holdout_fraction is {holdout_fraction!r}, expected a number between 0 and 1, such as 0.1")
    if error not in ("expectile", *ERRORS):
        raise ParameterError(f"error is {error!r}, expected one of {', '.join(map(repr, ('expectile', *ERRORS)))}")
    check_count("n_repeats", settings.repeats, 1, 1000)
    COUNT.check("checkpoint_every", model.checkpoint_every)
    if bins and (len(bins) < 2 or not all(low < high for low, high in pairwise(bins))):
        raise ParameterError(f"bins are {list(bins)!r}, expected at least two numbers, each larger than the one before")


def _configure(model: ExpectileMF, parameters: Parameters) -> ExpectileMF:
    common = [name for name in parameters if name in _COMMON]
    if common:
        raise ParameterError(f"grid has {common[0]!r}, expected parameters that may differ between fits; set it in the model")
    configuration: ExpectileMF = with_parameters(model, **parameters)
    return configuration


def _sum(errors: Sequence[ExpectileErrors]) -> ExpectileErrors:
    total = errors[0].accumulator()
    for part in errors[1:]:
        total.add(part)
    return total


def _tabulate(
    configurations: list[Parameters], measure: ErrorMeasure, errors: Sequence[Sequence[ExpectileErrors]], taus: Sequence[float]
) -> pd.DataFrame:
    """Return the table of configurations, given the errors of each repeat of each of them."""
    losses = fold_errors(*(np.array([[getattr(part, name) for part in parts] for parts in errors]) for name in ("losses", "numbers")))
    rows = []
    for i, (parts, tau) in enumerate(zip(errors, taus, strict=True)):
        total = _sum(parts)
        overall = total.counts.sum(axis=0)
        median, q25, q75 = measure.quantiles(overall, (0.5, 0.25, 0.75))
        row: dict[str, Any] = {("loss" if name == "error" else name): values[i] for name, values in losses.items()}
        row |= total.coverage(tau)
        row |= {"median": median, "q25": q25, "q75": q75, "n": int(overall.sum())}
        if measure.error == "relative":
            row["zeros"] = int(total.zeros)
        medians = (measure.quantiles(counts, (0.5,))[0] for counts in total.counts)
        rows.append(row | {f"{low:g} to {high:g}": median for (low, high), median in zip(pairwise(measure.edges), medians, strict=False)})
    return pd.DataFrame(rows, index=make_index(configurations))


class _Progress:
    """Combined progress of all fits, reported to callbacks."""

    def __init__(self, callbacks: Sequence[Callable[[Iteration], None]], limit: int) -> None:
        self._reporter = Reporter(callbacks, limit)
        self._numbers: list[int] = []

    def attach(self, model: Any) -> ExpectileMF:
        """Return a copy of the model that reports its iterations here."""
        self._numbers.append(0)
        attached: ExpectileMF = with_parameters(model, callbacks=[partial(self._report, len(self._numbers) - 1)])
        return attached

    def _report(self, fit: int, iteration: Iteration) -> None:
        self._numbers[fit] = iteration.number
        self._reporter.reached(sum(self._numbers), f"{len(self._numbers)} fits, iteration {iteration.number}")


def _entry_fit(model: ExpectileMF, task: FitTask[OriginalUnits], mask: EntryMask, measure: ErrorMeasure) -> EntryFit:
    footprint = replace(task.footprint, broadcast=task.footprint.broadcast + measure.nbytes)
    return EntryFit(model, replace(task, footprint=footprint), mask)


def held_out_errors(fits: Sequence[EntryFit], measure: ErrorMeasure, store: ResultsStore) -> list[ExpectileErrors]:
    """Return the errors of each fit on the entries that its mask holds out; the store holds those that are finished.

    Fits from a singular value decomposition start from one for each mask, the largest, of which others take the first columns.
    """
    decomposed = [fit for fit in fits if isinstance(fit.model.init, str) and fit.model.init == "svd"]
    starts: dict[Any, NDArray[Any]] = {}
    if decomposed:
        largest = max(decomposed, key=lambda fit: fit.model.n_components)
        begun = [replace(largest, mask=mask) for mask in dict.fromkeys(fit.mask for fit in decomposed)]
        starts = {fit.mask: start for fit, (start,) in zip(begun, run_entry_fits(_solve_start, begun, store, _STARTS), strict=True)}

    def solve(fit: EntryFit) -> Solver[Results]:
        model = fit.model
        if fit in decomposed:
            model = with_parameters(model, init=starts[fit.mask][:, : model.n_components].T)
        errors = yield from model.held_out_errors(fit.task, fit.held_out, measure)
        return [np.asarray(getattr(errors, part.name), np.float64) for part in fields(errors)]

    return [ExpectileErrors(*arrays) for arrays in run_entry_fits(solve, fits, store, _ERRORS)]


def _solve_start(fit: EntryFit) -> Solver[Results]:
    _, Y, _ = yield from fit.model.initial_factors(fit.task)
    return [Y]
