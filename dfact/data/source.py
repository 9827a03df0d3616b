"""Row sources: what the passes read, a run of rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

from dfact.errors import StoreError

# Partitions and blocks follow from the shape alone: the same data gives the same sums, bit for
# bit, whatever its storage, its chunks, the executor and the number of workers.
_BLOCK_ENTRIES = 1 << 18  # two float32 working arrays of a block fill a second-level cache
_BLOCK_ROWS = (64, 2048)
_PARTITION_ENTRIES = 1 << 23  # some 10 ms of work: well over the cost of a task
_MAX_PARTITIONS = 256
_CHUNK_ENTRIES = 1 << 22


@dataclass(frozen=True)
class Layout:
    """How the rows of a data set are cut.

    A *block* is what a kernel sees at once; a *chunk* is what our own stores write and read at
    once; a *partition* is the run of chunks that one task walks in a pass.
    """

    n_rows: int
    block_rows: int
    chunk_rows: int
    partition_rows: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> "Layout":
        """The layout of an array of this shape (rows first)."""
        n, m = shape[0], max(1, prod(shape[1:]))
        block = 1 << (max(1, _BLOCK_ENTRIES // m).bit_length() - 1)
        block = min(max(block, _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
        n_partitions = min(max(1, -(-n * m // _PARTITION_ENTRIES)), _MAX_PARTITIONS)
        blocks = max(1, -(-n // (n_partitions * block)))
        chunks = max(1, -(-blocks * block * m // _CHUNK_ENTRIES))
        chunk = -(-blocks // chunks) * block
        return cls(n, block, chunk, chunks * chunk)

    @property
    def n_partitions(self) -> int:
        return max(1, -(-self.n_rows // self.partition_rows))

    def partitions(self) -> Iterator[slice]:
        """The rows of every partition, in order."""
        for start in range(0, max(self.n_rows, 1), self.partition_rows):
            yield slice(start, min(start + self.partition_rows, self.n_rows))


class RowSource(Protocol):
    """An array that is read by rows. Sources travel to the workers, so they can be pickled."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def chunk_rows(self) -> int | None:
        """Rows that one read decodes together; None for arrays in memory."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop, C-contiguous."""
        ...

    def slice(self, rows: slice) -> "RowSource":
        """A source of these rows alone; of data in memory it carries no others along."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """A NumPy array."""

    values: NDArray[Any]
    chunk_rows: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.ascontiguousarray(self.values[start:stop])

    def slice(self, rows: slice) -> "ArraySource":
        return ArraySource(self.values[rows])


@dataclass(frozen=True, eq=False)
class SparseSource:
    """A SciPy sparse matrix whose unstored entries are zeros."""

    values: sp.csr_array
    chunk_rows: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.values.dtype)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(self.read_sparse(start, stop).toarray(order="C"))

    def read_sparse(self, start: int, stop: int) -> sp.csr_array:
        """Rows start to stop, row-compressed."""
        return self.values[start:stop]

    def slice(self, rows: slice) -> "SparseSource":
        return SparseSource(self.values[rows])


@dataclass(frozen=True, eq=False)
class ZarrSource:
    """Rows ``offset`` to ``offset + n`` of a Zarr array."""

    array: zarr.Array[Any]
    offset: int = 0
    n: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        n = self.array.shape[0] - self.offset if self.n is None else self.n
        return (n, *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    @property
    def chunk_rows(self) -> int:
        return int((self.array.shards or self.array.chunks)[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        try:
            return np.ascontiguousarray(self.array[self.offset + start : self.offset + stop])
        except (OSError, RuntimeError, ValueError) as error:
            rows = f"rows {self.offset + start} to {self.offset + stop}"
            raise StoreError(f"cannot read {rows} of {self.array.store_path}: {error}; the store is damaged or out of reach") from error

    def slice(self, rows: slice) -> "ZarrSource":
        start, stop, _ = rows.indices(self.shape[0])
        return ZarrSource(self.array, self.offset + start, stop - start)


def reads(source: RowSource, layout: Layout) -> Iterator[slice]:
    """Cut the source's rows at its own chunks, so that each is decoded once; data in memory at the layout's."""
    n, step, first = source.shape[0], layout.chunk_rows, 0
    if isinstance(source, ZarrSource):
        step = source.chunk_rows
        first = -(source.offset % step)
    for start in range(first, n, step):
        yield slice(max(start, 0), min(start + step, n))


def path_of(source: RowSource) -> Path | None:
    """Where the source's array lies on disk, if it does."""
    root = getattr(getattr(getattr(source, "array", None), "store", None), "root", None)
    return None if root is None else Path(root)
