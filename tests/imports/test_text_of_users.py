"""Text files as users have them: compressed, with notes above the header, with headers of several lines, with commas in names."""

import bz2
import gzip
import io
import lzma
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pytest

import dfact
from dfact import DataError
from dfact.cli.main import main
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.formats import open_table
from tests.imports.test_import_table import answers_of

TEXT = b"id,Q1,Q2\na,1,2\nb,3,4\n"
RIGHT = [[1, 2], [3, 4]]


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("t.csv", content)
    return stream.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, "zstd", asbytes=True),
    "zip": zipped,
}


@pytest.mark.parametrize("packing", PACKED)
def test_compressed_text_is_read_and_named(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.csv.{packing}"
    path.write_bytes(PACKED[packing](TEXT))
    dataset = dfact.import_table(path, tmp_path / "d.zarr", items="Q*", id_column="id")
    np.testing.assert_array_equal(answers_of(dataset), RIGHT)
    path.rename(tmp_path / "t.csv")
    with pytest.raises(DataError, match=rf"t\.csv holds compressed data, expected text; name it t\.csv\.{packing}"):
        dfact.import_table(tmp_path / "t.csv", tmp_path / "e.zarr", items="Q*")


def test_an_archive_of_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("a.csv", TEXT)
        archive.writestr("b.csv", TEXT)
    with pytest.raises(DataError, match=r"holds 2 files \(a.csv, b.csv\), expected one; unpack it"):
        dfact.import_table(tmp_path / "t.csv.zip", tmp_path / "d.zarr", items="Q*")


@pytest.mark.parametrize(
    ("start", "found"),
    [
        pytest.param(b"$FL2@(#) SPSS", "that of SPSS", marks=pytest.mark.needs("formats")),
        (b"PAR1", "that of parquet"),
        (b"%PDF-1", "a PDF file"),
        (b"\xd0\xcf\x11\xe0", "an old Office file"),
    ],
)
def test_other_files_that_are_named_as_text(start: bytes, found: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(start + bytes(600))
    with pytest.raises(DataError, match=rf"does not have the format delimited text: its content is {found}"):
        dfact.import_table(tmp_path / "t.csv", tmp_path / "d.zarr", items="Q*")


def test_a_workbook_that_is_named_as_text(tmp_path: Path) -> None:
    openpyxl.Workbook().save(tmp_path / "t.xlsx")
    (tmp_path / "t.xlsx").rename(tmp_path / "t.csv")
    with pytest.raises(DataError, match="its content is a workbook"):
        dfact.import_table(tmp_path / "t.csv", tmp_path / "d.zarr", items="Q*")


NOTES = b"Study A, wave 2\nexported,2024\n\n"


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_notes_above_the_header_of_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(NOTES + TEXT) if name.endswith("gz") else NOTES + TEXT)
    command = ["import", str(path), str(tmp_path / "d.zarr"), "--items", "Q1,Q2", "--id-column", "id"]
    assert main(command) == 1
    assert "a cell of row 4; if the column names stand there, say skip_rows=3 (--skip-rows 3)" in capsys.readouterr().err
    assert main([*command, "--skip-rows", "3"]) == 0
    dataset = dfact.open_dataset(tmp_path / "d.zarr")
    np.testing.assert_array_equal(answers_of(dataset), RIGHT)
    assert list(dataset.row_labels) == ["a", "b"]


@pytest.mark.needs("formats")
def test_notes_above_the_header_of_a_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = openpyxl.Workbook()
    for row in (["Study", "A", 2024], [], ["id", "Q1", "Q2"], ["a", 1, 2], ["b", 3, 4]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    command = ["import", str(tmp_path / "t.xlsx"), str(tmp_path / "d.zarr"), "--items", "Q*", "--id-column", "id"]
    assert main(command) == 1
    assert "a cell of row 3; if the column names stand there, say skip_rows=2 (--skip-rows 2)" in capsys.readouterr().err
    assert main([*command, "--skip-rows", "2"]) == 0
    np.testing.assert_array_equal(answers_of(dfact.open_dataset(tmp_path / "d.zarr")), RIGHT)


QUALTRICS = (
    'StartDate,ResponseId,Q1_1,Q1_2\nStart Date,Response ID,"I sleep well, mostly",I rest\n{}'
    "2024-01-05 10:00:00,R_1,2,1\n2024-01-06 10:00:00,R_2,4,5\n"
)
IDS = ",".join(f'"{{""ImportId"":""{name}""}}"' for name in ("startDate", "_recordId", "QID1_1", "QID1_2"))


@pytest.mark.parametrize("header_rows", [None, 3])
def test_headers_of_qualtrics(header_rows: int | None, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(QUALTRICS.format(IDS + "\n"))
    notes: list[str] = []
    dataset = dfact.import_table(
        tmp_path / "q.csv", tmp_path / "d.zarr", items="Q*", id_column="ResponseId", header_rows=header_rows, note=notes.append
    )
    np.testing.assert_array_equal(answers_of(dataset), [[2, 1], [4, 5]])
    assert dataset.codebook["Q1_1"].wording == "I sleep well, mostly"
    assert notes == ([] if header_rows else ["q.csv: line 3 holds the ImportIds of Qualtrics: the header has 3 lines"])


@pytest.mark.parametrize("mark", [";", "|", ","])
def test_a_first_line_may_name_the_separator(mark: str, tmp_path: Path) -> None:
    for name, write in (("t.csv", bytes), ("t.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(write(f"sep={mark}\r\n".encode() + TEXT.replace(b",", mark.encode()).replace(b"\n", b"\r\n")))
        table = open_table(tmp_path / name, ReadOptions())
        assert table.columns == ["id", "Q1", "Q2"]
        dataset = dfact.import_table(tmp_path / name, tmp_path / "d.zarr", items="Q*", overwrite=True)
        np.testing.assert_array_equal(answers_of(dataset), RIGHT)
        assert table.row_position(1) == "line 4"


def test_names_with_commas_are_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"I feel sad, most days","I rest, often, well",plain,most days\n1,2,3,4\n3,4,5,1\n')
    command = ["import", str(tmp_path / "t.csv"), str(tmp_path / "d.zarr"), "--overwrite", "--items"]
    for items, columns in (
        ("I feel sad, most days", [0]),
        ("plain,I rest, often, well,I feel sad, most days", [2, 1, 0]),
        ("I feel sad, most days,most days", [0, 3]),
    ):
        assert main([*command, items]) == 0
        right = np.array([[1, 2, 3, 4], [3, 4, 5, 1]])[:, columns]
        np.testing.assert_array_equal(answers_of(dfact.open_dataset(tmp_path / "d.zarr")), right)
    reversed_items = dfact.import_table(
        tmp_path / "t.csv", tmp_path / "e.zarr", items=["-I feel sad, most days", "plain"], valid_range=(1, 5)
    )
    np.testing.assert_array_equal(answers_of(reversed_items), [[5, 3], [3, 5]])


@pytest.mark.needs("formats")
def test_a_pattern_over_dates_alone_says_so(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["born", "seen"], *[[np.datetime64("2001-02-03").item()] * 2] * 2):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match=r"items matches no column with answers: 'born' .*date.*, 'seen' .*; name others \(--items\)"):
        dfact.import_table(tmp_path / "t.xlsx", tmp_path / "d.zarr", items="*")


def test_a_line_of_another_length_names_its_usual_causes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n1,5,2\n")
    with pytest.raises(DataError, match=r"line 3 has 3 cells, expected 2 as in the header; quote cells .*or remove separators at the ends"):
        dfact.import_table(tmp_path / "t.csv", tmp_path / "d.zarr", items="*")


@pytest.mark.needs("formats")
def test_labels_that_begin_with_their_codes_follow_no_alphabet(tmp_path: Path) -> None:
    import pandas as pd
    import pyreadstat

    labels = {1: "(1) Approve", 2: "(2) Neither", 3: "(3) Reject"}
    pyreadstat.write_sav(pd.DataFrame({"q": [1.0, 2, 3]}), str(tmp_path / "t.sav"), variable_value_labels={"q": labels})
    with warnings.catch_warnings(action="error"):
        dfact.import_table(tmp_path / "t.sav", tmp_path / "d.zarr", items="q")
