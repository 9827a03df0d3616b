"""Commands of a geneticist: from genotypes to plots, tables, pong's files and projections."""

import gzip
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import dfact
from dfact.cli.main import main
from dfact.genetics.distances import population_distances
from dfact.genetics.examples import write_cohort
from dfact.genetics.scores_plot import scores_figure
from dfact.genetics.structure_plot import structure_figure
from dfact.report.plots import save_figure
from dfact.report.presenters.base import items_plot
from tests.conftest import REAL_DATA

COALESCENT = REAL_DATA / "genotypes" / "coalescent"
_COMPLEMENT = str.maketrans("ACGT", "TGCA")


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the cohort of the demo, its dataset, and a PCA and an admixture of it."""
    folder = tmp_path_factory.mktemp("cohort")
    write_cohort(folder)
    dataset = dfact.import_genotypes(folder / "cohort.bed", folder / "cohort.zarr")
    dfact.save_model(dfact.PCA(2, scale="binomial").fit(dataset), folder / "pca.model")
    dfact.save_model(dfact.Admixture(3).fit(dataset), folder / "three.model")
    return folder


def offsets(figure: Any) -> int:
    """Return the number of points of a figure."""
    return sum(len(points.get_offsets()) for points in figure.axes[0].collections)


def test_components_are_plotted_by_population(cohort: Path, tmp_path: Path) -> None:
    model = dfact.load_model(cohort / "pca.model")
    figure = items_plot(model)
    save_figure(figure, tmp_path / "pca.png")
    assert offsets(figure) == model.factors_.shape[0]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["west", "north", "south", "unknown"]
    assert re.fullmatch(r"PC1 \(\d+\.\d%\)", figure.axes[0].get_xlabel())
    populations = np.asarray(model.row_populations_)
    for points, name in zip(figure.axes[0].collections, ["", "west", "north", "south"], strict=True):
        assert_allclose(points.get_offsets(), np.asarray(model.factors_)[populations == name], rtol=1e-5)


def test_one_component_without_populations_is_plotted_over_rows() -> None:
    figure = scores_figure(np.arange(5.0)[:, None], ["PC1"], [0.4])
    assert figure.axes[0].get_ylabel() == "PC1 (40.0%)"
    assert offsets(figure) == 5
    assert figure.legends == []


def test_many_populations_have_different_signs() -> None:
    names = [f"p{i % 45:02}" for i in range(450)]
    figure = scores_figure(np.random.default_rng(0).normal(size=(450, 2)), ["PC1", "PC2"], [0.4, 0.1], names)
    assert len(figure.axes[0].collections) == 45
    looks = {(tuple(points.get_facecolor()[0]), points.get_paths()[0].vertices.shape) for points in figure.axes[0].collections}
    assert len(looks) == 45


def test_files_of_pong(cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data, three = tmp_path / "runs", str(cohort / "cohort.zarr"), str(cohort / "three.model")
    assert main(["pong", str(folder), three, "--data", data, "-k", "2-3"]) == 0
    assert capsys.readouterr().out.endswith(f"pong -m {folder / 'pong_filemap.txt'} -i {folder / 'ind2pop.txt'}\n")
    rows = [line.split("\t") for line in (folder / "pong_filemap.txt").read_text().splitlines()]
    assert rows == [["k3r1", "3", "k3r1.Q"], ["k2r1", "2", "k2r1.Q"], ["k3r2", "3", "k3r2.Q"]]
    runs = {name: dfact.report.read_memberships(folder / file) for name, _, file in rows}
    assert_allclose(runs["k3r1"], runs["k3r2"], atol=1e-6)
    assert runs["k2r1"].shape == (140, 2)
    names = (folder / "ind2pop.txt").read_text().splitlines()
    assert names == [name or "unknown" for name in dfact.load_model(three).row_populations_]
    assert main(["pong", str(folder), three]) == 1
    assert "exists already" in capsys.readouterr().err
    for arguments, message in (([], "Got no RUN"), (["--data", data], "--data and -k belong together")):
        assert main(["pong", str(tmp_path / "none"), *arguments]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "short.Q").write_text("0.5 0.5\n")
    assert main(["pong", str(tmp_path / "other"), three, str(tmp_path / "short.Q")]) == 1
    assert "a run of K = 2 has 1 individuals, expected 140" in capsys.readouterr().err
    (tmp_path / "silent.Q").write_text("0.5 0.5\nNaN NaN\n")
    assert main(["pong", str(tmp_path / "third"), str(tmp_path / "silent.Q")]) == 1
    assert "individual 1 (counted from 0) has no genotype" in capsys.readouterr().err


def test_legend_order_and_axis_of_a_structure_plot(cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three = dfact.load_model(cohort / "three.model")
    figure = dfact.report.plot_structure([three], population_order=["south", "north"], names=["a", "b", "c"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()][:2] == ["south", "north"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["0", "", "1"]
    assert [text.get_text() for text in dfact.report.plot_structure(three).legends[0].get_texts()] == [
        "population1",
        "population2",
        "population3",
    ]
    Q = np.asarray(three.memberships_)
    several = structure_figure([Q, np.column_stack([Q[:, 0], Q[:, 1:].sum(axis=1)])])
    assert [text.get_text() for text in several.legends[0].get_texts()] == ["component 1", "component 2", "component 3"]
    with pytest.raises(dfact.ParameterError, match=r"2 names are given \(a, b\), expected 3, one for each component of the largest run"):
        dfact.report.plot_structure(three, names=["a", "b"])
    assert main(["structure", str(tmp_path / "y.png"), str(cohort / "three.model"), "--names", "a,b,c"]) == 0
    populations = np.asarray(three.row_populations_)
    means = {name: Q[populations == name].mean(axis=0) for name in ("north", "south", "west")}
    leading = [max(means, key=lambda name: means[name][k]) for k in range(3)]
    said = [f"{name} is largest in {leading[k]} ({means[leading[k]][k]:.2f})" for k, name in enumerate("abc")]
    assert f"names: {', '.join(said)}" in capsys.readouterr().out
    np.savetxt(tmp_path / "x.2.Q", np.full((140, 2), 0.5))
    assert main(["structure", str(tmp_path / "x.png"), str(tmp_path / "x.2.Q"), "--order", "south"]) == 2
    assert "--order names populations, which nothing states" in capsys.readouterr().err


def test_tables_have_the_populations(cohort: Path, tmp_path: Path) -> None:
    model = dfact.load_model(cohort / "pca.model")
    for name in ("a.csv", "a.parquet", "a.zarr"):
        assert main(["transform", str(cohort / "pca.model"), str(cohort / "cohort.zarr"), str(tmp_path / name)]) == 0
    for table in (pd.read_csv(tmp_path / "a.csv"), pd.read_parquet(tmp_path / "a.parquet")):
        assert list(table) == ["row", "population", "PC1", "PC2"]
        assert table["population"].fillna("").tolist() == [*model.row_populations_]
    import zarr

    group: Any = zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert [*group["population"][:]] == [*model.row_populations_]


@pytest.mark.parametrize("case", ["swapped", "flipped", "shuffled", "renamed", "part"])
def test_newcomers_of_the_demo_are_matched(case: str, cohort: Path, tmp_path: Path) -> None:
    """Genotypes of the demo in another form, by their .bim file alone."""
    models = [dfact.load_model(cohort / name) for name in ("pca.model", "three.model")]
    plain = dfact.import_genotypes(cohort / "newcomers.bed", tmp_path / "plain.zarr")
    expected = [np.asarray(model.transform(plain)) for model in models]
    for ending in ("bed", "bim", "fam"):
        shutil.copyfile(cohort / f"newcomers.{ending}", tmp_path / f"new.{ending}")
    rows = [line.split() for line in (tmp_path / "new.bim").read_text().splitlines()]
    m, bed = len(rows), (tmp_path / "new.bed").read_bytes()
    packed = np.frombuffer(bed[3:], np.uint8).reshape(m, -1).copy()
    chosen = np.random.default_rng(1).random(m) < 0.5
    palindromic = np.array([row[4].translate(_COMPLEMENT) == row[5] for row in rows])
    if case == "swapped":
        swaps = np.array([3, 1, 2, 0])  # of the two codes of equal alleles
        codes = np.array([sum(int(swaps[byte >> 2 * i & 3]) << 2 * i for i in range(4)) for byte in range(256)], np.uint8)
        packed[chosen] = codes[packed[chosen]]
        rows = [[*row[:4], row[5], row[4]] if some else row for row, some in zip(rows, chosen, strict=True)]
    elif case == "flipped":
        rows = [
            [*row[:4], *(text.translate(_COMPLEMENT) for text in row[4:])] if some else row for row, some in zip(rows, chosen, strict=True)
        ]
    elif case == "shuffled":
        order = np.random.default_rng(2).permutation(m)
        packed, rows = packed[order], [rows[j] for j in order]
    elif case == "renamed":
        rows = [[f"chr{row[0]}", f"{row[0]}:{row[3]}", *row[2:]] for row in rows]
    else:
        packed, rows = packed[chosen], [row for row, some in zip(rows, chosen, strict=True) if some]
    (tmp_path / "new.bed").write_bytes(bed[:3] + packed.tobytes())
    (tmp_path / "new.bim").write_text("".join("\t".join(row) + "\n" for row in rows))
    dataset = dfact.import_genotypes(tmp_path / "new.bed", tmp_path / "new.zarr")
    for model, whole in zip(models, expected, strict=True):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = np.asarray(model.transform(dataset))
        said = " ".join(str(warning.message) for warning in caught)
        spread = np.asarray(model.row_factors()).std(axis=0)
        near = 0.01 * spread if isinstance(model, dfact.PCA) else np.full(3, 1e-3)
        if case == "part":
            assert f"{chosen.sum()} SNPs are matched; left out are {(~chosen).sum()} of the model that X lacks" in said
            assert np.corrcoef(found[:, 0], whole[:, 0])[0, 1] > 0.9
        elif case == "flipped" and palindromic.any():
            assert f"left out are {palindromic.sum()} palindromic (A/T or C/G), as strands differ: 'rs" in said
            assert np.corrcoef(found[:, 0], whole[:, 0])[0, 1] > 0.9
        else:
            assert (np.abs(found - whole).max(axis=0) <= near).all()


@pytest.mark.further
def test_distances_of_a_coalescent_panel(tmp_path: Path) -> None:
    if not COALESCENT.is_dir():
        pytest.skip("the coalescent panel is not beside the project")
    for ending in ("bed", "fam", "pop"):
        shutil.copyfile(COALESCENT / f"ref.{ending}", tmp_path / f"ref.{ending}")
    (tmp_path / "ref.bim").write_bytes(gzip.decompress((COALESCENT / "ref.bim.gz").read_bytes()))
    dataset = dfact.import_genotypes(tmp_path / "ref.bed", tmp_path / "ref.zarr")
    model = dfact.Admixture(3).fit(dataset)
    assert model.log_likelihood_ == pytest.approx(-999644.2, abs=0.2), "as fastmixture's"
    G, names = dataset.source.read(0, 240).astype(np.float64), np.asarray(model.row_populations_)
    Q, found = np.asarray(model.memberships_), population_distances(model)
    component = {name: int(Q[names == name].mean(axis=0).argmax()) for name in ("AFR", "EUR", "EAS")}
    assert len({*component.values()}) == 3
    for a, b in (("AFR", "EUR"), ("AFR", "EAS"), ("EUR", "EAS")):
        p, q = (G[names == name].mean(axis=0) / 2 for name in (a, b))
        noise = p * (1 - p) / (2 * (names == a).sum() - 1) + q * (1 - q) / (2 * (names == b).sum() - 1)
        known = ((p - q) ** 2 - noise).sum() / (p * (1 - q) + q * (1 - p)).sum()
        assert found.values[component[a], component[b]] == pytest.approx(known, rel=0.02), (a, b)
        assert 0.001 < found.errors[component[a], component[b]] < 0.005


def test_genotypes_have_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.bed").touch()
    assert main(["import", str(tmp_path / "c.bed"), str(tmp_path / "d.zarr"), "--weight", "w"]) == 2
    assert "--weight applies to tables" in capsys.readouterr().err
