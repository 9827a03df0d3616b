"""Delimited text: encodings, delimiters, header lines, numbers as people write them, and parts that equal the complete file."""

import codecs
import csv
import gzip
import io
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.imports.readers.base import ReadOptions, Table
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import open_table
from dfact.imports.readers.text import delimited, text_files
from tests.conftest import REAL_DATA
from tests.imports.test_readers import TestCsv as CsvSuite
from tests.suites.reader import Columns, ReaderSuite, read

TEXTS = REAL_DATA / "inputs" / "text"


class EncodedSuite(ReaderSuite):
    """A file in the encoding of the options, after a byte order mark."""

    mark = b""
    options = ReadOptions(encoding="utf-16-le")

    def write(self, columns: Columns, path: Path) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        content = self.mark + text.getvalue().encode(self.options.encoding or "utf-8")
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)

    def position(self, row: int) -> str:
        return f"line {row + 2}"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delimited, "_BLOCK_BYTES", 1)


class TestUtf16(EncodedSuite):
    name = "t.csv"


class TestUtf16WithMark(EncodedSuite):
    name = "t.csv"
    mark = codecs.BOM_UTF16_LE

    def open(self, columns: Columns, folder: Path) -> Table:
        self.write(columns, folder / self.name)
        return open_table(folder / self.name)


class TestUtf16Gzipped(TestUtf16WithMark):
    name = "t.csv.gz"


class TestUtf8WithMark(EncodedSuite):
    name = "t.csv"
    mark = codecs.BOM_UTF8
    options = ReadOptions()


class TestWindowsEncoding(EncodedSuite):
    name = "t.csv"
    options = ReadOptions(encoding="cp1252")


class TestMacEncodingGzipped(EncodedSuite):
    name = "t.csv.gz"
    options = ReadOptions(encoding="mac-roman")


class TestDelimiterByName(CsvSuite):
    name = "t.csv"
    delimiter = "|"
    options = ReadOptions(delimiter="pipe")


class TestShortParts(CsvSuite):
    """A few rows to a part."""

    name = "t.csv"

    @pytest.fixture(autouse=True)
    def short_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delimited, "_PART_BYTES", 1000)


class TestSecondHeaderLine(CsvSuite):
    """Names in the first line, empty cells in the second."""

    name = "t.csv"
    options = ReadOptions(header_rows=2)

    def write(self, columns: Columns, path: Path) -> None:
        super().write({name: ["", *cells] for name, cells in columns.items()}, path)

    def position(self, row: int) -> str:
        return f"line {row + 3}"

    def test_a_file_without_rows_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"t.csv has a header but no rows"):
            self.open({"q": [], "id": []}, tmp_path)


def opened(tmp_path: Path, content: str | bytes, name: str = "t.csv", **options: Any) -> Table:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return open_table(tmp_path / name, ReadOptions(**options))


# encodings


def test_a_mark_decides_before_the_option(tmp_path: Path) -> None:
    assert opened(tmp_path, codecs.BOM_UTF8 + "é\n1\n".encode(), encoding="cp1252").columns == ["é"]
    assert opened(tmp_path, "é\n1\n".encode("utf-16"), encoding="cp1252").columns == ["é"]
    assert opened(tmp_path, "é\n1\n".encode("utf-32")).columns == ["é"]


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("before", ["", "1,é\n" * 3000], ids=["first", "later"])
def test_a_byte_of_another_encoding_is_named_with_its_position(before: str, gzipped: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(text_files, "_WINDOW_BYTES", 1001)
    start = f"q,x\n{before}2,".encode()
    content = start + b"\x8c\n"
    table = opened(tmp_path, gzip.compress(content) if gzipped else content, f"t.csv{'.gz' * gzipped}")
    message = f"byte 0x8c at {len(start)} is not UTF-8; say --encoding cp1252, latin-1 or mac-roman"
    with pytest.raises(DataError, match=message):
        read(table, ["q"], ["x"])
    with pytest.raises(DataError, match=message):
        read(table, [], ["x"])
    assert read(table, ["q"])[0][-1] == 2


def test_bytes_that_an_encoding_lacks_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="byte 0x81 at 2 is not cp1252; say --encoding"):
        read(opened(tmp_path, b"q\n\x81\n", encoding="cp1252"), [], ["q"])
    with pytest.raises(DataError, match=r"column names hold NUL characters, .* say --encoding utf-16-le"):
        opened(tmp_path, "q,x\n1,2\n".encode("utf-16-le"))


@pytest.mark.parametrize("name", ["nothing", "rot13", "hex"])
def test_unknown_encodings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=f"encoding is '{name}', expected a name such as utf-8"):
        opened(tmp_path, "q\n1\n", encoding=name)


# delimiters


@pytest.mark.parametrize("name", ["comma", "tab", "semicolon", "pipe", "space"])
def test_a_delimiter_is_named_or_found(name: str, tmp_path: Path) -> None:
    character = text_files.DELIMITERS[name]
    text = f"a{character}b\n1{character}2\n3{character}4\n"
    for option in (name, character):
        table = opened(tmp_path, text, "t.txt", delimiter=option)
        assert not table.notes
        np.testing.assert_array_equal(read(table, ["a", "b"])[0], [[1, 2], [3, 4]])
    found = opened(tmp_path, text)
    if name == "space":
        assert found.columns == ["a b"]
    else:
        np.testing.assert_array_equal(read(found, ["b"])[0], [[2], [4]])
    told = [f"t.csv: its cells are separated by {name}, not by comma as its ending suggests"]
    assert list(found.notes) == (told if name not in ("comma", "space") else [])


@pytest.mark.parametrize("text", ["a;b\n1;2;3\n", "a;b|c\n1;2|3\n", "a\n1;2\n", "a b\n1\n"])
def test_an_ambiguous_delimiter_is_not_guessed(text: str, tmp_path: Path) -> None:
    table = opened(tmp_path, text)
    assert table.columns == [text.partition("\n")[0]]
    assert not table.notes


@pytest.mark.parametrize("delimiter", ["", ",,", '"', "\n", "é", "colon"])
def test_invalid_delimiters_are_refused(delimiter: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="expected comma, tab, semicolon, pipe, space or one ASCII character"):
        opened(tmp_path, "a\n1\n", delimiter=delimiter)


# numbers


@pytest.mark.parametrize("gzipped", [False, True])
def test_spaces_around_numbers_and_missing_texts_do_not_count(gzipped: bool, tmp_path: Path) -> None:
    text = 'q,r\n1,0.5\n 2 , NA\n"",\n  ,"N/A "\nNA," -3e1"\n\u00a04,nan\n+5,.\n'.encode()
    table = opened(tmp_path, gzip.compress(text) if gzipped else text, f"t.csv{'.gz' * gzipped}")
    nan = np.nan
    expected = np.array([[1, 2, nan, nan, nan, 4, 5], [0.5, nan, nan, nan, -30, nan, nan]]).T
    np.testing.assert_array_equal(read(table, ["q", "r"], [], ["NA", "N/A", "."])[0], expected, strict=True)


@pytest.mark.parametrize("cell", ["0x1F", "1_0", "١", "1.5.2", "--1"])
@pytest.mark.parametrize("gzipped", [False, True])
def test_what_python_or_arrow_alone_take_for_a_number_is_refused(cell: str, gzipped: bool, tmp_path: Path) -> None:
    text = f"q,x\n1,1\n{cell},1\n".encode()
    table = opened(tmp_path, gzip.compress(text) if gzipped else text, f"t.csv{'.gz' * gzipped}")
    with pytest.raises(DataError, match=rf"line 3, column 'q' holds the text '{cell}', expected a number"):
        read(table, ["q", "x"])


def test_a_decimal_comma_is_an_option(tmp_path: Path) -> None:
    text = 'q;r\n1,54;"-0,5"\n2; ,25 \n'
    with pytest.raises(DataError, match=r"line 2, column 'q' holds the text '1,54', expected a number; say --decimal ,"):
        read(opened(tmp_path, text, delimiter=";"), ["q"])
    np.testing.assert_array_equal(read(opened(tmp_path, text, decimal=","), ["q", "r"])[0], [[1.54, -0.5], [2, 0.25]])
    with pytest.raises(DataError, match=r"line 4, column 'q' holds the text '1\.5', expected a number"):
        read(opened(tmp_path, text + "1.5;1\n", decimal=","), ["q", "r"])
    with pytest.raises(ParameterError, match="decimal is 'x', expected"):
        opened(tmp_path, text, decimal="x")


@pytest.mark.parametrize("seed", range(3))
def test_small_whole_numbers_are_read_as_any_numbers(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows suggest numbers of one byte; later rows have others."""
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 64)
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, (500, 3)).astype(float)
    values[rng.random(values.shape) < 0.1] = np.nan
    values[rng.integers(100, 500, 4), rng.integers(0, 3, 4)] = [128, -129, 0.5, 1e300]
    rows = [["" if np.isnan(value) else f"{value:g}" for value in row] for row in values]
    text = "\n".join(",".join(row) for row in [["a", "b", "c"], *rows, ["7", "7", "7"]])
    matrix, _, _ = read(opened(tmp_path, text), ["c", "a"])
    np.testing.assert_array_equal(matrix[:-1], values[:, [2, 0]])


# header lines


def test_header_lines_are_joined_and_made_unique(tmp_path: Path) -> None:
    text = "id,How much do you like these?,,,Do you smoke?,Other,Other,,\n,tea,coffee,tea,Response,Response,Response,,x\n" + ",".join(
        "123456789"
    )
    table = opened(tmp_path, text, header_rows=2)
    how = "How much do you like these?"
    assert table.columns == [
        "id",
        f"{how}: tea",
        f"{how}: coffee",
        f"{how}: tea (2)",
        "Do you smoke?",
        "Other",
        "Other (2)",
        "column 8",
        "Other: x",
    ]


def test_a_second_header_line_draws_a_hint(tmp_path: Path) -> None:
    text = "id,Do you smoke?,Do you drink?\n,Response,Response\n7,1,0\n"
    table = opened(tmp_path, text)
    assert list(table.notes) == [
        "t.csv: line 2 holds 'Response' below questions, as a second line of column names does; say --header-rows 2"
    ]
    with pytest.raises(
        DataError, match=r"line 2, column 'Do you smoke\?' holds the text 'Response', expected a number; say --header-rows 2"
    ):
        read(table, ["Do you smoke?"])
    joined = opened(tmp_path, text, header_rows=2)
    assert not joined.notes
    np.testing.assert_array_equal(read(joined, joined.columns)[0], [[7, 1, 0]])
    with pytest.raises(ParameterError, match="header_rows is 0, expected 1 or more"):
        opened(tmp_path, text, header_rows=0)
    with pytest.raises(DataError, match="the header lines have 2 and 1 cells"):
        opened(tmp_path, "a,b\nc\n1,2\n", header_rows=2)


def test_long_and_odd_names_are_data(tmp_path: Path) -> None:
    names = ["<b>bold</b>", "a" * 5000, 'with "quotes"', "two\nlines", "=1+1"]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerow([1, 2, 3, 4, 5])
    table = opened(tmp_path, text.getvalue())
    assert table.columns == names
    np.testing.assert_array_equal(read(table, names)[0], [[1, 2, 3, 4, 5]])
    assert table.row_position(0) == "line 3"


# parts


NUMBERS = st.none() | st.integers(-800, 800).map(lambda number: number / 4) | st.floats(allow_nan=False, allow_infinity=False)
CELLS = st.sampled_from(["x", "é", "a,b", 'say "no"', "", " padded ", '""', "'"])
BREAKS = st.sampled_from(["two\nlines", "two\r\nlines", "\r"])


@st.composite
def text_tables(draw: st.DrawFn) -> tuple[bytes, NDArray[np.float64], list[str]]:
    """A table with empty lines, quoted cells, line ends of both kinds, a mark, and a last line with or without an end."""
    cells = CELLS | BREAKS if draw(st.booleans()) else CELLS
    rows = draw(st.lists(st.tuples(NUMBERS, cells, NUMBERS, st.booleans(), st.integers(0, 1)), min_size=1, max_size=40))
    end, mark = draw(st.sampled_from(["\n", "\r\n"])), draw(st.sampled_from([b"", codecs.BOM_UTF8]))
    lines = ["a,text,b"]
    for a, text, b, is_quoted, empty in rows:
        quoted = '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') or is_quoted else text
        lines += [""] * empty + [f"{'' if a is None else a},{quoted},{'NA' if b is None else b}"]
    content = (end * draw(st.integers(0, 1)) + end.join(lines) + end * draw(st.integers(0, 1))).encode()
    return mark + content, np.array([[a, b] for a, _, b, _, _ in rows], np.float64), [text for _, text, *_ in rows]


@pytest.mark.further
@settings(max_examples=60)
@given(table=text_tables(), encoding=st.sampled_from([None, "latin-1"]))
def test_parts_give_the_rows_of_the_file(table: tuple[bytes, NDArray[np.float64], list[str]], encoding: str | None) -> None:
    content, numbers, texts = table
    if encoding and not content.startswith(codecs.BOM_UTF8):
        content = content.decode().encode(encoding)
    with mock.patch.object(delimited, "_PART_BYTES", 50), TemporaryDirectory() as folder, ThreadPoolExecutor(2) as threads:
        read = opened(Path(folder), content, encoding=encoding)
        parts = pickle.loads(pickle.dumps(read.parts()))
        results = list(threads.map(lambda part: list(read_cells(part, ["b", "a"], ["text"], ["NA"])), parts))
        together = list(read_cells(read, ["b", "a"], ["text"], ["NA"]))
    for batches in ([batch for result in results for batch in result], together):
        np.testing.assert_array_equal(np.concatenate([batch.numbers for batch in batches]), numbers[:, ::-1])
        assert [cell for batch in batches for cell in batch.texts["text"].to_pylist()] == texts
    has_breaks = any(set(text) & set("\r\n") for text in texts)
    assert len(parts) == 1 if has_breaks else len(parts) > 1 or len(content) < 120
    if not has_breaks:
        assert sum(part.n_bytes for part in parts) == len(content) - content.index(b"\n", content.index(b"a,text")) - 1


@pytest.mark.parametrize("seed", range(5))
def test_errors_in_parts_have_the_lines_of_the_file(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "_PART_BYTES", 50)
    rng = np.random.default_rng(seed)
    bad = int(rng.integers(0, 200))
    rows = [f"{i % 9},text" for i in range(200)]
    for row, message in (
        (f"{bad % 9},text,more", "has 3 cells, expected 2 as in the header"),
        ("often,text", "column 'q' holds the text 'often'"),
    ):
        lines = ["q,x", *rows[:bad], row, *rows[bad + 1 :]]
        lines = [part for line in lines for part in [line, *[""] * int(rng.integers(0, 3))]]
        table = opened(tmp_path, "\n".join(lines))
        position = f"line {lines.index(row) + 1}"
        errors = []
        for part in table.parts():
            try:
                list(read_cells(part, ["q"], ["x"], []))
            except DataError as error:
                errors.append(str(error))
        assert len(errors) == 1
        assert errors[0].startswith(f"t.csv: {position}")
        assert message in errors[0]
        with pytest.raises(DataError, match=f"t.csv: {position}"):
            read(table, ["q"], ["x"])
        assert table.row_position(bad) == position


@pytest.mark.parametrize(
    "text",
    ['5" disk,1\n7,"2\n3"\n', 'x"y,"a\nb"z\n', '"a"b"c,1\n', '1,"open\n', "1,2\r3,4\n"],
    ids=["inch", "middle", "again", "open", "carriage"],
)
def test_quotation_marks_that_a_scan_cannot_judge_are_left_to_the_parser(text: str, tmp_path: Path) -> None:
    table = opened(tmp_path, f"a,b\n1,2\n{text}")
    assert list(table.parts()) == [table]


def test_cells_quoted_throughout_can_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "_PART_BYTES", 50)
    table = opened(tmp_path, '"a","b"\r\n' + '"1","x ""y"", z"\r\n' * 50 + '"2",""')
    assert len(table.parts()) > 10
    assert read(table, ["a"], ["b"])[1]["b"] == ['x "y", z'] * 50 + [""]


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv"])
def test_what_has_no_lines_of_bytes_is_one_part(name: str, tmp_path: Path) -> None:
    content = b"a,b\n1,2\n" if name.endswith("gz") else "a,b\n1,2\n".encode("utf-16")
    table = opened(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
    assert list(table.parts()) == [table]
    assert not text_files.TextFile(None, False, "shift_jis", ",").can_be_cut  # type: ignore[arg-type]  # the file is not looked at
    assert not text_files.TextFile(None, False, "utf-7", ",").can_be_cut  # type: ignore[arg-type]  # as above
    assert text_files.TextFile(None, False, "mac-roman", ",").can_be_cut  # type: ignore[arg-type]  # as above


# files of others


@pytest.fixture
def folder() -> Path:
    if not TEXTS.is_dir():
        pytest.skip("the shared input files are not next to the project")
    return TEXTS


def column(table: Table, ending: str) -> Counter[str]:
    name = next(name for name in table.columns if name.endswith(ending))
    return Counter(read(table, [], [name])[1][name])


def test_star_wars(folder: Path) -> None:
    with pytest.raises(DataError, match="byte 0x8c at 641 is not UTF-8; say --encoding cp1252, latin-1 or mac-roman"):
        open_table(folder / "star_wars.csv")
    table = open_table(folder / "star_wars.csv", ReadOptions(encoding="mac-roman", header_rows=2))
    assert len(table.columns) == len(set(table.columns)) == 38
    levels = [
        "Very unfavorably",
        "Somewhat unfavorably",
        "Neither favorably nor unfavorably (neutral)",
        "Somewhat favorably",
        "Very favorably",
    ]
    for ending, expected in (("Han Solo", [1, 8, 44, 151, 610, 15, 357]), ("Jar Jar Binks", [204, 102, 164, 130, 112, 109, 365])):
        counts = column(table, ending)
        assert [counts[level] for level in [*levels, "Unfamiliar (N/A)", ""]] == expected
        assert sum(expected) == 1186


def test_steak_risk(folder: Path) -> None:
    assert "--header-rows 2" in open_table(folder / "steak_risk.csv").notes[0]
    table = open_table(folder / "steak_risk.csv", ReadOptions(header_rows=2))
    assert len(table.columns) == 15
    assert "<br>" in table.columns[1]
    assert column(table, "smoke cigarettes?") == {"Yes": 84, "No": 453, "": 13}
    prepared = {"Rare": 23, "Medium rare": 166, "Medium": 132, "Medium Well": 75, "Well": 36, "": 118}
    assert column(table, "steak prepared?") == prepared


def test_hotel(folder: Path) -> None:
    table = open_table(folder / "hotel.csv")
    assert list(table.notes) == ["hotel.csv: its cells are separated by semicolon, not by comma as its ending suggests"]
    assert table.columns == [f"v{j}" for j in range(1, 6)]
    levels = ["Strongly Disagree", "Disagree", "No Opinion", "Agree", "Strongly Agree"]
    texts = read(table, [], table.columns)[1]
    means = [np.mean([levels.index(cell) + 1 for cell in cells]) for cells in texts.values()]
    np.testing.assert_allclose(means, [2.588235, 2.294118, 3.411765, 2.470588, 2], atol=1e-6)
