"""Arrays in HDF5 files, dense and sparse, which are read by rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.memory_limit import require_memory
from dfact.data.sources.base import contiguous
from dfact.data.sources.sparse import CSRSource, SparseSource
from dfact.errors import DataError
from dfact.formats.file_source import FileSource
from dfact.formats.isolation.parsers import Parser, parse
from dfact.imports.readers.arrays.array_files import file_errors, require_stored
from dfact.storage.input_files import InputFile

HDF5 = Parser("HDF5", ("h5py",))
SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MAX_CHUNK_BYTES = 1 << 30
_UNWRITTEN_BYTES = 1 << 26  # arrays that are larger must have been written in their greater part
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


@contextmanager
def open_file(file: InputFile) -> Iterator[Any]:
    """Open an HDF5 file; errors of its library become a DataError."""
    import h5py

    with file_errors(file.name, "HDF5"), file.open() as stream, h5py.File(stream, "r") as opened:
        yield opened


def is_numeric(item: Any) -> bool:
    """Check whether an object of a file is an array of real numbers."""
    return getattr(item, "dtype", None) is not None and item.dtype.kind in "biuf" and item.shape is not None


@dataclass(frozen=True, eq=False)
class HDF5Source(FileSource):
    """Rows of a dense array."""

    parser = HDF5

    def read_stored(self, index: tuple[slice, ...]) -> NDArray[Any]:
        with open_file(self.file) as opened:
            values: NDArray[Any] = opened[self.name][index]
        return values


def dense_source(file: InputFile, name: str, dataset: Any, *, reverse: bool = False) -> HDF5Source:
    """Return a source of the rows of a dense array; raise DataError if its header is implausible."""
    described = f"{name} of {file.name}"
    if dataset.is_virtual or dataset.external:
        raise DataError(f"{described} keeps its values in other files, expected them in the file; copy it into one file")
    shape, chunks, n_bytes = dataset.shape, dataset.chunks, dataset.size * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    if chunks is not None:
        chunk_bytes = prod(chunks) * dataset.dtype.itemsize
        if chunk_bytes > _MAX_CHUNK_BYTES:
            found = f"{described} has chunks of {chunk_bytes / 2**30:.1f} GiB, expected at most 1 GiB"
            raise DataError(f"{found}; write it with smaller chunks, such as with h5repack")
        stored = dataset.id.get_num_chunks() * chunk_bytes
    if n_bytes > _UNWRITTEN_BYTES and stored < n_bytes / 2:
        size = "×".join(map(str, shape))
        raise DataError(f"{described} declares the shape {size}, most of which was never written; export it again")
    return HDF5Source(file, name, shape, dataset.dtype, chunks, reverse).check_size(max(stored, 1))


@dataclass(frozen=True, eq=False)
class _CompressedSource(SparseSource):
    """Base of the sources of a matrix in three arrays of a file."""

    file: InputFile
    name: str
    members: tuple[str, str, str]
    """Names of the arrays of values, of numbers of columns (or rows), and of positions in the group ``name``."""
    full_shape: tuple[int, int]
    stored_type: np.dtype[Any]
    n_entries: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.full_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored_type

    @property
    def row_entries(self) -> float:
        return self.n_entries / max(1, self.shape[0])

    def _compressed(self, start: int, stop: int, n_minor: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Read the values, numbers and positions of the rows (or columns) start to stop, and check them."""
        indptr = self._positions(start, stop)
        with open_file(self.file) as opened:
            data, indices, _ = (opened[self.name][member] for member in self.members)
            first, last = int(indptr[0]), int(indptr[-1])
            numbers = indices[first:last].astype(np.int64 if n_minor > np.iinfo(np.int32).max else np.int32)
            if last > first and (numbers.min() < 0 or numbers.max() >= n_minor):
                raise DataError(f"{self.name} of {self.file.name} has numbers of columns beyond its shape; export it again")
            return contiguous(data[first:last]), numbers, indptr - first

    def _positions(self, start: int, stop: int) -> NDArray[np.int64]:
        with open_file(self.file) as opened:
            indptr = opened[self.name][self.members[2]][start : stop + 1].astype(np.int64)
        complete = len(indptr) == stop - start + 1
        # SciPy would read beyond the entries where these are wrong.
        if not complete or indptr[0] < 0 or indptr[-1] > self.n_entries or (indptr[1:] < indptr[:-1]).any():
            raise DataError(f"{self.name} of {self.file.name} has invalid positions of rows {start} to {stop}; export it again")
        return np.asarray(indptr)

    def _transposed_fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(_CompressedSource)} | {"full_shape": self.full_shape[::-1]}


@dataclass(frozen=True, eq=False)
class HDF5CSRSource(_CompressedSource):
    """Rows of a matrix that is stored by rows; nothing is held in memory."""

    @property
    def chunk_rows(self) -> int:
        return self.range_rows

    @property
    def T(self) -> "HDF5CSCSource":
        """The transposed matrix."""
        return HDF5CSCSource(**self._transposed_fields())

    def indptr(self, start: int, stop: int) -> NDArray[Any]:
        return parse(self.file, HDF5, self._positions, start, stop)

    def read_native(self, start: int, stop: int) -> sp.csr_array:
        return parse(self.file, HDF5, self._rows, start, stop)

    def _rows(self, start: int, stop: int) -> sp.csr_array:
        m = self.shape[1]
        matrix = sp.csr_array(self._compressed(start, stop, m), shape=(stop - start, m))
        matrix.sum_duplicates()  # AnnData also writes matrices whose column numbers do not ascend
        return matrix

    def slice(self, rows: slice) -> CSRSource:
        start, stop, _ = rows.indices(self.shape[0])
        return CSRSource(self.read_native(start, stop), implicit_value=self.implicit_value)


@dataclass(frozen=True, eq=False)
class HDF5CSCSource(_CompressedSource):
    """Rows of a matrix that is stored by columns; the first read loads all of it."""

    @property
    def T(self) -> HDF5CSRSource:
        """The transposed matrix, which is stored by rows."""
        return HDF5CSRSource(**self._transposed_fields())

    @cached_property
    def _loaded(self) -> CSRSource:
        n, m = self.full_shape
        need = 3 * self.n_entries * (self.dtype.itemsize + 4) + 16 * (n + m)
        require_memory(f"{self.name} of {self.file.name}", need, "it is stored by columns: write it by rows (CSR), or import --transpose")
        return CSRSource(parse(self.file, HDF5, self._matrix), implicit_value=self.implicit_value)

    def _matrix(self) -> sp.csr_array:
        n, m = self.full_shape
        matrix = sp.csr_array(sp.csc_array(self._compressed(0, m, n), shape=(n, m)))
        matrix.sum_duplicates()
        return matrix

    def indptr(self, start: int, stop: int) -> NDArray[Any]:
        return self._loaded.indptr(start, stop)

    def read_native(self, start: int, stop: int) -> sp.csr_array:
        return self._loaded.read_native(start, stop)

    def slice(self, rows: slice) -> CSRSource:
        return self._loaded.slice(rows)


def sparse_source(
    file: InputFile, name: str, group: Any, shape: Sequence[int], *, members: tuple[str, str, str], by_rows: bool
) -> HDF5CSRSource | HDF5CSCSource:
    """Return a source of the rows of a sparse matrix; raise DataError if its header is implausible."""
    described = f"{name} of {file.name}"
    absent = [member for member in members if not is_numeric(group.get(member)) or len(group[member].shape) != 1]
    if absent:
        raise DataError(f"{described} lacks {', '.join(absent)}, expected a sparse matrix; the file is damaged: export it again")
    data, indices, positions = (group[member] for member in members)
    n, m = (int(size) for size in shape)
    n_stored, n_major = int(data.shape[0]), n if by_rows else m
    if n < 1 or m < 1 or indices.shape[0] != n_stored or positions.shape[0] != n_major + 1 or indices.dtype.kind not in "iu":
        found = f"{n_stored} values, {indices.shape[0]} numbers and {positions.shape[0]} positions for the shape {n}×{m}"
        raise DataError(f"{described} has {found}, expected as many numbers as values and a position for each row; export it again")
    stored = sum(int(member.id.get_storage_size()) for member in (data, indices, positions))
    require_stored(described, (n, m), n_stored * (data.dtype.itemsize + 4) + 8 * (n + m), stored)
    return (HDF5CSRSource if by_rows else HDF5CSCSource)(file, name, members, (n, m), data.dtype, n_stored)


def read_texts(item: Any) -> NDArray[Any]:
    """Read an array of texts or numbers as texts: also AnnData's categories, of its present and earlier layout."""
    import h5py

    if isinstance(item, h5py.Group):
        if "codes" not in item or "categories" not in item:
            raise DataError(f"{item.name} holds {item.attrs.get('encoding-type', 'a group')}, expected texts or categories")
        return _categories(item["codes"], item["categories"])
    reference = item.attrs.get("categories")
    if isinstance(reference, h5py.Reference):
        return _categories(item, item.file[reference])
    texts = h5py.check_string_dtype(item.dtype) is not None
    require_stored(item.name, item.shape, item.size * item.dtype.itemsize, int(item.id.get_storage_size()))
    if not texts and item.dtype.kind not in "biuf":
        raise DataError(f"{item.name} holds {item.dtype}, expected texts or numbers")
    values = np.asarray(item.asstr(errors="replace")[()] if texts else item[()])
    return values.astype(str).astype(object)


def _categories(codes: Any, categories: Any) -> NDArray[Any]:
    numbers, texts = np.asarray(codes[()]), read_texts(categories)
    if numbers.size and (numbers.min() < -1 or numbers.max() >= len(texts)):
        raise DataError(f"{codes.name} has numbers beyond its {len(texts)} categories; export the file again")
    labels: NDArray[Any] = np.append(texts, "").astype(object)[numbers]  # −1, the missing category, is the last one
    return labels


def dimension_labels(dataset: Any) -> tuple[NDArray[Any] | None, ...]:
    """Read the scales that are attached to the axes of a dataset, as texts."""
    labels: list[NDArray[Any] | None] = []
    for size, axis in zip(dataset.shape, dataset.dims, strict=True):
        scale = axis[0] if len(axis) else None
        # A file of NetCDF's model has a scale for each dimension, also for those without coordinates.
        valid = scale is not None and scale.shape == (size,) and not bytes(scale.attrs.get("NAME", b"")).startswith(_NO_VARIABLE)
        labels.append(read_texts(scale) if valid else None)
    return tuple(labels)
