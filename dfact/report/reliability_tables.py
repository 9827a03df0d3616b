"""A description of a questionnaire as a csv file, an Excel workbook or an HTML page."""

from os import PathLike
from pathlib import Path

import pandas as pd

from dfact.report.apa.description import description_tables
from dfact.report.apa.write import FORMATS as APA_FORMATS
from dfact.report.apa.write import write_tables
from dfact.report.document import DefinitionList, Document, Section, make_table
from dfact.report.export import check_destination
from dfact.report.html.page import render_page
from dfact.report.reliability import Description
from dfact.report.spreadsheets import without_formula, write_workbook
from dfact.storage.files import atomic_file

FORMATS = (".csv", ".xlsx", ".html")
_COUNTS = ("key", "n", "items", "n_lowest")


def check_description_path(path: str | PathLike[str], *, style: str | None = None, overwrite: bool) -> None:
    """Raise an error before the work if a description cannot be written."""
    check_destination(Path(path), overwrite=overwrite, formats=FORMATS if style is None else APA_FORMATS)


def write_description(
    description: Description, path: str | PathLike[str], *, table: str = "items", style: str | None = None, overwrite: bool = False
) -> None:
    """Write the tables of a description: both to an .xlsx or an .html, or one of them, "items" or "scales", to a .csv.

    With the style "apa", both become tables for a paper, in an .html or an .md.

    Raises
    ------
    ParameterError
        ``path`` has another ending.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    DfactError
        ``path`` ends in .xlsx, and openpyxl is not installed.
    """
    path = Path(path)
    check_description_path(path, style=style, overwrite=overwrite)
    if style is not None:
        write_tables(description_tables(description), path, overwrite=overwrite)
        return
    if path.suffix == ".xlsx":
        tables = {"scales": description.scales, "items": description.items, "adequacy": _adequacy(description)}
        write_workbook(path, tables)
        return
    with atomic_file(path) as partial:
        if path.suffix == ".csv":
            shown = description.items if table == "items" else description.scales
            inert = shown.rename(without_formula).map(lambda value: without_formula(value) if isinstance(value, str) else value)
            inert.to_csv(partial)
        else:
            partial.write_bytes(render_page(make_description_document(description)).encode("utf-8", "replace"))


def make_description_document(description: Description) -> Document:
    """Return the page of a description."""
    d = description
    facts = [
        ("answers", f"{d.n} participants × {len(d.items)} items"),
        ("missing answers", d.missing),
        ("correlations", d.correlation),
        *((str(name), f"{value:.4g}") for name, value in _adequacy(d)["value"].items()),
        *([("note", d.note)] if d.note else []),
    ]
    formats = {str(name): "{:.0f}" if name in _COUNTS else "{:.2f}" for table in (d.scales, d.items) for name in table}
    scales = make_table(d.scales, "Reliability of the scales, with 95 % intervals of alpha", formats=formats)
    items = make_table(d.items, "Items, reversed where their key is -1", formats=formats)
    sections = [
        Section("adequacy", "Answers", [DefinitionList(facts)]),
        Section("scales", "Scales", [scales]),
        Section("items", "Items", [items]),
    ]
    return Document("Questionnaire", "Items and scales", sections)


def _adequacy(description: Description) -> pd.DataFrame:
    """Return KMO and Bartlett's test as a table."""
    values = {"KMO": description.kmo} | {f"Bartlett {name}": value for name, value in description.bartlett.items()}
    return pd.DataFrame({"value": values}).rename_axis("measure")
