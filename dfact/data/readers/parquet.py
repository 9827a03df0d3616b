"""Parquet files as tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from dfact.data.readers.base import Batch, Format, ReadOptions, Table, TextInNumbersError, is_number, to_matrix
from dfact.errors import DataError, StoreError
from dfact.storage.input_files import InputFile


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
            if cell is not None and not is_number(cell):
                raise TextInNumbersError(f"{file}: row {first_row + i} (counted from 0)", column, cell) from None
        raise


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_boolean(values.type):  # the texts that Python and R write to csv
        return pc.if_else(values, "True", "False")
    return values.cast(pa.string())


_BATCH_ENTRIES = 1 << 20
_PAGE_BUFFER = 1 << 14  # bytes read at once from each parquet column; without it, Arrow reads all of a row group's column


class ParquetTable(Table):
    """A parquet file. Arrow holds one page of every column, so memory grows with the number of columns, not of rows."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        with self._open() as file:
            self.columns: list[str] = file.schema_arrow.names
            if file.metadata.num_rows == 0:
                raise DataError(f"{path} has columns but no rows, expected at least one row")

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        names = [*numbers, *texts]
        rows = min(max(1, _BATCH_ENTRIES // len(names)), 1 << 16)
        n_read = 0
        with self._open() as file:
            schema = file.schema_arrow
            for name in names:
                _check_type(self.name, name, schema.field(name).type)
            try:
                for batch in file.iter_batches(rows, columns=names):
                    columns = [_as_number(batch[name], missing, self.name, name, n_read) for name in numbers]
                    strings = [_as_text(batch[name]) for name in texts]
                    n_read += batch.num_rows
                    yield Batch(to_matrix(pa.record_batch(columns, list(numbers))), pa.record_batch(strings, list(texts)))
            except (pa.ArrowException, OSError, UnicodeError) as error:
                raise self._unreadable(error) from error

    def _open(self) -> Any:
        try:
            return pa.parquet.ParquetFile(self._path, buffer_size=_PAGE_BUFFER, pre_buffer=False)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreError:
        return StoreError(f"{self._path} cannot be read as parquet: {error}")


def _check_type(file: str, column: str, kind: pa.DataType) -> None:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_plain(kind) or _is_string(kind) or any(test(kind) for test in _CASTABLE)):
        raise DataError(f"{file}: column {column!r} holds {kind}, expected numbers or text; leave it out")


_CASTABLE = (pa.types.is_boolean, pa.types.is_decimal, pa.types.is_float16, pa.types.is_null)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _open(file: InputFile, _: ReadOptions) -> ParquetTable:
    return ParquetTable(file.path)


FORMATS = (Format("parquet", (".parquet", ".pq"), _open, signatures=((0, b"PAR1"),)),)
