"""Counts of ordered answers by stratum and group, for tests of differential item functioning.

Additional shape letters: g contrasts of a group with the reference; strata are totals of the answers to a scale.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel


@kernel
def count_strata(
    values: NDArray[np.floating],
    groups: NDArray[np.integer],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    reverse: NDArray[np.bool_],
    items: NDArray[np.int64],
    starts: NDArray[np.int64],
    anchors: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Add the answers values (n, m) to counts, a flat table of contrast × item × stratum × (reference, group) × level.

    Row i is in group groups[i]: 0 is the reference, −1 none. The items of scale s are items[starts[s] : starts[s + 1]]; a row with a
    missing answer to one of them does not count there. The level of an answer x is x − low_j, or high_j − x for a reversed item. The
    stratum of item j is Σ level_i over the scale's anchors (g, m) and item j itself. Its table begins at offsets (g, m).
    """
    for i in range(values.shape[0]):
        group = groups[i]
        if group < 0:
            continue
        for s in range(starts.size - 1):
            complete = True
            for e in range(starts[s], starts[s + 1]):
                complete = complete and values[i, items[e]] == values[i, items[e]]
            if not complete:
                continue
            for contrast in range(anchors.shape[0]):
                if group > 0 and group != contrast + 1:
                    continue
                total = np.int64(0)
                for e in range(starts[s], starts[s + 1]):
                    j = items[e]
                    if anchors[contrast, j]:
                        total += np.int64(high[j] - values[i, j]) if reverse[j] else np.int64(values[i, j] - low[j])
                for e in range(starts[s], starts[s + 1]):
                    j = items[e]
                    level = np.int64(high[j] - values[i, j]) if reverse[j] else np.int64(values[i, j] - low[j])
                    stratum = total if anchors[contrast, j] else total + level
                    size = np.int64(high[j] - low[j]) + 1
                    counts[offsets[contrast, j] + (2 * stratum + min(group, 1)) * size + level] += 1


@kernel
def count_fractions(values: NDArray[np.floating], counts: NDArray[np.int64]) -> None:
    """Add the number of answers to each item that are not whole numbers, of values (n, m), to counts (m)."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j]
            if value == value and value != np.floor(value):
                counts[j] += 1
