"""How the values of a dataset lie in its store: one array, or row-compressed in three; writing and opening both.

Row-compressed values are a group ``values`` of ``data``, ``indices`` and ``indptr`` with the attributes
of AnnData's ``csr_matrix`` (encoding, shape), so that its readers know them too, and ``implicit_value``: whether
entries that are not stored are "zero" or "missing". Data and column numbers are cut by entries,
whatever rows they belong to; with the edges any run of rows is found.
"""

from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.data.sources.dense import ZarrSource
from dfact.data.sources.sparse import StoredCSRSource
from dfact.errors import StoreError
from dfact.storage.groups import WRITE_EMPTY_CHUNKS, compressor_for
from dfact.storage.location import Location

_NAME = "values"
_ENTRIES = 1 << 20  # a chunk of data or of column numbers: 1 to 8 MB
_INDPTR_CHUNK = 1 << 16
_ENCODING = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
_IMPLICIT_VALUES = {"zero": 0.0, "missing": np.nan}
_UNWRITTEN = -1  # what a chunk that is not there reads as: neither a column nor an edge


class ValuesWriter(Protocol):
    """Takes the rows of a dataset in order."""

    def append(self, rows: Any) -> None:
        """Add rows in their stored type."""
        ...

    def finish(self, n_rows: int) -> None:
        """Write what is left; there were ``n_rows`` rows in all."""
        ...


class DenseWriter:
    """Rows in chunks of whole rows."""

    def __init__(self, group: zarr.Group, shape: tuple[int, ...], dtype: np.dtype[Any], missing_code: int | None) -> None:
        chunk_rows = Layout.of(shape).chunk_rows
        self._group, self._shape, self._missing_code = group, shape, missing_code
        self._array: zarr.Array[Any] | None = None
        self._buffer = np.empty((chunk_rows, *shape[1:]), dtype)
        self._filled = self._written = 0

    def append(self, rows: NDArray[Any]) -> None:
        while len(rows):
            room = len(self._buffer) - self._filled
            part, rows = rows[:room], rows[room:]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == len(self._buffer):
                self._flush()

    def finish(self, n_rows: int) -> None:
        if self._filled:
            self._flush()
        if self._array is not None and n_rows < self._array.shape[0]:
            self._array.resize((n_rows, *self._array.shape[1:]))

    def _flush(self) -> None:
        rows = self._buffer[: self._filled]
        if self._array is None:
            self._array = self._create(rows)
        self._array[self._written : self._written + self._filled] = rows
        self._written += self._filled
        self._filled = 0

    def _create(self, sample: NDArray[Any]) -> zarr.Array[Any]:
        return self._group.create_array(
            _NAME,
            shape=self._shape,
            chunks=self._buffer.shape,
            dtype=sample.dtype,
            fill_value=0 if self._missing_code is None else self._missing_code,
            compressors=compressor_for(sample),
            dimension_names=("row", "column", *(f"mode_{i}" for i in range(3, len(self._shape) + 1))),
            attributes=_fill_attribute(self._missing_code),
            config=WRITE_EMPTY_CHUNKS,
        )


class CSRWriter:
    """Stored entries one after the other; the number of them need not be known beforehand."""

    def __init__(
        self, group: zarr.Group, shape: tuple[int, ...], dtype: np.dtype[Any], missing_code: int | None, implicit_value: float
    ) -> None:
        self._group, self._n_columns, self._n_entries = group.create_group(_NAME), shape[1], 0
        self._implicit_value = "missing" if np.isnan(implicit_value) else "zero"
        self._data = ChunkedVector(self._group, "data", dtype, 0, _ENTRIES, "entry", _fill_attribute(missing_code))
        self._indices = ChunkedVector(self._group, "indices", np.dtype(np.int32), _UNWRITTEN, _ENTRIES, "entry", {})
        self._indptr = ChunkedVector(self._group, "indptr", np.dtype(np.int64), _UNWRITTEN, _INDPTR_CHUNK, "edge", {})
        self._indptr.extend(np.zeros(1, np.int64))

    def append(self, rows: sp.csr_array) -> None:
        self._data.extend(rows.data)
        self._indices.extend(rows.indices.astype(np.int32, copy=False))
        self._indptr.extend(self._n_entries + rows.indptr[1:].astype(np.int64))
        self._n_entries += rows.nnz

    def finish(self, n_rows: int) -> None:
        for series in (self._data, self._indices, self._indptr):
            series.finish()
        self._group.attrs.update({**_ENCODING, "shape": [n_rows, self._n_columns], "implicit": self._implicit_value})


class ChunkedVector:
    """An array of one dimension that grows by whole chunks, so that each is written once."""

    def __init__(
        self, group: zarr.Group, name: str, dtype: np.dtype[Any], fill: int, chunk: int, dimension: str, attributes: dict[str, Any]
    ) -> None:
        self._group, self._name, self._fill, self._chunk = group, name, fill, chunk
        self._dimension, self._attributes = dimension, attributes
        self._array: zarr.Array[Any] | None = None
        self._held, self._n_held = [np.empty(0, dtype)], 0

    def extend(self, values: NDArray[Any]) -> None:
        self._held.append(values)
        self._n_held += len(values)
        if self._n_held >= self._chunk:
            self._write(self._n_held // self._chunk * self._chunk)

    def finish(self) -> None:
        if self._n_held or self._array is None:
            self._write(self._n_held)

    def _write(self, n: int) -> None:
        values = np.concatenate(self._held)
        if self._array is None:
            self._array = self._create(values[:n])
        self._array.append(values[:n])
        self._held, self._n_held = [values[n:].copy()], len(values) - n

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
    """What tells xarray which code is missing."""
    return {} if missing_code is None else {"_FillValue": missing_code}


def open_values(group: zarr.Group, path: Location) -> RowSource:
    """The values of the dataset at ``path``, whichever way they lie there; StoreError if anything of them is gone."""
    values = group.get(_NAME)
    if not isinstance(values, zarr.Group):
        array = _checked(complete_array(group, _NAME, path), path)
        if array.chunks[1:] != array.shape[1:]:
            raise StoreError(
                f"{path}: the chunks of 'values' are {array.chunks}, expected whole rows of {array.shape[1:]}; import it again"
            )
        return ZarrSource(array)
    found = {name: values.attrs.get(name) for name in _ENCODING}
    if found != _ENCODING:
        raise StoreError(f"{path} holds values encoded as {found}, this dfact reads {_ENCODING}")
    data, indices, indptr = (complete_array(group, f"{_NAME}/{name}", path) for name in ("data", "indices", "indptr"))
    implicit_value = str(values.attrs.get("implicit", "zero"))  # the first stores do not say
    if implicit_value not in _IMPLICIT_VALUES:
        raise StoreError(
            f"{path} holds values whose absent entries are {implicit_value!r}, this dfact knows {', '.join(map(repr, _IMPLICIT_VALUES))}"
        )
    shape: Any = values.attrs.get("shape", [0, 0])
    n, n_columns = indptr.shape[0] - 1, complete_array(group, "observed", path).shape[0]
    if (
        {data.ndim, indices.ndim, indptr.ndim} != {1}
        or [indices.dtype, indptr.dtype] != [np.dtype(np.int32), np.dtype(np.int64)]
        or min(n, n_columns) < 1
    ):
        raise StoreError(f"{path}: the arrays of 'values' are of other types than an import writes; import it again")
    source = StoredCSRSource(data, indices, indptr, n_columns, implicit_value=_IMPLICIT_VALUES[implicit_value])
    _checked(data, path)
    # Rows and columns as the attributes and as the arrays say; entries as each array says.
    if [*shape, indices.shape[0], data.shape[0]] != [n, n_columns, data.shape[0], int(source.indptr(n, n)[0])]:
        raise StoreError(f"{path}: the arrays of 'values' do not belong together; import it again")
    return source


def _checked(array: zarr.Array[Any], path: Location) -> zarr.Array[Any]:
    """The array, if it is one of numbers that an import writes."""
    if array.dtype.kind not in "iuf" or (array.ndim > 1 and 0 in array.shape):
        raise StoreError(f"{path} holds values of {array.dtype} and shape {array.shape}, expected rows of numbers; import it again")
    return array


def complete_array(group: zarr.Group, name: str, path: Location) -> zarr.Array[Any]:
    """The array as it lies in the store; StoreError if it or a chunk of it is gone."""
    array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise StoreError(f"{path} lacks its array {name!r}; import it again")
    if array.size and array.nchunks_initialized < array.nchunks:
        raise StoreError(f"{path}: only {array.nchunks_initialized} of {array.nchunks} chunks of {name!r} are there; import it again")
    return array
