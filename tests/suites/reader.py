"""What every reader of tables keeps to: the same columns give the same numbers and texts, and errors name the position in the file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.imports.readers.base import ReadOptions, Table
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import open_table

Columns = Mapping[str, Sequence[Any]]
"""Cells by column: numbers, texts, or None for an empty cell."""


def read(table: Table, numbers: Sequence[str], texts: Sequence[str] = (), missing: Sequence[str] = ()) -> tuple[NDArray[Any], Any, int]:
    """Return the matrix of numbers, the texts by column, and the number of batches."""
    batches = list(read_cells(table, numbers, texts, missing))
    for matrix, strings, _ in batches:
        assert matrix.dtype == np.float64
        assert matrix.shape == (strings.num_rows if texts else len(matrix), len(numbers))
    matrix = np.concatenate([batch.numbers for batch in batches])
    return matrix, {name: [cell for _, strings, _ in batches for cell in strings[name].to_pylist()] for name in texts}, len(batches)


class ReaderSuite:
    """A subclass writes files in its format."""

    name: str
    """Name of the file, whose suffix chooses the reader."""
    options = ReadOptions()
    columns: Sequence[str] = ("b", "a.b", "é", "A b")
    """Names of columns that the format can hold."""
    smallest = -1e-300
    """A number near 0 that the format can hold."""
    labels: Sequence[str] = ("007", "1.50", " a ", "x,y;z\tw", 'say "no"', "Zoë", "True", "1e5", "two words")
    """Texts that the format can hold."""

    def write(self, columns: Columns, path: Path) -> None:
        raise NotImplementedError

    def position(self, row: int) -> str:
        """Return the position of a row in a file whose cells have no line breaks."""
        raise NotImplementedError

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the reader read as few rows at once as it can."""
        raise NotImplementedError

    def open(self, columns: Columns, folder: Path) -> Table:
        self.write(columns, folder / self.name)
        return open_table(folder / self.name, self.options)

    def test_columns_are_those_of_the_file_in_order(self, tmp_path: Path) -> None:
        table = self.open({name: [j] for j, name in enumerate(self.columns)}, tmp_path)
        assert table.name == self.name
        assert table.columns == list(self.columns)

    def test_numbers_of_all_types(self, tmp_path: Path) -> None:
        columns = {"whole": [3, -7, None], "half": [0.5, None, self.smallest], "large": [2**53, 0, 1], "text": ["1e3", "", "-0.25"]}
        table = self.open(columns, tmp_path)
        expected = np.array([[2**53, 1e3, 0.5, 3], [0, np.nan, np.nan, -7], [1, -0.25, self.smallest, np.nan]])
        matrix, _, _ = read(table, ["large", "text", "half", "whole"])
        np.testing.assert_array_equal(matrix, expected, strict=True)
        np.testing.assert_array_equal(read(table, ["half"])[0], expected[:, 2:3])

    def test_missing_codes_are_missing_in_numbers_alone(self, tmp_path: Path) -> None:
        answers, notes = ["4", "NA", "", "no answer", "0"], ["NA", "x", "y", "no answer", "z"]
        matrix, texts, _ = read(self.open({"answer": answers, "note": notes}, tmp_path), ["answer"], ["note"], ["NA", "no answer"])
        np.testing.assert_array_equal(matrix, [[4], [np.nan], [np.nan], [np.nan], [0]])
        assert texts == {"note": notes}

    def test_labels_stay_as_written(self, tmp_path: Path) -> None:
        labels = list(self.labels)
        columns = {"q": range(len(labels)), "id": labels, "other": labels[::-1]}
        matrix, texts, _ = read(self.open(columns, tmp_path), ["q"], ["other", "id"])
        assert texts == {"other": labels[::-1], "id": labels}
        np.testing.assert_array_equal(matrix[:, 0], range(len(labels)))

    @pytest.mark.parametrize("cell", ["often", "1_000", "1 2", "NA"])
    @pytest.mark.parametrize("rows", [0, 3, 6])
    def test_text_among_numbers_is_named_with_its_position(self, rows: int, cell: str, tmp_path: Path) -> None:
        cells = ["1"] * 7
        cells[rows] = cell
        table = self.open({"a": ["5"] * 7, "q": cells, "b": cells}, tmp_path)
        with pytest.raises(DataError) as caught:
            read(table, ["a", "q"], ["b"], ["absent"])
        message = str(caught.value)
        assert message.startswith(f"{self.name}: {self.position(rows)}, column 'q' holds the text {cell!r}, expected a number")
        assert "missing=" in message
        assert read(table, ["a"], ["q"])[1] == {"q": cells}

    def test_positions_of_rows(self, tmp_path: Path) -> None:
        table = self.open({"q": range(5), "id": list("abcde")}, tmp_path)
        assert [table.row_position(row) for row in range(5)] == [self.position(row) for row in range(5)]

    @pytest.mark.parametrize("seed", range(3))
    def test_batches_of_any_size_give_the_same(self, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rng, n = np.random.default_rng(seed), 400
        columns: dict[str, list[Any]] = {f"q{j}": rng.normal(size=n).tolist() for j in range(3)} | {"id": [f"p{i}" for i in range(n)]}
        columns["q1"] = [None if rng.random() < 0.2 else value for value in columns["q1"]]
        table = self.open(columns, tmp_path)
        first, again = (read(table, ["q0", "q1", "q2"], ["id"]) for _ in range(2))
        self.read_little(monkeypatch)
        short = read(table, ["q0", "q1", "q2"], ["id"])
        assert short[2] > first[2]
        for matrix, texts, _ in (first, again, short):
            np.testing.assert_array_equal(matrix, np.array([columns[f"q{j}"] for j in range(3)], np.float64).T)
            assert texts == {"id": columns["id"]}

    def test_an_error_in_a_later_batch_has_the_same_position(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cells = [str(i) for i in range(400)]
        cells[333] = "often"
        self.read_little(monkeypatch)
        with pytest.raises(
            DataError, match=rf"{self.position(333)}, column 'q' holds the text 'often'".replace("(", r"\(").replace(")", r"\)")
        ):
            read(self.open({"q": cells}, tmp_path), ["q"])

    def test_a_file_without_rows_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=rf"{self.name} has .* but no rows, expected at least one row"):
            self.open({"q": np.empty(0, np.int64), "id": np.empty(0, np.int64)}, tmp_path)
