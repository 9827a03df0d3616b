"""Rows of small tables of text: dictionaries and codings, from delimited text or from any format of tables."""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from html import unescape
from os import PathLike
from typing import Any, NamedTuple

from dfact.data.readers.columnar.columns import read_texts
from dfact.data.readers.formats import open_table
from dfact.errors import DataError
from dfact.storage.input_files import InputFile, open_input

_TEXT = (".csv", ".tsv", ".txt")
_DELIMITERS = "\t;,"
_HEADER_BYTES = 1 << 20
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")


class Record(NamedTuple):
    """A row: its cells without the spaces around them, and its number, of which :meth:`Records.position` makes a text."""

    cells: Sequence[str]
    number: int


class Records:
    """A file of text cells below a header. The header is read at once, the rows when they are asked for."""

    def __init__(self, source: str | PathLike[str]) -> None:
        file = open_input(source)
        self.name = file.name
        self._source = source
        self._file = file if isinstance(file, InputFile) and file.suffixes[-1:] and file.suffixes[-1] in _TEXT else None
        self._delimiter = ","
        if self._file is None:
            self._table = open_table(source)
            self.columns = list(self._table.columns)
            return
        text = self._decode(self._file.read_start(_HEADER_BYTES), final=False)
        first = text.partition("\n")[0]
        self._delimiter = max(_DELIMITERS, key=first.count)
        self.columns = [cell.strip() for cell in next(self._read(text, csv.QUOTE_MINIMAL), ([], 0))[0]]

    def find(self, *names: str) -> int | None:
        """Return the number of the column with one of these names, in any case; None without one."""
        positions = {column.casefold(): j for j, column in reversed(list(enumerate(self.columns)))}
        return next((positions[name] for name in names if name in positions), None)

    def require(self, *names: str) -> int:
        """Return the number of the column with one of these names; raise DataError without one."""
        found = self.find(*names)
        if found is None:
            raise DataError(f"{self.name} has columns {self.columns[:20]}, expected a column {names[0]!r}; add it")
        return found

    def __iter__(self) -> Iterator[Record]:
        if self._file is None:
            yield from self._table_rows()
            return
        text, quoting = self._content
        rows = self._read(text, quoting)
        next(rows, None)
        for cells, line in rows:
            if len(cells) != len(self.columns):
                raise DataError(
                    f"{self.name}: line {line} has {len(cells)} cells, expected {len(self.columns)} as in the header; export it again"
                )
            yield Record([cell.strip() for cell in cells], line)

    def position(self, record: Record) -> str:
        """Describe the position of a row in the file."""
        return f"{self.name}: {self._table.row_position(record.number) if self._file is None else f'line {record.number}'}"

    @cached_property
    def _content(self) -> tuple[str, int]:
        """The text, and whether quotation marks enclose cells: those of UK Biobank's files may stand alone."""
        assert self._file is not None
        with self._file.open() as stream:
            text = self._decode(stream.read())
        if self._delimiter == "\t" and '"' in text:
            try:
                enclosing = all(len(cells) == len(self.columns) for cells, _ in self._read(text, csv.QUOTE_MINIMAL))
            except DataError:
                enclosing = False
            return text, csv.QUOTE_MINIMAL if enclosing else csv.QUOTE_NONE
        return text, csv.QUOTE_MINIMAL

    def _decode(self, data: bytes, *, final: bool = True) -> str:
        encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
        try:
            return codecs.getincrementaldecoder(encoding)().decode(data, final)
        except UnicodeDecodeError as error:
            found = f"byte 0x{data[error.start]:02x} at {error.start} is not {'UTF-16' if encoding == 'utf-16' else 'UTF-8'}"
            raise DataError(f"{self.name}: {found}, expected text; save the file as UTF-8") from error

    def _read(self, text: str, quoting: Any) -> Iterator[tuple[list[str], int]]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter, quoting=quoting, strict=True)
        line = 1
        try:
            for cells in reader:
                if cells:
                    yield cells, line
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{self.name}: line {line} cannot be parsed: {error}; check for an unclosed quotation mark") from error

    def _table_rows(self) -> Iterator[Record]:
        row = 0
        for texts in read_texts(self._table, self.columns):
            columns = [column.to_pylist() for column in texts.columns]
            for cells in zip(*columns, strict=True):
                yield Record([(cell or "").strip() for cell in cells], row)
                row += 1


def plain_text(text: str) -> str:
    """Return the text of a label without tags of HTML, with single spaces."""
    return " ".join(unescape(_TAG.sub(" ", text)).split())


def parse_choices(choices: str) -> dict[str, str]:
    """Return the labels by code of "code, label | code, label"; a label may hold commas, and a choice without one is its own label."""
    pairs = (choice.partition(",") for choice in choices.split("|") if choice.strip())
    return {code.strip(): plain_text(label) if comma else code.strip() for code, comma, label in pairs}


def as_number(text: str) -> float | None:
    """Return the number that a code is; None for text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number and "_" not in text else None
