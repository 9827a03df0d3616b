"""Clusters of rows: their numbers, parts of whole clusters, and what is refused."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from dfact.data.clusters import deal_clusters, require_clusters, resolve_clusters
from dfact.data.coerce import as_dataset
from dfact.errors import DataError, ParameterError

N = 120


def dataset(**columns: Any) -> Any:
    frame = pd.DataFrame(columns) if columns else None
    return as_dataset(np.random.default_rng(0).normal(size=(N, 3)), frame)


def test_names_and_labels_of_any_kind_give_the_same_numbers() -> None:
    schools = np.repeat(np.random.default_rng(0).permutation(12), 10)
    expected = np.repeat(np.arange(12), 10)
    data = dataset(school=[f"s{number}" for number in schools], number=schools * 1000.5)
    for given in ("school", "number", schools, list(map(str, schools)), pd.Series(schools, name="x")):
        assert_array_equal(resolve_clusters(given, data), expected)
    assert resolve_clusters(None, data) is None


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("school", ParameterError, r"clusters is 'school', expected a confounder of the data, one of \[\]; import the column with"),
        (np.arange(N), DataError, "'clusters' has a cluster of its own for each of the 120 rows, expected clusters of several rows"),
        (np.arange(N) % 9, DataError, "'clusters' has 9 clusters in the data, expected at least 10"),
        (np.where(np.arange(N) == 4, np.nan, np.arange(N) // 10), DataError, "missing in 1 of 120 rows, first in row 5"),
        (np.arange(N - 1) // 10, ParameterError, "clusters has 119 labels, expected one for each of the 120 rows"),
    ],
)
def test_bad_clusters_are_refused_in_a_line(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        resolve_clusters(given, dataset())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_parts_are_of_whole_clusters_with_a_share_of_each_group(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 30, 50)
    clusters, groups = np.repeat(np.arange(50), sizes), np.repeat(np.arange(50) % 3 - 1, sizes)
    counts = require_clusters(clusters, groups, ["a", "b"])
    assert_array_equal(counts, [17, 16])
    parts = deal_clusters(clusters, 16, rng, groups)
    assert all(len(np.unique(parts[clusters == c])) == 1 for c in range(50))
    for group in (0, 1):
        assert_array_equal(np.unique(parts[groups == group]), np.arange(16))
    per_part = np.bincount([parts[clusters == c][0] for c in range(50)], minlength=16)
    assert per_part.max() - per_part.min() <= 1
    with pytest.raises(DataError, match="'clusters' has 1 clusters in b, expected at least 10"):
        require_clusters(clusters, np.where(clusters == 5, 1, 0), ["a", "b"])
