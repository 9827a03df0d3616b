"""Connected parts of columns that hang on a few rows.

The sums ``column_parts`` tell which columns are connected by rows with entries in both. If one row alone has entries in two booklets,
they tell of this row.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.federation.entries import blocks_of_entries
from dfact.kernels.parts import join_dense

_BATCH = 256  # slices whose common rows with all others are counted at once: tables of all pairs of many do not fit in memory


def connected_by_few(dataset: Dataset, least: int) -> list[str]:
    """Return the labels of columns, or of slices of a further mode, that fewer common rows than ``least`` connect with their part.

    Without any, the parts are the same if only pairs with ``least`` common rows connect, so no fewer rows decide them. The rows are read
    twice, or more often if many columns are connected in chains.
    """
    labels = (dataset.column_labels, *dataset.mode_labels)
    found: list[str] = []
    for mode, names in enumerate(labels, start=1):
        found += [str(number if names is None else names[number]) for number in _left_apart(dataset, mode, least)]
    return found


def separates(labels: NDArray[np.int64], dataset: Dataset) -> bool:
    """Return whether part labels are in several parts where rows of the dataset connect: those of a fold, without held-out entries."""
    start = 0
    for mode, size in enumerate(dataset.shape[1:], start=1):
        parts = np.arange(size)
        for rows in _unfolded(dataset, mode):
            join_dense(rows.reshape(-1, size), parts)
        own = labels[start : start + size]
        if (own[parts] != own).any():
            return True
        start += size
    return False


def _left_apart(dataset: Dataset, mode: int, least: int) -> NDArray[np.int64]:
    """Return the slices of a mode that are in another part if only pairs with entries at common positions of enough rows connect."""
    size = dataset.shape[mode]
    parts, rows_of = np.arange(size), np.zeros(size, np.int64)
    for rows in _unfolded(dataset, mode):
        join_dense(rows.reshape(-1, size), parts)
        rows_of += (~np.isnan(rows)).any(axis=1).sum(axis=0)
    order = np.lexsort((-rows_of, parts))
    reached, tried = np.zeros(size, bool), np.zeros(size, bool)
    reached[order[np.diff(parts[order], prepend=-1) > 0]] = True
    while True:
        is_incomplete = np.zeros(size, bool)
        is_incomplete[parts[~reached]] = True
        ahead = np.flatnonzero(reached & ~tried & is_incomplete[parts])
        if not ahead.size:
            return np.flatnonzero(~reached)
        batch = ahead[np.argsort(-rows_of[ahead], kind="stable")[:_BATCH]]
        tried[batch] = True
        reached |= (_common_rows(dataset, mode, batch) >= least).any(axis=0)


def _common_rows(dataset: Dataset, mode: int, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the numbers of rows in which the chosen slices and all (c, size) have entries at the same position."""
    counts = np.zeros((len(chosen), dataset.shape[mode]))
    for rows in _unfolded(dataset, mode):
        seen = (~np.isnan(rows)).astype(np.float32)
        if seen.shape[1] == 1:
            counts += seen[:, 0, chosen].T @ seen[:, 0]
            continue
        for row in seen:
            counts += row[:, chosen].T @ row > 0
    return counts


def _unfolded(dataset: Dataset, mode: int) -> Iterator[NDArray[np.float64]]:
    """Yield blocks of rows (rows, positions, size), where positions are those of the other modes."""
    shape = dataset.shape[1:]
    for _, rows in blocks_of_entries(dataset):
        moved = np.moveaxis(rows.reshape(-1, *shape), mode, -1)
        yield np.ascontiguousarray(moved.reshape(len(rows), -1, shape[mode - 1]))
