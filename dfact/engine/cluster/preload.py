"""Preloaded by the scheduler, workers and nannies of a cluster: names on certificates, logs, and what workers serve and how they leave.

Importing this makes the process check names on certificates, as Dask calls ``dask_setup`` of a preloaded module only when the process
already listens. A worker leaves gracefully on SIGTERM, and serves its metrics if ``dfact.metrics-port`` is set.
"""

from contextlib import ExitStack

from distributed import Nanny, Scheduler, Worker

from dfact.engine.cluster.certificate_names import check_names
from dfact.engine.cluster.leaving import leave_on_sigterm
from dfact.internals.distributed import memory_limit
from dfact.monitoring import metrics
from dfact.monitoring.logs import configure_logging
from dfact.monitoring.metrics import serve_metrics

check_names()
configure_logging()
_stack = ExitStack()


async def dask_setup(service: Scheduler | Worker | Nanny) -> None:
    """Set up a process; Dask calls this on its event loop."""
    if isinstance(service, Worker):
        leave_on_sigterm(service)
        metrics.set_gauges(memory_limit_bytes=memory_limit(service) or float("inf"))
        _stack.enter_context(serve_metrics())


def dask_teardown(service: Scheduler | Worker | Nanny) -> None:
    """Stop serving metrics."""
    del service
    _stack.close()
