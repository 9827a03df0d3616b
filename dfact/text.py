"""Text: tables and named lines, aligned for a terminal or as HTML for a notebook, and the sections of docstrings."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from inspect import cleandoc
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


_MOST_ROWS, _MOST_COLUMNS = 20, 12
"""Size of a table in a notebook; the middle of a larger one is left out."""


def html_view(title: str, lines: Sequence[tuple[str, str]] = (), tables: "Mapping[str, pd.DataFrame] | None" = None) -> str:
    """Return the HTML by which a notebook shows an object: a title, named lines, and tables by caption. All texts are escaped."""
    from pandas import option_context  # not needed for the command's help

    named = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in lines)
    shown = [f"<div><strong>{escape(title)}</strong></div>", f"<table><tbody>{named}</tbody></table>" if named else ""]
    for caption, table in (tables or {}).items():
        size = f" ({len(table)} rows)" if len(table) > _MOST_ROWS else ""
        shown.append(f"<div>{escape(caption)}{size}</div>" if caption else "")
        with option_context("display.max_colwidth", None):
            shown.append(table.to_html(max_rows=_MOST_ROWS, max_cols=_MOST_COLUMNS, float_format="{:.3g}".format, border=0, na_rep="–"))
    return f"<div class='dfact'>{''.join(shown)}</div>"


def format_bytes(size: float) -> str:
    """Return a number of bytes as text, in GiB, MiB, KiB or B."""
    if size >= 1 << 28:
        return f"{size / 2**30:.2f} GiB"
    if size >= 1 << 17:
        return f"{size / 2**20:.1f} MiB"
    return f"{size / 2**10:.1f} KiB" if size >= 1 << 10 else f"{size:.0f} B"


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


def section_entries(docstring: str, title: str) -> dict[str, str]:
    """Return the entries of a section of a docstring, such as ``Parameters``, by name; without it, none."""
    lines, entries, name = cleandoc(docstring).split("\n"), dict[str, str](), ""
    for line in lines[slice(*_section(lines, title))]:
        if line and not line.startswith(" "):
            name = line.partition(" :")[0]
            entries[name] = line
        elif line:
            entries[name] += f"\n{line}"
    return entries


def add_entries(docstring: str, title: str, entries: Iterable[str]) -> str:
    """Return the docstring with entries at the end of one of its sections."""
    lines = cleandoc(docstring).split("\n")
    start, stop = _section(lines, title)
    while stop > start and not lines[stop - 1]:
        stop -= 1
    return "\n".join([*lines[:stop], *entries, *lines[stop:]])


def _section(lines: Sequence[str], title: str) -> tuple[int, int]:
    """Return the range of the lines of a section, without its title, which dashes underline."""
    titles = [i for i, line in enumerate(lines[1:]) if line and not line.strip("-") and lines[i]]
    start = next((i for i in titles if lines[i] == title), None)
    if start is None:
        return len(lines), len(lines)
    return start + 2, next((i for i in titles if i > start), len(lines))
