"""Compute what the products of all pairs of columns tell of rows: the leverage of a row, and the tables of two-valued items.

The leverage is the largest share of one row in the squares of any combination of columns. The products tell those of every combination
with all columns. If a combination is 0 for all rows but one, as the difference of two items that are the same for all others, they are
the values of that row. Short vectors of the lattice with this Gram matrix are such combinations, so a coordinator finds them. The products
of two items with two values each are their table.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.federation.entries import blocks_of_entries
from dfact.lazy import pd

_ROUNDING = 1e-13  # of the largest eigenvalue: combinations with smaller ones are 0 for all rows up to rounding


@dataclass(frozen=True)
class Products:
    """Facts that the products of the columns of a dataset tell."""

    leverage: float
    """Largest leverage of a row in ones, confounders, entries, and which of them are missing."""
    cells: NDArray[np.float64]
    """Numbers of rows with two answers, of all pairs of items that have two values."""


def products_of(dataset: Dataset) -> Products:
    """Return what the products of the columns of a dataset tell; its rows are read twice."""
    m = int(np.prod(dataset.shape[1:]))
    confounders, missing = _confounder_columns(dataset), dataset.statistics.observed.reshape(-1) < dataset.shape[0]
    low, high = (np.asarray(limits, np.float64).reshape(-1) for limits in (dataset.statistics.minimum, dataset.statistics.maximum))
    finite = np.isfinite(low) & np.isfinite(high)  # not those of a column without entries
    low, high = (np.where(finite, limits, 0.0) for limits in (low, high))
    middle, spread = (low + high) / 2, (high - low) / 2
    is_two_valued = spread > 0

    def blocks() -> Iterator[NDArray[np.float64]]:
        for where, entries in blocks_of_entries(dataset):
            rows = (entries - middle) / np.where(spread > 0, spread, 1.0)
            is_two_valued[(np.abs(rows) < 1).any(axis=0)] = False
            yield np.hstack([confounders[where], np.nan_to_num(rows), np.isnan(rows[:, missing])])

    gram = np.asarray(sum(block.T @ block for block in blocks()))
    items, n = slice(confounders.shape[1], confounders.shape[1] + m), dataset.shape[0]
    places = np.full(m, -1)
    places[missing] = items.stop + np.arange(int(missing.sum()))
    return Products(_largest(gram, blocks), _cells(gram, n, items, places, np.flatnonzero(is_two_valued)))


def _cells(gram: NDArray[np.float64], n: int, items: slice, places: NDArray[np.intp], chosen: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the cells of the tables of the chosen items, −1 or 1 and 0 where missing.

    ``gram`` are the products of columns: ones first, the ``items``, and which entries are missing, at these ``places``; −1 where none is.
    """

    def products(left: NDArray[np.intp], right: NDArray[np.intp]) -> NDArray[np.float64]:
        return np.where((left < 0)[:, None] | (right < 0), 0.0, gram[np.ix_(left, right)])

    values, gaps, ones = items.start + chosen, places[chosen], np.zeros(len(chosen), np.intp)
    observed = n - products(gaps, ones) - products(ones, gaps) + products(gaps, gaps)  # rows with both answers
    first = products(values, ones) - products(values, gaps)  # Σ x of the one item over them
    both = products(values, values)
    cells = [(observed + a * first + b * first.T + a * b * both) / 4 for a in (-1, 1) for b in (-1, 1)]
    return np.rint(np.array(cells)[:, *np.triu_indices(len(chosen), 1)])


def leverage_of_confounders(dataset: Dataset) -> float:
    """Return the largest leverage of a row in the confounders and ones."""
    columns = _confounder_columns(dataset)
    return _largest(columns.T @ columns, lambda: iter([columns]))


def _confounder_columns(dataset: Dataset) -> NDArray[np.float64]:
    """Return ones, the values of continuous confounders within −1 and 1, the indicators of levels, and those of missing values."""
    found = [np.ones(dataset.shape[0])]
    for _, values in () if dataset.confounders is None else dataset.confounders.items():
        if isinstance(values.dtype, pd.CategoricalDtype):
            codes = values.cat.codes.to_numpy()
            found += [(codes == code).astype(np.float64) for code in np.unique(codes)]
            continue
        x = values.to_numpy(np.float64)
        if not np.isnan(x).all():
            low, high = np.nanmin(x), np.nanmax(x)
            found += [np.nan_to_num((x - (low + high) / 2) / ((high - low) / 2 or 1.0)), np.isnan(x).astype(np.float64)]
    return np.column_stack(found)


def _largest(gram: NDArray[np.float64], blocks: Callable[[], Iterator[NDArray[np.float64]]]) -> float:
    """Return the largest diagonal entry of Z(ZᵀZ)⁺Zᵀ for columns Z in blocks of rows, given ZᵀZ."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > _ROUNDING * len(values) * values[-1]
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    return max((float(np.square(block @ whitening).sum(axis=1).max()) for block in blocks()), default=0.0)
