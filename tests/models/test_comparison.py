"""Comparisons of groups as records: the classes of ETS, the items with DIF, and those of earlier versions."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import dfact
from dfact.cli.main import main
from dfact.models.item_tests import ItemTests
from dfact.models.provenance import Comparison, ets_classes


def test_classes_are_those_of_ets() -> None:
    delta = np.array([0.9, 1.2, -1.6, 1.6, 2.0, np.nan, np.nan, np.nan, np.nan, np.nan])
    size = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1, -0.2, 0.3, 0.3, np.nan])
    p = np.array([0.01, 0.01, 0.01, 0.01, 0.2, 0.01, 0.01, 0.01, 0.2, np.nan])
    se = np.array([0.1, 0.1, 0.2, 0.5, 0.1, *[np.nan] * 5])
    # The fourth is large, but not significantly above 1; the last but one large, but not significant.
    assert list(ets_classes(p, size, delta, se)) == ["A", "B", "C", "B", "A", "A", "B", "C", "A", ""]


def comparison(effect: Any, smd: Any) -> Comparison:
    """Return a comparison of two groups in three items with a standard deviation of 1; an item without ``smd`` has no Mantel test."""
    effect, smd = np.array([effect], float), np.array([smd], float)
    one = np.ones((1, 3))
    tests = ItemTests(effect, effect, 0.02 * one, one, one.astype(np.int64), np.zeros((1, 1)), np.ones((1, 1)), np.zeros(3, np.int64), 59)
    chi_square = np.where(np.isnan(smd), np.nan, (smd / 0.02) ** 2)
    mantel = np.stack([200 * one, chi_square, smd, np.nan * one, one, chi_square, smd, one, np.nan * one])
    factors, of_items = np.ones((1, 1)), (["x", "y", "z"], ["s"] * 3, tests, "", mantel, "")
    return Comparison("g", ["a", "b"], np.array([100, 100]), *[factors] * 4, 0.95, 30, factors, None, factors, "", *of_items)


def test_dif_items_are_flagged_by_both_tests_where_both_are_possible() -> None:
    found = comparison([0.3, 0.3, 0.3], [0.3, 0.1, np.nan])
    assert list(found.dif_items.index.get_level_values("item")) == ["x", "z"]
    assert len(comparison([0.1, 0.16, 0.0], [0.3, 0.3, 0.3]).dif_items) == 0  # below 0.17 standard deviations
    assert found.mantel_tests is not None
    assert list(found.mantel_tests["class"]) == ["C", "A", ""]


def test_a_comparison_is_saved_loaded_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    M = rng.normal(size=(60, 1)) + rng.normal(size=(60, 3))
    model = dfact.PCA(1, executor="inline").fit(M)
    model.comparison_ = comparison([0.3, 0.3, 0.3], [0.3, 0.1, np.nan])
    dfact.save_model(model, tmp_path / "m.model")
    loaded = dfact.load_model(tmp_path / "m.model").comparison_
    pd.testing.assert_frame_equal(loaded.effects, model.comparison_.effects)
    pd.testing.assert_frame_equal(loaded.mantel_tests, model.comparison_.mantel_tests)
    for ending in ("csv", "parquet"):
        assert main(["export", str(tmp_path / "m.model"), str(tmp_path / f"items.{ending}"), "--table", "items"]) == 0
    csv, parquet = pd.read_csv(tmp_path / "items.csv", keep_default_na=False), pd.read_parquet(tmp_path / "items.parquet")
    assert list(csv["item"]) == list(parquet["item"]) == ["x", "y", "z"]
    assert list(parquet["class"]) == ["C", "A", ""]
    assert_array_equal(parquet["size"], [0.3, 0.3, 0.3])
    assert_array_equal(parquet["mantel_size"], [0.3, 0.1, np.nan])
    del model.comparison_
    dfact.save_model(model, tmp_path / "n.model")
    assert main(["export", str(tmp_path / "n.model"), str(tmp_path / "n.csv"), "--table", "items"]) == 1
    assert "run dfact compare" in capsys.readouterr().err
