"""Files of SPSS, Stata and SAS: what they say about their columns, and what independent readers find in them."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dfact.data.readers import readstat
from dfact.data.readers.base import Batch, Table
from dfact.data.readers.formats import open_table
from dfact.errors import DataError
from tests.conftest import REAL_DATA
from tests.suites.reader import Columns, ReaderSuite, read

pyreadstat = pytest.importorskip("pyreadstat")

INPUTS = REAL_DATA / "inputs"
shared = pytest.mark.skipif(not INPUTS.exists(), reason="the files of users are not beside the project")
LABELS = ["007", "1.50", " a", "x,y;z\tw", 'say "no"', "Zoë", "True", "1e5", "two words"]
"""Texts without spaces at their ends, which SPSS and SAS fill with spaces."""


class StatisticalSuite(ReaderSuite):
    labels = LABELS

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        raise NotImplementedError

    def write(self, columns: Columns, path: Path) -> None:
        self.save(pd.DataFrame({name: list(cells) for name, cells in columns.items()}), path)

    def position(self, row: int) -> str:
        return f"row {row} (counted from 0)"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readstat, "_BATCH_ENTRIES", 100)

    def test_parts_hold_the_rows_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readstat, "_PART_ENTRIES", 20)
        table = self.open({"q": range(23), "id": [f"p{i}" for i in range(23)]}, tmp_path)
        parts = pickle.loads(pickle.dumps(table.parts()))
        batches = [batch for part in parts for batch in part.batches(["q"], ["id"], [])]
        assert len(parts) == 3
        np.testing.assert_array_equal(np.concatenate([batch.numbers[:, 0] for batch in batches]), range(23))
        assert [cell for batch in batches for cell in batch.texts["id"].to_pylist()] == [f"p{i}" for i in range(23)]
        assert 0 < sum(part.n_bytes for part in parts) <= (tmp_path / self.name).stat().st_size

    def test_truncated_files_are_refused(self, tmp_path: Path) -> None:
        self.write({"q": range(50), "id": [f"person {i}" for i in range(50)]}, tmp_path / self.name)
        data = (tmp_path / self.name).read_bytes()
        for length in np.linspace(1, 0.9 * len(data), 12, dtype=int):
            (tmp_path / self.name).write_bytes(data[:length])
            with pytest.raises(DataError, match=rf"^{self.name} .*export it again"):
                read(open_table(tmp_path / self.name), ["q"], ["id"])


class TestSav(StatisticalSuite):
    name = "t.sav"
    columns = ("b", "a.b", "é", "A_b")

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_sav(frame, path)


class TestCompressedSav(TestSav):
    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_sav(frame, path, row_compress=True)


class TestZsav(TestSav):
    name = "T.ZSAV"

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_sav(frame, path, compress=True)


class TestSavWithoutNumberOfRows(TestSav):
    """As Qualtrics writes it."""

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        super().save(frame, path)
        data = bytearray(path.read_bytes())
        data[80:84] = (-1).to_bytes(4, "little", signed=True)
        path.write_bytes(data)

    def test_parts_hold_the_rows_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = self.open({"q": range(23)}, tmp_path)
        assert table.parts() == [table]

    @pytest.mark.parametrize("at_once", [1, 2, 3])
    def test_columns_are_read_in_groups(self, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readstat, "_COLUMNS_OF_UNKNOWN_LENGTH", at_once)
        table = self.open({f"q{j}": [j, 10 * j] for j in range(5)}, tmp_path)
        matrix, texts, _ = read(table, ["q3", "q0", "q4"], ["q1", "q2"])
        np.testing.assert_array_equal(matrix, [[3, 0, 4], [30, 0, 40]])
        assert texts == {"q1": ["1", "10"], "q2": ["2", "20"]}

    def test_truncated_files_are_refused(self, tmp_path: Path) -> None:
        """Truncation is visible in the dictionary alone."""


class TestDta(StatisticalSuite):
    name = "t.dta"
    columns = ("b", "a_b", "é", "A_b")
    labels = ReaderSuite.labels

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_dta(frame, path)


class TestXpt5(StatisticalSuite):
    name = "t.xpt"
    columns = ("b", "a_b", "c", "A_b2")
    smallest = -(2.0**-200)
    version = 5

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_xport(frame, path, file_format_version=self.version)

    @pytest.mark.parametrize("rows", range(12))
    def test_blank_rows_are_no_padding(self, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A row of spaces is a row unless it may fill the last record of 80 bytes."""
        texts = ["a", *[""] * rows, "a" * 17]
        table = self.open({"t": texts}, tmp_path)
        self.read_little(monkeypatch)
        assert read(table, [], ["t"])[1] == {"t": [text or None for text in texts]}


class TestXpt8(TestXpt5):
    version = 8


class _LowerCase(Table):
    """A table with the names of its columns in lower case; portable files have upper case."""

    def __init__(self, table: Table) -> None:
        self.table, self.name, self.columns = table, table.name, [name.lower() for name in table.columns]

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        try:
            for batch in self.table.batches([name.upper() for name in numbers], [name.upper() for name in texts], missing):
                yield batch._replace(texts=batch.texts.rename_columns(list(texts)))
        except DataError as error:
            raise DataError(str(error).replace("'Q'", "'q'")) from error


class TestPor(StatisticalSuite):
    name = "t.por"
    columns = ("b", "a.b", "c", "a_b")
    labels = [text for text in LABELS if text.isascii() and "\t" not in text]

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_por(frame, path)

    def open(self, columns: Columns, folder: Path) -> Table:
        return _LowerCase(super().open(columns, folder))

    def test_parts_hold_the_rows_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = super().open({"q": range(23)}, tmp_path)
        assert table.parts() == [table]

    def test_truncated_files_are_refused(self, tmp_path: Path) -> None:
        """The rows end with a mark, so that every truncation is visible, but columns are in upper case."""
        self.write({"Q": range(50)}, tmp_path / self.name)
        data = (tmp_path / self.name).read_bytes()
        for length in np.linspace(1, 0.9 * len(data.rstrip(b"Z\r\n")), 12, dtype=int):
            (tmp_path / self.name).write_bytes(data[:length])
            with pytest.raises(DataError, match=rf"^{self.name} .*export it again"):
                read(open_table(tmp_path / self.name), ["Q"])
