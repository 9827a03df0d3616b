"""The anchored tests of items: their regressors, their plan, and their result with its warnings."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.clusters import deal_clusters, require_clusters
from dfact.data.confounders import ConfounderEncoding
from dfact.data.dataset import Dataset
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import drive
from dfact.errors import DataError, warn
from dfact.models.item_tests import ItemTests
from dfact.questionnaires.groups.dif import N_PARTS, Design, anchored_dif, weak_factors
from dfact.questionnaires.groups.mantel_test import Groups

Array = NDArray[np.float64]
_DTYPE = np.dtype(np.float64)
_SEED = 20  # of the parts: the tests do not depend on the seed of the resamples


def anchored_tests(
    model: Any, dataset: Dataset, frame: pd.DataFrame | None, groups: Groups, clusters: NDArray[np.intp] | None = None
) -> tuple[ItemTests | None, str]:
    """Test all items for a difference at equal factors. Return the tests, or None and the reason why there are none.

    ``frame`` holds the confounders of the model; those besides the groups are held equal. ``clusters`` (n,) number the clusters of the
    rows, which form the parts of the jackknife.
    """
    components = np.asarray(model.components_, np.float64)
    covariates, design = _covariates(dataset, frame, groups, clusters)
    statistics, (n, m) = dataset.statistics, dataset.shape
    complete = bool((statistics.observed == n).all())
    tiles = 1
    settings: dict[str, Any] = {"covariates": covariates, "dtype": _DTYPE}
    while True:
        settings["footprint"] = _footprint(m, design, len(components), tiles, complete)
        if tiles >= design.n_parts or model.plan_session(dataset, **settings).fits:
            break
        tiles *= 2
    shift = (statistics.minimum + statistics.maximum) / 2
    try:
        with model.open_session(dataset, **settings) as session:
            tests = drive(anchored_dif(design, shift, components, complete=complete, tiles=tiles, dtype=_DTYPE), session)
    except DataError as error:
        return None, str(error)
    factor = np.abs(components / tests[0].sd).argmax(axis=0)
    _warn_of_weak_anchors(model, groups, [test.anchors for test in tests], factor)
    stacked: dict[str, Any] = {
        name: np.stack([getattr(test, name) for test in tests])
        for name in ("difference", "effect", "se", "sd", "impact", "impact_se", "least")
    }
    stacked["anchors"] = np.stack([test.anchors for test in tests]).astype(np.int64)
    stacked |= {name: np.asarray([getattr(test, name) for test in tests], np.int64) for name in ("asked", "n_factors")}
    upper = np.triu_indices(m, 1)
    pairs = [(int(np.abs(test.residual[upper]).argmax()), test.residual) for test in tests]
    stacked["residual_pair"] = np.asarray([[upper[0][at], upper[1][at]] for at, _ in pairs], np.int64)
    stacked["residual"] = np.asarray([residual[upper][at] for at, residual in pairs])
    return ItemTests(factor=factor.astype(np.int64), df=design.n_parts - 1, **stacked), ""


def _covariates(dataset: Dataset, frame: pd.DataFrame | None, groups: Groups, clusters: NDArray[np.intp] | None) -> tuple[Array, Design]:
    """Return the group, part, weight and regressors of each row, and their layout."""
    labels, size = groups.labels, len(groups.levels)
    parts, n_parts = _parts(groups, clusters)
    weights = np.ones(len(labels)) if dataset.weights is None else dataset.weights.to_numpy(np.float64)
    indicators = (labels[:, None] == np.arange(1, size)).astype(np.float64)
    others = np.empty((len(labels), 0))
    rest = [] if frame is None else [name for name in frame if not (groups.is_confounder and name == groups.by)]
    if frame is not None and rest:
        encoding = ConfounderEncoding.fit(frame[rest])
        _, differences = encoding.differences()
        encoded = encoding.encode(frame[rest])
        others = encoded[:, [int(np.flatnonzero(row > 0)[0]) for row in differences]]
        others = others - others[labels >= 0].mean(axis=0)
    Z = np.column_stack([np.ones(len(labels)), indicators, others])
    totals, squares = (np.bincount(labels[labels >= 0], w[labels >= 0], minlength=size) for w in (weights, weights**2))
    rows = tuple(float(n) for n in totals**2 / squares)  # Kish's
    return np.column_stack([labels, parts, weights / weights.max(), Z]), Design(size, Z.shape[1], rows, n_parts)


def _parts(groups: Groups, clusters: NDArray[np.intp] | None) -> tuple[NDArray[np.intp], int]:
    """Return the part of each row and their number: each part has its share of each group, in whole clusters if there are any."""
    rng, labels = np.random.default_rng(_SEED), groups.labels
    if clusters is not None:
        # With more parts than a group has clusters, some parts would lack the group, and the variance would be too small.
        n_parts = min(N_PARTS, int(require_clusters(clusters, labels, groups.names).min()))
        return deal_clusters(clusters, n_parts, rng, labels), n_parts
    parts = np.zeros(len(labels), np.intp)
    for group in range(len(groups.levels)):
        rows = np.flatnonzero(labels == group)
        parts[rows] = rng.permutation(len(rows)) % N_PARTS
    return parts, N_PARTS


def _footprint(m: int, design: Design, k: int, tiles: int, complete: bool) -> Footprint:
    """Return the memory of the passes whose sums by part are taken in ``tiles``, each of at least one part."""
    parts, p, groups, G = -(-design.n_parts // tiles), design.n_regressors, design.n_groups, design.n_parts
    numbers, largest = 3, min(2 * k + 2, m)  # of factors that are tested, and about the largest of them
    sums = 8 * (parts * m * (groups * (m if complete else 2 * m) + p + groups) + m * p**2 + numbers * groups * G * 2 * m)
    # The driver holds the matrices of both groups, their mean, eigenvectors and projectors, and the loadings of all parts.
    driver = 8 * (8 * parts * m**2 + groups * G * m * (numbers * (largest + 2) + 4))
    return Footprint(0, 8 * (8 * m + p**2 + largest**2), max(driver // 4, 8 * m * p), 0, summed=sums)


def _warn_of_weak_anchors(model: Any, groups: Groups, anchors: list[NDArray[np.bool_]], factor: NDArray[np.intp]) -> None:
    names = model.get_feature_names_out()
    for level, chosen in zip(groups.levels[1:], anchors, strict=True):
        for number, (count, size) in weak_factors(chosen, factor).items():
            found = f"the anchor of {names[number]} has {count} of its {size} items for {groups.by}={level}"
            expected = "expected at least four and half of them: its difference between the groups, and which items have DIF, are arbitrary"
            warn(f"{found}, {expected}; compare with fewer factors, or do not interpret its items")
