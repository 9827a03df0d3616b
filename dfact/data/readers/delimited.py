"""TODO dfact.data.readers.delimited"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dfact.data.readers.base import Batch, _is_number, _matrix, not_a_number
from dfact.errors import DataError, StoreError

# Arrow reads some ten blocks ahead, and an answer of two bytes becomes a number of eight.
_BLOCK_BYTES = 1 << 19


class CsvTable:
    """Delimited text. Arrow's reader reads it; Python's slow one finds the line when something is wrong."""

    def __init__(self, path: Path, delimiter: str, zipped: bool) -> None:
        self.name = path.name
        self._path, self._delimiter, self._zipped = path, delimiter, zipped
        records = self._records()
        self.columns = next(records, (0, []))[1]
        if not self.columns:
            raise DataError(f"{path} is empty; expected a header with column names, then rows")
        if not all(map(_is_text, self.columns)):
            raise DataError(f"{path}: the column names are not UTF-8; save the file as UTF-8")
        if next(records, None) is None:
            raise DataError(f"{path} has a header but no rows")

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        types = {name: pa.float64() for name in numbers} | {name: pa.string() for name in texts}
        convert = pa.csv.ConvertOptions(include_columns=list(types), column_types=types, null_values=["", *missing])
        # A block must hold a row; a number is written in at most some ten times its column name's length.
        block = max(_BLOCK_BYTES, 16 * sum(len(name) + 1 for name in self.columns))
        done = 0
        try:
            with pa.input_stream(str(self._path), compression="gzip" if self._zipped else None) as stream:
                reader = pa.csv.open_csv(
                    stream,
                    pa.csv.ReadOptions(block_size=block),
                    pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                    convert,
                )
                for batch in reader:
                    done += batch.num_rows
                    yield _matrix(batch.select(list(numbers))), batch.select(list(texts))
        except pa.ArrowInvalid as error:
            raise self._fault(error, done, numbers, texts, {"", *missing}) from error
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error

    def place(self, row: int) -> str:
        for i, (line, _) in enumerate(self._records(), start=-1):
            if i == row:
                return f"line {line}"
        return f"row {row} (counted from 0)"

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The header and every row with the line it starts on, empty lines left out as Arrow does."""
        opener: Any = gzip.open if self._zipped else open
        line = 1
        try:
            with opener(self._path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                reader = csv.reader(file, delimiter=self._delimiter)
                for record in reader:
                    if record:
                        yield line, record
                    line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{self.name}: line {line}: {error}; perhaps a quotation mark is not closed") from error
        except (OSError, EOFError, zlib.error) as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error

    def _fault(self, error: Exception, done: int, numbers: Sequence[str], texts: Sequence[str], missing: set[str]) -> DataError:
        """What Arrow stumbled over behind row ``done``, in the file's own lines and words."""
        index = {name: j for j, name in enumerate(self.columns)}
        records = self._records()
        next(records)
        for row, (line, record) in enumerate(records):
            if len(record) != len(self.columns):
                return DataError(f"{self.name}: line {line} has {len(record)} cells, expected {len(self.columns)} as in the header")
            if row < done:
                continue
            for name in numbers:
                cell = record[index[name]]
                if cell not in missing and not _is_number(cell):
                    return not_a_number(f"{self.name}: line {line}", name, cell)
            for name in texts:
                if not _is_text(record[index[name]]):
                    return DataError(f"{self.name}: line {line}, column {name!r} is not UTF-8; save the file as UTF-8")
        return DataError(f"{self.name} cannot be read: {error}; perhaps a quotation mark is not closed")


def _is_text(cell: str) -> bool:
    return cell.isascii() or not any("\udc80" <= character <= "\udcff" for character in cell)
