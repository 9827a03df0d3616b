"""Imports with dictionaries: what REDCap, UK Biobank and codebooks say of a table, and their events and instances as a mode."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact import DataError, Dataset, ParameterError, import_table
from dfact.cli.main import main
from tests.formats.test_dictionaries import CODINGS, DICTIONARY, FIELDS, INPUTS, REDCAP_HEADER, needs_inputs

# The codes of some made choices follow the alphabet, as a program may number them.
pytestmark = pytest.mark.filterwarnings("ignore:.*follow the alphabet:UserWarning")


def values(dataset: Dataset) -> NDArray[np.float64]:
    """Answers in the units of the file, NaN for missing."""
    stored = np.asarray(dataset.source.read_native(0, dataset.shape[0]), np.float64)
    stored[stored == dataset.missing_code] = np.nan
    return stored + dataset.offset.reshape(1, -1, *(1,) * (stored.ndim - 2))


def decisions(notes: list[str]) -> list[str]:
    """Return the notes without that about answers of 0."""
    return [note for note in notes if "answered 0 to all items" not in note]


def write(path: Path, rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return path


@pytest.fixture
def redcap(tmp_path: Path) -> Path:
    """The dictionary of a REDCap project."""
    (tmp_path / "fields.csv").write_text(f"{REDCAP_HEADER}\n{FIELDS}")
    return tmp_path / "fields.csv"


def test_a_redcap_export_needs_no_other_statement(redcap: Path, tmp_path: Path) -> None:
    header = ["record_id", "email", "mood", "sex", "smoker", "height", "pain", "meds___1", "meds____9", "drugs_complete"]
    rows = [
        ["a", "x@y", 2, "TRUE", 1, "1,54", -1, 0, 0, 0],
        ["b", "", "", "FALSE", "", "1,8", 10, 0, 1, 0],
        ["c", "", 0, 0, 0, "", 3, 0, 0, 2],
    ]
    data = write(tmp_path / "export.csv", [header, *rows])
    notes: list[str] = []
    dataset = import_table(data, tmp_path / "o.zarr", dictionary=redcap, note=notes.append)
    assert list(dataset.row_labels) == ["a", "b", "c"]
    assert list(dataset.column_labels) == ["mood", "sex", "smoker", "pain"]
    np.testing.assert_array_equal(values(dataset), [[2, 1, 1, -1], [np.nan, 0, np.nan, 10], [0, 0, 0, 3]])
    np.testing.assert_array_equal(dataset.valid_range + dataset.offset[:, None], [[0, 2], [0, 1], [0, 1], [-1, 10]])
    assert dataset.codebook is not None
    assert dataset.codebook["mood"].levels == ((0, "Bad, or worse"), (1, "So so"), (2, "Good"))
    assert dataset.codebook["sex"].wording == "Sex"
    assert notes == ["export.csv: the items are mood, sex, smoker, pain"]
    dataset = import_table(data, tmp_path / "p.zarr", dictionary=redcap, items=["meds", "height"], note=notes.append)
    expected = [[np.nan, np.nan, 1.54], [0, 1, 1.8], [0, 0, np.nan]]
    np.testing.assert_allclose(values(dataset), expected, rtol=1e-6)
    assert dataset.codebook is not None
    assert [(each.code, each.count) for each in dataset.codebook["meds___1"].missing] == [("form not opened", 1)]
    assert decisions(notes[1:]) == [
        "export.csv: the boxes are missing in 1 row(s) in which 'drugs_complete' is 0 or empty and none is ticked"
    ]
    with pytest.raises(DataError, match=r"column 'email' is marked as an identifier"):
        import_table(data, tmp_path / "q.zarr", dictionary=redcap, items=["mood", "email"])
    everything = import_table(data, tmp_path / "q.zarr", dictionary=redcap, items="*", confounders="height")
    assert set(everything.column_labels) == {"mood", "sex", "smoker", "pain", "meds___1", "meds____9"}


def test_missing_data_codes_may_be_texts_among_numbers(redcap: Path, tmp_path: Path) -> None:
    (tmp_path / "project.csv").write_text('project_id,missing_data_codes\n7,"-99, Refused | NASK, Not asked"\n')
    data = write(tmp_path / "e.csv", [["record_id", "mood", "sex"], ["a", "NASK", 1], ["b", -99, 0], ["c", 1, "NASK"]])
    dataset = import_table(data, tmp_path / "o.zarr", dictionary=redcap, codings=tmp_path / "project.csv", empty_rows="drop")
    np.testing.assert_array_equal(values(dataset), [[np.nan, 1], [np.nan, 0], [1, np.nan]])
    assert dataset.codebook is not None
    assert [(each.code, each.label, each.count) for each in dataset.codebook["mood"].missing] == [("-99", "Refused", 1), ("NASK", "", 1)]


@pytest.mark.parametrize("value", [3, -1, "Good"])
def test_values_outside_the_choices_are_errors(value: Any, redcap: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "e.csv", [["record_id", "mood"], ["a", 1], ["b", value]])
    with pytest.raises(DataError, match=rf"e.csv: line 3, column 'mood' holds .*{value}"):
        import_table(data, tmp_path / "o.zarr", dictionary=redcap, items="mood")
    assert not (tmp_path / "o.zarr").exists()


EVENTS = [["a", "v1", "41", 2, ""], ["a", "v2", "", 1, 1], ["b", "v2", "", "", 0], ["b", "v3", "", "", ""], ["b", "v1", "30", 0, ""]]


def events(folder: Path) -> Path:
    return write(folder / "long.csv", [["record_id", "redcap_event_name", "age", "mood", "sex"], *EVENTS])


def test_events_become_a_mode(redcap: Path, tmp_path: Path) -> None:
    data = events(tmp_path)
    said: dict[str, Any] = {"dictionary": redcap, "items": ["mood", "sex"], "third_mode": "events"}
    notes: list[str] = []
    dataset = import_table(data, tmp_path / "o.zarr", confounders=["age"], note=notes.append, **said)
    assert decisions(notes) == ["long.csv: left out, as none of the items has an answer there: v3"]
    assert dataset.shape == (2, 2, 2)
    assert [list(labels) for labels in dataset.mode_labels if labels is not None] == [["v1", "v2"]]  # v3 has no answer
    assert (list(dataset.row_labels), list(dataset.column_labels)) == (["a", "b"], ["mood", "sex"])
    np.testing.assert_array_equal(values(dataset), [[[2, 1], [np.nan, 1]], [[0, np.nan], [np.nan, 0]]])
    assert dataset.confounders is not None
    assert dataset.confounders["age"].tolist() == ["41", "30"]
    assert dataset.codebook is not None
    assert [(item.name, item.n_empty, item.levels[0]) for item in dataset.codebook] == [
        ("mood", 1, (0, "Bad, or worse")),
        ("sex", 2, (0, "Female")),
    ]
    again = import_table(data, tmp_path / "p.zarr", confounders=["age"], n_readers=1, **said)
    assert again.fingerprint == dfact.open_dataset(tmp_path / "o.zarr").fingerprint
    header = ["record_id", "redcap_event_name", "mood", "redcap_event_name"]
    with pytest.raises(DataError, match=r"has 2 columns named 'redcap_event_name', expected one"):
        import_table(write(tmp_path / "twice.csv", [header, ["a", "v1", 1, "v2"]]), tmp_path / "q.zarr", items="mood")


def test_one_event_becomes_a_table(redcap: Path, tmp_path: Path) -> None:
    data = events(tmp_path)
    dataset = import_table(data, tmp_path / "o.zarr", dictionary=redcap, items="mood", event="v1")
    np.testing.assert_array_equal(values(dataset), [[2], [0]])
    with pytest.raises(DataError, match=r"long.csv: line 4 has no answer"):
        import_table(data, tmp_path / "p.zarr", dictionary=redcap, items="mood", event="v2")
    with pytest.raises(DataError, match=r"long.csv has 3 events, v1 \(2 row\(s\)\), v2 \(2 row\(s\)\), v3 \(1 row\(s\)\), expected"):
        import_table(data, tmp_path / "p.zarr", items="mood")  # recognized without a dictionary
    with pytest.raises(ParameterError, match=r"event is 'v1' for export.csv, which has no column of events"):
        import_table(write(tmp_path / "export.csv", [["record_id", "mood"], ["a", 1]]), tmp_path / "p.zarr", items="mood", event="v1")


def test_errors_in_events_name_the_record_and_the_event(redcap: Path, tmp_path: Path) -> None:
    header = ["record_id", "redcap_event_name", "mood"]
    data = write(tmp_path / "long.csv", [header, ["a", "v1", 1], ["b", "v1", 0], ["a", "v2", 7]])
    with pytest.raises(DataError, match=r"long.csv: record 'a', column 'mood at v2' holds 7, which has no label"):
        import_table(data, tmp_path / "o.zarr", dictionary=redcap, items="mood", third_mode="events")
    data = write(tmp_path / "long.csv", [header, ["a", "v1", 1], ["b", "v1", ""], ["b", "v2", ""]])
    with pytest.raises(DataError, match=r"record 'b' has no answer"):
        import_table(data, tmp_path / "o.zarr", dictionary=redcap, items="mood", third_mode="events")
    dataset = import_table(data, tmp_path / "o.zarr", dictionary=redcap, items="mood", third_mode="events", empty_rows="drop")
    assert dataset.shape == (1, 1, 1)


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_does_not_matter_but_for_that_of_records(seed: int, by_event: bool, redcap: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, 3, (9, 2, 3))
    rows = [[f"r{i}", f"v{k}", answers[i, 0, k], int(answers[i, 1, k] > 0)] for i in range(9) for k in range(3)]
    if by_event:
        rows = [row for k in range(3) for row in rows if row[1] == f"v{k}"]
    data = write(tmp_path / "long.csv", [["record_id", "redcap_event_name", "mood", "sex"], *rows])
    dataset = import_table(data, tmp_path / "o.zarr", dictionary=redcap, third_mode="events")
    np.testing.assert_array_equal(values(dataset), np.stack([answers[:, 0], answers[:, 1] > 0], axis=1))


def biobank(folder: Path) -> dict[str, Path]:
    (folder / "fields.tsv").write_text(DICTIONARY)
    (folder / "codings.tsv").write_text(CODINGS)
    return {"dictionary": folder / "fields.tsv", "codings": folder / "codings.tsv"}


BIOBANK = [
    ["eid", "20510-0.0", "20510-1.0", "20510-2.0", "21059-0.0", "21059-1.0", "6142-0.0"],
    ["11", 1, 4, "", -600, -602, -7],
    ["12", -818, 1, "", -313, "", -3],
    ["13", 4, 4, -818, -602, -600, 1],
]


def test_instances_become_a_mode(tmp_path: Path) -> None:
    data = write(tmp_path / "ukb.tsv", BIOBANK)
    notes: list[str] = []
    dataset = import_table(
        data, tmp_path / "o.zarr", items=["20510", "p21059"], third_mode="instances", note=notes.append, **biobank(tmp_path)
    )
    assert (list(dataset.row_labels), list(dataset.column_labels)) == (["11", "12", "13"], ["20510", "21059"])
    assert [list(labels) for labels in dataset.mode_labels if labels is not None] == [["0", "1"]]
    expected = [[[1, 4], [-600, -602]], [[np.nan, 1], [np.nan, np.nan]], [[4, 4], [-602, -600]]]
    np.testing.assert_array_equal(values(dataset), expected)
    assert dataset.codebook is not None
    bothered = dataset.codebook["21059"]
    assert (bothered.wording, bothered.n_empty) == ("Bothered", 1)
    assert [(each.code, each.label, each.count) for each in bothered.missing] == [("-313", "Not applicable", 1)]
    assert [(each.code, each.count) for each in dataset.codebook["20510"].missing] == [("-818", 1)]  # the one at 2 is left out with it
    assert notes[0] == "ukb.tsv: left out, as none of the items has an answer there: 2"
    assert notes[1:] == ["ukb.tsv: negative codes that are answers: 21059 (-602 'Bothered a lot', -600 'Not bothered at all')"]


def test_one_instance_becomes_a_table_of_fields(tmp_path: Path) -> None:
    data = write(tmp_path / "ukb.tsv", BIOBANK)
    dataset = import_table(data, tmp_path / "o.zarr", items=["20510", "21059"], instance=1, **biobank(tmp_path))
    np.testing.assert_array_equal(values(dataset), [[4, -602], [1, np.nan], [4, -600]])
    assert list(dataset.column_labels) == ["20510", "21059"]
    found = r"ukb.tsv has 3 instances, 0 \(2 column\(s\)\), 1 \(2 column\(s\)\), 2 \(1 column\(s\)\), expected a third mode"
    with pytest.raises(DataError, match=found):
        import_table(data, tmp_path / "p.zarr", items=["20510", "21059"])
    with pytest.raises(ParameterError, match=r"instance is '3', expected one of 0"):
        import_table(data, tmp_path / "p.zarr", items=["20510", "21059"], instance=3)
    with pytest.raises(ParameterError, match=r"third_mode is 'instances' for a.csv, whose items have no instances"):
        import_table(write(tmp_path / "a.csv", [["q"], [1]]), tmp_path / "p.zarr", items="q", third_mode="instances")


def test_negative_codes_are_asked_for_without_a_coding(tmp_path: Path) -> None:
    data = write(tmp_path / "ukb.tsv", BIOBANK)
    asked = r"6142-0.0: 1 answer\(s\) are -7 .*; 6142-0.0: 1 answer\(s\) are -3 \(the others are 1\), which nothing declares"
    with pytest.raises(DataError, match=asked):
        import_table(data, tmp_path / "o.zarr", items="6142-0.0")
    said: dict[str, Any] = {"missing": {"6142-0.0": -3}, "not_missing": {"6142-0.0": -7}, "empty_rows": "drop"}
    np.testing.assert_array_equal(values(import_table(data, tmp_path / "o.zarr", items="6142-0.0", **said)), [[-7], [1]])
    dataset = import_table(data, tmp_path / "p.zarr", items="6142-0.0", empty_rows="drop", **biobank(tmp_path))
    np.testing.assert_array_equal(values(dataset), [[-7], [1]])


def test_a_codebook_gives_levels_missing_codes_and_keying(tmp_path: Path) -> None:
    book = tmp_path / "book.csv"
    book.write_text("item,text,levels,missing,keying\nq1,I worry,1=no|2=some|3=yes,9=refused,1\nq2,I rest,1=no|2=some|3=yes,9,-1\n")
    data = write(tmp_path / "d.csv", [["id", "q1", "q2"], ["a", 1, 3], ["b", 9, 2], ["c", 3, 1]])
    dataset = import_table(data, tmp_path / "o.zarr", dictionary=book, items="q*", reverse="@Keying")
    np.testing.assert_array_equal(values(dataset), [[1, 1], [np.nan, 2], [3, 3]])
    assert dataset.codebook is not None
    assert [item.text for item in dataset.codebook] == ["I worry", "I rest (reversed)"]
    with pytest.raises(ParameterError, match=r"reverse is '@keying', a column of a dictionary, expected one"):
        import_table(data, tmp_path / "p.zarr", items="q*", reverse="@keying")
    with pytest.raises(ParameterError, match=r"codings is .* without a dictionary"):
        import_table(data, tmp_path / "p.zarr", items="q*", codings=book)
    book.write_text("item,text\nother,x\n")
    with pytest.raises(DataError, match=r"book.csv describes no column of d.csv"):
        import_table(data, tmp_path / "p.zarr", items="q*", dictionary=book)


def test_events_and_instances_from_the_command_line(redcap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["import", str(events(tmp_path)), str(tmp_path / "o.zarr"), "--items", "mood,sex", "--dictionary", str(redcap)]
    assert main(said) != 0
    assert "--third-mode events, --event v1" in capsys.readouterr().err
    assert main([*said, "--third-mode", "events"]) == 0
    assert dfact.open_dataset(tmp_path / "o.zarr").shape == (2, 2, 2)
    capsys.readouterr()
    files = [text for option, path in biobank(tmp_path).items() for text in (f"--{option}", str(path))]
    one = ["--items", "20510,21059", "--instance", "0", "--empty-rows", "drop"]
    assert main(["import", str(write(tmp_path / "ukb.tsv", BIOBANK)), str(tmp_path / "u.zarr"), *one, *files]) == 0
    assert "negative codes that are answers: 21059" in capsys.readouterr().out
    assert dfact.open_dataset(tmp_path / "u.zarr").shape == (2, 2)


@pytest.mark.parametrize("stacked", [False, True])
def test_columns_without_answers_are_left_out_unless_they_are_named(stacked: bool, redcap: Path, tmp_path: Path) -> None:
    header = ["record_id", "redcap_event_name", "mood", "sex", "smoker", "pain"]
    data = write(tmp_path / "long.csv", [header, ["a", "v1", 2, "", "", 5], ["b", "v1", 0, "", "", ""], ["a", "v2", "", "", 1, ""]])
    said: dict[str, Any] = {"dictionary": redcap} | ({"third_mode": "events"} if stacked else {"event": "v1"})
    notes: list[str] = []
    dataset = import_table(data, tmp_path / "o.zarr", note=notes.append, **said)
    unanswered, items = ("sex", ["mood", "smoker", "pain"]) if stacked else ("sex, smoker", ["mood", "pain"])
    assert decisions(notes) == [f"long.csv: left out, as they have no answer: {unanswered}", f"long.csv: the items are {', '.join(items)}"]
    assert list(dataset.column_labels) == items
    named = import_table(data, tmp_path / "p.zarr", items=items, **said)
    assert dataset.fingerprint == named.fingerprint
    assert dataset.codebook == named.codebook
    with pytest.raises(DataError, match=r"long.csv: column 'sex' has no answer, expected at least one"):
        import_table(data, tmp_path / "q.zarr", items=["mood", "sex"], **said)
    write(data, [header, ["a", "v1", "", "", "", ""], ["b", "v1", "", "", "", ""]])
    with pytest.raises(DataError, match=r"no answer"):
        import_table(data, tmp_path / "q.zarr", empty_rows="drop", **said)


@needs_inputs
def test_the_shared_projects(tmp_path: Path) -> None:
    folder = INPUTS / "redcap"
    trial = {"source": folder / "clinical-trial-1/data.csv", "dictionary": folder / "clinical-trial-1/dictionary.csv"}
    with pytest.raises(DataError, match=r"ethnicity: 10 answer\(s\) are 2 'Missing'; race: 14 answer\(s\) are 6 'Missing'"):
        import_table(path=tmp_path / "a.zarr", **trial)
    dataset = import_table(path=tmp_path / "a.zarr", missing={"race": 6, "ethnicity": 2}, **trial)
    assert dataset.shape == (500, 3)
    long = {"source": folder / "longitudinal/data.csv", "dictionary": folder / "longitudinal/dictionary.csv"}
    dataset = import_table(path=tmp_path / "b.zarr", items="pmq*", third_mode="events", codings=folder / "longitudinal/event.csv", **long)
    assert dataset.shape == (3, 4, 6)
    np.testing.assert_array_equal(values(dataset)[0, 0], [2, 1, 3, 0, np.nan, np.nan])
    repeated = {name: folder / f"repeating-instruments/{file}.csv" for name, file in (("source", "data"), ("dictionary", "dictionary"))}
    dataset = import_table(path=tmp_path / "c.zarr", items=["bp_systolic"], third_mode="events", **repeated)
    np.testing.assert_array_equal(values(dataset), [[[110, 111, 112]], [[114, np.nan, np.nan]]])
    height = {"source": folder / "decimal-comma/data.csv", "dictionary": folder / "decimal-comma/dictionay.csv"}
    dataset = import_table(path=tmp_path / "d.zarr", items=["height", "bmi"], **height)
    np.testing.assert_allclose(values(dataset), [[1.54, 22.1], [1.84, 27.3], [1.95, 32.5], [1.61, 17.7]], rtol=1e-6)


@pytest.mark.further
@needs_inputs
def test_the_dictionary_of_the_bfi_gives_wordings_and_keys(tmp_path: Path) -> None:
    said: dict[str, Any] = {"object": "bfi", "dictionary": INPUTS / "r/bfi.dictionary.rda", "valid_range": (1, 6)}
    dataset = import_table(INPUTS / "r/bfi.rda", tmp_path / "o.zarr", items="[ACENO][1-5]", reverse="@Keying", **said)
    assert dataset.codebook is not None
    turned = [item.name for item in dataset.codebook if item.is_reversed]
    assert turned == ["A1", "C4", "C5", "E1", "E2", "N1", "N2", "N3", "N4", "N5", "O2", "O5"]  # keyed for emotional stability
    assert dataset.codebook["A1"].wording == "Am indifferent to the feelings of others."
    assert np.nanmean(values(dataset)[:, 0]) == pytest.approx(4.586566, abs=1e-6)
    assert np.isnan(values(dataset)).sum() == 508
