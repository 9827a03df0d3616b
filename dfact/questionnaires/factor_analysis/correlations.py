"""Correlations of the items of a factor analysis, Pearson's or polychoric, with the checks that both need."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, run
from dfact.errors import DataError, warn
from dfact.linalg.correlation import Moments, MomentsPass, is_indefinite, smoothed
from dfact.models.fit_task import FitTask
from dfact.questionnaires.polychoric import Levels, PairTables, level_moments, tabulate


@dataclass(frozen=True)
class Correlations:
    """Correlations and moments of the items."""

    R: NDArray[np.float64]
    """Correlations of the items (m, m)."""
    n: int
    """Number of rows from which they were computed."""
    n_effective: float
    """Kish's effective number of these rows, which tests and intervals take for n; without weights their number."""
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    """Mean and standard deviation of each item's answers (m)."""
    counts: NDArray[np.float64]
    """Number of rows that answered both of two items (m, m)."""
    smoothed: bool = False
    """Whether R had negative eigenvalues and was smoothed."""
    thresholds: list[list[float]] | None = None
    """Thresholds of the items, of polychoric correlations."""
    moments: Moments | None = None
    """Sums from which Pearson's correlations follow."""
    shift: NDArray[np.float64] | None = None
    """Value of each item (m) from which these sums are counted."""
    tables: PairTables | None = None
    """Tables of all pairs of items, of polychoric correlations, if one pass has counted them."""


@dataclass(frozen=True)
class Tables:
    """Plan of the tables of polychoric correlations."""

    levels: Levels
    tiles: int
    """Number of passes, each of which counts a part of the pairs."""
    earlier: PairTables | None = None
    """Tables of the rows that the model has seen."""


def correlate(task: FitTask[Tables | None], *, complete_only: bool) -> Solver[Correlations]:
    """Compute the correlations of the answers by passes. Without ``problem`` they are Pearson's, else polychoric ones."""
    n_rows, labels = _n_rows(task), task.dataset.column_labels
    found = yield from _pearson(task, complete_only) if task.problem is None else _polychoric(task, task.problem, complete_only)
    return checked(found, n_rows, labels, pearson=task.problem is None)


def _n_rows(task: FitTask[Tables | None]) -> int:
    """Return the number of rows, of those of earlier tables too."""
    earlier = None if task.problem is None else task.problem.earlier
    return task.dataset.shape[0] + (0 if earlier is None else int(earlier.rows))


def checked(found: Correlations, n_rows: int, labels: NDArray[Any], *, pearson: bool) -> Correlations:
    """Refuse correlations that are not defined; smooth those with negative eigenvalues, with a warning."""
    if found.n < 2:
        raise DataError(f"{found.n} of {n_rows} rows have all answers, expected at least 2; use missing='pairwise' (--missing pairwise)")
    undefined = np.argwhere(np.isnan(found.R))
    if undefined.size:
        i, j = (str(labels[column]) for column in undefined[0])
        rows = f"{found.counts[tuple(undefined[0])]:g} rows"
        if i == j:
            raise DataError(f"item {i!r} does not vary in the {rows} with answers; leave it out, or add rows")
        raise DataError(f"items {i!r} and {j!r} do not vary together in the {rows} with answers to both; leave out one, or add rows")
    if not is_indefinite(found.R):
        return found
    remedy = "missing='listwise' needs no smoothing" if pearson else "leave out items, or add rows"
    message = f"the {'pairwise' if pearson else 'polychoric'} correlations have negative eigenvalues and were smoothed"
    warn(f"{message}; {remedy}")
    return replace(found, R=smoothed(found.R), smoothed=True)


def _pearson(task: FitTask[Tables | None], complete_only: bool) -> Solver[Correlations]:
    shift = (task.dataset.statistics.minimum + task.dataset.statistics.maximum) / 2
    moments = yield from run(MomentsPass(task.dtype, complete_only, task.covariates is not None), shift)
    return pearson(moments, shift)


def pearson(moments: Moments, shift: NDArray[np.float64]) -> Correlations:
    """Return the correlations of items by their moments about ``shift`` (m)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        R, mean, scale = moments.correlations(), moments.means() + shift, moments.deviations()
    return Correlations(R, int(moments.rows), moments.effective_rows, mean, scale, moments.counts, moments=moments, shift=shift)


def _polychoric(task: FitTask[Tables | None], tables: Tables, complete_only: bool) -> Solver[Correlations]:
    dataset, levels = task.dataset, tables.levels
    found = yield from tabulate(
        levels,
        tables.tiles,
        _n_rows(task),
        task.dtype,
        complete_only=complete_only,
        weighted=task.covariates is not None,
        threads=task.plan().workers.threads,
        earlier=tables.earlier,
    )
    if found.fractions.any():
        j = int(np.flatnonzero(found.fractions)[0])
        message = f"item {str(dataset.column_labels[j])!r} has {found.fractions[j]} answers that are not whole numbers"
        raise DataError(f"{message}, expected ordered categories; use correlation='pearson' (--correlation pearson)")
    mean, scale = level_moments(levels, found.totals) if found.rows > 1 else (levels.low, levels.low)
    limit = found.correlations.at_limit
    if limit.size:
        pairs = ", ".join(" and ".join(repr(str(dataset.column_labels[j])) for j in pair) for pair in limit[:3])
        message = f"the polychoric correlation is at its limit for {len(limit)} pairs of items ({pairs}), expected less than 0.9999"
        warn(f"{message}; leave out items that repeat others")
    R, counts = found.correlations.R, found.correlations.counts
    kept = found.tables if tables.tiles == 1 else None
    return Correlations(R, found.rows, found.effective_rows, mean, scale, counts, thresholds=found.categories.by_item, tables=kept)
