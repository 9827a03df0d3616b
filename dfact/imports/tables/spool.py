"""The spool of an import: rows of a table in scratch objects, until what has to be known before the first one is stored is known.

A table is read once. The type of the stored values, the lowest answers and the empty rows are only known after the last row, so the
rows wait in a scratch store, each batch in the smallest type that holds it exactly. What is known at the end does not depend on the
parts of the table, on the batches or on the executor.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype

from dfact.data.statistics import ColumnStatistics
from dfact.data.validation import EmptyRows, empty_row
from dfact.errors import StoreError
from dfact.imports.coding.answers import AnswerCoding, Problem
from dfact.imports.readers.base import Table, TablePart
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.writing.storage_types import missing_code_for, smallest_integer
from dfact.imports.writing.tasks import TaskPool, check_running, location_for_tasks
from dfact.internals.zarr import sync
from dfact.kernels.entries import all_whole, recode
from dfact.storage.groups import open_store
from dfact.storage.location import Location

_OBJECT_ENTRIES = 1 << 20  # entries of a spooled object: few requests to an object store, and little memory
_CODEC = Blosc(cname="lz4", clevel=1, shuffle=Blosc.BITSHUFFLE)


Progress = Callable[[int, int, str], None]
"""Function of what is done, of its total, and of its unit: "bytes read" or "rows written"."""


@dataclass(frozen=True)
class _Segment:
    """Spooled rows of one type: bytes start to stop of an object."""

    n_rows: int
    dtype: np.dtype[Any]
    start: int
    stop: int


@dataclass(frozen=True)
class SpooledObject:
    """A scratch object with rows (n, c), which begin at ``first_row`` of their part, later of the table."""

    key: str
    first_row: int
    n_columns: int
    segments: tuple[_Segment, ...]

    @property
    def n_rows(self) -> int:
        return sum(segment.n_rows for segment in self.segments)

    def read(self, store: Store) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the number of the first row of each segment, and its rows, in which :func:`spooled_code` stands for missing entries."""
        content = sync(store.get(self.key, default_buffer_prototype()))
        if content is None:
            raise StoreError(f"{store} lacks the rows {self.key}: it was deleted during the import; import the table again")
        data, row = memoryview(content.to_bytes()), self.first_row
        for segment in self.segments:
            rows = np.empty((segment.n_rows, self.n_columns), segment.dtype)
            _CODEC.decode(data[segment.start : segment.stop], rows)
            yield row, rows
            row += segment.n_rows


@dataclass
class Spooled:
    """Rows of a table in a scratch store, and what is known about them."""

    statistics: ColumnStatistics
    text_batches: list[pa.RecordBatch] = field(default_factory=list)
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Numbers of missing and of doubtful answers, by item and code."""
    empty_batches: list[NDArray[np.intp]] = field(default_factory=list)
    n_zero: int = 0
    """Number of rows whose answers are all 0."""
    integers: bool = True
    """Whether every answer is a whole number."""
    objects: list[SpooledObject] = field(default_factory=list)

    @cached_property
    def texts(self) -> pa.Table:
        """The text columns of every row."""
        return pa.Table.from_batches(self.text_batches)

    @cached_property
    def empty(self) -> NDArray[np.intp]:
        """Numbers of the rows without any answer, ascending."""
        return np.concatenate([np.empty(0, np.intp), *self.empty_batches])

    @property
    def n_kept(self) -> int:
        """Number of rows that have an answer."""
        return self.statistics.n_rows - len(self.empty)

    def add(self, following: "Spooled") -> None:
        """Add the following rows."""
        start = self.statistics.n_rows
        self.statistics.merge(following.statistics)
        self.text_batches += following.text_batches
        self.counts.update(following.counts)
        self.empty_batches += [start + rows for rows in following.empty_batches]
        self.n_zero += following.n_zero
        self.integers = self.integers and following.integers
        self.objects += [replace(each, first_row=start + each.first_row) for each in following.objects]

    def remarks(self, name: str) -> list[str]:
        """Return what a person should know about the rows of the table of this name."""
        if not self.n_zero:
            return []
        count = f"{self.n_zero} of {self.statistics.n_rows} participants answered 0 to all items"
        return [f"{name}: {count}; if 0 is not an answer, declare it (--missing 0). dfact fit gom treats 0 as missing (dfact help classes)"]


def spool(table: Table, coding: AnswerCoding, empty_rows: EmptyRows, pool: TaskPool, progress: Progress | None) -> Spooled:
    """Read all parts of the table once, code and check them, and store their rows in the pool's scratch store.

    Raises DataError for the first invalid row of the table. ``progress`` is called with bytes, where their number is known.
    """
    parts = list(table.parts())
    location = location_for_tasks(pool.scratch)
    tasks = [(number, part, coding, empty_rows, location) for number, part in enumerate(parts)]
    spooled = Spooled(ColumnStatistics.of_columns(len(coding.items)))
    done = accumulate(part.n_bytes for part in parts)
    total = sum(part.n_bytes for part in parts) if all(part.n_bytes for part in parts) else 0

    def receive(result: tuple[Spooled, Problem | None]) -> None:
        part, problem = result
        if problem is not None:
            position = table.row_position(spooled.statistics.n_rows + problem.row)
            raise empty_row(table.name, position) if problem.item is None else coding.error(problem, table.name, position)
        spooled.add(part)
        if progress is not None and total:
            progress(next(done), total, "bytes read")

    pool.run(_spool_part, tasks, receive)
    spooled.statistics.minimum += 0  # the sign of a zero would depend on the order of batches
    spooled.statistics.maximum += 0
    return spooled


def _spool_part(task: tuple[int, TablePart, AnswerCoding, EmptyRows, Location]) -> tuple[Spooled, Problem | None]:
    """Read, check and store a part, up to its first invalid row. Executed again, after its worker was lost, it writes the same objects."""
    number, part, coding, empty_rows, location = task
    store = open_store(location)
    check_running(store)
    writer = _SpoolWriter(store, number, len(coding.items))
    spooled = Spooled(ColumnStatistics.of_columns(len(coding.items)))
    for batch in read_cells(part, coding.numbers, coding.texts, coding.missing_texts):
        rows = coding(batch)
        statistics = ColumnStatistics.of_columns(len(coding.items))
        empty = np.flatnonzero(statistics.update(rows.values) == 0)
        problems = [] if rows.problem is None else [rows.problem]
        if empty.size and empty_rows == "error":
            problems.append(Problem(int(empty[0]), None))
        if problems:
            first = min(problems, key=lambda problem: problem.row)
            return spooled, first._replace(row=spooled.statistics.n_rows + first.row)
        integers = all_whole(rows.values)
        if len(rows.values):
            writer.append(_narrow(rows.values, statistics, integers=integers))
        n_zero = _count_zero_rows(rows.values) - empty.size
        spooled.add(Spooled(statistics, [rows.texts], rows.counts, [empty], n_zero, integers))
        del batch, rows  # their memory is free while the next batch is read
    spooled.objects = writer.finish()
    pa.default_memory_pool().release_unused()  # otherwise Arrow's pool retains freed memory
    return spooled, None


def _count_zero_rows(values: NDArray[np.float64]) -> int:
    """Count the rows without an answer other than 0."""
    others = values != 0
    others &= values == values  # NaN differs from itself, and isnan would take another array
    return int(np.count_nonzero(~others.any(axis=1)))


def _narrow(values: NDArray[np.float64], statistics: ColumnStatistics, *, integers: bool) -> NDArray[Any]:
    """Convert answers to the smallest type that holds them exactly, NaN to the type's missing code."""
    dtype = smallest_integer(statistics.minimum.min(), statistics.maximum.max()) if integers else None
    if dtype is not None:
        out = np.empty(values.shape, dtype)
        recode(values, np.nan, np.zeros(values.shape[1]), spooled_code(dtype), out)
        return out
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single, values, equal_nan=True) else values


def spooled_code(dtype: np.dtype[Any]) -> float:
    """Return the number that stands for a missing entry among values of a type."""
    code = missing_code_for(dtype)
    return np.nan if code is None else float(code)


class _SpoolWriter:
    """A writer of the rows of a part as objects of compressed segments, one for each batch."""

    def __init__(self, store: Store, number: int, n_columns: int) -> None:
        self._store, self._number, self._n_columns = store, number, n_columns
        self._objects: list[SpooledObject] = []
        self._segments: list[_Segment] = []
        self._bytes = bytearray()
        self._n_rows = self._n_entries = 0

    def append(self, rows: NDArray[Any]) -> None:
        start = len(self._bytes)
        self._bytes += _CODEC.encode(np.ascontiguousarray(rows))
        self._segments.append(_Segment(len(rows), rows.dtype, start, len(self._bytes)))
        self._n_entries += rows.size
        if self._n_entries >= _OBJECT_ENTRIES:
            self._flush()

    def finish(self) -> list[SpooledObject]:
        if self._segments:
            self._flush()
        return self._objects

    def _flush(self) -> None:
        check_running(self._store)
        spooled = SpooledObject(f"{self._number}/{len(self._objects)}", self._n_rows, self._n_columns, tuple(self._segments))
        sync(self._store.set(spooled.key, default_buffer_prototype().buffer.from_bytes(bytes(self._bytes))))
        self._objects.append(spooled)
        self._n_rows += spooled.n_rows
        self._segments, self._bytes, self._n_entries = [], bytearray(), 0
