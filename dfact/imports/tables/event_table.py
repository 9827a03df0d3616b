"""Long tables, with a row for each record and event, as wide ones, with a row for each record; and some rows of a table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.imports.dictionaries.base import EventColumns
from dfact.imports.readers.base import Table, TextInNumbersError, Variable
from dfact.imports.readers.columnar.columns import Cells, read_cells, read_texts
from dfact.imports.tables.items import check_columns
from dfact.imports.tables.stack import Events, find_events

Scalar = TypeVar("Scalar", bound=np.generic)


class _Gatherer(Generic[Scalar]):
    """Rows in the order of the file that become tensors of records × columns × events.

    A record is held until its last row and those of all earlier records have been read: few at once if the file is sorted by
    record.
    """

    def __init__(self, events: Events, n_columns: int, dtype: Any, missing: Any) -> None:
        self._events, self._missing = events, missing
        self._last = np.zeros(len(events.ids), np.intp)
        np.maximum.at(self._last, events.record, np.arange(len(events.record)))
        self._held: NDArray[Scalar] = np.empty((0, n_columns, len(events.labels)), dtype)
        self._n_read = self._n_done = 0

    def push(self, rows: NDArray[Scalar]) -> NDArray[Scalar]:
        """Add the next rows (n, c), and return the next complete records (k, c, t); combinations without a row are missing."""
        held, done = self._held, self._n_done
        batch = slice(self._n_read, self._n_read + len(rows))
        record, event = self._events.record[batch] - done, self._events.event[batch]
        self._n_read += len(rows)
        n_new = record.max(initial=-1) + 1 - len(held)  # records are numbered by their first rows
        if n_new > 0:
            held = np.concatenate([held, np.full((n_new, *held.shape[1:]), self._missing, held.dtype)])
        held[record, :, event] = rows
        complete = self._last[done : done + len(held)] < self._n_read
        n_complete = len(held) if complete.all() else int(np.argmin(complete))
        self._held, self._n_done = held[n_complete:], done + n_complete
        return held[:n_complete]


class EventTable(Table):
    """A long table as a wide one: a row for each record, and columns for the answers at each event.

    A column under its own name has the one value of each record.
    """

    def __init__(self, table: Table, events: Events, answers: Sequence[str]) -> None:
        self.name, self.format = table.name, table.format
        self._table, self._events = table, events
        self._places = {self.column(name, label): (name, k) for name in answers for k, label in enumerate(events.labels)}
        self.columns = [*table.columns, *self._places]

    @staticmethod
    def column(name: str, event: str) -> str:
        """Return the name of the column with the answers at an event."""
        return f"{name} at {event}"

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        number_places, text_places = ([self._places.get(name, (name, -1)) for name in names] for names in (numbers, texts))
        number_columns, text_columns = (list(dict.fromkeys(name for name, _ in places)) for places in (number_places, text_places))
        answers = _Gatherer[np.float64](self._events, len(number_columns), np.float64, np.nan)
        cells = _Gatherer[np.object_](self._events, len(text_columns), np.object_, None)
        n_done = 0
        for batch in self._read(number_columns, text_columns, missing):
            rows = np.empty((len(batch.numbers), len(text_columns)), np.object_)
            for j, column in enumerate(batch.texts.columns):
                rows[:, j] = column.to_pylist()
            tensor, words = answers.push(batch.numbers), cells.push(rows)
            if not len(words):
                continue
            columns = [pa.array(tensor[:, number_columns.index(name), k]) for name, k in number_places]
            for name, k in text_places:
                slots = words[:, text_columns.index(name)]
                columns.append(pa.array(self._one_each(name, slots, n_done) if k < 0 else slots[:, k], pa.string()))
            yield pa.record_batch(columns, [*numbers, *texts])
            n_done += len(words)

    def _read(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Cells]:
        try:
            yield from read_cells(self._table, numbers, texts, missing)
        except TextInNumbersError as error:
            raise DataError(str(error)) from error  # its column is none of this table

    def row_position(self, row: int) -> str:
        return f"record {self._events.ids[row]!r}"

    def _one_each(self, name: str, slots: NDArray[np.object_], first: int) -> NDArray[np.object_]:
        """Return the value of each record in a column, empty cells aside (k,), given its cells at all events (k, t)."""
        values = np.full(len(slots), None, np.object_)
        for i, cells in enumerate(slots):
            stated = [(text.strip(), k) for k, text in enumerate(cells) if text is not None and text.strip()]
            if stated:
                values[i] = stated[0][0]
            other = next((each for each in stated if each[0] != stated[0][0]), None)
            if other is not None:
                found = " and ".join(f"{text!r} at {self._events.labels[k]}" for text, k in (stated[0], other))
                expected = "expected one value for each record; correct it, leave the column out, or name one event"
                raise DataError(f"{self.name}: column {name!r} holds {found} for {self.row_position(first + i)}, {expected}")
        return values


class RowsOfTable(Table):
    """Some rows of a table."""

    def __init__(self, table: Table, kept: NDArray[np.bool_]) -> None:
        self.name, self.format, self.columns = table.name, table.format, table.columns
        self._table, self._kept, self._rows = table, kept, np.flatnonzero(kept)

    @property
    def variables(self) -> Mapping[str, Variable]:
        return self._table.variables

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        n_read = 0
        for rows in self._table.record_batches(numbers, texts, missing):
            kept = self._kept[n_read : n_read + rows.num_rows]
            n_read += rows.num_rows
            if kept.any():  # counts in the metadata are those of all rows
                yield pa.record_batch(rows.filter(pa.array(kept)).columns, rows.schema.names)

    def row_position(self, row: int) -> str:
        return self._table.row_position(int(self._rows[row]))


def read_events(table: Table, columns: EventColumns) -> Events:
    """Read the records and the events of all rows; raises what :func:`find_events` raises."""
    names = [columns.record, *columns.slots]
    check_columns(table, names)
    texts = pa.Table.from_batches(list(read_texts(table, names)))
    return find_events(table.name, columns, {name: texts[name] for name in names}, table.row_position)
