"""Kernel of counts by strata against plain NumPy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dfact.questionnaires.groups.mantel import Strata
from dfact.questionnaires.kernels.strata import count_fractions, count_strata


def reference(values: NDArray[np.float64], groups: NDArray[np.int64], s: Strata) -> NDArray[np.int64]:
    levels = np.where(s.reverse, s.high - values, values - s.low)
    counts, shapes, offsets = np.zeros(s.size, np.int64), s.shapes, s.offsets
    for items in s.scales:
        complete = ~np.isnan(values[:, items]).any(axis=1)
        for contrast in range(len(s.anchors)):
            for j in items:
                rows = complete & np.isin(groups, (0, contrast + 1))
                total = levels[np.ix_(rows, [i for i in items if s.anchors[contrast, i] or i == j])].sum(axis=1)
                table = np.zeros((shapes[contrast, j, 0], 2, shapes[contrast, j, 1]), np.int64)
                np.add.at(table, (total.astype(int), (groups[rows] > 0).astype(int), levels[rows, j].astype(int)), 1)
                counts[offsets[contrast, j] : offsets[contrast, j] + table.size] = table.ravel()
    return counts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_are_those_of_numpy(seed: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    n, m, n_contrasts = int(rng.integers(1, 200)), int(rng.integers(3, 9)), int(rng.integers(1, 4))
    low, high = rng.integers(-2, 2, m).astype(float), rng.integers(2, 6, m).astype(float)
    values = rng.integers(low, high + 1, (n, m)).astype(float)
    values[rng.random((n, m)) < 0.05] = np.nan
    groups, order = rng.integers(-1, n_contrasts + 1, n), rng.permutation(m)
    strata = Strata.of(low, high, rng.random(m) < 0.4, [order[:2], order[2 : m - 1]], n_contrasts)  # the last item is in no scale
    strata.anchors[:] = rng.random(strata.anchors.shape) < 0.7
    counts = np.zeros(strata.size, np.int64)
    s = strata
    count_strata(values.astype(dtype), groups, s.low, s.high, s.reverse, s.items, s.starts, s.anchors, s.offsets, counts)
    np.testing.assert_array_equal(counts, reference(values, groups, strata))


def test_fractions_are_counted_by_item() -> None:
    counts = np.zeros(3, np.int64)
    count_fractions(np.array([[1.0, 0.5, np.nan], [2.0, 1.5, 0.25]]), counts)
    np.testing.assert_array_equal(counts, [0, 2, 1])
