"""Partitions: runs of rows, each the least that one thread takes of a pass, walked block after block while the next chunk is read."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource, contiguous
from dfact.data.sources.sparse import SparseSource
from dfact.engine.passes import Block, PartialSums, Pass, State, Workspace

T = TypeVar("T")
P = TypeVar("P", bound=PartialSums)
Rows = NDArray[Any] | sp.csr_array
_READ_ENTRIES = 1 << 23  # read in one go where chunks end elsewhere than partitions: the first and the last chunk are decoded twice
_SPARSE_READS = 64  # row-compressed data is read in so many runs at least, for as many threads


@dataclass(frozen=True, eq=False)
class Partitions:
    """A run of consecutive partitions of a data set, and how to read their rows."""

    first: int
    """Number of the first of them."""
    source: RowSource
    """Of the rows of these partitions alone."""
    missing_code: int | None
    covariates: NDArray[Any] | None
    layout: Layout

    def __len__(self) -> int:
        return max(1, -(-self.source.shape[0] // self.layout.partition_rows))

    @property
    def last(self) -> int:
        """Number of the partition after the last of them."""
        return self.first + len(self)

    @property
    def numbers(self) -> range:
        return range(self.first, self.last)

    @property
    def rows(self) -> slice:
        """Their rows in the data set."""
        return self.layout.rows(self.first, self.last)

    def part(self, first: int, last: int) -> "Partitions":
        """The partitions with the numbers ``first`` to ``last`` − 1; of data in memory it carries no others along."""
        if (first, last) == (self.first, self.last):
            return self
        start, rows = self.rows.start, self.layout.rows(first, last)
        local = slice(rows.start - start, rows.stop - start)
        covariates = None if self.covariates is None else self.covariates[local]
        return replace(self, first=first, source=self.source.slice(local), covariates=covariates)

    def n_blocks(self, number: int) -> int:
        """Of the partition with this number."""
        rows = self.layout.rows(number, number + 1)
        return int(-(-(rows.stop - rows.start) // self.layout.block_rows))

    def load(self) -> "Partitions":
        """The same partitions with their values decompressed in memory."""
        return replace(self, source=self.source.to_memory())

    def read_together(self) -> "list[Partitions]":
        """The runs of partitions that are read in one go, so that a chunk is decoded once in a pass; single ones of data in memory."""
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
        """The blocks in order; chunks are read one ahead. Without a ``dtype`` nothing is read.

        With ``work`` a block may lie there, until the next one comes; without, each has memory of its own.
        """
        first, step, n = self.rows.start // self.layout.block_rows, self.layout.block_rows, self.source.shape[0]
        nothing = (np.empty((min(step, n - start), 0)) for start in range(0, n, step))
        start = 0
        for index, raw in enumerate(nothing if dtype is None else self._raw_blocks()):
            own = Workspace() if work is None else work
            if isinstance(raw, np.ndarray):
                raw.flags.writeable = False
            stop = start + raw.shape[0]
            covariates = None if self.covariates is None else contiguous(self.covariates[start:stop])
            position = first + index, self.rows.start + start
            yield Block(raw, covariates, *position, self.source.implicit_value, own, dtype, self.missing_code)
            start = stop

    def _read(self, start: int, stop: int) -> Rows:
        return self.source.read_native(start, stop)

    def _raw_blocks(self) -> Iterator[Rows]:
        n, step = self.source.shape[0], self.layout.block_rows
        if self.source.chunk_rows is None:
            yield from (self._read(a, min(a + step, n)) for a in range(0, n, step))
        else:
            yield from rechunk_rows(prefetch(self._read(r.start, r.stop) for r in self.source.read_ranges(self.layout)), step)


def partitions(source: RowSource, missing_code: int | None, covariates: NDArray[Any] | None) -> Partitions:
    """All partitions of a data set; they follow from its shape alone."""
    return Partitions(0, source, missing_code, covariates, Layout.of(source.shape))


def walk(
    blocks: Iterable[Block],
    pass_: Pass[Any, P],
    broadcast: Any,
    states: Iterable[State | None],
    keep: Callable[[State | None], None],
) -> P:
    """Run the pass over a partition's blocks: take each block's state, hand on the new one, add up."""
    total: P | None = None
    for block, old in zip(blocks, states, strict=True):
        block.work.next_block()
        state, sums = pass_.step(block, pass_.start(block) if old is None else old, broadcast)
        keep(state)
        if total is None:
            total = sums.total()
        else:
            total.add(sums)
    assert total is not None, "a partition has at least one block"
    return total


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """The same items, each produced in a helper thread while the one before is in use."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="dfact-read") as helper:
        ahead = helper.submit(next, iterator, end)
        while (item := ahead.result()) is not end:
            ahead = helper.submit(next, iterator, end)
            yield item  # type: ignore[misc]  # the sentinel is gone here


def rechunk_rows(chunks: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """Blocks of ``rows`` rows out of chunks of any length; views where a block of an array lies within a chunk."""
    held: Rows | None = None
    for chunk in chunks:
        rest = chunk
        if held is not None:
            need = rows - held.shape[0]
            held, rest = vstack_rows(held, rest[:need]), rest[need:]
            if held.shape[0] < rows:
                continue
            yield held
            held = None
        whole = rest.shape[0] // rows * rows
        for start in range(0, whole, rows):
            yield rest[start : start + rows]
        if whole < rest.shape[0]:
            held = rest[whole:]
    if held is not None:
        yield held


def vstack_rows(above: Rows, below: Rows) -> Rows:
    if isinstance(above, np.ndarray) or isinstance(below, np.ndarray):
        return np.concatenate([above, below])
    return sp.csr_array(sp.vstack([above, below]))
