"""Preloaded by the scheduler, workers and nannies of a cluster: they check names on certificates, and workers leave gracefully on SIGTERM.

The import itself checks the names, as Dask calls ``dask_setup`` of a preloaded module only when the process already listens.
"""

from distributed import Scheduler, Worker
from distributed.nanny import Nanny

from dfact.engine.cluster.certificate_names import check_names
from dfact.engine.cluster.leaving import leave_on_sigterm

check_names()


async def dask_setup(service: Scheduler | Worker | Nanny) -> None:
    """Set up a process; Dask calls this on its event loop."""
    if isinstance(service, Worker):
        leave_on_sigterm(service)
