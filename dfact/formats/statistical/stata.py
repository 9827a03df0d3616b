"""Stata: .dta files."""

import re

from dfact.formats.statistical.readstat import READSTAT, Dates, StatisticalFile, StatisticalTable
from dfact.imports.readers.base import Format, ReadOptions
from dfact.storage.input_files import InputFile

_BINARY_VERSIONS = (104, 105, 108, 110, 111, 113, 114, 115)
"""Format versions before Stata 13, each the first byte of its files; the byte order and the type of file follow."""
_SIGNATURES = (b"<stata_dta>", *(bytes((version, order, 1)) for version in _BINARY_VERSIONS for order in (1, 2)))

_FORMATS = {
    "d": Dates("1960-01-01", "D", "D"),
    "c": Dates("1960-01-01", "ms", "s"),
    "w": Dates("1960", "W", "W"),
    "m": Dates("1960-01", "M", "M"),
    "q": Dates("1960-01", "M", "M", 3),
    "h": Dates("1960-01", "M", "M", 6),
    "y": Dates("0000", "Y", "Y"),
}


def _find_dates(text: str) -> Dates | None:
    """Return the meaning of the numbers with a format such as %td, %-tcHH:MM or, of old files, %dN/D/Y."""
    match = re.match(r"%-?(?:t([cdwmqhy])|d)(.*)", text, re.IGNORECASE)
    if match is None:
        return None
    if match[1] in ("c", "C") and re.fullmatch(r"[HhMmSs:.,_/+! apAP-]+", match[2]):  # months are N, days D, years C and Y
        return Dates("", "ms", "s")
    return _FORMATS[(match[1] or "d").lower()]


def _open(file: InputFile, options: ReadOptions) -> StatisticalTable:
    source = StatisticalFile(file, "dta", "Stata", options.encoding)
    dictionary = source.dictionary()
    return StatisticalTable(source, dictionary, _find_dates, n_rows=dictionary.number_rows, n_bytes=file.signature()[0])


FORMATS = (
    Format(
        "Stata",
        (".dta",),
        READSTAT.in_child(_open),
        ("encoding",),
        tuple((0, signature) for signature in _SIGNATURES),
        extra="tables",
        modules=("pyreadstat",),
    ),
)
