"""Entries of a site's data, in blocks of rows that fit in memory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset

_ENTRIES = 1 << 20  # that are read at once


def blocks_of_entries(dataset: Dataset) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield ranges of rows with their entries (rows, m), NaN where missing; a tensor's modes after the first are flattened."""
    n, m = dataset.shape[0], int(np.prod(dataset.shape[1:]))
    step = max(1, _ENTRIES // (m + 1))
    for start in range(0, n, step):
        stop = min(start + step, n)
        rows = np.array(dataset.source.read(start, stop), np.float64).reshape(-1, m)
        if dataset.missing_code is not None:
            rows[rows == dataset.missing_code] = np.nan
        yield slice(start, stop), rows
