"""Arrays as bytes, one after the other: what spilled states and checkpoints are made of.

Before the values of each stands a header, type, shape and order as JSON, and before that its length. NumPy's own format
has a Python literal there, and CPython 3.11 fails now and then where several threads parse those (python/cpython#106905).
"""

import json
import struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
