"""Column statistics, collected in one pass over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.lazy import sp

Empty = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Function that allocates an array of a shape and a type."""


@overload
def as_float(raw: NDArray[Any], missing_code: int | None, dtype: np.dtype[Any], empty: Empty = ...) -> NDArray[np.floating]: ...
@overload
def as_float(raw: sp.csr_array, missing_code: int | None, dtype: np.dtype[Any], empty: Empty = ...) -> sp.csr_array: ...
@overload
def as_float(
    raw: NDArray[Any] | sp.csr_array, missing_code: int | None, dtype: np.dtype[Any], empty: Empty = ...
) -> NDArray[np.floating] | sp.csr_array: ...
def as_float(
    raw: NDArray[Any] | sp.csr_array, missing_code: int | None, dtype: np.dtype[Any], empty: Empty = np.empty
) -> NDArray[np.floating] | sp.csr_array:
    """Convert values to ``dtype`` with NaN for missing, in memory from ``empty``; return the array itself if it has that form."""
    if not isinstance(raw, np.ndarray):
        if missing_code is None and raw.dtype == dtype:
            return raw
        stored = as_float(raw.data[None], missing_code, dtype, empty)[0]
        return sp.csr_array((stored, raw.indices, raw.indptr), shape=raw.shape)
    if missing_code is None and raw.dtype == dtype:
        return np.asarray(raw)
    out = empty(raw.shape, dtype)
    if missing_code is None:
        np.copyto(out, raw, casting="unsafe")
        return out
    from dfact.kernels.entries import decode  # imports Numba, which metadata do not need

    flat = (raw.shape[0], prod(raw.shape[1:]))
    decode(raw.reshape(flat), missing_code, out.reshape(flat))
    return out


@dataclass
class ColumnStatistics:
    """Count, minimum and maximum of the observed entries of every column, and the rows without observed entries.

    The columns of a tensor are those of the matrix with all modes after the first flattened.
    """

    observed: NDArray[np.int64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    n_rows: int = 0
    empty_rows: list[int] = field(default_factory=list)  # the first few, for messages
    n_empty_rows: int = 0

    @classmethod
    def of_columns(cls, n_columns: int) -> ColumnStatistics:
        """Return the statistics of no rows."""
        return cls(np.zeros(n_columns, np.int64), np.full(n_columns, np.inf), np.full(n_columns, -np.inf))

    @classmethod
    def of_source(cls, source: RowSource, missing_code: int | None = None) -> ColumnStatistics:
        """Compute the statistics of a source, reading it once."""
        statistics = cls.of_columns(int(np.prod(source.shape[1:])))
        layout = Layout.of(source.shape)
        dtype = np.result_type(source.dtype, np.float32)
        for rows in source.read_ranges(layout):
            chunk = source.read_native(rows.start, rows.stop)
            # CSR rows stay small as floats; dense rows become floats a block at a time.
            step = layout.block_rows if isinstance(chunk, np.ndarray) else chunk.shape[0]
            for start in range(0, chunk.shape[0], step):
                statistics.update(as_float(chunk[start : start + step], missing_code, dtype), source.implicit_value)
        return statistics

    def update(self, values: NDArray[np.floating] | sp.csr_array, implicit_value: float = 0.0) -> NDArray[np.int64]:
        """Add rows (NaN = missing) with the value of their implicit entries. Return the number of observed entries of each row."""
        if isinstance(values, np.ndarray):
            from dfact.kernels.entries import column_statistics

            values = values.reshape(values.shape[0], prod(values.shape[1:]))
            row_observed = np.empty(values.shape[0], np.int64)
            column_statistics(values, self.observed, self.minimum, self.maximum, row_observed)
        else:
            row_observed = self._add_sparse(values, implicit_value)
        empty = np.flatnonzero(row_observed == 0)
        self.empty_rows.extend((self.n_rows + empty[: 5 - len(self.empty_rows)]).tolist())
        self.n_empty_rows += empty.size
        self.n_rows += values.shape[0]
        return row_observed

    def _add_sparse(self, rows: sp.csr_array, implicit_value: float) -> NDArray[np.int64]:
        """Add CSR rows as ``column_statistics`` adds dense ones, at the cost of the stored entries."""
        from dfact.kernels.entries import stored_statistics

        n, m = rows.shape
        row_observed = np.empty(n, np.int64)
        stored_statistics(rows.data, rows.indices, rows.indptr, self.observed, self.minimum, self.maximum, row_observed)
        if np.isnan(implicit_value):
            return row_observed
        zeros = n - np.bincount(rows.indices, minlength=m)
        self.observed += zeros
        for limit, extreme in ((self.minimum, np.minimum), (self.maximum, np.maximum)):
            extreme(limit, 0, out=limit, where=zeros > 0)
        return row_observed + m - np.diff(rows.indptr)

    def merge(self, following: ColumnStatistics) -> None:
        """Add the statistics of the following rows. Counts and extremes are exact, so the result does not depend on the grouping."""
        self.observed += following.observed
        np.minimum(self.minimum, following.minimum, out=self.minimum)
        np.maximum(self.maximum, following.maximum, out=self.maximum)
        self.empty_rows.extend(self.n_rows + row for row in following.empty_rows[: 5 - len(self.empty_rows)])
        self.n_empty_rows += following.n_empty_rows
        self.n_rows += following.n_rows

    @property
    def missing_rate(self) -> float:
        """Proportion of missing entries."""
        total = self.n_rows * self.observed.size
        return float(1 - self.observed.sum() / total) if total else 0.0


def exact_sums(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Return a few numbers whose sum is exactly that of the values: the rounded sum, and what rounding leaves."""
    rest, sums = values.tolist(), []
    while total := math.fsum(rest):
        sums.append(total)
        rest.append(-total)
    return tuple(sums)
