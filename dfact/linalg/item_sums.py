"""Sums for the distributions of single items, by one pass over the rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.kernels.entries import filled


@dataclass(frozen=True)
class ItemRange:
    """The ends of the range of each item, and the shift that keeps its sums free of cancellation (m)."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    shift: NDArray[np.float64]


@dataclass
class ItemSums(PartialSums, name="item_sums"):
    """Sums over all answers to each item (m); x is an answer less the item's shift."""

    counts: NDArray[Any]
    sums: NDArray[Any]
    squares: NDArray[Any]
    cubes: NDArray[Any]
    """Σ x³."""
    floor: NDArray[Any]
    """Number of answers at the lower end of the range."""
    ceiling: NDArray[Any]
    """Number of answers at its upper end."""

    def means(self) -> NDArray[np.float64]:
        """Return the means of the items less their shifts; NaN without answers."""
        means: NDArray[np.float64] = self.sums / self.counts
        return means

    def deviations(self) -> NDArray[np.float64]:
        """Return the standard deviations, with n − 1 in the denominator; 0 for an item whose answers are all equal."""
        n = self.counts
        spread = self.squares - self.sums**2 / n
        # A smaller spread is the cancellation error of a constant item.
        spread = np.where(spread > 1e-11 * self.squares, spread, 0.0)
        deviations: NDArray[np.float64] = np.sqrt(spread / np.where(n > 1, n - 1, np.nan))
        return deviations

    def skews(self) -> NDArray[np.float64]:
        """Return the skewness Σ(x − x̄)³/n / s³ with the standard deviation s, as psych's ``describe``; NaN for constant items."""
        n, mean, deviations = self.counts, self.means(), self.deviations()
        third = self.cubes / n - 3 * mean * self.squares / n + 2 * mean**3
        skews: NDArray[np.float64] = np.where(deviations > 0, third / deviations**3, np.nan)
        return skews


@dataclass(frozen=True)
class ItemSumsPass(Pass[BlockState, ItemRange, ItemSums]):
    """The sums of the distributions of the items."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: ItemRange) -> tuple[BlockState, ItemSums]:
        M, work = block.values, block.work
        missing = np.isnan(M, out=work.array("missing", M.shape, bool))
        X, powers = (work.array(name, M.shape, np.float64) for name in ("deviations", "powers"))
        np.subtract(M, broadcast.shift, out=powers)
        filled(powers, out=X)
        counts = len(M) - missing.sum(axis=0)
        sums, squares = X.sum(axis=0), np.multiply(X, X, out=powers).sum(axis=0)
        cubes = np.multiply(powers, X, out=powers).sum(axis=0)
        at_end = work.array("at the end", M.shape, bool)
        ends = (np.equal(M, end.astype(self.dtype), out=at_end).sum(axis=0) for end in (broadcast.low, broadcast.high))
        return state, ItemSums(counts, sums, squares, cubes, *ends)
