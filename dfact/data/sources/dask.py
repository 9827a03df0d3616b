"""Dask arrays as row sources: their chunks are computed on the cluster and stay there."""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import isnan, prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.run_digests import RunDigests, run_rows
from dfact.data.sources.base import ArraySource, RowSource, contiguous
from dfact.data.sources.hidden import visible, visible_chunk
from dfact.data.statistics import ColumnStatistics
from dfact.errors import ClusterError, DataError

if TYPE_CHECKING:
    from distributed import Client, Future

Fetch = Callable[[Sequence[Hashable]], Mapping[Hashable, NDArray[Any]]]
_CHUNK_BYTES = (1 << 24, 1 << 26)
"""Smallest and largest size of a chunk, unless a single partition is larger; the minimum keeps the number of chunks low."""
_SPILL = 0.6  # a Dask worker starts to spill at this share of its limit
_MERGE_BATCH = 16  # number of statistics that one task merges


@dataclass(frozen=True)
class Chunk:
    """A chunk of a dask array with all columns of the rows start to stop."""

    start: int
    stop: int
    key: Hashable
    """Key of the Dask task that computes the chunk."""


@dataclass(frozen=True, eq=False)
class DaskRows(RowSource):
    """Rows ``start`` to ``stop`` of a dask array whose chunks are on the workers of a cluster.

    In the driver's process the source holds the chunks' futures: they keep the chunks on the cluster, and Dask recomputes
    those of a lost worker. Pickled, it holds only their keys: a worker sets ``fetch`` before it reads.
    """

    is_fetched: ClassVar[bool] = True
    chunks: tuple[Chunk, ...]
    """The chunks that contain any of the rows, in order."""
    chunk_dtype: np.dtype[Any]
    tail: tuple[int, ...]
    """Sizes of all modes but the rows'."""
    start: int
    stop: int
    futures: "Mapping[Hashable, Future] | None" = field(default=None, repr=False)
    """Futures of all chunks of the array, by key; None after pickling."""
    fetch: Fetch | None = field(default=None, repr=False)
    """A worker's function that returns chunks by their keys; None after pickling."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stop - self.start, *self.tail)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.chunk_dtype

    @property
    def chunk_rows(self) -> int:
        return max((chunk.stop - chunk.start for chunk in self.chunks), default=1)

    @property
    def offset(self) -> int:
        """Number of the first row in the dask array."""
        return self.start

    @property
    def keys(self) -> list[Hashable]:
        """Keys of the chunks that ``loaded`` needs, in the order of their rows."""
        return [chunk.key for chunk in self.chunks]

    def to_memory(self) -> ArraySource:
        return ArraySource(self.read(0, self.shape[0])) if self.fetch is None else self.loaded(self.fetch(self.keys))

    def slice(self, rows: slice) -> "DaskRows":
        first, last, _ = rows.indices(self.shape[0])
        start, stop = self.start + first, self.start + max(first, last)
        chunks = tuple(chunk for chunk in self.chunks if max(start, chunk.start) < min(stop, chunk.stop))
        return replace(self, chunks=chunks, start=start, stop=stop)

    def loaded(self, chunks: Mapping[Any, NDArray[Any]]) -> ArraySource:
        """Return the rows in memory from the chunks by key: a view of a single chunk in C order, otherwise a copy."""
        parts = [visible_chunk(chunks[chunk.key], self.dtype)[_within(self, chunk)] for chunk in self.chunks]
        if len(parts) == 1:
            return ArraySource(contiguous(parts[0]))
        values = np.empty(self.shape, self.dtype)
        if parts:
            np.concatenate(parts, out=values)
        return ArraySource(values)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Fetch the rows start to stop from the workers; only in the driver's process, for messages."""
        rows = self.slice(slice(start, stop))
        parts = [rows._submit(_rows_of, [chunk], _within(rows, chunk)) for chunk in rows.chunks]
        return rows._concatenate([part.result() for part in parts])

    def digests(self) -> bytes:
        """Compute the digests of the rows' runs on the workers, in order; independent of the chunks."""
        step, parts = run_rows(self.tail), []
        for chunk in self.chunks:  # its task has the runs that begin in the chunk
            first, last = (-(-max(0, edge - self.start) // step) * step for edge in (chunk.start, chunk.stop))
            rows = self.slice(slice(first, last))
            if rows.chunks:
                parts.append(rows._submit(_digests, rows.chunks, [_within(rows, each) for each in rows.chunks], self.tail))
        return b"".join(part.result() for part in parts)

    def _concatenate(self, parts: list[NDArray[Any]]) -> NDArray[Any]:
        return contiguous(parts[0]) if len(parts) == 1 else np.concatenate([np.empty((0, *self.tail), self.dtype), *parts])

    def _submit(self, function: Any, chunks: Sequence[Chunk], *arguments: Any) -> "Future":
        """Call the function with a list of the computed chunks on a worker."""
        if self.futures is None:
            raise DataError(
                f"rows {self.start} to {self.stop} of a dask array are read from a pickled source, expected that of the driver; "
                "set fetch to a function that returns chunks"
            )
        futures = [self.futures[chunk.key] for chunk in chunks]
        return futures[0].client.submit(function, futures, *arguments)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"futures": None, "fetch": None}


def _within(rows: DaskRows, chunk: Chunk) -> slice:
    """Return the range of the rows within a chunk that contains some of them."""
    return slice(max(rows.start, chunk.start) - chunk.start, min(rows.stop, chunk.stop) - chunk.start)


def dask_array(X: Any) -> Any:
    """Return X if it is a dask array, or the dask array of an xarray DataArray; None for anything else.

    Raises DataError if its shape is unknown.
    """
    dask, xarray = (sys.modules.get(name) for name in ("dask.array", "xarray"))  # imported already if X is such an array
    array = X.data if xarray is not None and isinstance(X, xarray.DataArray) and X.chunks is not None else X
    if dask is None or not isinstance(array, dask.Array):
        return None
    if any(isnan(size) for size in array.shape):
        raise DataError(
            f"X is a dask array of shape {array.shape} with chunks of unknown sizes, expected known sizes; "
            "call X.compute_chunk_sizes() first, or declare the sizes where X is created"
        )
    return array


def rechunk_rows(array: Any, unit: int, min_rows: int = 1) -> Any:
    """Rechunk a dask array into chunks with all columns and with multiples of ``unit`` rows, close to its own chunks.

    Chunks have at least ``min_rows`` rows, and at most the maximum size of a chunk in bytes unless one unit is larger.
    """
    from dfact.internals.dask import chunk_type

    if (kind := chunk_type(array)) is not np.ndarray:
        raise DataError(
            f"X is a dask array with chunks of {kind.__module__}.{kind.__qualname__}, expected numpy.ndarray with NaN where missing; "
            "convert them with X.map_blocks"
        )
    max_rows = max(1, _CHUNK_BYTES[1] // _rows_nbytes(array, unit)) * unit
    rows = _chunk_rows(array.chunks[0], unit, min(min_rows, max_rows), max_rows)
    return array.rechunk((rows, *((size,) for size in array.shape[1:])))


def _rows_nbytes(array: Any, rows: int) -> int:
    return max(1, int(rows * prod(array.shape[1:]) * array.dtype.itemsize))


def _chunk_rows(sizes: Iterable[int], unit: int, min_rows: int, max_rows: int) -> tuple[int, ...]:
    """Choose numbers of rows, multiples of ``unit`` within the limits, whose chunks end close to the ends of chunks of ``sizes``."""
    ends = list(accumulate(sizes))
    boundaries = [0]
    for end in ends[:-1]:
        boundary = round(end / unit) * unit
        if boundary - boundaries[-1] >= max(min_rows, unit) and boundary < ends[-1]:
            boundaries.append(boundary)
    rows: list[int] = []
    for start, stop in pairwise([*boundaries, ends[-1]]):
        parts = max(1, -(-(stop - start) // max_rows))
        step = max(1, -(-(stop - start) // (parts * unit))) * unit
        cuts = [*range(start, stop, step), stop] if stop > start else [start, stop]
        rows += [last - first for first, last in pairwise(cuts)]
    return tuple(rows)


def persist_rows(array: Any, client: "Client") -> tuple[DaskRows, ColumnStatistics]:
    """Compute the array on the client's cluster, where it stays; fetch its statistics alone.

    Errors of the array's own tasks are raised unchanged.
    """
    _check_memory(array, client)
    from distributed import futures_of

    original, unit = array, Layout.of(array.shape).partition_rows
    array = rechunk_rows(array, unit, _CHUNK_BYTES[0] // _rows_nbytes(array, unit) * unit)
    futures = persist_chunks(array, client)
    if not futures_of(original):
        futures = _rebalance(futures, client)
    ends = list(accumulate(array.chunks[0], initial=0))
    chunks = tuple(Chunk(start, stop, key) for key, (start, stop) in zip(futures, pairwise(ends), strict=True))
    shapes = [(chunk.stop - chunk.start, *array.shape[1:]) for chunk in chunks]
    # With priority: each chunk is read right after it is computed, as it may be spilled later.
    partial = client.map(_chunk_statistics, list(futures.values()), shapes, dtype=array.dtype, priority=1)
    while len(partial) > 1:  # merged on the workers, because the statistics of many columns are large
        partial = client.map(_merge, [partial[i : i + _MERGE_BATCH] for i in range(0, len(partial), _MERGE_BATCH)], priority=1)
    statistics: ColumnStatistics = partial[0].result()
    return DaskRows(chunks, array.dtype, tuple(array.shape[1:]), 0, array.shape[0], futures), statistics


def persist_chunks(array: Any, client: "Client") -> "dict[Hashable, Future]":
    """Start computing the array on the cluster and return its chunks' futures by key, in the order of their rows."""
    from dask.core import flatten
    from distributed import futures_of

    persisted = client.persist(array)
    futures = {future.key: future for future in futures_of(persisted)}
    return {key: futures[key] for key in flatten(persisted.__dask_keys__())}


def worker_infos(client: "Client") -> dict[str, Any]:
    """Return what the scheduler knows of its workers, by their addresses; raise ClusterError if the client has given it up."""
    if client.scheduler is None:
        raise ClusterError("the Dask scheduler is lost: the client was closed")
    # Client.scheduler_info may return what the client's own polls, which ask for no worker, have found meanwhile.
    infos: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return infos


def _rebalance(futures: "dict[Hashable, Future]", client: "Client") -> "dict[Hashable, Future]":
    """Move the chunks to the workers that will own their rows: consecutive chunks, in proportion to the workers' threads."""
    workers = sorted((address, worker["nthreads"]) for address, worker in worker_infos(client).items())
    if not workers:
        return futures
    ends = np.cumsum([threads for _, threads in workers]) / sum(threads for _, threads in workers) * len(futures)
    targets = np.searchsorted(ends, np.arange(len(futures)) + 0.5)
    moved = [
        client.submit(_identity, future, workers=[workers[target][0]], allow_other_workers=True, pure=False)
        for future, target in zip(futures.values(), targets.tolist(), strict=True)
    ]
    return {future.key: future for future in moved}


def _identity(chunk: Any) -> Any:
    return chunk


def check_chunk(chunk: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a computed chunk as an array; raise DataError unless it has the declared shape and dtype."""
    values = visible_chunk(chunk, dtype)
    if values.shape != shape or values.dtype != dtype:
        raise DataError(
            f"a computed chunk of the dask array X is {values.shape} of {values.dtype}, expected {shape} of {dtype} as declared; "
            "declare for X the shape, chunks and dtype that its functions return"
        )
    return values


def _check_memory(array: Any, client: "Client") -> None:
    """Raise DataError if the array exceeds the workers' memory; skip the check without workers or without memory limits."""
    limits = [worker["memory_limit"] for worker in worker_infos(client).values()]
    capacity = _SPILL * sum(limits)
    if limits and all(limits) and array.nbytes > capacity:
        raise DataError(
            f"X is a dask array of {array.nbytes / 2**30:.1f} GiB, expected at most the {capacity / 2**30:.1f} GiB that the "
            f"{len(limits)} workers hold before they spill; use more workers, or write it as a dataset first: dfact.import_array(X, path)"
        )


def _chunk_statistics(chunk: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ColumnStatistics:
    return ColumnStatistics.of_source(ArraySource(check_chunk(chunk, shape, dtype)))


def _merge(parts: list[ColumnStatistics]) -> ColumnStatistics:
    total = ColumnStatistics.of_columns(parts[0].observed.size)
    for part in parts:
        total.merge(part)
    return total


def _rows_of(chunks: Sequence[Any], rows: slice) -> Any:
    [chunk] = chunks
    return visible(chunk)[rows]


def _digests(chunks: Sequence[Any], rows: Sequence[slice], tail: tuple[int, ...]) -> bytes:
    digests = RunDigests(tail)
    for chunk, part in zip(chunks, rows, strict=True):
        digests.update(visible(chunk)[part])
    return digests.finish()
