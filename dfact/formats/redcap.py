"""REDCap's data dictionary: the fields of a project, their choices, and the columns that an export adds to them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from dfact.errors import DataError
from dfact.imports.dictionaries.base import Dictionary, EventColumns, Paths, UntouchedBoxes
from dfact.imports.dictionaries.text_rows import Records, as_number, parse_choices, plain_text
from dfact.imports.readers.base import CellType, MissingCodes, Variable
from dfact.imports.readers.number_marks import NumberMarks

_EVENT, _REPEAT = "redcap_event_name", ("redcap_repeat_instrument", "redcap_repeat_instance")
_STATUS, _TIME = "_complete", "_timestamp"
_CHOICE_TYPES = ("radio", "dropdown", "yesno", "truefalse")
_ANSWER_TYPES = (*_CHOICE_TYPES, "slider")
_NO_ANSWERS = {"notes": "holds notes", "file": "holds files", "descriptive": "holds no data", "signature": "holds signatures"}
_TRUTH = {text: number for number, words in ((1.0, ("TRUE", "True", "true")), (0.0, ("FALSE", "False", "false"))) for text in words}
_TWO = {0.0, 1.0}


@dataclass(frozen=True)
class Field:
    """A field of a REDCap project."""

    name: str
    form: str
    type: str
    label: str
    choices: Mapping[str, str] = field(default_factory=dict)
    """Labels by code, of a field with choices."""
    validation: str = ""
    limits: tuple[float, float] = (0.0, 100.0)
    """Ends of a slider."""
    identifier: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    """Labels of the missing data codes of the project, where the field accepts them."""


@dataclass(frozen=True)
class RedcapDictionary(Dictionary):
    """The fields of a project by name; without any, only the columns that REDCap adds are known."""

    name: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    """Unique names of the events in their order."""
    kind: ClassVar[str] = "REDCap"
    header: ClassVar[str] = "'Variable / Field Name' and 'Field Type'"

    @classmethod
    def open(cls, records: Records, codings: Paths) -> Self | None:
        """Read a data dictionary; ``codings`` may be the project information (missing data codes) and the events."""
        name, kind = records.find("variable / field name", "field_name"), records.find("field type", "field_type")
        if name is None or kind is None:
            return None
        missing: dict[str, str] = {}
        events: tuple[str, ...] = ()
        for each in map(Records, codings):
            if (column := each.find("missing_data_codes")) is not None:
                missing |= parse_choices(" | ".join(record.cells[column] for record in each))
            elif (column := each.find("unique_event_name")) is not None:
                events = tuple(record.cells[column] for record in each)
            else:
                found = f"{each.name} has columns {each.columns[:20]}"
                expected = "a column 'missing_data_codes' (project information) or 'unique_event_name' (events)"
                raise DataError(f"{found}, expected {expected} next to a dictionary of REDCap; leave it out of codings= (--codings)")
        return cls(records.name, {each.name: each for each in _read_fields(records, name, kind, missing)}, events)

    @classmethod
    def recognize(cls, columns: Sequence[str]) -> Self | None:
        """Return the dictionary without fields for an export with events or repetitions; None for other columns."""
        return cls() if any(column == _EVENT or column in _REPEAT for column in columns) else None

    def variables(self, columns: Sequence[str]) -> dict[str, Variable]:
        boxes = self._boxes(columns)
        described = {}
        for column in columns:
            if column in self.fields:
                described[column] = self._variable(self.fields[column])
            elif column in boxes:
                described[column] = _box(column, *boxes[column])
            elif added := _added(column):
                described[column] = Variable(column, type="date" if column.endswith(_TIME) else None, excluded=added)
        return described

    def default_items(self, columns: Sequence[str]) -> list[str] | None:
        if not self.fields:
            return None
        return [name for name in columns if (known := self.fields.get(name)) and known.type in _ANSWER_TYPES and not known.identifier]

    def id_column(self, columns: Sequence[str]) -> str | None:
        first = next(iter(self.fields), columns[0] if columns else None)
        return first if first in columns else None

    def expand(self, name: str, columns: Sequence[str]) -> list[str]:
        return [column for column, (known, _) in self._boxes(columns).items() if known.name == name]

    def event_columns(self, columns: Sequence[str]) -> EventColumns | None:
        record = self.id_column(columns)
        event, form, repetition = (column if column in columns else None for column in (_EVENT, *_REPEAT))
        return EventColumns(record, event, form, repetition, self.events) if record and (event or form or repetition) else None

    def untouched_boxes(self, columns: Sequence[str], items: Sequence[str]) -> tuple[UntouchedBoxes, ...]:
        boxes = self._boxes(columns)
        forms = dict.fromkeys(boxes[item][0].form for item in items if item in boxes)
        return tuple(
            UntouchedBoxes(form + _STATUS, tuple(column for column, (known, _) in boxes.items() if known.form == form))
            for form in forms
            if form + _STATUS in columns
        )

    def _variable(self, known: Field) -> Variable:
        codes = {code: as_number(code) for code in known.choices}
        labels = {number: known.choices[code] for code, number in codes.items() if number is not None}
        missing = {code: as_number(code) for code in known.missing}
        labelled = {label: number for number, label in labels.items()}  # of exports with labels
        texts = labelled | _TRUTH if known.type in _CHOICE_TYPES and set(labels) == _TWO else {}
        values = tuple(code if number is None else number for code, number in missing.items())
        return Variable(
            known.name,
            type=_cell_type(known, numeric=bool(labels)),
            wording=known.label,
            labels=labels | {number: known.missing[code] for code, number in missing.items() if number is not None and labels},
            categories=tuple(code for code, number in codes.items() if number is None) if not labels else (),
            missing=MissingCodes(values),
            texts=texts,
            marks=NumberMarks(",") if known.validation.endswith("comma_decimal") else None,
            limits=known.limits if known.type == "slider" else None,
            measure="scale" if known.type in ("slider", "calc") else None,
            excluded=self._reason(known),
        )

    def _reason(self, known: Field) -> str:
        """Return the reason why a field holds no answers, "" if it may hold some."""
        if known.identifier:
            return "is marked as an identifier"
        if known.name == next(iter(self.fields)):
            return "holds the ids of the records"
        return _NO_ANSWERS.get("signature" if known.validation == "signature" else known.type, "")

    def _boxes(self, columns: Sequence[str]) -> dict[str, tuple[Field, str]]:
        """Return the field and the code of each column of a checkbox."""
        boxes = {}
        for column in columns:
            name, separator, suffix = column.partition("___")
            known = self.fields.get(name)
            if separator and known and known.type == "checkbox" and (code := _code_of(suffix, known)):
                boxes[column] = known, code
        return boxes


def _read_fields(records: Records, name: int, kind: int, missing: Mapping[str, str]) -> Iterator[Field]:
    form = records.require("form name", "form_name")
    label = records.require("field label", "field_label")
    choices = records.require("choices, calculations, or slider labels", "select_choices_or_calculations")
    validation = records.find("text validation type or show slider number", "text_validation_type_or_show_slider_number")
    low, high = records.find("text validation min", "text_validation_min"), records.find("text validation max", "text_validation_max")
    identifier = records.find("identifier?", "identifier")
    annotation = records.find("field annotation", "field_annotation")
    seen: dict[str, str] = {}
    for record in records:

        def cell(column: int | None, cells: Sequence[str] = record.cells) -> str:
            return "" if column is None else cells[column]

        position = records.position(record)
        if record.cells[name] in seen:
            raise DataError(
                f"{position} has the field {record.cells[name]!r} of {seen[record.cells[name]]} again, expected each once; remove one"
            )
        seen[record.cells[name]] = position.rpartition(": ")[2]
        type_ = cell(kind).lower()
        ends = as_number(cell(low)), as_number(cell(high))
        yield Field(
            cell(name),
            cell(form),
            type_,
            plain_text(cell(label)),
            _choices(type_, cell(choices), position),
            cell(validation).lower(),
            (0.0 if ends[0] is None else ends[0], 100.0 if ends[1] is None else ends[1]),
            cell(identifier).lower() == "y",
            {} if "@NOMISSING" in cell(annotation) else missing,
        )


def _choices(kind: str, text: str, position: str) -> dict[str, str]:
    if kind == "yesno":
        return {"1": "Yes", "0": "No"}
    if kind == "truefalse":
        return {"1": "True", "0": "False"}
    if kind not in (*_CHOICE_TYPES, "checkbox"):
        return {}
    choices = parse_choices(text)
    if not choices or "" in choices:
        raise DataError(f"{position} has the choices {text!r}, expected 'code, label | code, label'; correct them")
    return choices


def _cell_type(known: Field, *, numeric: bool) -> CellType | None:
    """Return the type of a field's cells."""
    if known.type in _ANSWER_TYPES or known.type == "calc":
        return "number" if numeric or not known.choices else "text"
    if known.validation.startswith(("date", "time")):
        return "date"
    if known.validation.startswith(("number", "integer")):
        return "number"
    return "text" if known.validation or known.type in _NO_ANSWERS else None


def _box(column: str, known: Field, code: str) -> Variable:
    if code in known.missing and code not in known.choices:
        return Variable(column, excluded=f"marks the missing data code {code!r}")
    return Variable(
        column,
        type="number",
        wording=f"{known.label}: {known.choices[code]}",
        labels={0.0: "Unchecked", 1.0: "Checked"},
        texts=_TRUTH | {"Unchecked": 0.0, "Checked": 1.0},
        excluded="is marked as an identifier" if known.identifier else "",
    )


def _code_of(suffix: str, known: Field) -> str | None:
    """Return the code whose box a column is; REDCap changes codes that cannot stand in the name of a column."""
    codes = [*known.choices, *known.missing]
    for change in (str, _exported, lambda code: _exported(code).replace("_", "")):
        for code in codes:
            if change(code) == suffix:
                return code
    return None


def _exported(code: str) -> str:
    return re.sub("[^0-9a-z_]", "", code.lower().replace("-", "_"))


def _added(column: str) -> str:
    """Return the reason why a column that REDCap adds holds no answers, "" for any other column."""
    if column.startswith("redcap_"):
        return "is written by REDCap"
    if column.endswith(_STATUS):
        return "is the status of a form"
    return "is the time of a survey" if column.endswith(_TIME) else ""
