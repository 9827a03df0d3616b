"""Sheets of Excel and OpenDocument: headers, types of cells, several sheets, and files that claim more than they hold."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest

from dfact.errors import DataError, DfactError, ParameterError, StoreError
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.columnar import columns
from dfact.imports.readers.formats import open_table
from tests.conftest import REAL_DATA
from tests.suites.reader import Columns, ReaderSuite, read

pytest.importorskip("python_calamine")
FILES = REAL_DATA / "inputs" / "xlsx"
real = pytest.mark.skipif(not FILES.exists(), reason="needs the folder of real data")
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
Rows = Sequence[Sequence[Any]]


class Error(str):
    """An error in a cell, such as #DIV/0!."""


class Date(float):
    """A day, counted as Excel counts."""


def letters(j: int) -> str:
    return (letters(j // 26 - 1) if j >= 26 else "") + chr(65 + j % 26)


def xlsx_cell(reference: str, cell: Any) -> str:
    if cell is None or cell == "":
        return ""
    if isinstance(cell, Error):
        return f'<c r="{reference}" t="e"><v>{cell}</v></c>'
    if isinstance(cell, bool):
        return f'<c r="{reference}" t="b"><v>{int(cell)}</v></c>'
    if isinstance(cell, Date):
        return f'<c r="{reference}" s="1"><v>{float(cell)}</v></c>'
    if isinstance(cell, str):
        return f'<c r="{reference}" t="inlineStr"><is><t xml:space="preserve">{escape(cell)}</t></is></c>'
    return f'<c r="{reference}"><v>{cell!r}</v></c>'


def xlsx_rows(rows: Rows) -> str:
    return "".join(
        f'<row r="{i}">' + "".join(xlsx_cell(f"{letters(j)}{i}", cell) for j, cell in enumerate(row)) + "</row>"
        for i, row in enumerate(rows, start=1)
    )


def write_xlsx(path: Path, sheets: dict[str, Rows | str], *, hidden: Sequence[str] = (), from_1904: bool = False) -> None:
    names = list(sheets)
    states = ['state="hidden"' if name in hidden else "" for name in names]
    listed = "".join(f'<sheet name="{escape(name)}" sheetId="{i}" {states[i - 1]} r:id="r{i}"/>' for i, name in enumerate(names, start=1))
    related = "".join(
        f'<Relationship Id="r{i + 1}" Type="{_RELATIONS}/worksheet" Target="worksheets/sheet{i + 1}.xml"/>' for i in range(len(names))
    )
    styles = f'<Relationship Id="s" Type="{_RELATIONS}/styles" Target="styles.xml"/>'
    main = f'<Relationship Id="w" Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/>'
    epoch = ' date1904="1"' if from_1904 else ""
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="xml" ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{main}</Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><workbookPr{epoch}/><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{related}{styles}</Relationships>',
        "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>',
    }
    for i, rows in enumerate(sheets.values(), start=1):
        data = rows if isinstance(rows, str) else xlsx_rows(rows)
        parts[f"xl/worksheets/sheet{i}.xml"] = f'<worksheet xmlns="{_MAIN}"><sheetData>{data}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def ods_cell(cell: Any) -> str:
    if cell is None or cell == "":
        return "<table:table-cell/>"
    if isinstance(cell, str):
        # Spaces are elements of their own, as a paragraph drops those at its ends. calamine leaves out the element of a tab.
        text = escape(cell).replace(" ", "<text:s/>").replace("\t", "&#9;")
        return f'<table:table-cell office:value-type="string"><text:p>{text}</text:p></table:table-cell>'
    return f'<table:table-cell office:value-type="float" office:value="{float(cell)!r}"/>'


def write_ods(path: Path, rows: Rows, more: str = "") -> None:
    kinds = {kind: f"urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0" for kind in ("office", "table", "text")}
    names = " ".join(f'xmlns:{kind}="{name}"' for kind, name in kinds.items())
    body = "".join(f"<table:table-row>{''.join(map(ods_cell, row))}</table:table-row>" for row in rows) + more
    table = f'<table:table table:name="Sheet1">{body}</table:table>'
    body = f"<office:body><office:spreadsheet>{table}</office:spreadsheet></office:body>"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("META-INF/manifest.xml", "<manifest/>")
        archive.writestr("content.xml", f"<office:document-content {names}>{body}</office:document-content>")


def rows_of(cells: Columns) -> list[list[Any]]:
    plain = [[int(cell) if isinstance(cell, np.integer) else cell for cell in each] for each in cells.values()]
    return [list(cells), *map(list, zip(*plain, strict=True))]


class TestXlsx(ReaderSuite):
    name = "t.xlsx"

    def write(self, columns: Columns, path: Path) -> None:
        write_xlsx(path, {"Sheet1": rows_of(columns)})

    def position(self, row: int) -> str:
        return f"row {row + 2} of sheet 'Sheet1'"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "BATCH_ENTRIES", 40)


class TestOds(TestXlsx):
    name = "t.ods"

    def write(self, columns: Columns, path: Path) -> None:
        write_ods(path, rows_of(columns))


def test_types_of_cells(tmp_path: Path) -> None:
    rows = [
        ["id", "n", "mixed", "yes", "day", "error", "", "none"],
        [7, 1.5, 3, True, Date(44197), Error("#DIV/0!"), "x", None],
        [1001, None, "often", False, Date(44198), 2, "y", None],
        [10.25, 2, 2.5, None, None, Error("#N/A"), "z", None],
    ]
    write_xlsx(tmp_path / "t.xlsx", {"S": rows})
    table = open_table(tmp_path / "t.xlsx")
    assert table.columns == ["id", "n", "mixed", "yes", "day", "error", "column G", "none"]
    types = {name: variable.type for name, variable in table.variables.items()}
    assert types == {
        "id": "number",
        "n": "number",
        "mixed": "text",
        "yes": "number",
        "day": "date",
        "error": "number",
        "column G": "text",
        "none": "number",
    }
    matrix, texts, _ = read(table, ["n", "yes", "error", "none"], ["id", "mixed", "day"])
    nan = np.nan
    np.testing.assert_array_equal(matrix, [[1.5, 1, nan, nan], [nan, 0, 2, nan], [2, nan, nan, nan]])
    assert texts == {"id": ["7", "1001", "10.25"], "mixed": ["3", "often", "2.5"], "day": ["2021-01-01", "2021-01-02", None]}
    with pytest.raises(DataError, match=r"t\.xlsx: row 3 of sheet 'S', column 'mixed' holds the text 'often'"):
        read(table, ["mixed"])


def test_days_counted_from_1904(tmp_path: Path) -> None:
    write_xlsx(tmp_path / "t.xlsx", {"S": [["day", "n"], [Date(44197 - 1462), 1]]}, from_1904=True)
    assert read(open_table(tmp_path / "t.xlsx"), [], ["day"])[1] == {"day": ["2021-01-01"]}


def test_notes_above_the_header_and_empty_rows_are_skipped(tmp_path: Path) -> None:
    rows = [["A survey of 2020"], [], [None, None, "a note"], ["q1", "q2", "q3"], [1, 2, 3], [], [4, None, 6], [None] * 3]
    write_xlsx(tmp_path / "t.xlsx", {"S": rows})
    table = open_table(tmp_path / "t.xlsx")
    assert table.columns == ["q1", "q2", "q3"]
    assert table.notes == ["t.xlsx: sheet 'S': row 4 is the header; the rows above it are notes"]
    np.testing.assert_array_equal(read(table, ["q1", "q2", "q3"])[0], [[1, 2, 3], [4, np.nan, 6]])
    assert [table.row_position(row) for row in range(2)] == ["row 5 of sheet 'S'", "row 7 of sheet 'S'"]


def test_cells_may_begin_anywhere(tmp_path: Path) -> None:
    write_xlsx(tmp_path / "t.xlsx", {"S": [[], [None, None, "a", "b"], [None, None, 1, 2], [None, None, 3, 4]]})
    table = open_table(tmp_path / "t.xlsx")
    assert table.columns == ["a", "b"]
    np.testing.assert_array_equal(read(table, ["a", "b"])[0], [[1, 2], [3, 4]])
    assert table.row_position(1) == "row 4 of sheet 'S'"


def test_header_rows_are_joined(tmp_path: Path) -> None:
    rows = [["id", "Do you like it?", None, "Why?"], [None, "Yes", "No", "Response"], ["a", 1, 0, "x"]]
    write_xlsx(tmp_path / "t.xlsx", {"S": rows})
    table = open_table(tmp_path / "t.xlsx", ReadOptions(header_rows=2))
    assert table.columns == ["id", "Do you like it?: Yes", "Do you like it?: No", "Why?: Response"]
    np.testing.assert_array_equal(read(table, table.columns[1:3])[0], [[1, 0]])
    with pytest.raises(ParameterError, match="header_rows is 0, expected 1 or more"):
        open_table(tmp_path / "t.xlsx", ReadOptions(header_rows=0))


@pytest.mark.further
def test_several_sheets_are_asked_with_their_names(tmp_path: Path) -> None:
    rows = [["a", "b"], [1, 2]]
    write_xlsx(tmp_path / "t.xlsx", {"Empty": [], "Old": rows, "Answers": [["a", "b"], [5, 6]], "More": rows}, hidden=["Old"])
    with pytest.raises(ParameterError, match=r"t\.xlsx has 2 sheets with cells \(Answers, More\), expected one; choose one with .*--sheet"):
        open_table(tmp_path / "t.xlsx")
    np.testing.assert_array_equal(read(open_table(tmp_path / "t.xlsx", ReadOptions(sheet="Answers")), ["b", "a"])[0], [[6, 5]])
    np.testing.assert_array_equal(read(open_table(tmp_path / "t.xlsx", ReadOptions(sheet="Old")), ["a"])[0], [[1]])
    with pytest.raises(ParameterError, match=r"has no sheet 'answers', expected one of Empty, Old, Answers, More"):
        open_table(tmp_path / "t.xlsx", ReadOptions(sheet="answers"))
    write_xlsx(tmp_path / "t.xlsx", {"Empty": [], "Old": rows, "Answers": rows}, hidden=["Old"])
    assert open_table(tmp_path / "t.xlsx").columns == ["a", "b"]
    write_xlsx(tmp_path / "t.xlsx", {"Empty": [], "Old": rows}, hidden=["Old"])
    with pytest.raises(DataError, match=r"has no visible sheet with cells \(its sheets are Empty, Old\)"):
        open_table(tmp_path / "t.xlsx")


def test_a_sheet_without_names_is_refused(tmp_path: Path) -> None:
    write_xlsx(tmp_path / "t.xlsx", {"S": [[1, 2], [3, 4]]})
    with pytest.raises(DataError, match="row 1 holds no text, expected a header with column names"):
        open_table(tmp_path / "t.xlsx")


def test_cells_far_apart_are_refused(tmp_path: Path) -> None:
    far = '<row r="1"><c r="A1"><v>1</v></c><c r="XFD1"><v>1</v></c></row><row r="1048576"><c r="A1048576"><v>1</v></c></row>'
    write_xlsx(tmp_path / "t.xlsx", {"S": far})
    with pytest.raises(DataError, match=r"t\.xlsx cannot be read: its parser calamine stopped .* GiB of memory .*such as csv"):
        open_table(tmp_path / "t.xlsx")
    repeated = '<table:table-row table:number-rows-repeated="1048570"><table:table-cell office:value-type="float" office:value="1" '
    write_ods(tmp_path / "t.ods", [["a"]], repeated + 'table:number-columns-repeated="16384"/></table:table-row>')
    with pytest.raises((DataError, StoreError), match=r"t\.ods cannot be read"):
        open_table(tmp_path / "t.ods")


@pytest.mark.further
def test_formats_of_empty_cells_claim_no_memory(tmp_path: Path) -> None:
    styled = xlsx_rows([["a", "b"], [1, 2]]) + '<row r="1048576"><c r="XFD1048576" s="1"/></row>'
    write_xlsx(tmp_path / "t.xlsx", {"S": styled})
    np.testing.assert_array_equal(read(open_table(tmp_path / "t.xlsx"), ["a", "b"])[0], [[1, 2]])
    empty = (
        '<table:table-row table:number-rows-repeated="1048570"><table:table-cell table:number-columns-repeated="16384"/></table:table-row>'
    )
    write_ods(tmp_path / "t.ods", [["a", "b"], [1, 2]], empty)
    np.testing.assert_array_equal(read(open_table(tmp_path / "t.ods"), ["a", "b"])[0], [[1, 2]])


@pytest.mark.further
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["t.xlsx", "t.ods"])
def test_damaged_files_are_refused(name: str, seed: int, tmp_path: Path) -> None:
    rng, refused = np.random.default_rng(seed), 0
    rows = [["a", "b"], *([float(i), f"text {i}"] for i in range(30))]
    (write_ods if name == "t.ods" else lambda path, rows: write_xlsx(path, {"S": rows}))(tmp_path / name, rows)
    good = (tmp_path / name).read_bytes()
    for _ in range(40):
        damaged = bytearray(good[: rng.integers(8, len(good))] if rng.random() < 0.3 else good)
        for at in rng.integers(0, len(damaged), 3):
            damaged[at] = rng.integers(256)
        (tmp_path / name).write_bytes(damaged)
        try:
            table = open_table(tmp_path / name)
            assert table.columns
        except DfactError:
            refused += 1
    assert refused > 10


def test_foreign_content_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"<html><table></table></html>")
    with pytest.raises(DataError, match=r"t\.xlsx does not have the format Excel or OpenDocument: its content is a web page"):
        open_table(tmp_path / "t.xlsx")
    with zipfile.ZipFile(tmp_path / "t.xlsx", "w") as archive:
        archive.writestr("readme.txt", "no workbook")
    with pytest.raises(StoreError, match=r"t\.xlsx cannot be read as a workbook"):
        open_table(tmp_path / "t.xlsx")


@pytest.mark.further
@real
def test_shared_workbooks() -> None:
    hotel = open_table(FILES / "hotel.xlsx")
    texts = read(hotel, [], hotel.columns)[1]
    levels = ["Strongly Disagree", "Disagree", "No Opinion", "Agree", "Strongly Agree"]
    means = [round(float(np.mean([levels.index(text) + 1 for text in texts[name]])), 6) for name in ("v1", "v2", "v3", "v4", "v5")]
    assert means == [2.588235, 2.294118, 3.411765, 2.470588, 2]
    far = open_table(FILES / "issue_174.xlsx")
    assert (len(far.columns), len(read(far, ["Weight"])[0])) == (11, 1)
    header = open_table(FILES / "header-row.xlsx")
    assert (header.columns, header.row_position(0)) == (["Columns", "Column A", "Column B", "Column C"], "row 10 of sheet 'Sheet1'")
    assert open_table(FILES / "merge_cells.xlsx").columns == ["Row Merge", "column B", "Not Merged"]


@real
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("any_sheets.xlsx", "sheet 'Visible': row 1 holds no text"),
        ("date.xlsx", "sheet 'Sheet1': row 1 holds no text"),
        ("date_1904.xlsx", "sheet 'Sheet1': row 1 holds no text"),
        ("errors.xlsx", r"has no visible sheet with cells \(its sheets are Feuil1, Feuil2, Feuil3\)"),
    ],
)
def test_shared_workbooks_without_a_table(name: str, found: str) -> None:
    with pytest.raises(DataError, match=found):
        open_table(FILES / name)


def test_opendocument_without_the_end_of_its_table_is_refused(tmp_path: Path) -> None:
    """Some releases of calamine never return from it."""
    write_ods(tmp_path / "t.ods", [["q"], [1]])
    with zipfile.ZipFile(tmp_path / "t.ods") as archive:
        content = archive.read("content.xml").replace(b"</table:table>", b"</table:table")
    with zipfile.ZipFile(tmp_path / "t.ods", "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("content.xml", content)
    with pytest.raises((DataError, StoreError), match=r"t\.ods cannot be read"):
        open_table(tmp_path / "t.ods")
