"""Signal to an adaptive cluster that a fit could use more workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

_RESOURCE = "dfact-demand"  # no worker has it
_MOST = 2000  # tasks: the demand for some 200 threads


@contextmanager
def demand(client: "Client", threads: int) -> Iterator[None]:
    """Let a cluster that adapts to its load see work for so many threads.

    Adaptive scaling counts tasks that wait, and passes are none. So there are tasks that no worker can run, which are
    released at the end. A cluster of a fixed size gets none.
    """
    if getattr(client.cluster, "_adaptive", None) is None:
        yield
        return
    from dask import config
    from dask.utils import parse_timedelta

    duration = parse_timedelta(config.get("distributed.adaptive.target-duration"))
    each = parse_timedelta(config.get("distributed.scheduler.unknown-task-duration"))
    count = min(_MOST, max(1, round(threads * duration / each)))
    waiting = client.map(_never, range(count), resources={_RESOURCE: 1}, pure=False)
    try:
        yield
    finally:
        client.cancel(waiting)


def _never(number: int) -> None:
    """Run nowhere: no worker has the resource."""
