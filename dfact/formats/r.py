"""R's files as tables and arrays: rds, rda and RData, whose objects rdata parses.

rdata's conversion to pandas drops labels and declared missing codes, so columns are made from the parsed objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dfact.data.sources.array import LabelledArray
from dfact.errors import DataError, ParameterError
from dfact.formats.isolation.parsers import Parser
from dfact.formats.r_objects import (
    attributes_of,
    classes_of,
    damage_errors,
    decompress,
    dimension_names,
    named_texts,
    names_of,
    pairs,
    parse,
    texts_of,
)
from dfact.imports.readers.base import Format, MissingCodes, ReadOptions, Variable, describe_text
from dfact.imports.readers.columnar.columns import MemoryTable
from dfact.storage.input_files import InputFile

_ROW_NAMES = "row names"


@dataclass(frozen=True)
class _Object:
    """An object of a file, or a data frame in a list of it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    value: Any

    @property
    def text(self) -> str:
        return f"{self.name} ({self.kind}{', ' if self.shape else ''}{' × '.join(map(str, self.shape))})"


class RTable(MemoryTable):
    """A data frame or a matrix of R, whose rows are counted from 1."""

    def row_position(self, row: int) -> str:
        return f"row {row + 1} (counted from 1)"


def _open_table(file: InputFile, options: ReadOptions) -> RTable:
    encoding, objects = _read_objects(file)
    frames = [each for each in objects if each.kind == "data frame"]
    matrices = [each for each in objects if each.kind == "matrix"]
    chosen = _choose(file.name, objects, frames + matrices if options.object else frames or matrices, options.object, "data frame")
    with damage_errors(file):
        return (_read_frame if chosen.kind == "data frame" else _read_matrix)(file.name, chosen, encoding)


def _open_array(file: InputFile, options: ReadOptions) -> LabelledArray:
    encoding, objects = _read_objects(file)
    chosen = _choose(file.name, objects, [each for each in objects if each.kind in {"matrix", "array"}], options.object, "matrix or array")
    with damage_errors(file):
        _require_plain(file.name, chosen)
        values = _numbers(chosen.value)
        if values is None:
            raise DataError(f"{file.name}: {chosen.text} holds text, expected numbers; use dfact import")
        values = values.astype(np.float64).filled(np.nan) if np.ma.is_masked(values) else np.ma.getdata(values)
        return LabelledArray(values.reshape(chosen.shape, order="F"), tuple(dimension_names(chosen.value, encoding)))


def _choose(file: str, objects: list[_Object], candidates: list[_Object], name: str | None, expected: str) -> _Object:
    listed = ", ".join(each.text for each in objects[:20]) + (", …" if len(objects) > 20 else "") or "nothing"
    if name is not None:
        found = next((each for each in candidates if each.name == name), None)
        if found is None:
            raise ParameterError(f"{file} has no {expected} {name!r}, expected one of its objects: {listed}")
        return found
    if not candidates:
        other = ", or an array: dfact import-array" if expected == "data frame" else "; dfact import reads data frames"
        raise DataError(f"{file} holds {listed}, expected a {expected}{other}")
    if len(candidates) > 1:
        names = ", ".join(each.text for each in candidates[:20]) + (", …" if len(candidates) > 20 else "")
        raise ParameterError(f"{file} holds {len(candidates)} objects, expected one: {names}; choose one with object= (--object)")
    return candidates[0]


def _read_objects(file: InputFile) -> tuple[str, list[_Object]]:
    """Parse a file; return the encoding of its texts and its objects."""
    raw = decompress(file)
    with damage_errors(file):
        encoding, parsed = parse(file.name, raw)
        del raw
        if parsed.info.type.name != "LIST":
            stem = Path(file.name).stem
            return encoding, [each for each in _objects(stem, parsed, encoding, "") if each]
        named = pairs(parsed)
        return encoding, [each for name, value in named for each in _objects(name, value, encoding, f"{name}$")]


def _objects(name: str, value: Any, encoding: str, prefix: str) -> list[_Object]:
    """Describe an object, and the data frames and matrices in a list."""
    attributes = attributes_of(value)
    kind, length = value.info.type.name, len(value.value) if isinstance(value.value, (list, np.ndarray)) else None
    if kind == "VEC" and "data.frame" in classes_of(attributes):
        rows = len(value.value[0].value) if length and isinstance(value.value[0].value, (list, np.ndarray)) else 0
        return [_Object(name, "data frame", (rows, length or 0), value)]
    if "dim" in attributes and kind in {"LGL", "INT", "REAL", "STR"}:
        shape = tuple(int(size) for size in attributes["dim"].value)
        if prod(shape) != length or min(shape, default=0) < 0:
            raise ValueError(f"{name} has {length} values and dimensions {shape}")
        return [_Object(name, "matrix" if len(shape) == 2 else "array", shape, value)]
    described = _KINDS.get(kind, "object")
    found = [_Object(name, described, () if length is None else (length,), value)]
    if kind == "VEC" and "names" in attributes:
        members = zip(texts_of(attributes["names"], encoding), value.value, strict=True)
        inner = [each for member, own in members if member for each in _objects(prefix + member, own, encoding, f"{prefix}{member}$")]
        found += [each for each in inner if each.kind in {"data frame", "matrix", "array"}]
    return found


_KINDS = {"VEC": "list", "LGL": "vector", "INT": "vector", "REAL": "vector", "CPLX": "vector", "STR": "vector", "CLO": "function"}


def _read_frame(file: str, chosen: _Object, encoding: str) -> RTable:
    attributes = attributes_of(chosen.value)
    values = chosen.value.value
    names = texts_of(attributes["names"], encoding) if "names" in attributes else []
    if len(names) != len(values):
        names = [f"V{j + 1}" for j in range(len(values))]
    wordings = named_texts(attributes.get("variable.labels"), encoding)
    columns, variables, tags = [], {}, {}
    for name, value in zip((name or "NA" for name in names), values, strict=True):
        column, variables[name], tag = _read_column(name, value, encoding, wordings.get(name, ""))
        if column is None:
            column = pa.nulls(chosen.shape[0], pa.list_(pa.null()))
        if len(column) != chosen.shape[0]:
            raise DataError(f"{file}: column {name!r} of {chosen.name} has {len(column)} values, expected {chosen.shape[0]}; save it again")
        if tag is not None:
            tags[name] = tag
        columns.append((name, column))
    return _with_row_names(file, columns, variables, _row_names(attributes.get("row.names"), chosen.shape[0], encoding), tags)


def _require_plain(file: str, chosen: _Object) -> None:
    """Raise DataError on an array whose numbers stand for something else: the levels of a factor, or dates."""
    classes = classes_of(attributes_of(chosen.value))
    held = "a factor" if "factor" in classes else "dates" if classes & {"Date", "POSIXct", "difftime"} else ""
    if held:
        found = f"{file}: {chosen.text} holds {held}, expected numbers or text"
        raise DataError(f"{found}; save a data frame, in which each column is {held}, or numbers: as.numeric")


def _read_matrix(file: str, chosen: _Object, encoding: str) -> RTable:
    _require_plain(file, chosen)
    n, m = chosen.shape
    labels = dimension_names(chosen.value, encoding)
    names = [f"V{j + 1}" for j in range(m)] if len(labels) < 2 or labels[1] is None else [str(label) for label in labels[1]]
    numbers = _numbers(chosen.value)
    values = pa.array(texts_of(chosen.value, encoding), pa.string()) if numbers is None else _to_arrow(numbers)
    columns = [(name, values.slice(j * n, n)) for j, name in enumerate(names)]
    variables = {name: Variable(name, type="text" if numbers is None else "number") for name in names}
    rows = labels[0] if labels else None
    return _with_row_names(file, columns, variables, None if rows is None else [str(label) for label in rows])


def _with_row_names(
    file: str,
    columns: list[tuple[str, pa.Array]],
    variables: dict[str, Variable],
    labels: list[str] | None,
    tags: Mapping[str, NDArray[np.uint8]] | None = None,
) -> RTable:
    """Return the table, with the names of its rows as the first column unless they are their numbers."""
    if labels and labels != [str(i + 1) for i in range(len(labels))]:
        name = _ROW_NAMES
        while name in variables:
            name += "_"
        columns = [(name, pa.array(labels, pa.string())), *columns]
        variables = {name: Variable(name, type="text", excluded="holds the names of the rows")} | variables
    return RTable(file, columns, variables, tags=tags or {})


def _row_names(value: Any, n_rows: int, encoding: str) -> list[str] | None:
    if value is None or len(value.value) != n_rows or np.ma.is_masked(value.value):  # masked: the number of rows in place of names
        return None
    return (
        [text or "NA" for text in texts_of(value, encoding)] if value.info.type.name == "STR" else [str(number) for number in value.value]
    )


def _read_column(name: str, value: Any, encoding: str, wording: str) -> tuple[pa.Array | None, Variable, NDArray[np.uint8] | None]:
    """Return the cells of a column, or None if they are none, their description, and the tags of missing values."""
    attributes = attributes_of(value)
    classes, kind = classes_of(attributes), value.info.type.name
    wording = next(iter(texts_of(attributes["label"], encoding)), None) or "" if "label" in attributes else wording
    if "dim" in attributes:
        return None, Variable(name, wording=wording, excluded="holds a matrix"), None
    if kind == "STR":
        missing = MissingCodes(tuple(text for text in texts_of(attributes.get("na_values"), encoding) if text is not None))
        codes = attributes.get("labels")
        labelled = [] if codes is None else zip(texts_of(codes, encoding), names_of(codes, encoding), strict=True)
        variable = describe_text(name, wording, {text: label for text, label in labelled if text and label}, missing)
        return pa.array(texts_of(value, encoding), pa.string()), variable, None
    numbers = _numbers(value)
    if numbers is None:
        return None, Variable(name, wording=wording, excluded=f"holds a {_KINDS.get(kind, 'object')}"), None
    if "factor" in classes:
        levels = texts_of(attributes["levels"], encoding)
        mask = np.ma.getmaskarray(numbers) | np.isin(np.ma.getdata(numbers), [i + 1 for i, level in enumerate(levels) if level is None])
        codes = pa.array(np.where(mask, 0, np.ma.getdata(numbers) - 1).astype(np.int32), mask=mask)
        cells = pa.DictionaryArray.from_arrays(codes, pa.array(levels, pa.string()))
        categories = tuple(level for level in levels if level is not None)
        return cells, Variable(name, type="text", wording=wording, categories=categories, ordered="ordered" in classes), None
    if classes & {"Date", "POSIXct"}:
        return _dates(numbers, days="Date" in classes), Variable(name, type="date", wording=wording), None
    if "integer64" in classes:
        numbers = np.ma.masked_equal(np.ma.getdata(numbers).view(np.int64), np.iinfo(np.int64).min)
    labels, tags = _labels(attributes.get("labels", attributes.get("value.labels")), encoding)
    column_tags = _tags(numbers)
    variable = Variable(
        name,
        type="date" if "hms" in classes else "number",
        wording=wording,
        labels=labels,
        missing=_missing(attributes),
        tags=tags,
    )
    return _to_arrow(numbers), variable, column_tags if column_tags.any() else None


def _missing(attributes: Mapping[str, Any]) -> MissingCodes:
    values = [float(code) for code in attributes["na_values"].value] if "na_values" in attributes else []
    limits = [float(limit) for limit in attributes["na_range"].value] if "na_range" in attributes else []
    return MissingCodes(tuple(values), ((limits[0], limits[1]),) if len(limits) == 2 else ())


def _labels(value: Any, encoding: str) -> tuple[dict[float, str], dict[str, str]]:
    """Return the labels of codes, and those of tagged missing values."""
    codes = None if value is None else _numbers(value)
    if codes is None:
        return {}, {}
    named = list(zip(np.ma.getdata(codes).astype(np.float64), _tags(codes), names_of(value, encoding), strict=True))
    labels = {float(code): label for code, _, label in named if code == code and label}
    return labels, {chr(tag): label for _, tag, label in named if tag and label}


def _tags(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the letters of tagged missing values, 0 for other values: haven keeps them in the payload of R's NaN."""
    bits = np.ascontiguousarray(np.ma.getdata(numbers), np.float64).view(np.uint64)
    letters = (bits >> np.uint64(32)).astype(np.uint8)
    is_tagged = (bits & np.uint64(0xFFFFFFFF) == 1954) & (bits >> np.uint64(52) & np.uint64(0x7FF) == 0x7FF)
    is_tagged &= (letters >= ord("a")) & (letters <= ord("z"))
    return np.where(is_tagged, letters, np.uint8(0))


def _dates(numbers: NDArray[Any], *, days: bool) -> pa.Array:
    values = np.ma.filled(numbers.astype(np.float64), np.nan)
    unit = 1 if days else 86400
    mask = ~(np.abs(values) < 2_900_000 * unit)  # years of more than four digits
    whole = np.floor(np.where(mask, 0, values))
    return (
        pa.array(whole.astype(np.int32), pa.date32(), mask=mask) if days else pa.array(whole.astype(np.int64), pa.timestamp("s"), mask=mask)
    )


def _to_arrow(numbers: NDArray[Any]) -> pa.Array:
    return pa.array(np.ma.getdata(numbers), mask=np.ma.getmaskarray(numbers) if np.ma.is_masked(numbers) else None)


def _numbers(value: Any) -> Any:
    """Return the values of a vector of logicals, integers or reals, masked where they are NA; None for other objects."""
    numeric = value.info.type.name in {"LGL", "INT", "REAL"} and isinstance(value.value, np.ndarray)
    return value.value if numeric else None


_SUFFIXES = (".rds", ".rda", ".rdata")
_PARSER = Parser("rdata", ("dfact.internals.rdata",))
_OPTIONS: dict[str, Any] = {
    "options": ("object",),
    "extra": "tables",
    "modules": ("rdata",),
}

FORMATS = (
    Format("R", _SUFFIXES, _PARSER.in_child(_open_table), **_OPTIONS),
    Format("R", _SUFFIXES, _PARSER.in_child(_open_array), holds="array", **_OPTIONS),
)
