"""import_triplets: write a table of (row, column, value) as a sparse dataset, reading it twice without loading it into memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from os import PathLike
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.stored_dataset import open_dataset
from dfact.data.validation import invalid_value
from dfact.errors import DataError, ParameterError
from dfact.imports.coding.rules import Codes, ParsedCodes, parse_codes
from dfact.imports.readers.base import ReadOptions, Table
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import TableSource, open_source, open_table
from dfact.imports.tables.items import check_columns
from dfact.imports.tables.table import require_unchanged
from dfact.imports.writing.bucket_file import BucketFile
from dfact.imports.writing.storage_types import storage_type
from dfact.imports.writing.writer import Participants, Progress, dataset_writer
from dfact.kernels.entries import all_whole, mask_codes
from dfact.lazy import sp
from dfact.storage.groups import ensure_absent
from dfact.storage.location import Location, parse_location

Duplicates = Literal["error", "mean", "first", "last", "sum"]

_BUCKET_ENTRIES = 1 << 20  # maximum number of entries in a bucket of several rows: 24 MB
_BATCH_ENTRIES = 1 << 18  # entries that are distributed to the buckets together, so that each receives long sequences
_MAX_SIZE = np.iinfo(np.int32).max  # maximum number of rows, and of columns
_ENTRY = np.dtype([("row", np.int32), ("column", np.int32), ("value", np.float64), ("triplet", np.int64)])
"""Type of an entry; ``triplet`` is its number in the order of the table."""
_Entries = NDArray[Any]
"""Array of the type ``_ENTRY``."""


def import_triplets(
    source: TableSource,
    path: str | PathLike[str],
    *,
    row: str = "row",
    column: str = "column",
    value: str = "value",
    shape: tuple[int, int] | None = None,
    duplicates: Duplicates = "error",
    missing: Codes = (),
    overwrite: bool = False,
    progress: Progress | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
) -> Dataset:
    """Write a table with one observed entry per line as a sparse dataset; all entries that have no line are missing.

    The table is read twice: the first pass checks it and numbers its labels, the second one sorts its entries
    in a temporary file (in TMPDIR, 24 bytes for each entry) and writes the dataset. Memory holds the
    labels, a count for each row and the entries of one range of rows, never all entries. Whole numbers are
    stored in the smallest of uint8, int16 and int32 that holds them (float64 if none does), all other numbers
    in single precision.

    Parameters
    ----------
    source : str, path or data frame
        A data frame of pandas, polars, pyarrow or DuckDB (anything with ``__arrow_c_stream__``), or a file: csv, tsv or txt
        (tsv and txt separated by tabs), also compressed as .gz, or a parquet file. Text is
        UTF-8 with the column names in its first line.
    path : str or path
        Location of the new dataset (a folder, usually ``*.zarr``, or a URL such as ``s3://bucket/a.zarr``).
    row, column : names
        The table's columns that hold the row and the column of an entry: labels of any kind, which are numbered in the order in which
        they first appear and become the dataset's labels; or, with ``shape``, whole numbers from 0.
    value : name
        The column with the entries. Empty cells and NaN are missing, but their labels still make a row and a column.
    shape : pair of numbers
        Numbers of rows and columns of the dataset, for tables that number rows and columns from 0. Without it, the
        cells of ``row`` and ``column`` become labels.
    duplicates : {"error", "mean", "first", "last", "sum"}
        Treatment of several observed values for one row and column.
    missing : numbers or texts
        Codes for a missing value.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with (rows written, total rows) while the dataset is written.
    delimiter : character
        Separator of the cells, for files whose suffix does not determine it.
    decimal : "." or ","
        Decimal mark of a text file, by default a point.
    thousands : character or "space"
        Mark between thousands in a text file, by default none.

    Returns
    -------
    Dataset
        The new dataset (rows, columns), opened from ``path``; rows and columns without any entry are kept.

    Raises
    ------
    DataError
        An unknown column, text in place of a number, an infinite value, an empty label, an invalid number of a row or
        a column, a duplicate entry, no value at all. The message
        names the line of the file (the header is line 1), or the row of a parquet file, counted from 0.
    ParameterError
        An invalid argument.
    StoreError
        ``source`` cannot be read; ``path`` exists, or cannot be written. No partial dataset is left.

    Examples
    --------
    >>> import dfact, pandas as pd
    >>> times = pd.DataFrame({"user": ["Ada", "Ada", "Ben"], "service": ["mail", "chat", "mail"], "seconds": [0.2, 0.1, 0.3]})
    >>> times.to_csv("times.csv", index=False)
    >>> dfact.import_triplets("times.csv", "times.zarr", row="user", column="service", value="seconds")
    <Dataset 2×2 float32, 25.00% missing at times.zarr>
    """
    path = parse_location(path)
    if duplicates not in get_args(Duplicates):
        raise ParameterError(f"duplicates is {duplicates!r}, expected one of {', '.join(map(repr, get_args(Duplicates)))}")
    ensure_absent(path, overwrite=overwrite)
    file = open_source(source)
    table = open_table(file, ReadOptions(delimiter=delimiter, decimal=decimal, thousands=thousands))
    before = file.signature()
    triplets = _open_triplets(table, row, column, value, shape, parse_codes(missing))
    bounds, sizes = _cut_rows(_count_row_entries(triplets))
    with BucketFile(sizes, _ENTRY, purpose="triplets", what="the triplets") as buckets:
        for entries in _batches(triplets):
            require_unchanged(file, before)  # the sizes of the buckets follow from the first pass
            buckets.add(np.searchsorted(bounds, entries["row"], side="right") - 1, entries)
        require_unchanged(file, before)
        dtype = _sort_buckets(buckets, triplets, duplicates)
        _write(buckets, bounds, triplets, path, dtype, overwrite, progress)
    pa.default_memory_pool().release_unused()  # otherwise Arrow's pool retains freed memory
    return open_dataset(path)


class _LabelledAxis:
    """An axis with labels, numbered in the order in which they first appear."""

    def __init__(self, table: Table, name: str) -> None:
        self.table, self.name = table, name
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def labels(self) -> NDArray[Any]:
        """Labels in the order of their numbers."""
        return np.array(list(self._numbers), dtype=object)

    def numbers(self, cells: pa.Array, first: int) -> NDArray[np.int64]:
        """Return the labels' numbers, and number new labels."""
        encoded = cells.dictionary_encode(null_encoding="encode")
        labels, codes = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False)
        empty = np.flatnonzero(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(labels), ""), True).to_numpy(zero_copy_only=False))
        if empty.size:
            position = self.table.row_position(first + int(np.isin(codes, empty).argmax()))
            raise DataError(f"{self.table.name}: {position} has no label in column {self.name!r}, expected one in every triplet; add it")
        # Each distinct label of the batch is looked up once, in C.
        numbers: NDArray[np.int64] = np.fromiter(map(self._numbers.__getitem__, labels.to_pylist()), np.int64, len(labels))[codes]
        return numbers


class _NumberedAxis:
    """An axis without labels, with numbers from 0."""

    labels = None

    def __init__(self, table: Table, name: str, n: int) -> None:
        self.table, self.name, self._n = table, name, n

    def __len__(self) -> int:
        return self._n

    def numbers(self, cells: NDArray[np.float64], first: int) -> NDArray[np.int64]:
        """Return the cells as integers; raise DataError unless they are valid numbers of this axis."""
        invalid = np.flatnonzero(~((cells >= 0) & (cells < self._n) & (cells == np.floor(cells))))
        if invalid.size:
            number = cells[invalid[0]]
            position = f"{self.table.name}: {self.table.row_position(first + int(invalid[0]))}, column {self.name!r}"
            content = "is empty" if np.isnan(number) else f"holds {number:.16g}"
            remedy = "correct it, or leave out shape= for labels"
            raise DataError(f"{position} {content}, expected a whole number from 0 to {self._n - 1}; {remedy}")
        return cells.astype(np.int64)


_Axis = _LabelledAxis | _NumberedAxis
"""The rows or the columns of the dataset."""


@dataclass(frozen=True)
class _Triplets:
    """The triplets (row, column, value) of a table, which can be read repeatedly."""

    table: Table
    value: str
    missing: ParsedCodes
    axes: tuple[_Axis, _Axis]
    """Axes of the rows and of the columns."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.axes[0]), len(self.axes[1])

    def entries(self) -> Iterator[_Entries]:
        """Yield the observed entries in the table's order."""
        names, n_read = [axis.name for axis in self.axes], 0
        labelled = isinstance(self.axes[0], _LabelledAxis)
        numeric, texts = ([], names) if labelled else (names, [])
        for numbers, cells, _ in read_cells(self.table, [self.value, *numeric], texts, self.missing.texts):
            values = np.ascontiguousarray(numbers[:, :1])
            mask_codes(values, np.asarray(self.missing.numbers, np.float64))
            out = np.empty(len(values), _ENTRY)
            for j, (field, axis) in enumerate(zip(("row", "column"), self.axes, strict=True)):
                out[field] = axis.numbers(cells.column(j) if labelled else numbers[:, 1 + j], n_read)
            out["value"], out["triplet"] = values[:, 0], np.arange(n_read, n_read + len(values))
            infinite = np.flatnonzero(np.isinf(values[:, 0]))
            if infinite.size:
                entry = f"{self.table.name}: {self.table.row_position(n_read + int(infinite[0]))}, column {self.value!r}"
                raise invalid_value(entry, np.inf, np.nan, np.nan)
            n_read += len(values)
            yield out[~np.isnan(out["value"])]

    def duplicate_error(self, first: Any, second: Any) -> DataError:
        """Return the error for two entries of the same row and column."""
        (i, j), (row, column) = (first["row"], first["column"]), (axis.labels for axis in self.axes)
        entry = f"row {i} and column {j}" if row is None or column is None else f"row {row[i]!r} and column {column[j]!r}"
        positions = [self.table.row_position(int(triplet["triplet"])) for triplet in (first, second)]
        remedy = "remove one, or combine them with duplicates= 'mean', 'first', 'last' or 'sum' (--duplicates)"
        remedy += "; entries that a further column, such as a visit, tells apart are a tensor: import an array (dfact import-array)"
        return DataError(f"{self.table.name}: {entry} have values at {positions[0]} and {positions[1]}, expected one value; {remedy}")


def _open_triplets(table: Table, row: str, column: str, value: str, shape: Any, missing: ParsedCodes) -> _Triplets:
    names = (row, column, value)
    check_columns(table, names)
    if len(set(names)) < len(names):
        raise ParameterError(f"row, column and value are {row!r}, {column!r} and {value!r}, expected three different columns")
    if shape is None:
        return _Triplets(table, value, missing, (_LabelledAxis(table, row), _LabelledAxis(table, column)))
    sizes = tuple(shape) if np.iterable(shape) else ()
    if len(sizes) != 2 or not all(isinstance(n, (int, np.integer)) and 1 <= n <= _MAX_SIZE for n in sizes):
        raise ParameterError(f"shape is {shape!r}, expected a pair of whole numbers from 1 to {_MAX_SIZE}")
    n_rows, n_columns = map(int, sizes)
    return _Triplets(table, value, missing, (_NumberedAxis(table, row, n_rows), _NumberedAxis(table, column, n_columns)))


def _count_row_entries(triplets: _Triplets) -> NDArray[np.int64]:
    """Count the entries of every row; this first pass also numbers the labels."""
    counts = np.zeros(0, np.int64)
    for entries in triplets.entries():
        n = triplets.shape[0]
        if n > len(counts):
            counts = np.concatenate([counts, np.zeros(max(n, 2 * len(counts)) - len(counts), np.int64)])
        np.add.at(counts, entries["row"], 1)
    if not counts.any():
        raise DataError(f"{triplets.table.name}: no triplet has a value, expected at least one")
    return counts[: triplets.shape[0]]


def _cut_rows(counts: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Cut the rows into buckets with a bounded number of entries, or of a single row.

    Returns the first row of each bucket, with the number of rows at the end, and the number of entries in each bucket.
    """
    ends = np.concatenate([[0], np.cumsum(counts)])
    bounds = [0]
    while bounds[-1] < len(counts):
        last = int(np.searchsorted(ends, ends[bounds[-1]] + _BUCKET_ENTRIES, side="right")) - 1
        bounds.append(max(last, bounds[-1] + 1))
    return np.array(bounds), np.diff(ends[bounds])


def _batches(triplets: _Triplets) -> Iterator[_Entries]:
    """Yield the entries in larger batches."""
    buffer: list[_Entries] = []
    for entries in triplets.entries():
        buffer.append(entries)
        if sum(map(len, buffer)) >= _BATCH_ENTRIES:
            yield np.concatenate(buffer)
            buffer = []
    if buffer:
        yield np.concatenate(buffer)


def _sort_buckets(buckets: BucketFile, triplets: _Triplets, duplicates: Duplicates) -> np.dtype[Any]:
    """Sort each bucket (a range of rows) by row and column, and resolve duplicates; return the type that holds all values."""
    low, high, integers = np.inf, -np.inf, True
    for i in range(len(buckets)):
        entries = buckets.read(i)
        if len(entries) == 0:
            continue
        entries = _resolve_duplicates(entries, triplets, duplicates)
        values = np.ascontiguousarray(entries["value"])
        low, high, integers = min(low, values.min()), max(high, values.max()), integers and all_whole(values[None])
        buckets.replace(i, entries)
    return storage_type(low, high, integers=integers)


def _resolve_duplicates(entries: _Entries, triplets: _Triplets, duplicates: Duplicates) -> _Entries:
    """Sort entries by row and column and combine those of the same row and column."""
    keys = entries["row"] * np.int64(_MAX_SIZE) + entries["column"]
    order = np.argsort(keys, kind="stable")
    entries, keys = entries[order], keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    if len(starts) == len(entries):
        return entries
    ends = np.append(starts[1:], len(entries))
    if duplicates == "error":
        repeated = np.setdiff1d(np.arange(len(entries)), starts)
        i = repeated[entries["triplet"][repeated].argmin()]
        raise triplets.duplicate_error(entries[i - 1], entries[i])
    merged: _Entries = entries[ends - 1 if duplicates == "last" else starts]
    if duplicates in ("mean", "sum"):
        with np.errstate(over="ignore"):  # the writer refuses infinite sums
            merged["value"] = np.add.reduceat(entries["value"], starts)
    if duplicates == "mean":
        merged["value"] /= ends - starts
    return merged


def _write(
    buckets: BucketFile,
    bounds: NDArray[np.intp],
    triplets: _Triplets,
    path: Location,
    dtype: np.dtype[Any],
    overwrite: bool,
    progress: Progress | None,
) -> None:
    """Write the sorted buckets as a dataset."""
    n, n_columns = triplets.shape
    rows, columns = (axis.labels for axis in triplets.axes)
    with dataset_writer(
        path,
        (n, n_columns),
        dtype,
        missing_code=None,
        column_labels=np.arange(n_columns).astype(str).astype(object) if columns is None else columns,
        name=triplets.table.name,
        empty="keep",
        sparse=True,
        implicit_value=np.nan,
        overwrite=overwrite,
    ) as writer:
        writer.finish(writer.write(_read_rows(buckets, bounds, dtype, n_columns), progress=progress), Participants(rows))


def _read_rows(buckets: BucketFile, bounds: NDArray[np.intp], dtype: np.dtype[Any], n_columns: int) -> Iterator[sp.csr_array]:
    """Yield the rows of each sorted bucket."""
    for i, (start, stop) in enumerate(pairwise(bounds.tolist())):
        entries = buckets.read(i)
        indptr = np.searchsorted(entries["row"], np.arange(start, stop + 1))
        data, indices = entries["value"].astype(dtype), np.ascontiguousarray(entries["column"])
        yield sp.csr_array((data, indices, indptr), shape=(stop - start, n_columns))
