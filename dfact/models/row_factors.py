"""Row factors as an array, or as a Zarr array that workers may write themselves."""

from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.engine.partitions import rechunk_rows
from dfact.engine.session import StateRows
from dfact.storage.arrays import WRITE_EMPTY_CHUNKS, compressor, write_chunk
from dfact.storage.files import TemporaryFolder
from dfact.storage.groups import create_array, current_version, open_store
from dfact.storage.location import Location, parse_location


class StoredRows(zarr.Array[Any]):
    """A Zarr array (n, k) of row factors that libraries take for rows: ``pandas.DataFrame(model.factors_)`` reads it."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        step = self.chunks[0]
        for start in range(0, self.shape[0], step):
            yield from np.asarray(self[start : start + step])


def open_rows(location: Location) -> StoredRows:
    """Open row factors that are stored, read-only."""
    return StoredRows(zarr.open_array(open_store(current_version(location), read_only=True), mode="r", zarr_format=3).async_array)


def gather_rows(
    parts: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: np.dtype[Any], *, stored: bool, out: str | PathLike[str] | None = None
) -> NDArray[Any] | zarr.Array[Any]:
    """Collect the row factors (n, k) of all partitions into an array, or into a Zarr array if the data is ``stored``.

    The Zarr array is written to ``out``, a path or URL, and is complete or absent there. Without ``out`` it lies in a temporary
    folder that is removed with the array. Workers of a cluster that can reach the location write their rows themselves.
    """
    if not stored and out is None:
        result = np.empty(shape, dtype)
        _write_rows(parts, result)
        return result
    settings: dict[str, Any] = {
        "shape": shape,
        "chunks": (min(Layout.of(shape).chunk_rows, shape[0]), shape[1]),
        "dtype": dtype,
        "compressors": compressor(dtype),
        "dimension_names": ("row", "component"),
    }
    if out is not None:
        with create_array(out, "rows", **settings) as array:
            _write_rows(parts, array)
        return open_rows(parse_location(out))
    folder = TemporaryFolder("factors")
    path = folder.path / "factors.zarr"
    written = zarr.create_array(path, zarr_format=3, config=WRITE_EMPTY_CHUNKS, **settings)
    try:
        _write_rows(parts, written)
    except BaseException:
        folder.remove()
        raise
    array = open_rows(path)
    folder.remove_with(array)
    return array


def select_columns(rows: NDArray[Any], columns: slice | NDArray[np.intp], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Return some of the columns, in a type; a function of its own, since workers unpickle it to convert the rows that they write."""
    return rows[:, columns] if dtype is None else rows[:, columns].astype(dtype)


def _write_rows(parts: Iterable[NDArray[Any]], target: Any) -> None:
    if isinstance(target, zarr.Array):
        if isinstance(parts, StateRows) and parts.write(target):
            return
        parts = rechunk_rows(parts, target.chunks[0])  # type: ignore[assignment]  # arrays in, arrays out
    start = 0
    for rows in parts:
        write_chunk(target, start, rows)
        start += len(rows)
