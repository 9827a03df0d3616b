"""Tables in APA style: their figures, their order, and labels that cannot run."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import dfact
from dfact.cli.main import main
from dfact.questionnaires.apa.loadings import loadings_table
from dfact.questionnaires.apa.page import render_tables
from dfact.questionnaires.apa.table import ApaTable, number
from dfact.questionnaires.apa.write import as_markdown
from tests.conftest import planted_answers
from tests.models.test_adding_a_factorization import PoissonMF, counts
from tests.report.test_html_report import EVIL


def answers(seed: int, n: int = 600) -> pd.DataFrame:
    """Return whole answers to nine items of three correlated factors; items of a factor are three apart."""
    rng = np.random.default_rng(seed)
    traits = rng.normal(size=(n, 3)) + 0.6 * rng.normal(size=(n, 1))
    table = np.rint(2.5 + 0.8 * np.tile(traits, 3) * np.repeat([0.9, 1.2, -1.1], 3) + rng.normal(0, 0.8, (n, 9))).clip(0, 5)
    return pd.DataFrame(table, columns=[f"Q{j}" for j in range(9)])


def value(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def group(table: ApaTable, heading: str) -> list[list[str]]:
    """Return the texts of the rows under a heading."""
    return next([[cell.text for cell in row] for row in group.rows] for group in table.groups if group.heading == heading)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rotation", ["oblimin", "promax", "promax-spss", "varimax", None])
def test_loadings_of_a_factor_analysis(seed: int, rotation: str | None) -> None:
    model = dfact.FactorAnalysis(3, rotation=rotation).fit(answers(seed))
    table = loadings_table(model)
    loadings, seen = model.loadings_.to_numpy(), []
    for a in range(3):
        sizes = []
        for name, *cells in next((one.rows for one in table.groups if one.heading == f"F{a + 1}"), []):
            j = int(name.text[1:])
            seen.append(j)
            assert np.abs(loadings[j]).argmax() == a
            sizes.append(np.abs(loadings[j]).max())
            assert_allclose([value(cell.text) for cell in cells], [*loadings[j], model.communalities_[j]], atol=0.00501)
            assert [cell.bold for cell in cells[:3]] == [abs(value(cell.text)) >= 0.4 for cell in cells[:3]]
            assert all(re.fullmatch(r"−?(\.\d\d|[1-9]\.\d\d)", cell.text) for cell in cells)
        assert sizes == sorted(sizes, reverse=True)
    assert sorted(seen) == list(range(9))
    explained = np.array([[value(text) for text in row[1:4]] for row in group(table, "Explained variance")])
    assert_allclose(explained, model.explained_.to_numpy().T * [[1], [100], [100]], atol=0.0501)
    oblique = rotation in ("oblimin", "promax", "promax-spss")
    assert ("Factor correlations" in [one.heading for one in table.groups]) is oblique
    if oblique:
        rows = group(table, "Factor correlations")
        assert [row[a + 1] for a, row in enumerate(rows)] == ["—"] * 3
        assert_allclose(
            [value(rows[a][b + 1]) for a, b in ((1, 0), (2, 0), (2, 1))], model.factor_correlations_[[1, 2, 2], [0, 0, 1]], atol=0.00501
        )


def test_note_has_the_sample_the_method_and_the_fit() -> None:
    X = answers(0)
    X.iloc[0] = np.nan
    with pytest.warns(UserWarning, match="no answer"):
        model = dfact.FactorAnalysis(3, rotation="oblimin").fit(X)
    note, fit = loadings_table(model).note, model.fit_
    assert note.startswith("*N* = 599. Extraction by minimum residuals with oblique oblimin rotation (γ = 0, without Kaiser normalization)")
    promax = {
        rotation: loadings_table(dfact.FactorAnalysis(3, rotation=rotation).fit(X.iloc[1:])).note for rotation in ("promax", "promax-spss")
    }
    assert "promax rotation (κ = 4, with Kaiser normalization of loadings and target, as in the R package psych)" in promax["promax"]
    assert "promax rotation (κ = 4, Kaiser normalization of the target alone, as in SPSS)" in promax["promax-spss"]
    assert "from Pearson correlations of the participants who answered both items of a pair (pairwise)" in note
    assert f"χ²({fit['df']:.0f}) = {fit['chi_square']:.2f}" in note
    for name in ("rmsea", "cfi", "tli", "srmr"):
        (found,) = re.findall(rf"{name.upper()} = (−?[\d.]+\d)", note)
        assert_allclose(value(found), fit[name], atol=0.000501)
    polychoric = loadings_table(dfact.FactorAnalysis(3, correlation="polychoric", missing="listwise").fit(answers(1))).note
    assert "polychoric correlations of the participants who answered all items (listwise)" in polychoric
    assert "χ²" not in polychoric  # its distribution would need the covariances of the estimates
    assert "are descriptive" in polychoric


def test_note_of_smoothed_correlations_has_the_residuals_alone() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 9)) + rng.normal(size=(30, 1))
    X[rng.random(X.shape) < 0.5] = np.nan
    with pytest.warns(UserWarning, match="were smoothed"):
        model = dfact.FactorAnalysis(2).fit(X)
    assert model.smoothed_
    note = loadings_table(model).note
    assert "The correlations were smoothed." in note
    assert re.search(r"SRMR = \.\d{3}\.$", note)
    assert "nan" not in note
    assert "RMSEA" not in note


def test_other_factors_have_no_communalities() -> None:
    M = planted_answers(100, 12, 3, 0)
    for model in (
        dfact.ICQF(3).fit(M, confounders={"age": np.arange(100) % 9}),
        dfact.NMF(3).fit(M),
        PoissonMF(3).fit(counts(0, 80, 12)),
    ):
        table = loadings_table(model)
        assert table.headings == ["Item", *model.get_feature_names_out()]
        assert sum(len(one.rows) for one in table.groups) == 12
        for one in table.groups:
            for _, *cells in one.rows:
                largest = max(value(cell.text) for cell in cells)
                assert all(value(cell.text) == largest for cell in cells if cell.bold)
        assert ("adjusted for confounders" in table.note) is isinstance(model, dfact.ICQF)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("GradeOfMembership", {"method": "srsc", "random_state": 0}), ("ExpectileMF", {}), ("Admixture", {"ploidy": 6})],
)
def test_components_that_are_no_factors_of_items_are_refused(
    name: str, parameters: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = getattr(dfact, name)(2, **parameters)
    dfact.save_model(model.fit(np.rint(planted_answers(60, 8, 2, 0) + 1)), tmp_path / "m")
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "t.md"), "--style", "apa"]) == 1
    assert "expected a model with factors of items" in capsys.readouterr().err
    assert not (tmp_path / "t.md").exists()


def test_labels_cannot_run() -> None:
    labels = [*EVIL, "| a || b", "*bold* _it_ `code` [x](javascript:alert(1)) ~~no~~", "two\nlines", "\\"]
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, len(labels))), columns=labels)
    table = loadings_table(dfact.FactorAnalysis(2).fit(X), dict(zip(labels, labels[::-1], strict=True)))
    page = render_tables([table])
    assert not re.findall(r"<(script|img)", page)
    names = [unescape(name) for name in re.findall(r'<th scope="row"[^>]*>(.*?)</th>', page, re.DOTALL)]
    assert {f"{label}. {text}" for label, text in zip(labels, labels[::-1], strict=True)} <= set(names)
    lines = [line for line in as_markdown([table]).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {5}
    items = "\n".join(line for line in lines if "Factor" not in line and ":--" not in line)
    assert not re.search(r"(?<!\\)(?:\\\\)*[<>`\[\]_~$]", items)


@pytest.mark.parametrize(
    ("given", "decimals", "bounded", "expected"),
    [
        (0.456, 2, True, ".46"),
        (-0.456, 2, True, "−.46"),
        (-0.004, 2, True, ".00"),
        (1.02, 2, True, "1.02"),
        (-0.004, 2, False, "0.00"),
        (1234.5, 1, False, "1,234.5"),
        (np.nan, 2, True, "—"),
    ],
)
def test_numbers(given: float, decimals: int, bounded: bool, expected: str) -> None:
    assert number(given, decimals, bounded=bounded) == expected


def test_commands_write_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = answers(0)
    dfact.import_array(X.to_numpy(), tmp_path / "d.zarr", column_labels=list(X))
    dfact.save_model(dfact.FactorAnalysis(3).fit(tmp_path / "d.zarr"), tmp_path / "m")
    (tmp_path / "items.csv").write_text(
        "item,text,scale,key\n" + "".join(f"Q{j},Statement {j},S{j % 3},{-1 if j > 5 else 1}\n" for j in range(9))
    )
    for name in ("t.md", "t.html"):
        arguments = [str(tmp_path / name), "--items", str(tmp_path / "items.csv"), "--style", "apa"]
        assert main(["export", str(tmp_path / "m"), *arguments]) == 0
        text = (tmp_path / name).read_text()
        assert "Statement 4" in text
        assert "Factor correlations" in text
        assert main(["describe", str(tmp_path / "d.zarr"), *arguments, "--overwrite"]) == 0
        text = (tmp_path / name).read_text()
        assert "Q7. Statement 7 (R)" in text
        assert "Statistics of 9 Items" in text
        assert "Reliability of 3 Scales" in text
    description = dfact.describe(tmp_path / "d.zarr", scales=tmp_path / "items.csv")
    row = next(line for line in (tmp_path / "t.md").read_text().splitlines() if line.startswith("| S1 "))
    assert_allclose(value(row.split(" | ")[2]), description.scales.loc["S1", "alpha"], atol=0.00501)
    for command in (["export", str(tmp_path / "m")], ["describe", str(tmp_path / "d.zarr")]):
        assert main([*command, str(tmp_path / "u.csv"), "--style", "apa"]) == 1
        assert "ends in '.csv', expected one of .html, .md" in capsys.readouterr().err
        assert main([*command, str(tmp_path / "u.md")]) == 1
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "u.md"), "--style", "apa", "--suppress", "0.3"]) == 2
    assert not (tmp_path / "u.md").exists()
