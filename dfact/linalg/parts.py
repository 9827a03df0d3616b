"""Connected parts of the columns of data with missing entries.

Columns are connected if a row has an entry in both. No entry ties the factors of one part to those of another. Singular vectors of all
columns, with 0 for missing entries, are 0 outside one part each, and so are factors that start from them: a saddle, which a fit does
not leave. So each part has singular vectors of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.engine.requests import Solver, run
from dfact.kernels.parts import join_dense, join_labels, join_stored

_NEARLY_ZERO = 0.1  # of the median of the columns


@dataclass(frozen=True, eq=False)
class Parts:
    """The connected parts of m columns."""

    labels: NDArray[np.int64]
    """First column of the part of each column (m,)."""

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
class PartLabels(PartialSums, name="column_parts"):
    """For each slice of the modes after the first, one mode after the other, the first slice of its part."""

    labels: NDArray[Any]

    def add(self, other: PartLabels) -> None:
        parent = self.labels.astype(np.int64)
        join_labels(np.asarray(other.labels, np.float64), parent)
        self.labels[:] = parent


@dataclass(frozen=True)
class PartsPass(Pass[BlockState, None, PartLabels]):
    """The parts of the columns of a matrix, or of the slices of a tensor along each of its further modes."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, PartLabels]:
        M = block.matrix
        if isinstance(M, np.ndarray) or not np.isnan(block.implicit_value):
            return state, PartLabels(np.concatenate(_shifted([parts_of(block.values, n) for n in range(1, block.values.ndim)])))
        parent = np.arange(M.shape[1])
        join_stored(M.data, M.indices, M.indptr, parent)
        return state, PartLabels(parent)


def parts_of(values: NDArray[np.floating], mode: int) -> NDArray[np.int64]:
    """Return for each slice of an array along a mode the first slice of its part: slices with an entry at the same position."""
    parent = np.arange(values.shape[mode])
    rows = np.moveaxis(values, mode, -1).reshape(-1, len(parent))
    join_dense(np.ascontiguousarray(rows), parent)
    return parent


def _shifted(labels: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    starts = np.cumsum([0, *map(len, labels)])
    return [each + start for each, start in zip(labels, starts, strict=False)]


def find_parts(dataset: Dataset, dtype: np.dtype[Any]) -> Solver[list[Parts]]:
    """Return the parts of the columns, or of the slices of each mode after the first.

    No pass is needed for complete data, and for a matrix of which a column has an entry in every row that has any.
    """
    observed, shape = dataset.statistics.observed, dataset.shape[1:]
    if observed.min() == dataset.shape[0] or (len(shape) == 1 and observed.max() == dataset.shape[0] - dataset.statistics.n_empty_rows):
        return [Parts.one(size) for size in shape]
    labels = (yield from run(PartsPass(dtype), None)).labels.astype(np.int64)
    starts = np.cumsum([0, *shape])
    return [Parts(labels[start : start + size] - start) for start, size in zip(starts, shape, strict=False)]


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


def find_column_parts(dataset: Dataset, dtype: np.dtype[Any]) -> Solver[Parts]:
    """Return the parts of the columns of a matrix."""
    return (yield from find_parts(dataset, dtype))[0]
