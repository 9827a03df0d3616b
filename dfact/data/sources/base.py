"""The contract of a row source, data that passes read by ranges of rows, and the dense sources that fulfil it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.run_digests import RunDigests
from dfact.errors import StoreError
from dfact.lazy import sp
from dfact.storage.arrays import read_entries, read_errors
from dfact.storage.location import Location
from dfact.storage.zarr_stores import location_of


class RowSource(ABC):
    """An array that is read by ranges of rows. Sources travel to the workers, so they can be pickled."""

    is_sparse: ClassVar[bool] = False
    """Whether the source stores some entries only."""
    is_fetched: ClassVar[bool] = False
    """Whether other processes hold the rows, so that :meth:`to_memory` fetches those of a run at once instead of reading by chunks."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Sizes of all modes, the rows first."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored entries."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows start to stop as a C-contiguous array."""

    @abstractmethod
    def to_memory(self) -> RowSource:
        """Read all rows into a source in memory."""

    @property
    def chunk_rows(self) -> int | None:
        """Number of rows that are decoded together; None for arrays in memory."""
        return None

    @property
    def offset(self) -> int:
        """Number of the first row in the array whose chunks are read."""
        return 0

    @property
    def implicit_value(self) -> float:
        """Value of the entries that the source does not store: 0, or NaN for missing. Dense sources store all entries."""
        return 0.0

    @property
    def location(self) -> Location | None:
        """Location of the stored array, if there is one."""
        return None

    @property
    def present_rows(self) -> int:
        """Number of rows that can be read here; those of a fit across sites may be elsewhere."""
        return self.shape[0]

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of rows of the sources that were concatenated; empty for one source."""
        return ()

    @property
    def layout(self) -> Layout:
        """The cutting of the rows into blocks, partitions and chunks."""
        return Layout.of(self.shape).with_segments(self.segments)

    @property
    def row_bytes(self) -> int:
        """Average size of a row in memory, in bytes."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    def read_native(self, start: int, stop: int) -> NDArray[Any] | sp.csr_array:
        """Return the rows start to stop in the format of the source: dense or CSR."""
        return self.read(start, stop)

    def read_ranges(self, layout: Layout) -> Iterator[slice]:
        """Cut the rows at the chunks of the source, so that each is decoded once; in memory, at the chunks of the layout."""
        n, step = self.shape[0], self.chunk_rows or layout.chunk_rows
        for start in range(-(self.offset % step), n, step):
            yield slice(max(start, 0), min(start + step, n))

    def digests(self) -> bytes:
        """Compute the digests of the rows' runs, in order; reads the rows once. See :class:`dfact.data.run_digests.RunDigests`."""
        digests = RunDigests(self.shape[1:])
        for rows in self.read_ranges(Layout.of(self.shape)):
            digests.update(self.read_native(rows.start, rows.stop))
        return digests.finish()

    def rows_decoded(self, ranges: Sequence[slice]) -> int:
        """Count the rows in the chunks that hold any of these rows; in memory, these rows alone."""
        step, offset = self.chunk_rows, self.offset
        if step is None:
            return sum(rows.stop - rows.start for rows in ranges)
        chunks = {chunk for rows in ranges for chunk in range((offset + rows.start) // step, -(-(offset + rows.stop) // step))}
        n = self.shape[0]
        return sum(min((chunk + 1) * step - offset, n) - max(chunk * step - offset, 0) for chunk in chunks)

    @abstractmethod
    def slice(self, rows: slice) -> RowSource:
        """Return a source of these rows alone; for data in memory, it holds no other rows."""


def read_chunks(array: zarr.Array[Any], start: int, stop: int, what: str) -> NDArray[Any]:
    """Return entries start to stop of a Zarr array; an error names the first chunk that cannot be read."""
    try:
        return np.ascontiguousarray(read_entries(array, start, stop))
    except Exception as error:
        # A store names the chunk itself; codecs do not know which chunk they decode.
        first, last = (start, stop) if isinstance(error, StoreError) else _first_unreadable(array, start, stop)
        with read_errors(f"{what} {first} to {last} of {array.store_path}"):
            raise


def _first_unreadable(array: zarr.Array[Any], start: int, stop: int) -> tuple[int, int]:
    """Find the first chunk that cannot be read, as a range of entries."""
    step = array.chunks[0]
    for first in range(start - start % step, stop, step):
        try:
            array[first : first + step]
        except Exception:  # of any kind: the caller raises the first error, this function only locates it
            return max(first, start), min(first + step, stop)
    return start, stop


def contiguous(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in C order at an aligned address; arrays received over a network may have neither."""
    return np.require(values, requirements=["C", "A"])


class DenseSource(RowSource):
    """Base of the sources that store every entry."""

    def to_memory(self) -> ArraySource:
        return ArraySource(self.read(0, self.shape[0]))


@dataclass(frozen=True, eq=False)
class ArraySource(DenseSource):
    """A NumPy array."""

    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return contiguous(self.values[start:stop])

    def slice(self, rows: slice) -> ArraySource:
        return ArraySource(self.values[rows])


@dataclass(frozen=True, eq=False)
class ZarrSource(DenseSource):
    """Rows ``offset`` to ``offset + n`` of a Zarr array."""

    array: zarr.Array[Any]
    offset: int = 0
    n: int | None = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        n = self.array.shape[0] - self.offset if self.n is None else self.n
        return (n, *self.array.shape[1:])

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    @property
    def chunk_rows(self) -> int:
        return int((self.array.shards or self.array.chunks)[0])

    @property
    def location(self) -> Location | None:
        return location_of(self.array.store)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return read_chunks(self.array, self.offset + start, self.offset + stop, "rows")

    @property
    def T(self) -> LazySource:
        """The array with its modes in reverse order; only of an array that is not sliced."""
        import dask.array as da

        return LazySource(da.from_zarr(self.array).T)

    def slice(self, rows: slice) -> ZarrSource:
        start, stop, _ = rows.indices(self.shape[0])
        return ZarrSource(self.array, self.offset + start, stop - start)


@dataclass(frozen=True, eq=False)
class LazySource(DenseSource):
    """Rows of a dask or xarray array, computed when they are read."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.array.dtype)
        return dtype

    @property
    def chunk_rows(self) -> int | None:
        chunks = getattr(self.array, "chunks", None)
        return max(chunks[0]) if chunks else None

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.ascontiguousarray(np.asarray(self.array[start:stop]))

    def slice(self, rows: slice) -> LazySource:
        return LazySource(self.array[rows])


@dataclass(frozen=True, eq=False)
class RowSubset(DenseSource):
    """Some rows of a source, with all their entries; a read also decodes the rows between them."""

    source: RowSource
    numbers: NDArray[np.intp]
    """Row numbers in the source, ascending."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.numbers), *self.source.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def chunk_rows(self) -> int | None:
        """Average number of the chosen rows in a chunk of the source."""
        step = self.source.chunk_rows
        return None if step is None else max(1, step * len(self.numbers) // self.source.shape[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        chosen = self.numbers[start:stop]
        first = int(chosen[0])
        return np.ascontiguousarray(self.source.read(first, int(chosen[-1]) + 1)[chosen - first])

    def slice(self, rows: slice) -> RowSubset:
        chosen = self.numbers[rows]
        first = int(chosen[0])
        return RowSubset(self.source.slice(slice(first, int(chosen[-1]) + 1)), chosen - first)


@dataclass(frozen=True, eq=False)
class SelectedColumns(DenseSource):
    """Columns of a source, some of them reflected: a value x becomes ``span`` − x."""

    source: RowSource
    columns: NDArray[np.intp]
    """Number of each column in the source (m,), −1 for one that the source lacks: its entries are missing."""
    missing_code: int | None
    """Stored value of missing entries; None for NaN."""
    span: NDArray[np.float64]
    """Sum of the least and the greatest value that a column may have (m,)."""
    reflected: NDArray[np.bool_]
    """Whether each column is reflected (m,)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape[0], len(self.columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def chunk_rows(self) -> int | None:
        return self.source.chunk_rows

    @property
    def offset(self) -> int:
        return self.source.offset

    @property
    def present_rows(self) -> int:
        return self.source.present_rows

    @property
    def segments(self) -> tuple[int, ...]:
        return self.source.segments

    @property
    def n_absent(self) -> int:
        """Number of columns that the source lacks."""
        return int((self.columns < 0).sum())

    def read(self, start: int, stop: int) -> NDArray[Any]:
        rows = self.source.read(start, stop)
        out = np.ascontiguousarray(rows[:, np.maximum(self.columns, 0)])
        missing = np.nan if self.missing_code is None else self.missing_code
        turned = out[:, self.reflected]
        known = ~np.isnan(turned) if self.missing_code is None else turned != missing
        span = self.span[self.reflected].astype(self.dtype)
        out[:, self.reflected] = np.where(known, span - turned, turned)
        out[:, self.columns < 0] = missing
        return out

    def slice(self, rows: slice) -> SelectedColumns:
        return SelectedColumns(self.source.slice(rows), self.columns, self.missing_code, self.span, self.reflected)
