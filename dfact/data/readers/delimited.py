"""Delimited text: csv, tsv and txt files, plain or gzipped."""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dfact.data.readers.base import Batch, Format, ReadOptions, Table, TextInNumbersError, is_number, to_matrix
from dfact.errors import DataError, ParameterError, StoreError
from dfact.storage.input_files import InputFile

_BLOCK_BYTES = 1 << 19  # small, as Arrow reads some ten blocks ahead, and an answer of two bytes becomes a number of eight


class CsvTable(Table):
    """A table of delimited text. Arrow parses it; after an error, Python's slower parser locates the line."""

    def __init__(self, path: Path, delimiter: str, gzipped: bool) -> None:
        self.name = path.name
        self._path, self._delimiter, self._gzipped = path, delimiter, gzipped
        records = self._records()
        self.columns = next(records, (0, []))[1]
        if not self.columns:
            raise DataError(f"{path} is empty, expected a header with column names, then rows")
        if not all(map(_is_utf8, self.columns)):
            raise DataError(f"{path}: the column names are not UTF-8; save the file as UTF-8")
        if next(records, None) is None:
            raise DataError(f"{path} has a header but no rows, expected at least one row")

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        types = {name: pa.float64() for name in numbers} | {name: pa.string() for name in texts}
        convert = pa.csv.ConvertOptions(include_columns=list(types), column_types=types, null_values=["", *missing])
        # A block must hold a row; the text of a number rarely exceeds ten times the length of its column name.
        block = max(_BLOCK_BYTES, 16 * sum(len(name) + 1 for name in self.columns))
        n_read = 0
        try:
            with pa.input_stream(str(self._path), compression="gzip" if self._gzipped else None) as stream:
                reader = pa.csv.open_csv(
                    stream,
                    pa.csv.ReadOptions(block_size=block),
                    pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                    convert,
                )
                for batch in reader:
                    n_read += batch.num_rows
                    yield Batch(to_matrix(batch.select(list(numbers))), batch.select(list(texts)))
        except pa.ArrowInvalid as error:
            raise self._locate_error(error, n_read, numbers, texts, {"", *missing}) from error
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error

    def row_position(self, row: int) -> str:
        for i, (line, _) in enumerate(self._records(), start=-1):
            if i == row:
                return f"line {line}"
        return f"row {row} (counted from 0)"

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the header and every row with the number of its first line; skip empty lines, as Arrow does."""
        opener: Any = gzip.open if self._gzipped else open
        line = 1
        try:
            with opener(self._path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                reader = csv.reader(file, delimiter=self._delimiter)
                for record in reader:
                    if record:
                        yield line, record
                    line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{self.name}: line {line} cannot be parsed: {error}; check for an unclosed quotation mark") from error
        except (OSError, EOFError, zlib.error) as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error

    def _locate_error(self, error: Exception, n_read: int, numbers: Sequence[str], texts: Sequence[str], missing: set[str]) -> DataError:
        """Find the line and the cell that Arrow could not parse after the first ``n_read`` rows."""
        index = {name: j for j, name in enumerate(self.columns)}
        records = self._records()
        next(records)
        for row, (line, record) in enumerate(records):
            if len(record) != len(self.columns):
                return DataError(f"{self.name}: line {line} has {len(record)} cells, expected {len(self.columns)} as in the header")
            if row < n_read:
                continue
            for name in numbers:
                cell = record[index[name]]
                if cell not in missing and not is_number(cell):
                    return TextInNumbersError(f"{self.name}: line {line}", name, cell)
            for name in texts:
                if not _is_utf8(record[index[name]]):
                    return DataError(f"{self.name}: line {line}, column {name!r} is not UTF-8; save the file as UTF-8")
        return DataError(f"{self.name} cannot be read: {error}; check for an unclosed quotation mark")


def _is_utf8(cell: str) -> bool:
    """Check that decoding replaced no byte by a lone surrogate (errors="surrogateescape")."""
    return cell.isascii() or not any("\udc80" <= character <= "\udcff" for character in cell)


_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}


def _open(file: InputFile, options: ReadOptions) -> CsvTable:
    gzipped = file.suffixes[-1:] == [".gz"]
    suffix = next(iter(file.suffixes[-2:-1] if gzipped else file.suffixes[-1:]), "")
    delimiter = options.delimiter or _DELIMITERS[suffix]
    if len(delimiter) != 1:
        raise ParameterError(f"delimiter is {delimiter!r}, expected one character")
    return CsvTable(file.path, delimiter, gzipped)


FORMATS = (Format("delimited text", (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"), _open, options=("delimiter",)),)
