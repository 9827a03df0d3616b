"""The cutting of rows into blocks, partitions and chunks, which follows from the shape of the data, or its number of stored entries."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any

# Partitions and blocks follow from the shape alone, so that the same data gives the same sums, bit for
# bit, for every storage format, chunking, executor and number of workers. Passes that read the stored entries of sparse data alone
# have partitions and blocks that follow from the number of these entries, too.


@dataclass(frozen=True)
class Sizes:
    """Sizes of the blocks, partitions and chunks of a layout, as far as whole rows, blocks and partitions have them."""

    block_entries: int = 1 << 18
    """Number of entries of a block: two float32 working arrays of a block fill a second-level cache."""
    block_rows: tuple[int, int] = (64, 2048)
    """Minimum and maximum number of rows of a block."""
    stored_block_rows: tuple[int, int] = (64, 1 << 14)
    """Minimum and maximum number of rows of a block in passes that read stored entries alone."""
    stored_per_column: int = 2
    """Minimum number of a block's stored entries for each column in these passes, as the sums of a block have all columns."""
    partition_entries: int = 1 << 20
    """Number of entries of a partition: one or two milliseconds of work; the overhead of a partition is a hundredth of it."""
    small_partitions: int = 16
    """Minimum number of partitions of small data, for as many threads; limited by the minimum size of these partitions."""
    small_partition_entries: int = 1 << 17
    """Minimum number of entries of a partition of small data."""
    max_partitions: int = 1 << 14
    """Maximum number of partitions."""
    segment_partition_rows: int = 512
    """Minimum number of rows of a partition of data in segments: each is a group of its own in a tiled pass."""
    chunk_entries: int = 1 << 22
    """Number of entries of a chunk."""


_sizes = Sizes()


@contextmanager
def cut_into(**changes: Any) -> Iterator[None]:
    """Cut data into pieces of these sizes within the block; ``changes`` are fields of :class:`Sizes`, and the others stay.

    For tests and experiments: the last bits of results follow from the layout, so that results with other sizes than the
    default ones differ from those of everyone else. The sizes are those of the process, in all of its threads. Workers that run
    already keep theirs, for the layouts that they compute themselves.
    """
    global _sizes  # noqa: PLW0603  # layouts are computed in threads, to which context variables do not go
    before, _sizes = _sizes, replace(_sizes, **changes)
    try:
        yield
    finally:
        _sizes = before


@dataclass(frozen=True)
class Layout:
    """Numbers of rows in the blocks, partitions and chunks of a dataset.

    A *block* is the input of one kernel call. A *partition* is a range of blocks, the unit of work of a thread and of
    ownership of a worker. A *chunk* is the unit in which dfact's stores are read and written: several partitions. A *segment* is one of
    the datasets that were concatenated: it begins with a block and a partition of its own, so the last ones of a segment may be short.
    """

    n_rows: int
    block_rows: int
    chunk_rows: int
    partition_rows: int
    segments: tuple[int, ...] = ()
    """Numbers of rows of the segments; empty for data in one piece."""

    @classmethod
    def of(cls, shape: tuple[int, ...], sizes: Sizes | None = None) -> "Layout":
        """Compute the layout of an array of this shape (rows first), by default with the current sizes."""
        n, m, sizes = shape[0], max(1, prod(shape[1:])), sizes or _sizes
        few = max(n * m // sizes.small_partitions, sizes.small_partition_entries)
        block = 1 << (max(1, min(sizes.block_entries, few) // m).bit_length() - 1)
        block = min(max(block, sizes.block_rows[0]), sizes.block_rows[1])
        n_blocks = max(1, -(-n // block))
        blocks = max(1, min(sizes.partition_entries, few) // (block * m), -(-n_blocks // sizes.max_partitions))
        partition = min(blocks, n_blocks) * block
        partitions = max(1, round(sizes.chunk_entries / (partition * m)))
        return cls(n, block, min(partitions, max(1, -(-n // partition))) * partition, partition)

    @classmethod
    def of_stored(cls, shape: tuple[int, int], stored: int, sizes: Sizes | None = None) -> "Layout":
        """Compute the layout of a sparse matrix for passes that read its ``stored`` entries alone, by default with the current sizes."""
        (n, m), sizes = shape, sizes or _sizes
        row = stored / max(1, n) + 1
        few = max(int(n * row) // sizes.small_partitions, sizes.small_partition_entries)
        entries = max(min(sizes.block_entries, few), sizes.stored_per_column * m)
        block = 1 << (max(1, int(entries / row)).bit_length() - 1)
        block = min(max(block, sizes.stored_block_rows[0]), sizes.stored_block_rows[1])
        blocks = max(1, int(min(sizes.partition_entries, few) / (block * row)), -(-n // (block * sizes.max_partitions)))
        partition = min(blocks, max(1, -(-n // block))) * block
        partitions = max(1, round(sizes.chunk_entries / (partition * row)))
        return cls(n, block, min(partitions, max(1, -(-n // partition))) * partition, partition)

    def with_segments(self, segments: Sequence[int], sizes: Sizes | None = None) -> "Layout":
        """Return the layout of data with these segments, by default with the current sizes."""
        if not segments:
            return self
        assert sum(segments) == self.n_rows, "segments contain all rows"
        rows = (sizes or _sizes).segment_partition_rows
        partition = max(self.partition_rows, -(-rows // self.block_rows) * self.block_rows)
        return replace(self, partition_rows=partition, chunk_rows=-(-self.chunk_rows // partition) * partition, segments=tuple(segments))

    @cached_property
    def _firsts(self) -> tuple[list[int], list[int], list[int]]:
        """The first row, partition and block of each segment, and the number of all."""
        segments = self.segments or (self.n_rows,)
        counts = (segments, [max(1, -(-n // self.partition_rows)) for n in segments], [-(-n // self.block_rows) for n in segments])
        rows, partitions, blocks = ([0, *accumulate(numbers)] for numbers in counts)
        return rows, partitions, blocks

    @cached_property
    def n_partitions(self) -> int:
        """Number of partitions, at least one."""
        return self._firsts[1][-1]

    @property
    def block_starts(self) -> list[int]:
        """The first row of each block."""
        return [start for first, last in pairwise(self._firsts[0]) for start in range(first, last, self.block_rows)]

    @property
    def partition_ranges(self) -> list[range]:
        """The numbers of the partitions of each segment."""
        return [range(a, b) for a, b in pairwise(self._firsts[1])]

    def sample(self, share: float) -> tuple[int, ...]:
        """Choose this share of the partitions, spread evenly: at least two, or none if two are more than half of them.

        A large sample consists of ranges of partitions in one chunk each, so that few chunks are read.
        """
        n, run = self.n_partitions, self.chunk_rows // self.partition_rows
        count = max(2, round(share * n))
        if 2 * count > n:
            return ()
        if count < 4 * run:
            run = 1
        runs = max(1, count // run)
        starts = (int((i + 0.5) * n / runs) // run * run for i in range(runs))
        return tuple(number for start in starts for number in range(start, min(start + run, n)))

    def rows(self, first: int, last: int) -> slice:
        """Return the rows of the partitions ``first`` to ``last`` − 1."""
        return slice(self._first_row(first), self._first_row(last))

    def _first_row(self, partition: int) -> int:
        rows, partitions, _ = self._firsts
        segment = min(bisect_right(partitions, partition), len(rows) - 1) - 1
        return min(rows[segment] + (partition - partitions[segment]) * self.partition_rows, rows[segment + 1])

    def first_block(self, partition: int) -> int:
        """Return the number of the first block of a partition."""
        _, partitions, blocks = self._firsts
        segment = bisect_right(partitions, partition) - 1
        return blocks[segment] + (partition - partitions[segment]) * (self.partition_rows // self.block_rows)

    def block_of(self, row: int) -> int:
        """Return the number of the block with a row."""
        rows, _, blocks = self._firsts
        segment = bisect_right(rows, row) - 1
        return blocks[segment] + (row - rows[segment]) // self.block_rows

    def partition_of(self, row: int) -> int:
        """Return the number of the partition with a row."""
        rows, partitions, _ = self._firsts
        segment = bisect_right(rows, row) - 1
        return partitions[segment] + (row - rows[segment]) // self.partition_rows
