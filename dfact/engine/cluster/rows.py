"""Rows that workers write to a Zarr array themselves, each chunk one of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

from dfact.storage.groups import write_chunk

ChunkOfRows = tuple[int, int, Sequence[tuple[str, str, int, int]]]
"""The first row of a chunk and the row after its last, and who has them: workers, their keys and runs of partitions."""


@dataclass(frozen=True)
class WrittenRows:
    """A state array and where its rows go."""

    name: str
    convert: Callable[[NDArray[Any]], NDArray[Any]]
    target: zarr.Array[Any]
    partition_rows: int

    def write(self, start: int, stop: int, first: int, parts: Sequence[NDArray[Any]]) -> None:
        """Write the rows ``start`` to ``stop``, which are among those of some partitions from ``first`` on."""
        before = start - first * self.partition_rows
        write_chunk(self.target, start, self.convert(np.concatenate(parts)[before : before + stop - start]))


@contextmanager
def landmark(target: zarr.Array[Any]) -> Iterator[str]:
    """The name of an object beside an array, by which others see whether they reach the same."""
    name = f"reached-{uuid4().hex}"
    path = target.store_path / name
    sync(path.set(default_buffer_prototype().buffer.from_bytes(name.encode())))
    try:
        yield name
    finally:
        sync(path.delete())


def reached(target: zarr.Array[Any], name: str) -> bool:
    """Whether this process finds the landmark."""
    try:
        found = sync((target.store_path / name).get())
    except Exception:  # whatever it is: this process does not reach it, and the driver writes instead
        return False
    return found is not None and found.to_bytes() == name.encode()
