"""Partitions: runs of rows, the unit of parallel work. A pass processes their blocks in order while the next chunk is read.

The order of all sums over partitions is a fixed binary tree over their numbers, the same in all executors.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource, contiguous
from dfact.data.sources.sparse import SparseSource
from dfact.engine.block_state import StateArrays
from dfact.engine.passes import Block, PartialSums, RunPass, Workspace, read_only
from dfact.engine.threads import prefetch
from dfact.lazy import sp


class Summand(Protocol):
    """Sums of partitions, or of groups of them, that add up."""

    def add(self, other: Any) -> None:
        """Add ``other`` in place."""
        ...


S = TypeVar("S", bound=Summand)
Node = tuple[int, int]
"""Level l and index i of the sum over those of the leaves i·2^l to (i+1)·2^l − 1 that exist."""


@dataclass(frozen=True)
class Leaves:
    """The leaves of a tree of sums: partitions, or groups of them, in segments.

    Each segment has a tree of its own, of which the roots are the leaves of another one. So the sum of a segment does not depend on the
    others. The leaves of segment s have the numbers from s·2^d on, with the same depth d for all segments.
    """

    counts: tuple[int, ...]
    """Number of leaves of each segment, at least 1."""

    @classmethod
    def of(cls, numbers: Sequence[int], ranges: Sequence[range]) -> Leaves:
        """Return the leaves for these ascending numbers, of which each range is a segment; a segment without any has no leaves."""
        counts = (bisect_left(numbers, each.stop) - bisect_left(numbers, each.start) for each in ranges)
        return cls(tuple(count for count in counts if count))

    @cached_property
    def segment_depth(self) -> int:
        """Level of the segments' roots."""
        return max(((count - 1).bit_length() for count in self.counts), default=0)

    @property
    def depth(self) -> int:
        """Level of the root."""
        return self.segment_depth + max(0, len(self.counts) - 1).bit_length()

    @property
    def numbers(self) -> list[int]:
        """The numbers of all leaves, ascending."""
        return [(segment << self.segment_depth) + i for segment, count in enumerate(self.counts) for i in range(count)]

    def exists(self, node: Node) -> bool:
        """Return whether a node has any leaf below it."""
        level, index = node
        height = self.segment_depth - level
        if height <= 0:
            return index << -height < len(self.counts)
        segment = index >> height
        return segment < len(self.counts) and (index - (segment << height)) << level < self.counts[segment]


class TreeSum(Generic[S]):
    """The sum over leaves, in the order of a binary tree, of parts that arrive in any order. Thread-safe.

    A node is the sum of its two children, left plus right. So the bits depend on the numbers of leaves alone, and
    rounding errors grow with their logarithm. If parts arrive in ascending order, at most log2(n) of n wait for others.
    """

    def __init__(self, leaves: Leaves) -> None:
        self._leaves, self._root = leaves, (leaves.depth, 0)
        self._nodes: dict[Node, S] = {}
        self._lock = threading.Lock()

    def add(self, node: Node, part: S) -> None:
        """Add a node's sum; ``part`` may be changed in place afterwards."""
        while True:
            level, index = node
            with self._lock:
                single = not self._leaves.exists((level, index ^ 1))
                sibling = None if single else self._nodes.pop((level, index ^ 1), None)
                if node == self._root or (sibling is None and not single):
                    self._nodes[node] = part
                    return
            if sibling is not None:
                left, right = (sibling, part) if index % 2 else (part, sibling)
                left.add(right)
                part = left
            node = level + 1, index // 2

    def update(self, nodes: Mapping[Node, S]) -> None:
        """Add the sums of several nodes."""
        for node, part in nodes.items():
            self.add(node, part)

    @property
    def nodes(self) -> dict[Node, S]:
        """The sums of the largest complete nodes so far."""
        return dict(self._nodes)

    @property
    def result(self) -> S:
        """The sum over all leaves, once all have been added."""
        [(node, total)] = self._nodes.items()
        assert node == self._root, f"{node} is not the root {self._root}"
        return total


P = TypeVar("P", bound=PartialSums)
Rows: TypeAlias = "NDArray[Any] | sp.csr_array"
# Number of entries per run of partitions if chunks and partitions are not aligned: the run's first and last chunk are decoded twice.
_READ_ENTRIES = 1 << 23
_SPARSE_READS = 64  # minimum number of runs in which CSR data is read, so that as many threads have work


@dataclass(frozen=True, eq=False)
class Partitions:
    """A run of consecutive partitions of a dataset, and how to read their rows."""

    first: int
    """Number of the first partition."""
    source: RowSource
    """The source of the rows of these partitions alone."""
    missing_code: int | None
    covariates: NDArray[Any] | None
    layout: Layout
    before: tuple[int, int] = (0, 0)
    """Numbers of blocks and of rows of the data that precede those of the layout, as those of other sites may do."""

    def __len__(self) -> int:
        return self.last - self.first

    @cached_property
    def last(self) -> int:
        """Number of the partition after the last."""
        start = self.layout.rows(self.first, self.first).start
        return max(self.first, self.layout.partition_of(start + self.source.shape[0] - 1)) + 1

    @property
    def numbers(self) -> range:
        return range(self.first, self.last)

    @property
    def rows(self) -> slice:
        """Their rows in the dataset."""
        return self.layout.rows(self.first, self.last)

    def part(self, first: int, last: int) -> Partitions:
        """Return the partitions ``first`` to ``last`` − 1; for data in memory, a view that is pickled without the other rows."""
        if (first, last) == (self.first, self.last):
            return self
        start, rows = self.rows.start, self.layout.rows(first, last)
        local = slice(rows.start - start, rows.stop - start)
        covariates = None if self.covariates is None else self.covariates[local]
        return replace(self, first=first, source=self.source.slice(local), covariates=covariates)

    def alone(self) -> Partitions:
        """Return these partitions, which are a segment of the data, as all those of data of their own: they are numbered from 0.

        Their sums are those of the segment. Blocks and rows keep their numbers in all of the data, as passes may depend on them.
        """
        assert self.numbers in self.layout.partition_ranges, "a segment does not depend on the others, its parts depend on each other"
        n_rows, (blocks, rows) = self.source.shape[0], self.before
        before = blocks + self.layout.first_block(self.first), rows + self.rows.start
        return replace(self, first=0, layout=replace(self.layout, n_rows=n_rows, segments=(n_rows,)), before=before)

    def n_blocks(self, number: int) -> int:
        """Return the number of blocks of a partition."""
        rows = self.layout.rows(number, number + 1)
        return int(-(-(rows.stop - rows.start) // self.layout.block_rows))

    def load(self) -> Partitions:
        """Return the same partitions with their values decompressed in memory."""
        return replace(self, source=self.source.to_memory())

    @property
    def segments(self) -> list[Partitions]:
        """The partitions of each segment of the data."""
        cuts = [(max(self.first, each.start), min(self.last, each.stop)) for each in self.layout.partition_ranges]
        return [self.part(first, last) for first, last in cuts if first < last]

    def read_runs(self) -> list[Partitions]:
        """Return the runs of partitions that are read in one go, so that a pass decodes a chunk once; single ones for data in memory."""
        return [run for segment in self.segments for run in segment._read_runs()]

    def _read_runs(self) -> list[Partitions]:
        step, rows = self.source.chunk_rows, self.layout.partition_rows
        if step is None:
            return [self.part(i, i + 1) for i in self.numbers]
        offset, phase = self.source.offset, 0
        if isinstance(self.source, SparseSource):
            size = min(int(_READ_ENTRIES / (rows * (self.source.row_entries + 1))), len(self) // _SPARSE_READS)
        elif step % rows == offset % rows == 0:
            size = step // rows
            phase = offset // rows % size
        else:
            size = max(_READ_ENTRIES // (rows * max(1, prod(self.source.shape[1:]))), -(-2 * step // rows))
        cuts = [self.first, *range(self.first + max(size, 1) - phase, self.last, max(size, 1)), self.last]
        return [self.part(a, b) for a, b in pairwise(cuts)]

    def blocks(self, dtype: np.dtype[Any] | None, work: Workspace | None = None) -> Iterator[Block]:
        """Yield the blocks in order, while the next chunk is read. Without a ``dtype`` no data is read.

        With ``work`` a block may lie in that workspace until the next one is yielded. Otherwise each has memory of its own.
        """
        for segment in self.segments:
            yield from segment._blocks(dtype, work)

    def _blocks(self, dtype: np.dtype[Any] | None, work: Workspace | None) -> Iterator[Block]:
        step, n = self.layout.block_rows, self.source.shape[0]
        first_block, first_row = self.before[0] + self.layout.first_block(self.first), self.before[1] + self.rows.start
        empty = (np.empty((min(step, n - start), 0)) for start in range(0, n, step))
        start = 0
        for index, raw in enumerate(empty if dtype is None else self._raw_blocks()):
            workspace = Workspace() if work is None else work
            stop = start + raw.shape[0]
            covariates = None if self.covariates is None else contiguous(self.covariates[start:stop])
            position = first_block + index, first_row + start
            yield Block(read_only(raw), covariates, *position, self.source.implicit_value, workspace, dtype, self.missing_code)
            start = stop

    def _read(self, start: int, stop: int) -> Rows:
        return self.source.read_native(start, stop)

    def _raw_blocks(self) -> Iterator[Rows]:
        n, step = self.source.shape[0], self.layout.block_rows
        if self.source.chunk_rows is None:
            yield from (self._read(a, min(a + step, n)) for a in range(0, n, step))
        else:
            yield from rechunk_rows(prefetch(self._read(r.start, r.stop) for r in self.source.read_ranges(self.layout)), step)


def partitions(source: RowSource, missing_code: int | None, covariates: NDArray[Any] | None, layout: Layout | None = None) -> Partitions:
    """Return all partitions of a dataset; without a ``layout``, its shape alone determines them."""
    return Partitions(0, source, missing_code, covariates, source.layout if layout is None else layout)


def reduce_blocks(
    blocks: Iterable[Block],
    request: RunPass[P],
    states: Iterable[StateArrays],
    on_state: Callable[[StateArrays], None],
    total: P | None = None,
) -> P:
    """Run the pass on a partition's blocks, each with its state; pass the new states to ``on_state`` and return the sums.

    The sums of a tiled pass are added to ``total``, the accumulator of a group of partitions.
    """
    for block, old in zip(blocks, states, strict=True):
        block.work.next_block()
        state, total = request.add_step(block, old, total)
        on_state(state)
    assert total is not None, "a partition has at least one block"
    return total


def consecutive(numbers: Iterable[int]) -> list[range]:
    """Group numbers into runs of consecutive ones, in ascending order."""
    runs: list[range] = []
    for number in sorted(numbers):
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def rechunk_rows(chunks: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """Yield blocks of ``rows`` rows from chunks of any length; a block of an array that lies within a chunk is a view."""
    incomplete: Rows | None = None
    for chunk in chunks:
        rest = chunk
        if incomplete is not None:
            needed = rows - incomplete.shape[0]
            incomplete, rest = vstack_rows(incomplete, rest[:needed]), rest[needed:]
            if incomplete.shape[0] < rows:
                continue
            yield incomplete
            incomplete = None
        stop = rest.shape[0] // rows * rows
        for start in range(0, stop, rows):
            yield rest[start : start + rows]
        if stop < rest.shape[0]:
            incomplete = rest[stop:]
    if incomplete is not None:
        yield incomplete


def vstack_rows(above: Rows, below: Rows) -> Rows:
    """Concatenate rows, both dense or both CSR."""
    if isinstance(above, np.ndarray) or isinstance(below, np.ndarray):
        return np.concatenate([above, below])
    return sp.csr_array(sp.vstack([above, below]))
