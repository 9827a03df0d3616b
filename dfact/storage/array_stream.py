"""Arrays as bytes, one after the other: what spilled states and checkpoints are made of.

Before the values of each stands a header, type, shape and order as JSON, and before that its length. NumPy's own format
has a Python literal there, and CPython 3.11 fails now and then where several threads parse those (python/cpython#106905).
"""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

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
    with corruption_errors(f"{name!r} of {group.store_path}"):
        reader = StreamReader(group, name, checksums)
        while not reader.ended:
            yield reader.get()


@contextmanager
def corruption_errors(what: str) -> Iterator[None]:
    """What is gone or damaged, in words: the store, JSON and NumPy raise errors of every kind of it."""
    try:
        yield
    except StoreError:  # out of reach, say: told already
        raise
    except Exception as error:
        raise StoreError(f"{what} is missing or damaged ({error}); remove the checkpoint, and the fit begins anew") from error


_LENGTH = struct.Struct("<Q")


class Writable(Protocol):
    """As a file that is open to be written."""

    def write(self, data: Any, /) -> int:
        """All of it."""
        ...


class Readable(Protocol):
    """As a file that is open to be read."""

    def readinto(self, place: memoryview, /) -> int:
        """As many bytes as there are at once; 0 at the end."""
        ...


def write_array(file: Writable, array: NDArray[Any]) -> None:
    """With what it takes to read it again, in the order that it has."""
    header = _header(array)
    file.write(_LENGTH.pack(len(header)) + header)
    file.write(bytes_of(np.ascontiguousarray(array.T if _turned(array) else array)))


def stored_size(array: NDArray[Any]) -> int:
    """Bytes that :func:`write_array` takes for it."""
    return _LENGTH.size + len(_header(array)) + array.nbytes


def _header(array: NDArray[Any]) -> bytes:
    return json.dumps([array.dtype.str, array.shape, _turned(array)]).encode()


def _turned(array: NDArray[Any]) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


def read_array(file: Readable) -> NDArray[Any]:
    """The next one; EOFError or ValueError if it is not there."""
    (length,) = _LENGTH.unpack(_filled(file, np.empty(_LENGTH.size, np.uint8)))
    kind, shape, turned = json.loads(bytes(_filled(file, np.empty(length, np.uint8))))
    array = np.empty(shape[::-1] if turned else shape, kind)
    _filled(file, array)
    return array.T if turned else array


def _filled(file: Readable, array: NDArray[Any]) -> memoryview:
    """The bytes of the array, read anew."""
    content = rest = bytes_of(array)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise EOFError(f"{len(rest)} bytes are missing at its end")
        rest = rest[count:]
    return content


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Of an array in C order."""
    return array.reshape(-1).view(np.uint8).data
