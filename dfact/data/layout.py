"""The cutting of rows into blocks, partitions and chunks, which follows from the shape of the data, or its number of stored entries."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod

# Partitions and blocks follow from the shape alone, so that the same data gives the same sums, bit for
# bit, for every storage format, chunking, executor and number of workers. Passes that read the stored entries of sparse data alone
# have partitions and blocks that follow from the number of these entries, too.
_BLOCK_ENTRIES = 1 << 18  # two float32 working arrays of a block fill a second-level cache
_BLOCK_ROWS = (64, 2048)
_STORED_BLOCK_ROWS = (64, 1 << 14)
_STORED_PER_COLUMN = 2  # minimum number of a block's stored entries for each column, as its sums have all columns
_PARTITION_ENTRIES = 1 << 20  # one or two milliseconds of work; the overhead of a partition is a hundredth of it
_SMALL_PARTITIONS = 16  # minimum number of partitions of small data, for as many threads; limited by the minimum size
_SMALL_PARTITION_ENTRIES = 1 << 17  # minimum size of these partitions
_MAX_PARTITIONS = 1 << 14
_SEGMENT_PARTITION_ROWS = 512  # minimum size of a partition of data in segments: each is a group of its own in a tiled pass
_CHUNK_ENTRIES = 1 << 22


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
    def of(cls, shape: tuple[int, ...]) -> "Layout":
        """Compute the layout of an array of this shape (rows first)."""
        n, m = shape[0], max(1, prod(shape[1:]))
        few = max(n * m // _SMALL_PARTITIONS, _SMALL_PARTITION_ENTRIES)
        block = 1 << (max(1, min(_BLOCK_ENTRIES, few) // m).bit_length() - 1)
        block = min(max(block, _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
        n_blocks = max(1, -(-n // block))
        blocks = max(1, min(_PARTITION_ENTRIES, few) // (block * m), -(-n_blocks // _MAX_PARTITIONS))
        partition = min(blocks, n_blocks) * block
        partitions = max(1, round(_CHUNK_ENTRIES / (partition * m)))
        return cls(n, block, min(partitions, max(1, -(-n // partition))) * partition, partition)

    @classmethod
    def of_stored(cls, shape: tuple[int, int], stored: int) -> "Layout":
        """Compute the layout of a sparse matrix for passes that read its ``stored`` entries alone."""
        n, m = shape
        row = stored / max(1, n) + 1
        few = max(int(n * row) // _SMALL_PARTITIONS, _SMALL_PARTITION_ENTRIES)
        entries = max(min(_BLOCK_ENTRIES, few), _STORED_PER_COLUMN * m)
        block = 1 << (max(1, int(entries / row)).bit_length() - 1)
        block = min(max(block, _STORED_BLOCK_ROWS[0]), _STORED_BLOCK_ROWS[1])
        blocks = max(1, int(min(_PARTITION_ENTRIES, few) / (block * row)), -(-n // (block * _MAX_PARTITIONS)))
        partition = min(blocks, max(1, -(-n // block))) * block
        partitions = max(1, round(_CHUNK_ENTRIES / (partition * row)))
        return cls(n, block, min(partitions, max(1, -(-n // partition))) * partition, partition)

    def with_segments(self, segments: Sequence[int]) -> "Layout":
        """Return the layout of data with these segments."""
        if not segments:
            return self
        assert sum(segments) == self.n_rows, "segments contain all rows"
        partition = max(self.partition_rows, -(-_SEGMENT_PARTITION_ROWS // self.block_rows) * self.block_rows)
        return replace(self, partition_rows=partition, chunk_rows=-(-self.chunk_rows // partition) * partition, segments=tuple(segments))

    @cached_property
    def _firsts(self) -> tuple[list[int], list[int], list[int]]:
        """The first row, partition and block of each segment, and the number of all."""
        segments = self.segments or (self.n_rows,)
        counts = (segments, [max(1, -(-n // self.partition_rows)) for n in segments], [-(-n // self.block_rows) for n in segments])
        rows, partitions, blocks = ([0, *accumulate(numbers)] for numbers in counts)
        return rows, partitions, blocks

    @property
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
