"""Rows of small tables of text: dictionaries and codings, from delimited text or from any format of tables."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import unescape
from itertools import islice
from os import PathLike
from typing import NamedTuple

from dfact.errors import DataError
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.columnar.columns import read_texts
from dfact.imports.readers.formats import open_table
from dfact.imports.readers.text.text_files import TextFile, is_decoded, open_text
from dfact.storage.input_files import InputFile, open_input

_TEXT = (".csv", ".tsv", ".txt")
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
        self._text: TextFile | None = None
        if isinstance(file, InputFile) and file.suffixes[-1:] and file.suffixes[-1] in _TEXT:
            self._text = replace(open_text(file, ReadOptions())[0], strict=True, remedy="save the file as UTF-8")
            self.columns = [cell.strip() for cell in next(self._text_rows(self._text), (0, []))[1]]
        else:
            self._table = open_table(source)
            self.columns = list(self._table.columns)

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
        if self._text is None:
            yield from self._table_rows()
            return
        for line, cells in islice(self._text_rows(self._quoted(self._text)), 1, None):
            if len(cells) != len(self.columns):
                raise DataError(
                    f"{self.name}: line {line} has {len(cells)} cells, expected {len(self.columns)} as in the header; export it again"
                )
            yield Record([cell.strip() for cell in cells], line)

    def position(self, record: Record) -> str:
        """Describe the position of a row in the file."""
        return f"{self.name}: {self._table.row_position(record.number) if self._text is None else f'line {record.number}'}"

    def _quoted(self, text: TextFile) -> TextFile:
        """Return the text as one whose quotation marks enclose cells, or not: those of UK Biobank's files may stand alone."""
        if text.delimiter != "\t":
            return text
        try:
            enclosing = all(len(cells) == len(self.columns) for _, cells in self._text_rows(text))
        except DataError:
            enclosing = False
        return text if enclosing else replace(text, quoting=csv.QUOTE_NONE)

    def _text_rows(self, text: TextFile) -> Iterator[tuple[int, list[str]]]:
        """Yield the records of a text with the numbers of their lines, without empty lines."""
        for line, cells in text.records():
            if not all(map(is_decoded, cells)):
                raise text.undecodable()
            if cells:
                yield line, cells

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
