"""The arrangement of a table's cells: one row for each participant, with its items, or with its items at each event or instance."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.codebook import Codebook
from dfact.data.statistics import ColumnStatistics
from dfact.errors import ParameterError
from dfact.imports.coding.answers import UNOPENED, AnswerCoding, code_text
from dfact.imports.coding.no_answer import sounds_like_no_answer
from dfact.imports.dictionaries.base import Dictionary
from dfact.imports.readers.base import Table
from dfact.imports.tables.event_table import EventTable, RowsOfTable, read_events
from dfact.imports.tables.stack import Events, Instances, Stack, find_instances, which_slice

Counts = Mapping[tuple[int, str], int]


@dataclass(frozen=True)
class Arrangement:
    """A table, the coding of its columns, and the items that they are."""

    table: Table
    coding: AnswerCoding
    """The coding of the columns."""
    items: AnswerCoding
    """The coding of the items, of which a column is one, or is one at an instance."""
    layout: Instances | None = None
    """The third mode; None if each column is an item."""
    left_out: tuple[str, ...] = ()
    """Events or instances without any answer, which are not in the mode."""

    @property
    def labels(self) -> NDArray[Any]:
        """Names of the items."""
        return np.array([item.name for item in self.items.items], np.object_)

    @property
    def mode_labels(self) -> tuple[NDArray[Any], ...]:
        """Labels of the third mode, if there is one."""
        return () if self.layout is None else (np.array(self.layout.labels, np.object_),)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of items, and of instances if they are a mode."""
        return (len(self.items.items),) if self.layout is None else self.layout.index.shape

    def with_answers(self, statistics: ColumnStatistics) -> "Arrangement":
        """Return the arrangement without instances that have no answer."""
        if self.layout is None:
            return self
        kept = self.layout.with_answers(statistics.observed)
        return replace(self, layout=kept, left_out=tuple(label for label in self.layout.labels if label not in kept.labels))

    def of_columns(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a value of each column (c,), given one of each item (m,)."""
        return values if self.layout is None else values[self.layout.item_of_column]

    def of_items(self, statistics: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of the items, given those of the columns."""
        if self.layout is None:
            return statistics
        pooled = ColumnStatistics.of_columns(len(self.items.items))
        item = self.layout.item_of_column
        np.add.at(pooled.observed, item, statistics.observed)
        np.minimum.at(pooled.minimum, item, statistics.minimum)
        np.maximum.at(pooled.maximum, item, statistics.maximum)
        pooled.n_rows, pooled.empty_rows, pooled.n_empty_rows = statistics.n_rows, statistics.empty_rows, statistics.n_empty_rows
        return pooled

    def unanswered(self, statistics: ColumnStatistics) -> list[str]:
        """Return the items without any answer, unless that is all, given the statistics of the columns."""
        observed = self.of_items(statistics).observed
        return [item.name for item, n in zip(self.items.items, observed, strict=True) if n == 0] if observed.any() else []

    def require_no_doubt(self, name: str, counts: Counts, far: Counts, others: Mapping[int, str]) -> None:
        """Raise DataError on answers with codes that may or may not stand for no answer, given those that are ``far`` from the others."""
        doubts = self.coding.doubts(counts)
        doubts.update({key: n for key, n in far.items() if key not in doubts})
        if isinstance(self.table, EventTable):  # its columns are not those that a user names
            self.items.require_no_doubt(name, self._by_item(doubts))
        else:
            self.coding.require_no_doubt(name, doubts, others)

    def codebook(self, counts: Counts, statistics: ColumnStatistics, source: str) -> Codebook:
        """Return the codebook of the items, given the counts and the statistics of the columns."""
        missing = statistics.n_rows - statistics.observed
        if self.layout is None:
            return self.items.codebook(counts, missing, source)
        kept = self.layout.index[self.layout.index >= 0]
        n_missing = np.zeros(len(self.items.items), np.int64)
        np.add.at(n_missing, self.layout.item_of_column[kept], missing[kept])
        in_mode = set(kept.tolist())
        return self.items.codebook(self._by_item({key: n for key, n in counts.items() if key[0] in in_mode}), n_missing, source)

    def unopened_forms(self, counts: Counts) -> list[str]:
        """Return a sentence about each form whose boxes are missing in some rows."""
        found: Counter[str] = Counter()
        for form in self.coding.forms:
            boxes = [j for j, item in enumerate(self.coding.items) if item.name in form.boxes]
            found[form.status] = max(counts.get((j, UNOPENED), 0) for j in boxes)
        return [
            f"{self.table.name}: the boxes are missing in {n} row(s) in which {status!r} is 0 or empty and none is ticked"
            for status, n in found.items()
            if n
        ]

    def frequent_missing_codes(self, counts: Counts) -> list[str]:
        """Return a sentence about each item with a missing code whose label does not sound so: the most frequent such code."""
        pooled = counts if self.layout is None else self._by_item(counts)
        found: dict[int, tuple[int, str]] = {}
        for (j, code), n in pooled.items():
            label = self.items.items[j].labels.get(code, "")
            if label and not sounds_like_no_answer(label):
                found[j] = max(found.get(j, (0, "")), (n, code))
        sentences = []
        for j, (n, code) in sorted(found.items()):
            item = self.items.items[j]
            said = f"{self.table.name}: {n} answer(s) of {item.name} are {code} {item.labels[code]!r}, which is declared missing"
            sentences.append(f"{said}; to keep them, say --not-missing {item.name}={code}, or --recode {item.name}:{code}=NUMBER")
        return sentences

    def negative_answers(self, statistics: ColumnStatistics) -> str:
        """Return the items with the labelled negative codes in the range of their answers, given the statistics of the items."""
        found = []
        for j, item in enumerate(self.items.items):
            low, high = statistics.minimum[j], statistics.maximum[j]
            lowest = sum(item.limits) - high if item.reversed else low
            codes = ", ".join(f"{code_text(code)} {label!r}" for code, label in item.levels if lowest <= code < 0)
            found += [f"{item.name} ({codes})"] if codes else []
        return "; ".join(found)

    def _by_item(self, counts: Counts) -> Counter[tuple[int, str]]:
        assert self.layout is not None
        item, pooled = self.layout.item_of_column, Counter[tuple[int, str]]()
        for (j, code), count in counts.items():
            pooled[int(item[j]), code] += count
        return pooled


def choose_events(table: Table, dictionary: Dictionary | None, stack: Stack | None, event: str | None) -> tuple[Table, Events | None]:
    """Return the rows of one event, or the events that become a mode.

    Raises DataError if there are several events, and neither one of them nor a mode is asked for.
    """
    columns = None if dictionary is None else dictionary.event_columns(table.columns)
    if columns is None:
        if stack == "events" or event is not None:
            said = "third_mode is 'events'" if event is None else f"event is {event!r}"
            raise ParameterError(f"{said} for {table.name}, which has no column of events, expected an export of REDCap; leave it out")
        return table, None
    events = read_events(table, columns)
    if event is not None:
        return RowsOfTable(table, events.rows_at(event)), None
    if stack == "events":
        return table, events
    if len(events.labels) > 1:
        raise which_slice(table.name, "events", events.counts)
    return table, None


def choose_instances(
    name: str, dictionary: Dictionary | None, columns: list[str], stack: Stack | None, instance: str | None
) -> tuple[dict[str, str], Instances | None]:
    """Return the column of each item, and the instances if they become a mode.

    Raises DataError if there are several instances, and neither one of them nor a mode is asked for.
    """
    places = {} if dictionary is None else dictionary.instances(columns)
    if stack != "instances" and instance is None:
        known = [column for column in columns if column in places]
        if len({label for _, label in places.values()}) > 1:
            raise which_slice(name, "instances", find_instances(name, known, places).counts)
        return {column: column for column in columns}, None
    if not places:
        said = "third_mode is 'instances'" if instance is None else f"instance is {instance!r}"
        raise ParameterError(f"{said} for {name}, whose items have no instances, expected columns of UK Biobank; leave it out")
    found = find_instances(name, columns, places)
    return ({column: column for column in columns}, found) if instance is None else (found.at(instance), None)


def arrange(table: Table, coding: AnswerCoding, items: Mapping[str, str], layout: Instances | None, events: Events | None) -> Arrangement:
    """Return the arrangement of columns that are coded one by one, given the column of each item."""
    coded = {item.name: item for item in coding.items}
    if layout is not None:
        first = [coded[layout.columns[places[places >= 0][0]]] for places in layout.index]
        named = tuple(replace(item, name=name) for item, name in zip(first, layout.items, strict=True))
        return Arrangement(table, coding, replace(coding, items=named), layout)
    named = tuple(replace(coded[column], name=name) for name, column in items.items())
    if events is None:
        return Arrangement(table, coding, replace(coding, items=named))
    at = EventTable.column
    places = {at(item.name, label): (item.name, label) for item in coding.items for label in events.labels}
    columns = tuple(replace(item, name=at(item.name, label)) for item in coding.items for label in events.labels)
    forms = tuple(
        replace(form, status=at(form.status, label), boxes=tuple(at(box, label) for box in form.boxes))
        for form in coding.forms
        for label in events.labels
    )
    answers = list(dict.fromkeys([*coded, *(column for form in coding.forms for column in form.columns)]))
    wide = EventTable(table, events, answers)
    return Arrangement(
        wide, replace(coding, items=columns, forms=forms), replace(coding, items=named), find_instances(table.name, list(places), places)
    )
