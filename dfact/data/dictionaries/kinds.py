"""The dictionary next to a table, of the kind that its header shows, and what the columns of a table show without one."""

from collections.abc import Sequence
from os import PathLike

from dfact.data.dictionaries.base import Dictionary, Paths
from dfact.data.dictionaries.redcap import RedcapDictionary
from dfact.data.dictionaries.table import CodebookTable
from dfact.data.dictionaries.text_rows import Records
from dfact.data.dictionaries.uk_biobank import UKBiobankDictionary
from dfact.errors import DataError

KINDS: tuple[type[Dictionary], ...] = (RedcapDictionary, UKBiobankDictionary, CodebookTable)


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
    for kind in KINDS:
        dictionary = kind.open(records, paths)
        if dictionary is not None:
            return dictionary
    expected = "; ".join(f"{kind.header} ({kind.kind})" for kind in KINDS)
    raise DataError(f"{records.name} has columns {records.columns[:20]}, expected those of a dictionary: {expected}")


def recognize_dictionary(columns: Sequence[str]) -> Dictionary | None:
    """Return what the names of the columns of a table say: those of REDCap or UK Biobank, otherwise None."""
    return RedcapDictionary.recognize(columns) or UKBiobankDictionary.recognize(columns)
