"""Connected parts of the columns of data with missing entries.

Columns are connected if a row has an entry in both. No entry ties the factors of one part to those of another. Singular vectors of all
columns, with 0 for missing entries, are 0 outside one part each, and so are factors that start from them: a saddle, which a fit does
not leave. So each part has singular vectors of its own.

Groups of columns that few rows connect have many local minima, and singular vectors, in which a missing entry is 0, take the groups for
components. Such data shows in the cosines between the patterns of entries of two columns: their second eigenvalue is nearly the first.
It is a third of it at most if every column has three quarters of the entries, and near 0 if entries are missing at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.engine.requests import Solver, run
from dfact.engine.threads import single_threaded
from dfact.kernels.parts import join_dense, join_labels, join_stored
from dfact.lazy import sp

_NEARLY_ZERO = 0.1  # of the median of the columns
_LOOSE = 0.5  # second eigenvalue of the cosines of patterns, as a share of the first, from which groups are loosely connected
_FULL = 0.75  # share of the entries with which every column is connected well
_COUNTED_COLUMNS = 512  # up to this number of columns, common entries are counted: as many sums as those of the singular vectors


@dataclass(frozen=True, eq=False)
class Parts:
    """The connected parts of m columns."""

    labels: NDArray[np.int64]
    """First column of the part of each column (m,)."""
    loose: bool = False
    """Whether few rows connect groups of columns within a part; known for few columns, and if it was asked for."""

    @classmethod
    def one(cls, n_columns: int) -> Self:
        """Return one part of all columns."""
        return cls(np.zeros(n_columns, np.int64))

    @property
    def connected(self) -> bool:
        """Whether all columns are one part."""
        return not self.labels.any()

    @cached_property
    def columns(self) -> list[NDArray[np.int64]]:
        """The columns of each part, in ascending order."""
        order = np.argsort(self.labels, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.labels[order])) + 1)

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Number of the part of each column (m,), as in ``columns``."""
        return np.unique(self.labels, return_inverse=True)[1]


@dataclass
class PartLabels(
    PartialSums, name="column_parts", disclosure=Released("which columns are connected by rows with entries in both", connections="labels")
):
    """For each slice of the modes after the first, one mode after the other, the first slice of its part."""

    labels: NDArray[Any]
    common: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0)))
    """Numbers of rows with entries in both of two columns (m, m), if they are counted; else (0, 0)."""

    def add(self, other: PartLabels) -> None:
        self.common += other.common
        parent = self.labels.astype(np.int64)
        join_labels(np.asarray(other.labels, np.float64), parent)
        self.labels[:] = parent


@dataclass(frozen=True)
class PartsPass(Pass[BlockState, None, PartLabels]):
    """The parts of the columns of a matrix, or of the slices of a tensor along each of its further modes."""

    dtype: np.dtype[Any]
    counts: bool = False
    """Whether the common entries of two columns are counted, of a matrix."""

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, PartLabels]:
        M, values, common = block.matrix, block.values, np.zeros((0, 0))
        if isinstance(M, np.ndarray) or not np.isnan(block.implicit_value):
            if self.counts:
                observed = np.isfinite(values).astype(np.float32)  # counts below 2²⁴ are exact
                common = (observed.T @ observed).astype(np.float64)
            labels = np.concatenate(_shifted([parts_of(values, n) for n in range(1, values.ndim)]))
            return state, PartLabels(labels, common)
        parent = np.arange(M.shape[1])
        join_stored(M.data, M.indices, M.indptr, parent)
        if self.counts:
            observed = sp.csr_array((np.isfinite(M.data).astype(np.float64), M.indices, M.indptr), M.shape)
            common = (observed.T @ observed).toarray()
        return state, PartLabels(parent, common)


def parts_of(values: NDArray[np.floating], mode: int) -> NDArray[np.int64]:
    """Return for each slice of an array along a mode the first slice of its part: slices with an entry at the same position."""
    parent = np.arange(values.shape[mode])
    rows = np.moveaxis(values, mode, -1).reshape(-1, len(parent))
    join_dense(np.ascontiguousarray(rows), parent)
    return parent


def _shifted(labels: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    starts = np.cumsum([0, *map(len, labels)])
    return [each + start for each, start in zip(labels, starts, strict=False)]


def find_parts(dataset: Dataset, dtype: np.dtype[Any], *, loose: bool = False) -> Solver[list[Parts]]:
    """Return the parts of the columns, or of the slices of each mode after the first; with ``loose``, whether they are :attr:`Parts.loose`.

    No pass is needed for complete data, and for a matrix of which a column has an entry in every row that has any, or if ``loose`` is
    asked for, every column in most.
    """
    observed, shape = dataset.statistics.observed, dataset.shape[1:]
    rows = dataset.shape[0] - dataset.statistics.n_empty_rows
    counts = loose and len(shape) == 1 and shape[0] <= _COUNTED_COLUMNS and bool(observed.min() < _FULL * rows)
    if observed.min() == dataset.shape[0] or (len(shape) == 1 and observed.max() == rows and not counts):
        return [Parts.one(size) for size in shape]
    found = yield from run(PartsPass(dtype, counts), None)
    labels = found.labels.astype(np.int64)
    starts = np.cumsum([0, *shape])
    is_loose = counts and _is_loose(found.common)
    return [Parts(labels[start : start + size] - start, is_loose) for start, size in zip(starts, shape, strict=False)]


def _is_loose(common: NDArray[np.floating]) -> bool:
    """Return whether few rows connect groups of columns, given their common entries (m, m)."""
    observed = np.flatnonzero(common.diagonal())
    if len(observed) < 2:
        return False
    sizes = np.sqrt(common.diagonal()[observed])
    with single_threaded():
        values = np.linalg.eigvalsh(common[np.ix_(observed, observed)] / np.outer(sizes, sizes))
    return bool(values[-2] > _LOOSE * values[-1])


def leaves_out_columns(factors: NDArray[np.floating], dataset: Dataset) -> bool:
    """Return whether the factors (m, k) from which a fit starts are nearly 0 for columns of data with missing entries.

    They are if hardly any row connects the columns with those of the leading singular vectors. Columns are compared by the size of
    their factors for an entry of the largest magnitude in every row.
    """
    statistics = dataset.statistics
    if not dataset.missing_rate:
        return False
    limits = np.maximum(np.abs(statistics.minimum), np.abs(statistics.maximum))  # infinite for columns without entries
    counted = (statistics.observed > 0) & (limits > 0)
    sizes = np.linalg.norm(factors[counted], axis=1) / (limits[counted] * statistics.observed[counted])
    return bool(sizes.size and sizes.min() < _NEARLY_ZERO * np.median(sizes))


def find_column_parts(dataset: Dataset, dtype: np.dtype[Any], *, loose: bool = False) -> Solver[Parts]:
    """Return the parts of the columns of a matrix; see :func:`find_parts`."""
    return (yield from find_parts(dataset, dtype, loose=loose))[0]


def begins_badly(factors: NDArray[np.floating], parts: Parts, dataset: Dataset) -> bool:
    """Return whether columns are hardly connected, so that a fit from these factors (m, k) may end near a saddle or at a bad minimum.

    Of few columns the common entries tell; of many, the factors.
    """
    return not parts.connected or parts.loose or (len(factors) > _COUNTED_COLUMNS and leaves_out_columns(factors, dataset))
