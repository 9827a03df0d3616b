"""Threads of passes: items that they share or prepare ahead, and meanwhile one thread for BLAS and none for codecs."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar, overload

import scipy.linalg.cython_blas  # noqa: F401  # kernels call SciPy's BLAS, which must be loaded before its threads are limited
from numcodecs import blosc
from threadpoolctl import ThreadpoolController

from dfact.errors import DfactError

_lock = threading.Lock()
_blas_thread = ThreadPoolExecutor(1, thread_name_prefix="dfact-blas")
_users = 0
_restore: Callable[[], object] | None = None
_found: tuple[int | None, ThreadpoolController] | None = None


class _Library(ctypes.Structure):
    """The record of a loaded library, with the numbers of libraries that the process has loaded and unloaded."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("n_headers", ctypes.c_uint16),
        ("loaded", ctypes.c_ulonglong),
        ("unloaded", ctypes.c_ulonglong),
    )


_VISIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit BLAS to one thread in this process, and verify the limit.

    The limit belongs to the process, not to a thread: the first thread to enter sets it, the last to
    leave restores it. The kernels are serial, so Numba starts no threads of its own.
    """
    global _users, _restore  # noqa: PLW0603  # the limit is a state of the process
    with _lock:
        if _users == 0:
            _restore = _limit()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _restore is not None:
                _restore()
                _restore = None


def _limit() -> Callable[[], object]:
    """Set the limits. Returns a function that restores the original ones."""
    controller = _controller()
    unlimited: list[str] = []
    # OpenBLAS accepts a number of threads only from the thread that set it first: that of this module or, if other code has set it,
    # possibly the current one.
    for run in (_in_blas_thread, _in_current_thread):
        limiter = run(partial(controller.limit, limits=1, user_api="blas"))
        unlimited = [pool["internal_api"] for pool in controller.select(user_api="blas").info() if pool["num_threads"] != 1]
        if not unlimited:
            break
        run(limiter.restore_original_limits)
    if unlimited:
        raise DfactError(
            f"{unlimited} cannot be limited to one thread; set OPENBLAS_NUM_THREADS=1 and MKL_NUM_THREADS=1 before Python starts"
        )
    codecs, blosc.use_threads = blosc.use_threads, False

    def restore() -> None:
        run(limiter.restore_original_limits)
        blosc.use_threads = codecs

    return restore


def _controller() -> ThreadpoolController:
    """Return the controller of the BLAS libraries. Finding them takes half as long as a small fit, so look again only after a load."""
    global _found  # noqa: PLW0603  # the libraries belong to the process
    loaded = _libraries_loaded()
    if _found is None or loaded is None or loaded != _found[0]:
        controller = ThreadpoolController()
        _found = (_libraries_loaded(), controller)  # counted again, as the search may load a library
    return _found[1]


def _libraries_loaded() -> int | None:
    """Return how many libraries this process has loaded so far, or None if the C library does not tell."""
    counts: list[int] = []

    def visit(library: Any, size: int, _: object) -> int:
        counts.extend([library.contents.loaded] if size >= ctypes.sizeof(_Library) else [])
        return 1  # no need to see the others

    with suppress(AttributeError):  # macOS has no such function
        ctypes.CDLL(None).dl_iterate_phdr(_VISIT(visit), None)
    return counts[0] if counts else None


def _in_blas_thread(action: Callable[[], Any]) -> Any:
    return _blas_thread.submit(action).result()


def _restart_blas_thread() -> None:
    """Replace the executor in a forked process, which inherits it without its thread."""
    global _blas_thread  # noqa: PLW0603  # the thread belongs to the process
    _blas_thread = ThreadPoolExecutor(1, thread_name_prefix="dfact-blas")


os.register_at_fork(after_in_child=_restart_blas_thread)


def _in_current_thread(action: Callable[[], Any]) -> Any:
    return action()


T = TypeVar("T")


class cached_without_lock(Generic[T]):  # noqa: N801  # a decorator, as property is
    """A property that each instance computes on first use, in one thread.

    ``functools.cached_property`` of Python 3.11 has one lock for all instances of a class, which it holds while it computes. With it,
    threads would wait for each other at every block that is converted.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._compute(instance)  # later reads find it in the instance, before the class
        return value


def run_items(
    work: Callable[[T], None],
    items: Sequence[T],
    pool: Executor | None,
    threads: int,
    *,
    stopped: threading.Event,
    prepare: Callable[[T], T] | None = None,
    may_start: Callable[[], bool] = lambda: True,
) -> None:
    """Call ``work`` for each item on this number of threads of the pool, or in the calling thread without a pool.

    Items start in their order, and none if ``may_start()`` is false or ``stopped`` is set, as it is by the first error, which is raised.
    With ``prepare``, each thread's next item is prepared while the thread works on the current one. No thread works any more when
    this returns or raises.
    """
    following, lock = iter(items), threading.Lock()

    def claim() -> Iterator[T]:
        while not stopped.is_set() and may_start():
            with lock:
                item = next(following, None)
            if item is None:
                return
            yield item

    def run_claimed() -> None:
        try:
            for item in claim() if prepare is None else prefetch(map(prepare, claim())):
                work(item)
        except BaseException:
            stopped.set()
            raise

    if pool is None:
        run_claimed()
        return
    futures = [pool.submit(run_claimed) for _ in range(min(threads, len(items)))]
    try:
        wait(futures)
    finally:
        stopped.set()  # a signal may have ended the wait
        wait(futures)
    for future in futures:
        future.result()


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items, each computed in a helper thread while the previous one is in use."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="dfact-read") as helper:
        following = helper.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = helper.submit(next, iterator, end)
            yield item  # type: ignore[misc]  # the loop's condition excludes the sentinel
