"""Tables for spreadsheets: Excel workbooks, and csv cells that are not formulas."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dfact.errors import DfactError, ParameterError
from dfact.storage.files import atomic_file
from dfact.storage.location import Location

FORMATS = (".xlsx",)
_MAX_ROWS = 2**20
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r", "\n")
"""Beginnings of cells that spreadsheets interpret as formulas, by the advice of OWASP."""
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML forbids."""
_NUMBER = re.compile(r"[+-](\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def without_formula(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would interpret as a formula; plain numbers stay."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def require_openpyxl() -> Any:
    """Return the module openpyxl; raise DfactError if it is not installed."""
    try:
        import openpyxl
    except ImportError as error:
        raise DfactError(".xlsx files need openpyxl, which is not installed; install it: pip install 'dfact[tables]'") from error
    return openpyxl


def write_workbook(path: Location, tables: Mapping[str, pd.DataFrame], *, overwrite: bool) -> None:
    """Write a sheet for each table, with its index as the first column. Text is never a formula, and NaN is an empty cell.

    Raises ParameterError for a table with more rows than a sheet has, and DfactError if openpyxl is not installed.
    """
    for name, table in tables.items():
        if len(table) >= _MAX_ROWS:
            found = f"{path}: {name} has {len(table)} rows"
            raise ParameterError(f"{found}, expected fewer than {_MAX_ROWS}, the rows of a sheet; write a .csv or a .parquet")
    workbook = require_openpyxl().Workbook(write_only=False)
    workbook.remove(workbook.active)
    for name, table in tables.items():
        sheet = workbook.create_sheet(name)
        sheet.freeze_panes = "B2"
        full = table.reset_index(allow_duplicates=True)
        _fill(sheet, 1, list(full))
        for position, row in enumerate(full.itertuples(index=False, name=None), start=2):
            _fill(sheet, position, row)
    with atomic_file(path, overwrite=overwrite) as partial, partial.open("wb") as file:
        workbook.save(file)


def _fill(sheet: Any, row: int, values: Any) -> None:
    for column, value in enumerate(values, start=1):
        if isinstance(value, str):
            cell = sheet.cell(row, column, _FORBIDDEN.sub("\ufffd", value))
            cell.data_type = "s"  # otherwise a text that begins with = would be a formula
            cell.number_format = "@"  # and would become one when edited
        elif value == value:  # not NaN
            sheet.cell(row, column, value)
