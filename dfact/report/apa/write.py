"""Tables in APA style as HTML and Markdown files."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from dfact.models.estimator import Factorization
from dfact.report.apa.loadings import loadings_table
from dfact.report.apa.markdown import as_markdown
from dfact.report.apa.table import ApaTable
from dfact.report.export import check_destination
from dfact.report.html.apa import render_tables
from dfact.report.tables import Texts
from dfact.storage.files import atomic_file

FORMATS = (".html", ".md")


def write_apa_loadings(model: Factorization, path: str | PathLike[str], *, texts: Texts = None, overwrite: bool = False) -> None:
    """Write the loadings of factors as a table in APA style to an .html or .md file; see :func:`dfact.report.apa.loadings.loadings_table`.

    Raises
    ------
    ParameterError
        ``path`` has another ending, or the model has no factors of items.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    check_destination(Path(path), overwrite=overwrite, formats=FORMATS)
    write_tables([loadings_table(model, texts)], path, overwrite=overwrite)


def write_tables(tables: Sequence[ApaTable], path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write tables in APA style to one .html or .md file."""
    path = Path(path)
    check_destination(path, overwrite=overwrite, formats=FORMATS)
    text = as_markdown(tables) if path.suffix == ".md" else render_tables(tables)
    with atomic_file(path) as partial:
        partial.write_bytes(text.encode("utf-8", "replace"))
