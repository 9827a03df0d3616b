"""Files of rows with labels, open for writing: csv, parquet, Zarr groups, .Q and .Q_se."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from dfact.catalogue import find_part
from dfact.export.spreadsheets import without_formula
from dfact.storage.arrays import WRITE_EMPTY_CHUNKS, compressor, write_labels
from dfact.storage.files import atomic_file
from dfact.storage.groups import create_group
from dfact.storage.location import Location, suffix

KIND = "factors"
MEMBERSHIPS, STANDARD_ERRORS, FREQUENCIES = ".Q", ".Q_se", ".P"
"""Endings of files with numbers alone, as admixture programs write them."""
Write = Callable[[int, NDArray[Any], NDArray[Any]], None]
"""Writes rows: the number of the first one, their labels (rows,) or (rows, columns of labels), and their factors (rows, k)."""


def open_rows(
    path: Location, n: int, columns: Sequence[str], dtype: Any, step: int, overwrite: bool, errors: bool, label_names: Sequence[str]
) -> AbstractContextManager[Write]:
    """Open a location for rows in the format of its ending; if there are standard errors, they follow the factors in each row."""
    if suffix(path) == ".zarr":
        return _group(path, n, columns, dtype, step, overwrite, errors, label_names)
    if suffix(path) in (MEMBERSHIPS, STANDARD_ERRORS):
        return _numbers(path, overwrite=overwrite)
    return open_table(path, [*columns, *(f"{name}_se" for name in columns if errors)], dtype, label_names, overwrite=overwrite)


def number_files(path: Location) -> Any:
    """Return the module that writes files with numbers alone; raise ParameterError if it is not installed."""
    return find_part("admixture_files", f"the format of {path}")


@contextmanager
def _numbers(path: Location, *, overwrite: bool) -> Iterator[Write]:
    """Open a .Q or .Q_se file for writing; it has no labels."""
    with number_files(path).number_file(path, overwrite=overwrite) as write:
        yield lambda _, __, factors: write(factors)


@contextmanager
def open_table(
    path: Location, columns: Sequence[str], dtype: Any, label_names: Sequence[str] = ("row",), *, overwrite: bool
) -> Iterator[Write]:
    """Open a csv or parquet file for writing; its first columns hold the labels."""
    is_csv = suffix(path) == ".csv"
    if is_csv:
        columns = list(map(without_formula, columns))
    schema = pa.schema([*((name, pa.string()) for name in label_names), *((name, pa.from_numpy_dtype(dtype)) for name in columns)])
    if is_csv:
        open_writer: Any = pa.csv.CSVWriter
    else:
        from pyarrow import parquet  # takes long to import

        open_writer = parquet.ParquetWriter
    with atomic_file(path, overwrite=overwrite) as partial, open_writer(str(partial), schema) as writer:

        def write(_: int, labels: NDArray[Any], factors: NDArray[Any]) -> None:  # rows arrive in order
            cells = labels.reshape(len(labels), -1).T
            texts = [pa.array(map(without_formula, column) if is_csv else column, pa.string()) for column in cells]
            numbers = [pa.array(values, from_pandas=True) for values in factors.T]
            writer.write_table(pa.table([*texts, *numbers], schema=schema))

        yield write


@contextmanager
def _group(
    path: Location, n: int, columns: Sequence[str], dtype: Any, step: int, overwrite: bool, errors: bool, label_names: Sequence[str]
) -> Iterator[Write]:
    """Create a Zarr group for writing, in chunks of ``step`` rows."""
    k = len(columns)
    with create_group(path, KIND, overwrite=overwrite) as group:
        arrays = [
            group.create_array(
                name,
                shape=(n, k),
                chunks=(step, k),
                dtype=dtype,
                compressors=compressor(dtype),
                dimension_names=("row", "component"),
                config=WRITE_EMPTY_CHUNKS,
            )
            for name in (KIND, *(["standard_errors"] if errors else []))
        ]
        texts: dict[str, Any] = {"shape": (n,), "chunks": (step,), "dtype": "string", "dimension_names": ("row",)}
        rows = [group.create_array(name, config=WRITE_EMPTY_CHUNKS, **texts) for name in label_names]
        write_labels(group, "component", np.asarray(columns, dtype=object), "component")

        def write(start: int, labels: NDArray[Any], factors: NDArray[Any]) -> None:
            for number, array in enumerate(arrays):
                array[start : start + len(factors)] = factors[:, number * k : (number + 1) * k]
            for array, column in zip(rows, labels.reshape(len(labels), -1).T, strict=True):
                array[start : start + len(factors)] = column

        yield write
