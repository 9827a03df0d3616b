"""Boxes that are ticked or not: items of which each cell holds one answer or none."""

from collections import Counter

import numpy as np

from dfact.data.statistics import ColumnStatistics
from dfact.errors import warn
from dfact.imports.coding.answers import AnswerCoding

_LISTED = 10


def warn_of_boxes(name: str, coding: AnswerCoding, statistics: ColumnStatistics) -> None:
    """Warn of several items with one answer in all cells that are not empty, and no other level, given the statistics of the items."""
    observed, low, high = statistics.observed, statistics.minimum, statistics.maximum
    boxes = np.flatnonzero((observed > 0) & (observed < statistics.n_rows) & (low == high)).tolist()
    boxes = [j for j in boxes if len(coding.items[j].levels) < 2]
    if len(boxes) < 2:
        return
    value = Counter(low[boxes].tolist()).most_common(1)[0][0]
    items = [coding.items[j] for j in boxes if low[j] == value]
    listed = ", ".join(item.name for item in items[:_LISTED]) + (f" and {len(items) - _LISTED} more" if len(items) > _LISTED else "")
    found = (
        f"{name}: the cells of {listed} hold {items[0].shown_level(value) or f'{value:g}'!r} or no answer, so that the items do not vary"
    )
    names = ",".join(item.name for item in items)
    if items[0].texts and not items[0].accepts_numbers:
        text = next(iter(items[0].texts))
        remedy = f'empty_cells= and levels= (--empty-cells "{names}=No" --levels "{names}: No<{text}")'
    else:
        remedy = f'empty_cells= (--empty-cells "{names}={0 if value else 1}")'
    warn(f"{found}; if an empty cell is a box that is not ticked, say {remedy}")
