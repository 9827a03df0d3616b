"""The worker's side of leaving: a worker that is told to stop notifies its drivers, and ends once its shards are closed, or its time is up.

A worker is told to stop by SIGTERM, by a retirement, or by its nanny. All of them close the worker, and Dask waits for the
plugins of a worker that closes while it still answers calls. In this time, at most ``dfact.leave-timeout``, the driver moves the partitions
to other workers and closes the shard. A worker that no driver waits for ends at once. One whose time is up ends too, and counts as lost.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from distributed import Worker

TOPIC = "dfact-leaving"
"""The topic of the events by which drivers learn that a shard will close; an event has the ``key`` of the shard."""
_PLUGIN = "dfact-leaving"
_POLL_SECONDS, _ASK_SECONDS = 0.1, 1.0  # time between two looks at the shards, and between two questions to the scheduler
_ANSWER_SECONDS = 3.0  # time that the scheduler has to answer, before it is asked again


class LeavingShard(Protocol):
    """A shard of a worker that is leaving."""

    key: str
    closed: threading.Event

    async def close(self) -> dict[str, Any]:
        """Stop the shard, even in a pass, and close it."""
        ...


async def hand_over(worker: "Worker", shards: Sequence[LeavingShard]) -> None:
    """Delay the end of a worker until its shards are closed, at most for ``dfact.leave-timeout`` (25 s)."""
    from dask import config
    from dask.utils import parse_timedelta

    for shard in shards:
        notify_driver(worker, shard.key)
    end = time.monotonic() + float(parse_timedelta(config.get("dfact.leave-timeout", "25s")))
    while shards and time.monotonic() < end and await _is_expected(worker, [shard.key for shard in shards]):
        asked = time.monotonic()
        while shards and time.monotonic() < min(end, asked + _ASK_SECONDS):
            await asyncio.sleep(_POLL_SECONDS)
            shards = [shard for shard in shards if not shard.closed.is_set()]
    await asyncio.gather(*(shard.close() for shard in shards))


async def _is_expected(worker: "Worker", keys: Sequence[str]) -> bool:
    """Return whether a driver still waits for the tasks of these shards; it does not if it is lost, or gave the worker up."""
    try:
        states = await asyncio.wait_for(worker.scheduler.get_task_status(keys=list(keys)), _ANSWER_SECONDS)
    except TimeoutError:  # the scheduler is busy; the wait has an end of its own
        return True
    except (OSError, RuntimeError):  # the latter if the worker's connections are closed
        return False
    return any(state is not None for state in states.values())


def notify_driver(worker: "Worker", key: str) -> None:
    """Notify the driver of this shard that the worker is leaving."""
    worker.log_event(TOPIC, {"key": key})


def is_leaving(worker: "Worker") -> bool:
    """Return whether the worker has been told to stop."""
    return worker.status.name not in {"running", "paused"}


async def install_hand_over(worker: "Worker", find_shards: Callable[["Worker"], Sequence[LeavingShard]]) -> None:
    """Install the plugin that hands the shards over before the worker ends. Raises RuntimeError if the worker is already leaving."""
    from distributed import WorkerPlugin

    class HandOver(WorkerPlugin):
        async def teardown(self, worker: "Worker") -> None:
            await hand_over(worker, find_shards(worker))

    if is_leaving(worker):
        raise RuntimeError("the worker is about to end")
    if _PLUGIN not in worker.plugins:
        await worker.plugin_add(HandOver(), name=_PLUGIN)
    leave_on_sigterm(worker)


_with_handler: "WeakSet[Worker]" = WeakSet()
_ending: set[Any] = set()  # strong references: the event loop holds tasks weakly


def leave_on_sigterm(worker: "Worker") -> None:
    """Close the worker gracefully on SIGTERM, which the command ``dask worker --no-nanny`` takes for an order to end at once.

    This is called on the worker's event loop. A process whose handler is the system's keeps it: a nanny stops its process in another way,
    and a worker may live in a user's own process.
    """
    if (
        worker in _with_handler
        or threading.current_thread() is not threading.main_thread()
        or not callable(signal.getsignal(signal.SIGTERM))
    ):
        return
    _with_handler.add(worker)
    loop, begun = asyncio.get_running_loop(), threading.Event()

    def handle(*_: object) -> None:
        loop.call_soon_threadsafe(begin)

    def begin() -> None:
        if not begun.is_set():  # a batch system may send the signal twice
            begun.set()
            ending = asyncio.ensure_future(_leave(worker))
            _ending.add(ending)
            ending.add_done_callback(_ending.discard)

    signal.signal(signal.SIGTERM, handle)


async def _leave(worker: "Worker") -> None:
    with suppress(OSError):  # the scheduler may be lost
        await worker.close_gracefully(reason="SIGTERM")
    await worker.close(reason="SIGTERM")
