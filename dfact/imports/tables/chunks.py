"""Spooled rows as chunks of a dataset, which tasks write side by side."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr import open_array

from dfact.data.layout import Layout
from dfact.data.run_digests import RunDigests, run_rows
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_dataset import VALUES
from dfact.imports.tables.spool import Progress, Spooled, SpooledObject, spooled_code
from dfact.imports.tables.stack import Instances
from dfact.imports.writing.tasks import TaskPool, check_running, location_for_tasks
from dfact.imports.writing.writer import DatasetWriter, StoredRows
from dfact.kernels.entries import recode
from dfact.storage.arrays import WRITE_EMPTY_CHUNKS
from dfact.storage.groups import open_store
from dfact.storage.location import Location


@dataclass(frozen=True)
class _Chunks:
    """A task that writes the rows start to stop of the dataset: complete chunks and complete runs of the fingerprint."""

    start: int
    stop: int
    objects: tuple[SpooledObject, ...]
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
        return rows if self.layout is None else self.layout.to_tensor(rows, spooled_code(self.dtype))


def write_spooled(
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
    stored = _Stored(dtype, offset, layout, tail, chunk_rows, location_for_tasks(pool.scratch), location_for_tasks(writer.group.store))
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
    opened: Any = open_array(open_store(task.stored.target), path=VALUES, mode="r+")
    array = opened.with_config(WRITE_EMPTY_CHUNKS)  # opening an array that exists takes no configuration
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
            recode(fitting, spooled_code(fitting.dtype), task.stored.offset, spooled_code(dtype), out[filled : filled + len(fitting)])
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
    for first, rows in chain.from_iterable(each.read(store) for each in task.objects):
        keep = np.ones(len(rows), bool)
        keep[: max(0, task.first_row - first)] = False
        dropped = task.empty[slice(*np.searchsorted(task.empty, [first, first + len(rows)]))]
        keep[dropped - first] = False
        yield rows if keep.all() else rows[keep]


def _stored_statistics(statistics: ColumnStatistics, offset: NDArray[np.float64], dtype: np.dtype[Any]) -> ColumnStatistics:
    """Return the statistics of the stored values: rounding to single precision keeps the order of values."""
    observed, limits = statistics.observed > 0, []  # an item may have no answer at one of its instances
    for limit in (statistics.minimum, statistics.maximum):
        stored = limit - offset
        stored[observed] = stored[observed].astype(dtype).astype(np.float64) + 0
        limits.append(stored)
    return replace(statistics, minimum=limits[0], maximum=limits[1])
