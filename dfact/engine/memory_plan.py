"""The memory plan: the memory that a fit will use in each process, computed before anything runs."""

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any

import numpy as np
import psutil

from dfact.data.layout import Layout
from dfact.data.memory_limit import free_memory, parse_bytes
from dfact.data.sources.base import RowSource
from dfact.data.sources.sparse import SparseSource
from dfact.engine.passes import has_small_codes
from dfact.engine.tiles import RESIDENT_COLUMNS, n_groups, tile_columns
from dfact.errors import MemoryPlanError
from dfact.text import format_bytes

_WORKER_BASELINE = 464 << 20  # of a Dask worker that has imported dfact and compiled its kernels itself, those of stochastic CP at most
_LOCAL_GROWTH = 96 << 20  # of this process, by imports and compilation once passes run
_DASK_TARGET = 0.6  # fraction of its limit at which a Dask worker starts to spill
_SLACK = 1.1  # allocators keep a part of the freed memory
_DISK_RATE = 1e9  # bytes per second, read or written through the page cache of an ordinary disk


@dataclass(frozen=True)
class Footprint:
    """The memory of a model's fit, in bytes."""

    state_per_row: int
    """State of a row, kept between passes."""
    work_per_row: int
    """Working arrays for each row of the current block."""
    broadcast: int
    """Broadcast and summed arrays, for every thread and on the driver."""
    result_per_row: int
    """Row factors returned to the user, on the driver (0 if they are written to a store)."""
    tiled: int = 0
    """Sums that are combined by tiles of columns, for every thread; those that wait for others are spilled if need be."""
    converts: bool = True
    """Whether passes convert complete blocks of small integers to floating point; those that read the codes do not."""
    summed: int | None = None
    """Summed arrays that are not tiled, of which more exist than of the broadcast; None if they are as large as this."""
    gathered_rows: int = 0
    """Number of rows whose sums are formed at once: sums of fewer rows, which have no summed arrays yet, count as broadcast."""
    tile_state: int = 0
    """State of all tiles of columns, on the driver; that of the first tiles, which stays in memory, is also part of the broadcast."""
    driver: int = 0
    """Arrays that the solver holds on the driver in addition to those of passes."""
    note: str = ""
    """Sentence on how the memory limit changes the fit, for the plan."""
    reads_stored: bool = False
    """Whether passes read the stored entries of sparse data alone, so that no block becomes dense, and their number cuts the rows."""

    def layout(self, source: RowSource) -> Layout:
        """Return the layout of a source for such passes."""
        if self.reads_stored and isinstance(source, SparseSource):
            return Layout.of_stored((source.shape[0], source.shape[1]), source.n_stored).with_segments(source.segments)
        return source.layout

    def scaled(self, count: int) -> "Footprint":
        """Return the footprint of ``count`` fits that share their reads."""
        return Footprint(
            count * self.state_per_row,
            self.work_per_row,
            count * self.fused_broadcast,
            count * self.result_per_row,
            converts=self.converts,
            tile_state=count * self.tile_state,
            driver=count * self.driver,
        )

    @property
    def fused_broadcast(self) -> int:
        """Broadcast and summed arrays of a fit that shares its reads: tiled sums travel with the others."""
        return max(self.broadcast, self.summed or 0) + self.tiled


@dataclass(frozen=True)
class WorkerResources:
    """The processes that run passes, with their threads and memory."""

    kind: str
    """Name of the executor."""
    processes: int
    threads: int
    """Threads per process."""
    limit: int
    """Bytes that a process may use."""
    baseline: int
    """Bytes that a process uses already."""
    limit_source: str = ""
    """Source of a limit that was not stated: the free memory and what limits it, or the fits that hold the rest."""
    site_workers: int = 0
    """Number of workers of the largest cluster of a site, of the kind "sites", for which a plan holds; 0 if no site has one."""

    @property
    def on_cluster(self) -> bool:
        """Whether sums and states travel between processes, at one of several sites at least."""
        return self.kind == "distributed" or self.site_workers > 0


@dataclass(frozen=True)
class Plan:
    """Peak memory of a process, and the part of the state that is spilled to disk, printed as a readable table."""

    shape: tuple[int, ...]
    """Sizes of all modes of the data, the rows first."""
    workers: WorkerResources
    """Numbers of processes and threads, and their memory."""
    n_partitions: int
    """Number of partitions of the data."""
    partition_rows: int
    """Number of rows in a partition."""
    block_rows: int
    """Number of rows in a block."""
    working: int
    """Bytes of a process that do not depend on the number of rows."""
    driver: int
    """Additional bytes on the driver."""
    state: int
    """Bytes of the complete state, in memory and on disk."""
    state_in_memory: int
    """Number of partitions whose state stays in memory."""
    cached_partitions: int
    """Number of partitions whose decompressed values stay in memory between passes."""
    resident: int
    """Bytes of state and values that a process keeps between passes."""
    resident_states: int
    """Number of partitions whose state a process may keep: on a cluster more than its share, to take over partitions of lost workers."""
    resident_values: int
    """Number of partitions whose values a process may keep."""
    resident_sums: int
    """Number of groups of partitions whose tiled sums may wait for others in memory."""
    spilled_sums: int
    """Bytes of tiled sums that wait on disk, at most."""
    spilled_tiles: int
    """Bytes of the tiles' state on the driver's disk."""
    footprint: Footprint
    """The memory that the computation needs, whoever runs it."""
    dtype: np.dtype[Any]
    """Its floating type."""
    note: str = ""
    """Sentence on how the memory limit changes the fit; empty if it does not."""

    @property
    def peak(self) -> int:
        """Bytes of the largest process."""
        return self.workers.baseline + self.working + self.driver + self.resident

    @property
    def reserved(self) -> int:
        """Bytes that the fit adds to each Dask worker."""
        return self.working + self.resident

    @property
    def spilled(self) -> int:
        """Bytes of state that every pass reads from disk and writes back."""
        return round(self.state * (1 - self.state_in_memory / self.n_partitions))

    @property
    def spill_seconds(self) -> float:
        """Seconds that a pass takes to read and write the spilled state, at 1 GB/s."""
        return 2 * self.spilled / _DISK_RATE

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit."""
        return self.peak <= self.workers.limit

    def check(self) -> None:
        """Raise MemoryPlanError if even the minimum exceeds the limit."""
        if not self.fits:
            raise MemoryPlanError(
                f"the computation on {'×'.join(map(str, self.shape))} needs at least {format_bytes(self.peak)} in a process, its limit is "
                f"{format_bytes(self.workers.limit)}{self._origin}; raise memory_limit (--memory-limit), "
                f"{self._fewer_threads}or use fewer columns"
            )

    @property
    def _fewer_threads(self) -> str:
        """Advice to use fewer threads, if there are several; in a cluster they are the workers'."""
        if self.workers.threads == 1:
            return ""
        return "use fewer threads (--executor inline), " if self.workers.kind == "threads" else "start workers with fewer threads each, "

    @property
    def _origin(self) -> str:
        """Source of the limit, as text that follows it; empty if it was stated."""
        return f", which follows from the {self.workers.limit_source}" if self.workers.limit_source else ""

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        fits = "fits" if self.fits else "does not fit"
        return f"<div class='dfact'><strong>Memory plan: it {fits}</strong><pre>{escape(str(self))}</pre></div>"

    def __str__(self) -> str:
        w, size = self.workers, "×".join(map(str, self.shape))
        rows = [
            (
                "data",
                f"{size}, {self.n_partitions} partitions of {self.partition_rows} rows, blocks of {self.block_rows}",
            ),
            ("executor", f"{w.kind}, {w.processes} process(es) of {w.threads} thread(s)"),
            ("limit of a process", format_bytes(w.limit) + self._origin),
            ("peak of a process", format_bytes(self.peak)),
            ("  already in use", format_bytes(w.baseline)),
            ("  working arrays", format_bytes(self.working)),
            ("  on the driver", format_bytes(self.driver)),
            ("  kept between passes", format_bytes(self.resident)),
            ("total state", format_bytes(self.state)),
            ("  in memory", f"{self.state_in_memory} of {self.n_partitions} partitions"),
            ("values in memory", f"{self.cached_partitions} of {self.n_partitions} partitions"),
        ]
        if self.spilled:
            rows.append(
                ("  on disk", f"{format_bytes(self.spilled)}, read and written in every pass: about {self.spill_seconds:.1f} s at 1 GB/s")
            )
        if self.spilled_sums:
            rows.append(("sums on disk", f"up to {format_bytes(self.spilled_sums)} in each process"))
        if self.spilled_tiles:
            rows.append(("columns on disk", f"state of {format_bytes(self.spilled_tiles)} on the driver"))
        if self.note:
            rows.append(("note", self.note))
        return "\n".join(f"{name:<22}{text}" for name, text in rows)

    __repr__ = __str__


def make_plan(
    source: RowSource, dtype: "np.dtype[np.floating]", footprint: Footprint, workers: WorkerResources, layout: Layout | None = None
) -> Plan:
    """Plan the memory of state and values. State comes first, as spilling writes and reads it; decompressed values get the rest.

    Without a ``layout`` the footprint determines it. For workers of the kind "sites" the plan depends on nothing that only one site knows.
    """
    layout = footprint.layout(source) if layout is None else layout
    n, m = source.shape[0], prod(source.shape[1:])
    summed = footprint.broadcast if footprint.summed is None else footprint.summed
    threads = workers.threads * _thread_bytes(source, dtype, footprint, layout, workers)
    messages = 2 * footprint.broadcast if workers.on_cluster and footprint.summed is not None else 0  # as bytes, received and sent
    sums = _waiting_sums(footprint, layout, workers) * summed + _tiled_bytes(footprint, layout, workers, m)
    working = round(_SLACK * (threads + sums + messages))
    depth = layout.n_partitions.bit_length() if workers.on_cluster else 0
    driver = footprint.driver + 4 * footprint.broadcast + depth * summed + n * footprint.result_per_row
    kept = _divide(workers.limit - workers.baseline - working - driver, source, footprint, layout, workers)
    return Plan(
        shape=source.shape,
        workers=workers,
        n_partitions=layout.n_partitions,
        partition_rows=layout.partition_rows,
        block_rows=layout.block_rows,
        working=working,
        driver=driver,
        state=n * footprint.state_per_row,
        state_in_memory=min(layout.n_partitions, kept.states * workers.processes),
        cached_partitions=min(layout.n_partitions, kept.values * workers.processes),
        resident=kept.size,
        resident_states=kept.states + kept.extra_states,
        resident_values=kept.values + kept.extra_values,
        resident_sums=kept.sums,
        spilled_sums=kept.spilled_sums,
        spilled_tiles=footprint.tile_state * max(0, m - RESIDENT_COLUMNS) // m,
        footprint=footprint,
        dtype=dtype,
        note=footprint.note,
    )


def _thread_bytes(source: RowSource, dtype: "np.dtype[np.floating]", footprint: Footprint, layout: Layout, workers: WorkerResources) -> int:
    """Return the working memory of a thread: chunks, the arrays of a block, broadcasts, and states on their way."""
    n, m = source.shape[0], prod(source.shape[1:])
    block, partition = min(layout.block_rows, n), min(layout.partition_rows, n)
    rows = layout.chunk_rows if workers.kind == "sites" else source.chunk_rows  # sites know the chunks of their own rows alone
    chunk = 0 if rows is None else min(rows, n) * source.row_bytes
    # A pass may convert a CSR block to a dense one.
    converts = (
        not footprint.reads_stored
        if source.is_sparse
        else (source.dtype != dtype and (footprint.converts or not has_small_codes(source.dtype)))
    )
    converted = m * dtype.itemsize if converts else 0
    # Two decoded chunks (one is prefetched) and the compressed bytes of one. Workers hold the chunks of a dask array already, or
    # get them once.
    chunks = (1 if source.is_fetched else 3) * chunk
    arrays = block * (converted + source.row_bytes + footprint.work_per_row) + 2 * footprint.broadcast
    # A partition's state while it is read from disk or written, and in a message.
    states = (3 if workers.on_cluster else 2) * partition * footprint.state_per_row
    return chunks + arrays + states


def _waiting_sums(footprint: Footprint, layout: Layout, workers: WorkerResources) -> int:
    """Return the number of sums that exist in a process at once: some wait for others at each level of their tree."""
    depth = layout.n_partitions.bit_length()
    # A worker's own sums, those received from the workers below it, and the combination of both, as arrays and as bytes.
    on_cluster = 2 * _share(layout.n_partitions, workers).bit_length() + 4 * min(depth, 2 * max(workers.processes, workers.site_workers))
    if workers.kind == "distributed":
        return on_cluster
    partition = min(layout.partition_rows, layout.n_rows)
    gathering = (footprint.gathered_rows // partition).bit_length()  # levels of the tree whose sums have too few rows
    here = depth - min(depth, max(0, gathering - 1)) + workers.threads
    return max(here, on_cluster) if workers.on_cluster else here


def _tiled_bytes(footprint: Footprint, layout: Layout, workers: WorkerResources, m: int) -> int:
    """Return the memory of tiled sums that do not wait: one of each thread, and the tiles that are being stepped."""
    accumulators = min(workers.threads, _share(n_groups(layout), workers)) * footprint.tiled
    # Each thread steps a tile of columns, whose sums wait for others at each level of the tree over the groups.
    return accumulators + 3 * workers.threads * n_groups(layout).bit_length() * footprint.tiled // len(tile_columns(m))


def _share(count: int, workers: WorkerResources) -> int:
    """Return how many of the partitions, or of their groups, the busiest process has."""
    return -(-count // workers.processes)


@dataclass(frozen=True)
class _Kept:
    """The numbers of states, values and sums that a process keeps between passes."""

    states: int
    """Number of partitions of its share whose states stay in memory."""
    values: int
    """The same of the values."""
    extra_states: int
    """Number of further partitions, of lost workers, for whose states there is memory."""
    extra_values: int
    sums: int
    """Number of tiled sums that may wait in memory."""
    spilled_sums: int
    """Bytes of those that wait on disk, at most."""
    size: int
    """Bytes of all that stays in memory, for its own share."""


def _divide(spare: int, source: RowSource, footprint: Footprint, layout: Layout, workers: WorkerResources) -> _Kept:
    """Divide the memory that is left: tiled sums that wait get it first, then states, then values, then those of lost workers."""
    partition, share = min(layout.partition_rows, layout.n_rows), _share(layout.n_partitions, workers)
    state_bytes, value_bytes = (round(_SLACK * partition * size) for size in (footprint.state_per_row, source.row_bytes))
    waiting, sum_bytes = _share(n_groups(layout), workers).bit_length(), round(_SLACK * footprint.tiled)
    sums = max(0, min(waiting, spare // sum_bytes)) if sum_bytes else 0
    spare -= sums * sum_bytes
    states = max(0, min(share, spare // state_bytes)) if state_bytes else share
    spare -= states * state_bytes
    values = 0 if source.chunk_rows is None else max(0, min(share, spare // value_bytes))
    spare -= values * value_bytes
    extra = max(0, spare // (state_bytes + value_bytes)) if states == share else 0
    size = sums * sum_bytes + states * state_bytes + values * value_bytes
    return _Kept(states, values, extra, extra if values == share else 0, sums, (waiting - sums) * footprint.tiled, size)


def local_workers(kind: str, threads: int, memory_limit: int | str | None) -> WorkerResources:
    """Return the resources of the calling process. By default it may use four fifths of the free memory."""
    _return_free_memory()
    baseline = psutil.Process().memory_info().rss + _LOCAL_GROWTH
    if memory_limit is not None:
        return WorkerResources(kind, 1, threads, parse_bytes(memory_limit), baseline)
    free = free_memory()
    return WorkerResources(kind, 1, threads, baseline + int(0.8 * free.size), baseline, str(free))


def cluster_workers(
    limits: list[int], threads: int, memory_limit: int | str | None, rest: tuple[int, str] | None = None
) -> WorkerResources:
    """Return the resources of Dask workers: the memory below which the smallest one does not spill, or ``memory_limit`` if less.

    ``rest`` is what other fits leave of a worker, in bytes, and the statement of what they hold.
    """
    limit, origin = worker_limit(min(limits)), ""
    if memory_limit is not None:
        limit = min(limit, parse_bytes(memory_limit))
    if rest is not None and rest[0] + _WORKER_BASELINE < limit:
        limit, origin = rest[0] + _WORKER_BASELINE, rest[1]
    return WorkerResources("distributed", len(limits), threads, limit, _WORKER_BASELINE, origin)


def worker_limit(memory: int) -> int:
    """Return the bytes that fits may use on a Dask worker with this limit of memory, together with what it uses without them."""
    return int(_DASK_TARGET * memory)


def reservable_bytes(memory: int, reserved: int) -> int:
    """Return the bytes that a further fit may reserve on a Dask worker with this limit of memory."""
    return worker_limit(memory) - _WORKER_BASELINE - reserved


def _return_free_memory() -> None:
    """Return memory that earlier work freed, and glibc keeps, to the system, so that it does not count as in use."""
    with suppress(OSError, AttributeError):  # with another C library free memory counts as in use, which is the safe side
        ctypes.CDLL("libc.so.6").malloc_trim(0)
