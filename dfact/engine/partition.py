"""Partitions: the run of rows that one task walks, block after block, while the next chunk is read."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.source import ArraySource, Layout, RowSource, reads
from dfact.data.statistics import as_floating
from dfact.engine.passes import Block, Partial, Pass, State

T = TypeVar("T")
P = TypeVar("P", bound=Partial)


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
        return replace(self, source=ArraySource(self.source.read(0, self.source.shape[0])))

    def blocks(self, dtype: np.dtype[Any]) -> Iterator[Block]:
        """The blocks in order; chunks are read one ahead."""
        first = self.rows.start // self.layout.block_rows
        start = 0
        for index, raw in enumerate(self._raw_blocks()):
            values = as_floating(raw, self.missing_code, dtype)
            values.flags.writeable = False
            stop = start + len(raw)
            yield Block(values, None if self.covariates is None else self.covariates[start:stop], first + index)
            start = stop

    def _raw_blocks(self) -> Iterator[NDArray[Any]]:
        n, step = self.source.shape[0], self.layout.block_rows
        if self.source.chunk_rows is None:
            yield from (self.source.read(a, min(a + step, n)) for a in range(0, n, step))
        else:
            chunks = (self.source.read(r.start, r.stop) for r in reads(self.source, self.layout))
            yield from _cut(one_ahead(chunks), step)


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
) -> P:
    """Run the pass over the partition's blocks: take each block's state, hand on the new one, add up."""
    total: P | None = None
    for block, old in zip(partition.blocks(pass_.dtype), states, strict=True):
        state, partial = pass_.step(block, pass_.start(block) if old is None else old, shared)
        keep(state)
        if total is None:
            total = partial.total()
        else:
            total.add(partial)
    assert total is not None, "a partition has at least one block"
    return total


def add_up(totals: Iterable[P]) -> P:
    """The sum over partitions, in their order."""
    iterator = iter(totals)
    result = next(iterator)
    for total in iterator:
        result.add(total)
    return result


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each produced in a helper thread while the one before is in use."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="dfact-read") as helper:
        ahead = helper.submit(next, iterator, end)
        while (item := ahead.result()) is not end:
            ahead = helper.submit(next, iterator, end)
            yield item  # type: ignore[misc]  # the sentinel is gone here


def _cut(chunks: Iterable[NDArray[Any]], rows: int) -> Iterator[NDArray[Any]]:
    """Blocks of ``rows`` rows out of chunks of any length; views where a block lies within a chunk."""
    held: NDArray[Any] | None = None
    for chunk in chunks:
        rest = chunk
        if held is not None:
            need = rows - len(held)
            held, rest = np.concatenate([held, rest[:need]]), rest[need:]
            if len(held) < rows:
                continue
            yield held
            held = None
        whole = len(rest) // rows * rows
        for start in range(0, whole, rows):
            yield rest[start : start + rows]
        if whole < len(rest):
            held = rest[whole:]
    if held is not None:
        yield held
