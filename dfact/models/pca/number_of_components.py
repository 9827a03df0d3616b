"""Number of principal components by parallel analysis, or by the error of held-out entries."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.engine.requests import Solver, drive
from dfact.engine.threads import single_threaded
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.parallel_analysis import FactorCount, parallel_analysis, parallel_analysis_of_many
from dfact.models.fit_task import FitTask
from dfact.models.pca.estimator import PCA, PCAProblem
from dfact.models.provenance import SelectionRecord
from dfact.parameters import check_count, is_in_range
from dfact.progress import Iteration, Reporter
from dfact.selection.cross_validation.entry_fits import EntryFit, run_entry_fits
from dfact.selection.cross_validation.masks import EntryMask
from dfact.selection.result import RULES, Selection, choose, fold_errors
from dfact.selection.running.estimators import require_method, with_parameters
from dfact.selection.running.results_store import Results, ResultsStore, describe_model, resolve_random_state

CRITERIA = ("PA", "held_out")


def select_number_of_components(
    model: PCA,
    X: Any,
    n_components: Sequence[int] = range(1, 11),
    *,
    criterion: str = "PA",
    rule: str = "min",
    quantile: float | None = 0.95,
    holdout_fraction: float = 0.1,
    n_repeats: int = 1,
    random_state: Any = 0,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> Selection:
    """Choose the number of principal components, and return the PCA fitted with it.

    Parallel analysis ("PA", Horn 1965) counts the leading components whose variances exceed those of unrelated normal columns with
    the same variances and number of rows. With missing entries, the variances are those of the covariances over the rows that have both
    columns, and the random ones vary as over so many rows. With more than 512 columns these must have equal variances, by ``scale``,
    and missing entries count as their means.

    With "held_out", a fraction of the observed entries, drawn at random, is held out (Wold 1978). Models with all numbers of
    components are fitted to the others, on the same reads of the data, and predict the held-out ones from the observed entries of their
    rows; ``error`` is the mean square of the differences, in units of the columns' ``scale``.

    Parameters
    ----------
    model : PCA
        The fits use all of its parameters but ``n_components``. It is not changed.
    X : array (n, m) of any kind, path or Dataset
        NaN is missing.
    n_components : numbers
        Candidates.
    criterion : "PA" or "held_out"
        Parallel analysis, or the error of held-out entries.
    rule : "min", "1se" or "knee"
        Rule for the errors of held-out entries; see :func:`dfact.selection.result.choose`.
    quantile : float or None
        Quantile of the random variances with which those of the components are compared; None for their mean.
    holdout_fraction : float
        Probability with which an observed entry is held out, between 0 and 1.
    n_repeats : int
        Number of draws of held-out entries, at most 1000.
    random_state : int, RandomState or None
        Seed of the random variances, or of the held-out entries.
    checkpoint : path, optional
        Store (folder or URL) for the progress of the fits without held-out entries, from which the same call resumes.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each finished fit, such as ``dfact.Progress("select")``.

    Returns
    -------
    Selection
        ``table`` with, for each candidate, the ``eigenvalue`` of the last component (its variance), the ``random`` one and the
        ``excess``; or the ``error``, its standard error ``se`` over 20 groups of rows, and that of its difference from the lowest,
        ``se_difference``.

    Raises
    ------
    ParameterError, DataError, MemoryPlanError
        Invalid arguments; the same conditions as for ``model.fit``.

    Warns
    -----
    UserWarning
        The number of components by parallel analysis is none of the candidates; the nearest of them is chosen.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 12)) + rng.normal(size=(300, 12))
    >>> dfact.selection.select_number_of_components(dfact.PCA(), X, range(1, 6)).best_params
    {'n_components': 2}
    """
    require_method(model, "held_out_squares", "a PCA; for other models use block_cross_validate")
    candidates = sorted(set(n_components))
    _check(candidates, criterion, rule, quantile, holdout_fraction, n_repeats)
    if criterion == "PA":
        seed = resolve_random_state(random_state)
        table, best = _by_parallel_analysis(model, X, candidates, quantile, 0 if seed is None else seed)
        fitted = with_parameters(model, n_components=best).fit(X)
        score, rule, se = "excess", "above chance", None
    else:
        settings = {"n_components": candidates, "holdout_fraction": float(holdout_fraction), "n_repeats": int(n_repeats)}

        def open_store(task: Any) -> ResultsStore:
            return ResultsStore.of_fits(checkpoint, task.dataset, describe_model(model), random_state, **settings)

        table, store = component_errors(model, X, candidates, holdout_fraction, n_repeats, open_store, callbacks)
        best = choose(table, rule)["n_components"]
        store.remove_batches()
        fitted = with_parameters(model, n_components=best).fit(X, checkpoint=store.checkpoint("model"))
        score, se = "error", "se"
    fitted.selection_ = SelectionRecord.from_table(table, candidates.index(best), score, rule, se)
    return Selection(table, {"n_components": best}, fitted)


def _check(candidates: Sequence[int], criterion: str, rule: str, quantile: float | None, holdout_fraction: float, n_repeats: int) -> None:
    if not candidates or candidates[0] < 1:
        raise ParameterError(f"n_components is {list(candidates)}, expected numbers of components of at least 1")
    for name, value, accepted in (("criterion", criterion, CRITERIA), ("rule", rule, tuple(RULES))):
        if value not in accepted:
            raise ParameterError(f"{name} is {value!r}, expected one of {', '.join(map(repr, accepted))}")
    if quantile is not None and (not is_in_range(quantile, 0, 1) or quantile == 0):
        raise ParameterError(f"quantile is {quantile!r}, expected a number between 0 and 1, or None")
    if not is_in_range(holdout_fraction, 0, 1) or holdout_fraction == 0:
        raise ParameterError(f"holdout_fraction is {holdout_fraction!r}, expected a number between 0 and 1, such as 0.1")
    check_count("n_repeats", n_repeats, 1, 1000)


def _by_parallel_analysis(model: PCA, X: Any, candidates: Sequence[int], quantile: float | None, seed: int) -> tuple[pd.DataFrame, int]:
    """Return the table of the variances, and the candidate that is nearest to the number of those above chance."""
    counted = _count(model, X, candidates[-1], quantile, seed)
    best = min(candidates, key=lambda k: abs(k - counted.n_factors))
    if best != counted.n_factors:
        found = f"PA finds {counted.n_factors} components, expected one of the candidates {candidates[0]} to {candidates[-1]}"
        warn(f"{found}; {best} was chosen; try more candidates: n_components= (--components)")
    assert counted.reference is not None, "parallel analysis has one"
    ranks = np.array(candidates) - 1
    values, random = counted.values[ranks], counted.reference[ranks]
    columns = {"eigenvalue": values, "random": random, "excess": values - random}
    return pd.DataFrame(columns, index=pd.Index(candidates, name="n_components")), best


def _count(model: PCA, X: Any, most: int, quantile: float | None, seed: int) -> FactorCount:
    task = with_parameters(model, n_components=most, callbacks=()).prepare_variances(X)
    with task.open_session() as session:
        found = drive(task.model.find_variances(task), session)
    with single_threaded():
        if found.covariances is not None:
            deviations = np.sqrt(np.maximum(found.covariances.diagonal(), 0))
            settings: dict[str, Any] = {"quantile": quantile, "seed": seed, "shares": found.shares, "deviations": deviations}
            return parallel_analysis(found.covariances, found.rows, **settings)
        return parallel_analysis_of_many(found.leading, found.rows, task.dataset.shape[1], found.total, quantile=quantile, seed=seed)


def component_errors(
    model: PCA,
    X: Any,
    candidates: Sequence[int],
    holdout_fraction: float,
    n_repeats: int,
    open_store: Callable[[FitTask[Any]], ResultsStore],
    callbacks: Sequence[Callable[[Iteration], None]],
) -> tuple[pd.DataFrame, ResultsStore]:
    """Return the table of the mean squared errors of held-out standardized entries, and the store of the finished fits.

    Each number of components is fitted without the held-out entries of each repeat. All fits share their reads.
    """
    tasks = [with_parameters(model, n_components=k, callbacks=()).prepare_held_out(X).without_rows() for k in candidates]
    store = open_store(tasks[0])
    masks = [EntryMask(holdout_fraction, store.seed, repeat, held_out=False) for repeat in range(n_repeats)]
    fits = [EntryFit(task.model, task, mask) for mask in masks for task in tasks]
    reporter = Reporter(callbacks, len(fits))

    def finished(fit: EntryFit) -> None:
        reporter.reached(len(store.entries), f"{fit.model.n_components} components")

    found: NDArray[np.float64] = np.array(run_entry_fits(_solve, fits, store, finished=finished)).reshape(n_repeats, len(candidates), 2, -1)
    squares, counts = np.moveaxis(found, (2, 1), (0, 1))
    if not counts.sum():
        raise DataError(f"no entry is held out: holdout_fraction is {holdout_fraction:g}, expected a larger one")
    return pd.DataFrame(fold_errors(squares, counts), index=pd.Index(candidates, name="n_components")), store


def _solve(fit: EntryFit) -> Solver[Results]:
    sums = yield from fit.model.held_out_squares(replace(fit.task, problem=PCAProblem(expects=fit.model.missing == "em")), fit.held_out)
    return [np.stack([sums.squares, sums.counts])]
