"""Clusters of rows that are not independent, such as the pupils of a school: their numbers, and parts of whole clusters."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.sources.entrance import as_column, name_of
from dfact.errors import DataError, ParameterError
from dfact.lazy import pd

LEAST_CLUSTERS = 10
"""Fewest clusters whose differences give a standard error; with fewer, t has so few degrees of freedom that little can be found."""
_SHOWN = 5  # names in a message


def resolve_clusters(clusters: Any, dataset: Dataset) -> NDArray[np.intp] | None:
    """Return the number of the cluster of each row (n,), from 0 without gaps in the order of their first rows; None without clusters.

    ``clusters`` is the name of a confounder of the dataset, or labels (n,). Rows of different clusters are taken as independent.

    Raises
    ------
    ParameterError
        No confounder of that name, or another number of labels.
    DataError
        A row without a cluster, a cluster of its own for each row, or fewer than ten clusters.
    """
    if clusters is None:
        return None
    n = dataset.shape[0]
    if isinstance(clusters, str):
        frame = pd.DataFrame() if dataset.confounders is None else dataset.confounders
        if clusters not in frame:
            found = f"clusters is {clusters!r}, expected a confounder of the data, one of {list(frame)[:_SHOWN]}"
            raise ParameterError(f"{found}; import the column with --confounder, or pass a label for each row")
        name, labels = clusters, frame[clusters]
    else:
        name, labels = name_of(clusters) or "clusters", pd.Series(np.asarray(as_column(clusters, "clusters")).ravel())
        if len(labels) != n:
            raise ParameterError(f"clusters has {len(labels)} labels, expected one for each of the {n} rows of the data")
    numbers, found_labels = pd.factorize(labels, use_na_sentinel=True)
    missing = np.flatnonzero(numbers < 0)
    if len(missing):
        found = f"the cluster {name!r} is missing in {len(missing)} of {n} rows, first in row {missing[0] + 1}"
        raise DataError(f"{found}, expected one for each row; give such rows a cluster of their own, or leave them out")
    if len(found_labels) == n:
        raise DataError(
            f"{name!r} has a cluster of its own for each of the {n} rows, expected clusters of several rows; leave clusters out"
        )
    _require_several(name, len(found_labels), "the data")
    return np.asarray(numbers, np.intp)


def _require_several(name: str, count: int, where: str) -> None:
    if count < LEAST_CLUSTERS:
        found = f"{name!r} has {count} clusters in {where}, expected at least {LEAST_CLUSTERS}"
        raise DataError(f"{found}: the differences of so few give no standard error; compare fewer, larger groups, or sample more clusters")


def count_units(clusters: NDArray[np.intp], groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the number of clusters with rows of each group, by the groups of the rows from 0; rows of −1 are in none."""
    inside = groups >= 0
    pairs = np.unique(np.stack([groups[inside], clusters[inside]]), axis=1)
    return np.bincount(pairs[0], minlength=int(groups.max()) + 1)


def require_clusters(clusters: NDArray[np.intp], groups: NDArray[np.intp], names: list[str]) -> NDArray[np.intp]:
    """Return the numbers of clusters of the groups with these names; raise DataError if one has fewer than ten."""
    counts = count_units(clusters, groups)
    for name, count in zip(names, counts, strict=True):
        _require_several("clusters", int(count), name)
    return counts


def deal_clusters(
    clusters: NDArray[np.intp], n_parts: int, rng: np.random.Generator, groups: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Deal whole clusters to parts, and return the part of each row (n,), from 0.

    Parts get the same number of clusters to within one, and of those that lie in one of the ``groups`` (n,), where that is possible.
    """
    count = int(clusters.max()) + 1
    order = rng.permutation(count)
    if groups is not None:
        first = np.full(count, -1, np.intp)
        commonest = np.zeros(count, np.intp)
        for group in range(int(groups.max()) + 1):
            sizes = np.bincount(clusters[groups == group], minlength=count)
            first[sizes > commonest] = group
            commonest = np.maximum(commonest, sizes)
        order = order[np.argsort(first[order], kind="stable")]
        order = np.concatenate([order[first[order] >= 0], order[first[order] < 0]])
    parts = np.empty(count, np.intp)
    parts[order] = np.arange(count) % n_parts
    dealt: NDArray[np.intp] = parts[clusters]
    return dealt
