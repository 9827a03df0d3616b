"""The third mode of a table: instances in columns side by side, and events in rows below each other."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.imports.dictionaries.base import EventColumns
from dfact.imports.readers.base import Table
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.tables.event_table import EventTable, RowsOfTable, read_events
from dfact.imports.tables.stack import ONCE, Events, Instances, find_events, find_instances, which_slice

LONG = EventColumns("id", "event")


def position(row: int) -> str:
    return f"line {row + 2}"


def instances(n_items: int, n_instances: int, seed: int) -> tuple[Instances, list[tuple[int, int]]]:
    """Columns of items × instances in any order, some of which are absent, and the item and instance of each column."""
    rng = np.random.default_rng(seed)
    places = [(j, k) for j in range(n_items) for k in range(n_instances) if 0 in (j, k) or rng.random() < 0.7]
    places = [places[i] for i in rng.permutation(len(places))]
    by_column = {f"{j}-{k}": (f"q{j}", str(k)) for j, k in places}
    return find_instances("t.csv", list(by_column), by_column), places


@pytest.mark.parametrize("seed", range(3))
def test_instances_become_a_mode(seed: int) -> None:
    found, places = instances(5, 12, seed)
    values = np.random.default_rng(seed).integers(0, 200, (7, len(places))).astype(np.uint8)
    tensor = found.to_tensor(values, 255)
    assert tensor.shape == (7, 5, 12)
    assert tensor.dtype == np.uint8
    assert found.labels == tuple(map(str, range(12)))
    expected = np.full((7, 5, 12), 255, np.uint8)
    for column, (j, k) in enumerate(places):
        expected[:, found.items.index(f"q{j}"), k] = values[:, column]
    np.testing.assert_array_equal(tensor, expected)
    for k in range(12):
        assert found.at(str(k)) == {item: f"{item[1:]}-{k}" for item in found.items if (int(item[1:]), k) in places}


def test_instances_without_any_answer_are_left_out() -> None:
    found = find_instances("t", ["a0", "a1", "b1", "a2"], {"a0": ("a", "0"), "a1": ("a", "1"), "b1": ("b", "1"), "a2": ("a", "2")})
    assert found.counts == {"0": "1 column(s)", "1": "2 column(s)", "2": "1 column(s)"}
    kept = found.with_answers(np.array([3, 0, 0, 1]))
    assert (kept.items, kept.labels) == (("a", "b"), ("0", "2"))
    np.testing.assert_array_equal(kept.to_tensor(np.array([[1.0, np.nan, np.nan, 4.0]]), np.nan), [[[1, 4], [np.nan, np.nan]]])


def test_columns_that_do_not_fit_in_a_mode_are_refused() -> None:
    with pytest.raises(DataError, match=r"t.csv: column 'age' belongs to no instance"):
        find_instances("t.csv", ["a0", "age"], {"a0": ("a", "0")})
    both = {"31-0.0": ("31", "0"), "p31_i0": ("31", "0")}
    with pytest.raises(DataError, match=r"'31-0.0' and 'p31_i0' are the same item at the same instance"):
        find_instances("t.csv", list(both), both)
    with pytest.raises(ParameterError, match=r"instance is '7', expected one of 0 \(1 column\(s\)\)"):
        find_instances("t.csv", ["a0"], {"a0": ("a", "0")}).at("7")


def long_rows(seed: int, *, by_event: bool = False) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Ids, events and answers of rows, of which some are absent; the record 0 has all events in their order."""
    rng = np.random.default_rng(seed)
    rows = [(i, k) for i in range(23) for k in range(4) if i == 0 or rng.random() < 0.6]
    if by_event:
        rows = [row for k in range(4) for row in rows if row[1] == k]
    elif seed:
        rows = rows[:4] + [rows[4:][i] for i in rng.permutation(len(rows) - 4)]
    return [f"r{i}" for i, _ in rows], [f"e{k}" for _, k in rows], rng.integers(0, 9, (len(rows), 3)).astype(np.float64)


def arrange(ids: Sequence[str | None], events: Sequence[str | None], order: tuple[str, ...] = ()) -> Events:
    columns = EventColumns("id", "event", order=order)
    return find_events("t.csv", columns, {"id": pa.array(ids), "event": pa.array(events)}, position)


class Rows(Table):
    """Rows in memory, some at a time."""

    def __init__(self, columns: dict[str, Sequence[Any]], size: int) -> None:
        self.name, self.columns, self.cells, self._size = "t.csv", list(columns), columns, size
        self.n_batches = 0

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        n = len(self.cells["id"])
        for rows in (slice(i, i + self._size) for i in range(0, n, self._size)):
            self.n_batches += 1
            columns = [pa.array(np.array(self.cells[name][rows], np.float64)) for name in numbers]
            yield pa.record_batch([*columns, *(pa.array(list(self.cells[name][rows])) for name in texts)], [*numbers, *texts])

    def row_position(self, row: int) -> str:
        return position(row)


def tables(ids: Sequence[str], events: Sequence[str], size: int = 3, **columns: Sequence[Any]) -> tuple[Rows, Events, EventTable]:
    rows = Rows({"id": ids, "event": events, **columns}, size)
    found = read_events(rows, LONG)
    return rows, found, EventTable(rows, found, list(columns))


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_events_become_columns(seed: int, size: int, by_event: bool) -> None:
    ids, events, values = long_rows(seed, by_event=by_event)
    words = [f"w{value:g}" for value in values[:, 0]]
    _, found, table = tables(ids, events, size, a=values[:, 0], b=values[:, 1], word=words)
    assert list(found.ids) == list(dict.fromkeys(ids))
    assert found.labels == ("e0", "e1", "e2", "e3")
    columns = [f"{name} at e{k}" for k in (2, 0, 3, 1) for name in "ba"]
    batches = list(read_cells(table, columns, ["id", "word at e1"], []))
    expected = np.full((len(found.ids), len(columns)), np.nan)
    texts: list[str | None] = [None] * len(found.ids)
    for name, event, row, word in zip(ids, events, values, words, strict=True):
        i = list(found.ids).index(name)
        expected[i, columns.index(f"a at {event}")], expected[i, columns.index(f"b at {event}")] = row[:2]
        texts[i] = word if event == "e1" else texts[i]
    np.testing.assert_array_equal(np.concatenate([batch.numbers for batch in batches]), expected)
    assert [cell for batch in batches for cell in batch.texts["id"].to_pylist()] == list(found.ids)
    assert [cell for batch in batches for cell in batch.texts["word at e1"].to_pylist()] == texts
    assert [table.row_position(i) for i in (0, 2)] == [f"record {found.ids[i]!r}" for i in (0, 2)]


def test_records_are_released_once_they_are_complete() -> None:
    rows, _, table = tables([f"r{i // 2}" for i in range(40)], ["a", "b"] * 20, 4, x=range(40))
    rows.n_batches = 0
    released = [(len(batch.numbers), rows.n_batches) for batch in read_cells(table, ["x at b"], [], [])]
    assert released == [(2, i + 1) for i in range(10)]


def test_rows_of_one_event_keep_their_positions() -> None:
    ids, events, values = long_rows(1)
    rows, found, _ = tables(ids, events, x=values[:, 0])
    table = RowsOfTable(rows, found.rows_at("e2"))
    batches = list(read_cells(table, ["x"], ["event", "id"], []))
    at = [i for i, event in enumerate(events) if event == "e2"]
    np.testing.assert_array_equal(np.concatenate([batch.numbers for batch in batches])[:, 0], values[at, 0])
    assert [cell for batch in batches for cell in batch.texts["id"].to_pylist()] == [ids[i] for i in at]
    assert [table.row_position(k) for k in range(len(at))] == [position(i) for i in at]
    assert sum(batch.texts.num_rows for batch in read_cells(table, [], ["id"], [])) == len(at)


def test_events_come_in_the_order_of_the_dictionary() -> None:
    ids, events = ["1", "1", "2", "2", "2"], ["late", "odd", "early", "new", "late"]
    assert arrange(ids, events).labels == ("late", "odd", "early", "new")
    found = arrange(ids, events, order=("early", "never", "late"))
    assert found.labels == ("early", "late", "odd", "new")
    assert found.counts == {"early": "1 row(s)", "late": "2 row(s)", "odd": "1 row(s)", "new": "1 row(s)"}
    np.testing.assert_array_equal(found.rows_at("late"), [True, False, False, False, True])
    with pytest.raises(ParameterError, match=r"event is 'never', expected one of early \(1 row\(s\)\), late \(2 row\(s\)\)"):
        found.rows_at("never")


def test_repetitions_of_a_form_are_events() -> None:
    texts = {
        "id": ["1", "1", "1", "1", "2", "2"],
        "event": ["v1", "v1", "v1", "v2", "v1", "v1"],
        "form": [None, "bp", "bp", None, "bp", ""],
        "number": ["", "10", "2", None, "9", None],
    }
    arrays = {name: pa.array(column, pa.string()) for name, column in texts.items()}
    found = find_events("t", EventColumns("id", "event", "form", "number"), arrays, position)
    assert found.labels == ("v1", "v1, bp 2", "v1, bp 9", "v1, bp 10", "v2")
    assert found.event.tolist() == [0, 3, 1, 4, 2, 0]
    arrays["event"] = pa.array([None] * 6, pa.string())
    found = find_events("t", EventColumns("id", None, "form", "number"), {**arrays, "id": pa.array(list("abcdef"))}, position)
    assert found.labels == (ONCE, "bp 2", "bp 9", "bp 10")


def test_repeated_and_nameless_rows_are_refused_with_their_positions() -> None:
    with pytest.raises(DataError, match=r"t.csv: line 3 and line 5 are both 'r1' at 'a', expected one row for each record and event"):
        arrange(["r2", " r1", "r1", "r1 "], ["a", "a", "b", "a"])
    with pytest.raises(DataError, match=r"t.csv: line 3 has no id in column 'id'"):
        arrange(["r1", None], ["a", "a"])


def test_values_of_a_record_stand_in_any_of_its_rows() -> None:
    ids, events = ["1", "1", "2", "2", "3"], ["a", "b", "a", "b", "a"]
    rows, _, table = tables(ids, events, x=range(5))
    rows.cells["age"] = [" 31 ", None, "", "7", None]
    assert [cell for batch in read_cells(table, [], ["age"], []) for cell in batch.texts["age"].to_pylist()] == ["31", "7", None]
    rows.cells["age"] = ["1", "1", "7", "8", None]
    with pytest.raises(DataError, match=r"t.csv: column 'age' holds '7' at a and '8' at b for record '2', expected one value"):
        list(read_cells(table, [], ["age"], []))


def test_several_slices_are_asked_for_with_their_counts() -> None:
    counts = arrange(["1", "1", "2"], ["a", "b", "a"]).counts
    message = str(which_slice("t.csv", "events", counts))
    assert message.startswith("t.csv has 2 events, a (2 row(s)), b (1 row(s)), expected a third mode of them or one of them; ")
    assert "--third-mode events, --event a" in message
