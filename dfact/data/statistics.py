"""Column statistics, collected while rows stream by."""

from dataclasses import dataclass, field
from math import prod
from typing import Any, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.source import Layout, RowSource, reads
from dfact.kernels.entries import column_statistics, decode


@overload
def as_floating(raw: NDArray[Any], missing_code: int | None, dtype: np.dtype[Any]) -> NDArray[np.floating]: ...
@overload
def as_floating(raw: sp.csr_array, missing_code: int | None, dtype: np.dtype[Any]) -> sp.csr_array: ...
@overload
def as_floating(
    raw: NDArray[Any] | sp.csr_array, missing_code: int | None, dtype: np.dtype[Any]
) -> NDArray[np.floating] | sp.csr_array: ...
def as_floating(raw: NDArray[Any] | sp.csr_array, missing_code: int | None, dtype: np.dtype[Any]) -> NDArray[np.floating] | sp.csr_array:
    """The values in ``dtype`` with NaN for missing; the array itself where it is that already."""
    if not isinstance(raw, np.ndarray):
        stored = as_floating(raw.data[None], missing_code, dtype)[0]
        return sp.csr_array((stored, raw.indices, raw.indptr), shape=raw.shape)
    if missing_code is None:
        return np.asarray(raw, dtype=dtype)
    out = np.empty(raw.shape, dtype)
    flat = (raw.shape[0], prod(raw.shape[1:]))
    decode(raw.reshape(flat), missing_code, out.reshape(flat))
    return out


@dataclass
class ColumnStatistics:
    """Count, minimum and maximum of the observed entries of every column, and the rows with none.

    Columns are those of the array flattened behind its first mode.
    """

    observed: NDArray[np.int64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    n_rows: int = 0
    empty_rows: list[int] = field(default_factory=list)  # the first few, for messages
    n_empty_rows: int = 0

    @classmethod
    def of_columns(cls, n_columns: int) -> "ColumnStatistics":
        return cls(np.zeros(n_columns, np.int64), np.full(n_columns, np.inf), np.full(n_columns, -np.inf))

    @classmethod
    def of_source(cls, source: RowSource, missing_code: int | None = None) -> "ColumnStatistics":
        """One read of the whole source."""
        statistics = cls.of_columns(int(np.prod(source.shape[1:])))
        layout = Layout.of(source.shape)
        dtype = np.result_type(source.dtype, np.float32)
        for rows in reads(source, layout):
            chunk = source.read(rows.start, rows.stop)
            for start in range(0, len(chunk), layout.block_rows):
                statistics.update(as_floating(chunk[start : start + layout.block_rows], missing_code, dtype))
        return statistics

    def update(self, values: NDArray[np.floating]) -> NDArray[np.int64]:
        """Add rows (NaN = missing); returns the number of observed entries in each."""
        values = values.reshape(values.shape[0], prod(values.shape[1:]))
        row_observed = np.empty(values.shape[0], np.int64)
        column_statistics(values, self.observed, self.minimum, self.maximum, row_observed)
        empty = np.flatnonzero(row_observed == 0)
        self.empty_rows.extend((self.n_rows + empty[: 5 - len(self.empty_rows)]).tolist())
        self.n_empty_rows += empty.size
        self.n_rows += values.shape[0]
        return row_observed

    @property
    def missing_rate(self) -> float:
        total = self.n_rows * self.observed.size
        return float(1 - self.observed.sum() / total) if total else 0.0
