"""SPSS: system files (.sav, .zsav) and portable files (.por)."""

import re
import struct

from dfact.data.readers.base import Format, ReadOptions
from dfact.data.readers.statistical.readstat import Dates, StatisticalFile, StatisticalTable
from dfact.errors import DataError
from dfact.storage.input_files import InputFile

_ENCRYPTED = b"\x1c\0\0\0\0\0\0\0ENCRYPTED"
_PORTABLE = b"SPSSPORT"
_PORTABLE_HEADER = 600
"""Bytes in which the mark of a portable file occurs: 456, and line breaks."""

_HEADER = 176
"""Bytes before the first record of a system file."""
_COLUMN, _LABELS, _DOCUMENTS, _EXTENSION, _END = 2, 3, 6, 7, 999
"""Types of records. Behind value labels, a record of their columns follows."""
_LONGEST_FIELD = 1 << 22

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


def _check_dictionary(file: InputFile, source: StatisticalFile) -> None:
    """Raise DataError if the records of a system file contradict each other: ReadStat reads beyond its buffers where they do."""
    size_of_file = file.signature()[0]
    with file.open() as stream:
        header = stream.read(_HEADER)
        order = "<" if header[64:65] in (b"\2", b"\3") else ">"

        def require(consistent: bool) -> None:
            if not consistent:
                raise source.damaged(f"its dictionary contradicts itself before byte {stream.tell()}")

        def read(n_bytes: int) -> bytes:
            require(0 <= n_bytes <= _LONGEST_FIELD)
            data = stream.read(n_bytes)
            require(len(data) == n_bytes)
            return data

        def integers(count: int) -> tuple[int, ...]:
            return struct.unpack(f"{order}{count}i", read(4 * count))

        def skip(n_bytes: int) -> None:
            require(0 <= n_bytes <= size_of_file)
            stream.seek(n_bytes, 1)

        starts: list[bool] = []  # of each value of 8 bytes in a row, whether a column starts there
        further = 0  # values that the text of the last column still takes
        while (kind := integers(1)[0]) != _END:
            if kind == _COLUMN:
                width, labelled, n_missing = integers(3)
                require((width == -1) == (further > 0) and -1 <= width <= 255 and -3 <= n_missing <= 3)
                starts.append(width != -1)
                further = further - 1 if width == -1 else max((width + 7) // 8 - 1, 0)
                skip(16)
                skip(-(-integers(1)[0] // 4) * 4 if labelled else 0)
                skip(8 * abs(n_missing))
            elif kind == _LABELS:
                for _ in range(integers(1)[0]):
                    skip(read(9)[-1] // 8 * 8 + 7)
                columns = integers(integers(2)[1])
                require(all(1 <= column <= len(starts) and starts[column - 1] for column in columns))
            elif kind == _DOCUMENTS:
                skip(80 * integers(1)[0])
            else:
                _, size, count = integers(3)
                require(kind == _EXTENSION and size >= 0)
                skip(size * count)
        require(further == 0)


def _open(file: InputFile, options: ReadOptions) -> StatisticalTable:
    if file.read_start(len(_ENCRYPTED)) == _ENCRYPTED:
        raise DataError(f"{file.name} is encrypted, expected a file without a password; save it without a password in SPSS")
    source = StatisticalFile(file, "sav/zsav", "SPSS", options.encoding)
    _check_dictionary(file, source)
    dictionary = source.dictionary()
    if dictionary.number_rows is None:
        source = StatisticalFile(file, "sav/zsav", "SPSS", options.encoding, declares_length=False)
    return StatisticalTable(source, dictionary, _find_dates, n_rows=dictionary.number_rows, n_bytes=file.signature()[0])


def _open_portable(file: InputFile, _: ReadOptions) -> StatisticalTable:
    start = file.read_start(_PORTABLE_HEADER)
    if _PORTABLE not in start.replace(b"\r", b"").replace(b"\n", b""):
        raise DataError(f"{file.name} is not a portable file of SPSS: it begins with {start[:4]!r}; export it again, or correct its ending")
    source = StatisticalFile(file, "por", "SPSS", declares_length=False)
    return StatisticalTable(source, source.dictionary(), _find_dates, n_rows=None)


FORMATS = (
    Format("SPSS", (".sav", ".zsav"), _open, ("encoding",), ((0, b"$FL2"), (0, b"$FL3"), (0, _ENCRYPTED)), "tables", ("pyreadstat",)),
    Format("SPSS portable files", (".por",), _open_portable, extra="tables", modules=("pyreadstat",)),
)
