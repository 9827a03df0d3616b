"""Tables in APA style as HTML and Markdown files."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from dfact.export.files import check_destination
from dfact.report.apa.markdown import as_markdown
from dfact.report.apa.table import ApaTable
from dfact.report.html.apa import render_tables
from dfact.storage.files import atomic_file

FORMATS = (".html", ".md")


def write_tables(tables: Sequence[ApaTable], path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write tables in APA style to one .html or .md file.

    Raises
    ------
    ParameterError
        ``path`` has another ending.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    path = Path(path)
    check_destination(path, overwrite=overwrite, formats=FORMATS)
    text = as_markdown(tables) if path.suffix == ".md" else render_tables(tables)
    with atomic_file(path) as partial:
        partial.write_bytes(text.encode("utf-8", "replace"))
