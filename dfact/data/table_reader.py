"""Tables on disk, read in batches: some columns as numbers, some as text, and where in the file a row is."""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError, StoreError

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
# Arrow reads some ten blocks ahead, and an answer of two bytes becomes a number of eight.
_BLOCK_BYTES = 1 << 19
_BATCH_ENTRIES = 1 << 20
_PAGE_BUFFER = 1 << 14  # bytes read at once of each parquet column; without it, whole columns of a row group

Batch = tuple[NDArray[np.float64], pa.RecordBatch]


class Table(Protocol):
    """A file of rows under named columns."""

    name: str
    columns: list[str]

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        """The rows in order: the columns ``numbers`` as a matrix, and the columns ``texts`` as strings.

        A number is NaN where its cell is empty or one of the texts ``missing``; a DataError says where one is no number.
        """
        ...

    def place(self, row: int) -> str:
        """Where in the file a row (counted from 0) is, in words."""
        ...


def open_table(source: str | PathLike[str], delimiter: str | None = None) -> Table:
    """The table in a csv, tsv or txt file (plain or gzipped) or a parquet file, by its ending."""
    path = Path(source)
    if not path.is_file():
        raise StoreError(f"{path} {'is no file' if path.exists() else 'does not exist'}; expected a table (csv, tsv, txt, parquet)")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    ending = next(iter(suffixes[-2:-1] if zipped else suffixes[-1:]), "")
    if ending in (".parquet", ".pq") and not zipped:
        return ParquetTable(path)
    delimiter = delimiter or _DELIMITERS.get(ending)
    if delimiter is None:
        expected = ".csv, .tsv, .txt (each also with .gz) or .parquet; pass delimiter= for other text"
        raise ParameterError(f"{path} ends in {ending!r}, expected {expected}")
    if len(delimiter) != 1:
        raise ParameterError(f"delimiter is {delimiter!r}, expected one character")
    return CsvTable(path, delimiter, zipped)


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


class ParquetTable:
    """A parquet file. Arrow holds a page of every column at a time, so the memory grows with the columns, not the rows."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        with self._open() as file:
            self.columns: list[str] = file.schema_arrow.names
            if file.metadata.num_rows == 0:
                raise DataError(f"{path} has columns but no rows")

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        names = [*numbers, *texts]
        rows = min(max(1, _BATCH_ENTRIES // len(names)), 1 << 16)
        done = 0
        with self._open() as file:
            schema = file.schema_arrow
            for name in names:
                _check_type(self.name, name, schema.field(name).type)
            try:
                for batch in file.iter_batches(rows, columns=names):
                    columns = [_as_number(batch[name], missing, self.name, name, done) for name in numbers]
                    others = [_as_text(batch[name]) for name in texts]
                    done += batch.num_rows
                    yield _matrix(pa.record_batch(columns, list(numbers))), pa.record_batch(others, list(texts))
            except (pa.ArrowException, OSError, UnicodeError) as error:
                raise self._unreadable(error) from error

    def place(self, row: int) -> str:
        return f"row {row} (counted from 0)"

    def _open(self) -> Any:
        try:
            return pa.parquet.ParquetFile(self._path, buffer_size=_PAGE_BUFFER, pre_buffer=False)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreError:
        return StoreError(f"{self._path} cannot be read as parquet: {error}")


def not_a_number(place: str, column: str, cell: str) -> DataError:
    remedy = "declare it in missing=, or name other columns (items=, or row=, column=, value= of triplets)"
    return DataError(f"{place}, column {column!r} holds the text {cell!r}, expected a number; {remedy}")


def _matrix(batch: pa.RecordBatch) -> NDArray[np.float64]:
    return np.asarray(batch.to_tensor(null_to_nan=True, row_major=True).to_numpy(), np.float64)


def _is_number(cell: str) -> bool:
    """Whether Arrow reads it as one: Python also takes 1_000."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _is_text(cell: str) -> bool:
    return cell.isascii() or not any("\udc80" <= character <= "\udcff" for character in cell)


def _check_type(file: str, column: str, kind: pa.DataType) -> None:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_plain(kind) or _is_string(kind) or any(test(kind) for test in _CAST)):
        raise DataError(f"{file}: column {column!r} holds {kind}, expected numbers or text; leave it out")


_CAST = (pa.types.is_boolean, pa.types.is_decimal, pa.types.is_float16, pa.types.is_null)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _as_number(values: pa.Array, missing: Sequence[str], file: str, column: str, first_row: int) -> pa.Array:
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
            if cell is not None and not _is_number(cell):
                raise not_a_number(f"{file}: row {first_row + i} (counted from 0)", column, cell) from None
        raise


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_boolean(values.type):  # as Python and R write them
        return pc.if_else(values, "True", "False")
    return values.cast(pa.string())
