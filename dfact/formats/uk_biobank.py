"""UK Biobank: fields, instances and arrays from the names of columns, and meanings from the dictionary and the codings."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from dfact.errors import DataError, ParameterError
from dfact.imports.dictionaries.base import Dictionary, Paths
from dfact.imports.dictionaries.text_rows import Records, as_number
from dfact.imports.readers.base import CellType, MissingCodes, Variable

_NAMES = (
    re.compile(r"(?P<field>\d+)-(?P<instance>\d+)\.(?P<array>\d+)"),
    re.compile(r"f\.(?P<field>\d+)\.(?P<instance>\d+)\.(?P<array>\d+)"),
    re.compile(r"[xX](?P<field>\d+)[._](?P<instance>\d+)[._](?P<array>\d+)"),
    re.compile(r"(?:n|s|ts)_(?P<field>\d+)_(?P<instance>\d+)_(?P<array>\d+)"),
    re.compile(r"(?:participant\.)?p(?P<field>\d+)(?:_i(?P<instance>\d+))?(?:_a(?P<array>\d+))?"),
)
_ID = re.compile(r"(?:f\.|n_|participant\.)?eid")
_NO_ANSWER = re.compile(
    r"\b(do not know|prefer(red)? not to answer|not applicable|not asked|cannot remember|undisclosed)\b",
    re.IGNORECASE,
)
"""Meanings of codes that stand for no answer."""
_MEASURED = ("Integer", "Continuous")
_TYPES: Mapping[str, CellType] = {"Date": "date", "Time": "date", "Text": "text", "Integer": "number", "Continuous": "number"}
_PLATFORM_TYPES = {"integer": "Integer", "float": "Continuous", "string": "Text", "date": "Date", "datetime": "Time"}
"""Types of the Research Analysis Platform, by which a category is a number or a text with a coding."""
_CODING = re.compile(r"(?:data_coding_)?0*([1-9]\d*)")
_NEGATIVE = (-float("inf"), -1.0)


class Place(NamedTuple):
    """The place of a column: its field, instance and array."""

    field: int
    instance: int
    array: int


@dataclass(frozen=True)
class Field:
    """A field of the dictionary."""

    number: int
    title: str
    type: str
    coding: int | None


@dataclass(frozen=True)
class UKBiobankDictionary(Dictionary):
    """The fields and codings of UK Biobank; without a dictionary, only the names of columns are understood."""

    name: str = ""
    fields: Mapping[int, Field] = field(default_factory=dict)
    codings: tuple["CodingFile", ...] = ()
    kind: ClassVar[str] = "UK Biobank"
    signs_are_meaningless: ClassVar[bool] = True
    header: ClassVar[str] = "'FieldID' and 'Field', or 'entity', 'name' and 'title'"

    @classmethod
    def open(cls, records: Records, codings: Paths) -> Self | None:
        number, title = records.find("fieldid", "field_id"), records.find("field", "title")
        if number is None and records.find("entity") is not None and records.find("name") is not None and title is not None:
            return cls(records.name, _platform_fields(records), tuple(map(CodingFile, codings)))
        if number is None or title is None:
            return None
        kind = records.find("valuetype", "value_type")
        coding = records.find("coding", "data_coding", "encoding_id")
        fields: dict[int, Field] = {}
        for record in records:
            text = record.cells[number]
            if not text.isdecimal():
                raise DataError(f"{records.position(record)} has the field {text!r}, expected a number; correct it")
            code = None if coding is None else _coding_number(record.cells[coding])
            fields.setdefault(int(text), Field(int(text), record.cells[title], "" if kind is None else record.cells[kind], code))
        return cls(records.name, fields, tuple(map(CodingFile, codings)))

    @classmethod
    def recognize(cls, columns: Sequence[str]) -> Self | None:
        """Return the dictionary without fields for columns of UK Biobank; None for other columns."""
        known = sum(place_of(column) is not None for column in columns)
        return cls() if known and any(map(_ID.fullmatch, columns)) else None

    def variables(self, columns: Sequence[str]) -> dict[str, Variable]:
        places = _places(columns)
        fields = {place.field: self.fields.get(place.field) for place in places.values()}
        wanted = {known.coding for known in fields.values() if known and known.coding is not None}
        meanings: dict[int, dict[str, str]] = {}
        for file in self.codings:
            meanings |= file.read(wanted)
        described = {column: Variable(column, excluded="holds the ids of the participants") for column in columns if _ID.fullmatch(column)}
        for column, place in places.items():
            known = fields[place.field]
            described[column] = (
                Variable(column, doubtful=MissingCodes(ranges=(_NEGATIVE,)))
                if known is None
                else _variable(column, known, None if known.coding is None else meanings.get(known.coding))
            )
        return described

    def id_column(self, columns: Sequence[str]) -> str | None:
        return next((column for column in columns if _ID.fullmatch(column)), None)

    def expand(self, name: str, columns: Sequence[str]) -> list[str]:
        number = name.removeprefix("p")
        return [column for column, place in _places(columns).items() if number.isdecimal() and place.field == int(number)]

    def check_items(self, items: Sequence[str]) -> None:
        arrays: dict[tuple[int, int], list[str]] = defaultdict(list)
        for column, place in _places(items).items():
            arrays[place.field, place.instance].append(column)
        for (number, _), columns in arrays.items():
            known = self.fields.get(number)
            if known and known.type == "Categorical multiple" and len(columns) > 1:
                raise DataError(
                    f"{columns[0]} to {columns[-1]} hold the {len(columns)} choices of one question ({known.title}), in any order, "
                    "expected one column for each item; expand the field into one column for each choice first, or name one of them"
                )

    def instances(self, columns: Sequence[str]) -> dict[str, tuple[str, str]]:
        places = _places(columns)
        arrays: dict[int, set[int]] = defaultdict(set)
        for place in places.values():
            arrays[place.field].add(place.array)
        return {
            column: (f"{place.field}_a{place.array}" if len(arrays[place.field]) > 1 else str(place.field), str(place.instance))
            for column, place in places.items()
        }


class CodingFile:
    """A table of codings: one with the columns coding, value and meaning, or one of a single coding that its name numbers."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._records = records = Records(path)
        coding, value = records.find("coding", "encoding_id", "coding_name"), records.find("value", "code")
        meaning = records.find("meaning")
        number = re.search(r"(\d+)(?=\D*$)", Path(records.name).stem)
        self._single = value is None
        if coding is None or meaning is None:
            found = f"{records.name} has columns {records.columns[:20]}"
            raise DataError(f"{found}, expected coding, value and meaning; pass the codings of UK Biobank in codings= (--codings)")
        if value is None and number is None:
            raise ParameterError(f"{records.name} holds one coding without its number, expected the number in the name; rename it")
        self._number = int(number[1]) if number else 0
        self._columns = (coding, coding if value is None else value, meaning)

    def read(self, wanted: set[int]) -> dict[int, dict[str, str]]:
        """Return the meanings by value of each wanted coding that is in the file."""
        meanings: dict[int, dict[str, str]] = {}
        for coding, value, meaning in self._rows(wanted):
            meanings.setdefault(coding, {}).setdefault(value, meaning)
        return meanings

    def _rows(self, wanted: set[int]) -> Iterator[tuple[int, str, str]]:
        if self._single and self._number not in wanted:
            return
        coding, value, meaning = self._columns
        for record in self._records:
            number = self._number if self._single else _coding_number(record.cells[coding])
            if number in wanted:
                yield number, record.cells[value], record.cells[meaning]


def _platform_fields(records: Records) -> dict[int, Field]:
    """Return the fields of a dictionary of the Research Analysis Platform, which lists each instance of a field by its column."""
    name, kind, title = (records.require(column) for column in ("name", "type", "title"))
    coding, sparse, multiple = (records.find(column) for column in ("coding_name", "is_sparse_coding", "is_multi_select"))
    fields: dict[int, Field] = {}
    for record in records:
        place = place_of(record.cells[name])
        if place is None:
            continue
        code = None if coding is None else _coding_number(record.cells[coding])
        value_type = _PLATFORM_TYPES.get(record.cells[kind].lower(), "")
        is_sparse = sparse is not None and record.cells[sparse].lower() == "yes"  # a measurement, of which a few values have labels
        if code is not None and not (is_sparse and value_type in _MEASURED):
            value_type = (
                "Categorical multiple" if multiple is not None and record.cells[multiple].lower() == "yes" else "Categorical single"
            )
        wording = record.cells[title].partition(" | ")[0]  # without the instance and the array
        fields.setdefault(place.field, Field(place.field, wording, value_type, code))
    return fields


def _coding_number(text: str) -> int | None:
    """Return the number of a coding, which the Research Analysis Platform writes as data_coding_504; None without one."""
    match = _CODING.fullmatch(text)
    return None if match is None else int(match[1])


def place_of(column: str) -> Place | None:
    """Return the field, the instance and the array of a column by its name; None for other columns."""
    match = next((match for name in _NAMES if (match := name.fullmatch(column))), None)
    return None if match is None else Place(int(match["field"]), int(match["instance"] or 0), int(match["array"] or 0))


def stands_for_no_answer(meaning: str) -> bool:
    """Check whether the meaning of a code says that there is no answer, whatever its sign."""
    return _NO_ANSWER.search(meaning) is not None


def _places(columns: Sequence[str]) -> dict[str, Place]:
    return {column: place for column in columns if (place := place_of(column)) is not None}


def _variable(column: str, known: Field, meanings: Mapping[str, str] | None) -> Variable:
    if meanings is None:
        doubtful = MissingCodes(ranges=(_NEGATIVE,)) if known.coding is not None or not known.type else MissingCodes()
        return Variable(column, type=_TYPES.get(known.type), wording=known.title, doubtful=doubtful)
    numbers = {value: as_number(value) for value in meanings}
    labels = {number: meanings[value] for value, number in numbers.items() if number is not None}
    missing = tuple(number for number, meaning in labels.items() if stands_for_no_answer(meaning))
    if known.type in _MEASURED:
        # A few labelled values of a measurement are not its only ones, as the levels of a category are.
        labels = {number: meaning for number, meaning in labels.items() if number in missing} if len(labels) - len(missing) > 1 else labels
    in_text = len(labels) < len(numbers) and known.type not in _MEASURED
    return Variable(
        column,
        type=_TYPES.get(known.type, "text" if in_text else "number"),
        wording=known.title,
        labels={} if in_text else labels,
        missing=MissingCodes(tuple(value for value, meaning in meanings.items() if stands_for_no_answer(meaning)) if in_text else missing),
        measure="scale" if known.type in _MEASURED else None,
        is_explained=True,
    )
