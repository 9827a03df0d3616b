"""Text: tables and named lines, aligned for a terminal."""

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def table_text(table: "pd.DataFrame", *, header: bool = False, decimals: int = 2) -> str:
    """Align the columns of a table: numbers right with two decimals, a dash for NaN, text left."""
    from pandas.api.types import is_numeric_dtype  # not needed for the command's help

    columns = []
    for name, values in table.items():
        numeric = is_numeric_dtype(values)
        cells = [escape_control(name)] * header + [_cell(value, decimals) for value in values]
        width = max(map(len, cells), default=0)
        columns.append([cell.rjust(width) if numeric else cell.ljust(width) for cell in cells])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def _cell(value: Any, decimals: int) -> str:
    if not isinstance(value, float):
        return escape_control(value)
    return "–" if isnan(value) else f"{value:.{decimals}f}"


def align_columns(lines: Sequence[tuple[str, str]]) -> str:
    """Put names and texts side by side; a line with an empty name continues the one above."""
    lines = [(escape_control(name), text) for name, text in lines]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:<{width}}{escape_control(text)}".rstrip() for name, text in lines)


def escape_control(text: Any) -> str:
    """Escape characters that control a terminal: a label could move the cursor or change the title."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def escape_lines(text: str) -> str:
    """Escape characters that control a terminal in a text of several lines."""
    return "\n".join(map(escape_control, text.split("\n")))


def indented(text: str) -> str:
    """Indent each line by two columns."""
    return "\n".join(f"  {line}" for line in text.splitlines())
