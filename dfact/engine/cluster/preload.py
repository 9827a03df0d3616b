"""Preloaded by the scheduler, workers and nannies of a cluster: names on certificates, warnings with a level, a worker's metrics.

Importing this makes the process check names on certificates, as Dask calls ``dask_setup`` of a preloaded module only when the process
already listens. A worker serves its metrics if ``dfact.metrics-port`` is set.
"""

from contextlib import ExitStack
from typing import Any

from dfact.engine.cluster.certificate_names import check_names
from dfact.monitoring import figures
from dfact.monitoring.logs import complete_logging
from dfact.monitoring.server import serving

check_names()
complete_logging()
_stack = ExitStack()


def dask_setup(server: Any) -> None:
    """Serve the metrics of a worker's process until the worker ends."""
    from distributed import Worker

    if isinstance(server, Worker):
        figures.put(memory_limit_bytes=server.identity()["memory_limit"] or float("inf"))
        _stack.enter_context(serving())


def dask_teardown(server: Any) -> None:
    """Stop serving."""
    del server
    _stack.close()
