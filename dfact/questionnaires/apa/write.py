"""Tables in APA style as HTML and Markdown files."""

import re
from collections.abc import Sequence
from os import PathLike

from dfact.export.files import check_destination
from dfact.questionnaires.apa.page import render_tables
from dfact.questionnaires.apa.table import ApaTable, Cell
from dfact.storage.files import atomic_file
from dfact.storage.location import parse_location, suffix
from dfact.text import escape_control

FORMATS = (".html", ".md")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|$~&^@])")
"""Characters that Markdown or HTML within it may interpret."""


def write_tables(tables: Sequence[ApaTable], path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write tables in APA style to one .html or .md file.

    Raises
    ------
    ParameterError
        ``path`` has another ending.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    path = parse_location(path)
    check_destination(path, overwrite=overwrite, formats=FORMATS)
    text = as_markdown(tables) if suffix(path) == ".md" else render_tables(tables)
    with atomic_file(path, overwrite=overwrite) as partial:
        partial.write_bytes(text.encode("utf-8", "replace"))


def as_markdown(tables: Sequence[ApaTable]) -> str:
    """Return the tables, numbered from 1."""
    return "\n\n".join(_as_markdown(table, position) for position, table in enumerate(tables, start=1)) + "\n"


def _as_markdown(table: ApaTable, position: int) -> str:
    width = len(table.headings)
    lines = [f"**Table {position}**", "", f"*{table.title}*", "", _row(table.headings), _row([":--"] + ["--:"] * (width - 1))]
    for group in table.groups:
        if group.heading:
            lines.append(_row([f"**{_escaped(group.heading)}**"] + [""] * (width - 1)))
        lines += [_row([_cell(cell) for cell in row]) for row in group.rows]
    return "\n".join([*lines, "", f"*Note.* {table.note}"])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**" if cell.bold else text


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", escape_control(" ".join(text.split())))
