"""Remedies for texts among answers: what the message says, followed as it stands, gives the right values."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest
import zarr

import dfact
from dfact.errors import DataError

NAN = np.nan


def answers(dataset: Any) -> np.ndarray[Any, Any]:
    values = zarr.open_group(str(dataset.path))["values"][:].astype(float)
    values[values == dataset.missing_code] = np.nan
    return values + np.asarray(dataset.offset)


def refused(source: Any, folder: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as raised:
        dfact.import_table(source, folder / "refused.zarr", items="q*", **settings)
    assert not (folder / "refused.zarr").exists()
    return str(raised.value)


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["ja", "nein", "weiß nicht", "ja"], [2, 1, NAN, 2]),
        (["Checked", "Unchecked", "Checked", "refused"], [2, 1, 2, NAN]),
        (["18-24", "5-17", "65+", "No answer"], [2, 1, 3, NAN]),
        (["10 always", "2 rarely", "1 never", "DK"], [3, 2, 1, NAN]),
        (["TRUE", "FALSE", "TRUE", "FALSE"], [2, 1, 2, 1]),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "frame"])
def test_a_proposed_order_has_no_place_for_no_answer(tmp_path: Path, words: list[str], right: list[float], kind: str) -> None:
    source: Any = pd.DataFrame({"q1": words, "q2": [1, 2, 3, 4]})
    if kind == "csv":
        source.to_csv(tmp_path / "words.csv", index=False)
        source = tmp_path / "words.csv"
    message = refused(source, tmp_path)
    order = re.search(r'--levels "q1: (.*?)" in their order', message)
    assert order is not None, message
    missing = [shlex.split(each)[1] for each in re.findall(r"--missing (?:'[^']*'|\S+)", message)]
    dataset = dfact.import_table(source, tmp_path / "words.zarr", items="q*", levels={"q1": order[1]}, missing=missing)
    np.testing.assert_array_equal(answers(dataset)[:, 0], right)


@pytest.mark.parametrize("texts", [["1,5", "2,5"], ["1,000", "2,500"], ["30%", "100%"], ["$30", "$4"], ["(3)", "(12)"], ["−3", "−12"]])
def test_numbers_in_another_notation_are_not_levels(tmp_path: Path, texts: list[str]) -> None:
    message = refused(pd.DataFrame({"q1": texts * 2, "q2": [1, 2, 3, 4]}), tmp_path)
    assert "write them as numbers such as -1234.5" in message
    assert "--levels" not in message


@pytest.mark.parametrize("cell", ["−3", "(3)", "3-", "2,5,1", "'3"])
def test_a_number_in_another_notation_is_to_be_written_as_one(tmp_path: Path, cell: str) -> None:
    (tmp_path / "t.csv").write_text(f'q1,q2\n1,2\n"{cell}",3\n2,4\n4,4\n', encoding="utf-8")
    assert "write it as a number such as -1234.5, or declare it" in refused(tmp_path / "t.csv", tmp_path)


@pytest.mark.parametrize(
    ("cell", "settings", "remedy", "right"),
    [
        ("1.234,5", {"decimal": ","}, {"decimal": ",", "thousands": "."}, 1234.5),
        ("1 234,5", {"decimal": ","}, {"decimal": ",", "thousands": "space"}, 1234.5),
        ("1\u00a0234,5", {"decimal": ","}, {"decimal": ",", "thousands": "space"}, 1234.5),
        ("1,23,456", {}, {"thousands": ","}, 123456),
        ("0,250", {}, {"decimal": ","}, 0.25),
    ],
)
def test_marks_that_are_still_to_be_named(tmp_path: Path, cell: str, settings: Any, remedy: Any, right: float) -> None:
    (tmp_path / "t.csv").write_text(f'q1;q2\n"{cell}";2\n802;3\n', encoding="utf-8")
    message = refused(tmp_path / "t.csv", tmp_path, **settings)
    assert message.endswith("say " + " ".join(f"--{name} {mark}" for name, mark in remedy.items()))
    dataset = dfact.import_table(tmp_path / "t.csv", tmp_path / "t.zarr", items="q*", shift=False, **remedy)
    np.testing.assert_allclose(answers(dataset)[:, 0], [right, 802], rtol=1e-7)


@pytest.mark.needs("formats")
def test_a_text_code_with_a_label_of_no_answer(tmp_path: Path) -> None:
    labels = {"1": "never", "2": "often", "3": "always", "R": "Refused"}
    frame = pd.DataFrame({"q1": ["1", "2", "R", "3"], "q2": ["3", "3", "1", "2"]})
    pyreadstat.write_sav(frame, str(tmp_path / "t.sav"), variable_value_labels={"q1": labels, "q2": labels})
    assert refused(tmp_path / "t.sav", tmp_path).endswith("if 'R' stands for a missing answer, say --missing R")
    dataset = dfact.import_table(tmp_path / "t.sav", tmp_path / "t.zarr", items="q*", missing="R")
    np.testing.assert_array_equal(answers(dataset), [[1, 3], [2, 3], [NAN, 1], [3, 2]])
    assert dataset.codebook is not None
    assert dataset.codebook["q1"].levels_text == "1 never, 2 often, 3 always"


@pytest.mark.parametrize("lines", [["How are you?,And now?"], ["How are you?,And now?", "1-5,1-5"]])
def test_further_lines_of_column_names(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["q1,q2", *lines, "1,2", "5,4"]) + "\n", encoding="utf-8")
    assert refused(tmp_path / "t.csv", tmp_path).endswith(f"names of columns, too, say --header-rows {len(lines) + 1}")
    dataset = dfact.import_table(tmp_path / "t.csv", tmp_path / "t.zarr", items="q*", header_rows=len(lines) + 1)
    np.testing.assert_array_equal(answers(dataset), [[1, 2], [5, 4]])


def test_a_first_answer_in_words_is_no_column_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,q1,q2\n1,ill,2\n2,3,4\n3,1,2\n", encoding="utf-8")
    assert "declare it in missing= (--missing ill)" in refused(tmp_path / "t.csv", tmp_path)
