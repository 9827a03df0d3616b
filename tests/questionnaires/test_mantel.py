"""Mantel's test against small tables, other programs' figures, and executors."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import drive
from dfact.linalg.several_tests import adjusted
from dfact.questionnaires.groups.mantel import MantelTest, Strata, mantel_statistics, mantel_tests
from tests.conftest import REAL_DATA

FOLDER = REAL_DATA / "psychometrics"


def screen(
    X: Any, labels: NDArray[Any], scales: list[NDArray[Any]], reverse: NDArray[np.bool_] | None = None, executor: str = "inline"
) -> tuple[MantelTest, MantelTest]:
    dataset = as_dataset(X)
    low, high = dataset.statistics.minimum, dataset.statistics.maximum
    strata = Strata.of(low, high, np.zeros(len(low), bool) if reverse is None else reverse, scales, labels.max())
    model = dfact.FactorAnalysis(1, executor=executor)
    with model.open_session(dataset, covariates=labels[:, None].astype(float), footprint=Footprint(0, 0, 16 * strata.size, 0)) as session:
        tests = drive(mantel_tests(strata, np.dtype("float32")), session)
    assert isinstance(tests, tuple)
    return tests


def graded(seed: int, n: int = 3000, dif: float = 0.6) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return answers 0 to 4 to 8 items of one trait, of which group 1 has more; item 3 is easier for it by ``dif``."""
    rng = np.random.default_rng(seed)
    g = rng.integers(0, 2, n)
    trait = rng.normal(size=n) + 0.4 * g
    latent = trait[:, None] + rng.normal(0, 1, (n, 8)) + dif * g[:, None] * (np.arange(8) == 3)
    return np.clip(np.rint(2 + latent), 0, 4), g


def test_two_categories_are_mantel_haenszel_without_continuity_correction() -> None:

    table = np.array([[[30, 10], [20, 30]], [[20, 20], [10, 20]], [[5, 5], [0, 0]]], float)
    n, chi_square, smd, alpha = mantel_statistics(table)
    expected, variance = 50 / 90 * 40 + 30 / 70 * 40, 40 * 50 * 40 * 50 / (90**2 * 89) + 40 * 30 * 40 * 30 / (70**2 * 69)
    assert n == 160
    assert_allclose(chi_square, (50 - expected) ** 2 / variance)
    assert_allclose(smd, (50 * (0.6 - 0.25) + 30 * (2 / 3 - 0.5)) / 80)
    assert_allclose(alpha, (10 * 20 / 90 + 20 * 10 / 70) / (30 * 30 / 90 + 20 * 20 / 70))


def test_strata_without_both_groups_count_nothing() -> None:
    n, *rest = mantel_statistics(np.array([[[3, 4, 5], [0, 0, 0]], [[0, 0, 0], [1, 1, 1]]], float))
    assert n == 0
    assert np.isnan(rest).all()


@pytest.mark.further
@pytest.mark.parametrize("seed", range(3))
def test_planted_item_leaves_the_total_and_others_are_not_flagged(seed: int) -> None:
    X, g = graded(seed)
    first, test = screen(X, g, [np.arange(8)])
    flagged = (adjusted(test.p)[0] <= 0.05) & (np.abs(test.smd[0]) >= 0.1)
    assert_array_equal(np.flatnonzero(flagged), [3])
    assert not test.anchors[0, 3]
    assert first.anchors.all()
    assert np.abs(np.delete(first.smd[0], 3)).mean() > np.abs(np.delete(test.smd[0], 3)).mean()  # the item had shifted the totals


def test_reversed_items_have_the_same_test_and_the_opposite_difference() -> None:
    X, g = graded(0)
    reverse = np.arange(8) % 2 == 1
    given, (turned, _) = screen(X, g, [np.arange(8)])[0], screen(np.where(reverse, 4 - X, X), g, [np.arange(8)], reverse)
    assert_allclose(turned.chi_square, given.chi_square)
    assert_allclose(turned.smd, np.where(reverse, -given.smd, given.smd))


def test_several_groups_each_with_the_reference_and_rows_of_none_left_out() -> None:
    X, g = graded(1)
    labels = np.where(g == 0, 0, 1 + np.arange(len(g)) % 2)
    labels[:100] = -1
    both, _ = screen(X, labels, [np.arange(8)])
    for group in (1, 2):
        rows = np.isin(labels, (0, group))
        alone, _ = screen(X[rows], (labels[rows] > 0).astype(int), [np.arange(8)])
        assert_array_equal(both.chi_square[group - 1], alone.chi_square[0])


@pytest.mark.parametrize("executor", ["threads"])
def test_bits_depend_neither_on_executor_nor_on_storage(executor: str, tmp_path: Path) -> None:
    X, g = graded(2, 9000)
    stored = dfact.import_array(X, tmp_path / "x.zarr")
    for one, other in zip(screen(X, g, [np.arange(8)]), screen(stored, g, [np.arange(8)], executor=executor), strict=True):
        assert_array_equal(one.chi_square, other.chi_square)
        assert_array_equal(one.smd, other.smd)


def load(name: str) -> Any:
    path = FOLDER / "oracles" / name
    if not path.exists():
        pytest.skip(f"needs {path.name} of the shared data")
    return json.loads(path.read_text())


def test_verbal_aggression_as_difr() -> None:
    oracle = load("dif_verbal.json")
    data = pd.read_csv(FOLDER / "verbal.csv")
    test, _ = screen(data[oracle["items"]].to_numpy(float), (data["Gender"] == 1).to_numpy().astype(int), [np.arange(24)])
    assert_allclose(test.chi_square[0], oracle["mh_chi2_uncorrected"], atol=1e-6)
    assert_allclose(test.alpha[0], oracle["mh_alpha"], rtol=1e-6)
    assert_allclose(test.delta[0], oracle["mh_delta"], atol=1e-6)
    assert_array_equal(np.flatnonzero(adjusted(test.p)[0] <= 0.05) + 1, [oracle["mh_flagged_bh"]])


def test_personality_items_within_scales_as_r() -> None:
    oracle = load("dif_bfi_gender.json")["items"]
    data = pd.read_csv(FOLDER / "bfi.csv")
    keys = np.array([item["key"] for item in oracle.values()])
    scales = [np.arange(first, first + 5) for first in range(0, 25, 5)]
    test, _ = screen(data[list(oracle)].to_numpy(float), (data["gender"] == 2).to_numpy().astype(int), scales, keys < 0)
    assert (test.n[0] <= [item["n"] for item in oracle.values()]).all()  # less those in strata of one group
    assert_allclose(test.chi_square[0], [item["mantel_chi2"] for item in oracle.values()], atol=1e-6)
    assert_allclose(test.smd[0] * keys, [item["smd"] for item in oracle.values()], atol=1e-6)


def test_planted_data_as_r() -> None:
    oracle = load("dif_planted.json")["items"]
    with gzip.open(FOLDER / "dif_planted.csv.gz") as file:
        data = pd.read_csv(file)
    items = [f"i{j:02d}" for j in range(40)]
    labels = (data["group"] == "b").to_numpy().astype(int)
    first, test = screen(data[items].to_numpy(float), labels, [np.arange(i, 40, 4) for i in range(4)])
    assert_allclose(first.chi_square[0], [oracle[item]["mantel_chi2"] for item in items], atol=1e-5)
    assert_allclose(first.smd[0], [oracle[item]["smd"] for item in items], atol=1e-6)
    assert_array_equal(np.flatnonzero(adjusted(test.p)[0] <= 0.05), [7, 23])
