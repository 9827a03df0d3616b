"""The values of a dataset in its store: one dense array, or three arrays of a CSR matrix.

CSR values are a group ``values`` of ``data``, ``indices`` and ``indptr`` with the attributes of AnnData's
``csr_matrix`` (encoding, shape), so that its readers can open them, and the attribute ``implicit``: whether implicit
entries are "zero" or "missing". The chunks of ``data`` and ``indices`` are numbers of entries, independent of the rows;
``indptr`` locates any range of rows.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.data.sources.dense import ZarrSource
from dfact.data.sources.sparse import StoredCSRSource
from dfact.errors import DataError, StoreError
from dfact.lazy import sp
from dfact.storage.arrays import MAX_CHUNK_BYTES, WRITE_EMPTY_CHUNKS, compressor_for, member
from dfact.storage.location import Location

VALUES = "values"
"""Name of the array or the group of the values in the store."""
_CHUNK_ENTRIES = 1 << 20  # entries in a chunk of data or of column numbers: 1 to 8 MB
_INDPTR_CHUNK = 1 << 16
_ENCODING = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
_IMPLICIT_VALUES = {"zero": 0.0, "missing": np.nan}
_UNWRITTEN = -1  # the fill value, which other readers return for a missing chunk: invalid as a column and as a position


class DenseWriter:
    """A writer of dense rows, in chunks with all columns unless tasks write chunks with fewer."""

    def __init__(self, group: zarr.Group, shape: tuple[int, ...], dtype: np.dtype[Any], missing_code: int | None) -> None:
        chunk_rows = Layout.of(shape).chunk_rows
        n_bytes = chunk_rows * prod(shape[1:]) * dtype.itemsize
        if n_bytes > MAX_CHUNK_BYTES:
            raise DataError(
                f"values of {'×'.join(map(str, shape))} in {dtype} have chunks of {n_bytes / 2**30:.1f} GiB, expected at most "
                f"{MAX_CHUNK_BYTES / 2**30:.1f} GiB; store a smaller type, or fewer rows in each of several datasets"
            )
        self._group, self._shape, self._missing_code = group, shape, missing_code
        self._array: zarr.Array[Any] | None = None
        self._buffer = np.empty((chunk_rows, *shape[1:]), dtype)
        self._filled = self._written = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows in their stored type."""
        while len(rows):
            room = len(self._buffer) - self._filled
            fitting, rows = rows[:room], rows[room:]
            self._buffer[self._filled : self._filled + len(fitting)] = fitting
            self._filled += len(fitting)
            if self._filled == len(self._buffer):
                self._flush()

    def finish(self, n_rows: int) -> None:
        """Write the remaining rows; ``n_rows`` is the total number of rows."""
        if self._filled:
            self._flush()
        if self._array is not None and n_rows < self._array.shape[0]:
            self._array.resize((n_rows, *self._array.shape[1:]))

    def _flush(self) -> None:
        rows = self._buffer[: self._filled]
        if self._array is None:
            self._array = self.create(rows)
        self._array[self._written : self._written + self._filled] = rows
        self._written += self._filled
        self._filled = 0

    def create(self, sample: NDArray[Any], chunk_columns: int | None = None) -> zarr.Array[Any]:
        """Create the array, compressed as rows like ``sample`` need it, in chunks with all columns or with some."""
        chunk_rows, *tail = self._buffer.shape
        return self._group.create_array(
            VALUES,
            shape=self._shape,
            chunks=(chunk_rows, *(tail if chunk_columns is None else [chunk_columns])),
            dtype=sample.dtype,
            fill_value=0 if self._missing_code is None else self._missing_code,
            compressors=compressor_for(sample),
            dimension_names=("row", "column", *(f"mode_{i}" for i in range(3, len(self._shape) + 1))),
            attributes=_fill_attribute(self._missing_code),
            config=WRITE_EMPTY_CHUNKS,
        )


class CSRWriter:
    """A writer of CSR rows; the number of stored entries need not be known beforehand."""

    def __init__(
        self, group: zarr.Group, shape: tuple[int, ...], dtype: np.dtype[Any], missing_code: int | None, implicit_value: float
    ) -> None:
        self._group, self._n_columns, self._n_entries = group.create_group(VALUES), shape[1], 0
        self._implicit_value = "missing" if np.isnan(implicit_value) else "zero"
        self._data = ChunkedVector(self._group, "data", dtype, 0, _CHUNK_ENTRIES, "entry", _fill_attribute(missing_code))
        self._indices = ChunkedVector(self._group, "indices", np.dtype(np.int32), _UNWRITTEN, _CHUNK_ENTRIES, "entry", {})
        self._indptr = ChunkedVector(self._group, "indptr", np.dtype(np.int64), _UNWRITTEN, _INDPTR_CHUNK, "position", {})
        self._indptr.extend(np.zeros(1, np.int64))

    def append(self, rows: sp.csr_array) -> None:
        """Add rows in their stored type."""
        self._data.extend(rows.data)
        self._indices.extend(rows.indices.astype(np.int32, copy=False))
        self._indptr.extend(self._n_entries + rows.indptr[1:].astype(np.int64))
        self._n_entries += rows.nnz

    def finish(self, n_rows: int) -> None:
        """Write the remaining rows; ``n_rows`` is the total number of rows."""
        for vector in (self._data, self._indices, self._indptr):
            vector.finish()
        self._group.attrs.update({**_ENCODING, "shape": [n_rows, self._n_columns], "implicit": self._implicit_value})


class ChunkedVector:
    """An array of one dimension that grows by complete chunks, so that each is written once."""

    def __init__(
        self, group: zarr.Group, name: str, dtype: np.dtype[Any], fill: int, chunk: int, dimension: str, attributes: dict[str, Any]
    ) -> None:
        self._group, self._name, self._fill, self._chunk = group, name, fill, chunk
        self._dimension, self._attributes = dimension, attributes
        self._array: zarr.Array[Any] | None = None
        self._buffer, self._n_buffered = [np.empty(0, dtype)], 0

    def extend(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        self._buffer.append(values)
        self._n_buffered += len(values)
        if self._n_buffered >= self._chunk:
            self._write(self._n_buffered // self._chunk * self._chunk)

    def finish(self) -> None:
        """Write the last, incomplete chunk."""
        if self._n_buffered or self._array is None:
            self._write(self._n_buffered)

    def _write(self, n: int) -> None:
        values = np.concatenate(self._buffer)
        if self._array is None:
            self._array = self._create(values[:n])
        self._array.append(values[:n])
        self._buffer, self._n_buffered = [values[n:].copy()], len(values) - n

    def _create(self, sample: NDArray[Any]) -> zarr.Array[Any]:
        return self._group.create_array(
            self._name,
            shape=(0,),
            chunks=(self._chunk,),
            dtype=sample.dtype,
            fill_value=self._fill,
            compressors=compressor_for(sample),
            dimension_names=(self._dimension,),
            attributes=self._attributes,
            config=WRITE_EMPTY_CHUNKS,
        )


def _fill_attribute(missing_code: int | None) -> dict[str, Any]:
    """Return the attribute by which xarray recognizes the missing code."""
    return {} if missing_code is None else {"_FillValue": missing_code}


def open_values(group: zarr.Group, path: Location) -> RowSource:
    """Open the values of the dataset at ``path``, dense or CSR; raise StoreError if any part is missing."""
    values = member(group, VALUES)
    if not isinstance(values, zarr.Group):
        array = _check_numeric(complete_array(group, VALUES, path), path)
        if array.ndim > 2 and array.chunks[1:] != array.shape[1:]:
            raise StoreError(
                f"{path}: the chunks of 'values' are {array.chunks}, expected complete rows of {array.shape[1:]}; import it again"
            )
        return ZarrSource(array)
    encoding = {name: values.attrs.get(name) for name in _ENCODING}
    if encoding != _ENCODING:
        raise StoreError(f"{path}: the encoding of 'values' is {encoding}, expected {_ENCODING}; import it again")
    data, indices, indptr = (complete_array(group, f"{VALUES}/{name}", path) for name in ("data", "indices", "indptr"))
    implicit: Any = values.attrs.get("implicit")
    if implicit not in _IMPLICIT_VALUES:
        expected = ", ".join(map(repr, _IMPLICIT_VALUES))
        raise StoreError(f"{path}: the implicit entries of 'values' are {implicit!r}, expected one of {expected}; import it again")
    shape: Any = values.attrs.get("shape", [0, 0])
    n, n_columns = indptr.shape[0] - 1, complete_array(group, "observed", path).shape[0]
    if (
        {data.ndim, indices.ndim, indptr.ndim} != {1}
        or [indices.dtype, indptr.dtype] != [np.dtype(np.int32), np.dtype(np.int64)]
        or min(n, n_columns) < 1
    ):
        found = ", ".join(f"{array.dtype} {array.shape}" for array in (data, indices, indptr))
        raise StoreError(f"{path}: the arrays of 'values' are {found}, expected the types of a CSR matrix; import it again")
    source = StoredCSRSource(data, indices, indptr, n_columns, implicit_value=_IMPLICIT_VALUES[implicit])
    _check_numeric(data, path)
    # Compares the shape in the attributes with the arrays, and the numbers of entries of the arrays with each other.
    if [*shape, indices.shape[0], data.shape[0]] != [n, n_columns, data.shape[0], int(source.indptr(n, n)[0])]:
        raise StoreError(f"{path}: the arrays of 'values' are inconsistent; import it again")
    return source


def _check_numeric(array: zarr.Array[Any], path: Location) -> zarr.Array[Any]:
    """Return the array; raise StoreError unless it holds rows of numbers."""
    if array.dtype.kind not in "iuf" or (array.ndim > 1 and 0 in array.shape):
        raise StoreError(f"{path} holds values of {array.dtype} and shape {array.shape}, expected rows of numbers; import it again")
    return array


def complete_array(group: zarr.Group, name: str, path: Location) -> zarr.Array[Any]:
    """Return an array of the store; raise StoreError if it or any of its chunks is missing."""
    array = member(group, name)
    if not isinstance(array, zarr.Array):
        raise StoreError(f"{path} lacks its array {name!r}; import it again")
    if array.size and array.nchunks_initialized < array.nchunks:
        raise StoreError(
            f"{path}: {name!r} has {array.nchunks_initialized} chunks, expected {array.nchunks}; import it again, or copy the lost ones "
            "(dfact info --verify names them)"
        )
    return array
