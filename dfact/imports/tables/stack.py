"""The third mode of a table: instances in columns side by side, or events in rows below each other."""

import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dfact.data.statistics import ColumnStatistics
from dfact.errors import DataError, ParameterError
from dfact.imports.dictionaries.base import EventColumns

Scalar = TypeVar("Scalar", bound=np.generic)
Stack = Literal["events", "instances"]

ONCE = "not repeated"
"""Label of the rows that belong to no event and no repetition."""
_LISTED = 20
"""Number of slices that a message lists."""


@dataclass(frozen=True, eq=False)
class Instances:
    """Columns as items × instances."""

    items: tuple[str, ...]
    labels: tuple[str, ...]
    """Instances: by number where all are numbers, otherwise in the order of the columns."""
    columns: tuple[str, ...]
    """The columns to read, in the order of the file."""
    item_of_column: NDArray[np.intp]
    """Number of the item of each column (c,)."""
    index: NDArray[np.intp]
    """Position in ``columns`` of each item and instance (m, t), −1 for one without a column."""

    def at(self, label: str) -> dict[str, str]:
        """Return the column of each item at one instance, without items that have none there."""
        if label not in self.labels:
            raise ParameterError(f"instance is {label!r}, expected one of {_listed(self.counts)}; correct it")
        places = self.index[:, self.labels.index(label)]
        return {item: self.columns[place] for item, place in zip(self.items, places, strict=True) if place >= 0}

    @property
    def counts(self) -> dict[str, str]:
        """Number of the columns of each instance, as text."""
        return {label: f"{n} column(s)" for label, n in zip(self.labels, (self.index >= 0).sum(axis=0), strict=True)}

    def with_answers(self, observed: NDArray[np.int64]) -> "Instances":
        """Return the instances that have an answer, given the number of answers in each column (c,)."""
        answers = np.where(self.index >= 0, observed[self.index], 0).sum(axis=0)
        kept = np.flatnonzero(answers)
        return replace(self, labels=tuple(self.labels[k] for k in kept), index=self.index[:, kept])

    def arrange_statistics(self, statistics: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of the entries of a row of the tensor, flattened (m·t,), given those of the columns."""
        there = self.index.ravel() >= 0
        arranged = ColumnStatistics.of_columns(there.size)
        places = self.index.ravel()[there]
        arranged.observed[there] = statistics.observed[places]
        arranged.minimum[there], arranged.maximum[there] = statistics.minimum[places], statistics.maximum[places]
        arranged.n_rows, arranged.empty_rows, arranged.n_empty_rows = statistics.n_rows, statistics.empty_rows, statistics.n_empty_rows
        return arranged

    def to_tensor(self, values: NDArray[Scalar], missing: Any) -> NDArray[Scalar]:
        """Return the rows (n, c) as a tensor (n, m, t), with ``missing`` for items without a column at an instance."""
        tensor = np.asarray(values[:, self.index])
        tensor[:, self.index < 0] = missing
        return tensor


def find_instances(name: str, columns: Sequence[str], places: Mapping[str, tuple[str, str]]) -> Instances:
    """Arrange columns by item and instance, given both for each column.

    Instances come in the order of their numbers, or else of their columns.

    Raises DataError for a column without an instance, and for two columns of one item at one instance.
    """
    without = next((column for column in columns if column not in places), None)
    if without is not None:
        raise DataError(f"{name}: column {without!r} belongs to no instance, expected one of a field of several; leave it out of the items")
    items = tuple(dict.fromkeys(places[column][0] for column in columns))
    labels = tuple(dict.fromkeys(places[column][1] for column in columns))
    if all(label.isdecimal() for label in labels):
        labels = tuple(sorted(labels, key=int))
    rows, slots = ({label: j for j, label in enumerate(each)} for each in (items, labels))
    index = np.full((len(items), len(labels)), -1, np.intp)
    for j, column in enumerate(columns):
        at = rows[places[column][0]], slots[places[column][1]]
        if index[at] >= 0:
            both = f"{columns[index[at]]!r} and {column!r}"
            raise DataError(f"{name}: the columns {both} are the same item at the same instance, expected one; leave one out of the items")
        index[at] = j
    return Instances(items, labels, tuple(columns), np.array([rows[places[column][0]] for column in columns], np.intp), index)


@dataclass(frozen=True, eq=False)
class Events:
    """Rows as records × events."""

    ids: NDArray[Any]
    """Ids of the records, in the order of their first rows."""
    labels: tuple[str, ...]
    record: NDArray[np.intp]
    """Number of the record of each row."""
    event: NDArray[np.intp]
    """Number of the event of each row."""

    @property
    def counts(self) -> dict[str, str]:
        """Number of the rows of each event, as text."""
        rows = np.bincount(self.event, minlength=len(self.labels))
        return {label: f"{n} row(s)" for label, n in zip(self.labels, rows, strict=True)}

    def rows_at(self, label: str) -> NDArray[np.bool_]:
        """Return which rows belong to one event."""
        if label not in self.labels:
            raise ParameterError(f"event is {label!r}, expected one of {_listed(self.counts)}; correct it")
        return np.asarray(self.event == self.labels.index(label))


def find_events(name: str, columns: EventColumns, texts: Mapping[str, pa.Array], row_position: Callable[[int], str]) -> Events:
    """Arrange the rows of a table by record and event, given the texts of the columns that hold them.

    Events come in their known order, then in the order of their first rows; the repetitions of a form follow each other by number.

    Raises DataError for a row without a record, and for two rows of one record at one event.
    """
    ids = _texts(texts[columns.record])
    empty = np.flatnonzero(ids == "")
    if empty.size:
        raise DataError(f"{name}: {row_position(int(empty[0]))} has no id in column {columns.record!r}, expected one in every row; add it")
    record, labels = pd.factorize(ids)
    parts = pd.DataFrame({column: _texts(texts[column]) for column in columns.slots})
    distinct = parts.drop_duplicates()
    order = _order(distinct, columns)
    event = np.argsort(order)[parts.groupby(columns.slots, sort=False).ngroup().to_numpy(np.intp)]
    names = tuple(_label(cells, columns) for cells in distinct.iloc[order].to_dict("records"))
    key = pd.Series(record * len(names) + event)
    second = np.flatnonzero(key.duplicated())
    if second.size:
        first = int(np.flatnonzero(key == key.iloc[second[0]])[0])
        rows = f"{row_position(first)} and {row_position(int(second[0]))}"
        raise DataError(
            f"{name}: {rows} are both {labels[record[first]]!r} at {names[event[first]]!r}, expected one row for each record and event; "
            "remove one of them"
        )
    return Events(np.asarray(labels, object), names, record.astype(np.intp), event)


def which_slice(name: str, stack: Stack, counts: Mapping[str, str]) -> DataError:
    """Return the error for a table of several events or instances, of which neither a mode nor one was asked for."""
    one = stack.removesuffix("s")
    first = next(iter(counts))
    remedy = f"say third_mode={stack!r} or {one}={first!r} (--third-mode {stack}, --{one} {shlex.quote(first)})"
    return DataError(f"{name} has {len(counts)} {stack}, {_listed(counts)}, expected a third mode of them or one of them; {remedy}")


def _listed(counts: Mapping[str, str]) -> str:
    shown = [f"{label} ({count})" for label, count in list(counts.items())[:_LISTED]]
    return ", ".join(shown) + (", …" if len(counts) > _LISTED else "")


def _texts(values: pa.Array) -> "pd.Series[str]":
    """Return texts without the spaces around them, "" for null."""
    texts: pd.Series[str] = values.to_pandas().fillna("").astype(str).str.strip()
    return texts


def _order(distinct: pd.DataFrame, columns: EventColumns) -> NDArray[np.intp]:
    """Return the order of distinct events: known ones first, forms as they occur, repetitions by number."""
    keys = []
    for column in columns.slots:
        texts = distinct[column]
        if column == columns.repetition:
            keys.append(pd.to_numeric(texts, errors="coerce").fillna(0).to_numpy(np.float64))
            continue
        known = columns.order if column == columns.event else ()
        rank = {text: i for i, text in enumerate(dict.fromkeys([*known, *texts]))}
        keys.append(texts.map(rank).to_numpy(np.float64))
    return np.lexsort(keys[::-1])


def _label(cells: Mapping[Hashable, str], columns: EventColumns) -> str:
    """Return the name of an event: "visit_1", "bp 2", or "visit_1, bp 2"."""
    repeated = " ".join(cells[column] for column in (columns.form, columns.repetition) if column and cells[column])
    event = cells[columns.event] if columns.event else ""
    return ", ".join(part for part in (event, repeated) if part) or ONCE
