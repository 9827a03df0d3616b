"""Which worker owns which partitions, and the tree in which workers call each other."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.shard import consecutive

T = TypeVar("T")
Tree = tuple[T, list[Any]]
"""A worker and the trees of those it calls."""
_UNEVEN, _MANY = 0.05, 64
"""The part of its time that the busiest worker may take longer so that shares end where sums are complete: less with fewer workers."""
_LEVELS = 2  # of the tree over the partitions that a worker divides among those it calls


def split(runs: Sequence[range], weights: Sequence[float]) -> list[list[range]]:
    """Cut runs of partitions into shares proportional to the weights, each of consecutive partitions as far as the runs are.

    Shares begin at multiples of as large a power of two as their balance allows: so a worker returns the sums of few nodes
    of the tree over the partitions, often of one.
    """
    numbers = np.concatenate([np.asarray(run, np.int64) for run in runs]) if runs else np.empty(0, np.int64)
    shares = np.cumsum([0.0, *weights]) / sum(weights)
    edges = np.rint(shares * len(numbers)).astype(int)
    longest = (1 + _UNEVEN * min(1, len(weights) / _MANY)) * _longest(edges, weights)
    size = 2
    while size <= len(numbers):
        starts = np.flatnonzero(np.diff(numbers // size, prepend=-1))  # where the multiples of the size lie among the numbers
        units = np.append(starts, len(numbers))
        coarser = units[np.rint(shares * len(starts)).astype(int)]
        if _longest(coarser, weights) <= longest:
            edges = coarser
        size *= 2
    return [consecutive(numbers[a:b].tolist()) for a, b in pairwise(edges.tolist())]


def _longest(edges: NDArray[Any], weights: Sequence[float]) -> float:
    return float((np.diff(edges) / np.asarray(weights)).max())


def without(runs: Sequence[range], others: Sequence[range]) -> list[range]:
    """The numbers of the runs that are in none of the others."""
    taken = {number for other in others for number in other}
    return consecutive(number for run in runs for number in run if number not in taken)


def tree(items: Sequence[T], firsts: Sequence[int]) -> Tree[T]:
    """The items as a tree that follows the binary tree over the partitions; ``firsts`` are the items' first partitions, ascending.

    Where the partitions' tree divides, two levels of it at once, the worker with the first quarter calls the first workers of
    the others, and each does so within its own: so a call returns the sums of a complete node, and there are few on the longest path.
    """
    below: list[Tree[T]] = []
    rest = len(items)
    while rest > 1:
        shift = ((firsts[0] ^ firsts[rest - 1]).bit_length() - 1) // _LEVELS * _LEVELS
        starts = [i for i in range(1, rest) if firsts[i] >> shift != firsts[i - 1] >> shift]
        below += [tree(items[a:b], firsts[a:b]) for a, b in pairwise([*starts, rest])]
        rest = starts[0]
    return items[0], below
