"""SPSS: system files (.sav, .zsav) and portable files (.por)."""

import re

from dfact.errors import DataError
from dfact.formats.statistical.readstat import READSTAT, Dates, StatisticalFile, StatisticalTable
from dfact.imports.readers.base import Format, ReadOptions
from dfact.storage.input_files import InputFile

_ENCRYPTED = b"\x1c\0\0\0\0\0\0\0ENCRYPTED"
_PORTABLE = b"SPSSPORT"
_PORTABLE_HEADER = 600
"""Bytes in which the mark of a portable file occurs: 456, and line breaks."""

_DAY = Dates("1582-10-14", "s", "D")
_FORMATS = {
    **dict.fromkeys(("DATE", "ADATE", "EDATE", "JDATE", "SDATE", "WKYR"), _DAY),
    **dict.fromkeys(("MOYR", "QYR"), Dates("1582-10-14", "s", "M")),
    **dict.fromkeys(("DATETIME", "YMDHMS"), Dates("1582-10-14", "s", "s")),
    **dict.fromkeys(("TIME", "DTIME", "MTIME"), Dates("", "s", "s")),
}


def _find_dates(text: str) -> Dates | None:
    """Return the meaning of the numbers with a format such as ADATE10."""
    return _FORMATS.get(re.sub(r"[\d.]+$", "", text))


def _open(file: InputFile, options: ReadOptions) -> StatisticalTable:
    if file.read_start(len(_ENCRYPTED)) == _ENCRYPTED:
        raise DataError(f"{file.name} is encrypted, expected a file without a password; save it without a password in SPSS")
    source = StatisticalFile(file, "sav/zsav", "SPSS", options.encoding)
    dictionary = source.dictionary()
    if dictionary.number_rows is None:
        source = StatisticalFile(file, "sav/zsav", "SPSS", options.encoding, declares_length=False)
    return StatisticalTable(source, dictionary, _find_dates, n_rows=dictionary.number_rows, n_bytes=file.signature()[0])


def _open_portable(file: InputFile, _: ReadOptions) -> StatisticalTable:
    start = file.read_start(_PORTABLE_HEADER)
    if _PORTABLE not in start.replace(b"\r", b"").replace(b"\n", b""):
        raise DataError(f"{file.name} is not an SPSS portable file: it begins with {start[:4]!r}; export it again, or correct its ending")
    source = StatisticalFile(file, "por", "SPSS", declares_length=False)
    return StatisticalTable(source, source.dictionary(), _find_dates, n_rows=None)


FORMATS = (
    Format(
        "SPSS",
        (".sav", ".zsav"),
        READSTAT.in_child(_open),
        ("encoding",),
        ((0, b"$FL2"), (0, b"$FL3"), (0, _ENCRYPTED)),
        extra="tables",
        modules=("pyreadstat",),
    ),
    Format("SPSS portable files", (".por",), READSTAT.in_child(_open_portable), extra="tables", modules=("pyreadstat",)),
)
