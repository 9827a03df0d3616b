"""Polychoric correlations of ordered answers: the tables of all pairs of items by one pass, then one estimate for each pair.

Two steps (Olsson 1979): thresholds τ_jc = Φ⁻¹(share of the answers to item j up to level c), from all answers to the item; then ρ_ij
maximizes Σ n_ab log P_ab(ρ), with P_ab the bivariate normal probabilities of the pair's table n_ab.

With weights of the rows, shares and tables are sums of weights, and a table is scaled to Kish's effective number of its rows. The
weights are rounded to multiples of a power of two, of which any sum of n weights is exact: 2^−36 of the largest weight at 10^5 rows.
So bits depend neither on partitions nor on the executor, and equal weights have the bits of none.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Released, Withheld
from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.linalg.correlation import ONE_ROW
from dfact.questionnaires.kernels.polychoric import LIMIT, WORD, add_weights, correlate_tables, count_common, find_slots, pack_levels

Array = NDArray[np.float64]

MAX_LEVELS = 10
"""Largest number of levels of an item."""
GATHERED_ROWS = 1 << 13
"""Number of rows that are counted together: adding up their tables then costs little."""
_ROWS = 1 << 10  # rows whose squared weights are added together
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

    @property
    def high(self) -> Array:
        """Highest answer to each item (m)."""
        high: Array = self.low + np.diff(self.starts) - 1
        return high

    def spread(self, counts: NDArray[np.integer], wider: "Levels", dtype: np.dtype[Any]) -> NDArray[np.integer]:
        """Return the lower triangle of G for wider levels, given that for these: answers that did not occur count 0."""
        slots = np.arange(self.n_slots) + np.repeat(wider.starts[:-1] - self.starts[:-1] + self.low - wider.low, np.diff(self.starts))
        slots = slots.astype(np.int64)
        spread = np.zeros(wider.n_slots * (wider.n_slots + 1) // 2, dtype)
        for i, slot in enumerate(slots):
            spread[slot * (slot + 1) // 2 + slots[: i + 1]] = counts[i * (i + 1) // 2 : (i + 1) * (i + 2) // 2]
        return spread

    def tiles(self, count: int) -> "list[tuple[int, int]]":
        """Split the items into at most ``count`` ranges, whose tables with all items before them are of about equal size."""
        share = np.sqrt(np.arange(1, count) / count)  # of the items before a cut: the tables before it are the square
        inner = np.searchsorted(self.starts, share * self.n_slots)
        cuts = sorted({0, *inner.tolist(), len(self.low)})
        return list(pairwise(cuts))


def answer_levels(low: Array, high: Array, labels: Sequence[Any] | NDArray[Any]) -> Levels:
    """Return the levels of items with these lowest and highest answers; raise DataError if they are not ordered categories."""
    fractional = np.flatnonzero((low != np.floor(low)) | (high != np.floor(high)))
    wide = np.flatnonzero(high - low >= MAX_LEVELS)
    for invalid, found in ((fractional, "which are not whole numbers"), (wide, f"more than {MAX_LEVELS} levels")):
        if invalid.size:
            j = invalid[0]
            message = f"item {str(labels[j])!r} has answers from {low[j]:g} to {high[j]:g}, {found} ({invalid.size} such items)"
            remedy = "recode it, or use correlation='pearson' (--correlation pearson)"
            raise DataError(f"{message}, expected at most {MAX_LEVELS} consecutive whole numbers; {remedy}")
    return Levels.between(low, high)


def table_bytes(n_slots: float, n_rows: int, *, weighted: bool = False) -> float:
    """Return the size of the tables of all pairs: half of S² numbers, of four bytes without weights and for up to 2³¹ rows."""
    return n_slots**2 / 2 * count_dtype(n_rows, weighted=weighted).itemsize


def gathered_bytes(n_slots: int, *, weighted_items: int = 0) -> int:
    """Return the size of the rows that are gathered before they are counted, in two copies while they grow.

    Rows with weights are gathered by their slots.
    """
    if not weighted_items:
        return 2 * n_slots * GATHERED_ROWS // 8
    return 2 * GATHERED_ROWS * (weighted_items * slot_dtype(n_slots).itemsize + 8) + 2 * 8 * _ROWS * weighted_items


def count_dtype(n_rows: int, *, weighted: bool) -> np.dtype[Any]:
    """Return the type in which ``n_rows`` can be counted, or their weights summed."""
    return np.dtype(np.int32 if n_rows < 2**31 and not weighted else np.int64)


def slot_dtype(n_slots: int) -> np.dtype[Any]:
    """Return the smallest signed type for the numbers of the slots."""
    return np.min_scalar_type(-n_slots)


def weight_unit(n_rows: int) -> float:
    """Return the power of two of which weights up to 1 are multiples, so that double precision holds any sum of ``n_rows`` of them."""
    return 2.0 ** (n_rows.bit_length() - 53)


@dataclass
class PairTables(PartialSums):
    """The tables of the pairs of slots that a :class:`TablesPass` counts, as exact numbers of rows or sums of their weights.

    Rows are gathered until they are worth counting, so that the tables of few rows are never added up.
    """

    counts: NDArray[Any]
    """Rows ``span`` of the lower triangle of G; empty if no rows were counted yet."""
    span: NDArray[np.int64]
    """The first and the last slot + 1 whose pairs with the slots up to them are counted, and the number of bytes of a count (3)."""
    rows: NDArray[np.int64]
    """Number of rows that contributed."""
    fractions: NDArray[np.int64]
    """Number of answers to each item that are not whole numbers (m)."""

    def cells(self, broadcast: Any) -> Iterator[NDArray[Any]]:
        """Yield the numbers of rows with two answers, and of those with an answer to one item and none to another."""
        yield self.counts
        if isinstance(broadcast, Levels):
            yield from self._answers_without_another(broadcast)

    def items_of(self, broadcast: Any) -> int | None:
        """Return the number of items with levels."""
        return len(broadcast.starts) - 1 if isinstance(broadcast, Levels) else None

    def _answers_without_another(self, levels: Levels) -> Iterator[NDArray[Any]]:
        """Yield, for each item of the span and all before it, the numbers of rows that gave an answer to one and none to the other."""
        first, last = int(self.span[0]), int(self.span[1])
        begins = [slot * (slot + 1) // 2 - first * (first + 1) // 2 for slot in range(last + 1)]
        answers = np.zeros(last, np.int64)
        answers[first:] = [self.counts[begins[slot + 1] - 1] for slot in range(first, last)]
        starts = levels.starts[levels.starts <= last]
        for number, (start, stop) in enumerate(pairwise(starts)):
            if first <= start and number:
                both = np.stack([self.counts[begins[slot] : begins[slot] + start] for slot in range(start, stop)])
                yield answers[start:stop, None] - np.add.reduceat(both, starts[:number], axis=1)
                yield (answers[:start] - both.sum(axis=0))[first:]

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
        self.gather(other)

    def gather(self, other: Self) -> None:
        """Add the rows of ``other`` that are not counted yet."""
        raise NotImplementedError

    def count_gathered(self) -> None:
        """Count the gathered rows."""
        raise NotImplementedError

    def allocate(self) -> tuple[int, int]:
        """Return the span of slots, whose counts are 0 if nothing was counted yet."""
        first, last, size = (int(number) for number in self.span)
        if not self.counts.size:
            self.counts = np.zeros((last * (last + 1) - first * (first + 1)) // 2, np.dtype(f"i{size}"))
        return first, last

    @property
    def effective_rows(self) -> float:
        """Kish's effective number of the rows that contributed; without weights their number."""
        return float(self.rows)

    @property
    def pair_squares(self) -> Array:
        """Sums of squared weights over the rows of two items, divided by the square of the unit of the counts; empty without weights."""
        return np.empty((0, 0))


@dataclass
class CountedTables(
    PairTables, name="counted_tables", disclosure=Released("numbers of rows for each pair of answers to two items", counts=("rows",))
):
    """Numbers of rows that gave two answers."""

    bits: NDArray[np.uint64]
    """The slots' bits (S, words) of rows that are not counted yet."""

    @classmethod
    def of(cls, counts: NDArray[np.integer], levels: Levels, rows: int) -> Self:
        """Return tables whose rows are counted, given the lower triangle of G."""
        S, m = levels.n_slots, len(levels.low)
        span = np.array([0, S, counts.itemsize])
        return cls(counts, span, np.asarray(rows, np.int64), np.zeros(m, np.int64), np.empty((S, 0), np.uint64))

    def gather(self, other: Self) -> None:
        self.bits = np.concatenate([self.bits, other.bits], axis=1)
        if self.bits.shape[1] * WORD >= GATHERED_ROWS:
            self.count_gathered()

    def count_gathered(self) -> None:
        first, last = self.allocate()
        count_common(self.bits, first, last, self.counts)
        self.bits = self.bits[:, :0]


@dataclass
class WeightedTables(
    PairTables, name="weighted_tables", disclosure=Withheld("has sums of weights by cell, which do not tell how many rows are behind them")
):
    """Sums of the weights of rows that gave two answers, in a unit of which all weights are multiples."""

    slots: NDArray[np.signedinteger]
    """Slots of the answers to the items up to the last one, −1 for none, of rows that are not counted yet (rows, items)."""
    weights: NDArray[np.int64]
    """Weights of these rows, in the unit (rows,)."""
    pairs: Array
    """Number of rows with answers to two items, and the sum of their squared weights in the unit; empty if no rows were counted yet
    (2, items, items)."""
    row_weights: Array
    """Sums of the weights and of the squared weights of the rows that contributed, in the unit (2,)."""
    first_item: NDArray[np.int64]
    """First item of the span."""
    unit: Array

    def gather(self, other: Self) -> None:
        self.row_weights = self.row_weights + other.row_weights
        if not self.pairs.size:
            self.pairs = other.pairs
        elif other.pairs.size:
            self.pairs += other.pairs
        self.slots = np.concatenate([self.slots, other.slots])
        self.weights = np.concatenate([self.weights, other.weights])
        if len(self.slots) >= GATHERED_ROWS:
            self.count_gathered()

    def count_gathered(self) -> None:
        first, _ = self.allocate()
        item, items = int(self.first_item), self.slots.shape[1]
        if not self.pairs.size:
            self.pairs = np.zeros((2, items, items))
        add_weights(self.slots, self.weights, item, first, self.counts)
        rows, squares = self.pairs[:, item:]
        for start in range(0, len(self.slots), _ROWS):
            part = slice(start, start + _ROWS)
            seen, addends = self.slots[part] >= 0, squared(self.weights[part], float(self.unit))
            if seen.all():
                rows += len(seen)
                squares += addends.sum()
            else:
                factors = seen.astype(np.float64)
                rows += factors[:, item:].T @ factors
                squares += (factors[:, item:] * addends[:, None]).T @ factors
        self.slots, self.weights = self.slots[:0], self.weights[:0]

    @property
    def effective_rows(self) -> float:
        total, squares = self.row_weights
        return float(total**2 / squares * self.unit) if squares else 0.0

    @property
    def pair_squares(self) -> Array:
        squares: Array = self.pairs[1] / self.unit
        return squares


def squared(weights: NDArray[np.int64], unit: float) -> Array:
    """Return the squares of weights, which are given in the unit, rounded and in the unit."""
    rounded: Array = np.rint((weights * unit) ** 2 / unit)
    return rounded


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
    weighted: bool = False
    """Whether the last of a block's covariates is the weight of its rows, at most 1; the sums are then :class:`WeightedTables`."""

    def step(self, block: Block, state: BlockState, broadcast: Levels) -> tuple[BlockState, PairTables]:
        codes, missing_code = block.codes
        (first, last), starts, n = self.items, broadcast.starts, len(codes)
        fractions = np.zeros(codes.shape[1], np.int64)
        dtype = count_dtype(self.n_rows, weighted=self.weighted)
        counts, span = np.empty(0, dtype), np.array([starts[first], starts[last], dtype.itemsize])
        arguments = codes, missing_code, broadcast.low, starts, last, self.complete_only
        if not self.weighted:
            bits = block.work.zeros((int(starts[last]), -(-n // WORD)), np.uint64)
            rows = np.asarray(pack_levels(*arguments, bits, fractions), np.int64)
            return state, CountedTables(counts, span, rows, fractions, bits)
        assert block.covariates is not None, "the last covariate holds the weights"
        unit = weight_unit(self.n_rows)
        weights = np.rint(block.covariates[:, -1].astype(np.float64) / unit).astype(np.int64)
        slots = block.work.until_next_block((n, last), slot_dtype(broadcast.n_slots))
        rows = np.asarray(find_slots(*arguments, weights, slots, fractions), np.int64)
        row_weights = np.array([weights.sum(), squared(weights, unit).sum()], np.float64)
        settings = np.empty((2, 0, 0)), row_weights, np.asarray(first), np.asarray(unit)
        return state, WeightedTables(counts, span, rows, fractions, slots, weights, *settings)


@dataclass(frozen=True)
class Categories:
    """Categories of the items: the levels with answers, with their thresholds."""

    levels: NDArray[np.int64]
    """Number of each slot among the categories of its item (S); −1 for levels without answers."""
    cuts: NDArray[np.int64]
    """First threshold of each item, and their number (m + 1)."""
    thresholds: Array
    shares: Array
    """Share of the item's answers, or of their weights, up to each threshold."""

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
        numbers, squares = np.arange(*items), tables.pair_squares
        c, results, first = categories, (self.R, self.errors, self.counts), int(levels.starts[items[0]])
        before = first * (first + 1) // 2

        def estimate(part: NDArray[np.int64]) -> None:
            for i in part:
                start, stop = (slot * (slot + 1) // 2 for slot in levels.starts[[i, i + 1]])
                counts = tables.counts[start - before : stop - before].astype(np.float64)
                correlate_tables(counts, i, levels.starts, c.cuts, c.thresholds, c.shares, c.levels, *results, squares)

        threads = threads if len(numbers) * items[1] >= _THREADED else 1
        with ThreadPoolExecutor(threads) as pool:  # each has items of all numbers of pairs
            list(pool.map(estimate, [numbers[i :: 4 * threads] for i in range(4 * threads)]))
        if isinstance(tables, WeightedTables):
            rows, last = slice(*items), items[1]
            self.counts[rows, :last] = tables.pairs[0, rows]
            self.counts[:last, rows] = tables.pairs[0, rows].T

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
    effective_rows: float
    """Kish's effective number of these rows; without weights their number."""
    totals: Array
    """Numbers of answers in the slots (S), with weights effective ones: the answers to an item sum to (Σw)²/Σw²."""
    categories: Categories
    fractions: NDArray[np.int64]
    """Number of answers to each item that are not whole numbers (m)."""
    tables: PairTables
    """Tables of the last range of items."""


def tabulate(
    levels: Levels,
    tiles: int,
    n_rows: int,
    dtype: np.dtype[Any],
    *,
    complete_only: bool = False,
    weighted: bool = False,
    threads: int = 1,
    earlier: PairTables | None = None,
) -> Solver[Tabulated]:
    """Compute the polychoric correlations of all items, by a pass for each of ``tiles`` ranges of items.

    The correlations are not estimated if fewer than two rows contribute, or if there are answers that are not whole numbers. ``earlier``
    are the tables of further rows, for one tile; they are among the ``n_rows``.
    """
    assert earlier is None or tiles == 1, "earlier tables are those of all items"
    found, totals = Polychoric.empty(len(levels.low)), np.empty(0)
    for items in levels.tiles(tiles):
        tables = yield from run(TablesPass(dtype, complete_only, items, n_rows, weighted), levels)
        if earlier is not None:
            tables.add(earlier)
        tables.count_gathered()
        totals = np.concatenate([totals, slot_totals(tables, levels, items)])
        categories = Categories.of(levels, totals)
        if tables.rows < 2 or tables.fractions.any():
            break
        found.estimate(tables, levels, categories, items, threads)
    return Tabulated(found, int(tables.rows), tables.effective_rows, totals, categories, tables.fractions, tables)


def slot_totals(tables: PairTables, levels: Levels, items: tuple[int, int]) -> Array:
    """Return the numbers of answers in the slots of the counted items, or the effective ones: the diagonal of G."""
    first, last, _ = (int(number) for number in tables.span)
    slots = np.arange(first, last)
    totals: Array = tables.counts[slots * (slots + 1) // 2 + slots - first * (first + 1) // 2].astype(np.float64)
    if tables.pair_squares.size:
        sizes = np.diff(levels.starts)[slice(*items)]
        sums, squares = np.add.reduceat(totals, levels.starts[slice(*items)] - first), tables.pair_squares.diagonal()[slice(*items)]
        totals *= np.repeat(sums / np.where(squares > 0, squares, 1), sizes)
    return totals


def level_moments(levels: Levels, totals: Array) -> tuple[Array, Array]:
    """Return the mean and the standard deviation (m) of the answers to each item, from the numbers of answers in the slots (S)."""
    starts = levels.starts[:-1]
    steps = np.arange(levels.n_slots) - np.repeat(starts, np.diff(levels.starts)).astype(np.float64)
    n, first, second = (np.add.reduceat(totals * steps**power, starts) for power in range(3))
    with np.errstate(invalid="ignore"):  # all answers to an item may have weight 0
        mean = first / n
        variance = (second - first * mean) / np.where(n > 1 + ONE_ROW, n - 1, 1)
    return levels.low + mean, np.sqrt(np.maximum(variance, 0))


def grouping_information(thresholds: list[list[float]]) -> Array:
    """Return v (m), the variance of a normal variable's means within the categories: v_j = Σ_c p_jc g_jc² with

        g_jc = (φ(τ_{j,c−1}) − φ(τ_jc))/p_jc.

    Polychoric correlations of unrelated items are to first order those of the g scores, divided by √(v_i v_j).
    """
    information = []
    for item in thresholds:
        corners = np.concatenate([[-np.inf], item, [np.inf]])
        densities = np.exp(-(corners**2) / 2) / np.sqrt(2 * np.pi)
        information.append((np.diff(densities) ** 2 / np.diff(ndtr(corners))).sum())
    return np.array(information)
