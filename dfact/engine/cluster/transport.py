"""What travels between driver and workers: pickled payloads, in one piece."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Pickled(Generic[T]):
    """What travels as one string of bytes.

    Otherwise Dask sends arrays apart from what holds them, and at times they come to lie at odd addresses. NumPy
    copies such arrays, in another order than they had, and BLAS then sums in another order; Numba compiles anew for them.
    """

    value: T

    def __reduce__(self) -> tuple[Any, ...]:
        from distributed.protocol.pickle import dumps

        return _unpickled, (dumps(self.value),)

    def __sizeof__(self) -> int:
        """By which Dask decides where tasks run, and when to spill."""
        from dask.sizeof import sizeof

        return object.__sizeof__(self) + int(sizeof(self.value))


def _unpickled(content: bytes) -> Pickled[Any]:
    from distributed.protocol.pickle import loads

    return Pickled(loads(content))


def packed(value: Any) -> bytes:
    """The value as bytes, arrays within and in the order that they have."""
    from distributed.protocol.pickle import dumps

    content: bytes = dumps(value)
    return content


def unpacked(content: Any) -> Any:
    """What :func:`packed` was given."""
    from distributed.protocol.pickle import loads

    return loads(content)
