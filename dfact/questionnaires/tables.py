"""A description of a questionnaire as a csv file, an Excel workbook or an HTML page."""

from os import PathLike

import pandas as pd

from dfact.export.files import check_destination
from dfact.export.spreadsheets import without_formula, write_workbook
from dfact.questionnaires.apa.description import description_tables
from dfact.questionnaires.apa.write import FORMATS as APA_FORMATS
from dfact.questionnaires.apa.write import write_tables
from dfact.questionnaires.description import Description
from dfact.report.document import DefinitionList, Document, Section, Table, make_table
from dfact.report.html.page import render_page
from dfact.storage.files import atomic_file
from dfact.storage.location import parse_location, suffix

FORMATS = (".csv", ".xlsx", ".html")
_FORMATS = dict.fromkeys(("key", "n", "items", "n_pairwise_min"), "{:.0f}") | dict.fromkeys(("missing", "floor", "ceiling"), "{:.1%}")
_HEADINGS = {
    "text": "wording",
    "n_pairwise_min": "min. n",
    "alpha": "α",
    "ci_low": "low",
    "ci_high": "high",
    "std_alpha": "std. α",
    "lambda6": "λ6",
    "omega": "ω",
    "omega_total": "ωₜ",
    "omega_hierarchical": "ωₕ",
    "ecv": "ECV",
    "average_r": "r̄",
    "sd": "SD",
    "r_drop": "item-rest r",
    "alpha_if_dropped": "α if dropped",
    "msa": "MSA",
}
"""Headings of columns on the page, where they differ from the names."""


def check_description_path(path: str | PathLike[str], *, style: str | None = None, overwrite: bool) -> None:
    """Raise an error before the work if a description cannot be written."""
    check_destination(parse_location(path), overwrite=overwrite, formats=FORMATS if style is None else APA_FORMATS)


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
    path = parse_location(path)
    check_description_path(path, style=style, overwrite=overwrite)
    if style is not None:
        write_tables(description_tables(description), path, overwrite=overwrite)
        return
    if suffix(path) == ".xlsx":
        tables = {"scales": description.scales, "items": description.items, "adequacy": _adequacy(description)}
        write_workbook(path, tables, overwrite=overwrite)
        return
    with atomic_file(path, overwrite=overwrite) as partial:
        if suffix(path) == ".csv":
            shown = description.items if table == "items" else description.scales
            inert = shown.rename(without_formula).map(lambda value: without_formula(value) if isinstance(value, str) else value)
            inert.to_csv(partial)
        else:
            partial.write_bytes(render_page(make_description_document(description)).encode("utf-8", "replace"))


def make_description_document(description: Description) -> Document:
    """Return the page of a description."""
    scales = _page_table(description.scales, "Reliability of the scales, with 95% intervals of alpha")
    items = _page_table(description.items, "Items, reversed where their key is -1")
    sections = [
        Section("adequacy", "Answers", [DefinitionList(description.summary())]),
        Section("scales", "Scales", [scales]),
        Section("items", "Items", [items]),
    ]
    return Document("Questionnaire", "Items and scales", sections)


def _page_table(table: pd.DataFrame, caption: str) -> Table:
    """Return a table of the page: wordings next to the items, short headings, and no column of notes without any."""
    names = [str(name) for name in table if name not in ("text", "note")]
    names = [*(["text"] if "text" in table else []), *names, *(["note"] if (table["note"] != "").any() else [])]
    formats = {_HEADINGS.get(name, name): _FORMATS.get(name, "{:.2f}") for name in names}
    return make_table(table[names].rename(columns=_HEADINGS), caption, formats=formats)


def _adequacy(description: Description) -> pd.DataFrame:
    """Return KMO and the test that no two items are correlated as a table."""
    values = {"KMO": description.kmo} | {f"{description.bartlett.name} {name}": value for name, value in description.bartlett.items()}
    return pd.DataFrame({"value": values}).rename_axis("measure")
