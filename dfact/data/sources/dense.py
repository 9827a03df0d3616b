"""Dense sources: arrays in memory, Zarr arrays, lazy arrays, and subsets of the rows of any source."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.sources.base import RowSource, contiguous, read_chunks
from dfact.storage.location import Location
from dfact.storage.zarr_stores import location_of


class DenseSource(RowSource):
    """Base of the sources that store every entry."""

    def to_memory(self) -> "ArraySource":
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

    def slice(self, rows: slice) -> "ArraySource":
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
    def T(self) -> "LazySource":
        """The array with its modes in reverse order; only of an array that is not sliced."""
        import dask.array as da

        return LazySource(da.from_zarr(self.array).T)

    def slice(self, rows: slice) -> "ZarrSource":
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

    def slice(self, rows: slice) -> "LazySource":
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

    def slice(self, rows: slice) -> "RowSubset":
        chosen = self.numbers[rows]
        first = int(chosen[0])
        return RowSubset(self.source.slice(slice(first, int(chosen[-1]) + 1)), chosen - first)
