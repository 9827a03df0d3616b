"""Partitions: the run of rows that one task walks, block after block, while the next chunk is read."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.source import ArraySource, Layout, RowSource, SparseSource, absent_of, aligned, read_rows, reads
from dfact.data.statistics import as_floating
from dfact.engine.passes import Block, Partial, Pass, State, Workspace

T = TypeVar("T")
P = TypeVar("P", bound=Partial)
Rows = NDArray[Any] | sp.csr_array
GROUP = 8
"""Partitions whose sums are added up before those of others join them."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of one task and how to read them."""

    rows: slice
    source: RowSource
    missing_code: int | None
    covariates: NDArray[Any] | None
    layout: Layout

    @property
    def n_blocks(self) -> int:
        return -(-self.source.shape[0] // self.layout.block_rows)

    def load(self) -> "Partition":
        """The same partition with its values decompressed in memory."""
        raw = self._read(0, self.source.shape[0])
        return replace(self, source=ArraySource(raw) if isinstance(raw, np.ndarray) else SparseSource(raw, absent=absent_of(self.source)))

    def blocks(self, dtype: np.dtype[Any] | None, work: Workspace | None = None) -> Iterator[Block]:
        """The blocks in order; chunks are read one ahead. Without a ``dtype`` nothing is read.

        With ``work`` a block may lie there, until the next one comes; without, each has memory of its own.
        """
        first, step, n = self.rows.start // self.layout.block_rows, self.layout.block_rows, self.source.shape[0]
        nothing = (np.empty((min(step, n - start), 0)) for start in range(0, n, step))
        start = 0
        for index, raw in enumerate(nothing if dtype is None else self._raw_blocks()):
            own = Workspace() if work is None else work
            matrix = raw if dtype is None else as_floating(raw, self.missing_code, dtype, partial(own.array, "matrix"))
            if isinstance(matrix, np.ndarray):
                matrix.flags.writeable = False
            stop = start + raw.shape[0]
            covariates = None if self.covariates is None else aligned(self.covariates[start:stop])
            yield Block(matrix, covariates, first + index, self.rows.start + start, absent_of(self.source), own)
            start = stop

    def _read(self, start: int, stop: int) -> Rows:
        return read_rows(self.source, start, stop)

    def _raw_blocks(self) -> Iterator[Rows]:
        n, step = self.source.shape[0], self.layout.block_rows
        if self.source.chunk_rows is None:
            yield from (self._read(a, min(a + step, n)) for a in range(0, n, step))
        else:
            yield from _cut(one_ahead(self._read(r.start, r.stop) for r in reads(self.source, self.layout)), step)


def partitions(source: RowSource, missing_code: int | None, covariates: NDArray[Any] | None) -> list[Partition]:
    """The partitions of a data set; they follow from its shape alone."""
    layout = Layout.of(source.shape)
    return [
        Partition(rows, source.slice(rows), missing_code, None if covariates is None else covariates[rows], layout)
        for rows in layout.partitions()
    ]


def walk(
    partition: Partition,
    pass_: Pass[Any, P],
    shared: Any,
    states: Iterable[State | None],
    keep: Callable[[State | None], None],
    work: Workspace | None = None,
) -> P:
    """Run the pass over the partition's blocks: take each block's state, hand on the new one, add up."""
    total: P | None = None
    work = Workspace() if work is None else work
    for block, old in zip(partition.blocks(pass_.dtype, work), states, strict=True):
        work.next_block()
        state, sums = pass_.step(block, pass_.start(block) if old is None else old, shared)
        keep(state)
        if total is None:
            total = sums.total()
        else:
            total.add(sums)
    assert total is not None, "a partition has at least one block"
    return total


def add_up(totals: Iterable[P]) -> P:
    """The sum of what is given, in its order, added to the first."""
    iterator = iter(totals)
    result = next(iterator)
    for total in iterator:
        result.add(total)
    return result


class Sum(Generic[P]):
    """The sum over partitions, given in their order: of groups of GROUP of them, whose sums are added up then.

    The workers of a cluster do the groups, so that what goes to the driver is a part of it. The bits are those of
    this order, wherever it is done.
    """

    def __init__(self) -> None:
        self._groups: P | None = None
        self._group: P | None = None
        self._count = 0

    def add(self, total: P) -> None:
        """Take in the partial result of the next partition."""
        if self._count % GROUP == 0:
            self._close()
            self._group = total
        else:
            assert self._group is not None, "its first partition has come"
            self._group.add(total)
        self._count += 1

    def _close(self) -> None:
        if self._groups is None:
            self._groups = self._group
        elif self._group is not None:
            self._groups.add(self._group)
        self._group = None

    @property
    def result(self) -> P:
        self._close()
        assert self._groups is not None, "there is at least one partition"
        return self._groups


class InOrder(Generic[P]):
    """The sum of partial results that come in nearly any order, added in theirs: who is ``ahead`` by as many waits."""

    def __init__(self, ahead: int) -> None:
        self._change = threading.Condition()
        self._ahead = ahead
        self._waiting: dict[int, P] = {}
        self._next = 0
        self._sum = Sum[P]()
        self._failed = False

    def add(self, index: int, total: P) -> None:
        """Take in the partial result number ``index``."""
        with self._change:
            self._change.wait_for(lambda: index < self._next + self._ahead or self._failed)
            self._waiting[index] = total
            while self._next in self._waiting:
                self._sum.add(self._waiting.pop(self._next))
                self._next += 1
            self._change.notify_all()

    def fail(self) -> None:
        """A partial result will never come: nobody waits for it."""
        with self._change:
            self._failed = True
            self._change.notify_all()

    @property
    def result(self) -> P:
        return self._sum.result


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each produced in a helper thread while the one before is in use."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="dfact-read") as helper:
        ahead = helper.submit(next, iterator, end)
        while (item := ahead.result()) is not end:
            ahead = helper.submit(next, iterator, end)
            yield item  # type: ignore[misc]  # the sentinel is gone here


def _cut(chunks: Iterable[Rows], rows: int) -> Iterator[Rows]:
    """Blocks of ``rows`` rows out of chunks of any length; views where a block of an array lies within a chunk."""
    held: Rows | None = None
    for chunk in chunks:
        rest = chunk
        if held is not None:
            need = rows - held.shape[0]
            held, rest = _stacked(held, rest[:need]), rest[need:]
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


def _stacked(above: Rows, below: Rows) -> Rows:
    if isinstance(above, np.ndarray) or isinstance(below, np.ndarray):
        return np.concatenate([above, below])
    return sp.csr_array(sp.vstack([above, below]))
