"""Runs of membership models side by side: their components matched, and runs with one number of components grouped.

Components are matched by an optimal assignment: the sum of the squared differences of their memberships over the rows that
both runs have is the smallest. Runs with K components are matched to a run with the next smaller number; the components that
it does not have are new.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.lazy import hierarchy
from dfact.linalg.congruence import match

AGREEMENT = 0.97
"""Least agreement of all runs of a group, the default of pong (Behr et al. 2016)."""


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs with one number of components that agree."""

    memberships: NDArray[Any]
    """Memberships (n, K) of the run that agrees most with the others of the group."""
    colors: NDArray[np.intp]
    """Number of the colour of each component (K,): matched components have the same."""
    runs: tuple[int, ...]
    """Positions of the runs of the group, first that of ``memberships``."""
    n_runs: int
    """Number of runs with K components, in all groups."""


def match_memberships(A: NDArray[Any], B: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return pairs of columns of memberships A (n, k) and B (n, l) of the same rows, as many as the narrower one has columns.

    Rows that are NaN in A or B are left out.
    """
    A, B = _shared_rows(A, B)
    squares = np.square(A).sum(axis=0)[:, None] + np.square(B).sum(axis=0) - 2 * (A.T @ B)
    return match(-squares)


def run_agreement(A: NDArray[Any], B: NDArray[Any]) -> float:
    """Return 1 − ‖A − B′‖/√(2n) for memberships A and B (n, K), where B′ has the columns of B in the order of A.

    Equal runs have 1. Runs have 0 if every row is purely in one component in both, and in no matching ones.
    """
    rows, columns = match_memberships(A, B)
    A, B = _shared_rows(A, B)
    return 1.0 - float(np.linalg.norm(A[:, rows] - B[:, columns])) / math.sqrt(2 * max(1, len(A)))


def align_runs(runs: Sequence[NDArray[Any]], *, agreement: float = AGREEMENT) -> list[RunGroup]:
    """Group the runs, memberships (n, K) of the same rows, and number the colours of their components.

    The groups are sorted by the number of components, then by their number of runs, largest first. The components of the first
    one are numbered by size. Those of the largest group with the next number of components have the numbers of the components
    that they match, and new ones the next numbers; those of smaller groups have the numbers of the largest one.

    Raises
    ------
    ParameterError
        There is no run, or runs have different numbers of rows.
    """
    arrays = [np.asarray(run) for run in runs]
    if not arrays or any(array.ndim != 2 for array in arrays):
        raise ParameterError(f"runs have shapes {[array.shape for array in arrays]}, expected memberships (n, K) of one or more runs")
    rows = {len(array) for array in arrays}
    if len(rows) > 1:
        raise ParameterError(f"runs have {sorted(rows)} rows, expected memberships of the same rows in all runs")
    groups: list[RunGroup] = []
    before: RunGroup | None = None
    for k in sorted({array.shape[1] for array in arrays}):
        numbers = [i for i, array in enumerate(arrays) if array.shape[1] == k]
        largest: RunGroup | None = None
        for members in _group(arrays, numbers, agreement):
            memberships = arrays[members[0]]
            colors = _match_colors(memberships, largest or before)
            groups.append(RunGroup(memberships, colors, members, len(numbers)))
            largest = largest or groups[-1]
        before = largest
    return groups


def _group(arrays: Sequence[NDArray[Any]], numbers: list[int], least: float) -> list[tuple[int, ...]]:
    """Group the runs with these numbers so that all pairs of a group agree; the run that agrees most with the others is first."""
    n = len(numbers)
    if n == 1:
        return [tuple(numbers)]
    distances = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            distances[i, j] = distances[j, i] = 1 - run_agreement(arrays[numbers[i]], arrays[numbers[j]])
    labels = hierarchy.fcluster(hierarchy.linkage(distances[np.triu_indices(n, 1)], "complete"), 1 - least, "distance")
    groups = []
    for label in dict.fromkeys(labels):
        members = np.flatnonzero(labels == label)
        order = np.argsort(distances[np.ix_(members, members)].sum(axis=1), kind="stable")
        groups.append(tuple(numbers[i] for i in [members[order[0]], *np.delete(members, order[0])]))
    return sorted(groups, key=len, reverse=True)  # stable: of two groups of a size, that with the first run is first


def _match_colors(memberships: NDArray[Any], reference: RunGroup | None) -> NDArray[np.intp]:
    """Number the colours of the components by those of the reference; new ones get the next numbers, by size."""
    sizes: NDArray[np.float64] = np.nansum(memberships, axis=0, dtype=np.float64)
    colors = np.full(len(sizes), -1)
    if reference is not None:
        theirs, ours = match_memberships(reference.memberships, memberships)
        colors[ours] = reference.colors[theirs]
    new = np.flatnonzero(colors < 0)
    first = 0 if reference is None else int(reference.colors.max()) + 1
    colors[new[np.argsort(-sizes[new], kind="stable")]] = np.arange(first, first + len(new))
    return colors


def _shared_rows(A: NDArray[Any], B: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    shared = np.isfinite(A).all(axis=1) & np.isfinite(B).all(axis=1)
    return A[shared].astype(np.float64), B[shared].astype(np.float64)
