"""Sheets of Excel and OpenDocument workbooks as tables, read with calamine."""

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from dfact.errors import DataError, DfactError, ParameterError, StoreError
from dfact.formats.isolation.parsers import Parser
from dfact.imports.readers.base import Format, ReadOptions, Variable
from dfact.imports.readers.columnar.columns import MemoryTable
from dfact.storage.input_files import InputFile

_ZIP = b"PK\x03\x04"
_OLE = b"\xd0\xcf\x11\xe0"
_ROWS_AT_ONCE = 1024
_SHOWN_ROWS = 20
_DATES = (dt.date, dt.datetime, dt.time, dt.timedelta)

Cells = Sequence[Any]
"""Cells of a row or of a column: numbers, booleans, dates or texts, "" for an empty cell and for an error such as #DIV/0!."""


class SheetTable(MemoryTable):
    """A sheet; its rows have the numbers that the spreadsheet program shows."""

    def __init__(self, file: str, sheet: str, columns: list["_Column"], numbers: list[int], notes: list[str]) -> None:
        self._sheet, self._numbers = sheet, np.asarray(numbers, np.int32)
        described = {column.name: column.variable() for column in columns}
        super().__init__(file, [(column.name, column.values()) for column in columns], described, notes=notes)

    def row_position(self, row: int) -> str:
        return f"row {self._numbers[row]} of sheet {self._sheet!r}"


@dataclass
class _Column:
    """A column while its cells are read."""

    name: str
    chunks: list[pa.Array] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    """Kinds of the cells: number, boolean, date and text."""

    def append(self, cells: Cells) -> None:
        """Append cells: as numbers or booleans if all of them are, otherwise as texts."""
        types = {type(cell) for cell in cells if cell != ""}
        if types <= {int, float}:
            self.kinds |= {"number"} if types else set()
            self.chunks.append(pa.array([None if cell == "" else float(cell) for cell in cells], pa.float64()))
        elif types == {bool}:
            self.kinds.add("boolean")
            self.chunks.append(pa.array([None if cell == "" else cell for cell in cells], pa.bool_()))
        else:
            self.kinds |= {"date" if issubclass(each, _DATES) else "text" for each in types}
            self.chunks.append(pa.array([None if cell == "" else _text(cell) for cell in cells], pa.string()))

    def values(self) -> pa.ChunkedArray:
        """Return the cells in one type: a column of numbers and texts becomes one of texts."""
        kind = {frozenset({"number"}): pa.float64(), frozenset({"boolean"}): pa.bool_(), frozenset(): pa.float64()}.get(
            frozenset(self.kinds), pa.string()
        )
        chunks = [
            chunk if chunk.type == kind else pa.array([None if cell is None else _text(cell) for cell in chunk.to_pylist()], kind)
            for chunk in self.chunks
        ]
        return pa.chunked_array(chunks, kind)

    def variable(self) -> Variable:
        """Return the description by the types of the cells."""
        return Variable(self.name, type="date" if self.kinds == {"date"} else "text" if self.kinds & {"date", "text"} else "number")


def _open(file: InputFile, options: ReadOptions) -> SheetTable:
    n_headers = 1 if options.header_rows is None else options.header_rows
    if n_headers < 1:
        raise ParameterError(f"header_rows is {n_headers}, expected 1 or more")
    from python_calamine import SheetTypeEnum, SheetVisibleEnum

    with _workbook(file) as workbook:
        sheets = [each for each in workbook.sheets_metadata if each.typ == SheetTypeEnum.WorkSheet]
        if options.sheet is not None:
            if options.sheet not in [each.name for each in sheets]:
                raise ParameterError(
                    f"{file.name} has no sheet {options.sheet!r}, expected one of {', '.join(each.name for each in sheets)}"
                )
            return _read_sheet(file, workbook.get_sheet_by_name(options.sheet), n_headers, options.skip_rows or 0)
        visible = [each.name for each in sheets if each.visible == SheetVisibleEnum.Visible]
        filled = [name for name in visible if _has_cells(workbook.get_sheet_by_name(name))]
        if not filled:
            found = ", ".join(each.name for each in workbook.sheets_metadata) or "none"
            raise DataError(
                f"{file.name} has no visible sheet with cells (its sheets are {found}), expected one; choose one with sheet= (--sheet)"
            )
        if len(filled) > 1:
            raise ParameterError(
                f"{file.name} has {len(filled)} sheets with cells ({', '.join(filled)}), expected one; choose one with sheet= (--sheet)"
            )
        return _read_sheet(file, workbook.get_sheet_by_name(filled[0]), n_headers, options.skip_rows or 0)


@contextmanager
def _workbook(file: InputFile) -> Iterator[Any]:
    from python_calamine import CalamineError, PasswordError, load_workbook

    damaged = f"{file.location} cannot be read as a workbook"
    try:
        with file.open() as stream, load_workbook(stream) as workbook:
            yield workbook
    except DfactError:
        raise
    except PasswordError as error:
        raise DataError(f"{file.name} is encrypted, expected a workbook without a password; save it without one") from error
    except (CalamineError, OSError, ValueError, OverflowError) as error:
        raise StoreError(f"{damaged}: {error}; save it again") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, which derives from no Exception
            raise
        raise StoreError(f"{damaged}: {error}; save it again") from error


def _has_cells(sheet: Any) -> bool:
    return sheet.start is not None and any(any(cell != "" for cell in row) for row in sheet.iter_rows())


def _read_sheet(file: InputFile, sheet: Any, n_headers: int, skipped: int) -> SheetTable:
    where = f"{file.name}: sheet {sheet.name!r}"
    if sheet.start is None:
        raise DataError(f"{where} has no cells, expected a header and rows")
    rows = enumerate((_without_nul(where, row) for row in sheet.iter_rows()), start=1)
    # Notes above the header fill few cells of its columns.
    first, header = next(((i, row) for i, row in rows if i > skipped and _n_filled(row) > sheet.width / 2), (0, None))
    if header is None:
        raise DataError(f"{where} has no row that fills more than half of its {sheet.width} columns, expected a header; remove other cells")
    headers = [header, *(row for _, row in islice(rows, n_headers - 1))]
    if not any(isinstance(cell, str) and cell for cell in header):
        raise DataError(f"{where}: row {first} holds no text, expected a header with column names; insert a row with names above it")
    columns, numbers = [_Column(name) for name in _column_names(headers)], list[int]()
    first_rows: list[tuple[int, list[str]]] = []
    while block := list(islice(rows, _ROWS_AT_ONCE)):
        filled = [(i, row) for i, row in block if _n_filled(row)]
        first_rows = first_rows or [(i, [_text(cell) for cell in row]) for i, row in filled[:_SHOWN_ROWS]]
        numbers += [i for i, _ in filled]
        for column, cells in zip(columns, zip(*(row for _, row in filled), strict=True), strict=False):
            column.append(cells)
    if not numbers:
        raise DataError(f"{file.name} has a header in sheet {sheet.name!r} but no rows, expected at least one row")
    columns = [column for column, *cells in zip(columns, *headers, strict=True) if column.kinds or any(cell != "" for cell in cells)]
    notes = (
        [f"{where}: row {first} is the header; the rows above it are notes"]
        if first > max(1, skipped + 1) and sheet.start[0] + 1 < first
        else []
    )
    table = SheetTable(file.name, sheet.name, columns, numbers, notes)
    table.first_rows = first_rows
    return table


def _without_nul(where: str, row: list[Any]) -> Cells:
    """Return the cells of a row with texts in place of the bytes of UTF-16, as which old workbooks hold some texts."""
    if not any(isinstance(cell, str) and "\0" in cell for cell in row):
        return row
    cells = [cell[::2] if isinstance(cell, str) and cell[1::2] == "\0" * (len(cell) // 2) and len(cell) % 2 == 0 else cell for cell in row]
    damaged = next((cell for cell in cells if isinstance(cell, str) and "\0" in cell), None)
    if damaged is not None:
        raise DataError(f"{where} holds {damaged!r}, expected text; save it as .xlsx")
    return cells


def _n_filled(row: Cells) -> int:
    return sum(cell != "" for cell in row)


def _column_names(headers: list[Cells]) -> list[str]:
    """Return the names of columns; those of several rows are joined, and a text stands for the empty cells on its right."""
    names, counts = [], dict[str, int]()
    above = [""] * (len(headers) - 1)
    for j, cells in enumerate(zip(*headers, strict=True), start=1):
        texts = [_text(cell) for cell in cells]
        changed = next((i for i, text in enumerate(texts[:-1]) if text), len(headers))
        above = [text if i >= changed else before for i, (text, before) in enumerate(zip(texts[:-1], above, strict=True))]
        name = ": ".join(filter(None, (*above, texts[-1]))) if any(texts) else f"column {_letters(j)}"
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 or len(headers) == 1 else f"{name} ({counts[name]})")
    return names


def _letters(j: int) -> str:
    """Return the letters of the j-th column, counted from 1."""
    return (_letters((j - 1) // 26) if j > 26 else "") + chr(ord("A") + (j - 1) % 26)


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() else repr(cell)
    return cell.isoformat() if isinstance(cell, dt.date | dt.time) else str(cell)


FORMATS = (
    Format(
        "Excel or OpenDocument",
        (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"),
        Parser("calamine", ("python_calamine",)).in_child(_open),
        options=("sheet", "header_rows", "skip_rows"),
        signatures=((0, _ZIP), (0, _OLE)),
        extra="tables",
        modules=("python_calamine",),
    ),
)
