"""Reads of Zarr arrays by threads that read side by side.

Zarr runs all reads of a process on one event loop, in a separate thread, which also verifies checksums and copies chunks. Two threads that
read chunks of a few megabytes are therefore hardly faster than one. To avoid this, a thread that reads a single chunk from a local folder
runs the whole read itself, on its own event loop.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _InlineLoop(asyncio.SelectorEventLoop):
    """An event loop that calls in its own thread what others leave to a pool of threads: a read has nothing else to do meanwhile."""

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def read_entries(array: zarr.Array[Any], start: int, stop: int) -> NDArray[Any]:
    """Return entries start to stop along the first axis."""
    if not (_lies_in_one_chunk(array, start, stop) and isinstance(array.store, LocalStore) and _may_run_loop()):
        return np.asarray(array[start:stop])  # Zarr reads the chunks side by side, and those of an object store from one client
    with asyncio.Runner(loop_factory=_InlineLoop) as runner:
        return np.asarray(runner.run(array.async_array.getitem(slice(start, stop))))


def _lies_in_one_chunk(array: zarr.Array[Any], start: int, stop: int) -> bool:
    step = array.chunks[0]
    whole = all(chunk >= size for chunk, size in zip(array.chunks[1:], array.shape[1:], strict=True))
    return array.shards is None and whole and start // step == (stop - 1) // step


def _may_run_loop() -> bool:
    """Return whether this thread runs no event loop, and gets no signals, which an event loop may lose: these reach the main thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is not threading.main_thread()
    return False
