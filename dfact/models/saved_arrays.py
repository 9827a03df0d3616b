"""Arrays of saved models: copied and read by chunks of rows, each with a digest."""

import hashlib
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.errors import StoreError
from dfact.models.row_factors import StoredRows
from dfact.storage.arrays import WRITE_EMPTY_CHUNKS, compressor, member

_LABEL_ROWS = 1 << 16


def write_array(group: zarr.Group, name: str, values: NDArray[Any] | zarr.Array[Any]) -> str:
    """Copy an array of numbers or labels by chunks of rows. Return its digest."""
    labels = values.dtype.kind not in "iufb"
    rows = max(1, min(values.shape[0], _LABEL_ROWS if labels else Layout.of(values.shape).chunk_rows))
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=(rows, *_whole_rows(values.shape)),
        dtype="string" if labels else values.dtype,
        compressors="auto" if labels else compressor(values.dtype),
        config=WRITE_EMPTY_CHUNKS,
    )
    digest = _Digest(values.shape, labels, values.dtype)
    for start in range(0, values.shape[0], rows):
        part = np.asarray(values[start : start + rows], dtype=object if labels else None)
        if part.size:
            array[start : start + rows] = part
        digest.update(part)
    return digest.value


def _whole_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a chunk of whole rows, except for their number."""
    return tuple(max(1, size) for size in shape[1:])


def read_array(group: zarr.Group, name: str, expected: str, *, lazy: bool) -> Any:
    """Read an array by chunks and compare it with its digest. Return the Zarr array itself if ``lazy``."""
    damaged = f"array {name!r} of {group.store_path} is damaged; save the model again"
    try:
        array = member(group, name)
        assert isinstance(array, zarr.Array), "not an array"
        # A forged shape may claim millions of chunks, which Zarr would all look for.
        assert array.chunks[1:] == _whole_rows(array.shape), f"chunks of {array.chunks}, expected whole rows of {array.shape}"
        labels = array.dtype.kind not in "iufb"
        values = None if lazy else np.empty(array.shape, object if labels else array.dtype)
        digest = _Digest(array.shape, labels, array.dtype)
        rows = array.chunks[0]
        for start in range(0, array.shape[0], rows):
            part = np.asarray(array[start : start + rows], dtype=object if labels else None)
            digest.update(part)
            if values is not None:
                values[start : start + rows] = part
    except Exception as error:  # damaged metadata and bytes make Zarr and its codecs raise errors of every kind
        raise StoreError(f"{damaged} ({error})") from error
    if digest.value != expected:
        raise StoreError(damaged)
    if values is not None:
        return values
    return array if labels else StoredRows(array.async_array)


class _Digest:
    """Digest of an array: BLAKE2b over type, shape and values in row order, independent of the chunks."""

    def __init__(self, shape: tuple[int, ...], labels: bool, dtype: Any) -> None:
        self._labels = labels
        self._hash = hashlib.blake2b(f"{'text' if labels else dtype.str} {shape}".encode(), digest_size=16)

    def update(self, part: NDArray[Any]) -> None:
        if self._labels:
            self._hash.update("".join(f"{label}\0" for label in part.ravel()).encode())
        else:
            self._hash.update(np.ascontiguousarray(part).data)

    @property
    def value(self) -> str:
        return self._hash.hexdigest()
