"""Exported tables of loadings and factors: labels, order, signs, suppressed entries, atomic writes."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.export.files import (
    write_confounder_effects,
    write_confounder_impact,
    write_confounder_loadings,
    write_loadings,
    write_model_factors,
)
from dfact.report.presenters.base import model_text
from tests.conftest import planted_answers


def read(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path, index_col=0) if path.suffix == ".csv" else pd.read_parquet(path).set_index("item")
    return table.rename(index=str)


def fitted(seed: int) -> tuple[Any, NDArray[np.float64]]:
    M = planted_answers(200, 12, 3, seed)
    names = [f"item {j}, “{j}”" for j in range(12)]
    return dfact.ICQF(3).fit(pd.DataFrame(M, columns=names)), M


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_loadings_are_those_of_the_model(seed: int, ending: str, tmp_path: Path) -> None:
    model, _ = fitted(seed)
    write_loadings(model, tmp_path / f"t{ending}")
    table = read(tmp_path / f"t{ending}")
    assert list(table.index) == list(model.column_labels_)
    assert list(table) == list(model.get_feature_names_out())
    assert_allclose(table, model.loadings_[list(table)], rtol=1e-6)


@pytest.mark.needs("questionnaires")
def test_all_tables_have_the_order_and_the_names_of_the_model(tmp_path: Path) -> None:
    model, _ = fitted(0)
    turned = [2, 0, 1]  # so that the factors are not sorted by size
    model.components_, model.factors_ = model.components_[turned], model.factors_[:, turned]
    write_loadings(model, tmp_path / "loadings.csv")
    write_model_factors(model, tmp_path / "factors.csv")
    names = list(model.get_feature_names_out())
    for name in ("loadings", "factors"):
        assert list(read(tmp_path / f"{name}.csv")) == names
    assert [line.split(":")[0] for line in model_text(model).splitlines() if line.startswith(names[0][:-1])] == names
    from dfact.questionnaires.apa.loadings import loadings_table

    cells = [[float(cell.text) for cell in row[1:4]] for group in loadings_table(model).groups for row in group.rows]
    assert_allclose(np.max(cells, axis=0), model.loadings_.max(), atol=0.006)


@pytest.mark.needs("questionnaires")
def test_small_loadings_are_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = dfact.FactorAnalysis(2).fit(rng.normal(size=(300, 2)) @ rng.normal(size=(2, 8)) + rng.normal(size=(300, 8)))
    write_loadings(model, tmp_path / "t.csv", below=0.3)
    table, loadings = read(tmp_path / "t.csv"), model.loadings_
    assert_array_equal(table.isna(), loadings.abs() < 0.3)
    assert table.isna().to_numpy().any()
    assert_allclose(table.stack(), loadings.where(loadings.abs() >= 0.3).stack())
    with pytest.raises(dfact.ParameterError, match="below is -1"):
        write_loadings(model, tmp_path / "t.csv", below=-1, overwrite=True)


def test_loadings_of_a_tensor_name_the_slices_of_all_modes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.random((size, 2)) for size in (20, 3, 2)))
    data = dfact.import_array(Z, tmp_path / "d.zarr", column_labels=["Q1", "Q2", "Q3"], mode_labels=[["intake", "discharge"]])
    write_loadings(dfact.ElasticCP(2, lam=0.01, max_iter=3, random_state=0).fit(data), tmp_path / "loadings.csv")
    assert list(pd.read_csv(tmp_path / "loadings.csv")["slice"]) == ["Q1", "Q2", "Q3", "mode 3: intake", "mode 3: discharge"]


def test_stored_factors_and_their_labels(tmp_path: Path) -> None:
    M = planted_answers(30, 8, 2, 0) + 1
    stored = dfact.import_array(M, tmp_path / "d.zarr", row_labels=[f"p{i}" for i in range(30)])
    model = dfact.GradeOfMembership(2, random_state=0).fit(stored)
    assert hasattr(model.memberships_, "chunks")
    write_model_factors(model, tmp_path / "t.csv")
    table = read(tmp_path / "t.csv")
    assert list(table.index) == [f"p{i}" for i in range(30)]
    assert list(table) == ["class1", "class2"]
    assert_allclose(table, np.asarray(model.memberships_), atol=1e-7)


@pytest.mark.further
def test_export_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    M = planted_answers(60, 8, 2, 1)
    model = dfact.ICQF(2).fit(M, confounders={"age": np.arange(60) % 17 + 0.5})
    dfact.save_model(model, tmp_path / "m")
    for what in ("loadings", "factors", "confounders", "effects", "impact"):
        assert main(["export", str(tmp_path / "m"), str(tmp_path / f"{what}.csv"), "--table", what]) == 0
    assert set(read(tmp_path / "loadings.csv")) == {"F1", "F2"}
    assert len(read(tmp_path / "factors.csv")) == 60
    assert list(read(tmp_path / "confounders.csv")) == ["age", "1-age", "intercept"]
    assert_allclose(read(tmp_path / "effects.csv")["age"], model.confounder_effects_["age"])
    assert_allclose(pd.read_csv(tmp_path / "impact.csv", index_col="factor")["age"], model.confounder_impact_["age"])
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "t.csv"), "--table", "impact", "--suppress", "0.1"]) == 2
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "loadings.csv")]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "t.parquet"), "--suppress", "0.1"]) == 0
    table = read(tmp_path / "t.parquet")
    assert table.isna().to_numpy().any()
    assert table.min(axis=None) >= 0.1
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "t.zarr")]) == 1
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "t.csv"), "--table", "factors", "--suppress", "1"]) == 2
    assert not list(tmp_path.glob("*.incomplete*"))
    with pytest.raises(dfact.ParameterError, match="fitted without confounders"):
        write_confounder_loadings(dfact.ICQF(2).fit(M), tmp_path / "n.csv")


@pytest.mark.needs("questionnaires")
def test_effects_and_impact_have_their_intervals(tmp_path: Path) -> None:
    M = planted_answers(150, 8, 2, 1)
    known = pd.DataFrame({"sex": np.where(np.arange(150) % 3, "f", "m"), "age": np.arange(150) % 17 + 0.5})
    model: Any = dfact.ICQF(2).fit(M, confounders=known)
    stability = dfact.selection.bootstrap(model, M, 3, confounders=known, random_state=0)
    model.stability_ = stability
    write_confounder_effects(model, tmp_path / "e.parquet")
    write_confounder_impact(model, tmp_path / "i.parquet")
    for name, parts, own in (("e", "confounder", model.confounder_effects_), ("i", "impact", model.confounder_impact_)):
        table = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert list(table)[1:6] == ["sex=m − sex=f", *(f"sex=m − sex=f, {part}" for part in ("mean", "low", "high", "se"))]
        assert_allclose(table["age"], own["age"])
        for part in ("mean", "low", "high", "se"):
            assert_allclose(table[f"age, {part}"], getattr(stability, f"{parts}_{part}")[1])
    dfact.save_model(model, tmp_path / "m")
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "t.md"), "--table", "effects", "--style", "apa"]) == 0
    text = (tmp_path / "t.md").read_text()
    assert "| Item | Estimate | Mean of refits | 95% CI |" in text
    assert "age: " in text.split("**Anchor**")[1]
    with pytest.raises(dfact.ParameterError, match="fitted without confounders"):
        write_confounder_effects(dfact.ICQF(2).fit(M), tmp_path / "n.csv")


def test_transform_writes_in_the_same_order(tmp_path: Path) -> None:
    stored = dfact.import_array(planted_answers(60, 8, 3, 2), tmp_path / "d.zarr")
    dfact.save_model(dfact.ICQF(3).fit(stored), tmp_path / "m")
    assert main(["transform", str(tmp_path / "m"), str(tmp_path / "d.zarr"), str(tmp_path / "new.csv")]) == 0
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "own.csv"), "--table", "factors"]) == 0
    pd.testing.assert_frame_equal(read(tmp_path / "new.csv"), read(tmp_path / "own.csv"))


NAMES = ["=1+1", "+Q2", "-Q3", "@SUM(A1)", "\tQ5", "-7", "+1.5e3", "Q8"]
"""Labels of which a spreadsheet would interpret the first five."""


def test_cells_are_no_formulas(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    model: Any = dfact.ICQF(2).fit(pd.DataFrame(planted_answers(100, 8, 2, 0), columns=NAMES), confounders={"=age": np.arange(100) % 7})
    given = {"texts": {"Q8": "=cmd|' /C calc'!A0", "-7": "plain \x08"}, "scales": {"Q8": "@s"}}
    for ending in (".csv", ".parquet", ".xlsx"):
        write_loadings(model, tmp_path / f"t{ending}", **given)
        write_confounder_loadings(model, tmp_path / f"c{ending}", **given)
    inert = [f"'{name}" for name in NAMES[:5]] + NAMES[5:]
    table = pd.read_csv(tmp_path / "t.csv", dtype={"item": str}, keep_default_na=False)
    assert list(table["item"]) == inert
    assert list(table.columns[:3]) == ["item", "text", "scale"]
    assert list(table.iloc[-1, 1:3]) == ["'=cmd|' /C calc'!A0", "'@s"]
    assert "'=age=0" in pd.read_csv(tmp_path / "c.csv")
    table = pd.read_parquet(tmp_path / "t.parquet")
    assert list(table["item"]) == NAMES
    assert table["text"].iloc[-1] == "=cmd|' /C calc'!A0"
    for name, sheet in (("t", "loadings"), ("c", "confounders")):
        rows = list(openpyxl.load_workbook(tmp_path / f"{name}.xlsx")[sheet].iter_rows())
        assert [row[0].value for row in rows[1:]] == NAMES
        assert rows[-1][1].value == "=cmd|' /C calc'!A0"
        texts = [cell for row in rows for cell in row if isinstance(cell.value, str)]
        assert {(cell.data_type, cell.number_format) for cell in texts} == {("s", "@")}
        assert rows[6][1].value == "plain \ufffd"
    loadings = [[cell.value for cell in row[3:]] for row in openpyxl.load_workbook(tmp_path / "t.xlsx")["loadings"].iter_rows(min_row=2)]
    assert_allclose(loadings, table.iloc[:, 3:], rtol=1e-6)


@pytest.mark.further
def test_texts_and_scales_come_from_the_codebook_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = tuple(dfact.Item(f"Q{j}", f"Statement {j}", scale="calm" if j < 3 else "") for j in range(6))
    labels = [item.name for item in items]
    dataset = dfact.import_array(planted_answers(80, 6, 2, 0), tmp_path / "d.zarr", column_labels=labels, codebook=dfact.Codebook(items))
    dfact.save_model(dfact.ICQF(2).fit(dataset), tmp_path / "m")
    (tmp_path / "items.csv").write_text("item,text,scale\nQ0,Other words,\nQ5,,open\n")
    (tmp_path / "foreign.csv").write_text("item,text\nX1,Foreign\n")
    pytest.importorskip("openpyxl")
    for ending, read_table in ((".csv", pd.read_csv), (".parquet", pd.read_parquet), (".xlsx", partial(pd.read_excel, engine="openpyxl"))):
        out = str(tmp_path / f"t{ending}")
        assert main(["export", str(tmp_path / "m"), out]) == 0
        table: Any = read_table(out)
        assert list(table["text"]) == [f"Statement {j}" for j in range(6)]
        assert list(table["scale"].fillna("")) == ["calm"] * 3 + [""] * 3
        assert main(["export", str(tmp_path / "m"), out, "--items", str(tmp_path / "items.csv"), "--overwrite"]) == 0
        table = read_table(out)
        assert list(table["text"]) == ["Other words"] + [f"Statement {j}" for j in range(1, 6)]
        assert list(table["scale"].fillna("")) == ["calm"] * 3 + ["", "", "open"]
    assert main(["export", str(tmp_path / "m"), out, "--items", str(tmp_path / "foreign.csv"), "--overwrite"]) == 1
    assert "texts are for X1" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "f.csv"), "--table", "factors", "--items", str(tmp_path / "items.csv")]) == 2


def test_workbooks_need_openpyxl_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(dfact.DfactError, match=r"need openpyxl.*pip install 'dfact\[tables\]'"):
        write_loadings(fitted(0)[0], tmp_path / "t.xlsx")
    assert not (tmp_path / "t.xlsx").exists()


@pytest.mark.needs("questionnaires")
def test_statistics_of_a_factor_analysis_at_full_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(4)
    M = np.rint(3 + rng.normal(size=(300, 2)) @ rng.normal(size=(2, 9)) + rng.normal(size=(300, 9)))
    stored = dfact.import_array(M, tmp_path / "d.zarr", column_labels=[f"Q{j}" for j in range(9)])
    model: Any = dfact.FactorAnalysis(2, rotation="oblimin").fit(stored)
    groups = np.repeat(["a", "b"], 150)
    model.comparison_ = dfact.selection.compare_groups(model, M, groups, n_resamples=30, test=False, random_state=0)
    dfact.save_model(model, tmp_path / "m")

    def exported(table: str) -> pd.DataFrame:
        assert main(["export", str(tmp_path / "m"), str(tmp_path / f"{table}.csv"), "--table", table]) == 0
        return pd.read_csv(tmp_path / f"{table}.csv", index_col=0)

    Phi, R = exported("factor-correlations"), exported("item-correlations")
    assert_allclose(Phi, model.factor_correlations_, rtol=1e-12)
    assert_allclose(R, np.corrcoef(M.T), rtol=1e-6)
    table, loadings = exported("communalities"), model.loadings_
    assert_allclose(table["h2"], np.einsum("jr,rs,js->j", loadings, Phi, loadings), rtol=1e-6)
    assert_allclose(table["h2"] + table["uniqueness"], 1, atol=1e-4)  # the diagonal of R
    fit = exported("fit")["value"]
    assert_allclose(fit[list(model.fit_.index)], model.fit_, rtol=1e-12)
    assert fit["explained_share"] == pytest.approx(model.explained_share_, rel=1e-12)
    found, names = exported("groups"), list(model.get_feature_names_out())
    assert list(found["factor"]) == names
    assert_allclose(found["congruence"], model.comparison_.factors(names)["congruence"], rtol=1e-12)
    assert_allclose(found["impact"], model.comparison_.impact(names)["impact"], rtol=1e-12)
    openpyxl = pytest.importorskip("openpyxl")
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "h.xlsx"), "--table", "communalities"]) == 0
    sheet = openpyxl.load_workbook(tmp_path / "h.xlsx")["communalities"]
    assert [cell.value for cell in next(iter(sheet.rows))] == ["item", "h2", "uniqueness"]
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "t.csv"), "--table", "fit", "--suppress", "0.1"]) == 2
    dfact.save_model(fitted(0)[0], tmp_path / "icqf")
    assert main(["export", str(tmp_path / "icqf"), str(tmp_path / "t.csv"), "--table", "communalities"]) == 1
    assert "the ICQF has no communalities, expected a fitted FactorAnalysis" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "icqf"), str(tmp_path / "t.csv"), "--table", "groups"]) == 1
    assert main(["export", str(tmp_path / "icqf"), str(tmp_path / "fit.parquet"), "--table", "fit"]) == 0
