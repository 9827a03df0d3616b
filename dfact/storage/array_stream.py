"""Arrays as consecutive bytes: the format of spilled states and of checkpoints.

A header precedes the values of each array: its type, shape and order as JSON, preceded by the header's length. NumPy's own
format stores a Python literal there, and CPython 3.11 occasionally fails when several threads parse those
(python/cpython#106905).
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

from dfact.errors import StoreError
from dfact.internals.zarr import sync

_SEGMENT_BYTES = 1 << 23  # a writer buffers this many bytes, then stores them under one key


class StreamWriter:
    """A writer of arrays of any shapes and types; their number and sizes need not be known beforehand."""

    def __init__(self, group: zarr.Group, name: str) -> None:
        self._group, self._name = group, name
        self._buffer = bytearray()
        self._checksums: list[int] = []
        self.size = 0
        """Number of bytes written so far."""

    def append(self, array: NDArray[Any]) -> None:
        """Write an array after the previous one."""
        write_array(self, array)

    def write(self, data: bytes | memoryview, /) -> int:
        """Write bytes, as a file does. All segments but the last have the same size, so that a reader can start at any byte."""
        rest = memoryview(data)
        while rest:
            room = _SEGMENT_BYTES - len(self._buffer)
            self._buffer += rest[:room]
            rest = rest[room:]
            if len(self._buffer) == _SEGMENT_BYTES:
                self._flush()
        self.size += len(data)
        return len(data)

    def close(self) -> tuple[int, ...]:
        """Write the remaining bytes and return the checksums of all segments."""
        if self._buffer:
            self._flush()
        return tuple(self._checksums)

    def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        key = _key(self._group, self._name, len(self._checksums))
        sync(self._group.store.set(key, default_buffer_prototype().buffer.from_bytes(data)))
        self._checksums.append(crc32(data))


class StreamReader:
    """A reader of the arrays that a :class:`StreamWriter` wrote, in their order."""

    def __init__(self, group: zarr.Group, name: str, checksums: Sequence[int], start: int = 0) -> None:
        self._group, self._name, self._checksums = group, name, checksums
        self._next = start // _SEGMENT_BYTES
        self._buffer = memoryview(b"")
        if start % _SEGMENT_BYTES:
            self._buffer = self._segment()[start % _SEGMENT_BYTES :]
            self._next += 1

    def readinto(self, target: memoryview, /) -> int:
        """Read bytes into ``target``, as a file does, and return their number."""
        if not self._buffer and not self.ended:
            self._buffer = self._segment()
            self._next += 1
        count = min(len(target), len(self._buffer))
        target[:count], self._buffer = self._buffer[:count], self._buffer[count:]
        return count

    def get(self) -> NDArray[Any]:
        """Read the next array."""
        return read_array(self)

    @property
    def ended(self) -> bool:
        """Whether all bytes have been read."""
        return not self._buffer and self._next == len(self._checksums)

    def _segment(self) -> memoryview:
        key = _key(self._group, self._name, self._next)
        stored = sync(self._group.store.get(key, default_buffer_prototype()))
        if stored is None:
            raise ValueError(f"{key} does not exist")
        data = stored.as_numpy_array().data
        if crc32(data) != self._checksums[self._next]:
            raise ValueError(f"the bytes of {key} do not match their checksum")
        return data


def _key(group: zarr.Group, name: str, segment: int) -> str:
    return f"{group.path}/{name}/{segment}".lstrip("/")  # the path of a root group is empty, and a key with a slash would leave the store


def read_stream(group: zarr.Group, name: str, checksums: Sequence[int]) -> Iterator[NDArray[Any]]:
    """Read all arrays of a stream; raise StoreError unless their bytes are those that were written."""
    with corruption_errors(f"{name!r} of {group.store_path}"):
        reader = StreamReader(group, name, checksums)
        while not reader.ended:
            yield reader.get()


@contextmanager
def corruption_errors(what: str) -> Iterator[None]:
    """Translate the errors that the store, JSON and NumPy raise on missing or damaged bytes into a StoreError that names ``what``."""
    try:
        yield
    except StoreError:  # an unreachable store, for example: its message is specific already
        raise
    except Exception as error:
        raise StoreError(f"{what} is missing or damaged ({error}); delete the checkpoint to start over") from error


_LENGTH = struct.Struct("<Q")


class Writable(Protocol):
    """The method of a file that is open for writing."""

    def write(self, data: Any, /) -> int:
        """Write all bytes of ``data``."""
        ...


class Readable(Protocol):
    """The method of a file that is open for reading."""

    def readinto(self, target: memoryview, /) -> int:
        """Read the bytes that are available at once and return their number, 0 at the end."""
        ...


def write_array(file: Writable, array: NDArray[Any]) -> None:
    """Write an array in its memory order, after a header with which :func:`read_array` restores it."""
    header = _header(array)
    file.write(_LENGTH.pack(len(header)) + header)
    file.write(bytes_of(np.ascontiguousarray(array.T if _is_transposed(array) else array)))


def encoded_size(array: NDArray[Any]) -> int:
    """Return the number of bytes that :func:`write_array` writes for an array."""
    return _LENGTH.size + len(_header(array)) + array.nbytes


def _header(array: NDArray[Any]) -> bytes:
    return json.dumps([array.dtype.str, array.shape, _is_transposed(array)]).encode()


def _is_transposed(array: NDArray[Any]) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


def read_array(file: Readable) -> NDArray[Any]:
    """Read the next array; raise EOFError or ValueError if it is incomplete."""
    (length,) = _LENGTH.unpack(_read_exactly(file, np.empty(_LENGTH.size, np.uint8)))
    dtype, shape, transposed = json.loads(bytes(_read_exactly(file, np.empty(length, np.uint8))))
    array = np.empty(shape[::-1] if transposed else shape, dtype)
    _read_exactly(file, array)
    return array.T if transposed else array


def _read_exactly(file: Readable, array: NDArray[Any]) -> memoryview:
    """Fill the array from the file and return its bytes."""
    content = rest = bytes_of(array)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise EOFError(f"{len(rest)} bytes are missing at its end")
        rest = rest[count:]
    return content


def bytes_of(array: NDArray[Any]) -> memoryview:
    """View an array in C order as bytes."""
    return array.reshape(-1).view(np.uint8).data
