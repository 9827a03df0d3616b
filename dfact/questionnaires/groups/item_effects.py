"""The anchored tests of items: their regressors, their plan, and their result with its warnings."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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


def anchored_tests(model: Any, dataset: Dataset, frame: pd.DataFrame | None, groups: Groups) -> tuple[ItemTests | None, str]:
    """Test all items for a difference at equal factors. Return the tests, or None and the reason why there are none.

    ``frame`` holds the confounders of the model; those besides the groups are held equal.
    """
    components = np.asarray(model.components_, np.float64)
    covariates, design = _covariates(dataset, frame, groups)
    statistics, (n, m) = dataset.statistics, dataset.shape
    complete = bool((statistics.observed == n).all())
    tiles = 1
    settings: dict[str, Any] = {"covariates": covariates, "dtype": _DTYPE}
    while True:
        settings["footprint"] = _footprint(m, design, len(components), tiles, complete)
        if tiles >= N_PARTS or model.plan_session(dataset, **settings).fits:
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
    stacked = {
        name: np.stack([getattr(test, name) for test in tests]) for name in ("difference", "effect", "se", "sd", "impact", "impact_se")
    }
    anchors = np.stack([test.anchors for test in tests]).astype(np.int64)
    return ItemTests(anchors=anchors, factor=factor.astype(np.int64), df=N_PARTS - 1, **stacked), ""


def _covariates(dataset: Dataset, frame: pd.DataFrame | None, groups: Groups) -> tuple[Array, Design]:
    """Return the group, part, weight and regressors of each row, and their layout."""
    labels, size = groups.labels, len(groups.levels)
    rng, parts = np.random.default_rng(_SEED), np.zeros(len(labels))
    for group in range(size):  # each part has its share of each group
        rows = np.flatnonzero(labels == group)
        parts[rows] = rng.permutation(len(rows)) % N_PARTS
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
    return np.column_stack([labels, parts, weights / weights.max(), Z]), Design(size, Z.shape[1])


def _footprint(m: int, design: Design, k: int, tiles: int, complete: bool) -> Footprint:
    """Return the memory of the passes whose sums by part are taken in ``tiles``, each of at least one part."""
    parts, p, groups = -(-N_PARTS // tiles), design.n_regressors, design.n_groups
    sums = 8 * (parts * m * (groups * (m if complete else 2 * m) + p + groups) + m * p**2 + groups * N_PARTS * 2 * m)
    # The driver holds the matrices of both groups, their mean, eigenvectors and projectors, and the loadings of all parts.
    driver = 8 * (8 * parts * m**2 + groups * N_PARTS * m * (k + 4))
    return Footprint(0, 8 * (8 * m + p**2 + k**2), max(driver // 4, 8 * m * p), 0, summed=sums)


def _warn_of_weak_anchors(model: Any, groups: Groups, anchors: list[NDArray[np.bool_]], factor: NDArray[np.intp]) -> None:
    names = model.get_feature_names_out()
    for level, chosen in zip(groups.levels[1:], anchors, strict=True):
        for number, (count, size) in weak_factors(chosen, factor).items():
            found = f"the anchor of {names[number]} has {count} of its {size} items for {groups.by}={level}"
            expected = "expected at least four and half of them: its difference between the groups, and which items have DIF, are arbitrary"
            warn(f"{found}, {expected}; compare with fewer factors, or do not interpret its items")
