"""Errors of held-out entries for numbers of principal components."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.engine.requests import Solver
from dfact.errors import DataError
from dfact.models.fit_task import FitTask
from dfact.models.pca.estimator import PCA, PCAProblem
from dfact.progress import Iteration, Reporter
from dfact.selection.cross_validation.entry_fits import EntryFit, run_entry_fits
from dfact.selection.cross_validation.masks import EntryMask
from dfact.selection.result import fold_errors
from dfact.selection.running.estimators import with_parameters
from dfact.selection.running.results_store import Results, ResultsStore


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
