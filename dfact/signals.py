"""Signals: stop requests by SIGTERM and SIGINT, deferred while a pass runs."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dfact.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CLEAN = "nothing half-written was left behind"
_COMPILERS = ("numba", "llvmlite")  # their callbacks from C ignore exceptions, after which the compiler may crash
_SILENT = ("__del__", "cb", "visit")  # finalizers, the callback of import locks, and the one that counts libraries ignore exceptions
_LATER = 0.02  # seconds


class _StopRequest:
    """A pending signal, and the number of sections that defer it."""

    def __init__(self) -> None:
        self.deferring = 0
        self.signal: int | None = None
        self.again: threading.Timer | None = None
        """Sends a signal again that came while an exception would be ignored."""


_request = _StopRequest()


@contextmanager
def handle_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT raise :class:`dfact.errors.StoppedError`.

    A section of :func:`defer_stop` handles the first signal itself, after the current pass. A second signal always raises at
    once, except that a kernel is compiled to its end. Only the main thread can install handlers, so this is for programs.
    """
    _request.signal = None
    before = {number: signal.signal(number, _handle) for number in _SIGNALS}
    try:
        yield
    finally:
        if _request.again is not None:
            _request.again.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        _request.signal = None  # it must not stop later fits


def _handle(number: int, frame: FrameType | None) -> None:
    if _request.deferring and _request.signal is None:
        _request.signal = number
        return
    if _ignores_exceptions(frame):
        main = threading.main_thread().ident
        assert main is not None, "it runs this handler"
        _request.again = threading.Timer(_LATER, signal.pthread_kill, (main, number))
        _request.again.daemon = True
        _request.again.start()
        return
    raise StoppedError(number, _CLEAN)


def _ignores_exceptions(frame: FrameType | None) -> bool:
    """Return whether an exception raised in this frame may be printed and ignored instead of stopping the program."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _COMPILERS or module == "weakref" or frame.f_code.co_name in _SILENT:
            return True
        frame = frame.f_back
    return False


@contextmanager
def defer_stop() -> Iterator[None]:
    """Defer a signal to a section that checks :func:`requested_signal` between its passes. It is raised at the end at the latest."""
    _request.deferring += 1
    try:
        yield
    finally:
        _request.deferring -= 1
    if _request.signal is not None:
        raise StoppedError(_request.signal, _CLEAN)


@contextmanager
def finish_before_stop() -> Iterator[None]:
    """Complete a section that is almost done: a signal within it stops later fits instead. A second signal stops at once."""
    main = threading.current_thread() is threading.main_thread()  # only the main thread receives signals
    _request.deferring += main
    try:
        yield
    finally:
        _request.deferring -= main


def requested_signal() -> int | None:
    """Return the pending signal."""
    return _request.signal
