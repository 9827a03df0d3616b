"""Clients of the clusters that executors name: checked, and for an address connected once and kept."""

import atexit
import os
import socket
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dfact.data.lazy_results import active_client
from dfact.engine.cluster.certificate_names import ClusterSecurity
from dfact.engine.cluster.connection import connect
from dfact.errors import ClusterError, DfactError, ParameterError

if TYPE_CHECKING:
    from distributed import Client

_connected: "dict[tuple[int, str], tuple[Client, ExitStack]]" = {}
"""Open clients by process and address, each with what closes it."""
_lock = Lock()


def usable_client(client: Any) -> Any:
    """Return the client.

    Raises
    ------
    ParameterError
        The client is asynchronous: its calls return coroutines, which a fit cannot await.
    ClusterError
        The client is closed.
    """
    if getattr(client, "asynchronous", False):
        raise ParameterError(
            "the Dask client is asynchronous (asynchronous=True, or used in its own event loop), expected a synchronous one; "
            "create it with Client(address), which works in a notebook too, or pass executor='threads'"
        )
    if getattr(client, "status", "running") in ("closing", "closed"):
        raise ClusterError(
            "the Dask client is closed, expected one that is connected to a scheduler; create another with Client(address), or run in this "
            "process: set_params(executor=None)"
        )
    return client


def _require_listener(address: str) -> None:
    """Raise DfactError at once where nothing listens, as a model finds it whose cluster has ended; Dask would try again for ten seconds."""
    found = urlsplit(address)
    if found.scheme not in ("tcp", "tls") or not found.hostname or not found.port:
        return
    try:
        socket.create_connection((found.hostname, found.port), timeout=10).close()
    except ConnectionRefusedError as error:
        raise DfactError(
            f"no Dask scheduler answers at {address}, where nothing listens; expected a running one: start it with dask scheduler, or run "
            "in this process: set_params(executor=None)"
        ) from error
    except OSError:  # Dask says why
        return


def client_at(address: str) -> Any:
    """Return a client of the scheduler at the address: the active one if it is connected there, else one that stays open.

    Raises DfactError if no scheduler answers there, or no worker joins in time.
    """
    active = active_client()
    if active is not None and active.scheduler is not None and active.scheduler.address == address:
        return usable_client(active)
    with _lock:
        key = os.getpid(), address
        if key in _connected and _connected[key][0].status == "running":
            return _connected[key][0]
        _require_listener(address)
        stack = ExitStack()
        client = stack.enter_context(connect(address, ClusterSecurity()))
        _connected[key] = client, stack
        atexit.register(stack.close)
    return client
