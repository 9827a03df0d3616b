"""The dictionary next to a table, of the kind that its header shows, and what the columns of a table show without one."""

from collections.abc import Sequence
from functools import cache
from os import PathLike

from dfact.catalogue import INSTALLED, MISSING, load
from dfact.errors import DataError
from dfact.imports.dictionaries.base import Dictionary, Paths
from dfact.imports.dictionaries.table import CodebookTable
from dfact.imports.dictionaries.text_rows import Records


@cache
def kinds() -> tuple[type[Dictionary], ...]:
    """Return the kinds of dictionaries, those of slices first: a header of theirs may have the columns of a codebook, too."""
    return (*(load(name) for each in INSTALLED for name in each.dictionaries), CodebookTable)


def open_dictionary(path: str | PathLike[str], codings: str | PathLike[str] | Paths = ()) -> Dictionary:
    """Open a dictionary, of the kind that its header shows.

    Parameters
    ----------
    path : str or path
        A data dictionary of REDCap or UK Biobank, or a codebook with the columns item and text, levels, missing, keying or group:
        csv, tsv or txt, or any other format of tables.
    codings : path or paths
        Codings of UK Biobank; project information (missing data codes) or the list of events of REDCap.

    Raises
    ------
    DataError
        The header belongs to no dictionary, or a row is invalid.
    StoreError
        A file cannot be read.
    """
    records = Records(path)
    paths = [codings] if isinstance(codings, (str, PathLike)) else list(codings)
    for kind in kinds():
        dictionary = kind.open(records, paths)
        if dictionary is not None:
            return dictionary
    expected = "; ".join(f"{kind.header} ({kind.kind})" for kind in kinds())
    missing = "".join(f"; {each.missing('any other dictionary')}" for each in MISSING if each.dictionaries)
    raise DataError(f"{records.name} has columns {records.columns[:20]}, expected those of a dictionary: {expected}{missing}")


def recognize_dictionary(columns: Sequence[str]) -> Dictionary | None:
    """Return what the names of the columns of a table say, such as those of REDCap or UK Biobank; otherwise None."""
    return next((found for kind in kinds() if (found := kind.recognize(columns)) is not None), None)
