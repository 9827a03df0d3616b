"""The reader of a table, by the suffix of its file: the one place that knows all formats."""

from os import PathLike
from pathlib import Path

from dfact.data.readers.base import Table
from dfact.data.readers.delimited import CsvTable
from dfact.data.readers.parquet import ParquetTable
from dfact.errors import ParameterError, StoreError

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}


def open_table(source: str | PathLike[str], delimiter: str | None = None) -> Table:
    """Open a table in a csv, tsv or txt file (plain or gzipped) or a parquet file, chosen by its suffix."""
    path = Path(source)
    if not path.is_file():
        raise StoreError(f"{path} {'is not a file' if path.exists() else 'does not exist'}, expected a table (csv, tsv, txt, parquet)")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    gzipped = suffixes[-1:] == [".gz"]
    suffix = next(iter(suffixes[-2:-1] if gzipped else suffixes[-1:]), "")
    if suffix in (".parquet", ".pq") and not gzipped:
        return ParquetTable(path)
    delimiter = delimiter or _DELIMITERS.get(suffix)
    if delimiter is None:
        expected = ".csv, .tsv, .txt (each also with .gz) or .parquet; pass delimiter= for other text"
        raise ParameterError(f"{path} ends in {suffix!r}, expected {expected}")
    if len(delimiter) != 1:
        raise ParameterError(f"delimiter is {delimiter!r}, expected one character")
    return CsvTable(path, delimiter, gzipped)
