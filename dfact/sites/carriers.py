"""Carriers: how many rows carry a sum, and the largest share of one row in a sum of squares, which never leave the site.

A sum Σ wᵢ xᵢ over all rows is that of a few if the others have weights near 0. Kish's number (Σ|w|)²/Σw² says of how many.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.engine.requests import FusedPass
from dfact.lazy import pd
from dfact.sites.entries import blocks_of_entries

_FACTORS = "factors"
"""State array (k, rows) whose rows are the weights of the data's rows in the sums of this pass, and of the next one."""
_ROUNDING = 1e-12  # of the largest square: columns that are constant up to rounding have no weights


@dataclass
class Carriers(PartialSums):
    """Weights of the rows in some sums: their absolute sums, their squares, and the largest square, each (columns,)."""

    absolute: NDArray[Any]
    squares: NDArray[Any]
    largest: NDArray[Any]

    @classmethod
    def of(cls, weights: NDArray[Any]) -> Self:
        """Return those of weights (columns, rows); of rows without factors they are NaN, and do not count."""
        low, high = weights.min(axis=1, initial=0), weights.max(axis=1, initial=0)
        if np.isnan(low).any():
            return cls.of(np.nan_to_num(weights))
        sizes = np.abs(weights) if low.any() else weights
        squares = np.einsum("ij,ij->i", weights, weights)
        largest = np.maximum(high, -low).astype(np.float64) ** 2
        absolute = sizes @ np.ones(sizes.shape[1], sizes.dtype)  # by BLAS: a sum in double precision would convert them first
        return cls(absolute.astype(np.float64), np.maximum(squares.astype(np.float64), largest), largest)

    def add(self, other: Self) -> None:
        self.absolute += other.absolute
        self.squares += other.squares
        np.maximum(self.largest, other.largest, out=self.largest)

    @property
    def effective(self) -> NDArray[np.float64]:
        """Effective numbers of rows; infinite for columns without weights, whose sums are 0."""
        found: NDArray[np.float64] = np.divide(
            self.absolute**2, self.squares, out=np.full(len(self.squares), np.inf), where=self.squares > 0
        )
        return found

    @property
    def shares(self) -> NDArray[np.float64]:
        """Largest shares of a row in the sums of squares."""
        found: NDArray[np.float64] = np.divide(self.largest, self.squares, out=np.zeros(len(self.squares)), where=self.squares > 0)
        return found


def is_weighted(pass_: Any) -> bool:
    """Return whether the last of a block's covariates is the weight of its rows, for a pass or some of those that are fused."""
    passes = [member.request.pass_ for member in pass_.members] if isinstance(pass_, FusedPass) else [pass_]
    return any(getattr(getattr(each, "problem", None), "weighted", False) is True for each in passes)


def carriers_of_state(block: Block, arrays: StateArrays, *, weighted: bool) -> Carriers:
    """Return the carriers of the factors that the state of a block holds, of all fits that share the pass."""
    found = [array for name, array in sorted(arrays.items()) if name.rpartition(".")[2] == _FACTORS]
    if weighted and block.covariates is not None:
        found = [array * block.covariates[:, -1] for array in found]
    parts = [Carriers.of(array) for array in found] or [Carriers(*np.empty((3, 0)))]
    return Carriers(*(np.concatenate(values) for values in zip(*(vars(each).values() for each in parts), strict=True)))


@dataclass
class CarriedSums(PartialSums):
    """The sums of a pass, which may leave, with their carriers, which do not."""

    sums: Any
    carriers: Carriers

    def accumulator(self) -> Self:
        return type(self)(self.sums.accumulator(), self.carriers.accumulator())

    def add(self, other: Self) -> None:
        self.sums.add(other.sums)
        self.carriers.add(other.carriers)


@dataclass(frozen=True)
class CarriedPass(Pass[Any, Any, CarriedSums]):
    """Another pass, and the carriers of the factors that it leaves, while these are in the processor's cache."""

    inner: Any
    weighted: bool
    dtype: np.dtype[Any] | None
    changes_state: bool  # type: ignore[misc]  # as the other pass has it

    @classmethod
    def of(cls, inner: Any) -> Self:
        """Return a pass with its carriers."""
        return cls(inner, is_weighted(inner), inner.dtype, inner.changes_state)

    @property
    def state_type(self) -> type[Any]:
        kind: type[Any] = self.inner.state_type
        return kind

    def start(self, block: Block) -> Any:
        return self.inner.start(block)

    def step(self, block: Block, state: Any, broadcast: Any) -> tuple[Any, CarriedSums]:
        state, sums = self.inner.step(block, state, broadcast)
        return state, CarriedSums(sums, carriers_of_state(block, state.arrays(), weighted=self.weighted))


@dataclass(frozen=True)
class CarriersPass(Pass[BlockState, None, Carriers]):
    """The carriers of the factors that a tiled pass has left. It reads no data."""

    changes_state: ClassVar[bool] = False
    weighted: bool = False
    dtype = None

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, Carriers]:
        return state, carriers_of_state(block, state.arrays(), weighted=self.weighted)


def carriers_of_entries(dataset: Dataset) -> Carriers:
    """Return the carriers of each column above its lowest entry, below its highest one, and about its mean (3 × columns).

    Sums of products of columns tell those of the entries less any number, so a column that is the same for all but a few rows is theirs.
    """
    m = int(np.prod(dataset.shape[1:]))
    low, high = (np.asarray(limits, np.float64).reshape(-1) for limits in (dataset.statistics.minimum, dataset.statistics.maximum))
    seen = dataset.statistics.observed.reshape(-1) > 0
    low, high = np.where(seen, low, 0.0), np.where(seen, high, 0.0)
    middle = (low + high) / 2
    counts, sums, squares = np.zeros(m), np.zeros(m), np.zeros(m)
    for _, rows in blocks_of_entries(dataset):
        counts += np.count_nonzero(~np.isnan(rows), axis=0)
        filled = np.nan_to_num(rows - middle)
        sums += filled.sum(axis=0)
        squares += np.einsum("ij,ij->j", filled, filled)
    found = []
    for shift in (low - middle, high - middle, np.divide(sums, counts, out=np.zeros(m), where=counts > 0)):
        about = squares - 2 * shift * sums + counts * shift**2
        largest = np.maximum((low - middle - shift) ** 2, (high - middle - shift) ** 2)
        about = np.where(about > _ROUNDING * largest * counts, np.maximum(about, largest), 0.0)
        found.append((np.abs(sums - counts * shift), about, np.where(about > 0, largest, 0.0)))
    absolute, about, largest = (np.concatenate(parts) for parts in zip(*found, strict=True))
    absolute[2 * m :] = np.sqrt(about[2 * m :] * counts)  # about the mean, the share of one row decides alone
    return Carriers(absolute, about, largest)


def carriers_of_confounder(values: "pd.Series[float]", low: float, high: float, weights: NDArray[Any] | None) -> Carriers:
    """Return the carriers of a continuous confounder with this range, x and 1 − x, above its lowest value and below its highest one."""
    x = values.to_numpy(np.float64)
    x = x[~np.isnan(x)] if weights is None else x
    limits = (low, high, np.nanmin(x), np.nanmax(x)) if x.size and not np.isnan(x).all() else (low, high)
    columns = np.stack([np.abs(x - limit) for limit in limits])
    return Carriers.of(columns if weights is None else columns * weights)


def carriers_of_weights(weights: NDArray[np.float64]) -> Carriers:
    """Return the carriers of survey weights less each of their values: sums with weights, less a multiple of those without, are theirs."""
    w = np.sort(weights) - np.median(weights)
    values, first = np.unique(w, return_index=True)
    before, total, squares = np.concatenate([[0.0], np.cumsum(w)])[first], w.sum(), float(w @ w)
    absolute = values * first - before + (total - before) - values * (len(w) - first)
    largest = np.maximum(values - w[0], w[-1] - values) ** 2
    about = np.maximum(squares - 2 * values * total + len(w) * values**2, largest)
    return Carriers(absolute, about, largest)
