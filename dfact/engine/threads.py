"""One BLAS thread and no codec threads while passes run: the executor's threads are the only ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numcodecs import blosc
from threadpoolctl import ThreadpoolController

from dfact.errors import DfactError

_lock = threading.Lock()
_users = 0
_limiter: Any = None
_blosc_threads: bool | None = None


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit BLAS to one thread in this process, and check that it holds.

    The limit belongs to the process, not to a thread: the first to enter sets it, the last to
    leave restores it. Our kernels are serial, so numba starts no threads of its own.
    """
    global _users, _limiter, _blosc_threads  # noqa: PLW0603  # the state of the process is what is guarded
    with _lock:
        if _users == 0:
            controller = ThreadpoolController()
            _limiter = controller.limit(limits=1, user_api="blas")
            _blosc_threads, blosc.use_threads = blosc.use_threads, False
            wide = [pool["internal_api"] for pool in controller.select(user_api="blas").info() if pool["num_threads"] != 1]
            if wide:
                _limiter.restore_original_limits()
                raise DfactError(
                    f"{wide} cannot be limited to one thread; set OPENBLAS_NUM_THREADS=1 and MKL_NUM_THREADS=1 before Python starts"
                )
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limiter.restore_original_limits()
                blosc.use_threads = _blosc_threads
