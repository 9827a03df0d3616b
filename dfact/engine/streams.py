"""Arrays one after the other in one Zarr array of bytes, each in NumPy's own format: what a checkpoint is made of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import zarr
from numpy.lib import format as npy
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from dfact.data.store import WRITE_ALL
from dfact.engine.passes import State
from dfact.errors import StoreError

_CHUNK = 1 << 23  # bytes that a writer holds


class StreamWriter:
    """Writes arrays of any shapes and types, whose number and sizes need not be known beforehand."""

    def __init__(self, group: zarr.Group, name: str) -> None:
        self._group, self._name = group, name
        self._held, self._checksum = bytearray(), 0
        self._array: zarr.Array[Any] | None = None

    def put(self, array: NDArray[Any]) -> None:
        npy.write_array(self, array, allow_pickle=False)

    def write(self, data: bytes) -> int:
        """As of a file, which NumPy takes this for."""
        self._held += data
        if len(self._held) >= _CHUNK:
            self._flush(len(self._held) // _CHUNK * _CHUNK)
        return len(data)

    def close(self) -> int:
        """Write the rest; returns the checksum of all."""
        if self._held or self._array is None:
            self._flush(len(self._held))
        return self._checksum

    def _flush(self, size: int) -> None:
        data = bytes(self._held[:size])
        del self._held[:size]
        self._checksum, part = crc32(data, self._checksum), np.frombuffer(data, np.uint8)
        if self._array is None:
            # Most streams end here: theirs is one chunk of their size.
            self._array = self._group.create_array(
                self._name,
                shape=part.shape,
                chunks=(min(max(1, size), _CHUNK),),
                dtype=np.uint8,
                compressors=Crc32cCodec(),
                config=WRITE_ALL,
            )
            if size:
                self._array[:] = part
        else:
            self._array.append(part)


class StreamReader:
    """Reads the arrays that a :class:`StreamWriter` wrote, in their order."""

    def __init__(self, group: zarr.Group, name: str) -> None:
        array = group[name]
        assert isinstance(array, zarr.Array), "a group"
        self._array, self._next = array, 0
        self._held = memoryview(b"")
        self.checksum = 0

    def read(self, size: int, /) -> bytes:
        """As of a file, which NumPy takes this for."""
        if not len(self._held):
            self._held = np.asarray(self._array[self._next : self._next + self._array.chunks[0]]).data
            self._next += len(self._held)
            self.checksum = crc32(self._held, self.checksum)
        taken, self._held = self._held[:size], self._held[size:]
        return bytes(taken)

    def get(self) -> NDArray[Any]:
        array: NDArray[Any] = npy.read_array(self, allow_pickle=False)  # type: ignore[arg-type]  # a read is all it needs
        return array

    @property
    def ended(self) -> bool:
        return not len(self._held) and self._next >= self._array.shape[0]


def read_stream(group: zarr.Group, name: str, checksum: int) -> Iterator[NDArray[Any]]:
    """All arrays of a stream; StoreError, at the latest behind the last, if they are not those that were written."""
    try:
        reader = StreamReader(group, name)
        while not reader.ended:
            yield reader.get()
        if reader.checksum != checksum:
            raise ValueError("its bytes do not match their checksum")
    except Exception as error:  # damaged bytes make Zarr, its codecs and NumPy raise errors of every kind
        where = f"{name!r} of {group.store_path}"
        raise StoreError(f"{where} is missing or damaged ({error}); remove the checkpoint, and the fit begins anew") from error


@dataclass(frozen=True)
class StoredState:
    """The state of a partition's blocks in a checkpoint."""

    group: zarr.Group
    stream: str
    names: tuple[str, ...]
    checksum: int

    def __iter__(self) -> Iterator[State]:
        arrays = read_stream(self.group, self.stream, self.checksum)
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
