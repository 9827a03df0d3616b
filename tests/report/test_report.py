"""Tables, files and plots of a fitted model."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import dfact
from dfact.export.files import check_destination, write_factors
from dfact.models.bounded_nmf.presenter import confounder_effects, confounders_text, factors_text, strength_shares, top_items
from dfact.models.traits import Vocabulary
from dfact.report.plots import loadings_heatmap
from dfact.report.presenters.base import model_text
from dfact.text import table_text
from tests.conftest import CutRows, planted_answers

N, M, K = 300, 24, 3
FACTORS = ["F1", "F2", "F3"]


@pytest.fixture(scope="module")
def model() -> dfact.ICQF:
    rng = np.random.default_rng(1)
    confounders = pd.DataFrame({"age": rng.uniform(18, 80, N)})
    return dfact.ICQF(K).fit(planted_answers(N, M, K, 0, 0.1), confounders=confounders)


@pytest.fixture
def small() -> Any:
    """A model small enough to check its tables by hand."""
    items = pd.Index(["a", "b", "c"], name="item")
    return SimpleNamespace(
        vocabulary=Vocabulary(),
        loadings_=pd.DataFrame([[0.5, 0.0], [2.0, 0.0], [1.0, 3.0]], items, ["f0", "f1"]),
        factors_=np.array([[0.0, 0.5], [1.0, 0.4], [2.0, 0.0], [1.0, 0.0]]),
        w_max=2.0,
        get_feature_names_out=lambda: np.array(["f0", "f1"], dtype=object),
    )


def test_top_items(small: Any) -> None:
    table = top_items(small, n=2)
    assert table.to_dict("list") == {"factor": ["f0", "f0", "f1"], "item": ["b", "c", "c"], "loading": [2.0, 1.0, 3.0]}
    assert list(top_items(small, n=1, texts={"b": "Sleeps badly"})["text"]) == ["Sleeps badly", ""]


def test_confounder_effects(model: dfact.ICQF) -> None:
    effects = model.confounder_effects_["age"]
    order = np.argsort(-effects.abs().to_numpy(), kind="stable")[:3]
    expected = {"confounder": ["age"] * 3, "item": list(effects.index[order]), "effect": list(effects.iloc[order])}
    errors = model.confounder_errors_["age"]
    expected["se"] = list(errors.iloc[order])
    assert confounder_effects(model, 3).to_dict("list") == expected
    heading, *items = confounders_text(model).splitlines()
    assert model.differences_ is not None
    loaded = model.components_.max(axis=0) > 0  # other items belong to no factor
    anchors = int((loaded & (effects.abs() < np.maximum(0.17 * model.differences_.item_sd, 2 * errors))).sum())
    assert heading == f"age: {anchors} of {M} items show no difference beyond 0.17 SD; the others are measured against them"
    assert [line.split() for line in items] == [
        [str(item), f"{effect:.2f}", "(se", f"{error:.2f})"]
        for item, effect, error in zip(*(expected[column] for column in ("item", "effect", "se")), strict=True)
    ]


def test_missing_confounders_are_counted() -> None:
    rng = np.random.default_rng(1)
    known = pd.DataFrame({"age": np.where(np.arange(N) < 2, np.nan, rng.uniform(18, 80, N))})
    text = confounders_text(dfact.ICQF(2).fit(planted_answers(N, M, 2, 0), confounders=known))
    assert text.endswith("age is missing for 2 participants: taken as the average")


@pytest.mark.parametrize("stored", [False, True])
def test_strength_shares(small: Any, stored: bool, tmp_path: Path) -> None:
    if stored:
        small.factors_ = zarr.create_array(tmp_path / "w.zarr", data=small.factors_, chunks=(3, 2))
    shares = strength_shares(small)
    assert shares.loc["f0"].to_dict() == {"strong": 0.75, "zero": 0.25, "mean": 1.0}
    assert shares.loc["f1"].to_dict() == {"strong": 0.0, "zero": 0.5, "mean": 0.225}


def test_factors_text(small: Any) -> None:
    expected = """\
f0: strong for 75% of the participants, zero for 25%
  b  2.00  Sleeps badly
  c  1.00
f1: strong for 0% of the participants, zero for 50%
  c  3.00"""
    assert factors_text(small, n=2, texts={"b": "Sleeps badly"}) == expected


def test_table_text_aligns_columns() -> None:
    table = pd.DataFrame({"item": ["a", "long"], "loading": [10.0, 2.5], "n": [1, 20]})
    assert table_text(table, header=True) == "item  loading   n\na       10.00   1\nlong     2.50  20"
    assert table_text(table.iloc[:0]) == ""


def test_summary_describes_the_fit(model: dfact.ICQF) -> None:
    text = model_text(model, extra=(("data", "fingerprint 0"),))
    assert f"objective {model.objective_history_[-1]:.6g}" in text
    assert f"{np.mean(model.components_ == 0):.1%} of the loadings are zero" in text
    assert f"{model.explained_share_:.1%} of the variance" in text
    assert f"ICQF, {K} factors of {N} participants × {M} items, 3 confounder columns" in text
    assert f"converged after {model.n_iter_} iterations" in text
    assert "\ndata       fingerprint 0\n" in text


def test_explained_share() -> None:
    X = planted_answers(N, M, K, 2, 0.1)
    model = dfact.ICQF(K).fit(X)
    residual = np.nansum((X - model.factors_ @ model.components_) ** 2)
    assert model.explained_share_ == pytest.approx(1 - residual / np.nansum((X - np.nanmean(X, axis=0)) ** 2), rel=1e-6)


@pytest.mark.further
@pytest.mark.parametrize("ending", ["csv", "parquet", "zarr"])
@pytest.mark.parametrize("stored", [False, True])
def test_factors_are_read_back_from_each_format(tmp_path: Path, ending: str, stored: bool, cut_rows: CutRows) -> None:
    cut_rows(chunk_entries=1 << 12, partition_entries=1 << 12)  # several chunks
    n = 5000
    W: Any = np.random.default_rng(0).random((n, 3)).astype(np.float32)
    labels: Any = np.array([f'p "{i}", é' for i in range(n)], dtype=object)
    expected = pd.DataFrame(W, pd.Index(labels, name="row"), FACTORS)
    if stored:
        W = zarr.create_array(tmp_path / "w", data=W)
        group = zarr.create_array(tmp_path / "labels", shape=(n,), dtype="string")
        group[:] = labels
        labels = group
    path = tmp_path / f"factors.{ending}"
    done: list[tuple[int, int]] = []
    write_factors(path, W, FACTORS, labels, progress=lambda *step: done.append(step))
    assert len(done) > 1
    assert done[-1] == (n, n)
    pd.testing.assert_frame_equal(read_factors(path), expected)
    with pytest.raises(dfact.StoreError, match="exists already"):
        write_factors(path, W, FACTORS)
    write_factors(path, W, FACTORS, overwrite=True)
    assert list(read_factors(path).index[:2]) == ["0", "1"]


def read_factors(path: Path) -> pd.DataFrame:
    if path.suffix == ".zarr":
        data = xr.open_zarr(path)
        rows, columns = (pd.Index(data[name].values.astype(object)) for name in ("row", "component"))
        return pd.DataFrame(data["factors"].values, rows.astype("str").rename("row"), columns.astype("str"))
    if path.suffix == ".csv":
        return pd.read_csv(path, dtype={"row": "str"} | dict.fromkeys(FACTORS, np.float32)).set_index("row")
    return pd.read_parquet(path).set_index("row")


@pytest.mark.parametrize("ending", ["csv", "parquet", "zarr"])
def test_interrupted_export_leaves_the_old_file(tmp_path: Path, ending: str) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    path = tmp_path / f"factors.{ending}"
    write_factors(path, np.zeros((2, 1)), ["a"])
    with pytest.raises(KeyboardInterrupt):
        write_factors(path, np.ones((300, 3)), FACTORS, overwrite=True, progress=interrupt)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.suffix == ".zarr" or "a" in path.read_bytes().decode(errors="replace")


def test_invalid_destinations_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "folder.zarr").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(dfact.ParameterError, match=r"ends in '\.txt', expected one of \.csv, \.parquet, \.zarr"):
        check_destination(tmp_path / "w.txt", overwrite=True)
    with pytest.raises(dfact.StoreError, match="is a folder, expected a file"):
        check_destination(tmp_path / "folder.csv", overwrite=True)
    with pytest.raises(dfact.StoreError, match="not a dfact store, so it is not replaced"):
        check_destination(tmp_path / "folder.zarr", overwrite=True)
    with pytest.raises(dfact.StoreError, match=r"w\.csv lies in .*file, which is a file, expected a folder"):
        write_factors(tmp_path / "file" / "folder" / "w.csv", np.zeros((2, 1)), ["a"])


def test_heatmap_groups_items_by_factor(model: dfact.ICQF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # pyplot must not be needed, even if another test imported it
    figure = loadings_heatmap(model)
    axes, bar = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == FACTORS
    items = [tick.get_text() for tick in axes.get_yticklabels()]
    shown = axes.images[0].get_array()
    np.testing.assert_array_equal(shown, model.loadings_.loc[items].to_numpy())
    assert (np.diff(shown.argmax(axis=1)) >= 0).all(), "items are grouped by factor"
    assert bar.get_ylabel() == "loading"
    figure.savefig(tmp_path / "loadings.png")
    assert (tmp_path / "loadings.png").read_bytes().startswith(b"\x89PNG")


def test_plots_without_matplotlib(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(dfact.DfactError, match=r"pip install 'dfact\[plot\]'"):
        loadings_heatmap(small)
