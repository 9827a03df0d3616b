"""SAS: .sas7bdat files with the catalogue of their value labels, and transport files (.xpt) of versions 5 and 8."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import pandas as pd

from dfact.errors import DataError, ParameterError
from dfact.formats.statistical.readstat import READSTAT, Dates, Labels, StatisticalFile, StatisticalTable
from dfact.imports.readers.base import Format, ReadOptions
from dfact.storage.input_files import InputFile, open_input

_MAGIC = bytes.fromhex("000000000000000000000000c2ea8160b31411cfbd92080009c7318c181f1011")
_CATALOGUE_MAGIC = _MAGIC.replace(b"\x60", b"\x63", 1)
_RECORD = 80
_HEADER = b"HEADER RECORD*******"
_SHORTEST_COLUMN = 88
"""Bytes that describe a column in a transport file, at least: its names, label and formats."""

_DAY = Dates("1960-01-01", "D", "D")
_SECOND = Dates("1960-01-01", "s", "s")
_CLOCK = Dates("", "s", "s")
_FORMATS = {
    **dict.fromkeys(("DATE", "WEEKDATE", "WEEKDATX", "WORDDATE", "WORDDATX", "JULIAN", "JULDAY", "MONYY", "YYMON", "YYQ", "NENGO"), _DAY),
    **dict.fromkeys(("DATETIME", "DATEAMPM", "MDYAMPM", "E8601DT", "IS8601DT", "B8601DT", "B8601DN", "E8601DN"), _SECOND),
    **dict.fromkeys(("DTDATE", "DTMONYY", "DTWKDATX", "DTYEAR", "DTYYQC"), Dates("1960-01-01", "s", "D")),
    **dict.fromkeys(("TIME", "TIMEAMPM", "TOD", "HHMM", "HOUR", "MMSS", "E8601TM", "IS8601TM", "B8601TM"), _CLOCK),
}
_DAYS = re.compile(r"(DDMMYY|MMDDYY|YYMMDD)[BCDNPS]?|(MMYY|YYMM|YYQR?)[CDNPS]?|(E8601|IS8601|B8601)DA")


def _find_dates(text: str) -> Dates | None:
    """Return the meaning of the numbers with a format such as YYMMDD10."""
    name = re.sub(r"[\d.]+$", "", text.upper())
    return _DAY if _DAYS.fullmatch(name) else _FORMATS.get(name)


def _read_catalogue(path: str, encoding: str | None) -> Labels:
    """Read value labels by format from a .sas7bcat file."""
    file = open_input(path)
    if not isinstance(file, InputFile) or file.read_start(len(_CATALOGUE_MAGIC)) != _CATALOGUE_MAGIC:
        raise ParameterError(f"labels is {path!r}, no catalogue of SAS, expected a .sas7bcat file; pass another, or leave it out")
    return dict(StatisticalFile(file, "sas7bcat", "SAS catalogues", encoding).dictionary().value_labels)


def _labels_by_column(dictionary: Any, options: ReadOptions) -> Labels | None:
    if options.labels is None:
        return None
    catalogue = _read_catalogue(options.labels, options.encoding)
    formats = dictionary.variable_to_label
    labels = {name: catalogue[text] for name, text in formats.items() if text in catalogue}
    if not labels:
        raise ParameterError(
            f"labels is {options.labels!r} with the formats {', '.join(catalogue) or 'none'}, expected one that a column uses "
            f"({', '.join(sorted(set(formats.values()))) or 'no column has a format'}); pass another catalogue, or leave it out"
        )
    return labels


def _open(file: InputFile, options: ReadOptions) -> StatisticalTable:
    source = StatisticalFile(file, "sas7bdat", "SAS", options.encoding)
    dictionary = source.dictionary()
    labels = _labels_by_column(dictionary, options)
    size = file.signature()[0]
    return StatisticalTable(source, dictionary, _find_dates, n_rows=dictionary.number_rows, n_bytes=size, labels=labels)


class _Splice:
    """A stream of a header followed by ``length`` bytes of another stream from ``offset``."""

    def __init__(self, header: bytes, stream: BinaryIO, offset: int, length: int) -> None:
        self._header, self._stream, self._offset, self._end = header, stream, offset, len(header) + length
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        start, inside = self._position, len(self._header)
        stop = self._end if size < 0 else min(self._end, start + size)
        data = self._header[start:stop]
        if stop > max(start, inside):
            self._stream.seek(self._offset + max(start - inside, 0))
            data += self._stream.read(stop - max(start, inside))
        self._position += len(data)
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = position + (0, self._position, self._end)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True)
class _Member:
    """A dataset in a transport file."""

    name: str
    header: bytes
    """Records before its rows, as in a file of this dataset alone."""
    offset: int
    row_length: int
    n_rows: int
    fault: str = ""
    """Reason why this one cannot be read."""


@dataclass(frozen=True, kw_only=True)
class _TransportFile(StatisticalFile):
    """A dataset in a transport file. Its rows have one length.

    The library skips rows by reading them, so it is given the header and the rows that are wanted as a file of their own.
    """

    member: _Member

    def content(self) -> _Splice:
        return self._rows(0, self.member.n_rows)

    def _rows(self, start: int, n_rows: int) -> _Splice:
        length = self.member.row_length
        return _Splice(self.member.header, self.file.open(), self.member.offset + start * length, n_rows * length)

    def read(self, columns: Sequence[str], start: int, n_rows: int) -> pd.DataFrame:
        frame = self.read_columns(lambda: self._rows(start, n_rows), columns)
        return frame.reindex(range(n_rows))  # the library takes blank rows at the end for padding


def _open_transport(file: InputFile, options: ReadOptions) -> StatisticalTable:
    with file.open() as stream:
        members = list(_members(stream, file))
    names = [member.name for member in members]
    if options.object is not None and options.object not in names:
        raise ParameterError(f"object is {options.object!r}, expected one of {', '.join(names)}, the datasets of {file.name}")
    if options.object is None and len(members) > 1:
        raise ParameterError(
            f"{file.name} holds {len(members)} datasets ({', '.join(names)}), expected one; choose one with object= (--object)"
        )
    member = members[0 if options.object is None else names.index(options.object)]
    if member.fault:
        raise _damaged(file, f"the dataset {member.name} {member.fault}" if len(members) > 1 else f"its dataset {member.fault}")
    if not member.row_length:
        raise DataError(
            f"{file.name}: the dataset {member.name} is empty, expected columns and rows; choose another one with object= (--object)"
        )
    source = _TransportFile(file, "xport", "SAS transport", options.encoding, declares_length=False, member=member)
    dictionary = source.dictionary()
    labels = _labels_by_column(dictionary, options)
    size = member.n_rows * member.row_length
    return StatisticalTable(source, dictionary, _find_dates, n_rows=member.n_rows, n_bytes=size, labels=labels)


def _members(stream: BinaryIO, file: InputFile) -> Iterator[_Member]:
    """Find the datasets: their headers, and where their rows are."""
    library = stream.read(3 * _RECORD)
    *starts, end = *_find_headers(stream, b"MEMB"), stream.seek(0, 2)
    if not starts or end % _RECORD:
        raise _damaged(file, f"it has {end} bytes, expected records of {_RECORD}" if starts else "it holds no dataset")
    for start, stop in pairwise([*starts, end]):
        stream.seek(start)
        member, _, description, _, columns = (stream.read(_RECORD) for _ in range(5))
        if not columns.startswith(_HEADER + b"NAM") or not member[74:78].isdigit() or not columns[53:58].isdigit():
            raise _damaged(file, f"the dataset at byte {start} does not describe its columns")
        name = description[8 : 40 if b"V8" in columns else 16].split(b"\0")[0].decode("ascii", "replace").strip()
        width, n_columns = int(member[74:78]), int(columns[53:58])
        records = stream.read(n_columns * width)
        offset = next((at + _RECORD for at in _find_headers(stream, b"OBS", start + 5 * _RECORD) if at < stop), None)
        row_length = sum(int.from_bytes(records[i + 4 : i + 6]) for i in range(0, n_columns * width, width or 1))
        if n_columns == 0:
            yield _Member(name, b"", start, 0, 0)
        elif width < _SHORTEST_COLUMN or len(records) < n_columns * width or offset is None:
            yield _Member(name, b"", start, 0, 0, f"ends before the rows of its {n_columns} columns")
        elif row_length == 0:
            yield _Member(name, b"", start, 0, 0, "has rows without bytes")
        else:
            stream.seek(start)
            header = stream.read(offset - start)
            n_rows, fault = _count_rows(stream, header[-_RECORD:], offset, stop, row_length)
            yield _Member(name, library + header, offset, row_length, n_rows, fault)


def _find_headers(stream: BinaryIO, kind: bytes, start: int = 0) -> Iterator[int]:
    """Yield the positions of header records of a kind, which begin at multiples of 80 bytes."""
    block = _RECORD << 16
    position = start
    while True:
        stream.seek(position)
        data = stream.read(block)
        at = data.find(_HEADER + kind)
        while at >= 0:
            if at % _RECORD == 0:
                yield position + at
            at = data.find(_HEADER + kind, at + 1)
        if len(data) < block:
            return
        position += block


def _count_rows(stream: BinaryIO, header: bytes, start: int, stop: int, row_length: int) -> tuple[int, str]:
    """Return the number of rows, and what is wrong with them, "" for nothing.

    Version 8 declares them, version 5 pads the last record with spaces, which may look like rows of text.
    """
    n_rows, rest = divmod(stop - start, row_length)
    declared = header[48:63].strip()
    if b"OBSV8" in header and declared.isdigit() and int(declared):
        if int(declared) > n_rows:
            return n_rows, f"declares {int(declared)} rows and holds {n_rows}"
        return int(declared), ""
    stream.seek(stop - rest)
    if stream.read(rest).strip(b" "):
        return n_rows, f"ends within row {n_rows} (counted from 0)"
    while n_rows and rest + row_length < _RECORD:
        stream.seek(start + (n_rows - 1) * row_length)
        if stream.read(row_length).strip(b" "):
            break
        n_rows, rest = n_rows - 1, rest + row_length
    return n_rows, ""


def _damaged(file: InputFile, found: str) -> DataError:
    return DataError(f"{file.name} cannot be read in the format SAS transport: {found}; the file is damaged or incomplete: export it again")


FORMATS = (
    Format(
        "SAS", (".sas7bdat",), READSTAT.in_child(_open), ("encoding", "labels"), ((0, _MAGIC),), extra="tables", modules=("pyreadstat",)
    ),
    Format(
        "SAS transport",
        (".xpt",),
        READSTAT.in_child(_open_transport),
        ("encoding", "labels", "object"),
        ((0, _HEADER + b"LIB"),),
        extra="tables",
        modules=("pyreadstat",),
    ),
)
