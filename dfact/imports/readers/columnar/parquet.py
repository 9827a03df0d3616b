"""Parquet files as tables, and folders of parquet files as Spark, Hive and Dask write them."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from dfact.errors import DataError, DfactError, StoreError
from dfact.imports.readers.base import Format, Input, ReadOptions, Table, TablePart, Variable
from dfact.imports.readers.columnar.columns import Categories, kind_of, ordered_categories, rows_per_batch
from dfact.storage.input_files import InputFile, InputFolder

_SUFFIXES = (".parquet", ".pq")
_PAGE_BUFFER = 1 << 14  # bytes read at once from each parquet column; without it, Arrow reads all of a row group's column
_GROUP_BYTES = 1 << 24
"""Largest size of a row group that is read whole, which takes half the time of reading it in pages."""
_PART_BYTES = 1 << 22
"""Least size of a part: smaller row groups and files are joined."""
_MOST_OPEN_FILES = 8
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass
class _Piece:
    """Consecutive row groups of a file."""

    file: InputFile
    groups: list[int]
    first_row: int
    keys: Mapping[str, pa.Scalar]
    """Values of the columns that the names of its folders hold."""
    largest_group: int
    """Size of the largest row group of the file, in bytes."""
    n_rows: int = 0

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns ``names``."""
        stored = [name for name in dict.fromkeys(names) if name not in self.keys]
        with _open_parquet(self.file, in_pages=self.largest_group > _GROUP_BYTES) as file:
            missing = sum(file.metadata.row_group(group).num_rows for group in self.groups)
            for batch in file.iter_batches(rows_per_batch(len(names)), row_groups=self.groups, columns=stored, use_threads=False):
                columns = [pa.repeat(self.keys[name], batch.num_rows) if name in self.keys else batch[name] for name in names]
                yield pa.record_batch(columns, list(names))
                missing -= batch.num_rows
        if missing:  # Arrow ends without an error if a column holds fewer values than the file declares
            raise StoreError(f"{self.file.location} is damaged: {missing} of its rows are missing in a column; export it again")


@dataclass
class _Part(TablePart):
    """Row groups of one file, or of several small files."""

    table: str
    in_folder: bool
    pieces: list[_Piece] = field(default_factory=list)
    n_bytes: int = 0

    @property
    def name(self) -> str:  # type: ignore[override]  # a value there
        return self._name_of(self.pieces[0])

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for piece in self.pieces:
            yield from piece.read([*numbers, *texts])

    def position(self, row: int) -> str:
        for piece in self.pieces:
            if row < piece.n_rows:
                return f"{self._name_of(piece)}: row {piece.first_row + row} (counted from 0)"
            row -= piece.n_rows
        raise IndexError(row)

    def _name_of(self, piece: _Piece) -> str:
        return f"{self.table}: {piece.file.name}" if self.in_folder else self.table


@dataclass(frozen=True)
class _Footer:
    """The description of a file at its end, as far as it is needed."""

    schema: pa.Schema
    group_rows: list[int]
    group_bytes: list[int]


class ParquetTable(Table):
    """A parquet file, or a folder of them. Arrow holds one page of every column, so memory grows with the columns, not with the rows."""

    def __init__(self, source: Input) -> None:
        self.name = source.name
        self._in_folder = isinstance(source, InputFolder)
        self._files = _parts_of(source) if isinstance(source, InputFolder) else [source]
        with ThreadPoolExecutor(min(_MOST_OPEN_FILES, len(self._files))) as pool:
            footers = list(pool.map(_read_footer, self._files))
        self._schema = _common_schema(self.name, self._files, [footer.schema for footer in footers])
        keys = _folder_keys(self.name, self._files, self._schema) if self._in_folder else [{}]
        self._rows = [sum(footer.group_rows) for footer in footers]
        self._key_types = {name: scalar.type for name, scalar in keys[0].items()}
        self.columns: list[str] = [*self._schema.names, *self._key_types]
        if not any(self._rows):
            raise DataError(f"{source.location} has columns but no rows, expected at least one row")
        self._parts = self._join(footers, keys)
        self.n_bytes = sum(part.n_bytes for part in self._parts)

    @cached_property
    def variables(self) -> Mapping[str, Variable]:
        ordered = ordered_categories(self._schema)
        categories = _categories([piece for part in self._parts for piece in part.pieces] if ordered else [], list(ordered))
        types = dict(zip(self._schema.names, self._schema.types, strict=True)) | self._key_types
        return {name: categories.describe(name, kind, ordered=ordered.get(name, False)) for name, kind in types.items()}

    def parts(self) -> Sequence[TablePart]:
        return self._parts

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in self._parts:
            yield from part.record_batches(numbers, texts, missing)

    def row_position(self, row: int) -> str:
        if not self._in_folder:
            return super().row_position(row)
        ends = np.cumsum(self._rows)
        i = int(np.searchsorted(ends, row, side="right"))
        return f"{self._files[i].name}: row {row - ends[i] + self._rows[i]} (counted from 0)"

    def _join(self, footers: Sequence[_Footer], keys: Sequence[Mapping[str, pa.Scalar]]) -> list[_Part]:
        """Join row groups to parts of a sensible size, in order."""
        parts: list[_Part] = []
        for file, footer, own_keys in zip(self._files, footers, keys, strict=True):
            first, piece = 0, None
            for i, (n_rows, size) in enumerate(zip(footer.group_rows, footer.group_bytes, strict=True)):
                if not parts or parts[-1].n_bytes >= _PART_BYTES:
                    parts.append(_Part(self.name, self._in_folder))
                    piece = None
                if piece is None:
                    piece = _Piece(file, [], first, own_keys, max(footer.group_bytes))
                    parts[-1].pieces.append(piece)
                piece.groups.append(i)
                piece.n_rows += n_rows
                parts[-1].n_bytes += size
                first += n_rows
        return parts


def _parts_of(folder: InputFolder) -> list[InputFile]:
    """Return the parquet files of a folder, without those that Spark and Hive hide: _metadata, _SUCCESS, .part.crc."""
    files = [
        file
        for file in folder.files
        if file.name.lower().endswith(_SUFFIXES) and not any(part.startswith(("_", ".")) for part in file.name.split("/"))
    ]
    if not files:
        raise DataError(f"{folder.location} holds no part, expected files that end in {' or '.join(_SUFFIXES)}")
    return files


@contextmanager
def _open_parquet(file: InputFile, read_dictionary: Sequence[str] = (), *, in_pages: bool = True) -> Iterator[Any]:
    # A file that is not on this machine is read by whole row groups, as each request takes some time.
    local = isinstance(file.location, Path)
    options = {"buffer_size": _PAGE_BUFFER if in_pages else 0, "pre_buffer": False} if local else {"pre_buffer": True}
    try:
        with file.open() as stream, pa.parquet.ParquetFile(stream, read_dictionary=list(read_dictionary), **options) as parquet:
            yield parquet
    except DfactError:
        raise
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise StoreError(f"{file.location} cannot be read as parquet: {error}") from error


def _read_footer(file: InputFile) -> _Footer:
    with _open_parquet(file) as parquet:
        groups = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
        return _Footer(parquet.schema_arrow, [group.num_rows for group in groups], [group.total_byte_size for group in groups])


def _common_schema(folder: str, files: Sequence[InputFile], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of all parts, with the type of the first part that has values; raise DataError if a part has others."""
    common = schemas[0]
    for file, schema in zip(files, schemas, strict=True):
        if schema.equals(common):
            continue
        differing = sorted(set(schema.names) ^ set(common.names))
        if differing or len(schema) != len(common):
            more = f"has {'a' if differing[0] in schema.names else 'no'} column {differing[0]!r}" if differing else "has a column twice"
            raise DataError(f"{folder}: {file.name} {more}, expected the columns of {files[0].name}; import it alone, or remove it")
        for j, each in enumerate(common):
            own = schema.field(each.name)
            if pa.types.is_null(each.type):
                common = common.set(j, own)
            elif not pa.types.is_null(own.type) and kind_of(own.type) != kind_of(each.type):
                found = f"{folder}: {file.name} has column {each.name!r} as {own.type}"
                raise DataError(f"{found}, expected {each.type} as in {files[0].name}; write the parts with the same types")
    return common


def _folder_keys(folder: str, files: Sequence[InputFile], schema: pa.Schema) -> list[dict[str, pa.Scalar]]:
    """Return the columns that the names of folders hold, such as wave=2, for each file; whole numbers become numbers."""
    found = []
    for file in files:
        pairs = [part.split("=", 1) for part in PurePosixPath(file.name).parts[:-1] if "=" in part]
        found.append({unquote(key): unquote(value) for key, value in pairs if unquote(key) not in schema.names})
        if list(found[-1]) != list(found[0]):
            keys, expected = (", ".join(each) or "none" for each in (found[-1], found[0]))
            raise DataError(f"{folder}: {file.name} is in folders with keys {keys}, expected {expected} as for {files[0].name}; move it")
    types = {key: pa.int32() if all(_is_int32(keys[key]) for keys in found) else pa.string() for key in found[0]}
    return [{key: pa.scalar(None if value == _HIVE_NULL else value).cast(types[key]) for key, value in keys.items()} for keys in found]


def _is_int32(value: str) -> bool:
    return value == _HIVE_NULL or (value.removeprefix("-").isascii() and value.removeprefix("-").isdigit() and abs(int(value)) < 2**31)


def _categories(pieces: Sequence[_Piece], names: Sequence[str]) -> Categories:
    """Return the categories of columns from the dictionaries of all row groups."""
    categories = Categories(names)
    for piece in pieces:
        with _open_parquet(piece.file, names) as parquet:
            for group in piece.groups:
                for batch in parquet.iter_batches(1, row_groups=[group], columns=names):
                    categories.add(batch)
                    break
    return categories


def _open(source: Input, _: ReadOptions) -> ParquetTable:
    return ParquetTable(source)


FORMATS = (Format("parquet", _SUFFIXES, _open, signatures=((0, b"PAR1"),), folders=True),)
