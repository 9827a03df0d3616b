"""Number of components of an admixture or an NMF by cross-validation with folds of single entries."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from dfact.data.validation import locate_noninteger
from dfact.engine.requests import Solver
from dfact.errors import DataError, ParameterError
from dfact.models.binomial.codes import Codes
from dfact.models.estimator import Factorization
from dfact.models.fit_task import FitTask
from dfact.parameters import check_count
from dfact.progress import Iteration, Reporter
from dfact.selection.cross_validation.entry_fits import EntryFit, fit_chosen, run_entry_fits
from dfact.selection.cross_validation.masks import CodeMask, ValueMask
from dfact.selection.grid import Parameters, make_index
from dfact.selection.result import RULES, Selection, fold_errors
from dfact.selection.running.estimators import require_method, with_parameters
from dfact.selection.running.results_store import Results, ResultsStore, describe_model

_MAX_SEED = 1 << 32


def cross_validate_entries(
    model: Factorization,
    X: Any,
    n_components: Iterable[int] = range(2, 11),
    *,
    n_folds: int = 5,
    rule: str = "min",
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> Selection:
    """Choose the number of components by the cross-validation error, and return the model fitted with it.

    A hash of row, column and seed assigns every observed entry g to a fold: a speckled hold-out (Wold 1978). Each number of
    components is fitted without the entries of each fold, from its own start, and predicts them. The error of an NMF is the mean
    of its loss over these entries. An admixture of populations predicts them by μ = M QP:

        error = mean over the observed entries of g log(g/μ) + (M − g) log((M − g)/(M − μ)),   0 log 0 = 0.

    As many fits as the memory plan allows share each read of the data, of all folds and numbers of populations.

    Parameters
    ----------
    model : Admixture or NMF
        The fits use all of its parameters but ``n_components``. It is not changed, and must not be supervised.
    X : array (n, m) of any kind, path or Dataset
        Genotypes, or data of an NMF, whose entries that a sparse matrix does not store are held out as well; NaN is missing.
    n_components : numbers
        Candidates.
    n_folds : int
        Number of folds, from 2 to 1000.
    rule : "min", "1se" or "knee"
        See :func:`dfact.selection.result.choose`.
    random_state : int, RandomState or None
        Seed of the folds.
    checkpoint : path, optional
        Store (folder or URL) for the progress. After an interruption the same call resumes from it with bit-identical
        results; the checkpoint of a different call is refused. After every ``model.checkpoint_every`` passes the state of the fits
        that currently share their reads is saved.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each finished fit, such as ``dfact.Progress("select")``.

    Returns
    -------
    Selection
        ``table`` with the ``deviance`` (the error above) of each ``n_components``, its standard error over the folds ``se``, the
        standard error ``se_difference`` of its difference from the lowest (see :func:`dfact.selection.result.fold_errors`), and
        the ``passes`` of its fits; ``best_params``; and the ``model`` fitted with them to the complete data.

    Raises
    ------
    ParameterError
        Invalid arguments; a checkpoint of another call.
    DataError, MemoryPlanError
        The same conditions as for ``model.fit`` with the largest candidate.

    References
    ----------
    Alexander & Lange (2011); Wold (1978).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> genotypes = rng.binomial(2, np.eye(3)[rng.integers(0, 3, 90)] @ rng.random((3, 300)))
    >>> dfact.selection.cross_validate_entries(dfact.Admixture(), genotypes, range(2, 5), random_state=0).best_params
    {'n_components': 3}
    """
    candidates = list(dict.fromkeys(n_components))
    if not candidates:
        raise ParameterError("n_components has no candidates, expected at least one number of components")
    configurations = [{"n_components": k} for k in candidates]
    settings = {"n_components": candidates}
    return cross_validate_configurations(model, X, configurations, settings, n_folds, rule, random_state, checkpoint, callbacks)


def cross_validate_configurations(
    model: Any,
    X: Any,
    configurations: Sequence[Parameters],
    settings: Mapping[str, Any],
    n_folds: int,
    rule: str,
    random_state: Any,
    checkpoint: str | PathLike[str] | None,
    callbacks: Sequence[Callable[[Iteration], None]],
) -> Selection:
    """Choose one of the configurations as :func:`cross_validate_entries` does; the ``settings`` identify them in a checkpoint."""
    if rule not in RULES:
        raise ParameterError(f"rule is {rule!r}, expected one of {', '.join(map(repr, RULES))}")
    table, store = entry_deviances(model, X, configurations, settings, n_folds, random_state, checkpoint, callbacks)
    return fit_chosen(model, X, table, configurations, "deviance", "se", store.checkpoint("model"), rule)


def entry_deviances(
    model: Any,
    X: Any,
    configurations: Sequence[Parameters],
    settings: Mapping[str, Any],
    n_folds: int,
    random_state: Any,
    checkpoint: str | PathLike[str] | None,
    callbacks: Sequence[Callable[[Iteration], None]],
) -> tuple[pd.DataFrame, ResultsStore]:
    """Return the table of :func:`cross_validate_entries`, and the store of its results, which may keep those of further fits."""
    _check(model, n_folds)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit with the best number warns again
        tasks = [with_parameters(model, **each, callbacks=()).prepare(X).for_views().without_rows() for each in configurations]
    dataset, codes = tasks[0].dataset, _codes(tasks[0])
    if codes is not None and dataset.dtype.kind == "f" and (found := locate_noninteger(dataset)) != "no entry":
        raise DataError(f"{found}, expected whole numbers from 0 to {codes.trials}")
    store = ResultsStore.of_fits(checkpoint, dataset, describe_model(model), random_state, **settings, n_folds=int(n_folds))
    # Fits of one fold are neighbours, so that they share its view of a block.
    which = [_fold_fit(task, fold, int(n_folds), store.seed % _MAX_SEED) for fold in range(n_folds) for task in tasks]
    reporter = Reporter(callbacks, len(which))

    def finished(fit: EntryFit) -> None:
        reporter.reached(len(store.entries), f"fold {fit.mask.fold + 1}, n_components={fit.model.n_components}")

    results = run_entry_fits(_solve, which, store, finished=finished)
    table = _tabulate(configurations, np.array([np.concatenate(arrays) for arrays in results]).reshape(n_folds, len(tasks), 3))
    store.remove_batches()
    return table, store


def _fold_fit(task: FitTask[Any], fold: int, n_folds: int, seed: int) -> EntryFit:
    # In addition to what any fit holds in memory: the codes of a block, masked; or its values, and two bytes for each.
    codes, size = _codes(task), task.dtype.itemsize + 2
    mask: CodeMask | ValueMask = ValueMask(fold, n_folds, seed, held_out=False)
    if codes is not None:
        mask, size = CodeMask(codes, fold, n_folds, seed, held_out=False), 1
    footprint = replace(task.footprint, work_per_row=task.footprint.work_per_row + size * task.dataset.shape[1])
    return EntryFit(task.model, replace(task, footprint=footprint), mask)


def _codes(task: FitTask[Any]) -> Codes | None:
    """Return how a model of counts reads its data as bytes; None for other models."""
    codes: Codes | None = getattr(task.problem, "codes", None)
    return codes


def _solve(fit: EntryFit) -> Solver[Results]:
    return [(yield from fit.model.held_out_deviance(fit.task, fit.held_out))]


def _check(model: Any, n_folds: Any) -> None:
    require_method(model, "held_out_deviance", "an Admixture or an NMF; for other models use block_cross_validate")
    if getattr(model, "supervised", False):
        raise ParameterError("model is supervised, expected one that is not: labels fix the populations")
    check_count("n_folds", n_folds, 2, 1000)


def _tabulate(configurations: Sequence[Parameters], figures: Any) -> pd.DataFrame:
    """Return the table of the candidates, given deviance, number of entries and passes of each fold and candidate."""
    totals, counts, passes = np.moveaxis(figures, 2, 0)
    if not counts.sum(axis=0).all():
        raise DataError("no fold holds out an entry, expected more data")
    errors = fold_errors(totals.T[:, None], counts.T[:, None])
    columns = {"deviance": errors.pop("error"), **errors, "passes": passes.sum(axis=0).astype(int)}
    return pd.DataFrame(columns, index=make_index(list(configurations)))
