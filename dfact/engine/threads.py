"""One BLAS thread and no codec threads while passes run: the executor's threads are the only ones."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import scipy.linalg.cython_blas  # noqa: F401  # kernels call SciPy's BLAS: it must be loaded before its threads are limited
from numcodecs import blosc
from threadpoolctl import ThreadpoolController

from dfact.errors import DfactError

_lock = threading.Lock()
_blas_thread = ThreadPoolExecutor(1, thread_name_prefix="dfact-blas")
_users = 0
_restore: Callable[[], object] | None = None


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit BLAS to one thread in this process, and check that it holds.

    The limit belongs to the process, not to a thread: the first to enter sets it, the last to
    leave restores it. Our kernels are serial, so numba starts no threads of its own.
    """
    global _users, _restore  # noqa: PLW0603  # the state of the process is what is guarded
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
    """Set the limits; returns what restores them."""
    controller = ThreadpoolController()
    wide: list[str] = []
    # OpenBLAS obeys the thread alone that set its number first: ours, or, where somebody else did, hopefully this one.
    for run in (_in_the_setter, _here):
        limiter = run(partial(controller.limit, limits=1, user_api="blas"))
        wide = [pool["internal_api"] for pool in controller.select(user_api="blas").info() if pool["num_threads"] != 1]
        if not wide:
            break
        run(limiter.restore_original_limits)
    if wide:
        raise DfactError(f"{wide} cannot be limited to one thread; set OPENBLAS_NUM_THREADS=1 and MKL_NUM_THREADS=1 before Python starts")
    codecs, blosc.use_threads = blosc.use_threads, False

    def restore() -> None:
        run(limiter.restore_original_limits)
        blosc.use_threads = codecs

    return restore


def _in_the_setter(action: Callable[[], Any]) -> Any:
    return _blas_thread.submit(action).result()


def _renew() -> None:
    """A forked process has the executor, but not its thread."""
    global _blas_thread  # noqa: PLW0603  # a thread of the process, which the child lacks
    _blas_thread = ThreadPoolExecutor(1, thread_name_prefix="dfact-blas")


os.register_at_fork(after_in_child=_renew)


def _here(action: Callable[[], Any]) -> Any:
    return action()
