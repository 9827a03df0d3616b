"""Runs of membership models: alignment of their components, groups of runs that agree, and structure plots."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.genetics.alignment import align_runs, match_memberships, run_agreement
from dfact.genetics.structure_plot import arrange_bars, structure_figure
from tests.conftest import REAL_DATA


def memberships(n: int, k: int, seed: int) -> NDArray[np.float64]:
    """Memberships of components whose sizes differ."""
    return np.random.default_rng(seed).dirichlet(np.linspace(0.2, 0.6, k), n)


def split(Q: NDArray[np.float64], component: int, seed: int) -> NDArray[np.float64]:
    """A run with one component more: a third of a component becomes the last one."""
    share = np.random.default_rng(seed).uniform(0.2, 0.4, len(Q))
    out = np.column_stack([Q, Q[:, component] * share])
    out[:, component] -= out[:, -1]
    return out


@pytest.mark.parametrize("seed", range(3))
def test_runs_that_differ_by_the_order_of_their_components_agree(seed: int) -> None:
    Q = memberships(80, 5, seed)
    order = np.random.default_rng(seed).permutation(5)
    ours, theirs = match_memberships(Q, Q[:, order])
    assert_array_equal(order[theirs], ours)
    assert run_agreement(Q, Q[:, order]) == pytest.approx(1)
    [group] = align_runs([Q, Q[:, order]])
    assert sorted(group.runs) == [0, 1]
    assert group.n_runs == 2


def test_agreement_is_0_of_pure_rows_that_share_no_component() -> None:
    Q = np.eye(2)[[0, 0, 1, 1]]
    assert run_agreement(Q, np.eye(2)[[0, 1, 0, 1]]) == pytest.approx(1 - np.sqrt(4 / 8)), "half of the rows are matched"
    assert run_agreement(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])) == pytest.approx(0.5)
    assert run_agreement(np.eye(3)[[0, 0]], np.eye(3)[[1, 2]]) == pytest.approx(1 - np.sqrt(2 / 4))


@pytest.mark.parametrize("seed", range(3))
def test_a_new_component_gets_the_next_colour(seed: int) -> None:
    Q = memberships(200, 3, seed)
    rng = np.random.default_rng(seed)
    wider = split(Q, 1, seed)
    widest = split(wider, 0, seed)
    order, last = rng.permutation(4), rng.permutation(5)
    first, second, third = align_runs([widest[:, last], Q, wider[:, order]])
    sizes = Q.sum(axis=0)
    assert_array_equal(first.colors, np.argsort(np.argsort(-sizes)), "the first run has its colours by size")
    colors = [*first.colors, 3, 4]
    assert_array_equal(second.colors, np.array(colors)[order])
    assert_array_equal(third.colors, np.array(colors)[last])
    assert [group.runs for group in (first, second, third)] == [(1,), (2,), (0,)]


def test_runs_are_grouped_and_the_largest_group_is_first() -> None:
    rng = np.random.default_rng(0)
    A, B = memberships(100, 4, 1), memberships(100, 4, 2)
    near = [A, 0.99 * A + 0.01 * rng.dirichlet(np.ones(4), 100)]
    between = (near[0] + near[1]) / 2
    groups = align_runs([B, *near, between[:, ::-1]])
    assert [sorted(group.runs) for group in groups] == [[1, 2, 3], [0]]
    assert groups[0].runs[0] == 3, "it is between the other two"
    assert [group.n_runs for group in groups] == [4, 4]
    for group in groups:
        assert sorted(group.colors) == [0, 1, 2, 3]
    assert len(align_runs([B, *near, between], agreement=1.0)) == 4


def test_rows_that_are_nan_are_left_out() -> None:
    Q = memberships(50, 3, 0)
    other = Q[:, [2, 0, 1]].copy()
    Q[3], other[[5, 7]] = np.nan, np.nan
    assert run_agreement(Q, other) == pytest.approx(1)
    bars = arrange_bars(Q, [Q, other])
    assert set(range(50)) - set(bars.order.tolist()) == {3, 5, 7}


@pytest.mark.needs("questionnaires")
def test_runs_of_other_rows_are_refused() -> None:
    with pytest.raises(dfact.ParameterError, match=r"runs have \[10, 12\] rows, expected memberships of the same rows"):
        align_runs([memberships(10, 2, 0), memberships(12, 2, 0)])
    with pytest.raises(dfact.ParameterError, match="expected memberships"):
        align_runs([])
    with pytest.raises(dfact.ParameterError, match="FactorAnalysis, expected a model with memberships"):
        dfact.report.plot_structure(dfact.FactorAnalysis(2))


@pytest.mark.parametrize("seed", range(2))
def test_rows_are_sorted_within_populations_by_their_leading_component(seed: int) -> None:
    Q = memberships(120, 4, seed)
    names = np.random.default_rng(seed).choice(["a", "b", "-"], 120)
    bars = arrange_bars(Q, [Q], names)
    assert sorted(bars.order.tolist()) == list(range(120))
    assert [name for name, _ in bars.populations][-1] == "unknown"
    start = 0
    for name, count in bars.populations:
        rows = bars.order[start : start + count]
        start += count
        assert set(names[rows]) == {"-" if name == "unknown" else name}
        leading = Q[rows].argmax(axis=1)
        assert len(pd.unique(leading)) == 1 + np.count_nonzero(np.diff(leading)), "each leading component stands together"
        for component in pd.unique(leading):
            assert (np.diff(Q[rows][leading == component, component]) <= 0).all()
    assert_allclose(bars.means(Q), Q[bars.order])


def test_many_rows_are_binned_within_their_populations() -> None:
    Q = memberships(9000, 3, 0)
    names = np.repeat(["large", "small", "one"], [7000, 1999, 1])
    bars = arrange_bars(Q, [Q], names)
    assert len(bars.widths) == pytest.approx(2000, abs=3)
    assert dict(bars.populations)["one"] == 1
    assert bars.widths.sum() == 9000
    assert_allclose(bars.widths @ bars.means(Q), Q.sum(axis=0))
    start = np.cumsum([0, *(count for _, count in bars.populations)])
    for (name, _), first, last in zip(bars.populations, start, start[1:], strict=False):
        assert bars.widths[first:last].sum() == (names == name).sum()


def test_means_of_populations_and_their_order() -> None:
    Q = memberships(60, 3, 4)
    names = pd.Categorical(np.tile(["x", "y", None], 20))
    bars = arrange_bars(Q, [Q], names, means=True, population_order=["y", "x"])
    assert bars.populations == [("y", 1), ("x", 1), ("unknown", 1)]
    assert_allclose(bars.means(Q), [Q[1::3].mean(axis=0), Q[::3].mean(axis=0), Q[2::3].mean(axis=0)])
    with pytest.raises(dfact.DataError, match="no row is of the population 'z', expected some of"):
        arrange_bars(Q, [Q], names, population_order=["z"])
    with pytest.raises(dfact.DataError, match="populations has 59 names, expected one for each of 60 rows"):
        arrange_bars(Q, [Q], names[:59])
    with pytest.raises(dfact.DataError, match="all 60 rows"):
        arrange_bars(Q, [np.full_like(Q, np.nan)])


def bars_of(axes: Any) -> list[NDArray[np.float64]]:
    """Heights of the bars of each component, by colour."""
    return [patch.get_data().values - patch.get_data().baseline for patch in axes.patches]


def test_panels_show_the_memberships() -> None:
    Q = memberships(40, 3, 0)
    wider = split(Q, 0, 0)
    figure = structure_figure([Q, wider[:, [3, 1, 2, 0]], Q], np.repeat(["one", "two"], 20))
    assert [axes.get_ylabel() for axes in figure.axes] == ["K = 3\n2 of 2 runs", "K = 4"]
    order = arrange_bars(wider, [wider], np.repeat(["one", "two"], 20)).order
    by_color = np.argsort(-Q.sum(axis=0))
    assert_allclose(np.column_stack(bars_of(figure.axes[0])), Q[order][:, by_color], atol=1e-12)
    assert_allclose(np.column_stack(bars_of(figure.axes[1])), wider[order][:, [*by_color, 3]], atol=1e-12)
    colors = [[patch.get_facecolor() for patch in axes.patches] for axes in figure.axes]
    assert colors[0] == colors[1][:3]
    assert len(set(colors[1])) == 4
    assert {text.get_text() for text in figure.axes[1].get_xticklabels()} == {"one", "two"}


def test_one_run_may_have_a_legend_and_no_populations() -> None:
    Q = memberships(30, 3, 0)
    figure = structure_figure([Q], names=["a", "b", "c"])
    [legend] = figure.legends
    patches = {patch.get_facecolor(): heights.sum() for patch, heights in zip(figure.axes[0].patches, bars_of(figure.axes[0]), strict=True)}
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        assert handle is not None
        assert patches[handle.get_facecolor()] == pytest.approx(Q[:, "abc".index(text.get_text())].sum())
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == []


@pytest.fixture(scope="module")
def pong() -> Path:
    """1000 Genomes, three runs each of K = 4, 5 and 6."""
    folder = REAL_DATA / "genotypes" / "pong"
    if not folder.is_dir():
        pytest.skip("the folder of pong's runs is not in the data folder")
    return folder


def test_modes_of_1000_genomes(pong: Path) -> None:
    runs = {(k, run): dfact.report.read_memberships(pong / f"run{run}.{k}.Q.gz") for k in (4, 5, 6) for run in (1, 2, 3)}
    names = list(runs)
    groups = align_runs(list(runs.values()))
    assert [{names[i] for i in group.runs} for group in groups] == [
        {(4, 1), (4, 2)},
        {(4, 3)},
        {(5, 1), (5, 2), (5, 3)},
        {(6, 2), (6, 3)},
        {(6, 1)},
    ]
    populations = np.array((pong / "ind2pop.txt").read_text().split())
    major = [group for group in groups if len(group.runs) > 1]
    # One colour for each continent, in all K.
    for population in ("YRI", "GBR", "CHB", "STU"):
        rows = populations == population
        leading = {int(group.colors[group.memberships[rows].mean(axis=0).argmax()]) for group in major[:2]}
        assert len(leading) == 1, population
    peru = [int(group.colors[group.memberships[populations == "PEL"].mean(axis=0).argmax()]) for group in major]
    assert peru[1:] == [4, 4], "the fifth component is that of the Americas"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Q = memberships(30, 3, 0)
    for name, run in {"a.3.Q": Q, "b.4.Q": split(Q, 2, 0)}.items():
        np.savetxt(tmp_path / name, run, "%.6f")
    (tmp_path / "people.txt").write_text("\n".join(["here", "there", "-"] * 10) + "\n")
    paths = [str(tmp_path / name) for name in ("a.3.Q", "b.4.Q")]
    out = tmp_path / "plot.svg"
    assert main(["structure", str(out), *paths, "--population", str(tmp_path / "people.txt"), "--means"]) == 0
    assert capsys.readouterr().out == f"{out}: 2 runs of 30 individuals\n"
    assert out.read_text().startswith("<?xml")
    assert main(["structure", str(out), *paths]) == 1, "it exists"
    assert main(["structure", str(tmp_path / "other.png"), *paths, "--population", paths[0], "--data", paths[0]]) == 2
    (tmp_path / "people.txt").write_text("here\n")
    assert main(["structure", str(tmp_path / "other.png"), *paths, "--population", str(tmp_path / "people.txt")]) == 1
    assert "populations has 1 names, expected one for each of 30 rows" in capsys.readouterr().err
    assert not (tmp_path / "other.png").exists()
