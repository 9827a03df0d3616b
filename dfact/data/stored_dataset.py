"""Datasets in a Zarr store: their values and metadata, written and checked when they are opened."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple
from functools import partial
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.catalogue import load
from dfact.data.codebook import Codebook
from dfact.data.confounders import PlausibleRange
from dfact.data.dataset import KIND, Dataset, Genotypes, StoredConfounder, confounder_codes, fingerprint, read_variants
from dfact.data.layout import Layout
from dfact.data.replicate_weights import METHODS, ReplicateWeights
from dfact.data.sources.base import RowSource, ZarrSource
from dfact.data.sources.sparse import StoredCSRSource
from dfact.data.statistics import ColumnStatistics
from dfact.data.weights import are_valid
from dfact.errors import DataError, DfactError, StoreError
from dfact.lazy import pd, sp
from dfact.storage.arrays import (
    MAX_CHUNK_BYTES,
    WRITE_EMPTY_CHUNKS,
    compressor_for,
    member,
    read_errors,
    read_labels,
    read_numbers,
    write_array,
    write_labels,
)
from dfact.storage.groups import attributes, open_group, update_attributes
from dfact.storage.location import Location, parse_location
from dfact.storage.seals import SEAL, chunk_positions

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


_POPULATION = "population"
_WEIGHTS = "weights"
_REPLICATES = "replicate_weights"
_ADDED: dict[str, Any] = {"codebook": False, "confounder_ranges": {}, "dropped_columns": 0, "weights": None, _REPLICATES: None}
"""Attributes that the first datasets of format version 2 lack, with the values that these stand for."""
_PLAIN = re.compile(r"\w[\w .+-]{0,60}(?<![ .])", re.ASCII)
"""Names that are valid after ``confounder_`` as the name of a folder on every operating system."""


def write_metadata(group: zarr.Group, dataset: Dataset, *, numbered_rows: bool) -> None:
    """Write all of the dataset but its values: arrays, then attributes.

    ``numbered_rows`` states whether the row labels are merely the numbers of the rows before some were dropped.
    """
    _write_arrays(group, dataset)
    confounders, replicates, statistics = dataset.confounders, dataset.replicate_weights, dataset.statistics
    update_attributes(
        group,
        shape=list(dataset.shape),
        dtype=dataset.dtype.str,
        missing_code=dataset.missing_code,
        confounders=[] if confounders is None else [str(name) for name in confounders],
        confounder_arrays=[] if confounders is None else confounder_arrays(confounders),
        confounder_ranges={name: astuple(limits) for name, limits in dataset.confounder_ranges.items()},
        row_labels=dataset.labels is not None,
        codebook=dataset.codebook is not None,
        weights=None if dataset.weights is None else str(dataset.weights.name),
        replicate_weights=(
            None
            if replicates is None
            else {"names": list(replicates.names), "method": replicates.method, "scales": replicates.scales.tolist()}
        ),
        dropped_rows=dataset.dropped_rows,
        dropped_columns=dataset.genotypes.dropped_variants,
        empty_rows=statistics.empty_rows,
        n_empty_rows=statistics.n_empty_rows,
        numbered_rows=numbered_rows,
        fingerprint=dataset.stored_fingerprint,
    )


def _write_arrays(group: zarr.Group, dataset: Dataset) -> None:
    write_labels(group, "column", dataset.column_labels, "column")
    if dataset.labels is not None:
        write_labels(group, "row", dataset.labels, "row")
    if dataset.codebook is not None:
        write_labels(group, "codebook", dataset.codebook.to_texts(), "column")
    for mode, labels in enumerate(dataset.mode_labels, start=3):
        if labels is not None:
            write_labels(group, f"mode_{mode}", labels, f"mode_{mode}")
    for name, data in (
        ("valid_minimum", dataset.valid_range[:, 0]),
        ("valid_maximum", dataset.valid_range[:, 1]),
        ("offset", dataset.offset),
    ):
        write_array(group, name, data, ("column",))
    statistics = dataset.statistics
    entries = "column" if len(dataset.shape) == 2 else "entry"
    write_array(group, "observed", statistics.observed, (entries,))
    write_array(group, "minimum", statistics.minimum, (entries,))
    write_array(group, "maximum", statistics.maximum, (entries,))
    if dataset.confounders is not None:
        names = confounder_arrays(dataset.confounders.columns)
        for name, (_, values) in zip(names, dataset.confounders.items(), strict=True):
            _write_values_of_rows(group, name, values)
    if dataset.weights is not None:
        write_array(group, _WEIGHTS, dataset.weights.to_numpy(), ("row",))
    if dataset.replicate_weights is not None:
        replicates = np.asarray(dataset.replicate_weights.values)
        column = max(1, len(replicates)), 1  # columns are read one at a time
        write_array(group, _REPLICATES, replicates, ("row", "replicate"), chunks=column)
    if dataset.genotypes.population is not None:
        _write_values_of_rows(group, _POPULATION, pd.Series(dataset.genotypes.population))


def _write_values_of_rows(group: zarr.Group, name: str, values: pd.Series[Any]) -> None:
    """Write a number or a level for each row."""
    codes, levels = confounder_codes(values)
    extra: dict[str, Any] = {"levels": levels, "_FillValue": -1} if levels is not None else {}
    write_array(group, name, codes, ("row",), **extra)


def confounder_arrays(names: Iterable[Any]) -> list[str]:
    """Name the arrays of the confounders: by the confounder if that is a valid folder name on every system, else by number.

    Names that differ in case alone are the same folder on some systems, and "a/b" is two folders on all.
    """
    plain = [str(name) for name in names]
    cases = Counter(map(str.casefold, plain))
    return [
        f"confounder_{name}" if _PLAIN.fullmatch(name) and cases[name.casefold()] == 1 else f"confounder-{i}"
        for i, name in enumerate(plain)
    ]


def _check_values(source: RowSource, info: dict[str, Any], path: Location) -> None:
    """Raise StoreError unless the values have the shape and the type that the import recorded."""
    stored, recorded = [[*source.shape], source.dtype.str], [info["shape"], info["dtype"]]
    if stored != recorded:
        raise StoreError(f"{path}: its values are {stored[0]} of {stored[1]}, expected {recorded[0]} of {recorded[1]}; import it again")


def open_dataset(path: str | PathLike[str]) -> Dataset:
    """Open a dataset that an import or :func:`join_datasets` wrote.

    Parameters
    ----------
    path : path or URL
        Zarr store of the dataset, such as ``answers.zarr`` or ``s3://bucket/answers.zarr``.

    Returns
    -------
    Dataset
        Its values stay in the store, and are read when they are needed.

    Raises
    ------
    StoreError
        There is no dataset at ``path``, its import was interrupted, or any part is missing or inconsistent.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> imported = dfact.import_array(np.array([[1, 2], [3, 0]]), "answers.zarr", missing=0)
    >>> dfact.open_dataset("answers.zarr").fingerprint == imported.fingerprint
    True
    """
    path = parse_location(path)
    if isinstance(path, Path) and path.is_file():
        import_command = load("dfact.imports.readers.formats:import_command")  # by name: what imports a file lies above datasets
        raise StoreError(f"{path} is a file, expected a dataset; import it: {import_command(str(path), path.stem)}")
    try:
        return _read_dataset(open_group(path, KIND), path)
    except DfactError:
        raise
    except Exception as error:  # invalid attributes cause errors of all kinds
        raise StoreError(f"{path} is damaged: {error or type(error).__name__}; import it again") from error


def _read_dataset(group: zarr.Group, path: Location) -> Dataset:
    info = _with_added(group)
    source = open_values(group, path)
    _check_values(source, info, path)
    n, m = source.shape[:2]
    n_entries = prod(source.shape[1:])
    statistics = ColumnStatistics(
        read_numbers(group, "observed", n_entries),
        read_numbers(group, "minimum", n_entries),
        read_numbers(group, "maximum", n_entries),
        n,
        info["empty_rows"],
        info["n_empty_rows"],
    )
    columns = read_labels(group, "column", m)
    dataset = Dataset(
        source=source,
        missing_code=info["missing_code"],
        column_labels=columns,
        valid_range=np.stack([read_numbers(group, "valid_minimum", m), read_numbers(group, "valid_maximum", m)], axis=1),
        offset=read_numbers(group, "offset", m),
        statistics=statistics,
        confounder_source=_read_confounders(group, info, n),
        path=path,
        dropped_rows=info["dropped_rows"],
        codebook=Codebook.from_texts(read_labels(group, "codebook", m), columns) if info["codebook"] else None,
        confounder_ranges={name: PlausibleRange(*values) for name, values in info["confounder_ranges"].items()},
        weights=None if info["weights"] is None else pd.Series(read_numbers(group, _WEIGHTS, n), name=info["weights"], dtype=np.float64),
        replicate_weights=_read_replicates(group, info[_REPLICATES], n, path),
        genotypes=Genotypes(
            _read_values_of_rows(group, _POPULATION, n, _POPULATION).column() if member(group, _POPULATION) is not None else None,
            info["dropped_columns"],
            partial(read_variants, group, m),
        ),
        stored_fingerprint=info["fingerprint"],
        mode_labels=tuple(
            read_labels(group, f"mode_{mode}", size) if member(group, f"mode_{mode}") is not None else None
            for mode, size in enumerate(source.shape[2:], start=3)
        ),
    )
    if info["row_labels"] and complete_array(group, "row", path).shape != (n,):
        raise StoreError(f"{path}: the row labels do not match its {n} rows; import it again")
    _check_consistency(dataset)
    return dataset


def _with_added(group: zarr.Group) -> dict[str, Any]:
    """Return the attributes with those that were added later; raise KeyError for one that has been lost."""
    stored = attributes(group)
    added = {name: value for name, value in _ADDED.items() if name not in stored}
    for name in added.keys() & set(group.array_keys() if added else ()):
        raise KeyError(name)  # the dataset has a codebook or weights
    return added | stored


def _read_confounders(group: zarr.Group, info: dict[str, Any], n: int) -> tuple[StoredConfounder, ...] | None:
    stored = zip(info["confounders"], info["confounder_arrays"], strict=True)
    return tuple(_read_values_of_rows(group, array, n, name) for name, array in stored) or None


def _read_replicates(group: zarr.Group, info: dict[str, Any] | None, n: int, path: Location) -> ReplicateWeights | None:
    """Return the replicate weights, which stay in the store."""
    if info is None:
        return None
    array = complete_array(group, _REPLICATES, path)
    if array.shape != (n, len(info["names"])) or array.dtype.kind != "f" or len(info["scales"]) != array.shape[1]:
        raise StoreError(f"{path}: the replicate weights are {array.shape}, expected {n} rows; import it again")
    return ReplicateWeights(array, tuple(info["names"]), info["method"], np.asarray(info["scales"], np.float64))


def _read_values_of_rows(group: zarr.Group, array: str, n: int, name: str) -> StoredConfounder:
    values = read_numbers(group, array, n)
    levels: Any = group[array].attrs.get("levels")
    if levels is not None:
        known = isinstance(levels, list) and all(isinstance(level, str) for level in levels) and len(set(levels)) == len(levels)
        if not known or values.dtype.kind not in "iu" or (n and not -1 <= values.min() <= values.max() < len(levels)):
            raise ValueError(f"{array} holds numbers of levels that do not exist")
    return StoredConfounder(name, values, levels)


def _check_consistency(dataset: Dataset) -> None:
    """Raise StoreError on values that no import writes, because the rest of dfact relies on them."""
    n, statistics, code = dataset.shape[0], dataset.statistics, dataset.missing_code
    low, high = dataset.valid_range.T
    observed = statistics.observed > 0
    ranges = dataset.confounder_ranges
    counts = [
        dataset.dropped_rows,
        dataset.genotypes.dropped_variants,
        statistics.n_empty_rows,
        *statistics.empty_rows,
        *(limits.n_outside for limits in ranges.values()),
    ]
    valid_code = code is None or (
        type(code) is int and dataset.dtype.kind in "iu" and np.iinfo(dataset.dtype).min <= code <= np.iinfo(dataset.dtype).max
    )
    checks = {
        "missing_code": valid_code,
        "valid_minimum, valid_maximum": bool((np.isfinite(low) & np.isfinite(high) & (low <= high)).all()),
        "offset": bool(np.isfinite(dataset.offset).all()),
        "observed": statistics.observed.dtype.kind in "iu" and bool(((statistics.observed >= 0) & (statistics.observed <= n)).all()),
        "minimum, maximum": bool((statistics.minimum <= statistics.maximum)[observed].all()),
        "confounder_ranges": all(np.isfinite([limits.low, limits.high]).all() and limits.low <= limits.high for limits in ranges.values()),
        "dropped_rows, dropped_columns, n_empty_rows, empty_rows, ranges": all(type(count) is int and count >= 0 for count in counts),
        "empty_rows": statistics.n_empty_rows <= n and all(row < n for row in statistics.empty_rows),
        "population": dataset.genotypes.population is None or isinstance(dataset.genotypes.population, pd.Categorical),
        "weights": dataset.weights is None or are_valid(dataset.weights),
        _REPLICATES: dataset.replicate_weights is None or (dataset.weights is not None and dataset.replicate_weights.method in METHODS),
        "fingerprint": isinstance(dataset.stored_fingerprint, str),
    }
    invalid = [name for name, valid in checks.items() if not valid]
    if invalid:
        raise StoreError(f"{dataset.path} is damaged: {invalid[0]}: invalid values; import it again")


_SHOWN = 5  # damaged chunks in a message


def verify_dataset(path: Location) -> str:
    """Read all of the dataset at ``path``, compare it with its seal, and state what was compared.

    A dataset without a seal is compared with its fingerprint.

    Raises
    ------
    StoreError
        Parts are missing, damaged, or of another version of the dataset. It names them.
    """
    group = open_group(path, KIND)
    arrays = {name: member for name, member in sorted(group.members(max_depth=None)) if isinstance(member, zarr.Array)}
    damaged, count = [], 0
    for name, array in arrays.items():
        for position in chunk_positions(array.cdata_shape):
            count += 1
            try:
                with read_errors(f"chunk {', '.join(map(str, position))} of array {name!r} of {path}"):
                    np.asarray(array.blocks[position])
            except StoreError as error:
                damaged.append(str(error))
    if damaged:
        more = f"\n… and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
        raise StoreError(f"{len(damaged)} of {count} chunks are not those that were written:\n" + "\n".join(damaged[:_SHOWN]) + more)
    if SEAL in attributes(group):
        return f"{count} chunks of {len(arrays)} arrays and all attributes are those that were written"
    dataset = open_dataset(path)
    found = fingerprint(dataset, dataset.source.digests(), dataset.source.implicit_value)
    if found != dataset.fingerprint:
        raise StoreError(
            f"{path}: its contents have the fingerprint {found}, expected {dataset.fingerprint}: parts are of another version; "
            "copy the store again, completely, or import it again"
        )
    return (
        f"no seal: {count} chunks of {len(arrays)} arrays are undamaged, and values, labels, "
        "ranges, confounders and weights have its fingerprint; codebook and statistics are not known to be of the same version. "
        "Import it again for a seal"
    )
