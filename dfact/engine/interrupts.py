"""Signals to stop, which a fit that keeps a checkpoint obeys at the end of its pass."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dfact.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Wish:
    """Who would obey, and what was asked."""

    def __init__(self) -> None:
        self.obeying = 0
        self.signal: int | None = None


_wish = _Wish()


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise :class:`dfact.errors.StoppedError`, at once or, where a checkpoint is kept, behind the pass at hand.

    The second of them always stops at once. For programs: in the main thread, which alone can.
    """
    _wish.signal = None
    before = {number: signal.signal(number, _handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(number: int, frame: FrameType | None) -> None:
    del frame
    if _wish.obeying and _wish.signal is None:
        _wish.signal = number
        return
    raise StoppedError(number, "nothing half-written was left behind")


@contextmanager
def obeying() -> Iterator[None]:
    """Whoever asks :func:`asked` now and then, and stops."""
    _wish.obeying += 1
    try:
        yield
    finally:
        _wish.obeying -= 1


def asked() -> int | None:
    """The signal that asked to stop."""
    return _wish.signal
