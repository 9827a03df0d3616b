"""Preloaded by the scheduler, workers and nannies of a cluster: names on certificates, logs, and what workers serve and how they leave.

Importing this makes the process check names on certificates, as Dask calls ``dask_setup`` of a preloaded module only when the process
already listens. A worker leaves gracefully on SIGTERM, and serves its metrics if ``dfact.metrics-port`` is set.
"""

from contextlib import ExitStack

from distributed import Scheduler, Worker
from distributed.nanny import Nanny

from dfact.engine.cluster.certificate_names import check_names
from dfact.engine.cluster.leaving import leave_on_sigterm
from dfact.monitoring import figures
from dfact.monitoring.logs import complete_logging
from dfact.monitoring.server import serving

check_names()
complete_logging()
_stack = ExitStack()


async def dask_setup(service: Scheduler | Worker | Nanny) -> None:
    """Set up a process; Dask calls this on its event loop."""
    if isinstance(service, Worker):
        leave_on_sigterm(service)
        figures.put(memory_limit_bytes=service.identity()["memory_limit"] or float("inf"))
        _stack.enter_context(serving())


def dask_teardown(service: Scheduler | Worker | Nanny) -> None:
    """Stop serving metrics."""
    del service
    _stack.close()
