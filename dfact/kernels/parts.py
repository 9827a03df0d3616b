"""Connected parts of the columns: columns are connected if a row has an entry in both."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, subroutine


@subroutine
def _first(parent: NDArray[np.int64], j: int) -> int:
    """Return the first column of the part of column j, to which the path there is shortened."""
    while parent[j] != j:
        parent[j] = parent[parent[j]]
        j = parent[j]
    return j


@subroutine
def _join(parent: NDArray[np.int64], i: int, j: int) -> int:
    """Join the parts of two columns, and return the first column of both."""
    i, j = _first(parent, i), _first(parent, j)
    if i < j:
        parent[j] = i
        return i
    parent[i] = j
    return j


@subroutine
def _settle(parent: NDArray[np.int64]) -> None:
    """Set every entry to the first column of its part."""
    for j in range(len(parent)):
        parent[j] = parent[parent[j]]  # that of an earlier column, which is settled


@kernel
def join_dense(values: NDArray[np.floating], parent: NDArray[np.int64]) -> None:
    """Join the columns in which a row of values (n, m) has entries. parent (m,) holds the first column of each part."""
    for i in range(values.shape[0]):
        first = -1
        for j in range(values.shape[1]):
            if np.isnan(values[i, j]):
                continue
            if first < 0:
                first = _first(parent, j)
            elif parent[j] != first:
                first = _join(parent, first, j)
    _settle(parent)


@kernel
def join_stored(data: NDArray[np.floating], indices: NDArray[np.integer], indptr: NDArray[np.integer], parent: NDArray[np.int64]) -> None:
    """Join the columns in which a row of a CSR matrix stores entries, like :func:`join_dense`."""
    for i in range(len(indptr) - 1):
        first = -1
        for e in range(indptr[i], indptr[i + 1]):
            if np.isnan(data[e]):
                continue
            if first < 0:
                first = _first(parent, indices[e])
            elif parent[indices[e]] != first:
                first = _join(parent, first, indices[e])
    _settle(parent)


@kernel
def join_labels(labels: NDArray[np.float64], parent: NDArray[np.int64]) -> None:
    """Join each column with the one that labels (m,) names for it."""
    for j in range(len(labels)):
        _join(parent, j, int(labels[j]))
    _settle(parent)
