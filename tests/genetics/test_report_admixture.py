"""Files, texts, tables and the report of an admixture."""

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.export.files import write_loadings, write_model_factors
from dfact.genetics.distances import population_distances
from dfact.genetics.examples import planted_genotypes, write_bed
from dfact.genetics.presenter import AdmixturePresenter, mean_memberships, size_table
from dfact.report.plots import save_figure
from dfact.report.presenters.base import items_plot, model_text
from dfact.report.presenters.sections import make_document
from tests.conftest import REAL_DATA, planted_answers


def genotypes(n: int, m: int, k: int, seed: int) -> NDArray[np.uint8]:
    """Genotypes of a planted admixture; the last person has none."""
    G, _ = planted_genotypes(n, m, k, seed)
    G[-1] = 9
    return G


def store(folder: Path, G: NDArray[np.uint8], populations: Sequence[str] | None = None) -> dfact.Dataset:
    """Import genotypes as a dataset."""
    write_bed(folder / "cohort.bed", G, populations=populations)
    return dfact.import_genotypes(folder / "cohort.bed", folder / "cohort.zarr")


@pytest.fixture(scope="module", params=[2, 3])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dfact.Admixture:
    dataset = store(tmp_path_factory.mktemp("cohort"), genotypes(90, 150, request.param, request.param))
    with pytest.warns(UserWarning, match="no genotype"):
        return dfact.Admixture(request.param).fit(dataset)


# Files


@pytest.mark.further
def test_files_are_read_back(model: dfact.Admixture, tmp_path: Path) -> None:
    write_model_factors(model, tmp_path / "x.Q")
    write_loadings(model, tmp_path / "x.P")
    Q, P = dfact.report.read_memberships(tmp_path / "x.Q"), dfact.report.read_frequencies(tmp_path / "x.P")
    assert_allclose(Q, model.memberships_, atol=5.1e-7)
    assert_allclose(P, model.allele_frequencies_, atol=5.1e-7)
    lines = (tmp_path / "x.Q").read_text().split("\n")
    assert len(lines) == 91
    assert lines[-1] == ""
    assert all(re.fullmatch(r"[01]\.\d{6}( [01]\.\d{6})*", line) for line in lines[:89])
    assert set(lines[89].split()) == {"NaN"}, "a person without any genotype"


def test_files_are_written_by_blocks(model: dfact.Admixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model_factors(model, tmp_path / "x.Q")
    write_loadings(model, tmp_path / "x.P")
    monkeypatch.setattr("dfact.export.files._MAX_ROWS", 7)
    monkeypatch.setattr("dfact.genetics.admixture_files._MAX_ROWS", 7)
    stored = SimpleNamespace(
        **vars(model), vocabulary=model.vocabulary, traits=model.traits, get_feature_names_out=model.get_feature_names_out
    )
    stored.memberships_ = zarr.create_array(tmp_path / "w.zarr", data=np.asarray(model.memberships_), chunks=(5, 2))
    stored.row_factors = lambda: stored.memberships_
    write_model_factors(stored, tmp_path / "y.Q")  # type: ignore[arg-type]  # a stand-in with stored memberships
    write_loadings(model, tmp_path / "y.P")
    for ending in "QP":
        assert (tmp_path / f"x.{ending}").read_bytes() == (tmp_path / f"y.{ending}").read_bytes()


def test_commands_write_and_refuse_files(model: dfact.Admixture, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.save_model(model, tmp_path / "m")
    fitted = str(tmp_path / "m")
    for name in ("m.Q", "m.P"):
        assert main(["export", fitted, str(tmp_path / name)]) == 0
    assert main(["structure", str(tmp_path / "s.png"), fitted, str(tmp_path / "m.Q")]) == 0
    assert capsys.readouterr().out.endswith("s.png: 2 runs of 90 individuals\n")
    refused = {
        ("m2.Q", "--table", "loadings"): "ends in '.Q', expected one of .csv, .parquet, .xlsx, .P",
        ("m2.P", "--table", "factors"): "ends in '.P', expected one of .csv, .parquet, .zarr, .Q, .Q_se",
        ("m2.Q_se",): "expected a model with standard errors of the memberships; this Admixture has none: compute",
        ("m2.P", "--suppress", "0.1"): "below is 0.1, expected 0",
        ("m.P",): "exists already",
    }
    for (name, *options), message in refused.items():
        assert main(["export", fitted, str(tmp_path / name), *options]) != 0
        assert message in capsys.readouterr().err
    dfact.save_model(dfact.ICQF(2).fit(planted_answers(50, 6, 2, 0)), tmp_path / "fa")
    for name, message in {"f.Q": "expected a model with memberships", "f.P": "expected a model with frequencies"}.items():
        assert main(["export", str(tmp_path / "fa"), str(tmp_path / name)]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / name).exists()


@pytest.mark.further
@pytest.mark.filterwarnings("default:.*no genotype")
def test_projected_memberships_are_written(model: dfact.Admixture, tmp_path: Path) -> None:
    k = len(model.allele_frequencies_)
    store(tmp_path, genotypes(90, 150, k, k)[:40])
    dfact.save_model(model, tmp_path / "m")
    assert main(["transform", str(tmp_path / "m"), str(tmp_path / "cohort.zarr"), str(tmp_path / "new.Q")]) == 0
    expected = model.transform(dfact.open_dataset(tmp_path / "cohort.zarr"))
    assert_allclose(dfact.report.read_memberships(tmp_path / "new.Q"), expected, atol=5.1e-7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as a table of numbers"),
        ("0.5 0.5\n0.1 0.2 0.7\n", "cannot be read as a table of numbers"),
        ("0.5 x\n", "cannot be read as a table of numbers"),
        ("0.5 0.5\n1.5 -0.5\n", "line 2 of x.Q has the number 1.5, expected numbers from 0 to 1"),
        ("0.5 0.5\n1 NaN\n", "line 2 of x.Q has the number nan"),
        ("0.5 0.5\n0.2 0.7\n", "line 2 of x.Q has the sum 0.9, expected 1; .* transpose it"),
    ],
)
def test_what_is_no_q_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.Q").write_text(text)
    with pytest.raises(dfact.DataError, match=message):
        dfact.report.read_memberships(tmp_path / "x.Q")


def test_files_that_are_missing_or_compressed(tmp_path: Path) -> None:
    with pytest.raises(dfact.StoreError, match=r"x\.P"):
        dfact.report.read_frequencies(tmp_path / "x.P")
    (tmp_path / "x.P.gz").write_bytes(gzip.compress(b" 0.25   0.5\n1 0\n"))
    assert_array_equal(dfact.report.read_frequencies(tmp_path / "x.P.gz"), [[0.25, 1], [0.5, 0]])
    (tmp_path / "y.P.gz").write_bytes(gzip.compress(b"0.25 0.5\n" * 100)[:-9])
    with pytest.raises(dfact.DataError, match="cannot be read"):
        dfact.report.read_frequencies(tmp_path / "y.P.gz")


@pytest.mark.further
def test_log_likelihood_of_the_files_of_admixture() -> None:
    folder = REAL_DATA / "genotypes" / "hapmap3"
    if not folder.is_dir():
        pytest.skip("the genotypes of HapMap 3 are not in the data folder")
    Q = dfact.report.read_memberships(folder / "admixture.3.Q")
    P = dfact.report.read_frequencies(folder / "admixture.3.P.gz")
    n, m = len(Q), P.shape[1]
    table = np.array([0, 9, 1, 2], np.uint8)[(np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3]
    codes = table[np.fromfile(folder / "hapmap3.bed", np.uint8)[3:].reshape(m, -1)].reshape(m, -1)[:, :n].T
    F, seen = Q @ P, codes <= 2
    G = codes[seen].astype(np.float64)
    assert (G * np.log(F[seen]) + (2 - G) * np.log1p(-F[seen])).sum() == pytest.approx(-3799887.172, abs=5e-3), "as in its log"


# Tables


def test_sizes(model: dfact.Admixture) -> None:
    table = size_table(model)
    Q = np.asarray(model.memberships_)[:-1]
    assert_allclose(table["size"], Q.sum(axis=0), rtol=1e-5)
    assert table["share"].sum() == pytest.approx(1)
    assert table["individuals"].tolist() == (Q >= 0.9).sum(axis=0).tolist()
    assert table["size"].is_monotonic_decreasing


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rare", [False, True])
def test_distances_are_hudsons_without_sampling_errors(seed: int, rare: bool) -> None:
    rng, n = np.random.default_rng(seed), 40
    ancestral = np.exp(rng.uniform(np.log(0.01), np.log(0.5), 3000)) if rare else rng.uniform(0.1, 0.9, 3000)
    spread = np.array([0.1, 0.02, 0.02])[:, None]
    P = rng.beta(ancestral * (1 - spread) / spread, (1 - ancestral) * (1 - spread) / spread)
    names = np.repeat(["a", "b", "c"], n)
    G = np.vstack([rng.binomial(2, P[k], (n, 3000)) for k in range(3)])
    G = G[:, (varies := (G.min(axis=0) < G.max(axis=0)))]
    model = dfact.Admixture(3, supervised=True).fit(G, populations=names)
    found, true = population_distances(model), P[:, varies]
    assert_allclose(found.values, found.values.T)
    assert found.corrected
    for a, b in ((0, 1), (0, 2), (1, 2)):
        p, q = true[a], true[b]
        expected = ((p - q) ** 2).sum() / (p * (1 - q) + q * (1 - p)).sum()
        assert abs(found.values[a, b] - expected) < 4 * found.errors[a, b] < 0.03, (a, b)
    del model.sums_
    plain = population_distances(model)
    assert not plain.corrected
    assert (plain.values - found.values)[[0, 0, 1], [1, 2, 2]].min() > 0.005, "frequencies of 40 individuals differ by chance"
    assert "F_ST is too large" in model_text(model)


def test_standard_errors_of_distances_cover_them() -> None:
    """Over many draws, the distances vary by as much as their standard errors state."""
    values, errors = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        ancestral = rng.uniform(0.1, 0.9, 400)
        P = rng.beta(ancestral * 19, (1 - ancestral) * 19, (2, 400))
        G = np.vstack([rng.binomial(2, P[k], (30, 400)) for k in range(2)])
        G = G[:, G.min(axis=0) < G.max(axis=0)]
        found = population_distances(dfact.Admixture(2, supervised=True).fit(G, populations=np.repeat(["a", "b"], 30)))
        values.append(found.values[0, 1])
        errors.append(found.errors[0, 1])
    assert 0.5 < np.std(values, ddof=1) / np.mean(errors) < 2


def test_mean_memberships_of_populations() -> None:
    Q = np.array([[1, 0], [0.5, 0.5], [0.2, 0.8], [np.nan, np.nan]])
    table = mean_memberships(Q, ["a", "a", "-", "b"], ["p", "q"])
    assert table.index.tolist() == ["a", "unknown"]
    assert table["individuals"].tolist() == [2, 1]
    assert_allclose(table[["p", "q"]], [[0.75, 0.25], [0.2, 0.8]])


# Texts and reports


def test_text(model: dfact.Admixture) -> None:
    text = model_text(model, top=2)
    k = len(model.allele_frequencies_)
    assert text.startswith(f"model    Admixture, {k} populations of 90 individuals × 150 SNPs")
    assert f"iterations, log likelihood {model.log_likelihood_:.3f}" in text
    assert "1 individuals without any genotype" in text
    P = model.allele_frequencies_.astype(np.float64)
    difference = P[0] - P[1:].mean(axis=0)
    best = int(np.abs(difference).argmax())
    assert f"population1: rs{best} {P[0, best]:.2f} ({difference[best]:+.2f}), rs" in text
    found = population_distances(model)
    assert f"{found.values[0, 1]:.3f} ({found.errors[0, 1]:.3f})" in text
    assert "rs" not in model_text(model), "names of SNPs say nothing on a population"


def test_one_population_has_no_distances() -> None:
    one = dfact.Admixture(1).fit(planted_genotypes(40, 30, 2, 0, missing=0)[0])
    assert "F_ST" not in model_text(one)
    names = [section.name for section in make_document(one).sections]
    assert "populations" in names


def test_plot_of_a_model(model: dfact.Admixture, tmp_path: Path) -> None:
    figure = items_plot(model)
    assert len(figure.axes[0].patches) == len(model.allele_frequencies_)
    save_figure(figure, tmp_path / "structure.png")


@pytest.mark.further
def test_report_shows_populations_of_the_data(model: dfact.Admixture, tmp_path: Path) -> None:
    k = len(model.allele_frequencies_)
    G = genotypes(90, 150, k, k)
    without: Any = AdmixturePresenter(model, dfact.open_dataset(store(tmp_path, G).path))
    assert "by population" not in str(without.component_section().blocks)
    (tmp_path / "with").mkdir()
    populated: Any = AdmixturePresenter(model, store(tmp_path / "with", G, ["north"] * 30 + ["south"] * 30 + ["-"] * 30))
    section = populated.component_section()
    captions = [block.caption for block in section.blocks if hasattr(block, "caption")]
    assert "Mean ancestry proportions of the individuals, by the population that the data states" in captions
    figure = section.blocks[0].draw()
    assert {text.get_text() for text in figure.axes[0].get_xticklabels()} == {"north", "south", "unknown"}
    assert "convergence" in [found.name for found in make_document(model).sections]


def test_a_model_keeps_the_populations_and_their_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["north", "south", "-"]
    G, _ = planted_genotypes(60, 150, 2, 4)
    store(tmp_path, G, [names[i % 3] for i in range(60)])
    data, model = str(tmp_path / "cohort.zarr"), str(tmp_path / "a.model")
    assert main(["fit", "admixture", data, model, "-k", "2"]) == 0
    assert main(["stability", model, data, "--snp-blocks", "15", "--resamples", "4", "--seed", "0"]) == 0
    printed = capsys.readouterr().out
    assert "4 refits to resamples of 15 blocks" in printed
    fitted = dfact.load_model(model)
    assert list(fitted.row_populations_[:3]) == ["north", "south", ""]
    expected = np.asarray(dfact.selection.block_bootstrap(fitted, data, 4, n_blocks=15, random_state=0))
    assert_array_equal(np.asarray(fitted.memberships_se_), expected)
    assert_allclose(size_table(fitted)["standard error"], expected.mean(axis=0), rtol=1e-5)
    assert f"{expected[:, 0].mean():.4f}" in printed
    assert f"{expected[:, 0].mean():.4f}" in model_text(fitted)
    for name in ("a.2.Q", "a.2.Q_se", "a.csv", "a.zarr"):
        options = [] if "Q" in name else ["--table", "factors"]
        assert main(["export", model, str(tmp_path / name), *options]) == 0
    assert_allclose(np.loadtxt(tmp_path / "a.2.Q_se"), expected, atol=5.1e-7)
    assert_allclose(dfact.report.read_memberships(tmp_path / "a.2.Q"), fitted.memberships_, atol=5.1e-7)
    table = pd.read_csv(tmp_path / "a.csv")
    assert list(table) == ["row", "population", "population1", "population2", "population1_se", "population2_se"]
    assert table["population"].fillna("").tolist() == [*fitted.row_populations_]
    assert_allclose(table.iloc[:, 2:], np.hstack([np.asarray(fitted.memberships_), expected]), rtol=1e-5)
    group: Any = zarr.open_group(tmp_path / "a.zarr")
    assert_array_equal(group["factors"][:], np.asarray(fitted.memberships_))
    assert_array_equal(group["standard_errors"][:], expected)
    assert main(["structure", str(tmp_path / "a.png"), model]) == 0
    [axes] = dfact.report.plot_structure(fitted).axes
    assert {label.get_text() for label in axes.get_xticklabels()} == {"north", "south", "unknown"}
    dfact.write_report(fitted, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "Mean ancestry proportions of the individuals, by the population that the data states" in text
    assert "standard error" in text
    assert main(["stability", model, data, "--snp-blocks", "15", "--cold-start"]) == 2
    assert "--level, --halves, --reselect, --clusters and --cold-start concern resampled rows" in capsys.readouterr().err
