"""A signal to an adaptive cluster that a fit could use more workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

_RESOURCE = "dfact-demand"  # a resource that no worker has
_MAX_TASKS = 10_000  # the demand for some 1,000 threads


@contextmanager
def request_workers(client: "Client", threads: int) -> Iterator[None]:
    """Report demand for this number of threads to the scheduler.

    Whatever scales a cluster reads the scheduler's ``adaptive_target``, often from another process, so a driver cannot detect whether a
    cluster adapts. The target counts tasks that wait, and passes are not tasks. Therefore tasks that no worker can run are submitted, and
    released at the end. A cluster of a fixed size does nothing about them.
    """
    from dask import config
    from dask.utils import parse_timedelta

    duration = parse_timedelta(config.get("distributed.adaptive.target-duration"))
    each = parse_timedelta(config.get("distributed.scheduler.unknown-task-duration"))
    count = min(_MAX_TASKS, max(1, round(threads * duration / each)))
    waiting = client.map(_never, range(count), resources={_RESOURCE: 1}, pure=False, key="dfact-demand")
    try:
        yield
    finally:
        for task in waiting:
            task.release()


def _never(_: int) -> None:
    """Do nothing; no worker has the resource to run this."""
