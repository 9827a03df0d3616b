"""Signals to stop, which a fit that keeps a checkpoint obeys at the end of its pass."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dfact.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CLEAN = "nothing half-written was left behind"


class _StopRequest:
    """Who would obey, and what was asked."""

    def __init__(self) -> None:
        self.defer_stop = 0
        self.signal: int | None = None


_wish = _StopRequest()


@contextmanager
def handle_signals() -> Iterator[None]:
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
        _wish.signal = None  # or it would stop the fits that follow


def _handle(number: int, frame: FrameType | None) -> None:
    del frame
    if _wish.defer_stop and _wish.signal is None:
        _wish.signal = number
        return
    raise StoppedError(number, _CLEAN)


@contextmanager
def defer_stop() -> Iterator[None]:
    """Whoever asks :func:`requested_signal` now and then, and stops; at the end at the latest."""
    _wish.defer_stop += 1
    try:
        yield
    finally:
        _wish.defer_stop -= 1
    if _wish.signal is not None:
        raise StoppedError(_wish.signal, _CLEAN)


@contextmanager
def shield() -> Iterator[None]:
    """What is all but done is done: a signal within comes too late to stop it, and fits that follow obey it. The second stops at once."""
    here = threading.current_thread() is threading.main_thread()  # signals come to no other
    _wish.defer_stop += here
    try:
        yield
    finally:
        _wish.defer_stop -= here


def requested_signal() -> int | None:
    """The signal that asked to stop."""
    return _wish.signal
