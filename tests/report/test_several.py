"""The page that compares several models: matched components, their order and signs, correlations of rows, refusals."""

from collections.abc import Callable
from copy import deepcopy
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.catalogue import CATALOGUE, MISSING
from dfact.cli.main import main
from dfact.errors import ParameterError
from dfact.report.document import Table, Text
from dfact.report.presenters.several import compare_models
from tests.cases import of_installed
from tests.conftest import planted_answers
from tests.models.test_adding_a_factorization import PoissonMF, counts

ANSWERS = planted_answers(120, 12, 3, seed=0)
GENOTYPES = np.random.default_rng(1).binomial(2, np.random.default_rng(0).uniform(0.1, 0.9, (3, 40))[np.arange(60) % 3]).astype(np.uint8)


def tensor() -> NDArray[np.float64]:
    rng = np.random.default_rng(2)
    return np.asarray(np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(size, 3)) for size in (30, 8, 6))))


FITS: dict[str, Callable[[int], Any]] = of_installed(
    {
        "ICQF": lambda k: dfact.ICQF(k, max_iter=20).fit(ANSWERS),
        "NMF": lambda k: dfact.NMF(k, max_iter=20).fit(ANSWERS),
        "PCA": lambda k: dfact.PCA(k).fit(ANSWERS),
        "FactorAnalysis": lambda k: dfact.FactorAnalysis(k).fit(ANSWERS),
        "GradeOfMembership": lambda k: dfact.GradeOfMembership(k, random_state=0).fit(ANSWERS + 1),
        "ExpectileMF": lambda k: dfact.ExpectileMF(k, ridge=0.1, max_iter=20).fit(ANSWERS),
        "ElasticCP": lambda k: dfact.ElasticCP(k, lam=0.1, random_state=0).fit(tensor()),
        "CPALS": lambda k: dfact.CPALS(k, random_state=0).fit(tensor()),
        "Admixture": lambda k: dfact.Admixture(k, random_state=0).fit(GENOTYPES),
    }
)


def tables(models: list[Any]) -> dict[str, list[pd.DataFrame]]:
    """Return the tables of each section, with texts as cells."""
    document = compare_models(models)
    return {
        section.name: [
            pd.DataFrame([[cell.text for cell in row[1:]] for row in block.rows], [row[0].text for row in block.rows], columns)
            for block in section.blocks
            if isinstance(block, Table)
            for columns in [[heading.text for heading in block.headings[1:]]]
        ]
        for section in document.sections
    }


def test_all_models_of_the_catalogue_are_tried() -> None:
    absent = {entry.name for each in MISSING for entry in each.models}
    assert {entry.name for entry in CATALOGUE} == set(FITS) - absent


@pytest.mark.further
@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore:components . and . cancel", "ignore:.*converge")
def test_models_of_all_kinds_are_compared(name: str, tmp_path: Path) -> None:
    models = [FITS[name](3), FITS[name](2)]
    found = tables(models)
    names = list(models[0].get_feature_names_out())
    matched, *similarities = found["matched"]
    assert list(matched.index) == names
    assert sorted(matched["model 2"]) == sorted(["–", *models[1].get_feature_names_out()])
    assert matched["congruence with model 2"].eq("–").sum() == 1
    assert [table.shape for table in similarities] == [(3, 2)]
    assert len(found["loadings"][0]) == len(models[0].loadings_)
    assert found["settings"][0].loc["n_components"].tolist() == ["3", "2"]
    dfact.write_report(models, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().count("</section>") >= 5


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("seed", range(3))
def test_permuted_and_reflected_factors_are_matched(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    stored = dfact.import_array(ANSWERS, tmp_path / "d.zarr")
    model: Any = dfact.FactorAnalysis(3).fit(stored)
    order, signs = rng.permutation(3), rng.choice([-1.0, 1.0], 3)
    other = deepcopy(model)
    other.components_, other.factors_ = model.components_[order] * signs[:, None], np.asarray(model.factors_)[:, order] * signs
    found = tables([model, other])
    matched, names = found["matched"][0], list(model.get_feature_names_out())
    assert matched["model 2"].tolist() == [names[i] for i in np.argsort(order)]
    assert matched["congruence with model 2"].tolist() == ["1.000"] * 3
    assert matched["correlation with model 2"].tolist() == ["1.000"] * 3  # the scores are turned as the loadings are
    side_by_side = found["loadings"][0]
    assert (side_by_side.iloc[:, ::2].to_numpy() == side_by_side.iloc[:, 1::2].to_numpy()).all()
    assert sum("(−)" in column for column in side_by_side) == (signs < 0).sum()


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("seed", range(3))
def test_matching_maximizes_the_sum_of_congruences(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(150, 3)) @ rng.normal(size=(3, 10)) + rng.normal(0, 2, (150, 10))
    stored = dfact.import_array(M, tmp_path / "d.zarr")
    first, other = dfact.FactorAnalysis(3).fit(stored), dfact.FactorAnalysis(3, rotation="varimax").fit(stored)
    other.components_ = other.components_ + rng.normal(0, 0.3, other.components_.shape)
    A, B = (model.components_ / np.linalg.norm(model.components_, axis=1, keepdims=True) for model in (first, other))
    cosines = A @ B.T
    best = max(permutations(range(3)), key=lambda order: np.abs(cosines[range(3), order]).sum())
    matched, similarity = tables([first, other])["matched"]
    assert matched["model 2"].tolist() == [str(other.get_feature_names_out()[j]) for j in best]
    assert_allclose(matched["congruence with model 2"].astype(float), np.abs(cosines[range(3), best]), atol=6e-4)
    assert_allclose(similarity.astype(float), cosines, atol=6e-3)
    signs = np.sign(cosines[range(3), best])
    expected = [
        np.corrcoef(np.asarray(first.factors_)[:, a], signs[a] * np.asarray(other.factors_)[:, b])[0, 1] for a, b in enumerate(best)
    ]
    assert_allclose(matched["correlation with model 2"].astype(float), expected, atol=6e-4)


def test_vectors_of_a_tensor_are_matched_over_all_modes() -> None:
    model = FITS["ElasticCP"](3)
    other = deepcopy(model)
    other.factors_ = [A[:, [2, 0, 1]].copy() for A in model.factors_]
    other.factors_[1][:, 0] *= -1
    other.factors_[0][:, 0] *= -1
    found = tables([model, other])
    assert found["matched"][0]["model 2"].tolist() == ["F2", "F3", "F1"]
    assert found["matched"][0]["congruence with model 2"].tolist() == ["1.000"] * 3
    side_by_side = found["loadings"][0]
    assert (side_by_side.iloc[:, ::2].to_numpy() == side_by_side.iloc[:, 1::2].to_numpy()).all()


@pytest.mark.needs("questionnaires")
def test_texts_say_what_can_be_compared(tmp_path: Path) -> None:
    stored = [dfact.import_array(ANSWERS[rows], tmp_path / f"{i}.zarr") for i, rows in enumerate((slice(None), slice(90)))]
    same, other = (dfact.FactorAnalysis(2).fit(data) for data in stored)
    chosen = dfact.selection.select_number_of_factors(dfact.FactorAnalysis(), stored[0], range(1, 4)).model

    def texts(models: list[Any]) -> str:
        return " ".join(block.text for section in compare_models(models).sections for block in section.blocks if isinstance(block, Text))

    assert "fitted to the same data" in texts([same, chosen])
    assert "All parameters are equal." in texts([same, deepcopy(same)])
    assert "fitted to different data" in texts([same, other])
    assert "is not recorded" in texts([same, dfact.FactorAnalysis(2).fit(ANSWERS)])
    assert "correlation with model 2" not in tables([same, other])["matched"][0]
    assert "From a centred congruence of 0.9" in texts([FITS["ICQF"](3), FITS["NMF"](3)])
    assert "centred congruence with model 2" in tables([FITS["ICQF"](3), FITS["NMF"](3)])["matched"][0]
    assert tables([same, chosen])["selections"][0].loc["model 2", "criterion"] == "excess"


@pytest.mark.needs("questionnaires")
def test_models_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    model = FITS["FactorAnalysis"](2)
    with pytest.raises(ParameterError, match="models are 1, expected at least two"):
        compare_models([model])
    with pytest.raises(
        ParameterError, match="item 12 of model 2 is none, as it has 11, of model 1 '11'; expected models of the same items"
    ):
        compare_models([model, dfact.FactorAnalysis(2).fit(ANSWERS[:, :11])])
    frame = pd.DataFrame(ANSWERS, columns=[f"Q{j}" for j in range(12)])
    with pytest.raises(ParameterError, match="item 1 of model 2 is 'Q0', of model 1 '0'"):
        compare_models([model, dfact.FactorAnalysis(2).fit(frame)])
    with pytest.raises(ParameterError, match=r"model 2 is a model of a tensor with slices of \(8, 6\), model 1 one of a matrix"):
        compare_models([model, FITS["ElasticCP"](2)])
    with pytest.warns(UserWarning, match="the penalty sets all"):
        nothing = dfact.ElasticCP(2, lam=1e8, random_state=0).fit(tensor())
    with pytest.raises(ParameterError, match="model 2 has no component left"):
        compare_models([FITS["ElasticCP"](2), nothing])
    with pytest.raises(ParameterError, match="data is given for several models, expected None"):
        dfact.write_report([model, model], tmp_path / "r.html", ANSWERS)
    assert not (tmp_path / "r.html").exists()
    dfact.write_report([PoissonMF(2).fit(counts(0)), PoissonMF(3).fit(counts(0))], tmp_path / "r.html")  # a model of another package


@pytest.mark.needs("questionnaires")
@pytest.mark.further
@pytest.mark.needs("batch")
def test_report_command_takes_several_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = dfact.import_array(ANSWERS, tmp_path / "d.zarr")
    for k in (2, 3):
        dfact.save_model(dfact.FactorAnalysis(k).fit(stored), tmp_path / f"fa{k}.model")
    assert main(["report", "fa2.model", "fa3.model", "both.html"]) == 0
    page = (tmp_path / "both.html").read_text()
    assert "<h1>Comparison of fa2, fa3</h1>" in page
    assert main(["report", "fa2.model", "fa3.model", "x.html", "--data", "d.zarr"]) == 2
    assert "--data applies to the report of one model" in capsys.readouterr().err
    assert main(["report", "fa2.model", "fa2.model", "x.html"]) == 1
    assert "expected each one once" in capsys.readouterr().err
    steps = ['model = ["fa2.model", "fa3.model"]\nreport = "list.html"', 'model = "fa2.model"\nreport = "one.html"']
    Path("job.toml").write_text("".join(f'[[step]]\nrun = "report"\n{step}\n' for step in steps))
    assert main(["run", "job.toml"]) == 0
    assert (tmp_path / "list.html").read_text() == page
    assert "Comparison" not in (tmp_path / "one.html").read_text()
