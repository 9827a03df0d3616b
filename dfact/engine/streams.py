"""Arrays one after the other as bare objects in a Zarr store: what a checkpoint is made of.

A stream is named within a group of the store, and its pieces are the objects ``name/0``, ``name/1`` and so on. An
array of bytes would do as well, but its metadata cost several times what the bytes of a partition's state do.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

from dfact.engine.arrays import read_array, write_array
from dfact.engine.passes import State
from dfact.errors import StoreError

_PIECE = 1 << 23  # bytes that a writer holds before it writes them


class StreamWriter:
    """Writes arrays of any shapes and types, whose number and sizes need not be known beforehand."""

    def __init__(self, group: zarr.Group, name: str) -> None:
        self._group, self._name = group, name
        self._held = bytearray()
        self._checksums: list[int] = []

    def put(self, array: NDArray[Any]) -> None:
        write_array(self, array)

    def write(self, data: bytes | memoryview, /) -> int:
        """As of a file."""
        for start in range(0, len(data), _PIECE):
            self._held += data[start : start + _PIECE]
            if len(self._held) >= _PIECE:
                self._flush()
        return len(data)

    def close(self) -> tuple[int, ...]:
        """Write the rest; returns the checksums of all pieces."""
        if self._held:
            self._flush()
        return tuple(self._checksums)

    def _flush(self) -> None:
        data, self._held = self._held, bytearray()
        key = _key(self._group, self._name, len(self._checksums))
        sync(self._group.store.set(key, default_buffer_prototype().buffer.from_bytes(data)))
        self._checksums.append(crc32(data))


class StreamReader:
    """Reads the arrays that a :class:`StreamWriter` wrote, in their order."""

    def __init__(self, group: zarr.Group, name: str, checksums: Sequence[int]) -> None:
        self._group, self._name, self._checksums = group, name, checksums
        self._next = 0
        self._held = memoryview(b"")

    def readinto(self, place: memoryview, /) -> int:
        """As of a file."""
        if not self._held and not self.ended:
            self._held = self._piece()
            self._next += 1
        count = min(len(place), len(self._held))
        place[:count], self._held = self._held[:count], self._held[count:]
        return count

    def get(self) -> NDArray[Any]:
        return read_array(self)

    @property
    def ended(self) -> bool:
        return not self._held and self._next == len(self._checksums)

    def _piece(self) -> memoryview:
        key = _key(self._group, self._name, self._next)
        found = sync(self._group.store.get(key, default_buffer_prototype()))
        if found is None:
            raise ValueError(f"there is no {key}")
        data = found.as_numpy_array().data
        if crc32(data) != self._checksums[self._next]:
            raise ValueError(f"the bytes of {key} do not match their checksum")
        return data


def _key(group: zarr.Group, name: str, piece: int) -> str:
    return f"{group.path}/{name}/{piece}"


def read_stream(group: zarr.Group, name: str, checksums: Sequence[int]) -> Iterator[NDArray[Any]]:
    """All arrays of a stream; StoreError if they are not those that were written."""
    with undamaged(f"{name!r} of {group.store_path}"):
        reader = StreamReader(group, name, checksums)
        while not reader.ended:
            yield reader.get()


@contextmanager
def undamaged(what: str) -> Iterator[None]:
    """What is gone or damaged, in words: the store, JSON and NumPy raise errors of every kind of it."""
    try:
        yield
    except StoreError:  # out of reach, say: told already
        raise
    except Exception as error:
        raise StoreError(f"{what} is missing or damaged ({error}); remove the checkpoint, and the fit begins anew") from error


@dataclass(frozen=True)
class StoredState:
    """The state of a partition's blocks in a checkpoint."""

    group: zarr.Group
    stream: str
    names: tuple[str, ...]
    checksums: tuple[int, ...]

    def __iter__(self) -> Iterator[State]:
        arrays = read_stream(self.group, self.stream, self.checksums)
        for first in arrays:
            yield {name: first if i == 0 else next(arrays) for i, name in enumerate(self.names)}


def store_state(states: Iterable[State], group: zarr.Group, stream: str) -> StoredState:
    """Write the states of a partition's blocks, which all have arrays of the same names."""
    writer = StreamWriter(group, stream)
    names: tuple[str, ...] = ()
    for state in states:
        names = tuple(state)
        for array in state.values():
            writer.put(array)
    return StoredState(group, stream, names, writer.close())
