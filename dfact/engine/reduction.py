"""The order of all sums over partitions: a fixed binary tree over their numbers, the same in all executors."""

import threading
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar


class Summand(Protocol):
    """Sums of partitions, or of groups of them, that add up."""

    def add(self, other: Any) -> None:
        """Add ``other`` in place."""
        ...


S = TypeVar("S", bound=Summand)
Node = tuple[int, int]
"""Level l and index i of the sum over those of the partitions i·2^l to (i+1)·2^l − 1 that exist."""


class TreeSum(Generic[S]):
    """The sum over ``n`` partitions, in the order of a binary tree, of parts that arrive in any order. Thread-safe.

    A node is the sum of its two children, left plus right. So the bits depend on the number of partitions alone, and
    rounding errors grow with its logarithm. If parts arrive in ascending order, at most log2(n) wait for others.
    """

    def __init__(self, n: int) -> None:
        self._n, self._depth = n, (n - 1).bit_length()
        self._nodes: dict[Node, S] = {}
        self._lock = threading.Lock()

    def add(self, node: Node, part: S) -> None:
        """Add a node's sum; ``part`` may be changed in place afterwards."""
        while True:
            level, index = node
            with self._lock:
                single = index % 2 == 0 and (index + 1) << level >= self._n
                sibling = None if single else self._nodes.pop((level, index ^ 1), None)
                if level == self._depth or (sibling is None and not single):
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
        """The sum over all partitions, once all have been added."""
        [(node, total)] = self._nodes.items()
        assert node == (self._depth, 0), f"{node} is not the root of the tree over {self._n} partitions"
        return total
