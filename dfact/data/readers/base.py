"""Tables on disk, read in batches: some columns as numbers, some as text, and where in the file a row is."""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError, StoreError

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}


def _is_number(cell: str) -> bool:
    """Whether Arrow reads it as one: Python also takes 1_000."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


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
    from dfact.data.readers.delimited import CsvTable
    from dfact.data.readers.parquet import ParquetTable

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


def not_a_number(place: str, column: str, cell: str) -> DataError:
    remedy = "declare it in missing=, or name other columns (items=, or row=, column=, value= of triplets)"
    return DataError(f"{place}, column {column!r} holds the text {cell!r}, expected a number; {remedy}")


def _matrix(batch: pa.RecordBatch) -> NDArray[np.float64]:
    return np.asarray(batch.to_tensor(null_to_nan=True, row_major=True).to_numpy(), np.float64)
