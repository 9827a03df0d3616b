"""Codes of missing answers of which an import was not told: values far from all other answers of an item."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.ingest.coding.answers import ItemCoding, code_text
from dfact.data.layout import Layout
from dfact.errors import warn

_TAILS = (9, 77, 88, 99, 96, 97, 98, 777, 888, 999, 997, 998, 7777, 8888, 9999, 9998)
_CODES = np.array([-1.0, -2.0, -3.0, -7.0, -8.0, *(sign * code for code in _TAILS for sign in (-1.0, 1.0))])
"""Values that questionnaires use for no answer."""
_LISTED = 5
"""Number of items that the warning names."""
_MOST_LEVELS = 20
"""Number of levels above which an item is not asked about."""


def warn_forgotten_codes(dataset: Dataset, items: Sequence[ItemCoding]) -> Dataset:
    """Warn of items with usual codes of missing answers far from all other answers, and return the dataset.

    A code is far if it is at least as far from the nearest answer as the answers are from one another: 99 among 1 to 7. Items of
    more than 20 levels, which are measurements rather than answers to choose from, are not asked about, and neither are items with
    a declared range or with declared levels. The rows are read only if the lowest or highest answer of another item is such a code.
    """
    if len(dataset.shape) > 2:  # answers at several events have columns of their own
        return dataset
    offset, statistics = np.asarray(dataset.offset, np.float64), dataset.statistics
    asked = np.array([not np.isfinite(item.limits).all() and not item.levels for item in items])
    ends = np.isin(statistics.minimum + offset, _CODES) | np.isin(statistics.maximum + offset, _CODES)
    columns = np.flatnonzero(asked & ends)
    found: dict[str, Counter[float]] = {}
    nearest = [np.inf, -np.inf]
    for j, counts in zip(columns.tolist(), _levels(dataset, columns), strict=True):
        values = {value + float(np.broadcast_to(offset, asked.shape)[j]): n for value, n in counts.items()}
        if codes := _far_codes(np.array(sorted(values))):
            others = [value for value in values if value not in codes]
            nearest = [min(nearest[0], *others), max(nearest[1], *others)]
            found[str(dataset.column_labels[j])] = Counter({code: values[code] for code in codes})
    if found:
        _warn(found, nearest)
    return dataset


def _levels(dataset: Dataset, columns: NDArray[np.intp]) -> list[Counter[float]]:
    """Count the stored values of each of these columns, without the missing code; of a column with too many levels, count none."""
    counts: list[Counter[float]] = [Counter() for _ in columns]
    measured: set[int] = set()
    if len(columns) == 0:
        return counts
    for rows in dataset.source.read_ranges(Layout.of(dataset.shape)):
        block: NDArray[Any] = dataset.source.read(rows.start, rows.stop)[:, columns]
        for i in {*range(len(columns))} - measured:
            column = block[:, i]
            values, n = np.unique(column[~np.isnan(column)] if column.dtype.kind == "f" else column, return_counts=True)
            counts[i].update(dict(zip(values.tolist(), n.tolist(), strict=True)))
            if len(counts[i]) > _MOST_LEVELS + len(_CODES):
                measured.add(i)
                counts[i].clear()
    missing = dataset.missing_code
    return counts if missing is None else [Counter({value: n for value, n in count.items() if value != missing}) for count in counts]


def _far_codes(values: NDArray[np.float64]) -> set[float]:
    """Return the codes at either end of the ascending values of an item that are far from all other values."""
    kept = values
    while kept.size and kept[-1] in _CODES:
        kept = kept[:-1]
    while kept.size and kept[0] in _CODES and kept[0] < 0:
        kept = kept[1:]
    if not 2 <= kept.size <= _MOST_LEVELS:
        return set()
    low, high = kept[0], kept[-1]
    gap = high - low
    return {value for value in values.tolist() if value - high >= gap or low - value > gap}  # −2 to 2 is a usual scale


def _warn(found: dict[str, Counter[float]], nearest: list[float]) -> None:
    """Warn of the codes of these items; all other answers to them lie between ``nearest``."""
    names = [repr(name) for name in found]
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
    codes: Counter[float] = sum(found.values(), Counter())
    texts = ", ".join(f"{code_text(code)} ({n}×)" for code, n in sorted(codes.items()))
    low, high = (code_text(value) for value in nearest)
    flags = " ".join(f"--missing={code_text(code)}" for code in sorted(codes))
    warn(
        f"answers to {listed} are {texts} and the others from {low} to {high}, expected answers near one another; if these are codes of "
        f"missing answers, declare them: missing= ({flags}); if they are answers, give the range: valid_range= (--valid-range)"
    )
