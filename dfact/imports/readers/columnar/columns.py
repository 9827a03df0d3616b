"""The cells of a table as numbers and texts, and what the formats share that Arrow reads or whose rows are held in memory."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dfact.data.sources.frames import is_enum
from dfact.errors import DataError
from dfact.imports.readers.base import Table, TablePart, TextInNumbersError, Variable
from dfact.imports.readers.number_marks import is_number

BATCH_ENTRIES = 3 << 18
_MOST_ROWS = 1 << 16
_MOST_CATEGORIES = 1000
"""Number of categories of a column of answers; a column with more holds labels or free text."""
_TAGS = b"tagged missing values"
"""Key of their counts in the metadata of a field."""


def rows_per_batch(n_columns: int) -> int:
    """Return the number of rows whose entries fill a batch."""
    return min(max(1, BATCH_ENTRIES // max(1, n_columns)), _MOST_ROWS)


class Cells(NamedTuple):
    """Rows of a table: numbers with NaN for missing, and texts with null."""

    numbers: NDArray[np.float64]
    texts: pa.RecordBatch
    tagged: Mapping[str, Mapping[str, int]]
    """Counts of tagged missing values, by column and tag; each of them is NaN in ``numbers``."""


def read_cells(part: TablePart, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Cells]:
    """Yield the rows in order: the columns ``numbers`` as a matrix, and the columns ``texts`` as strings.

    Empty cells and the texts ``missing``, without the spaces around them, become NaN in columns of numbers; other text raises
    DataError with its position.
    """
    n, n_read = len(numbers), 0
    for rows in part.record_batches(numbers, texts, missing):
        if not n_read:
            _check_types(part.name, rows.schema, n)
        position = partial(_position, part, n_read)
        for name, values in zip(rows.schema.names, rows.columns, strict=True):  # each access to the names lists them all
            _check_text(values, name, position)
        chosen = rows.select(list(range(n)))
        tagged = {each.name: tags for each in chosen.schema if (tags := _tags(each))}
        if not all(map(_is_plain, chosen.schema.types)):
            columns = [_as_number(values, missing, name, position) for name, values in zip(numbers, chosen.columns, strict=True)]
            chosen = pa.record_batch(columns, list(numbers))
        strings = pa.record_batch([_as_text(rows.column(n + j)) for j in range(len(texts))], list(texts))
        n_read += rows.num_rows
        yield Cells(_to_matrix(chosen, rows.num_rows), strings, tagged)


def read_texts(part: TablePart, texts: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns as strings."""
    for cells in read_cells(part, [], texts, []):
        yield cells.texts


def with_tags(field: pa.Field, counts: Mapping[str, int]) -> pa.Field:
    """Return the field of a column of numbers with counts of its tagged missing values, by tag."""
    return field.with_metadata({_TAGS: json.dumps(counts)}) if counts else field


def _tags(field: pa.Field) -> dict[str, int]:
    return dict(json.loads((field.metadata or {}).get(_TAGS, b"{}")))


def _position(part: TablePart, first: int, row: int) -> str:
    return part.position(first + row)


def _to_matrix(numbers: pa.RecordBatch, n_rows: int) -> NDArray[np.float64]:
    """Convert columns of numbers, of which there may be none, to a matrix, null to NaN."""
    if numbers.num_columns == 0:
        return np.empty((n_rows, 0))
    with np.errstate(invalid="ignore"):  # signalling NaN in single precision
        return np.asarray(numbers.to_tensor(null_to_nan=True, row_major=True).to_numpy(), np.float64)


def _check_types(name: str, schema: pa.Schema, n_numbers: int) -> None:
    """Raise DataError unless the columns hold what they are read as."""
    for j, field in enumerate(schema):
        if kind_of(field.type) not in (("number", "text") if j < n_numbers else ("number", "text", "date")):
            raise DataError(f"{name}: column {field.name!r} holds {field.type}, expected numbers or text; leave it out")


def kind_of(kind: pa.DataType) -> Literal["number", "text", "date"] | None:
    """Return "number", "text" or "date", or None for what is not a column of a table."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_plain(kind) or any(test(kind) for test in _CASTABLE):
        return "number"
    if _is_string(kind):
        return "text"
    return "date" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind) else None


def ordered_categories(schema: pa.Schema) -> dict[str, bool]:
    """Return the columns of text categories, and whether they are ordered, as Arrow's types and pandas' metadata declare them."""
    declared = {}
    try:
        for column in json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("columns", []):
            if column["pandas_type"] == "categorical" and column["field_name"] in schema.names:
                declared[column["field_name"]] = bool(column["metadata"]["ordered"])
    except (ValueError, KeyError, TypeError, AttributeError):  # another program's metadata under this name
        declared = {}
    fields = {each.name: each for each in schema}
    dictionaries = {name: each for name, each in fields.items() if pa.types.is_dictionary(each.type)}
    declared |= {name: declared.get(name, False) or each.type.ordered or is_enum(each) for name, each in dictionaries.items()}
    return {name: ordered for name, ordered in declared.items() if kind_of(fields[name].type) == "text"}


def without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with dictionaries of strings in place of those of string views, for which Arrow lacks functions."""
    for j, each in enumerate(rows.schema):
        if pa.types.is_dictionary(each.type) and pa.types.is_string_view(each.type.value_type):
            values = rows.column(j)
            texts = pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(pa.string()), ordered=each.type.ordered)
            rows = rows.set_column(j, each.with_type(texts.type), texts)
    return rows


class Categories:
    """The categories of columns, gathered from the dictionaries of batches."""

    def __init__(self, names: Sequence[str]) -> None:
        self._texts: dict[str, dict[str, None]] = {name: {} for name in names}
        self._disagreeing: set[str] = set()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the dictionaries of a batch, which may only extend those before it if the categories are to have an order."""
        for name, known in self._texts.items():
            values = rows[name]
            _check_text(values, name, "row {}".format)
            cells = values.dictionary.slice(0, _MOST_CATEGORIES + 1).to_pylist() if pa.types.is_dictionary(values.type) else []
            texts = [text for text in cells if text is not None]
            if texts[: len(known)] != list(known):
                self._disagreeing.add(name)
            known.update(dict.fromkeys(texts))

    def describe(self, name: str, kind: pa.DataType, *, ordered: bool) -> Variable:
        """Describe a column of this type."""
        texts = tuple(self._texts.get(name, ()))
        held = kind_of(kind)
        return Variable(
            name,
            type=None if pa.types.is_null(kind) else held,
            categories=texts if len(texts) <= _MOST_CATEGORIES else (),
            ordered=ordered and name not in self._disagreeing,
            excluded="" if held else f"holds {kind}",
        )


def describe_columns(schema: pa.Schema, read: Callable[[list[str]], Iterable[pa.RecordBatch]]) -> dict[str, Variable]:
    """Describe the columns of Arrow's types; ``read`` returns the batches of those with categories."""
    ordered = ordered_categories(schema)
    categories = Categories(list(ordered))
    for rows in read(list(ordered)) if ordered else ():
        categories.add(rows)
    return {field.name: categories.describe(field.name, field.type, ordered=ordered.get(field.name, False)) for field in schema}


class MemoryTable(Table):
    """A table whose columns are in memory, read from a file that cannot be read in pieces."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[str, pa.ChunkedArray]],
        variables: Mapping[str, Variable],
        *,
        notes: Sequence[str] = (),
        tags: Mapping[str, NDArray[np.uint8]] | None = None,
    ) -> None:
        """Take the columns; ``tags`` holds the letters of tagged missing values by column, 0 for other values."""
        self.name = name
        self.columns = [column for column, _ in columns]
        self.notes = list(notes)
        self._rows = pa.table([values for _, values in columns], self.columns)
        self._variables, self._tags = variables, tags or {}
        self.n_bytes = self._rows.nbytes
        if self._rows.num_rows == 0:
            raise DataError(f"{name} has columns but no rows, expected at least one row")

    @property
    def variables(self) -> Mapping[str, Variable]:
        return self._variables

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = self._rows.select([*numbers, *texts])
        n_rows = rows_per_batch(rows.num_columns)
        for first in range(0, rows.num_rows, n_rows):
            batch = rows.slice(first, n_rows).combine_chunks().to_batches()[0]
            yield pa.record_batch(batch.columns, pa.schema([self._counted(field, first, n_rows) for field in batch.schema]))

    def _counted(self, field: pa.Field, first: int, n_rows: int) -> pa.Field:
        """Return the field with counts of the tagged missing values among some rows."""
        if field.name not in self._tags:
            return field
        counts = np.bincount(self._tags[field.name][first : first + n_rows], minlength=128)
        return with_tags(field, {chr(i): int(counts[i]) for i in np.flatnonzero(counts) if i})


def _check_text(values: pa.Array, column: str, position: Callable[[int], str]) -> None:
    """Raise DataError for text that is not UTF-8, which Arrow reads from damaged files without an error."""
    if _is_string(values.type.value_type if pa.types.is_dictionary(values.type) else values.type):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            where = f"{position(0)} or a later row, column {column!r}"
            raise DataError(f"{where}: {error}; expected valid UTF-8: the file is damaged, export it again") from error


def _as_number(values: pa.Array, missing: Sequence[str], column: str, position: Callable[[int], str]) -> pa.Array:
    if _is_plain(values.type):
        return values
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if _is_string(values.type):
        values = pc.utf8_trim_whitespace(values.cast(pa.string()))
        values = pc.if_else(pc.is_in(values, pa.array(["", *missing])), None, values)
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        for i, cell in enumerate(values.to_pylist()):
            if cell is not None and not is_number(cell):
                raise TextInNumbersError(position(i), column, cell) from None
        raise


def _as_text(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_boolean(kind):  # the texts that Python and R write to csv
        return pc.if_else(values, "True", "False")
    if pa.types.is_floating(kind):
        with suppress(pa.ArrowInvalid):  # Arrow writes the float 1e16 with an exponent, which no label has
            values = values.cast(pa.int64())
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("s"), safe=False)
    return values.cast(pa.string())


_CASTABLE = (pa.types.is_boolean, pa.types.is_decimal, pa.types.is_float16, pa.types.is_null)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
