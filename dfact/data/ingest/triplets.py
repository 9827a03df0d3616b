"""import_triplets: a table of (row, column, value) becomes a row-compressed dataset, read twice and never held in memory."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from os import PathLike
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.ingest.external_sort import ENTRY, Entries, EntrySorter
from dfact.data.ingest.table import Codes, MissingCodes, check_columns, file_signature, require_unchanged
from dfact.data.ingest.writer import dataset_writer, storage_type
from dfact.data.readers.base import Table, open_table
from dfact.data.stored_dataset import open_dataset
from dfact.data.validation import invalid_value
from dfact.errors import DataError, ParameterError
from dfact.kernels.entries import all_whole, mask_codes
from dfact.storage.groups import ensure_absent
from dfact.storage.location import Location, parse_location

Duplicates = Literal["error", "mean", "first", "last", "sum"]

_DEALT_ENTRIES = 1 << 18  # entries that are dealt out to the runs at once, so that each gets more than a few
_MOST = np.iinfo(np.int32).max  # rows, and columns


def import_triplets(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    row: str = "row",
    column: str = "column",
    value: str = "value",
    shape: tuple[int, int] | None = None,
    duplicates: Duplicates = "error",
    missing: Codes = (),
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    delimiter: str | None = None,
) -> Dataset:
    """Write a table with an observed entry in each line as a row-compressed dataset: what no line names is missing.

    The table is read twice: first all of it is checked and its labels are numbered, then its entries
    are put in order in a temporary file (in TMPDIR, 24 bytes for each) and written. Memory holds the
    labels and a count for each row, never all entries; but all entries of any one row. Whole numbers are
    stored in the smallest of uint8, int16 and int32 that holds them (float64 if none does), anything else
    in single precision.

    Parameters
    ----------
    source : str or path
        A csv, tsv or txt file (tsv and txt with tabs), each also with .gz, or a parquet file. Text is
        UTF-8 with the column names in its first line.
    path : str or path
        Where the dataset goes (a folder, usually ``*.zarr``, or an address such as ``s3://bucket/a.zarr``).
    row, column : names
        The columns that say where an entry is: labels of any kind, which are numbered as they first
        appear and kept as the dataset's; or with ``shape`` whole numbers from 0.
    value : name
        The column with the entries. Empty cells and NaN are not observed, but their labels count.
    shape : pair of numbers
        Rows and columns of the dataset, where lines name them by number.
    duplicates : {"error", "mean", "first", "last", "sum"}
        What becomes of several observed values for one row and column.
    missing : numbers or texts
        Codes for a value that is not observed.
    overwrite : bool
        Replace the dataset that is there.
    progress : function
        Called with (rows done, rows in all) while the dataset is written, after the check.
    delimiter : character
        What separates the cells, where the file's ending does not tell.

    Returns
    -------
    Dataset
        (rows, columns), opened from ``path``; rows and columns without any entry are kept.

    Raises
    ------
    DataError
        An unknown column, text that is no number, an infinite value, an empty label, a number of a row or
        a column that is none or outside the shape, a repeated row and column, no value at all; with the
        line in the file (the header is line 1), or the row of a parquet file, counted from 0.
    ParameterError
        An argument that is not one of those above.
    StoreError
        ``source`` cannot be read; ``path`` exists, or cannot be written. Nothing is left behind.

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
    table = open_table(source, delimiter)
    before = file_signature(source)
    triplets = _triplets(table, row, column, value, shape, MissingCodes.of(missing))
    with EntrySorter(_count_rows(triplets)) as runs:
        for entries in _batches(triplets):
            require_unchanged(source, before)  # rows have the room that they were counted to need
            runs.add(entries)
        require_unchanged(source, before)
        dtype = _merge(runs, triplets, duplicates)
        _write(runs, triplets, path, dtype, overwrite, progress)
    pa.default_memory_pool().release_unused()  # Arrow keeps what it has freed
    return open_dataset(path)


class _Axis(Protocol):
    """The rows or the columns of the dataset."""

    @property
    def name(self) -> str:
        """Of the table's column that says which."""
        ...

    @property
    def labels(self) -> NDArray[Any] | None:
        """None where they are but numbers."""
        ...

    def __len__(self) -> int: ...

    def numbers(self, cells: Any, first: int) -> NDArray[np.int64]:
        """Which the cells name; ``first`` is the triplet of the first, for messages."""
        ...


class _Labels:
    """An axis whose labels are numbered in the order in which they first appear."""

    def __init__(self, table: Table, name: str) -> None:
        self.table, self.name = table, name
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def labels(self) -> NDArray[Any]:
        return np.array(list(self._numbers), dtype=object)

    def numbers(self, cells: pa.Array, first: int) -> NDArray[np.int64]:
        """The labels' numbers, new ones for new labels."""
        encoded = cells.dictionary_encode(null_encoding="encode")
        labels, codes = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False)
        empty = np.flatnonzero(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(labels), ""), True).to_numpy(zero_copy_only=False))
        if empty.size:
            place = self.table.place(first + int(np.isin(codes, empty).argmax()))
            raise DataError(f"{self.table.name}: {place} has no label in column {self.name!r}; every triplet needs one")
        # By each label's text once in a batch, in C.
        numbers: NDArray[np.int64] = np.fromiter(map(self._numbers.__getitem__, labels.to_pylist()), np.int64, len(labels))[codes]
        return numbers


class _Indices:
    """An axis whose rows or columns are given by number, from 0."""

    labels = None

    def __init__(self, table: Table, name: str, n: int) -> None:
        self.table, self.name, self._n = table, name, n

    def __len__(self) -> int:
        return self._n

    def numbers(self, cells: NDArray[np.float64], first: int) -> NDArray[np.int64]:
        """The cells, once they are known to be numbers of this axis."""
        wrong = np.flatnonzero(~((cells >= 0) & (cells < self._n) & (cells == np.floor(cells))))
        if wrong.size:
            found = cells[wrong[0]]
            where = f"{self.table.name}: {self.table.place(first + int(wrong[0]))}, column {self.name!r}"
            holds = "is empty" if np.isnan(found) else f"holds {found:.16g}"
            raise DataError(f"{where} {holds}, expected a whole number from 0 to {self._n - 1}; correct it, or leave out shape= for labels")
        return cells.astype(np.int64)


@dataclass(frozen=True)
class _Triplets:
    """The table's triplets, as often as they are read."""

    table: Table
    value: str
    missing: MissingCodes
    axes: tuple[_Axis, _Axis]
    """Of the rows and of the columns."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.axes[0]), len(self.axes[1])

    def entries(self) -> Iterator[Entries]:
        """The observed ones in the table's order."""
        names, done = [axis.name for axis in self.axes], 0
        labelled = isinstance(self.axes[0], _Labels)
        numeric, texts = ([], names) if labelled else (names, [])
        for numbers, cells in self.table.batches([self.value, *numeric], texts, self.missing.texts):
            values = np.ascontiguousarray(numbers[:, :1])
            mask_codes(values, self.missing.numbers)
            out = np.empty(len(values), ENTRY)
            for j, (field, axis) in enumerate(zip(("row", "column"), self.axes, strict=True)):
                out[field] = axis.numbers(cells.column(j) if labelled else numbers[:, 1 + j], done)
            out["value"], out["triplet"] = values[:, 0], np.arange(done, done + len(values))
            infinite = np.flatnonzero(np.isinf(values[:, 0]))
            if infinite.size:
                where = f"{self.table.name}: {self.table.place(done + int(infinite[0]))}, column {self.value!r}"
                raise invalid_value(where, np.inf, np.nan, np.nan)
            done += len(values)
            yield out[~np.isnan(out["value"])]

    def repeated(self, first: Any, again: Any) -> DataError:
        """The error for two of the same row and column."""
        (i, j), (row, column) = (first["row"], first["column"]), (axis.labels for axis in self.axes)
        what = f"row {i} and column {j}" if row is None or column is None else f"row {row[i]!r} and column {column[j]!r}"
        places = [self.table.place(int(entry["triplet"])) for entry in (first, again)]
        remedy = "remove one, or say what they give with duplicates= 'mean', 'first', 'last' or 'sum'"
        return DataError(f"{self.table.name}: {what} have a value at {places[0]} and again at {places[1]}; {remedy}")


def _triplets(table: Table, row: str, column: str, value: str, shape: Any, missing: MissingCodes) -> _Triplets:
    names = (row, column, value)
    check_columns(table, names)
    if len(set(names)) < len(names):
        raise ParameterError(f"row, column and value are {row!r}, {column!r} and {value!r}; each must be a column of its own")
    if shape is None:
        return _Triplets(table, value, missing, (_Labels(table, row), _Labels(table, column)))
    sizes = tuple(shape) if np.iterable(shape) else ()
    if len(sizes) != 2 or not all(isinstance(n, (int, np.integer)) and 1 <= n <= _MOST for n in sizes):
        raise ParameterError(f"shape is {shape!r}, expected a pair of whole numbers from 1 to {_MOST}")
    return _Triplets(table, value, missing, (_Indices(table, row, int(sizes[0])), _Indices(table, column, int(sizes[1]))))


def _count_rows(triplets: _Triplets) -> NDArray[np.int64]:
    """The number of entries of every row; this numbers the labels."""
    counts = np.zeros(0, np.int64)
    for entries in triplets.entries():
        n = triplets.shape[0]
        if n > len(counts):
            counts = np.concatenate([counts, np.zeros(max(n, 2 * len(counts)) - len(counts), np.int64)])
        np.add.at(counts, entries["row"], 1)
    if not counts.any():
        raise DataError(f"{triplets.table.name}: no triplet has a value; expected at least one")
    return counts[: triplets.shape[0]]


def _batches(triplets: _Triplets) -> Iterator[Entries]:
    """The entries, many at once."""
    held: list[Entries] = []
    for entries in triplets.entries():
        held.append(entries)
        if sum(map(len, held)) >= _DEALT_ENTRIES:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _merge(runs: EntrySorter, triplets: _Triplets, duplicates: Duplicates) -> np.dtype[Any]:
    """Put the entries of every run in the order of the matrix, one for each place; returns the type that holds them."""
    low, high, whole = np.inf, -np.inf, True
    for i in range(len(runs.rows())):
        entries = runs.read(i)
        if len(entries) == 0:
            continue
        entries = _resolve_duplicates(entries, triplets, duplicates)
        values = np.ascontiguousarray(entries["value"])
        low, high, whole = min(low, values.min()), max(high, values.max()), whole and all_whole(values[None])
        runs.replace(i, entries)
    return storage_type(low, high, whole=whole)


def _resolve_duplicates(entries: Entries, triplets: _Triplets, duplicates: Duplicates) -> Entries:
    """The entries by row and column, those of one place as one."""
    keys = entries["row"] * np.int64(_MOST) + entries["column"]
    order = np.argsort(keys, kind="stable")
    entries, keys = entries[order], keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    if len(starts) == len(entries):
        return entries
    ends = np.append(starts[1:], len(entries))
    if duplicates == "error":
        again = np.setdiff1d(np.arange(len(entries)), starts)
        i = again[entries["triplet"][again].argmin()]
        raise triplets.repeated(entries[i - 1], entries[i])
    merged: Entries = entries[ends - 1 if duplicates == "last" else starts]
    if duplicates in ("mean", "sum"):
        with np.errstate(over="ignore"):  # what is infinite then is refused where it is written
            merged["value"] = np.add.reduceat(entries["value"], starts)
    if duplicates == "mean":
        merged["value"] /= ends - starts
    return merged


def _write(
    runs: EntrySorter,
    triplets: _Triplets,
    path: Location,
    dtype: np.dtype[Any],
    overwrite: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the runs, in the order of the matrix, as a dataset."""
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
        row_compressed=True,
        implicit_value=np.nan,
        overwrite=overwrite,
    ) as writer:
        for i, run in enumerate(runs.rows()):
            entries = runs.read(i)
            indptr = np.searchsorted(entries["row"], np.arange(run.start, run.stop + 1))
            data, indices = entries["value"].astype(dtype), np.ascontiguousarray(entries["column"])
            writer.append(sp.csr_array((data, indices, indptr), shape=(run.stop - run.start, n_columns)))
            if progress is not None:
                progress(run.stop, n)
        writer.finish(row_labels=rows)
