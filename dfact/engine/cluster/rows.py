"""Rows that workers write to a Zarr array themselves; a single worker writes each chunk."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype

from dfact.data.layout import Layout
from dfact.internals.zarr import sync
from dfact.storage.arrays import write_chunk

ChunkOfRows = tuple[int, int, Sequence[tuple[str, str, int, int]]]
"""The first row of a chunk, the row after its last, and their owners: address of a worker, key of its shard, a run of its partitions."""


@dataclass(frozen=True)
class WrittenRows:
    """A state array and the Zarr array that its rows are written to."""

    name: str
    convert: Callable[[NDArray[Any]], NDArray[Any]]
    target: zarr.Array[Any]
    layout: Layout

    def write(self, start: int, stop: int, first: int, parts: Sequence[NDArray[Any]]) -> None:
        """Write the rows ``start`` to ``stop``, given the rows of the partitions from ``first`` on that contain them."""
        offset = start - self.layout.rows(first, first).start
        write_chunk(self.target, start, self.convert(np.concatenate(parts)[offset : offset + stop - start]))


@contextmanager
def marker(target: zarr.Array[Any]) -> Iterator[str]:
    """Write a marker object next to an array, by which workers check that they reach the same store, and yield its name."""
    name = f"reached-{uuid4().hex}"
    path = target.store_path / name
    sync(path.set(default_buffer_prototype().buffer.from_bytes(name.encode())))
    try:
        yield name
    finally:
        sync(path.delete())


def reaches(target: zarr.Array[Any], name: str) -> bool:
    """Return whether this process finds the marker."""
    try:
        content = sync((target.store_path / name).get())
    except Exception:  # for whatever reason, this process does not reach the store, and the driver writes instead
        return False
    return content is not None and content.to_bytes() == name.encode()
