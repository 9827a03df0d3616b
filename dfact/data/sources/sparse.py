"""CSR sources: SciPy matrices in memory and CSR arrays in a Zarr store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource, contiguous, read_chunks
from dfact.errors import StoreError
from dfact.lazy import sp
from dfact.storage.location import Location
from dfact.storage.zarr_stores import location_of

_READ_ENTRIES = 1 << 22  # largest number of stored entries that one read returns: some 20 MB


@dataclass(frozen=True, eq=False)
class SparseSource(RowSource):
    """Base of the CSR sources: all entries that they do not store are 0, or all are missing.

    The column numbers of a row ascend without duplicates. Stored zeros are kept.
    """

    is_sparse: ClassVar[bool] = True
    implicit_value: float = field(default=0.0, kw_only=True)
    """Value of the entries that are not stored: 0, or NaN for missing."""

    @property
    @abstractmethod
    def row_entries(self) -> float:
        """Number of stored entries of a row, on average."""

    @property
    def n_stored(self) -> int:
        """Number of stored entries."""
        n = self.shape[0]
        return int(self.indptr(n, n)[0]) - int(self.indptr(0, 0)[0])

    @abstractmethod
    def indptr(self, start: int, stop: int) -> NDArray[Any]:
        """Return the positions of the rows start to stop among the stored entries, as CSR's indptr (stop − start + 1,)."""

    @abstractmethod
    def read_native(self, start: int, stop: int) -> sp.csr_array:
        """Return the rows start to stop as a CSR array."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows as a dense array: of floats where implicit entries are missing. Stored missing codes stay codes."""
        return to_dense(self.read_native(start, stop), self.implicit_value)

    def to_memory(self) -> CSRSource:
        return CSRSource(self.read_native(0, self.shape[0]), implicit_value=self.implicit_value)

    @property
    def row_bytes(self) -> int:
        """Average size of a row in memory, in bytes: values, column numbers and its entry of indptr."""
        return ceil(self.row_entries * (self.dtype.itemsize + 4) + 8)

    @property
    def range_rows(self) -> int:
        """Largest number of rows in one of :meth:`read_ranges`."""
        return max(1, int(_READ_ENTRIES / (self.row_entries + 1)))

    def read_ranges(self, layout: Layout | None = None) -> Iterator[slice]:
        """Cut the rows into ranges with at most as many entries as one read returns; a single row may have more."""
        start, n = 0, self.shape[0]
        while start < n:
            indptr = self.indptr(start, min(start + self.range_rows, n))
            within = int(np.searchsorted(indptr, indptr[0] + _READ_ENTRIES, side="right")) - 1
            stop = start + max(within, 1)
            yield slice(start, stop)
            start = stop


@dataclass(frozen=True, eq=False)
class CSRSource(SparseSource):
    """A SciPy CSR array in canonical form."""

    values: sp.csr_array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.values.dtype)

    @property
    def row_entries(self) -> float:
        return float(self.values.nnz / max(1, self.shape[0]))

    def indptr(self, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(self.values.indptr[start : stop + 1])

    def read_native(self, start: int, stop: int) -> sp.csr_array:
        indptr = self.indptr(start, stop)
        entries = slice(indptr[0], indptr[-1])  # views: SciPy's own slice copies them
        return sp.csr_array(
            (contiguous(self.values.data[entries]), contiguous(self.values.indices[entries]), indptr - indptr[0]),
            shape=(len(indptr) - 1, self.shape[1]),
        )

    def slice(self, rows: slice) -> CSRSource:
        return replace(self, values=self.values[rows])


@dataclass(frozen=True, eq=False)
class StoredCSRSource(SparseSource):
    """Rows ``offset`` to ``offset + n`` of a CSR matrix in three Zarr arrays; nothing is held in memory."""

    data: zarr.Array[Any]
    indices: zarr.Array[Any]
    positions: zarr.Array[Any]
    """indptr of the whole matrix."""
    n_columns: int
    offset: int = 0
    n: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.positions.shape[0] - 1 - self.offset if self.n is None else self.n, self.n_columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.data.dtype)

    @property
    def row_entries(self) -> float:
        # The average over the whole matrix, also in a slice: it is known without a read.
        return float(self.data.shape[0] / (self.positions.shape[0] - 1))

    @property
    def chunk_rows(self) -> int:
        return self.range_rows

    @property
    def location(self) -> Location | None:
        return location_of(self.data.store)

    def indptr(self, start: int, stop: int) -> NDArray[Any]:
        indptr = read_chunks(self.positions, self.offset + start, self.offset + stop + 1, "positions of rows")
        # SciPy would read beyond the entries where these are wrong; −1 is the fill value of a lost chunk.
        complete = len(indptr) == stop - start + 1
        if not complete or indptr[0] < 0 or indptr[-1] > self.data.shape[0] or (indptr[1:] < indptr[:-1]).any():
            raise self._damaged(self.positions, f"positions of rows {self.offset + start} to {self.offset + stop}")
        return indptr

    def read_native(self, start: int, stop: int) -> sp.csr_array:
        indptr = self.indptr(start, stop)
        first, last = int(indptr[0]), int(indptr[-1])
        indices = read_chunks(self.indices, first, last, "entries")
        if last > first and (indices.min() < 0 or indices.max() >= self.n_columns):
            raise self._damaged(self.indices, f"entries {first} to {last}")
        return sp.csr_array((read_chunks(self.data, first, last, "entries"), indices, indptr - first), shape=(stop - start, self.n_columns))

    def slice(self, rows: slice) -> StoredCSRSource:
        start, stop, _ = rows.indices(self.shape[0])
        return replace(self, offset=self.offset + start, n=stop - start)

    def _damaged(self, array: zarr.Array[Any], what: str) -> StoreError:
        return StoreError(f"{what} of {array.store_path} are lost or invalid: the store is damaged")


def to_dense(rows: sp.csr_array, implicit_value: float) -> NDArray[Any]:
    """Fill in the implicit entries of CSR rows, in a type that holds them."""
    from dfact.kernels.entries import scatter  # imports Numba, which metadata do not need

    if not np.isnan(implicit_value):
        return np.asarray(rows.toarray(order="C"))
    out = np.full(rows.shape, implicit_value, np.result_type(rows.dtype, np.float32))
    scatter(rows.data, rows.indices, rows.indptr, out)
    return out
