"""Dask arrays as a source of rows: their chunks are computed on the cluster and stay there."""

import hashlib
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import isnan, prod
from operator import getitem
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource, contiguous
from dfact.data.sources.dense import ArraySource
from dfact.data.statistics import ColumnStatistics
from dfact.errors import DataError

if TYPE_CHECKING:
    from distributed import Client, Future

_CHUNK_BYTES = (1 << 24, 1 << 26)
"""Smallest and largest size of a chunk, unless a single partition is larger; the minimum keeps the number of chunks low."""
_SPILL = 0.6  # a Dask worker starts to spill at this share of its limit
_MERGED = 16  # statistics that one task merges


@dataclass(frozen=True)
class Chunk:
    """A chunk of a dask array that has all its columns: rows start to stop."""

    start: int
    stop: int
    key: Hashable
    """Key of the Dask task that computes the chunk."""


@dataclass(frozen=True, eq=False)
class DaskRows(RowSource):
    """Rows ``start`` to ``stop`` of a dask array whose chunks lie on the workers of a cluster.

    In the driver's process it has their futures, so that they stay there for as long as it lives, and Dask computes
    again what a lost worker held. Pickled it knows their names alone: a worker that has got the chunks ``keys`` makes
    the rows of them with ``loaded``.
    """

    chunks: tuple[Chunk, ...]
    """Those that hold any of the rows, in order."""
    chunk_dtype: np.dtype[Any]
    tail: tuple[int, ...]
    """Sizes of all modes but the rows'."""
    start: int
    stop: int
    futures: "Mapping[Hashable, Future] | None" = field(default=None, repr=False)
    """Futures of all chunks of the array, by key; None after pickling."""

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
        """Number of the first row in the array whose chunks these are of."""
        return self.start

    @property
    def keys(self) -> list[Hashable]:
        """Names of the chunks that ``loaded`` needs, in the order of their rows."""
        return [chunk.key for chunk in self.chunks]

    def to_memory(self) -> ArraySource:
        return ArraySource(self.read(0, self.shape[0]))

    def slice(self, rows: slice) -> "DaskRows":
        first, last, _ = rows.indices(self.shape[0])
        start, stop = self.start + first, self.start + max(first, last)
        chunks = tuple(chunk for chunk in self.chunks if max(start, chunk.start) < min(stop, chunk.stop))
        return replace(self, chunks=chunks, start=start, stop=stop)

    def loaded(self, chunks: Mapping[Any, NDArray[Any]]) -> ArraySource:
        """The rows in memory, of the chunks by their keys: a view where one chunk holds them in C order, else a copy."""
        parts = [np.asarray(chunks[chunk.key])[_within(self, chunk)] for chunk in self.chunks]
        if len(parts) == 1:
            return ArraySource(contiguous(parts[0]))
        values = np.empty(self.shape, self.dtype)
        if parts:
            np.concatenate(parts, out=values)
        return ArraySource(values)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop, fetched from the workers; only in the driver's process, for messages."""
        rows = self.slice(slice(start, stop))
        parts = [rows._submit(getitem, chunk, _within(rows, chunk)) for chunk in rows.chunks]
        return rows._joined([part.result() for part in parts])

    def digests(self) -> bytes:
        """Digests of the rows' blocks, in order, which the workers compute; whatever the chunks are."""
        step = Layout.of(self.shape).block_rows
        parts = [self._submit(_digests, chunk, _within(self, chunk), step) for chunk in self.chunks]
        return b"".join(part.result() for part in parts)

    def _joined(self, parts: list[NDArray[Any]]) -> NDArray[Any]:
        return contiguous(parts[0]) if len(parts) == 1 else np.concatenate([np.empty((0, *self.tail), self.dtype), *parts])

    def _submit(self, function: Any, chunk: Chunk, *arguments: Any) -> "Future":
        if self.futures is None:
            raise DataError(
                f"rows {self.start} to {self.stop} of a dask array are read where only the names of its chunks are known; "
                "expected the process that holds it, or the chunks to be passed to loaded()"
            )
        future = self.futures[chunk.key]
        return future.client.submit(function, future, *arguments)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"futures": None}


def _within(rows: DaskRows, chunk: Chunk) -> slice:
    """The rows' place in a chunk that holds some of them."""
    return slice(max(rows.start, chunk.start) - chunk.start, min(rows.stop, chunk.stop) - chunk.start)


def dask_array(X: Any) -> Any:
    """The dask array that X is, or that an xarray DataArray has; None of anything else.

    Raises DataError where its shape is unknown.
    """
    dask, xarray = (sys.modules.get(name) for name in ("dask.array", "xarray"))  # whoever has such an array has imported them
    array = X.data if xarray is not None and isinstance(X, xarray.DataArray) and X.chunks is not None else X
    if dask is None or not isinstance(array, dask.Array):
        return None
    if any(isnan(size) for size in array.shape):
        raise DataError(
            f"X is a dask array of shape {array.shape}, whose chunks have unknown sizes; call X.compute_chunk_sizes() first, "
            "or give it the sizes where it is made"
        )
    return array


def by_rows(array: Any, unit: int, least: int = 1) -> Any:
    """The dask array with all columns in one chunk, and chunks of whole units of rows near its own.

    They have at least ``least`` rows, and no more bytes than a chunk should have unless a unit has more.
    """
    if type(array._meta) is not np.ndarray:
        kind = type(array._meta)
        raise DataError(
            f"X is a dask array with chunks of {kind.__module__}.{kind.__qualname__}, expected numpy.ndarray with NaN where missing; "
            "convert them with X.map_blocks"
        )
    most = max(1, _CHUNK_BYTES[1] // _bytes(array, unit)) * unit
    rows = _runs(array.chunks[0], unit, min(least, most), most)
    return array.rechunk((rows, *((size,) for size in array.shape[1:])))


def _bytes(array: Any, rows: int) -> int:
    return max(1, int(rows * prod(array.shape[1:]) * array.dtype.itemsize))


def _runs(given: Iterable[int], unit: int, least: int, most: int) -> tuple[int, ...]:
    """Numbers of rows of runs of whole units, of ``least`` to ``most`` rows, that end near where the given ones do."""
    ends = list(accumulate(given))
    edges = [0]
    for end in ends[:-1]:
        edge = round(end / unit) * unit
        if edge - edges[-1] >= max(least, unit) and edge < ends[-1]:
            edges.append(edge)
    runs: list[int] = []
    for start, stop in pairwise([*edges, ends[-1]]):
        pieces = max(1, -(-(stop - start) // most))
        step = max(1, -(-(stop - start) // (pieces * unit))) * unit
        cuts = [*range(start, stop, step), stop] if stop > start else [start, stop]
        runs += [last - first for first, last in pairwise(cuts)]
    return tuple(runs)


def on_cluster(array: Any, client: "Client") -> tuple[DaskRows, ColumnStatistics]:
    """The array computed on the client's cluster, where it stays, and its statistics, which alone are fetched.

    What fails in the array's own tasks is raised as it is.
    """
    _check_room(array, client)
    from distributed import futures_of

    given, unit = array, Layout.of(array.shape).partition_rows
    array = by_rows(array, unit, _CHUNK_BYTES[0] // _bytes(array, unit) * unit)
    futures = persisted(array, client)
    if not futures_of(given):
        futures = _spread(futures, client)
    ends = list(accumulate(array.chunks[0], initial=0))
    chunks = tuple(Chunk(start, stop, key) for key, (start, stop) in zip(futures, pairwise(ends), strict=True))
    shapes = [(chunk.stop - chunk.start, *array.shape[1:]) for chunk in chunks]
    # As soon as a chunk is there: later it may have been spilled.
    found = client.map(_survey, list(futures.values()), shapes, dtype=array.dtype, priority=1)
    while len(found) > 1:  # on the workers, as those of many columns are large
        found = client.map(_merged, [found[i : i + _MERGED] for i in range(0, len(found), _MERGED)], priority=1)
    statistics: ColumnStatistics = found[0].result()
    return DaskRows(chunks, array.dtype, tuple(array.shape[1:]), 0, array.shape[0], futures), statistics


def persisted(array: Any, client: "Client") -> "dict[Hashable, Future]":
    """The futures of the array's chunks, by their names and in the order of their rows, once they are asked for on the cluster."""
    from dask.core import flatten
    from distributed import futures_of

    kept = client.persist(array)
    futures = {future.key: future for future in futures_of(kept)}
    return {key: futures[key] for key in flatten(kept.__dask_keys__())}


def _spread(futures: "dict[Hashable, Future]", client: "Client") -> "dict[Hashable, Future]":
    """The chunks where the workers' sessions will have their rows: neighbours together, by the workers' threads."""
    workers = sorted((address, worker["nthreads"]) for address, worker in client.scheduler_info(n_workers=-1)["workers"].items())
    if not workers:
        return futures
    ends = np.cumsum([threads for _, threads in workers]) / sum(threads for _, threads in workers) * len(futures)
    places = np.searchsorted(ends, np.arange(len(futures)) + 0.5)
    moved = [
        client.submit(_itself, future, workers=[workers[place][0]], allow_other_workers=True, pure=False)
        for future, place in zip(futures.values(), places.tolist(), strict=True)
    ]
    return {future.key: future for future in moved}


def _itself(chunk: Any) -> Any:
    return chunk


def declared(chunk: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A computed chunk, refused if it is not what its dask array says."""
    values = np.asarray(chunk)
    if values.shape != shape or values.dtype != dtype:
        raise DataError(
            f"a chunk of the dask array X is {values.shape} of {values.dtype} once it is computed, {shape} of {dtype} were declared; "
            "give X the shape, chunks and dtype that its functions return"
        )
    return values


def _check_room(array: Any, client: "Client") -> None:
    """Refuse an array that exceeds the workers' memory; skip the check if there is no worker yet or one has no limit."""
    limits = [worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    room = _SPILL * sum(limits)
    if limits and all(limits) and array.nbytes > room:
        raise DataError(
            f"X is a dask array of {array.nbytes / 2**30:.1f} GiB, the {len(limits)} workers hold {room / 2**30:.1f} GiB before they "
            "spill; use more workers, or write it as a dataset first: dfact.import_array(X, path)"
        )


def _survey(chunk: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ColumnStatistics:
    return ColumnStatistics.of_source(ArraySource(declared(chunk, shape, dtype)))


def _merged(parts: list[ColumnStatistics]) -> ColumnStatistics:
    total = ColumnStatistics.of_columns(parts[0].observed.size)
    for part in parts:
        total.merge(part)
    return total


def _digests(chunk: Any, rows: slice, step: int) -> bytes:
    values = chunk[rows]
    runs = (np.ascontiguousarray(values[start : start + step]) for start in range(0, len(values), step))
    return b"".join(hashlib.blake2b(run.data, digest_size=16).digest() for run in runs)
