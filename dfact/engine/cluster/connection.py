"""The driver's client of a running Dask cluster, and those that executors name: checked, and for an address connected once and kept."""

import asyncio
import atexit
import logging
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from ssl import SSLCertVerificationError
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dfact.data.lazy_results import active_client
from dfact.data.sources.dask import worker_infos
from dfact.engine.cluster.certificate_names import ClusterSecurity
from dfact.engine.cluster.watchdog import cluster_errors
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


logger = logging.getLogger("dfact.cluster")
_CONNECT_SECONDS = 10


@contextmanager
def connect(address: str, security: "ClusterSecurity | None" = None) -> Iterator["Client"]:
    """Connect to the scheduler at ``address`` and yield a client once the expected workers have joined.

    If the cluster is encrypted, all its processes must check names on certificates.
    ``dask.config`` sets their number, ``dfact.expected-workers`` (1), and the limit of the wait, ``dfact.worker-timeout`` (60 s).

    Parameters
    ----------
    address : str
        Address of the scheduler, such as ``tcp://10.0.0.1:8786``, or ``tls://…`` if the cluster is encrypted.
    security : ClusterSecurity, optional
        Certificates of this process, by default from Dask's configuration.

    Returns
    -------
    context manager
        Its value is the ``distributed.Client``.

    Raises
    ------
    DfactError
        No scheduler answers, or too few workers join in time.
    ClusterError
        A process of an encrypted cluster does not check names, or the cluster is lost while it is used.

    Examples
    --------
    >>> import dfact
    >>> from distributed import LocalCluster
    >>> with LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0") as cluster:
    ...     with dfact.connect(cluster.scheduler_address) as client:
    ...         print(len(client.scheduler_info()["workers"]))
    1
    """
    import dask
    from dask.utils import parse_timedelta
    from distributed import Client

    from dfact.engine.cluster.certificate_names import ClusterSecurity, require_names_checked

    security = security or ClusterSecurity()
    # A batch job expects all its workers, as the memory plan is made for all of them.
    expected = int(dask.config.get("dfact.expected-workers", 1))
    timeout = float(parse_timedelta(dask.config.get("dfact.worker-timeout", "60s")))
    try:
        with ThreadPoolExecutor(1) as pool:  # this thread may run an event loop already, as those of notebooks do
            pool.submit(asyncio.run, probe_scheduler(address, security)).result()
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # TLS raises the last two
        raise DfactError(f"no Dask scheduler answers at {address} ({_reason(error)}); {_remedy(address)}") from error
    with _closing_silently(Client(address, set_as_default=False, security=security)) as client:
        _wait_for_workers(client, address, expected, timeout)
        with cluster_errors():
            if address.startswith("tls://"):
                require_names_checked(client)
            yield client


def _wait_for_workers(client: "Client", address: str, expected: int, seconds: float) -> None:
    """Wait for the expected workers, and log what the wait is for."""
    deadline, joined = time.monotonic() + seconds, -1
    while (count := _n_running(client)) < expected:
        if count > joined:
            logger.info(
                "%d of %d workers have joined; waiting for the others, at most %g s in total (dfact.expected-workers)",
                count,
                expected,
                seconds,
            )
            joined = count
        try:  # Dask would wait for ever without a time
            client.wait_for_workers(count + 1, timeout=max(deadline - time.monotonic(), 0.1))
        except TimeoutError as error:
            found = f"{_n_running(client)} of {expected}" if expected > 1 else "no"
            fewer = "; to start the fit with fewer, lower dfact.expected-workers" if expected > 1 else ""
            raise DfactError(
                f"the Dask cluster at {address} has {found} workers after {seconds:g} s; start some with: dask worker {address}{fewer}"
            ) from error


def _n_running(client: "Client") -> int:
    return sum(info["status"] == "running" for info in worker_infos(client).values())


async def probe_scheduler(address: str, security: "ClusterSecurity") -> None:
    """Perform Dask's handshake with the scheduler, as a client that fails in it would remain and delay the exit."""
    from distributed.comm import connect as open_comm

    comm = await open_comm(address, timeout=_CONNECT_SECONDS, **security.get_connection_args("client"))
    try:
        # A scheduler refuses a certificate after the handshake, so only a reply shows that it was accepted.
        await comm.write({"op": "identity", "n_workers": 0, "reply": True})
        await asyncio.wait_for(comm.read(), _CONNECT_SECONDS)
    finally:
        comm.abort()


@contextmanager
def _closing_silently(client: "Client") -> Iterator["Client"]:
    """Yield the client, and close it without the tracebacks of its pending operations, which its thread logs if it has lost the cluster."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("asyncio", "distributed.client"))}
    try:
        with client:
            try:
                yield client
            finally:
                for logger in levels:
                    logger.setLevel(logging.CRITICAL)
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Return what is wrong with a certificate, which Dask leaves to the cause of its error, else the error's text."""
    cause = error.__cause__
    if isinstance(cause, SSLCertVerificationError):
        return f"TLS certificate does not match: {cause.verify_message}"
    return str(error) or type(error).__name__


def _remedy(address: str) -> str:
    if address.startswith("tls://"):
        return (
            "expected one that uses TLS and certificates of the same authority as yours (--tls-ca-file, --tls-cert, --tls-key) that are "
            "valid and name the cluster (dfact.tls-name) or the address of their machine"
        )
    return "expected an address such as tcp://10.0.0.1:8786, or tls://… of one that uses TLS; start one with: dask scheduler"
