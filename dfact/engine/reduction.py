"""The order of all sums over partitions: a fixed binary tree over their numbers, the same in all executors."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar


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
    def of(cls, numbers: Sequence[int], ranges: Sequence[range]) -> "Leaves":
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
