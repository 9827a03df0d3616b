"""A small sample of slices, kept by the driver: short starts run on it without reading data or sending messages."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.passes import Block, PartialSums, Pass, RunPass, Withheld
from dfact.engine.session import Session
from dfact.models.cp.problem import RowPrior, unfold

_ENTRIES = 1 << 16  # of a sample, at least
_OBSERVATIONS = 256  # of a sample for each number that it estimates
_LEAST_OBSERVED = 1 / 4  # share of observed entries below which samples do not grow further
_ROWS = 4  # of a sample for each component
_LARGEST_SHARE = 1 / 4  # of the data; a larger sample does not help
_PARTITIONS = 8  # that the slices come from: evenly spread, as rows may be sorted by site or time


@dataclass(frozen=True)
class SamplePlan:
    """The partitions that slices are drawn from, and the number of slices."""

    partitions: tuple[int, ...]
    rows: int
    """Number of slices of a partition."""


def plan_sample(shape: tuple[int, ...], rank: int, missing_rate: float, layout: Layout) -> SamplePlan | None:
    """Choose a sample of data of this shape; None if the data is not much larger than the sample, or in segments.

    A segment may be at another site, which does not send its rows.
    """
    if layout.segments:
        return None
    count = min(_PARTITIONS, layout.n_partitions)
    each = -(-_wanted_rows(shape, rank, missing_rate) // count)
    smallest = min(rows.stop - rows.start for rows in (layout.rows(each[-1], each.stop) for each in layout.partition_ranges))
    if each * count > most_rows(shape, rank) or each > smallest:
        return None
    return SamplePlan(tuple(int((i + 0.5) * layout.n_partitions / count) for i in range(count)), each)


def most_rows(shape: tuple[int, ...], rank: int) -> int:
    """Return the maximum number of slices of a sample, for any share of missing entries."""
    limit = int(_LARGEST_SHARE * shape[0])
    return min(limit, _wanted_rows(shape, rank, 1.0) + _PARTITIONS) if _wanted_rows(shape, rank, 0.0) <= limit else 0


def _wanted_rows(shape: tuple[int, ...], rank: int, missing_rate: float) -> int:
    entries = max(_ENTRIES, _OBSERVATIONS * rank * sum(shape[1:]) / max(1 - missing_rate, _LEAST_OBSERVED))
    return max(int(entries / prod(shape[1:])), _ROWS * rank) + 1


@dataclass
class KeptRows(PartialSums, name="cp_kept_rows", disclosure=Withheld("shows single rows")):
    """Slices of a sample; those of several blocks are concatenated."""

    values: NDArray[Any]
    """(rows, I_2⋯I_N), NaN where missing."""
    variances: NDArray[Any]
    """R_1 (rows, 1)."""

    def accumulator(self) -> Self:
        return type(self)(self.values.copy(), self.variances.copy())

    def add(self, other: Self) -> None:
        self.values, self.variances = (np.concatenate(pair) for pair in ((self.values, other.values), (self.variances, other.variances)))


@dataclass(frozen=True)
class KeepRowsPass(Pass[BlockState, None, KeptRows]):
    """Random slices of each partition of a sample."""

    rows: int
    """Number of slices to draw from a partition."""
    seed: int
    prior: RowPrior
    layout: Layout
    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, KeptRows]:
        V, partition = unfold(block), self.layout.partition_of(block.start)
        extent = self.layout.rows(partition, partition + 1)
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(partition,)))
        drawn = extent.start + rng.permutation(extent.stop - extent.start)[: self.rows]
        rows = np.sort(drawn[(drawn >= block.start) & (drawn < block.start + len(V))]) - block.start
        return state, KeptRows(V[rows], self.prior.variances(block, self.dtype)[rows, None])


class SampleSession(Session):
    """Runs passes on a sample in this process, as on a single block."""

    def __init__(self, rows: KeptRows, shape: tuple[int, ...]) -> None:
        """Take slices of the shape (I_2, …, I_N). Their variances become covariates."""
        self._block = Block(rows.values.reshape(len(rows.values), *shape), rows.variances, 0, 0)
        self._state: StateArrays = {}

    def run(self, request: RunPass[Any]) -> Any:
        self._block.work.next_block()
        self._state, sums = request.add_step(self._block, self._state, None)
        return sums

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        yield self._state[name].T
