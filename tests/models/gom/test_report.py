"""Tables, texts, files and plots of a grade of membership."""

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
from dfact.data.examples import ipip_ascado, ipip_ascado_items
from dfact.export.files import write_factors
from dfact.models.gom.plots import item_heatmap, memberships_heatmap, plot_memberships
from dfact.models.gom.presenter import GoMPresenter
from dfact.models.gom.tables import (
    LEVELS,
    class_table,
    classes_text,
    distinctive_items,
    highest_items,
    purity_level,
)
from dfact.report.plots import heatmap, save_figure
from dfact.report.presenters.base import items_plot, model_text, rows_text
from dfact.report.selection import selection_text
from dfact.text import align_columns
from tests.conftest import CutRows, planted_answers


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dfact.Dataset:
    path = tmp_path_factory.mktemp("data") / "ipip.zarr"
    return dfact.import_table(ipip_ascado(), path, items=("AS*", "SC*", "AD*", "DO*"), missing=[0], empty_rows="drop")


@pytest.fixture(scope="module")
def two(data: dfact.Dataset) -> dfact.GradeOfMembership:
    return dfact.GradeOfMembership(2, random_state=0).fit(data)


@pytest.fixture(scope="module")
def three(data: dfact.Dataset) -> dfact.GradeOfMembership:
    return dfact.GradeOfMembership(3, random_state=0).fit(data)


@pytest.fixture
def small() -> Any:
    """A model small enough to check its tables by hand; the last subject has no response."""
    memberships = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.5, 0.5], [0.4, 0.6], [0.0, 1.0], [np.nan, np.nan]], np.float32)
    Theta = np.array([[1.0, 3.0], [4.0, 3.5], [2.0, 2.0]])
    return SimpleNamespace(
        likelihood="none",
        loadings_=pd.DataFrame(Theta, pd.Index(["a", "b", "c"], name="item"), ["first", "second"]),
        method="srsc",
        memberships_=memberships,
        components_=Theta.T,
        item_parameters_=pd.DataFrame(Theta, pd.Index(["a", "b", "c"], name="item"), ["first", "second"]),
        get_feature_names_out=lambda: np.array(["first", "second"], dtype=object),
        pure_subjects_=np.array([0, 5]),
        row_labels_=np.array(list("ABCDEFG"), dtype=object),
        column_labels_=np.array(["a", "b", "c"], dtype=object),
        max_response_=4.0,
        n_unobserved_=1,
        modularity_=0.0123456,
        highly_pure_share_=0.5,
        highly_mixed_share_=1 / 3,
    )


@pytest.mark.parametrize("stored", [False, True])
def test_class_table(small: Any, stored: bool, tmp_path: Path, cut_rows: CutRows) -> None:
    if stored:
        cut_rows(block_rows=(2, 4), chunk_entries=4, partition_entries=4)
        small.memberships_ = zarr.create_array(tmp_path / "w.zarr", data=small.memberships_, chunks=(2, 2))
    table = class_table(small)
    assert list(table.index) == ["first", "second"]
    np.testing.assert_allclose(table["size"], [3.6, 2.4], rtol=1e-6)
    np.testing.assert_allclose(table["share"], [0.6, 0.4], rtol=1e-6)
    assert table["pure"].tolist() == [2, 1], "0.9 counts, in single precision too"
    assert table["mixed"].tolist() == [1, 1]
    assert table["pure_share"].sum() == pytest.approx(small.highly_pure_share_)
    assert table["mixed_share"].sum() == pytest.approx(small.highly_mixed_share_)
    assert table["pure_subject"].tolist() == ["A", "F"]


def test_purity_levels(small: Any) -> None:
    assert [LEVELS[i] for i in purity_level(small.memberships_[:6])] == [LEVELS[i] for i in (0, 0, 1, 2, 2, 0)]


def test_highest_and_distinctive_items(small: Any) -> None:
    assert highest_items(small, 2).to_dict("list") == {
        "class": ["first", "first", "second", "second"],
        "item": ["b", "c", "b", "a"],
        "response": [4.0, 2.0, 3.5, 3.0],
    }
    unlike = distinctive_items(small, 1, {"a": "Sleeps badly"})
    assert unlike.to_dict("list") == {
        "class": ["first", "second"],
        "item": ["a", "a"],
        "response": [1.0, 3.0],
        "difference": [-2.0, 2.0],
        "text": ["Sleeps badly"] * 2,
    }


def test_difference_is_to_the_mean_of_the_other_classes(three: dfact.GradeOfMembership) -> None:
    Theta = three.item_parameters_
    table = distinctive_items(three, 4)
    for name, rows in table.groupby("class"):
        others = Theta.drop(columns=name).mean(axis=1)
        difference = (Theta[name] - others).astype(float)
        assert list(rows["item"]) == list(difference.abs().sort_values(ascending=False).index[:4])
        np.testing.assert_allclose(rows["difference"], difference[rows["item"]], rtol=1e-5)


def test_one_class_has_no_distinctive_items() -> None:
    model = dfact.GradeOfMembership(1).fit(np.random.default_rng(0).integers(1, 4, (40, 6)))
    assert distinctive_items(model).empty
    assert "distinctive" not in classes_text(model)
    assert class_table(model)["pure"].tolist() == [40]


def test_classes_text(small: Any) -> None:
    assert (
        classes_text(small, 1, {"b": "Talks"})
        == """\
first: 60.0% of the memberships, 2 highly pure, 1 highly mixed
  identified by subject A
  highest responses
    b  4.00  Talks
  most distinctive: response, and difference from the mean of the other classes
    a  1.00  -2.00
second: 40.0% of the memberships, 1 highly pure, 1 highly mixed
  identified by subject F
  highest responses
    b  3.50  Talks
  most distinctive: response, and difference from the mean of the other classes
    a  3.00  2.00"""
    )


def test_summary_text(small: Any) -> None:
    assert (
        align_columns([*GoMPresenter(small).summary(), ("data", "fingerprint 0")])
        == """\
model    SimpleNamespace, 2 classes of 7 subjects × 3 items, responses 0 to 4
fit      method srsc; modularity 0.01235
purity   50.0% of the subjects are highly pure (a membership of 0.9 or more), 33.3% highly mixed (none above 0.7)
missing  1 subjects without any response: their memberships are NaN
data     fingerprint 0"""
    )


def test_model_text_describes_the_fit(two: dfact.GradeOfMembership) -> None:
    table = class_table(two)
    assert table["size"].sum() == pytest.approx(1004)
    assert table["pure_share"].sum() == pytest.approx(two.highly_pure_share_)
    assert table["mixed_share"].sum() == pytest.approx(two.highly_mixed_share_)
    text = model_text(two, 2, ipip_ascado_items(), (("data", "here"),))
    assert text.startswith("model   GradeOfMembership, 2 classes of 1004 subjects × 40 items, responses 0 to 5\n")
    for expected in (
        "method crsc, kmeans; modularity 0.006695",
        "\ndata    here\n",
        "60.4%",
        "21.1%",
        "Hate being the center of attention.",
    ):
        assert expected in text
    assert "without any response" not in text
    for name in two.get_feature_names_out():
        assert f"\n{name}: " in text, "classes have the same name everywhere"


def test_text_of_other_models_and_of_none() -> None:
    icqf = dfact.ICQF(3).fit(planted_answers(60, 8, 3, 0))
    assert "F1: strong for" in model_text(icqf)
    assert rows_text(icqf, 60) == "3 factors of 60 participants"
    assert [tick.get_text() for tick in items_plot(icqf).axes[0].get_xticklabels()] == ["F1", "F2", "F3"]
    with pytest.raises(dfact.ParameterError, match="a dict cannot be presented, expected a fitted model, such as ICQF, NMF"):
        model_text({})


def test_selection_text(data: dfact.Dataset) -> None:
    selection = dfact.selection.select_by_modularity(dfact.GradeOfMembership(random_state=0), data, [3, 2])
    table, note = selection_text(selection).split("\n\n")
    assert table == "  n_components  modularity\n             3  0.004439\n             2  0.006695    best (max)"
    assert note.startswith("Sizes of the classes, in shares of the memberships: 5")


@pytest.mark.parametrize("ending", ["csv", "parquet", "zarr"])
def test_nonrespondents_are_empty_in_a_file(tmp_path: Path, ending: str) -> None:
    answers = np.random.default_rng(0).integers(1, 5, (30, 8))
    answers[[3, 29]] = 0
    with pytest.warns(UserWarning, match="2 of 30 subjects have no response"):
        model = dfact.GradeOfMembership(2, random_state=0).fit(answers)
    path, columns = tmp_path / f"w.{ending}", list(model.get_feature_names_out())
    write_factors(path, model.memberships_, columns)
    if ending == "zarr":
        found = xr.open_zarr(path)["factors"].values
    else:
        found = (pd.read_csv(path) if ending == "csv" else pd.read_parquet(path))[columns].to_numpy()
    np.testing.assert_allclose(found, model.memberships_, rtol=1e-6)
    assert ending != "csv" or path.read_text().splitlines()[4] == '"3",,', "an empty cell, not the word nan"
    assert class_table(model)["size"].sum() == pytest.approx(28)
    assert "missing  2 subjects without any response" in model_text(model)


# Plots


def labels(axes: Any) -> list[str]:
    return [tick.get_text() for tick in axes.get_xticklabels()]


@pytest.mark.further
@pytest.mark.parametrize("most", [2000, 10])
def test_two_classes_on_a_line(two: dfact.GradeOfMembership, most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dfact.models.gom.plots._MAX_POINTS", most)
    figure = plot_memberships(two)
    bars, *strip = figure.axes
    assert sum(patch.get_height() for patch in bars.patches) == 1004
    names = two.get_feature_names_out()
    assert (bars.get_title(loc="left"), bars.get_title(loc="right")) == tuple(names)
    assert figure.axes[-1].get_xlabel() == f"membership in {names[1]}"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["highly pure (≥ 0.9): 60.4%", "moderately pure (0.7 to 0.9): 18.5%", "highly mixed (≤ 0.7): 21.1%"]
    assert len(strip) == (1 if most > 1004 else 0)
    if strip:
        drawn = np.concatenate([points.get_offsets()[:, 0] for points in strip[0].collections])
        np.testing.assert_allclose(np.sort(drawn), np.sort(np.asarray(two.memberships_)[:, 1]))
    save_figure(figure, tmp_path / "line.png")
    assert (tmp_path / "line.png").read_bytes().startswith(b"\x89PNG")


def test_three_classes_in_a_triangle(three: dfact.GradeOfMembership) -> None:
    figure = plot_memberships(three)
    axes = figure.axes[0]
    drawn = [points.get_offsets() for points in axes.collections]
    Pi = np.asarray(three.memberships_)
    assert [len(points) for points in drawn] == np.bincount(purity_level(Pi)).tolist()
    corners = np.array([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])
    np.testing.assert_allclose(drawn[0], (Pi @ corners)[purity_level(Pi) == 0], atol=1e-6)
    shown = {text.get_text() for text in axes.texts}
    assert shown >= {*three.get_feature_names_out(), "membership 0.9", "membership 0.7"}
    assert len(figure.legends[0].get_texts()) == len(LEVELS)


def test_many_subjects_as_a_density(three: dfact.GradeOfMembership, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfact.models.gom.plots._MAX_POINTS", 10)
    rng = np.random.default_rng(0)
    edges = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]])
    Pi = np.vstack([edges, rng.dirichlet([0.5] * 3, 3000)]).astype(np.float32)
    model: Any = SimpleNamespace(
        likelihood="none", memberships_=Pi, components_=three.components_, get_feature_names_out=three.get_feature_names_out
    )
    figure = plot_memberships(model)
    cells = figure.axes[0].collections[0]
    assert cells.get_array().sum() == len(Pi), "each subject lies in one cell"
    height = np.sqrt(0.75)
    corners = np.vstack([path.vertices for path in cells.get_paths()])
    assert corners.min() >= -1e-9
    assert (corners[:, 1] <= np.minimum(corners[:, 0], 1 - corners[:, 0]) * 2 * height + 1e-9).all(), "no cell leaves the triangle"
    centres = np.array([path.vertices[:3].mean(axis=0) for path in cells.get_paths()])
    nearest = np.linalg.norm((Pi @ np.array([[0, 0], [1, 0], [0.5, height]]))[:, None] - centres, axis=2).min(axis=1)
    assert nearest.max() <= 1 / 50 / np.sqrt(3) + 1e-6
    assert figure.axes[1].get_ylabel().startswith("subjects")
    assert figure.get_suptitle().startswith(f"highly pure (≥ 0.9): {(Pi.max(axis=1) >= 0.9).mean():.1%}, moderately")


def test_plot_of_four_classes_is_refused(data: dfact.Dataset) -> None:
    model = dfact.GradeOfMembership(4, random_state=0).fit(data)
    with pytest.raises(
        dfact.ParameterError, match=r"the model has 4 classes, expected 2 for a line or 3 for a triangle; use memberships_heatmap"
    ):
        plot_memberships(model)


def test_heat_maps(two: dfact.GradeOfMembership, small: Any) -> None:
    figure = item_heatmap(two)
    axes, bar = figure.axes
    np.testing.assert_array_equal(axes.images[0].get_array(), two.item_parameters_.to_numpy())
    assert axes.images[0].get_clim() == (0, 5)
    assert labels(axes) == list(two.get_feature_names_out())
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(two.column_labels_)
    assert bar.get_ylabel() == "expected response"
    assert items_plot(two).axes[1].get_ylabel() == "expected response"

    axes = heatmap(pd.DataFrame(np.zeros((151, 2))), "item", "loading").axes[0]
    assert (axes.get_ylabel(), len(axes.get_yticks())) == ("151 items", 0), "too many to read"

    axes = memberships_heatmap(two).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), np.asarray(two.memberships_)[:30])
    shown = memberships_heatmap(small).axes[0].images[0].get_array()
    assert shown.mask[6].all(), "nonrespondents have no colour"
    axes = memberships_heatmap(small, [5, 0]).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["F", "A"]
    for rows, found in (([7], r"\[7\]"), ([-1], r"\[-1\]"), ([], r"\[\]")):
        with pytest.raises(dfact.ParameterError, match=f"rows are {found}, expected row numbers from 0 to 6"):
            memberships_heatmap(small, rows)


@pytest.mark.further
def test_failed_figure_leaves_the_old_file(two: dfact.GradeOfMembership, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, path = item_heatmap(two), tmp_path / "items.pdf"
    save_figure(figure, path)
    assert path.read_bytes().startswith(b"%PDF")

    def fail(target: Path, **_: Any) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(dfact.StoreError, match=r"cannot write .*items\.pdf: the disk is full"):
        save_figure(figure, path, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["items.pdf"]
    assert path.read_bytes().startswith(b"%PDF")


def test_plots_without_matplotlib(two: dfact.GradeOfMembership, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for plot in (plot_memberships, item_heatmap, memberships_heatmap):
        with pytest.raises(dfact.DfactError, match=r"pip install 'dfact\[plot\]'"):
            plot(two)
