"""Payloads between driver and workers, each pickled into a single string of bytes.

The string has the number of its buffers, their sizes, the pickle's, and then the pickle and the buffers, which are the memory of arrays.
Dask searches pickles for names of ``__main__``, which takes longer than to copy them; so arrays are not part of the pickle.
"""

import struct
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_NUMBER = struct.calcsize("<Q")


@dataclass(frozen=True)
class Pickled(Generic[T]):
    """A value that Dask sends as a single string of bytes.

    By default Dask sends arrays separately from the objects that contain them, and they may arrive at unaligned addresses. NumPy
    copies such arrays, possibly into another memory order, and BLAS then sums in another order; Numba compiles once more for them.
    """

    value: T

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (packed(self.value),)

    def __sizeof__(self) -> int:
        """Return the size of the payload, by which Dask decides where tasks run and when to spill."""
        from dask.sizeof import sizeof

        return object.__sizeof__(self) + int(sizeof(self.value))


def _unpickled(content: bytes) -> Pickled[Any]:
    return Pickled(unpacked(content))


def packed(value: Any) -> bytes:
    """Return the value as bytes, including its arrays in their memory order."""
    from dfact.internals.distributed import dumps

    buffers: list[PickleBuffer] = []
    pickled = dumps(value, buffer_callback=buffers.append)
    parts = [pickled, *(buffer.raw() for buffer in buffers)]
    return b"".join([struct.pack(f"<{len(parts) + 1}Q", len(buffers), *map(len, parts)), *parts])


def unpacked(content: Any) -> Any:
    """Return the value that :func:`packed` pickled. Its arrays are copies, at aligned addresses, and may be written if the original may."""
    from dfact.internals.distributed import loads

    data = memoryview(content)
    [count] = struct.unpack_from("<Q", data)
    sizes = struct.unpack_from(f"<{count + 1}Q", data, _NUMBER)
    start, parts = (count + 2) * _NUMBER, []
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    pickled, *buffers = parts
    return loads(pickled, buffers=[bytearray(buffer) for buffer in buffers])
