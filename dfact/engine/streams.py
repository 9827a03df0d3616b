"""Arrays one after the other as bare objects in a Zarr store: what a checkpoint is made of.

A stream is named within a group of the store, and its pieces are the objects ``name/0``, ``name/1`` and so on. An
array of bytes would do as well, but its metadata cost several times what the bytes of a partition's state do.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

from dfact.engine.arrays import read_array, stored_size, write_array
from dfact.engine.passes import State
from dfact.errors import StoreError

_PIECE = 1 << 23  # bytes that a writer holds before it writes them


class StreamWriter:
    """Writes arrays of any shapes and types, whose number and sizes need not be known beforehand."""

    def __init__(self, group: zarr.Group, name: str) -> None:
        self._group, self._name = group, name
        self._held = bytearray()
        self._checksums: list[int] = []
        self.size = 0
        """Bytes written so far."""

    def put(self, array: NDArray[Any]) -> None:
        write_array(self, array)

    def write(self, data: bytes | memoryview, /) -> int:
        """As of a file. All pieces but the last have the same size, so that a reader can begin at any byte."""
        rest = memoryview(data)
        while rest:
            room = _PIECE - len(self._held)
            self._held += rest[:room]
            rest = rest[room:]
            if len(self._held) == _PIECE:
                self._flush()
        self.size += len(data)
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

    def __init__(self, group: zarr.Group, name: str, checksums: Sequence[int], start: int = 0) -> None:
        self._group, self._name, self._checksums = group, name, checksums
        self._next = start // _PIECE
        self._held = memoryview(b"")
        if start % _PIECE:
            self._held = self._piece()[start % _PIECE :]
            self._next += 1

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
    """The states of the blocks of consecutive partitions in a checkpoint, one stream."""

    group: zarr.Group
    stream: str
    names: tuple[str, ...]
    checksums: tuple[int, ...]
    first: int
    """Number of the first partition."""
    edges: tuple[int, ...]
    """Where the partitions begin in the stream, and where the last one ends, in bytes."""

    @property
    def last(self) -> int:
        """Number of the partition after the last."""
        return self.first + len(self.edges) - 1

    def part(self, first: int, last: int) -> "StoredState":
        """The states of the partitions ``first`` to ``last`` − 1."""
        return replace(self, first=first, edges=self.edges[first - self.first : last - self.first + 1])

    def __iter__(self) -> Iterator[list[State]]:
        """The states of each partition's blocks."""
        with undamaged(f"{self.stream!r} of {self.group.store_path}"):
            reader = StreamReader(self.group, self.stream, self.checksums, self.edges[0])
            for size in np.diff(self.edges):
                blocks: list[State] = []
                read = 0
                while read < size:
                    blocks.append({name: reader.get() for name in self.names})
                    read += sum(stored_size(array) for array in blocks[-1].values())
                yield blocks

    def described(self) -> dict[str, Any]:
        """As JSON, without the group."""
        return {"stream": self.stream, "names": self.names, "checksums": self.checksums, "first": self.first, "edges": self.edges}

    @classmethod
    def from_description(cls, group: zarr.Group, described: Mapping[str, Any]) -> "StoredState":
        names, checksums, edges = (tuple(described[name]) for name in ("names", "checksums", "edges"))
        return cls(group, described["stream"], names, checksums, described["first"], edges)
