"""Imports of files that others wrote, compared with figures of PSPP, R and pandas (oracles.json)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dfact
from tests.conftest import REAL_DATA
from tests.imports.test_import_table import answers_of

INPUTS = REAL_DATA / "inputs"
pytestmark = pytest.mark.skipif(not INPUTS.is_dir(), reason="the shared example files are absent")

AGREEMENT = "Strongly Disagree<Disagree<No Opinion<Agree<Strongly Agree"
HOTEL = {
    "spss/hotel.sav": {},
    "stata/hotel_stata8.dta": {},
    "text/hotel.csv": {"items": "v*", "levels": AGREEMENT, "delimiter": "semicolon"},
    "xlsx/hotel.xlsx": {"items": "v*", "levels": AGREEMENT},
}


def imported(name: str, folder: Path, **options: Any) -> dfact.Dataset:
    return dfact.import_table(INPUTS / name, folder / "d.zarr", overwrite=True, **options)


def alpha(X: np.ndarray) -> float:
    """Cronbach's alpha."""
    k = X.shape[1]
    return k / (k - 1) * (1 - X.var(axis=0, ddof=1).sum() / X.sum(axis=1).var(ddof=1))


@pytest.mark.further
def test_the_same_answers_in_all_formats(tmp_path: Path) -> None:
    datasets = {name: imported(name, tmp_path, **options) for name, options in HOTEL.items()}
    assert len({dataset.fingerprint for dataset in datasets.values()}) == 1
    described = [datasets[name].codebook for name in ("spss/hotel.sav", "stata/hotel_stata8.dta")]
    assert described[0].fingerprint == described[1].fingerprint
    bare = [datasets[name].codebook for name in ("text/hotel.csv", "xlsx/hotel.xlsx")]
    assert bare[0].fingerprint == bare[1].fingerprint
    assert described[0]["v1"].levels == bare[0]["v1"].levels
    np.testing.assert_allclose(answers_of(datasets["text/hotel.csv"]).mean(axis=0), [2.588235, 2.294118, 3.411765, 2.470588, 2], atol=1e-6)
    # SAS transport files have names in capitals and no labels.
    transport = imported("sas/hotel.xpt", tmp_path, items="*", valid_range=(1, 5))
    np.testing.assert_array_equal(answers_of(transport), answers_of(datasets["text/hotel.csv"]))
    assert transport.codebook["V1"].wording == described[0]["v1"].wording


@pytest.mark.parametrize(("reverse", "expected"), [((), -1.112798), (("v3",), 0.635319)])
def test_reversed_items_give_the_alpha_of_pspp(reverse: tuple[str, ...], expected: float, tmp_path: Path) -> None:
    dataset = imported("spss/hotel.sav", tmp_path, items=["v1", "v3", "v4"], reverse=reverse)
    assert alpha(answers_of(dataset)) == pytest.approx(expected, abs=1e-6)


def test_declared_missing_codes_of_the_health_survey(tmp_path: Path) -> None:
    counts = {
        "SMKNOW": (17934, {"7": 16, "8": 3, "9": 5}),
        "VITANY": (0, {"7": 146, "8": 1152, "9": 84}),
        "VITMUL": (15916, {"9": 9}),
        "HERBSUPP": (0, {"7": 127, "8": 1152, "9": 72}),
        "VIGFREQW": (0, {"95": 19125, "96": 823, "97": 160, "98": 131, "99": 205}),
        "LIFT": (0, {"6": 44, "7": 28, "8": 1152, "9": 121}),
    }
    means = {"SMKNOW": 2.06909, "DESIREWT": 4.617062, "MOVE1": 2.113996, "LIFT": 2.224467, "VIGFREQW": 3.759598}
    items = [*counts, "MODFREQW", "STRFREQW", "DESIREWT", "MOVE1"]
    with pytest.warns(UserWarning, match="codes of 'MOVE1' follow the alphabet: 1 'SIT during"):
        dataset = imported("spss/nhis2000_subset.sav", tmp_path, items=items, empty_rows="drop")
    assert dataset.dropped_rows == 318
    for name, (n_empty, codes) in counts.items():
        item = dataset.codebook[name]
        assert (item.n_empty, {missing.code: missing.count for missing in item.missing}) == (n_empty, codes)
    totals = {name: sum(missing.count for missing in dataset.codebook[name].missing) for name in items[6:]}
    assert totals == {"MODFREQW": 16856, "STRFREQW": 25612, "DESIREWT": 2014, "MOVE1": 1636}
    found = dict(zip(items, np.nanmean(answers_of(dataset), axis=0), strict=True))
    assert {name: found[name] for name in means} == pytest.approx(means, abs=1e-6)


def test_recoding_restores_a_code_that_the_file_declares_missing(tmp_path: Path) -> None:
    notes: list[str] = []
    imported("spss/nhis2000_subset.sav", tmp_path, items="VIGFREQW", empty_rows="drop", note=notes.append)
    assert any("19125 answer(s) of VIGFREQW are 95 'Never', which is declared missing" in note for note in notes)
    dataset = imported("spss/nhis2000_subset.sav", tmp_path, items="VIGFREQW", recode={"VIGFREQW": {95: 0}}, empty_rows="drop")
    assert dataset.shape[0] == 32374 - 20444 + 19125
    assert dataset.codebook["VIGFREQW"].changes == ("95 recoded to 0",)


def test_items_are_asked_where_the_file_describes_several_groups(tmp_path: Path) -> None:
    with pytest.raises(dfact.DataError, match=r"same answers: VITANY, VITMUL, HERBSUPP \(1 Yes, 2 No\)"):
        imported("spss/nhis2000_subset.sav", tmp_path)
    for name in ("spss/poll_cs_sample.zsav", "stata/nlsw88.dta"):
        with pytest.raises(dfact.DataError, match=r"which of its \d+ columns are items"):
            imported(name, tmp_path)


def test_labels_without_answers_of_the_poll(tmp_path: Path) -> None:
    dataset = imported("spss/poll_cs_sample.zsav", tmp_path, items="opinion_gastax")
    values, counts = np.unique(answers_of(dataset), return_counts=True)
    assert dict(zip(values, counts, strict=True)) == {1: 1975, 2: 2554, 3: 2374, 4: 2546}


def test_the_personality_inventory_of_r(tmp_path: Path) -> None:
    options = {"items": [f"{trait}{j}" for trait in "ACENO" for j in range(1, 6)], "object": "bfi"}
    dataset = imported("r/bfi.rda", tmp_path, **options)
    values = answers_of(dataset)
    assert dataset.shape == (2800, 25)
    assert (np.isnan(values).sum(), np.isnan(values[:, 0]).sum(), np.isnan(values[:, 18]).sum()) == (508, 16, 36)
    assert np.nanmean(values[:, 0]) == pytest.approx(2.413434, abs=1e-6)
    dictionary = INPUTS / "r" / "bfi.dictionary.rda"
    keyed = imported("r/bfi.rda", tmp_path, **options, dictionary=dictionary, reverse="@Keying", valid_range=(1, 6))
    reversed_items = [item.name for item in keyed.codebook if item.is_reversed]
    # The dictionary keys the last trait as emotional stability.
    assert reversed_items == ["A1", "C4", "C5", "E1", "E2", *(f"N{j}" for j in range(1, 6)), "O2", "O5"]
    assert np.nanmean(answers_of(keyed)[:, 0]) == pytest.approx(4.586566, abs=1e-6)
    assert keyed.codebook["A1"].wording == "Am indifferent to the feelings of others."


def test_factors_of_r(tmp_path: Path) -> None:
    mass = imported("r/mass.rda", tmp_path, items="*", levels={"Gender": ["Female", "Male"]})
    assert mass.shape == (20, 15)
    np.testing.assert_allclose(answers_of(mass).mean(axis=0)[:6], [1.3, 3.6, 3.35, 4.35, 2.5, 3.6])
    agreement = ["Strongly Disagree", "Disagree", "Neither", "Agree", "Strongly Agree"]
    scale = imported("r/sasr.rda", tmp_path, empty_rows="drop", levels={"*": agreement})
    values = answers_of(scale)
    assert scale.shape[1] == 63
    assert np.isnan(values).sum() + 63 * scale.dropped_rows == 8838
    np.testing.assert_allclose(np.nanmean(values, axis=0)[[0, 1, 62]], [3.377072, 3.912863, 3.827057], atol=1e-6)
    spi = imported("r/spi.rda", tmp_path, items="q_*")
    assert spi.shape == (4000, 135)
    assert spi.missing_rate == 0


def test_labelled_columns_of_haven(tmp_path: Path) -> None:
    labelled = imported("r/made_haven_labelled.rds", tmp_path, items="y", empty_rows="drop")
    np.testing.assert_array_equal(answers_of(labelled)[:, 0], [1, 2])
    assert labelled.codebook["y"].wording == "With missing"


def test_implausible_values_stay(tmp_path: Path) -> None:
    dataset = imported("spss/physiology.sav", tmp_path, items=["height", "weight"])
    values = answers_of(dataset)
    np.testing.assert_allclose([values.min(axis=0), values.max(axis=0)], [[179, -55.6], [1903, 92.07137]], rtol=1e-5)


def test_a_folder_of_parts_equals_one_file(tmp_path: Path) -> None:
    folder = INPUTS / "parquet" / "spark_hive"
    dataset = imported("parquet/spark_hive", tmp_path, items=["num", "catnum"], confounders=["cat"])
    files = sorted(folder.rglob("*.parquet"), key=lambda path: path.relative_to(folder).parts)
    assert len(files) == 48
    tables = [pq.ParquetFile(file).read() for file in files]
    keys = [dict(part.split("=") for part in file.parts if "=" in part) for file in files]
    one = pa.concat_tables(
        table.append_column("cat", pa.repeat(key["cat"], len(table))).append_column("catnum", pa.repeat(int(key["catnum"]), len(table)))
        for table, key in zip(tables, keys, strict=True)
    )
    pq.write_table(one, tmp_path / "one.parquet")
    single = dfact.import_table(tmp_path / "one.parquet", tmp_path / "one.zarr", items=["num", "catnum"], confounders=["cat"])
    assert single.fingerprint == dataset.fingerprint
    assert sorted(answers_of(dataset)[:, 0]) == list(range(2000))
    assert dataset.confounders["cat"].value_counts().to_dict() == {"fred": 1000, "freda": 1000}


def test_two_header_lines_and_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(dfact.DataError, match="0x8c at 641"):
        imported("text/star_wars.csv", tmp_path, items="*")
    order = "Very unfavorably<Somewhat unfavorably<Neither favorably nor unfavorably (neutral)<Somewhat favorably<Very favorably"
    options = {"encoding": "mac-roman", "header_rows": 2, "items": ["*Han Solo", "*Jar Jar Binks"]}
    dataset = imported("text/star_wars.csv", tmp_path, **options, levels=order, missing="Unfamiliar (N/A)", empty_rows="drop")
    counts = [np.bincount(column[~np.isnan(column)].astype(int), minlength=6)[1:].tolist() for column in answers_of(dataset).T]
    assert counts == [[1, 8, 44, 151, 610], [204, 102, 164, 130, 112]]
    unfamiliar = [item.missing[0].count for item in dataset.codebook]
    assert unfamiliar == [15, 109]
