"""Polychoric correlations of ordered answers: the tables of all pairs of items by one pass, then one estimate for each pair.

Two steps (Olsson 1979): thresholds τ_jc = Φ⁻¹(share of the answers to item j up to level c), from all answers to the item; then ρ_ij
maximises Σ n_ab log P_ab(ρ), with P_ab the bivariate normal probabilities of the pair's table n_ab.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.kernels.polychoric import LIMIT, WORD, correlate_tables, count_common, pack_levels

Array = NDArray[np.float64]

MAX_LEVELS = 10
"""Largest number of levels of an item."""
_GATHERED = 1 << 7  # words of bits that are counted together: adding up their tables then costs little
_THREADED = 1 << 12  # minimum number of pairs that are estimated by several threads


@dataclass(frozen=True)
class Levels:
    """The possible answers of the items: whole numbers from ``low``, each with a slot of the bit matrix."""

    low: Array
    """Lowest answer to each item (m)."""
    starts: NDArray[np.int64]
    """First slot of each item, and the number S of slots (m + 1)."""

    @classmethod
    def between(cls, low: Array, high: Array) -> "Levels":
        """Return the levels of items with these lowest and highest answers (m)."""
        return cls(low, np.concatenate([[0], np.cumsum(high - low + 1)]).astype(np.int64))

    @property
    def n_slots(self) -> int:
        return int(self.starts[-1])

    def tiles(self, count: int) -> "list[tuple[int, int]]":
        """Split the items into at most ``count`` ranges, whose tables with all items before them are of about equal size."""
        share = np.sqrt(np.arange(1, count) / count)  # of the items before a cut: the tables before it are the square
        inner = np.searchsorted(self.starts, share * self.n_slots)
        cuts = sorted({0, *inner.tolist(), len(self.low)})
        return list(pairwise(cuts))


def answer_levels(low: Array, high: Array, labels: Sequence[Any] | NDArray[Any]) -> Levels:
    """Return the levels of items with these lowest and highest answers; raise DataError if they are no ordered categories."""
    fractional = np.flatnonzero((low != np.floor(low)) | (high != np.floor(high)))
    wide = np.flatnonzero(high - low >= MAX_LEVELS)
    for invalid, found in ((fractional, "which are no whole numbers"), (wide, f"more than {MAX_LEVELS} levels")):
        if invalid.size:
            j = invalid[0]
            message = f"item {str(labels[j])!r} has answers from {low[j]:g} to {high[j]:g}, {found} ({invalid.size} such items)"
            raise DataError(f"{message}, expected at most {MAX_LEVELS} consecutive whole numbers; recode it, or use correlation='pearson'")
    return Levels.between(low, high)


def table_bytes(n_slots: float, n_rows: int) -> float:
    """Return the size of the tables of all pairs: half of S² numbers of four bytes, for up to 2³¹ rows."""
    return n_slots**2 / 2 * count_dtype(n_rows).itemsize


def gathered_bytes(n_slots: int) -> int:
    """Return the size of the bits that are gathered before they are counted, in two copies while they grow."""
    return 2 * n_slots * _GATHERED * 8


def count_dtype(n_rows: int) -> np.dtype[Any]:
    """Return the type in which ``n_rows`` can be counted."""
    return np.dtype(np.int32 if n_rows < 2**31 else np.int64)


@dataclass
class PairTables(PartialSums, name="pair_tables"):
    """Exact numbers of rows that gave two answers, for the pairs of slots that a :class:`TablesPass` counts.

    Rows are gathered as bits until they are worth counting, so that the tables of few rows are never added up.
    """

    bits: NDArray[np.uint64]
    """The slots' bits (S, words) of rows that are not counted yet."""
    counts: NDArray[Any]
    """Rows ``span`` of the lower triangle of G; empty if no bits were counted yet."""
    span: NDArray[np.int64]
    """The first and the last slot + 1 whose pairs with the slots up to them are counted, and the number of bytes of a count (3)."""
    rows: NDArray[np.int64]
    """Number of rows that contributed."""
    fractions: NDArray[np.int64]
    """Number of answers to each item that are no whole numbers (m)."""

    def accumulator(self) -> Self:
        """Return a copy; whole numbers need no other precision."""
        return type(self)(**{name: np.array(value) for name, value in vars(self).items()})

    def add(self, other: Self) -> None:
        """Add ``other`` in place; the order does not matter."""
        self.rows = self.rows + other.rows
        self.fractions = self.fractions + other.fractions
        if not self.counts.size:
            self.counts = other.counts
        elif other.counts.size:
            self.counts += other.counts
        self.bits = np.concatenate([self.bits, other.bits], axis=1)
        if self.bits.shape[1] >= _GATHERED:
            self.count()

    def count(self) -> None:
        """Count the gathered bits."""
        first, last, size = (int(number) for number in self.span)
        if not self.counts.size:
            self.counts = np.zeros((last * (last + 1) - first * (first + 1)) // 2, np.dtype(f"i{size}"))
        count_common(self.bits, first, last, self.counts)
        self.bits = self.bits[:, :0]


@dataclass(frozen=True)
class TablesPass(Pass[BlockState, Levels, PairTables]):
    """The tables of a range of items with themselves and all items before them."""

    dtype: np.dtype[Any]
    complete_only: bool
    """Whether to leave out rows with missing answers."""
    items: tuple[int, int]
    """The first and the last item + 1."""
    n_rows: int
    """Number of rows of the data."""

    def step(self, block: Block, state: BlockState, broadcast: Levels) -> tuple[BlockState, PairTables]:
        codes, missing_code = block.codes
        n, last = codes.shape[0], self.items[1]
        starts = broadcast.starts
        bits = block.work.zeros((int(starts[last]), -(-n // WORD)), np.uint64)
        fractions = np.zeros(codes.shape[1], np.int64)
        rows = pack_levels(codes, missing_code, broadcast.low, starts, last, self.complete_only, bits, fractions)
        span = np.array([starts[self.items[0]], starts[last], count_dtype(self.n_rows).itemsize])
        return state, PairTables(bits, np.empty(0, count_dtype(self.n_rows)), span, np.asarray(rows, np.int64), fractions)


@dataclass(frozen=True)
class Categories:
    """Categories of the items: the levels with answers, with their thresholds."""

    levels: NDArray[np.int64]
    """Number of each slot among the categories of its item (S); −1 for levels without answers."""
    cuts: NDArray[np.int64]
    """First threshold of each item, and their number (m + 1)."""
    thresholds: Array
    shares: Array
    """Share of the item's answers up to each threshold."""

    @classmethod
    def of(cls, levels: Levels, totals: Array) -> "Categories":
        """Compute the thresholds from the number of answers in each slot, of all items or of the first ones."""
        numbers = np.full(len(totals), -1, np.int64)
        shares = []
        for start, stop in pairwise(levels.starts[levels.starts <= len(totals)]):
            taken = start + np.flatnonzero(totals[start:stop])
            numbers[taken] = np.arange(len(taken))
            shares.append(totals[taken].cumsum()[:-1] / totals[taken].sum())
        flat = np.concatenate(shares)
        cuts = np.concatenate([[0], np.cumsum([len(share) for share in shares])]).astype(np.int64)
        return cls(numbers, cuts, np.asarray(ndtri(flat), np.float64), flat)

    @property
    def by_item(self) -> list[list[float]]:
        """The thresholds of each item."""
        return [self.thresholds[start:stop].tolist() for start, stop in pairwise(self.cuts)]


@dataclass
class Polychoric:
    """Polychoric correlations, filled range by range of items."""

    R: Array
    """Correlations (m, m); NaN for pairs in whose common rows an item does not vary."""
    errors: Array
    """Standard errors (m, m) for given thresholds; NaN at the limit ±0.9999."""

    counts: Array
    """Numbers of rows that answered both items (m, m)."""

    @classmethod
    def empty(cls, m: int) -> "Polychoric":
        return cls(np.eye(m), np.zeros((m, m)), np.zeros((m, m)))

    def estimate(self, tables: PairTables, levels: Levels, categories: Categories, items: tuple[int, int], threads: int) -> None:
        """Estimate the correlations of a range of items with all items before them."""
        numbers = np.arange(*items)
        c, first = categories, int(levels.starts[items[0]])

        def estimate(part: NDArray[np.int64]) -> None:
            results = self.R, self.errors, self.counts
            correlate_tables(tables.counts, first, levels.starts, part, c.cuts, c.thresholds, c.shares, c.levels, *results)

        threads = threads if len(numbers) * items[1] >= _THREADED else 1
        with ThreadPoolExecutor(threads) as pool:  # each has items of all numbers of pairs
            list(pool.map(estimate, [numbers[i :: 4 * threads] for i in range(4 * threads)]))

    @property
    def at_limit(self) -> NDArray[np.int64]:
        """The pairs (…, 2) of items whose estimates are at the limit."""
        return np.argwhere(np.tril(np.abs(self.R) >= LIMIT, -1))


@dataclass(frozen=True)
class Tabulated:
    """Polychoric correlations with what the tables say about the items."""

    correlations: Polychoric
    rows: int
    """Number of rows that contributed."""
    totals: Array
    """Numbers of answers in the slots (S)."""
    categories: Categories
    fractions: NDArray[np.int64]
    """Number of answers to each item that are no whole numbers (m)."""


def tabulate(
    levels: Levels, tiles: int, n_rows: int, dtype: np.dtype[Any], *, complete_only: bool = False, threads: int = 1
) -> Solver[Tabulated]:
    """Compute the polychoric correlations of all items, by a pass for each of ``tiles`` ranges of items.

    The correlations are not estimated if fewer than two rows contribute, or if there are answers that are no whole numbers.
    """
    found, totals = Polychoric.empty(len(levels.low)), np.empty(0)
    for items in levels.tiles(tiles):
        tables = yield from run(TablesPass(dtype, complete_only, items, n_rows), levels)
        tables.count()
        totals = np.concatenate([totals, slot_totals(tables)])
        categories = Categories.of(levels, totals)
        if tables.rows < 2 or tables.fractions.any():
            break
        found.estimate(tables, levels, categories, items, threads)
    return Tabulated(found, int(tables.rows), totals, categories, tables.fractions)


def slot_totals(tables: PairTables) -> Array:
    """Return the numbers of answers in the slots that the tables count: the diagonal of G."""
    first, last, _ = (int(number) for number in tables.span)
    slots = np.arange(first, last)
    totals: Array = tables.counts[slots * (slots + 1) // 2 + slots - first * (first + 1) // 2].astype(np.float64)
    return totals


def level_moments(levels: Levels, totals: Array) -> tuple[Array, Array]:
    """Return the mean and the standard deviation (m) of the answers to each item, from the numbers of answers in the slots (S)."""
    starts = levels.starts[:-1]
    steps = np.arange(levels.n_slots) - np.repeat(starts, np.diff(levels.starts)).astype(np.float64)
    n, first, second = (np.add.reduceat(totals * steps**power, starts) for power in range(3))
    variance = (second - first**2 / n) / np.maximum(n - 1, 1)
    return levels.low + first / n, np.sqrt(np.maximum(variance, 0))


def grouping_information(thresholds: list[list[float]]) -> Array:
    """Return v (m), the variance of a normal variable's means within the categories: v_j = Σ_c p_jc g_jc² with

        g_jc = (φ(τ_{j,c−1}) − φ(τ_jc))/p_jc.

    Polychoric correlations of unrelated items are to first order those of the g scores, divided by √(v_i v_j).
    """
    information = []
    for item in thresholds:
        corners = np.concatenate([[-np.inf], item, [np.inf]])
        information.append((np.diff(norm.pdf(corners)) ** 2 / np.diff(ndtr(corners))).sum())
    return np.array(information)
