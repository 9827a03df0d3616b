"""Sums for the distributions of single items, by one pass over the rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.kernels.entries import filled


@dataclass(frozen=True)
class ItemRange:
    """The ends of the range of each item, and the shift that keeps its sums free of cancellation (m)."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    shift: NDArray[np.float64]


@dataclass
class ItemSums(
    PartialSums,
    name="item_sums",
    disclosure=Released("sums and numbers of answers to the items, and of their products", counts=("counts",)),
):
    """Sums over all answers to each item (m), each times the weight of its row; x is an answer minus the item's shift."""

    counts: NDArray[Any]
    """Number of answers, whatever their weight above 0."""
    total: NDArray[Any]
    """Σ w, without weights the number of answers."""
    squared_weights: NDArray[Any]
    """Σ w²."""
    sums: NDArray[Any]
    squares: NDArray[Any]
    cubes: NDArray[Any]
    """Σ x³."""
    floor: NDArray[Any]
    """Σ w of the answers at the lower end of the range."""
    ceiling: NDArray[Any]
    """Σ w of those at its upper end."""

    def cells(self, broadcast: Any) -> Iterator[NDArray[Any]]:
        """Yield the numbers of the lowest and of the highest answers to each item (m)."""
        del broadcast
        yield from (self.floor, self.ceiling)

    def means(self) -> NDArray[np.float64]:
        """Return the means of the items minus their shifts; NaN without answers."""
        means: NDArray[np.float64] = self.sums / self.total
        return means

    def deviations(self) -> NDArray[np.float64]:
        """Return the standard deviations: mean square deviations times n/(n − 1), with Kish's effective n; 0 if all answers are equal."""
        n = self.total**2 / self.squared_weights
        spread = self.squares - self.sums**2 / self.total
        # A smaller spread is the cancellation error of a constant item.
        spread = np.where(spread > 1e-11 * self.squares, spread, 0.0)
        deviations: NDArray[np.float64] = np.sqrt(spread / np.where(self.counts > 1, self.total - self.total / n, np.nan))
        return deviations

    def skews(self) -> NDArray[np.float64]:
        """Return the skewness, the mean of (x − x̄)³ / s³ with the standard deviation s, as psych's ``describe``; NaN for constant items."""
        n, mean, deviations = self.total, self.means(), self.deviations()
        third = self.cubes / n - 3 * mean * self.squares / n + 2 * mean**3
        skews: NDArray[np.float64] = np.where(deviations > 0, third / deviations**3, np.nan)
        return skews


@dataclass(frozen=True)
class ItemSumsPass(Pass[BlockState, ItemRange, ItemSums]):
    """The sums of the distributions of the items."""

    dtype: np.dtype[Any]
    weighted: bool = False
    """Whether the last of a block's covariates is the weight of its rows. Rows of weight 0 do not count."""

    def step(self, block: Block, state: BlockState, broadcast: ItemRange) -> tuple[BlockState, ItemSums]:
        M, work = block.values, block.work
        missing = np.isnan(M, out=work.array("missing", M.shape, bool))
        X, powers = (work.array(name, M.shape, np.float64) for name in ("deviations", "powers"))
        np.subtract(M, broadcast.shift, out=powers)
        filled(powers, out=X)
        at_end = work.array("at the end", M.shape, bool)
        if self.weighted:
            assert block.covariates is not None, "the last covariate holds the weights"
            weights = block.covariates[:, -1].astype(np.float64)
            observed = ~missing[weights > 0]
            counts = observed.sum(axis=0)
            total, squared = (weights[weights > 0] ** power @ observed for power in (1, 2))
        else:
            weights = None
            counts = total = squared = len(M) - missing.sum(axis=0)

        def summed(A: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(A.sum(axis=0) if weights is None else weights @ A)

        sums, squares = summed(X), summed(np.multiply(X, X, out=powers))
        cubes = summed(np.multiply(powers, X, out=powers))
        ends = (summed(np.equal(M, end.astype(self.dtype), out=at_end)) for end in (broadcast.low, broadcast.high))
        return state, ItemSums(counts, total, squared, sums, squares, cubes, *ends)
