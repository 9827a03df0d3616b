"""Which worker owns which partitions, and the tree in which workers call each other."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from dfact.engine.shard import consecutive

T = TypeVar("T")
FAN_OUT = 4
"""Workers that a worker calls directly: the longest path grows with the logarithm of their number."""
Tree = tuple[T, list[Any]]
"""A worker and the trees of those it calls."""


def split(runs: Sequence[range], weights: Sequence[float]) -> list[list[range]]:
    """Cut runs of partitions into shares proportional to the weights, each of consecutive partitions as far as the runs are."""
    numbers = np.concatenate([np.asarray(run, np.int64) for run in runs]) if runs else np.empty(0, np.int64)
    edges = np.rint(np.cumsum([0.0, *weights]) / sum(weights) * len(numbers)).astype(int)
    return [consecutive(numbers[a:b].tolist()) for a, b in pairwise(edges.tolist())]


def without(runs: Sequence[range], others: Sequence[range]) -> list[range]:
    """The numbers of the runs that are in none of the others."""
    taken = {number for other in others for number in other}
    return consecutive(number for run in runs for number in run if number not in taken)


def tree(items: Sequence[T], fan_out: int = FAN_OUT) -> Tree[T]:
    """The items, in the order of their partitions, as a tree whose subtrees hold neighbours: their sums complete each other."""
    first, rest = items[0], items[1:]
    cuts = [len(rest) * i // min(fan_out, len(rest)) for i in range(min(fan_out, len(rest)) + 1)] if rest else []
    return first, [tree(rest[a:b], fan_out) for a, b in pairwise(cuts)]
