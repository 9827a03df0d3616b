"""Tables and plots of CP decompositions, and the plot of a solution path."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.models.cp.penalty_selection import select_penalty
from dfact.models.cp.plots import axis_values, mode_table, modes_plot, path_plot
from dfact.report.presenters.base import items_plot
from dfact.report.selection import selection_text
from dfact.selection.result import Selection


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Samples with names, wavelengths 250, 255, …, and four times."""
    rng = np.random.default_rng(0)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (20, 30, 4)))
    path = tmp_path_factory.mktemp("data") / "z.zarr"
    data = dfact.import_array(
        Z,
        path,
        row_labels=[f"sample{i}" for i in range(20)],
        column_labels=[250 + 5 * j for j in range(30)],
        mode_labels=[[f"day {k}" for k in (1, 2, 5, 9)]],
    )
    return dfact.ElasticCP(3, lam=1.0, l1_ratio=0.0, random_state=0, max_iter=2000).fit(data)


def test_the_text_lists_slices_of_each_mode(model: Any) -> None:
    """The vectors of the four times have larger entries than those of the wavelengths."""
    found = dfact.report.text(model, top=4).split("F1: weight ")[1].split("F2: ")[0].splitlines()[1:]
    rows = [line.rsplit(maxsplit=1) for line in found]
    vectors = model.loadings_["F1"].to_numpy()
    for part, names in ((vectors[:30], [f"mode 2: {250 + 5 * j}" for j in range(30)]), (vectors[30:], list(model.loadings_.index[30:]))):
        largest = np.argsort(-np.abs(part))[:2]
        assert [[names[j], f"{part[j]:.2f}"] for j in largest] == [[name.strip(), value] for name, value in rows if name.strip() in names]
    assert len(rows) == 4


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_that_look_the_same_share_a_line_and_the_refit_is_announced(seed: int) -> None:
    rng = np.random.default_rng(seed)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (20, 15, 10))) + 0.1 * rng.standard_normal((20, 15, 10))
    lambdas = [1e-9, 1e-8, 1e-7, 1e-6, 1.0, 1e6]
    selection = select_penalty(dfact.ElasticCP(3, l1_ratio=0.0, random_state=0), Z, lambdas=lambdas, criterion="bic")
    lines = selection_text(selection).split("\n\n")[0].splitlines()[1:]
    assert lines[0].split()[:3] == ["1e-09", "to", "1e-06"]
    assert len(lines) == len(selection.table) - 3
    [best] = [line for line in lines if "best" in line]
    lam = selection.best_params["lam"]
    span = re.match(r"\s*(\S+)(?: to (\S+))?", best)
    assert span is not None
    assert float(span[1]) <= lam <= float(span[2] or span[1])
    assert best.endswith("best (min)")
    refit = f"lambda 1e-08, share of l1 0; fitted again without the shrinkage of the chosen lambda {lam:g}"
    assert refit in dfact.report.text(selection.model)
    assert "fitted again" not in dfact.report.text(dfact.ElasticCP(2, lam=1e-6, random_state=0).fit(Z))


def test_modes_with_many_increasing_labels_are_lines() -> None:
    np.testing.assert_array_equal(axis_values([str(i) for i in range(13)]), np.arange(13))  # type: ignore[arg-type]
    assert axis_values([str(i) for i in range(12)]) is None
    assert axis_values([f"q{i}" for i in range(50)]) is None
    assert axis_values([1, 3, 2, *range(4, 40)]) is None
    assert axis_values([*range(12), 11]) is None, "two slices share a position"


def test_tables_have_the_labels_and_unit_vectors(model: Any) -> None:
    for n, (size, first) in enumerate([(20, "sample0"), (30, "250"), (4, "day 1")]):
        table = mode_table(model, n)
        assert table.shape == (size, 3)
        assert table.index[0] == first
        assert table.index.name == f"mode {n + 1}"
        np.testing.assert_allclose(np.linalg.norm(table.iloc[:, : model.rank_], axis=0), 1)
        np.testing.assert_allclose(table.iloc[:, 0] * np.linalg.norm(model.factors_[n][:, 0]), np.asarray(model.factors_[n])[:, 0])


@pytest.mark.further
def test_ordered_modes_are_lines_and_others_bars(model: Any, tmp_path: Path) -> None:
    figure = modes_plot(model)
    samples, wavelengths, times = figure.axes
    assert model.rank_ == 2
    assert len(samples.patches) == 2 * 20
    assert len(times.patches) == 2 * 4
    lines = [line for line in wavelengths.lines if len(line.get_xdata()) == 30]
    assert len(lines) == 2
    np.testing.assert_array_equal(lines[0].get_xdata(), 250 + 5 * np.arange(30))
    np.testing.assert_allclose(lines[0].get_ydata(), mode_table(model, 1).iloc[:, 0])
    figure.savefig(tmp_path / "modes.png")
    assert [axes.get_title() for axes in items_plot(model).axes] == ["mode 1", "mode 2", "mode 3"]


def test_long_modes_are_left_out_and_an_empty_model_has_panels() -> None:
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((5001, 3, 2))
    long = dfact.ElasticCP(2, max_iter=2, random_state=0).fit(Z)
    assert [axes.get_title() for axes in modes_plot(long).axes] == ["mode 2", "mode 3"]
    with pytest.warns(UserWarning, match="the penalty sets all 2 components to 0"):
        nothing = dfact.ElasticCP(2, lam=1e9, random_state=0).fit(Z[:20])
    assert nothing.rank_ == 0
    assert len(modes_plot(nothing).axes) == 3


@pytest.mark.further
@pytest.mark.parametrize(("criterion", "panels"), [("held_out", 3), ("bic", 4), ("split_half", 4)])
def test_path_plot_shows_rank_and_score_over_lambda(criterion: str, panels: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (20, 12, 9)))
    Z += 0.2 * rng.standard_normal(Z.shape)
    selection = select_penalty(dfact.ElasticCP(3, random_state=0), Z, criterion, [1.0, 10.0, 100.0, 1e5], random_state=0)
    figure = path_plot(selection)
    assert len(figure.axes) == panels
    assert all(axes.get_xscale() == "log" for axes in figure.axes)
    rank = figure.axes[0].lines[0]
    np.testing.assert_array_equal(rank.get_xdata(), selection.table.index)
    np.testing.assert_array_equal(rank.get_ydata(), selection.table["rank"])
    score = [
        line for axes in figure.axes for line in axes.lines if np.array_equal(line.get_ydata(), selection.table[criterion], equal_nan=True)
    ]
    assert score
    figure.savefig(tmp_path / "path.svg")


@pytest.mark.parametrize("lambdas", [[0.0], [0.0, 1.0, 10.0]])
def test_path_plot_shows_lambda_0(lambdas: list[float], tmp_path: Path) -> None:
    Z = np.random.default_rng(1).standard_normal((12, 6, 5))
    figure = path_plot(select_penalty(dfact.ElasticCP(2, random_state=0), Z, lambdas=lambdas, random_state=0))
    figure.savefig(tmp_path / "path.svg")
    axes = figure.axes[0]
    assert np.isfinite(axes.transData.transform([[0.0, 1.0]])).all()
    assert axes.get_xlim()[0] <= 0


def test_path_plot_refuses_other_selections() -> None:
    table = pd.DataFrame({"modularity": [0.1]}, index=pd.Index([2], name="n_components"))
    with pytest.raises(dfact.ParameterError, match="expected one of select_penalty"):
        path_plot(Selection(table, {"n_components": 2}, dfact.ICQF()))


@pytest.mark.further
def test_a_report_with_the_data_has_the_core_consistency(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (20, 7, 5))) + 0.1 * rng.standard_normal((20, 7, 5))
    model = dfact.ElasticCP(2, lam=1e-3, random_state=0).fit(Z)
    dfact.write_report(model, tmp_path / "with.html", Z)
    dfact.write_report(model, tmp_path / "without.html")
    expected = f"Core consistency {dfact.selection.core_consistency(model, Z):.1f}%"
    assert expected in (tmp_path / "with.html").read_text()
    assert "Core consistency" not in (tmp_path / "without.html").read_text()
