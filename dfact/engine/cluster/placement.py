"""The assignment of partitions to workers, and the tree in which workers call each other.

Pure functions of numbers: they know no worker, no session and no pass. Every partition is in one share, shares are proportional to weights,
and their edges lie at multiples of a unit and, where the balance allows, of large powers of two. The tree of calls contains every worker
once and follows the tree of sums. So nothing in here can change bits: :class:`~dfact.engine.partitions.TreeSum` fixes the order of the
sums, and placement decides only how few nodes of it a message carries.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.partitions import consecutive

T = TypeVar("T")
Tree = tuple[T, list[Any]]
"""A worker and the subtrees of the workers that it calls."""
# Fraction by which the busiest worker may take longer so that shares end at complete nodes of the tree of sums. It applies to 64
# workers or more, and decreases in proportion for fewer.
_IMBALANCE, _MANY_WORKERS = 0.05, 64
_LEVELS = 2  # levels of the partitions' tree that a worker divides among the workers it calls


def split_runs(runs: Sequence[range], weights: Sequence[float], unit: int = 1) -> list[list[range]]:
    """Split runs of partitions into shares proportional to the weights, each of consecutive partitions as far as the runs are.

    Shares begin at multiples of ``unit``, and of the largest power of two that their balance allows. So a worker returns the sums
    of few nodes of the tree over the partitions, often of one.
    """
    partitions = np.concatenate([np.asarray(run, np.int64) for run in runs]) if runs else np.empty(0, np.int64)
    shares = np.cumsum([0.0, *weights]) / sum(weights)

    def align(size: int) -> NDArray[Any]:
        starts = np.flatnonzero(np.diff(partitions // size, prepend=-1))  # positions of the multiples of the size
        units = np.append(starts, len(partitions))
        aligned: NDArray[Any] = units[np.rint(shares * len(starts)).astype(int)]
        return aligned

    edges = align(unit)
    longest = (1 + _IMBALANCE * min(1, len(weights) / _MANY_WORKERS)) * _longest(edges, weights)
    size = 2 * unit
    while size <= len(partitions):
        coarser = align(size)
        if _longest(coarser, weights) <= longest:
            edges = coarser
        size *= 2
    return [consecutive(partitions[a:b].tolist()) for a, b in pairwise(edges.tolist())]


def _longest(edges: NDArray[Any], weights: Sequence[float]) -> float:
    return float((np.diff(edges) / np.asarray(weights)).max())


def subtract_runs(runs: Sequence[range], others: Sequence[range]) -> list[range]:
    """Return the partitions of the runs that are in none of the others, in ascending order."""
    left = np.zeros(max((run.stop for run in (*runs, *others)), default=0), bool)
    for run in runs:
        left[run.start : run.stop] = True
    for run in others:
        left[run.start : run.stop] = False
    return consecutive(np.flatnonzero(left).tolist())


def overlaps(run: range, pieces: Sequence[tuple[range, T]]) -> list[tuple[range, T]]:
    """Return the parts of a run that lie in the pieces, with what belongs to each; the pieces are disjoint, in ascending order."""
    found = []
    for piece, item in islice(pieces, bisect_right(pieces, run.start, key=lambda entry: entry[0].stop), None):
        if piece.start >= run.stop:
            break
        found.append((range(max(run.start, piece.start), min(run.stop, piece.stop)), item))
    return found


def build_call_tree(items: Sequence[T], firsts: Sequence[int]) -> Tree[T]:
    """Arrange the items in a tree that follows the binary tree over the partitions; ``firsts`` are their first partitions, ascending.

    Two levels of the partitions' tree are divided at once: the worker with the first quarter calls the first workers of
    the other quarters, and each does the same within its own. So a call returns the sums of a complete node, and the longest
    path has few calls.
    """
    below: list[Tree[T]] = []
    rest = len(items)
    while rest > 1:
        shift = ((firsts[0] ^ firsts[rest - 1]).bit_length() - 1) // _LEVELS * _LEVELS
        starts = [i for i in range(1, rest) if firsts[i] >> shift != firsts[i - 1] >> shift]
        below += [build_call_tree(items[a:b], firsts[a:b]) for a, b in pairwise([*starts, rest])]
        rest = starts[0]
    return items[0], below
