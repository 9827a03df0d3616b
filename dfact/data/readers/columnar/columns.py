"""Arrow columns as batches, for the formats that Arrow reads and for those whose rows are held in memory."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dfact.data.memory_limit import free_memory
from dfact.data.readers.base import Batch, Table, TextInNumbersError, Variable, is_number, to_matrix
from dfact.errors import DataError, MemoryPlanError

BATCH_ENTRIES = 3 << 18
_MOST_ROWS = 1 << 16
_MOST_CATEGORIES = 1000
"""Number of categories of a column of answers; a column with more holds labels or free text."""


def rows_per_batch(n_columns: int) -> int:
    """Return the number of rows whose entries fill a batch."""
    return min(max(1, BATCH_ENTRIES // max(1, n_columns)), _MOST_ROWS)


def to_batch(
    rows: pa.RecordBatch,
    numbers: Sequence[str],
    texts: Sequence[str],
    missing: Sequence[str],
    position: Callable[[int], str],
) -> Batch:
    """Convert rows to a batch; ``position`` describes a row of them, counted from 0, with the name of its file."""
    for name in (*numbers, *texts):
        _check_text(rows[name], name, position)
    chosen = rows.select(list(numbers))
    if not all(map(_is_plain, chosen.schema.types)):
        columns = [_as_number(values, missing, name, position) for name, values in zip(numbers, chosen.columns, strict=True)]
        chosen = pa.record_batch(columns, list(numbers))
    strings = [_as_text(rows[name]) for name in texts]
    return Batch(to_matrix(chosen), pa.record_batch(strings, list(texts)))


def check_types(file: str, schema: pa.Schema, numbers: Sequence[str], texts: Sequence[str]) -> None:
    """Raise DataError unless the columns hold what they are read as."""
    for names, kinds in ((numbers, ("number", "text")), (texts, ("number", "text", "date"))):
        for name in names:
            kind = schema.field(name).type
            if kind_of(kind) not in kinds:
                raise DataError(f"{file}: column {name!r} holds {kind}, expected numbers or text; leave it out")


def kind_of(kind: pa.DataType) -> Literal["number", "text", "date"] | None:
    """Return "number", "text" or "date", or None for what is no column of a table."""
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
    types = zip(schema.names, schema.types, strict=True)
    declared |= {name: declared.get(name, False) or kind.ordered for name, kind in types if pa.types.is_dictionary(kind)}
    return {name: ordered for name, ordered in declared.items() if kind_of(schema.field(name).type) == "text"}


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


def require_memory(name: str, n_bytes: float, remedy: str) -> None:
    """Raise MemoryPlanError if a file that is read as a whole needs more than half of the free memory."""
    limit = memory_limit()
    if n_bytes > limit:
        raise MemoryPlanError(
            f"{name} needs {n_bytes / 2**20:,.0f} MiB of memory, expected at most {limit / 2**20:,.0f} MiB, half of what is free; {remedy}"
        )


def memory_limit() -> float:
    """Return the number of bytes that a file may need which is read as a whole: half of the free memory."""
    return free_memory().size / 2


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

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        names = list(dict.fromkeys([*numbers, *texts]))
        rows = self._rows.select(names)
        check_types(self.name, rows.schema, numbers, texts)
        n_rows = rows_per_batch(len(names))
        for first in range(0, rows.num_rows, n_rows):
            batch = rows.slice(first, n_rows).combine_chunks().to_batches()[0]
            yield to_batch(batch, numbers, texts, missing, partial(self._position, first))._replace(
                tagged=self._count_tags(numbers, first, n_rows)
            )

    def _count_tags(self, numbers: Sequence[str], first: int, n_rows: int) -> Mapping[str, Mapping[str, int]]:
        counts = {name: np.bincount(self._tags[name][first : first + n_rows], minlength=128) for name in numbers if name in self._tags}
        return {name: {chr(i): int(count[i]) for i in np.flatnonzero(count) if i} for name, count in counts.items()}

    def _position(self, first: int, row: int) -> str:
        return f"{self.name}: {self.row_position(first + row)}"


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
