"""Readers of tables, one for each format: each keeps to the suite of all readers."""

import csv
import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.columnar import columns
from dfact.imports.readers.text import delimited
from tests.suites.reader import Columns, ReaderSuite


class TestCsv(ReaderSuite):
    name = "t.csv"
    delimiter = ","
    line_end = "\n"

    def write(self, columns: Columns, path: Path) -> None:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self.delimiter, lineterminator=self.line_end)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        data = text.getvalue().encode()
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)

    def position(self, row: int) -> str:
        return f"line {row + 2}"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delimited, "_BLOCK_BYTES", 1)  # a block then has a few hundred bytes, by the number of columns


class TestCsvOfWindows(TestCsv):
    name = "T.CSV"
    line_end = "\r\n"


class TestTsv(TestCsv):
    name = "t.tsv"
    delimiter = "\t"


class TestTxt(TestTsv):
    name = "t.txt"


class TestGzippedCsv(TestCsv):
    name = "t.csv.gz"


class TestGzippedTsv(TestTsv):
    name = "t.tsv.gz"


class TestOtherDelimiter(TestCsv):
    name = "t.dat"
    delimiter = ";"
    options = ReadOptions(delimiter=";")


class TestParquet(ReaderSuite):
    name = "t.parquet"

    def write(self, columns: Columns, path: Path) -> None:
        pq.write_table(pa.table({name: pa.array(cells) for name, cells in columns.items()}), path)

    def position(self, row: int) -> str:
        return f"row {row} (counted from 0)"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "BATCH_ENTRIES", 40)


class TestParquetOfSeveralGroups(TestParquet):
    name = "t.pq"

    def write(self, columns: Columns, path: Path) -> None:
        pq.write_table(pa.table({name: pa.array(cells) for name, cells in columns.items()}), path, row_group_size=7)


class TestParquetDictionaries(TestParquet):
    """Texts as categories."""

    def write(self, columns: Columns, path: Path) -> None:
        arrays = {name: pa.array(cells) for name, cells in columns.items()}
        pq.write_table(
            pa.table({name: array.dictionary_encode() if pa.types.is_string(array.type) else array for name, array in arrays.items()}), path
        )
