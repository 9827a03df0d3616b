"""Row factors as a file: csv, parquet, or a Zarr group; written by chunks of rows, whole or not at all."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import zarr
from numpy.typing import NDArray

from dfact.data.source import Layout
from dfact.data.store import compressor, create_group, incomplete_path, refuse_existing, write_labels
from dfact.errors import ParameterError, StoreError

KIND = "factors"
FORMATS = (".csv", ".parquet", ".zarr")
_MOST_ROWS = 1 << 18  # whose labels are held at once
Write = Callable[[int, NDArray[Any], NDArray[Any]], None]
"""Takes the first row's number, the labels (rows,) and the factors (rows, k)."""


def write_factors(
    path: str | PathLike[str],
    factors: NDArray[Any] | zarr.Array[Any],
    columns: Sequence[str],
    labels: NDArray[Any] | zarr.Array[Any] | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write row factors (n, k) with their labels (n,), or row numbers, to a .csv, .parquet or .zarr.

    A table has the column ``row`` and one for each factor, with empty cells for NaN; a Zarr group the
    arrays ``factors``, ``row`` and ``component``, which xarray opens. ``progress`` is called with (rows done, rows in all).

    Raises
    ------
    ParameterError
        Another ending.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; nothing is left behind.
    """
    path = Path(path)
    check_destination(path, overwrite=overwrite)
    n, k = factors.shape
    step = min(Layout.of((n, k)).chunk_rows, _MOST_ROWS, n)
    opened = _group(path, n, columns, factors.dtype, step, overwrite) if path.suffix == ".zarr" else _table(path, columns, factors.dtype)
    with opened as write:
        for start in range(0, n, step):
            stop = min(start + step, n)
            names = np.arange(start, stop).astype(str) if labels is None else labels[start:stop]
            write(start, np.asarray(names, dtype=object), np.asarray(factors[start:stop]))
            if progress is not None:
                progress(stop, n)


def check_destination(path: Path, *, overwrite: bool, formats: Sequence[str] = FORMATS) -> None:
    """Refuse what cannot be written, before the work begins."""
    if path.suffix not in formats:
        raise ParameterError(f"{path} ends in {path.suffix!r}, expected one of {', '.join(formats)}")
    if path.suffix == ".zarr":
        refuse_existing(path, overwrite=overwrite)
    elif path.is_dir():
        raise StoreError(f"{path} is a folder, expected a file; choose another path")
    elif path.exists() and not overwrite:
        raise StoreError(f"{path} exists already; choose another path, or replace it with overwrite=True (--overwrite)")


@contextmanager
def _table(path: Path, columns: Sequence[str], dtype: Any) -> Iterator[Write]:
    """A csv or parquet file, written beside its place."""
    unfinished = incomplete_path(path)
    schema = pa.schema([("row", pa.string()), *((name, pa.from_numpy_dtype(dtype)) for name in columns)])
    open_writer: Any = pa.csv.CSVWriter if path.suffix == ".csv" else pa.parquet.ParquetWriter
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_writer(str(unfinished), schema) as writer:
            # Rows come in order, so their number is not needed here.
            yield lambda _, labels, factors: writer.write_table(
                pa.table([pa.array(labels, pa.string()), *(pa.array(values, from_pandas=True) for values in factors.T)], schema=schema)
            )
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; nothing was left behind there") from error
    finally:
        with suppress(OSError):  # it is not there where all went well, or its folder could not be made
            unfinished.unlink()


@contextmanager
def _group(path: Path, n: int, columns: Sequence[str], dtype: Any, step: int, overwrite: bool) -> Iterator[Write]:
    with create_group(path, KIND, overwrite=overwrite) as group:
        array = group.create_array(
            KIND,
            shape=(n, len(columns)),
            chunks=(step, len(columns)),
            dtype=dtype,
            compressors=compressor(dtype),
            dimension_names=("row", "component"),
        )
        rows = group.create_array("row", shape=(n,), chunks=(step,), dtype="string", dimension_names=("row",))
        write_labels(group, "component", np.asarray(columns, dtype=object), "component")

        def write(start: int, labels: NDArray[Any], factors: NDArray[Any]) -> None:
            array[start : start + len(factors)] = factors
            rows[start : start + len(factors)] = labels

        yield write
