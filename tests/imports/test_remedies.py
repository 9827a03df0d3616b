"""Each remedy that a message of an import proposes: the command line runs it, and the dataset holds the right values."""

import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest

import dfact
from dfact import ParameterError
from dfact.cli.main import main
from dfact.imports.readers.number_marks import NumberMarks
from tests.cases import every, needing
from tests.imports.test_import_table import answers_of

NAN = np.nan


def text_file(content: str, name: str = "t.csv", encoding: str = "utf-8") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content.encode(encoding))
        return folder / name

    return write


def labelled(folder: Path) -> Path:
    frame = pd.DataFrame({"a": [1.0, 2, 3, 1], "b": [1.0, 2, 7, 2]})
    levels = {1: "no", 2: "yes", 3: "both"}
    pyreadstat.write_sav(frame, str(folder / "t.sav"), variable_value_labels={"a": levels, "b": levels})
    return folder / "t.sav"


def doubtful(folder: Path) -> Path:
    frame = pd.DataFrame({"a": [1.0, 2, 3, 9, 8], "b": [1.0, 2, 3, 2, 1]})
    pyreadstat.write_sav(frame, str(folder / "t.sav"), variable_value_labels={"a": {1: "no", 2: "yes", 3: "both", 9: "Refused", 8: "DK"}})
    return folder / "t.sav"


def sheets(folder: Path) -> Path:
    book = openpyxl.Workbook()
    for name, value in (("north", 1), ("south", 2)):
        sheet = book.create_sheet(name)
        sheet.append(["a", "b"])
        sheet.append([value, 5])
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx"


@dataclass
class Case:
    """An import that fails, the end of its message from the remedies on, and what they give."""

    write: Callable[[Path], Path]
    remedy: str
    """Pattern whose groups are the options of each remedy."""
    right: Sequence[Sequence[Sequence[float]]]
    """Answers for each group."""
    options: Sequence[str] = ()
    changes: dict[str, str] = field(default_factory=dict)
    """What a user fills in."""


COLUMN = "id,q\n1,{}\n2,{}\n"
CASES = {
    "decimal": Case(text_file('q,r\n"1,54",3\n"12,5",4\n'), r"say (--decimal ,)$", [[[1.54, 3], [12.5, 4]]]),
    "semicolons": Case(text_file("q;r\n1,540;3\n12,5;4\n"), r"say (--decimal ,)$", [[[1.54, 3], [12.5, 4]]]),
    "thousands or decimal": Case(
        text_file('q,r\n"1,277",3\n802,4\n'),
        r"say (--thousands ,) if .* '1,277' is 1277, or (--decimal ,) if it is 1\.277$",
        [[[1277, 3], [802, 4]], [[1.277, 3], [802, 4]]],
    ),
    "thousands": Case(text_file('q\n"1,277"\n"1,234,567"\n802\n-12\n'), r"say (--thousands ,)$", [[[1277], [1234567], [802], [-12]]]),
    "thousands and decimals": Case(text_file('q\n"1,277"\n802.5\n'), r"say (--thousands ,)$", [[[1277], [802.5]]]),
    "points": Case(text_file("q;r\n1.234.567,5;1\n802;2\n"), r"say (--decimal , --thousands \.)$", [[[1234567.5, 1], [802, 2]]]),
    "spaces": Case(text_file("q;r\n1 234;1\n802.5;2\n"), r"say (--thousands space)$", [[[1234, 1], [802.5, 2]]]),
    "narrow spaces": Case(
        text_file("q;r\n1\u202f234\u202f567,25;1\n802;2\n"), r"say (--decimal , --thousands space)$", [[[1234567.25, 1], [802, 2]]]
    ),
    "apostrophes": Case(text_file("q;r\n1'234.5;1\n802;2\n"), r"say (--thousands apostrophe)$", [[[1234.5, 1], [802, 2]]]),
    "encoding": Case(text_file("Größe,q\n1,2\n", encoding="cp1252"), r"say (--encoding cp1252), latin-1 or mac-roman$", [[[1, 2]]]),
    "delimiter": Case(
        text_file("q:r\n1:2\n3:4\n", "t.dat"),
        r"name the separator: delimiter= \((--delimiter)\)$",
        [[[1, 2], [3, 4]]],
        changes={"--delimiter": "--delimiter :"},
    ),
    "levels": Case(
        text_file("q,r\noften,never\nnever,never\nnever,often\n"),
        r'say (--levels ".*") in their order$',
        [[[1, 2], [2, 2], [2, 1]]],
        changes={'--levels "q,r: never<often"': '--levels "q,r: often<never"'},
    ),
    "missing code": Case(
        doubtful,
        r"\((--missing a=8,9), or (--not-missing a=8,9)\)$",
        [[[1, 1], [2, 2], [3, 3], [NAN, 2], [NAN, 1]], [[1, 1], [2, 2], [3, 3], [9, 2], [8, 1]]],
    ),
    "far code": Case(
        text_file("a,b\n1,1\n2,5\n5,2\n4,4\n3,3\n99,5\n"),
        r"\((--missing a=99), or (--not-missing a=99)\)$",
        [[[1, 1], [2, 5], [5, 2], [4, 4], [3, 3], [NAN, 5]], [[1, 1], [2, 5], [5, 2], [4, 4], [3, 3], [99, 5]]],
    ),
    "unlabelled": Case(
        labelled,
        r"declare it in missing= \((--missing)\), or pass unlabelled='keep' \((--unlabelled keep)\)$",
        [[[1, 1], [2, 2], [3, NAN], [1, 2]], [[1, 1], [2, 2], [3, 7], [1, 2]]],
        changes={"--missing": "--missing 7"},
    ),
    "text among numbers": Case(
        text_file("q,r\n1,3\nill,4\n5,6\n7,8\n"),
        r"declare it in missing= \((--missing ill)\)",
        [[[1, 3], [NAN, 4], [5, 6], [7, 8]]],
    ),
    "empty row": Case(text_file("id,q,r\n1,1,2\n2,,\n3,3,4\n"), r"\((--empty-rows drop)\)$", [[[1, 2], [3, 4]]], ["--items", "q,r"]),
    "range": Case(
        text_file("q\n1\n2\n7\n"),
        r"in missing= \((--missing)\), or widen valid_range= \((--valid-range)\)$",
        [[[1], [2], [NAN]], [[1], [2], [7]]],
        ["--valid-range", "1", "5", "--empty-rows", "drop"],
        {"--missing": "--missing 7", "--valid-range": "--valid-range 1 7"},
    ),
    "reversal": Case(
        text_file("q,r\n1,2\n4,3\n"),
        r"\((--valid-range)\)$",
        [[[1, 3], [4, 2]]],
        ["--reverse", "r"],
        {"--valid-range": "--valid-range 1 4"},
    ),
    "sheet": Case(sheets, r"choose one with sheet= \((--sheet)\)$", [[[2, 5]]], changes={"--sheet": "--sheet south"}),
    "header rows": Case(text_file("Tired?,,Ok?\n,Again?,Response\n1,2,3\n"), r"say (--header-rows 2)$", [[[1, 2, 3]]]),
}


_OF_FORMATS = {"missing code", "unlabelled", "sheet"}


@pytest.mark.parametrize("name", needing("formats", _OF_FORMATS.__contains__, CASES))
def test_the_remedies_of_a_message_give_the_right_answers(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    source = case.write(tmp_path)
    command = ["import", str(source), str(tmp_path / "d.zarr"), "--overwrite", *([] if "--items" in case.options else ["--items", "*"])]
    assert main([*command, *case.options]) == 1
    message = capsys.readouterr().err.strip()
    found = re.search(case.remedy, message)
    assert found, message
    assert len(found.groups()) == len(case.right)
    for remedy, right in zip(found.groups(), case.right, strict=True):
        said = shlex.split(case.changes.get(remedy, remedy))
        with warnings.catch_warnings(action="error"):
            assert main([*command, *case.options, *said]) == 0, capsys.readouterr().err
        expected = [row for row in right if not np.isnan(row).all()]
        np.testing.assert_allclose(answers_of(dfact.open_dataset(tmp_path / "d.zarr")), expected, rtol=1e-6)


CONFOUNDERS = {
    "decimal": (["1,5", "22,75", "3"], r"(--decimal ,)", [1.5, 22.75, 3]),
    "thousands": (["1,500.5", "802", "3"], r"(--thousands ,)", [1500.5, 802, 3]),
    "spaces": (["1 500", "802,25", "3"], r"(--decimal , --thousands space)", [1500, 802.25, 3]),
    "dates": (["1980-01-01", "1990-07-02", "2000-01-01"], r"\((--confounder a:continuous)\)", [1980, 1990 + 182 / 365, 2000]),
}


@pytest.mark.parametrize("kind", CONFOUNDERS)
def test_the_remedies_for_confounders_give_the_right_values(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells, remedy, right = CONFOUNDERS[kind]
    source, given = tmp_path / "t.csv", "a" if kind == "dates" else "a:continuous"
    days = pd.date_range("1950-01-01", periods=30, freq="YS").strftime("%Y-%m-%d")
    pd.DataFrame({"q": np.arange(30) % 4, "a": [*days[: 30 - len(cells)], *cells] if kind == "dates" else cells * 10}).to_csv(
        source, index=False
    )
    command = ["import", str(source), str(tmp_path / "d.zarr"), "--items", "q", "--overwrite", "--confounder"]
    assert main([*command, given]) == 1
    said = shlex.split(re.search(remedy, capsys.readouterr().err)[1])  # type: ignore[index]
    assert main([*command, *(said[1:] if kind == "dates" else [given, *said])]) == 0
    values = dfact.open_dataset(tmp_path / "d.zarr").confounders["a"]  # type: ignore[index]
    np.testing.assert_allclose(values[-3:], right)


@every(
    cell=["1,5", "12,345", "1 234", "1.234,5", "1'234", "x", "1,23,456", "1,2345,678"],
    others=[(), ("1,5",), ("1,234,567",), ("802",), ("x", "")],
)
def test_what_a_remedy_names_makes_the_cell_a_number(cell: str, others: tuple[str, ...]) -> None:
    remedy = NumberMarks().remedy(cell, others)
    apart = (cell in ("1'234", "1,23,456") and "1,5" in others) or (cell not in ("12,345", "1,23,456") and "1,234,567" in others)
    assert (remedy is None) == (apart or cell in ("x", "1,2345,678"))
    for options in re.findall(r"(?:--\w+ \S+ ?)+", remedy or ""):
        names = dict(re.findall(r"--(\w+) (\S+)", options))
        marks = NumberMarks.of_options(names.get("decimal"), names.get("thousands"))
        assert all(float(marks.plain(each)) for each in (cell, *others) if each not in ("x", ""))


@pytest.mark.parametrize("marks", [("x", None), (".", "."), (",", ","), (".", "x"), (None, "")])
def test_marks_that_are_none_are_refused(marks: tuple[str | None, str]) -> None:
    with pytest.raises(ParameterError, match=r"(decimal|thousands) is"):
        NumberMarks.of_options(*marks)


def test_thousands_in_all_places(tmp_path: Path) -> None:
    """Parts, confounders, weights, and items that are read as text."""
    path = tmp_path / "t.csv"
    numbers = np.random.default_rng(5).integers(-3_000_000, 3_000_000, 2000)
    lines = [f'"{x:,}","{abs(x):,}.5","{x:,}",{"NA" if i % 7 else "."}' for i, x in enumerate(numbers.tolist())]
    path.write_text("\n".join(["q,w,age,r", *lines]) + "\n")
    dataset = dfact.import_table(
        path, tmp_path / "d.zarr", items="q", thousands=",", weight="w", confounders=["age"], missing={"q": "none"}
    )
    np.testing.assert_array_equal(answers_of(dataset)[:, 0], numbers)
    np.testing.assert_array_equal(dataset.weights, abs(numbers) + 0.5)
    np.testing.assert_array_equal(dataset.confounders["age"], numbers)
