"""Row sources: what the passes read, a run of rows at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

from dfact.data.places import Place
from dfact.data.store import reading
from dfact.data.stores import place_of_store
from dfact.errors import StoreError
from dfact.kernels.entries import scatter

# Partitions and blocks follow from the shape alone: the same data gives the same sums, bit for
# bit, whatever its storage, its chunks, the executor and the number of workers.
_BLOCK_ENTRIES = 1 << 18  # two float32 working arrays of a block fill a second-level cache
_BLOCK_ROWS = (64, 2048)
_PARTITION_ENTRIES = 1 << 20  # one or two milliseconds of work: the cost of taking up another partition is a hundredth of it
_SMALL_PARTITIONS = 16  # small data has so many partitions at least, for as many threads, as long as they have
_SMALL_PARTITION_ENTRIES = 1 << 17
_MAX_PARTITIONS = 1 << 14
_CHUNK_ENTRIES = 1 << 22
_PIECE_ENTRIES = 1 << 22  # stored entries that one read of row-compressed rows brings at most: some 20 MB


@dataclass(frozen=True)
class Layout:
    """How the rows of a data set are cut.

    A *block* is what a kernel sees at once; a *partition* is a run of blocks, the least that one thread takes of a pass
    and that a worker owns; a *chunk* is what our own stores write and read at once: several partitions.
    """

    n_rows: int
    block_rows: int
    chunk_rows: int
    partition_rows: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> "Layout":
        """The layout of an array of this shape (rows first)."""
        n, m = shape[0], max(1, prod(shape[1:]))
        few = max(n * m // _SMALL_PARTITIONS, _SMALL_PARTITION_ENTRIES)
        block = 1 << (max(1, min(_BLOCK_ENTRIES, few) // m).bit_length() - 1)
        block = min(max(block, _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
        n_blocks = max(1, -(-n // block))
        blocks = max(1, min(_PARTITION_ENTRIES, few) // (block * m), -(-n_blocks // _MAX_PARTITIONS))
        partition = min(blocks, n_blocks) * block
        partitions = max(1, round(_CHUNK_ENTRIES / (partition * m)))
        return cls(n, block, min(partitions, max(1, -(-n // partition))) * partition, partition)

    @property
    def n_partitions(self) -> int:
        return max(1, -(-self.n_rows // self.partition_rows))

    def sample(self, share: float) -> tuple[int, ...]:
        """Return the numbers of this share of the partitions, spread evenly: at least two, or none where that is more than half of them.

        A large sample consists of runs of partitions that lie in one chunk, so that few chunks are read.
        """
        n, run = self.n_partitions, self.chunk_rows // self.partition_rows
        count = max(2, round(share * n))
        if 2 * count > n:
            return ()
        if count < 4 * run:
            run = 1
        runs = max(1, count // run)
        starts = (int((i + 0.5) * n / runs) // run * run for i in range(runs))
        return tuple(number for start in starts for number in range(start, min(start + run, n)))

    def rows(self, first: int, last: int) -> slice:
        """The rows of the partitions ``first`` to ``last`` − 1."""
        return slice(first * self.partition_rows, min(last * self.partition_rows, self.n_rows))


class ReadableRows(Protocol):
    """An array that is read by rows."""

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


class RowSource(ReadableRows, Protocol):
    """Rows that the passes read. Sources travel to the workers, so they can be pickled."""

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
        return aligned(self.values[start:stop])

    def slice(self, rows: slice) -> "ArraySource":
        return ArraySource(self.values[rows])


@dataclass(frozen=True, eq=False)
class SparseRows(ABC):
    """Base of the sources that are row-compressed: entries they do not store are all 0 or all missing.

    The column numbers of a row ascend, each stands there once. Stored zeros are kept.
    """

    absent: float = field(default=0.0, kw_only=True)
    """What an entry is that is not stored: 0, or NaN for missing."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(rows, columns)."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Of the stored entries."""

    @property
    @abstractmethod
    def row_entries(self) -> float:
        """Number of stored entries of a row, on average."""

    @abstractmethod
    def edges(self, start: int, stop: int) -> NDArray[Any]:
        """Where rows start to stop begin among the stored entries, and where the last one ends (stop − start + 1,)."""

    @abstractmethod
    def read_sparse(self, start: int, stop: int) -> sp.csr_array:
        """Rows start to stop, row-compressed."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop; integers become floating where absent entries are missing, stored missing codes stay codes."""
        return expanded(self.read_sparse(start, stop), self.absent)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory, on average: values, column numbers, edge."""
        return ceil(self.row_entries * (self.dtype.itemsize + 4) + 8)

    @property
    def piece_rows(self) -> int:
        """The most rows a piece may have."""
        return max(1, int(_PIECE_ENTRIES / (self.row_entries + 1)))

    def pieces(self) -> Iterator[slice]:
        """All rows in runs that one read may bring, however unequal the rows are: a longer run is one row."""
        start, n = 0, self.shape[0]
        while start < n:
            edges = self.edges(start, min(start + self.piece_rows, n))
            within = int(np.searchsorted(edges, edges[0] + _PIECE_ENTRIES, side="right")) - 1
            stop = start + max(within, 1)
            yield slice(start, stop)
            start = stop


@dataclass(frozen=True, eq=False)
class SparseSource(SparseRows):
    """A SciPy sparse matrix in canonical form."""

    values: sp.csr_array
    chunk_rows: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.values.dtype)

    @property
    def row_entries(self) -> float:
        return float(self.values.nnz / max(1, self.shape[0]))

    def edges(self, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(self.values.indptr[start : stop + 1])

    def read_sparse(self, start: int, stop: int) -> sp.csr_array:
        edges = self.edges(start, stop)
        entries = slice(edges[0], edges[-1])  # views: SciPy's own slice copies them
        return sp.csr_array(
            (aligned(self.values.data[entries]), aligned(self.values.indices[entries]), edges - edges[0]),
            shape=(len(edges) - 1, self.shape[1]),
        )

    def slice(self, rows: slice) -> "SparseSource":
        return replace(self, values=self.values[rows])


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
        return _read(self.array, self.offset + start, self.offset + stop, "rows")

    def slice(self, rows: slice) -> "ZarrSource":
        start, stop, _ = rows.indices(self.shape[0])
        return ZarrSource(self.array, self.offset + start, stop - start)


@dataclass(frozen=True, eq=False)
class SparseZarrSource(SparseRows):
    """Rows ``offset`` to ``offset + n`` of a row-compressed matrix in three Zarr arrays, whose contents it does not carry along."""

    data: zarr.Array[Any]
    indices: zarr.Array[Any]
    indptr: zarr.Array[Any]
    n_columns: int
    offset: int = 0
    n: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.indptr.shape[0] - 1 - self.offset if self.n is None else self.n, self.n_columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.data.dtype)

    @property
    def row_entries(self) -> float:
        # Of the whole matrix, also in a slice: it is known without a read.
        return float(self.data.shape[0] / (self.indptr.shape[0] - 1))

    @property
    def chunk_rows(self) -> int:
        return self.piece_rows

    def edges(self, start: int, stop: int) -> NDArray[Any]:
        edges = _read(self.indptr, self.offset + start, self.offset + stop + 1, "edges of rows")
        # SciPy would reach beyond the entries where these are wrong; −1 is what a lost chunk reads as.
        whole = len(edges) == stop - start + 1
        if not whole or edges[0] < 0 or edges[-1] > self.data.shape[0] or (edges[1:] < edges[:-1]).any():
            raise self._damaged(self.indptr, f"edges of rows {self.offset + start} to {self.offset + stop}")
        return edges

    def read_sparse(self, start: int, stop: int) -> sp.csr_array:
        edges = self.edges(start, stop)
        first, last = int(edges[0]), int(edges[-1])
        indices = _read(self.indices, first, last, "entries")
        if last > first and (indices.min() < 0 or indices.max() >= self.n_columns):
            raise self._damaged(self.indices, f"entries {first} to {last}")
        return sp.csr_array((_read(self.data, first, last, "entries"), indices, edges - first), shape=(stop - start, self.n_columns))

    def slice(self, rows: slice) -> "SparseZarrSource":
        start, stop, _ = rows.indices(self.shape[0])
        return replace(self, offset=self.offset + start, n=stop - start)

    def _damaged(self, array: zarr.Array[Any], what: str) -> StoreError:
        return StoreError(f"{what} of {array.store_path} are lost or make no sense: the store is damaged")


def _read(array: zarr.Array[Any], start: int, stop: int, what: str) -> NDArray[Any]:
    try:
        return np.ascontiguousarray(array[start:stop])
    except Exception as error:
        # A store names the chunk itself; codecs do not know which they decode.
        first, last = (start, stop) if isinstance(error, StoreError) else _unreadable(array, start, stop)
        with reading(f"{what} {first} to {last} of {array.store_path}"):
            raise


def _unreadable(array: zarr.Array[Any], start: int, stop: int) -> tuple[int, int]:
    """The rows of the first chunk that cannot be read."""
    step = array.chunks[0]
    for first in range(start - start % step, stop, step):
        try:
            array[first : first + step]
        except Exception:  # whatever it is: the caller raises what was met first, this only finds its place
            return max(first, start), min(first + step, stop)
    return start, stop


def read_rows(source: ReadableRows, start: int, stop: int) -> NDArray[Any] | sp.csr_array:
    """Rows start to stop, row-compressed where the source is."""
    return source.read_sparse(start, stop) if isinstance(source, SparseRows) else source.read(start, stop)


def aligned(values: NDArray[Any]) -> NDArray[Any]:
    """In C order and at an even address, at which what came over a network may not lie."""
    return np.require(values, requirements=["C", "A"])


def absent_of(source: ReadableRows) -> float:
    """What an entry is that the source does not store; dense sources store all."""
    return source.absent if isinstance(source, SparseRows) else 0.0


def expanded(rows: sp.csr_array, absent: float) -> NDArray[Any]:
    """Row-compressed rows with ``absent`` in all other places, in a type that holds it."""
    if not np.isnan(absent):
        return np.asarray(rows.toarray(order="C"))
    out = np.full(rows.shape, absent, np.result_type(rows.dtype, np.float32))
    scatter(rows.data, rows.indices, rows.indptr, out)
    return out


def reads(source: ReadableRows, layout: Layout) -> Iterator[slice]:
    """Cut the source's rows at its own chunks, so that each is decoded once; data in memory at the layout's.

    Row-compressed rows are cut by their entries.
    """
    if isinstance(source, SparseRows):
        yield from source.pieces()
        return
    n, step = source.shape[0], source.chunk_rows or layout.chunk_rows
    first = -(source.offset % step) if isinstance(source, ZarrSource) else 0
    for start in range(first, n, step):
        yield slice(max(start, 0), min(start + step, n))


def rows_of_chunks(source: RowSource, runs: Sequence[slice]) -> int:
    """Number of rows in the chunks that hold any of these rows; of data in memory these alone."""
    step, offset = source.chunk_rows, getattr(source, "offset", 0)
    if step is None:
        return sum(run.stop - run.start for run in runs)
    chunks = {chunk for run in runs for chunk in range((offset + run.start) // step, -(-(offset + run.stop) // step))}
    n = source.shape[0]
    return sum(min((chunk + 1) * step - offset, n) - max(chunk * step - offset, 0) for chunk in chunks)


def path_of(source: RowSource) -> Place | None:
    """Where the source's array lies, if it is in a folder or at an address."""
    array = source.data if isinstance(source, SparseZarrSource) else getattr(source, "array", None)
    return place_of_store(getattr(array, "store", None))
