"""Arrow IPC files and streams as tables, and Feather files, whose second version is an Arrow IPC file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from dfact.errors import DataError, DfactError, StoreError
from dfact.imports.readers.base import Format, ReadOptions, Table, TablePart, Variable
from dfact.imports.readers.columnar.columns import (
    describe_columns,
    rows_per_batch,
    without_views,
)
from dfact.storage.input_files import InputFile

_FILE = b"ARROW1"
_STREAM = b"\xff\xff\xff\xff"
_FEATHER_1 = b"FEA1"
_PART_BYTES = 1 << 23
"""Least size of a part in the file: smaller record batches are joined."""


@dataclass
class _Part(TablePart):
    """Record batches of a file."""

    file: InputFile
    numbers: range
    """Numbers of the record batches."""
    n_bytes: int = 0

    @property
    def name(self) -> str:  # type: ignore[override]  # a value there
        return self.file.name

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = [*numbers, *texts]
        n_rows = rows_per_batch(len(names))
        for rows in _read_batches(self.file, list(dict.fromkeys(names)), self.numbers):
            for first in range(0, rows.num_rows, n_rows):
                yield rows.slice(first, n_rows).select(names)

    def position(self, row: int) -> str:
        # The rows of earlier parts are counted here alone, as an Arrow file does not list the rows of its batches.
        earlier = range(self.numbers.start)
        first = sum(rows.num_rows for rows in _read_batches(self.file, [], earlier)) if earlier else 0
        return f"{self.file.name}: row {first + row} (counted from 0)"


class ArrowTable(Table):
    """An Arrow file or stream. A record batch is held at a time, in the columns that are read."""

    def __init__(self, file: InputFile) -> None:
        self.name = file.name
        self._file = file
        self.n_bytes = int(file.signature()[0])
        with _open_arrow(file) as reader:
            self._schema = reader.schema
            self._n_batches = getattr(reader, "num_record_batches", None)
            self.columns: list[str] = self._schema.names  # fails on names that are not UTF-8
        if not self.columns or not any(rows.num_rows for rows in _read_batches(file, [])):
            raise DataError(f"{file.location} has columns but no rows, expected at least one row")

    @cached_property
    def variables(self) -> Mapping[str, Variable]:
        return describe_columns(self._schema, lambda names: _read_batches(self._file, names))

    def parts(self) -> Sequence[TablePart]:
        if self._n_batches is None:  # a stream is read from its start
            return [self]
        step = max(1, -(-_PART_BYTES * self._n_batches // max(1, self.n_bytes)))
        ranges = [range(first, min(first + step, self._n_batches)) for first in range(0, self._n_batches, step)]
        return [_Part(self._file, numbers, self.n_bytes * len(numbers) // self._n_batches) for numbers in ranges]

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return _Part(self._file, range(self._n_batches or 0)).record_batches(numbers, texts, missing)


@contextmanager
def _open_arrow(file: InputFile, fields: Sequence[int] = ()) -> Iterator[Any]:
    """Open a reader of the columns with these numbers, of all columns by default."""
    options = pa.ipc.IpcReadOptions(included_fields=list(fields))
    try:
        with file.open() as stream:
            is_file = stream.read(len(_FILE)) == _FILE
            stream.seek(0)
            with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(stream, options=options) as reader:
                yield reader
    except DfactError:
        raise
    except (pa.ArrowException, OSError, UnicodeError, MemoryError) as error:
        raise StoreError(f"{file.location} cannot be read as an Arrow file: {error}") from error


def _read_batches(file: InputFile, names: Sequence[str], numbers: range | None = None) -> Iterator[pa.RecordBatch]:
    """Yield record batches with the columns ``names``, or with the first one only if there are none."""
    with _open_arrow(file) as reader:
        fields = [reader.schema.get_field_index(name) for name in names] or [0]
        n_batches = getattr(reader, "num_record_batches", None)
    with _open_arrow(file, fields) as reader:
        if n_batches is not None and numbers is None:
            numbers = range(n_batches)
        for batch in reader if n_batches is None else map(reader.get_batch, numbers or ()):
            batch.validate(full=True)  # Arrow trusts the offsets in a file
            yield without_views(batch)


def _open(file: InputFile, _: ReadOptions) -> Table:
    if file.read_start(len(_FEATHER_1)) == _FEATHER_1:
        raise DataError(f"{file.name} is Feather of version 1, expected version 2; write it again with pyarrow or pandas")
    return ArrowTable(file)


FORMATS = (Format("Arrow", (".arrow", ".arrows", ".ipc", ".feather"), _open, signatures=((0, _FILE), (0, _STREAM), (0, _FEATHER_1))),)
