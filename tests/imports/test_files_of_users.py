"""Files as users have them: each test makes a small one, and knows the right values."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyreadstat
import pytest
from pyarrow import feather

from dfact import DataError, import_table
from dfact.imports.coding.doubtful_codes import doubtful_labels
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.frames import InputFrame, open_frame
from tests.cases import every
from tests.imports.test_import_table import answers_of


def seconds_to_read(n_columns: int) -> float:
    names = [f"Q{j}" for j in range(n_columns)]
    table = open_frame(InputFrame(pd.DataFrame(np.ones((2, n_columns)), columns=names)))
    began = time.process_time()
    assert [cells.numbers.shape for cells in read_cells(table, names, [], [])] == [(2, n_columns)]
    return time.process_time() - began


def test_the_time_of_reading_grows_with_the_columns_not_with_their_square() -> None:
    seconds_to_read(100)  # what is imported and compiled once
    assert seconds_to_read(12_000) < 8 * min(seconds_to_read(3_000) for _ in range(3)) + 0.2


# ---------------------------------------------------------------- orders of texts

AGREES = np.random.default_rng(0).random((60, 6)) < np.repeat([[0.2], [0.8]], 30, axis=0)
AGREES[0] = [False, False, True, False, True, False]
YES_NO = {f"q{j}": np.where(AGREES[:, j], "Yes", "No").tolist() for j in range(6)}
"""Answers to six items; in two of them Yes is the first answer."""


def first_seen(cells: Sequence[str]) -> pa.DictionaryArray:
    """Return texts as polars and pyarrow encode them: numbered as they occur."""
    return pa.array(cells).dictionary_encode()


def as_views(cells: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return a dictionary as polars hands it over."""
    return pa.DictionaryArray.from_arrays(cells.indices, cells.dictionary.cast(pa.string_view()), ordered=cells.type.ordered)


def write_csv(rows: pa.Table, path: Path) -> Path:
    rows.to_pandas().to_csv(path.with_suffix(".csv"), index=False)
    return path.with_suffix(".csv")


def write_parquet(rows: pa.Table, path: Path) -> Path:
    pq.write_table(rows, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def write_arrow(rows: pa.Table, path: Path) -> Path:
    feather.write_feather(rows, str(path.with_suffix(".arrow")), compression="uncompressed")
    return path.with_suffix(".arrow")


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "pandas": lambda rows, _: rows.to_pandas(),
    "pyarrow": lambda rows, _: rows,
    "polars": lambda rows, _: pa.table({name: as_views(rows[name].combine_chunks()) for name in rows.column_names}),
}


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("kind", SOURCES)
def test_texts_numbered_as_they_occur_have_no_order(kind: str, tmp_path: Path) -> None:
    rows = pa.table({name: first_seen(cells) for name, cells in YES_NO.items()})
    assert {tuple(rows[name].combine_chunks().dictionary.to_pylist()) for name in YES_NO} == {("No", "Yes"), ("Yes", "No")}
    source = SOURCES[kind](rows, tmp_path / "t")
    with pytest.raises(DataError, match=r"'q0' holds texts, whose order is not known: 'No' \(\d+\), 'Yes' \(\d+\)"):
        import_table(source, tmp_path / "d.zarr", items="q*")
    dataset = import_table(source, tmp_path / "d.zarr", items="q*", levels={"q*": "No<Yes"})
    np.testing.assert_array_equal(answers_of(dataset), 1 + AGREES)
    from dfact import describe

    assert describe(dataset).scales["alpha"].iloc[0] == describe(1.0 + AGREES).scales["alpha"].iloc[0] > 0.7


@pytest.mark.parametrize("kind", SOURCES)
def test_the_remedy_for_texts_names_all_items_of_a_described_file(kind: str, tmp_path: Path) -> None:
    rows = pa.table({name: first_seen(cells) for name, cells in YES_NO.items()})
    source = SOURCES[kind](rows, tmp_path / "t")
    levels: dict[str, str] = {}
    while len(levels) < 6:
        with pytest.raises(DataError) as raised:
            import_table(source, tmp_path / "d.zarr", items="q*", levels=levels or None)
        names, order = re.search(r'--levels "(.*): (.*)" in their order', str(raised.value)).groups()
        assert order == "No<Yes"
        assert len(names.split(",")) == 6
        levels |= dict.fromkeys(names.split(","), order)
    assert np.nanmean(answers_of(import_table(source, tmp_path / "d.zarr", items="q*", levels=levels))) > 1


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind != "csv"])
def test_a_declared_order_is_taken(kind: str, tmp_path: Path) -> None:
    levels = pa.array(["never", "sometimes", "often"])
    rows = pa.table({f"q{j}": pa.DictionaryArray.from_arrays(pa.array([j, 2, 0]), levels, ordered=True) for j in range(2)})
    dataset = import_table(SOURCES[kind](rows, tmp_path / "t"), tmp_path / "d.zarr", items="q*")
    np.testing.assert_array_equal(answers_of(dataset), [[1, 2], [3, 3], [1, 1]])


@pytest.mark.parametrize("parts", [(["low", "high"], ["low", "mid", "high"]), (["low", "mid", "high"], ["low", "high"])])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", ["parts", "row groups"])
def test_parts_that_disagree_have_no_order(parts: tuple[list[str], list[str]], ordered: bool, kind: str, tmp_path: Path) -> None:
    tables = [
        pa.table({"q": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(levels), ordered=ordered), "n": [1, 2]})
        for levels in parts
    ]
    source = tmp_path / "t.parquet"
    if kind == "parts":
        source.mkdir()
        for i, rows in enumerate(tables):
            pq.write_table(rows, source / f"{i}.parquet")
    else:
        with pq.ParquetWriter(source, tables[0].schema) as writer:
            for rows in tables:
                writer.write_table(rows)
    with pytest.raises(DataError, match=r"'q' holds texts, whose order is not known: 'high' .*--levels"):
        import_table(source, tmp_path / "d.zarr", items="q")
    dataset = import_table(source, tmp_path / "d.zarr", items="q", levels="low<mid<high")
    np.testing.assert_array_equal(
        answers_of(dataset)[:, 0], [1 + ["low", "mid", "high"].index(levels[i]) for levels in parts for i in (0, 1)]
    )


# ---------------------------------------------------------------- codes that stand for no answer

NO_ANSWERS = {
    "English": "Refused|Declined to answer|Prefer not to say|Don't know|Don´t know|DK|NA|N/A|IAP|Inap.|Inapplicable"
    "|No answer|No response|No data|Not stated|Not answered|Not applicable|Does not apply|Can't choose"
    "|(99) Coding error|blank|Missing|Unknown|Not sure|Skipped",
    "German": "Weiß nicht|Keine Angabe|k.A.|Verweigert|Trifft nicht zu|Nicht erhoben|Unbekannt|Keine Antwort",
    "French": "Ne sait pas|NSP|Sans réponse|Refus|Non concerné|Ne souhaite pas répondre|Valeur manquante|N'a pas répondu",
    "Spanish": "No sabe|No contesta|NS/NC|No aplica|Sin respuesta|Prefiero no contestar|Se niega a responder|No procede",
    "Italian": "Non sa|Non risponde|Nessuna risposta|Non applicabile|Dato mancante|Preferisco non rispondere|Rifiuta",
    "Portuguese": "Não sabe|Não respondeu|Não se aplica|Recusa|Sem resposta|Ignorado|Prefiro não responder",
    "Dutch": "Weet niet|Geen antwoord|Weigert|Niet van toepassing|Wil niet zeggen|Onbekend|n.v.t.|Weet ik niet",
    "Scandinavian": "Vet ej|Inget svar|Vill inte svara|Ej relevant|Uppgift saknas|Ved ikke|Ubesvart|Ønsker ikke å svare",
    "others": "Nie wiem|Odmowa odpowiedzi|Не знаю|Затрудняюсь ответить|En osaa sanoa|Nevím|Δεν γνωρίζω|不知道|無回答|모름|Bilmiyorum",
}
SCALES = """never|rarely|sometimes|often|always
strongly disagree|disagree|not sure|agree|strongly agree
Did not apply to me at all|Applied to me to some degree|Applied to me very much
trifft nicht zu|trifft eher nicht zu|teils teils|trifft eher zu|trifft zu
not at all|several days|more than half the days|nearly every day
None|A little|A lot
not relevant|somewhat relevant|very relevant
Single|Married|Divorced|Widowed|Other
No|Sí
pas du tout d'accord|plutôt d'accord|tout à fait d'accord
nooit|soms|vaak|altijd
Unable to do|With difficulty|Without difficulty""".splitlines()


def numbered(labels: Sequence[str], first: float = 1) -> dict[float, str]:
    return {first + i: label for i, label in enumerate(labels)}


@every(language=NO_ANSWERS, code=[9.0, 6.0, 0.0, -9.0])
def test_labels_of_no_answer_are_in_doubt(language: str, code: float) -> None:
    answers = numbered(["never", "rarely", "sometimes", "often", "always"])
    labels = NO_ANSWERS[language].split("|")
    assert [label for label in labels if code not in doubtful_labels(answers | {code: label})] == []


def test_some_eighty_labels_in_eight_languages() -> None:
    assert len(NO_ANSWERS) > 8
    assert sum(len(labels.split("|")) for labels in NO_ANSWERS.values()) > 80


@every(scale=SCALES)
def test_labels_of_answers_are_not_in_doubt(scale: str) -> None:
    for first in (0.0, 1.0):
        assert doubtful_labels(numbered(scale.split("|"), first)) == ()


@every(codes=[(9.0,), (8.0, 9.0), (-1.0,), (-9.0, -8.0), (77.0, 88.0, 99.0), (99.0,), (-2147483648.0,)])
def test_labels_of_unknown_languages_are_in_doubt_by_sign_and_distance(codes: tuple[float, ...]) -> None:
    answers = numbered(["tidak pernah", "jarang", "kadang", "sering", "selalu"])
    assert doubtful_labels(answers | dict.fromkeys(codes, "tidak tahu")) == tuple(sorted(codes))


def asked(message: str, option: str = "missing") -> dict[str, list[str]]:
    """Return the codes by column that the options of a question name."""
    found = re.findall(rf' --{option} (?:"([^"]+)"|(\S+?))(?=,? |\)$)', message.replace("(--", "( --"))
    return {name: codes.split(",") for name, codes in ((first or second).split("=", 1) for first, second in found)}


def question(source: Any, folder: Path, **settings: Any) -> str:
    with pytest.raises(DataError, match="which nothing declares as missing") as raised:
        import_table(source, folder / "d.zarr", **settings)
    assert not (folder / "d.zarr").exists()
    return str(raised.value)


GSS = {0: "IAP", 1: "always wrong", 2: "almost always wrong", 3: "sometimes wrong", 4: "not wrong at all", 8: "DK", 9: "NA"}


@pytest.mark.needs("formats")
def test_codes_of_a_survey_are_asked_about(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    answers = rng.integers(1, 5, (100, 3)).astype(float)
    frame = pd.DataFrame(np.where(rng.random((100, 3)) < 0.15, rng.choice([0, 8, 9], (100, 3)), answers), columns=["a1", "a2", "a3"])
    pyreadstat.write_dta(frame, str(tmp_path / "g.dta"), variable_value_labels=dict.fromkeys(frame, GSS))
    message = question(tmp_path / "g.dta", tmp_path, items="a*")
    assert f"a1: {int((frame['a1'] == 0).sum())} answer(s) are 0 'IAP'; a1: {int((frame['a1'] == 8).sum())} answer(s) are 8 'DK'" in message
    assert asked(message) == {name: ["0", "8", "9"] for name in frame} == asked(message, "not-missing")
    dataset = import_table(tmp_path / "g.dta", tmp_path / "d.zarr", items="a*", missing=asked(message), empty_rows="drop", reverse="a3")
    right = np.array(frame.mask(frame.isin([0, 8, 9])))
    right[:, 2] = 5 - right[:, 2]
    np.testing.assert_array_equal(answers_of(dataset), right[~np.isnan(right).all(axis=1)])
    kept = import_table(tmp_path / "g.dta", tmp_path / "k.zarr", items="a*", not_missing=asked(message, "not-missing"))
    np.testing.assert_array_equal(answers_of(kept), frame)
    assert kept.codebook["a1"].levels == tuple((float(code), label) for code, label in GSS.items())


@pytest.mark.parametrize("code", [9, -9, 0, 99])
@pytest.mark.needs("formats")
def test_a_code_that_never_occurs_is_no_end_of_the_scale(code: int, tmp_path: Path) -> None:
    answers = pd.DataFrame(np.random.default_rng(1).integers(1, 6, (50, 3)).astype(float), columns=["v1", "v2", "v3"])
    labels = dict(enumerate(["never", "rarely", "sometimes", "often", "always"], start=1)) | {code: "no answer"}
    pyreadstat.write_sav(answers, str(tmp_path / "r.sav"), variable_value_labels=dict.fromkeys(answers, labels))
    dataset = import_table(tmp_path / "r.sav", tmp_path / "d.zarr", items="v*", reverse=["v2", "v3"])
    np.testing.assert_array_equal(answers_of(dataset), answers * [1, -1, -1] + [0, 6, 6])
    assert dataset.codebook["v1"].valid_range == (1, 5)


@pytest.mark.needs("formats")
def test_labels_of_codes_that_are_strings(tmp_path: Path) -> None:
    words = {"1": "never", "2": "sometimes", "3": "often", "9": "no answer"}
    frame = pd.DataFrame({"q1": list("1231239"), "q2": list("3321123"), "t": list("NSOOSNX")})
    labels: dict[str, Any] = {"q1": words, "q2": words, "t": {"N": "never", "S": "sometimes", "O": "often", "X": "refused"}}
    pyreadstat.write_sav(frame, str(tmp_path / "s.sav"), variable_value_labels=labels)
    message = question(tmp_path / "s.sav", tmp_path, items="q*")
    assert "q1: 1 answer(s) are 9 'no answer'" in message
    dataset = import_table(tmp_path / "s.sav", tmp_path / "d.zarr", items="q*", missing=asked(message))
    np.testing.assert_array_equal(answers_of(dataset)[:, 0], [1, 2, 3, 1, 2, 3, np.nan])
    assert dataset.codebook["q2"].levels == ((1, "never"), (2, "sometimes"), (3, "often"))
    with pytest.raises(DataError, match=r"'t' holds texts, whose order is not known: 'N' \(2\), 'O' \(2\), 'S' \(2\), 'X' \(1\)"):
        import_table(tmp_path / "s.sav", tmp_path / "e.zarr", items="t")
    texts = import_table(tmp_path / "s.sav", tmp_path / "e.zarr", items="t", levels={"t": "N<S<O"}, missing={"t": "X"}, empty_rows="drop")
    assert texts.codebook["t"].levels == ((1, "never"), (2, "sometimes"), (3, "often"))
    assert (texts.codebook["t"].missing[0].code, texts.codebook["t"].missing[0].label) == ("X", "refused")


def test_words_of_no_answer_in_a_declared_order_are_asked_about(tmp_path: Path) -> None:
    levels = ["Don't know", "low", "middle", "high"]
    frame = pd.DataFrame({f"q{j}": pd.Categorical(["low", "high", levels[j], "middle"], levels, ordered=True) for j in range(2)})
    message = question(frame, tmp_path, items="q*")
    assert "q0: 1 answer(s) are Don't know" in message
    dataset = import_table(frame, tmp_path / "d.zarr", items="q*", missing=asked(message), reverse="q1")
    np.testing.assert_array_equal(answers_of(dataset), [[1, 3], [3, 1], [np.nan, 3], [2, 2]])


# ---------------------------------------------------------------- confounders


@pytest.mark.needs("formats")
def test_codes_of_confounders_are_asked_about(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    age = rng.integers(18, 81, 100).astype(float)
    age[:10] = [98] * 6 + [99] * 4
    frame = pd.DataFrame(
        {"q1": rng.integers(1, 6, 100), "q2": rng.integers(1, 6, 100), "age": age, "sex": rng.choice([1, 2, 9], 100)}
    ).astype(float)
    labels: dict[str, Any] = {"age": {98: "Don't know", 99: "No answer"}, "sex": {1: "f", 2: "m", 9: "tidak tahu"}}
    pyreadstat.write_sav(frame, str(tmp_path / "c.sav"), variable_value_labels=labels)
    settings: dict[str, Any] = {"items": "q*", "confounders": ["age", "sex"]}
    message = question(tmp_path / "c.sav", tmp_path, **settings)
    assert "age: 6 value(s) are 98 \"Don't know\"; age: 4 value(s) are 99 'No answer'; sex: " in message
    remedy = asked(message, "confounder-missing")
    assert remedy == asked(message, "not-missing") == {"age": ["98", "99"], "sex": ["9"]}
    found = import_table(tmp_path / "c.sav", tmp_path / "d.zarr", confounder_missing=remedy, **settings).confounders
    assert found["age"].mean() == age[10:].mean()
    assert found["sex"].isna().sum() == (frame["sex"] == 9).sum()
    kept = import_table(tmp_path / "c.sav", tmp_path / "e.zarr", not_missing=remedy, **settings).confounders
    assert kept["age"].mean() == age.mean()


def test_negative_codes_of_uk_biobank_in_confounders(tmp_path: Path) -> None:
    values = [16, 18, -3, 21, 17, -1, -2, 15]
    frame = pd.DataFrame({"eid": range(8), "p20510_i0": [1, 2] * 4, "p845_i0": values})
    message = question(frame, tmp_path, items="p20510_i0", confounders=["p845_i0"])
    remedy = asked(message, "confounder-missing")
    assert remedy == {"p845_i0": ["-3", "-2", "-1"]}
    dataset = import_table(frame, tmp_path / "d.zarr", items="p20510_i0", confounders=["p845_i0"], confounder_missing=remedy)
    assert dataset.confounders["p845_i0"].astype(float).sum() == 87


def test_words_and_far_numbers_in_confounders(tmp_path: Path) -> None:
    frame = pd.DataFrame({"q": [1, 2] * 6, "site": ["north", "south", "unknown"] * 4, "age": [*range(30, 40), 999, 999]})
    message = question(frame, tmp_path, items="q", confounders=["site", "age"])
    assert asked(message, "confounder-missing") == {"site": ["unknown"], "age": ["999"]}


@pytest.mark.parametrize("kind", ["csv", "pandas"])
def test_dates_of_birth_are_years_if_they_are_declared_continuous(kind: str, tmp_path: Path) -> None:
    born = pd.date_range("1950-01-01", periods=40, freq="300D")
    frame = pd.DataFrame({"q": [1, 2] * 20, "born": born})
    frame.loc[3, "born"] = pd.NaT
    source: Any = frame
    if kind == "csv":
        source = tmp_path / "b.csv"
        frame.to_csv(source, index=False)
    with pytest.raises(DataError, match=r"'born' holds 39 dates, such as '1950-01-01.* \(--confounder born:continuous\)"):
        import_table(source, tmp_path / "d.zarr", items="q", confounders=["born"])
    found = import_table(source, tmp_path / "d.zarr", items="q", confounders={"born": "continuous"}).confounders["born"]
    right = born.year + (born.day_of_year - 1) / np.where(born.is_leap_year, 366, 365)
    np.testing.assert_allclose(np.delete(found, 3), np.delete(right, 3))
    assert np.isnan(found[3])


def test_a_level_for_each_participant_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"q": [1, 2] * 20, "code": [f"c{i}" for i in range(40)], "site": [f"s{i % 20}" for i in range(40)]})
    with pytest.raises(DataError, match=r"confounder 'code' has 40 levels in 40 participants, such as 'c0'"):
        import_table(frame, tmp_path / "d.zarr", items="q", confounders=["code"])
    assert import_table(frame, tmp_path / "d.zarr", items="q", confounders=["site"]).confounders["site"].nunique() == 20
