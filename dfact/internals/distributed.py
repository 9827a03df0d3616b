"""Names of distributed besides its documented interface.

Attributes of classes are checked when this module is imported, those of a worker or a client when a session first uses it.
"""

from typing import Any

from dfact.internals.checks import require, require_attributes

_CLIENT = ("rpc.limit", "scheduler", "sync", "loop", "status")
_WORKER = (
    "handlers",
    "state.nthreads",
    "state.tasks",
    "rpc",
    "status.name",
    "data",
    "scheduler.who_has",
    "loop.asyncio_loop",
    "active_threads_lock",
    "active_threads",
    "metrics",
    "get_current_task",
    "memory_manager.memory_limit",
    "plugins",
    "plugin_add",
    "close_gracefully",
)

require(
    "distributed",
    "distributed.comm.registry:backends",
    "distributed.comm.registry:get_backend",
    "distributed.comm.addressing:get_address_host",
    "distributed.comm.core:CommClosedError",
    # Overridden to check names on certificates: under another name they would not be called.
    "distributed.comm.tcp:TLSListener.on_connection",
    "distributed.comm.tcp:TLSConnector.connect",
    "distributed.comm.tcp:TLSBackend.get_connector",
    "distributed.comm.tcp:TLSBackend.get_listener",
    "distributed.security:Security.get_connection_args",
    "distributed.protocol:to_serialize",
    "distributed.protocol.pickle:dumps",
    "distributed.protocol.pickle:loads",
    "distributed.utils_comm:gather_from_workers",
    "distributed.client:CancelledError",
    "distributed.client:ClosedClientError",
    "distributed.scheduler:Scheduler.proxy",
    "distributed.scheduler:Scheduler.get_ncores",
    "distributed.scheduler:Scheduler.get_task_status",
    "distributed.scheduler:WorkerState.metrics",
    "distributed.scheduler:WorkerState.last_seen",
)

from distributed.client import CancelledError, ClosedClientError  # noqa: E402  # after the check
from distributed.comm import registry  # noqa: E402
from distributed.comm.addressing import get_address_host  # noqa: E402
from distributed.comm.core import CommClosedError  # noqa: E402
from distributed.comm.tcp import TLSBackend, TLSConnector, TLSListener  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402
from distributed.protocol.pickle import dumps, loads  # noqa: E402
from distributed.utils_comm import gather_from_workers  # noqa: E402

__all__ = [
    "CancelledError",
    "ClosedClientError",
    "CommClosedError",
    "TLSBackend",
    "TLSConnector",
    "TLSListener",
    "check_client",
    "check_worker",
    "dumps",
    "gather_from_workers",
    "get_address_host",
    "loads",
    "memory_limit",
    "registry",
    "to_serialize",
]


def check_client(client: Any) -> None:
    """Raise DependencyError unless a client has the attributes that a session uses."""
    require_attributes("distributed", client, *_CLIENT)


def check_worker(worker: Any) -> None:
    """Raise DependencyError unless a worker has the attributes that a shard uses."""
    require_attributes("distributed", worker, *_WORKER)


def memory_limit(worker: Any) -> int | None:
    """Return the memory limit of a worker in bytes; None without one."""
    limit: int | None = worker.memory_manager.memory_limit
    return limit or None
