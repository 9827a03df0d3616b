"""Tables as an Excel workbook."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dfact.errors import DfactError
from dfact.storage.files import atomic_file
from dfact.text import escape_control


def require_openpyxl() -> Any:
    """Return the module openpyxl; raise DfactError if it is not installed."""
    try:
        import openpyxl
    except ImportError as error:
        raise DfactError(".xlsx files need openpyxl, which is not installed; install it: pip install 'dfact[tables]'") from error
    return openpyxl


def write_workbook(path: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write a sheet for each table, with its index as the first column. Text is never a formula, and NaN is an empty cell."""
    workbook = require_openpyxl().Workbook(write_only=False)
    workbook.remove(workbook.active)
    for name, table in tables.items():
        sheet = workbook.create_sheet(name)
        sheet.freeze_panes = "B2"
        full = table.reset_index()
        _fill(sheet, 1, list(full))
        for position, row in enumerate(full.itertuples(index=False, name=None), start=2):
            _fill(sheet, position, row)
    with atomic_file(path) as partial, partial.open("wb") as file:
        workbook.save(file)


def _fill(sheet: Any, row: int, values: Any) -> None:
    for column, value in enumerate(values, start=1):
        if isinstance(value, str):
            cell = sheet.cell(row, column, escape_control(value))
            cell.data_type = "s"  # otherwise a text that begins with = would be a formula
        elif value == value:  # not NaN
            sheet.cell(row, column, value)
