"""The leverage of rows: the largest share of one row in the squares of any combination of columns.

Products of all pairs of columns tell those of every combination of them with all columns. If a combination is 0 for all rows but one, as
the difference of two items that are the same for all others, they are the values of that row. Short vectors of the lattice with this Gram
matrix are such combinations, so a coordinator finds them.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.lazy import pd

_ENTRIES = 1 << 20  # that are read at once
_ROUNDING = 1e-13  # of the largest eigenvalue: combinations with smaller ones are 0 for all rows up to rounding


def leverage_of_rows(dataset: Dataset) -> float:
    """Return the largest leverage of a row in the columns of a dataset: ones, confounders, entries, and which of them are missing."""
    m = int(np.prod(dataset.shape[1:]))
    confounders, missing = _confounder_columns(dataset), dataset.statistics.observed.reshape(-1) < dataset.shape[0]
    low, high = (np.asarray(limits, np.float64).reshape(-1) for limits in (dataset.statistics.minimum, dataset.statistics.maximum))
    finite = np.isfinite(low) & np.isfinite(high)
    middle, spread = (np.where(finite, values, 0.0) for values in ((low + high) / 2, (high - low) / 2))
    step = max(1, _ENTRIES // (m + 1))

    def blocks() -> Iterator[NDArray[np.float64]]:
        for start in range(0, dataset.shape[0], step):
            rows = np.asarray(dataset.source.read(start, min(start + step, dataset.shape[0])), np.float64).reshape(-1, m)
            if dataset.missing_code is not None:
                rows[rows == dataset.missing_code] = np.nan
            rows = (rows - middle) / np.where(spread > 0, spread, 1.0)
            yield np.hstack([confounders[start : start + len(rows)], np.nan_to_num(rows), np.isnan(rows[:, missing])])

    return _largest(blocks)


def leverage_of_confounders(dataset: Dataset) -> float:
    """Return the largest leverage of a row in the confounders and ones."""
    columns = _confounder_columns(dataset)
    return _largest(lambda: iter([columns]))


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


def _largest(blocks: Callable[[], Iterator[NDArray[np.float64]]]) -> float:
    """Return the largest diagonal entry of Z(ZᵀZ)⁺Zᵀ for columns Z in blocks of rows, which are read twice."""
    gram = sum(block.T @ block for block in blocks())
    values, vectors = np.linalg.eigh(gram)
    kept = values > _ROUNDING * len(values) * values[-1]
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    return max((float(np.square(block @ whitening).sum(axis=1).max()) for block in blocks()), default=0.0)
