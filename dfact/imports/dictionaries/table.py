"""Codebooks of one row for each item: wording, levels, missing codes, keying and scale or group."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import ClassVar, Self

from dfact.data.codebook import Key
from dfact.errors import DataError, ParameterError
from dfact.imports.dictionaries.base import Dictionary, Paths
from dfact.imports.dictionaries.text_rows import Records, as_number
from dfact.imports.readers.base import MissingCodes, Variable

_SCALE, _KEY = ("scale", "group"), ("key", "keying")
"""Names of the columns with the scale of an item, and with its key."""
_CONTENT = ("text", "levels", "missing", *_SCALE, *_KEY)
_ROW_NAMES = ("rownames", "row.names", "row_names", "row names", "")
"""Names of a column with the row names of a data frame of R."""
_REVERSED, _STRAIGHT = re.compile(r"-.*|r|reversed?", re.IGNORECASE), re.compile(r"|NA|nan|\+.*|[01](\.0)?", re.IGNORECASE)


@dataclass(frozen=True)
class CodebookTable(Dictionary):
    """The rows of a codebook by item."""

    name: str = ""
    rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Cells by item and by column, whose name is in lower case."""
    positions: Mapping[str, str] = field(default_factory=dict)
    """Position of each item in the file."""
    kind: ClassVar[str] = "codebook"
    header: ClassVar[str] = f"'item' and one of {', '.join(map(repr, _CONTENT))}"

    @classmethod
    def open(cls, records: Records, codings: Paths) -> Self | None:
        columns = [column.casefold() for column in records.columns]
        item, row_names = records.find("item"), records.find(*_ROW_NAMES)
        if row_names is not None and item is not None and "text" not in columns:
            columns[item] = "text"  # psych's dictionaries have the items as row names, and their wording in the column Item
            item = row_names
        if item is None or not {*_CONTENT} & {*columns}:
            return None
        if codings:
            raise ParameterError(f"codings= (--codings) is given with {records.name}, a codebook with its own levels; leave it out")
        rows: dict[str, Mapping[str, str]] = {}
        positions: dict[str, str] = {}
        for record in records:
            name = record.cells[item]
            if name in rows:
                raise DataError(f"{records.position(record)} has the item {name!r} again, expected each item once; remove one")
            if name:
                rows[name] = dict(zip(columns, record.cells, strict=True))
                positions[name] = records.position(record)
        return cls(records.name, rows, positions)

    def column(self, name: str) -> dict[str, str]:
        """Return the cells of a column by item, without empty ones."""
        return {item: cell for item, row in self.rows.items() if (cell := row.get(name, ""))}

    def variables(self, columns: Sequence[str]) -> dict[str, Variable]:
        return {column: self._variable(column, self.rows[column]) for column in columns if column in self.rows}

    def reversed_items(self, columns: Sequence[str], keying: str) -> list[str]:
        if not any(keying.casefold() in row for row in self.rows.values()):
            return super().reversed_items(columns, keying)
        keys = self.keys(keying)
        return [column for column in columns if keys.get(column) == -1]

    def keys(self, keying: str) -> Mapping[str, Key]:
        """Return the keys 1 or −1 in a column, by item; raise DataError for a cell that is none."""
        cells = self.column(keying.casefold())
        keys = {item: _key(cell) for item, cell in cells.items()}
        for item, key in keys.items():
            if key == 0:
                raise DataError(f"{self.positions[item]}, column {keying!r} holds {cells[item]!r}, expected 1 or -1 (reversed); correct it")
        return keys

    @cached_property
    def item_keys(self) -> Mapping[str, Key]:
        """Keys by item, of the first of the columns that have them."""
        return next((self.keys(name) for name in _KEY if self.column(name)), {})

    @cached_property
    def item_scales(self) -> dict[str, str]:
        """Scales by item."""
        return next((found for name in _SCALE if (found := self.column(name))), {})

    def _variable(self, item: str, row: Mapping[str, str]) -> Variable:
        levels, missing = row.get("levels", ""), row.get("missing", "")
        labels = self._labels(item, levels)
        texts: tuple[str, ...] = ()
        if "<" in levels and not labels:
            texts = tuple(text.strip() for text in levels.split("<"))
            if "" in texts or len(set(texts)) < len(texts):
                raise self._bad_levels(item, levels)
        codes = dict(_coded(code) for code in re.split(r"\|" if re.search("[|=]", missing) else "[,;]", missing) if code.strip())
        numbers = {code: as_number(code) for code in codes}
        return Variable(
            item,
            type="text" if texts else None,
            wording=row.get("text", ""),
            labels=labels | {number: codes[code] for code, number in numbers.items() if number is not None and codes[code]},
            categories=texts,
            ordered=bool(texts),
            missing=MissingCodes(tuple(code if number is None else number for code, number in numbers.items())),
            scale=self.item_scales.get(item, ""),
            key=next((_key(cell) for name in _KEY if (cell := row.get(name, ""))), 0),
        )

    def _labels(self, item: str, levels: str) -> dict[float, str]:
        """Return the labels by code of "code=label | code=label"; none of texts in order, "a<b<c"."""
        if "=" not in levels:
            if levels and "<" not in levels:
                raise self._bad_levels(item, levels)
            return {}
        pairs = [_coded(pair) for pair in levels.split("|")]
        labels = {number: label for code, label in pairs if (number := as_number(code)) is not None}
        if len(labels) < len(pairs):
            raise self._bad_levels(item, levels)
        return labels

    def _bad_levels(self, item: str, levels: str) -> DataError:
        expected = "different codes as '1=never | 2=often', or different texts in their order as 'never<often'"
        return DataError(f"{self.positions[item]}, column 'levels' holds {levels!r}, expected {expected}; correct it")


def _key(cell: str) -> Key:
    """Return the key in a cell: −1 for reversed, 1, or 0 for a cell that is none."""
    return -1 if _REVERSED.fullmatch(cell) else 1 if _STRAIGHT.fullmatch(cell) else 0


def _coded(text: str) -> tuple[str, str]:
    code, _, label = text.partition("=")
    return code.strip(), label.strip()


@dataclass(frozen=True)
class ItemTable:
    """Texts, scales and keys (1 or −1) by item, without those that the file leaves empty."""

    texts: Mapping[str, str]
    scales: Mapping[str, str]
    keys: Mapping[str, Key]


def read_items(path: str | PathLike[str]) -> ItemTable:
    """Read the texts, scales (or groups) and keys of items from a codebook.

    Raises DataError unless the file has a column ``item`` and one of the columns ``text``, ``scale``, ``group`` and ``key``.
    """
    records = Records(path)
    codebook = CodebookTable.open(records, ())
    if codebook is None or not {"text", *_SCALE, *_KEY} & {column.casefold() for column in records.columns}:
        raise DataError(f"{records.name} has columns {records.columns}, expected item, and text, scale, group or key; name the columns so")
    return ItemTable(codebook.column("text"), codebook.item_scales, codebook.item_keys)
