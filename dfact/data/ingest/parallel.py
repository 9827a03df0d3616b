"""The two stages of a parallel import: parts of a table are read and spooled, then runs of chunks are written.

A table is read once. What has to be known before the first row can be stored (the type, the lowest answers, the empty rows)
is only known after the last one, so the rows wait in a scratch store, each batch in the smallest type that holds it exactly.
The result does not depend on the parts, on the batches or on the executor.
"""
# Long because both stages share the format of the spooled objects.

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

import numpy as np
import pyarrow as pa
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr import open_array
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype

from dfact.data.ingest.coding import AnswerCoding, Problem
from dfact.data.ingest.stack import Instances
from dfact.data.ingest.tasks import TaskPool, check_running
from dfact.data.ingest.writer import DatasetWriter, StoredRows, missing_code_for, smallest_integer
from dfact.data.layout import Layout
from dfact.data.readers.base import Table, TablePart
from dfact.data.readers.columnar.columns import read_cells
from dfact.data.run_digests import RunDigests, run_rows
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_values import VALUES
from dfact.data.validation import EmptyRows, empty_row
from dfact.errors import StoreError
from dfact.internals.zarr import sync
from dfact.kernels.entries import all_whole, recode
from dfact.storage.arrays import WRITE_EMPTY_CHUNKS
from dfact.storage.groups import open_store
from dfact.storage.location import Location, absolute
from dfact.storage.zarr_stores import location_of

_OBJECT_ENTRIES = 1 << 20  # entries of a spooled object: few requests to an object store, and little memory
_SPOOL_CODEC = Blosc(cname="lz4", clevel=1, shuffle=Blosc.BITSHUFFLE)


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
class _Object:
    """A spooled object, whose rows begin at ``first_row`` of its part, later of the table."""

    key: str
    first_row: int
    segments: tuple[_Segment, ...]

    @property
    def n_rows(self) -> int:
        return sum(segment.n_rows for segment in self.segments)


@dataclass
class _Part:
    """The result of reading a part."""

    statistics: ColumnStatistics
    n_bytes: int
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    integers: bool = True
    texts: list[pa.RecordBatch] = field(default_factory=list)
    empty: list[NDArray[np.intp]] = field(default_factory=list)
    n_zero: int = 0
    objects: list[_Object] = field(default_factory=list)
    problem: Problem | None = None
    """The first invalid row."""


@dataclass(frozen=True)
class Spooled:
    """All rows of a table in a scratch store, and what is known about them."""

    statistics: ColumnStatistics
    integers: bool
    """Whether every answer is a whole number."""
    texts: pa.Table
    """The text columns of every row."""
    counts: Counter[tuple[int, str]]
    """Numbers of missing and of doubtful answers, by item and code."""
    empty: NDArray[np.intp]
    """Numbers of the rows without any answer, ascending."""
    n_zero: int
    """Number of rows whose answers are all 0."""
    objects: Sequence[_Object]

    def remarks(self, name: str) -> list[str]:
        """Return what a person should know about the rows of the table of this name."""
        if not self.n_zero:
            return []
        count = f"{self.n_zero} of {self.statistics.n_rows} participants answered 0 to all items"
        return [f"{name}: {count}; if 0 is no answer, declare it (--missing 0). dfact fit gom takes 0 as no response (dfact help classes)"]

    @property
    def n_kept(self) -> int:
        """Number of rows that have an answer."""
        return self.statistics.n_rows - len(self.empty)


def spool(table: Table, coding: AnswerCoding, empty_rows: EmptyRows, pool: TaskPool, progress: Progress | None) -> Spooled:
    """Read all parts of the table once, code and check them, and store their rows in the pool's scratch store.

    Raises DataError for the first invalid row of the table. ``progress`` is called with bytes, where their number is known.
    """
    parts = list(table.parts())
    location = _location(pool.scratch)
    tasks = [(number, part, coding, empty_rows, location) for number, part in enumerate(parts)]
    total = _Part(ColumnStatistics.of_columns(len(coding.items)), 0)
    n_bytes = sum(part.n_bytes for part in parts) if all(part.n_bytes for part in parts) else 0

    def receive(part: _Part) -> None:
        start = total.statistics.n_rows
        if part.problem is not None:
            position = table.row_position(start + part.problem.row)
            raise empty_row(table.name, position) if part.problem.item is None else coding.error(part.problem, table.name, position)
        total.statistics.merge(part.statistics)
        total.counts.update(part.counts)
        total.integers = total.integers and part.integers
        total.texts += part.texts
        total.n_zero += part.n_zero
        total.empty += [start + rows for rows in part.empty]
        total.objects += [replace(each, first_row=start + each.first_row) for each in part.objects]
        total.n_bytes += part.n_bytes
        if progress is not None and n_bytes:
            progress(total.n_bytes, n_bytes, "bytes read")

    pool.run(_spool_part, tasks, receive)
    total.statistics.minimum += 0  # the sign of a zero would depend on the order of batches
    total.statistics.maximum += 0
    empty = np.concatenate([np.empty(0, np.intp), *total.empty])
    return Spooled(total.statistics, total.integers, pa.Table.from_batches(total.texts), total.counts, empty, total.n_zero, total.objects)


def _spool_part(task: tuple[int, TablePart, AnswerCoding, EmptyRows, Location]) -> _Part:
    """Read, check and store a part. Executed again, after its worker was lost, it writes the same objects."""
    number, part, coding, empty_rows, location = task
    store = open_store(location)
    check_running(store)
    writer = _SpoolWriter(store, number)
    m = len(coding.items)
    result = _Part(ColumnStatistics.of_columns(m), part.n_bytes)
    for batch in read_cells(part, coding.numbers, coding.texts, coding.missing_texts):
        rows = coding(batch)
        result.texts.append(rows.texts)
        if len(rows.values) == 0:
            continue
        statistics = ColumnStatistics.of_columns(m)
        empty = np.flatnonzero(statistics.update(rows.values) == 0)
        problems = [] if rows.problem is None else [rows.problem]
        if empty.size and empty_rows == "error":
            problems.append(Problem(int(empty[0]), None))
        if problems:
            first = min(problems, key=lambda problem: problem.row)
            result.problem = first._replace(row=result.statistics.n_rows + first.row)
            return result
        result.counts.update(rows.counts)
        result.empty.append(result.statistics.n_rows + empty)
        result.n_zero += _count_zero_rows(rows.values) - empty.size
        integers = all_whole(rows.values)
        result.integers = result.integers and integers
        writer.append(_narrow(rows.values, statistics, integers=integers))
        result.statistics.merge(statistics)
        del batch, rows  # their memory is free while the next batch is read
    result.objects = writer.finish()
    pa.default_memory_pool().release_unused()  # otherwise Arrow's pool retains freed memory
    return result


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
        recode(values, np.nan, np.zeros(values.shape[1]), float(_code(dtype)), out)
        return out
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if np.array_equal(single, values, equal_nan=True) else values


def _code(dtype: np.dtype[Any]) -> float:
    code = missing_code_for(dtype)
    return np.nan if code is None else code


class _SpoolWriter:
    """A writer of the rows of a part as objects of compressed segments, one for each batch."""

    def __init__(self, store: Store, number: int) -> None:
        self._store, self._number = store, number
        self._objects: list[_Object] = []
        self._segments: list[_Segment] = []
        self._bytes = bytearray()
        self._n_rows = self._n_entries = 0

    def append(self, rows: NDArray[Any]) -> None:
        start = len(self._bytes)
        self._bytes += _SPOOL_CODEC.encode(np.ascontiguousarray(rows))
        self._segments.append(_Segment(len(rows), rows.dtype, start, len(self._bytes)))
        self._n_entries += rows.size
        if self._n_entries >= _OBJECT_ENTRIES:
            self._flush()

    def finish(self) -> list[_Object]:
        if self._segments:
            self._flush()
        return self._objects

    def _flush(self) -> None:
        check_running(self._store)
        spooled = _Object(f"{self._number}/{len(self._objects)}", self._n_rows, tuple(self._segments))
        sync(self._store.set(spooled.key, default_buffer_prototype().buffer.from_bytes(bytes(self._bytes))))
        self._objects.append(spooled)
        self._n_rows += spooled.n_rows
        self._segments, self._bytes, self._n_entries = [], bytearray(), 0


@dataclass(frozen=True)
class _Chunks:
    """A task that writes the rows start to stop of the dataset: complete chunks and complete runs of the fingerprint."""

    start: int
    stop: int
    objects: tuple[_Object, ...]
    first_row: int
    """Number in the table of the first row."""
    empty: NDArray[np.intp]
    """Numbers in the table of the empty rows among them, which are dropped."""
    stored: "_Stored"


@dataclass(frozen=True)
class _Stored:
    """The form of the stored values, and the locations of the spooled ones and of the dataset."""

    dtype: np.dtype[Any]
    offset: NDArray[np.float64]
    layout: Instances | None
    tail: tuple[int, ...]
    """Sizes of the modes after the first."""
    chunk_rows: int
    scratch: Location
    target: Location

    def arrange(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows of columns as rows of the dataset."""
        return rows if self.layout is None else self.layout.to_tensor(rows, _code(self.dtype))


def write(
    spooled: Spooled,
    writer: DatasetWriter,
    offset: NDArray[np.float64],
    dtype: np.dtype[Any],
    pool: TaskPool,
    progress: Progress | None,
    layout: Instances | None = None,
) -> StoredRows:
    """Write the rows that have an answer, minus the offset of their columns, side by side in runs of chunks.

    The columns are items at instances if there is a ``layout``, else items. ``progress`` is called with rows.
    """
    kept = np.delete(np.arange(spooled.statistics.n_rows), spooled.empty)
    n, tail = len(kept), (len(offset),) if layout is None else layout.index.shape
    chunk_rows = Layout.of((n, *tail)).chunk_rows
    stored = _Stored(dtype, offset, layout, tail, chunk_rows, _location(pool.scratch), _location(writer.group.store))
    tasks = list(_chunk_tasks(spooled, kept, stored))
    sample = np.empty((0, *tail), dtype)
    if dtype.kind == "f":  # the values of the first chunk decide whether compression is worth its time
        sample = stored.arrange(next(_read_rows(tasks[0], min(n, chunk_rows))))
    writer.create_values(sample)
    n_written, digests = 0, bytearray()

    def receive(written: tuple[int, bytes]) -> None:
        nonlocal n_written
        n_written += written[0]
        digests.extend(written[1])
        if progress is not None:
            progress(n_written, n, "rows written")

    pool.run(_write_chunks, tasks, receive)
    statistics = _stored_statistics(spooled.statistics, offset, dtype)
    statistics = statistics if layout is None else layout.arrange_statistics(statistics)
    return StoredRows(spooled.statistics.n_rows, kept, statistics, bytes(digests))


def _chunk_tasks(spooled: Spooled, kept: NDArray[np.intp], stored: _Stored) -> Iterator[_Chunks]:
    # No two tasks share a chunk, nor a run of the fingerprint.
    n, step = len(kept), lcm(stored.chunk_rows, run_rows(stored.tail))
    starts = [each.first_row for each in spooled.objects]
    for start in range(0, n, step):
        stop = min(n, start + step)
        first, last = int(kept[start]), int(kept[stop - 1])
        objects = spooled.objects[bisect_right(starts, first) - 1 : bisect_right(starts, last)]
        empty = spooled.empty[slice(*np.searchsorted(spooled.empty, [first, last]))]
        yield _Chunks(start, stop, tuple(objects), first, empty, stored)


def _write_chunks(task: _Chunks) -> tuple[int, bytes]:
    """Write the chunks; return the number of rows and the digests of their runs."""
    scratch = open_store(task.stored.scratch)
    array: Any = open_array(open_store(task.stored.target), path=VALUES, mode="r+", config=WRITE_EMPTY_CHUNKS)
    digests = RunDigests(array.shape[1:])
    start = task.start
    for rows in map(task.stored.arrange, _read_rows(task, task.stored.chunk_rows)):
        check_running(scratch)
        array[start : start + len(rows)] = rows
        digests.update(rows)
        start += len(rows)
    return task.stop - task.start, digests.finish()


def _read_rows(task: _Chunks, size: int) -> Iterator[NDArray[Any]]:
    """Yield the task's rows in stored form, ``size`` at a time."""
    dtype = task.stored.dtype
    n_left, filled = task.stop - task.start, 0
    out = np.empty((min(size, n_left), len(task.stored.offset)), dtype)
    for rows in _read_spooled(task):
        start = 0
        while start < len(rows):
            fitting = rows[start : start + len(out) - filled]
            recode(fitting, _code(fitting.dtype), task.stored.offset, _code(dtype), out[filled : filled + len(fitting)])
            filled += len(fitting)
            start += len(fitting)
            if filled == len(out):
                yield _canonical(out)
                n_left -= filled
                out, filled = np.empty((min(size, n_left), out.shape[1]), dtype), 0
            if not n_left:
                return


def _canonical(rows: NDArray[Any]) -> NDArray[Any]:
    """Make zeros positive and all NaN the same, in place: the batches in which integers are spooled lose a zero's sign."""
    if rows.dtype.kind == "f":
        rows += 0
        rows[np.isnan(rows)] = np.nan
    return rows


def _read_spooled(task: _Chunks) -> Iterator[NDArray[Any]]:
    """Yield the spooled rows from the task's first row on, without those that are dropped."""
    store = open_store(task.stored.scratch)
    for spooled in task.objects:
        content = sync(store.get(spooled.key, default_buffer_prototype()))
        if content is None:
            raise StoreError(f"{store} lacks the rows {spooled.key}: it was deleted during the import; import the table again")
        data, row = memoryview(content.to_bytes()), spooled.first_row
        for segment in spooled.segments:
            rows = np.empty((segment.n_rows, len(task.stored.offset)), segment.dtype)
            _SPOOL_CODEC.decode(data[segment.start : segment.stop], rows)
            keep = np.ones(segment.n_rows, bool)
            keep[: max(0, task.first_row - row)] = False
            dropped = task.empty[slice(*np.searchsorted(task.empty, [row, row + segment.n_rows]))]
            keep[dropped - row] = False
            yield rows if keep.all() else rows[keep]
            row += segment.n_rows


def _stored_statistics(statistics: ColumnStatistics, offset: NDArray[np.float64], dtype: np.dtype[Any]) -> ColumnStatistics:
    """Return the statistics of the stored values: rounding to single precision keeps the order of values."""
    observed, limits = statistics.observed > 0, []  # an item may have no answer at one of its instances
    for limit in (statistics.minimum, statistics.maximum):
        stored = limit - offset
        stored[observed] = stored[observed].astype(dtype).astype(np.float64) + 0
        limits.append(stored)
    return replace(statistics, minimum=limits[0], maximum=limits[1])


def _location(store: Store) -> Location:
    """Return the location by which tasks in other processes open the store."""
    location = location_of(store)
    if location is None:
        raise TypeError(f"{store} has no location")
    return absolute(location)
