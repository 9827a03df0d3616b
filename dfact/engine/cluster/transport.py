"""Payloads between driver and workers, each pickled into a single string of bytes."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Pickled(Generic[T]):
    """A value that Dask sends as a single string of bytes.

    By default Dask sends arrays separately from the objects that contain them, and they may arrive at unaligned addresses. NumPy
    copies such arrays, possibly into another memory order, and BLAS then sums in another order; Numba compiles once more for them.
    """

    value: T

    def __reduce__(self) -> tuple[Any, ...]:
        from dfact.internals.distributed import dumps

        return _unpickled, (dumps(self.value),)

    def __sizeof__(self) -> int:
        """Return the size of the payload, by which Dask decides where tasks run and when to spill."""
        from dask.sizeof import sizeof

        return object.__sizeof__(self) + int(sizeof(self.value))


def _unpickled(content: bytes) -> Pickled[Any]:
    from dfact.internals.distributed import loads

    return Pickled(loads(content))


def packed(value: Any) -> bytes:
    """Return the value as bytes, including its arrays in their memory order."""
    from dfact.internals.distributed import dumps

    content: bytes = dumps(value)
    return content


def unpacked(content: Any) -> Any:
    """Return the value that :func:`packed` pickled."""
    from dfact.internals.distributed import loads

    return loads(content)
