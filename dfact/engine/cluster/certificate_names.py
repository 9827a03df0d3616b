"""Names on certificates: both ends of every connection of a cluster refuse a certificate that does not name its holder.

Dask admits every certificate of the cluster's authority. Here the certificate must also bear a name: ``dfact.tls-name``, if
that is set, else the address of the other end. Names are subject alternative names; a common name counts for nothing.
"""

import logging
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import dask
from distributed.security import Security

from dfact.errors import ClusterError
from dfact.internals.distributed import CommClosedError, TLSBackend, TLSConnector, TLSListener, get_address_host, registry

if TYPE_CHECKING:
    from distributed import Client

PRELOAD = "dfact.engine.cluster.preload"
logger = logging.getLogger("dfact.cluster")


def common_name() -> str | None:
    """Return the name that all certificates of the cluster bear; None if each names the address of its machine."""
    name = dask.config.get("dfact.tls-name", None)
    return str(name) if name else None


def bears_name(certificate: Mapping[str, Any], name: str) -> bool:
    """Return whether one of the certificate's alternative names is this host name or IP address."""
    names = certificate.get("subjectAltName", ())
    try:
        address = ip_address(name)
    except ValueError:
        return any(kind == "DNS" and text.casefold() == name.casefold() for kind, text in names)
    return any(kind == "IP Address" and ip_address(text.strip()) == address for kind, text in names)


def with_names(connection_args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection, changed so that the certificate of the process that answers must bear the name."""
    context = connection_args.get("ssl_context")
    if context is None:
        return connection_args
    context.check_hostname = True
    context.hostname_checks_common_name = False
    name = common_name()
    return {**connection_args, "server_hostname": name} if name else connection_args


class ClusterSecurity(Security):
    """Certificates of a driver. Takes the parameters of Dask's ``Security``, and checks the name on the scheduler's certificate.

    Examples
    --------
    >>> import dfact
    >>> security = dfact.ClusterSecurity(
    ...     tls_ca_file="ca.pem", tls_client_cert="cert.pem", tls_client_key="key.pem", require_encryption=True
    ... )
    >>> security.require_encryption
    True
    """

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """Return the arguments of the connections of a role.

        Parameters
        ----------
        role : str
            Role of the process, such as "client".

        Returns
        -------
        dict
            Arguments by name.
        """
        return with_names(super().get_connection_args(role))


class _Connector(TLSConnector):
    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Any:
        return await super().connect(address, deserialize, **with_names(connection_args))


class _Listener(TLSListener):
    async def on_connection(self, comm: Any, *arguments: Any, **options: Any) -> None:
        """Refuse a process whose certificate bears another name, before it can send anything."""
        expected = common_name() or get_address_host(comm.peer_address)
        if not bears_name(comm.extra_info["peercert"], expected):
            logger.warning("refused %s: its certificate does not name %s", comm.peer_address, expected)
            comm.abort()
            raise CommClosedError(f"the certificate does not name {expected}")
        await super().on_connection(comm, *arguments, **options)


class _Backend(TLSBackend):
    def get_connector(self) -> _Connector:
        return _Connector()

    def get_listener(self, loc: str, handle_comm: Any, deserialize: bool, **connection_args: Any) -> _Listener:
        return _Listener(loc, handle_comm, deserialize, **connection_args)


def check_names() -> None:
    """Check names on all later TLS connections of this process, those that it opens and those that it accepts."""
    registry.backends["tls"] = _Backend()


def checks_names() -> bool:
    """Return whether this process checks names on the connections that it accepts."""
    return isinstance(registry.get_backend("tls"), _Backend)


def require_names_checked(client: "Client") -> None:
    """Raise ClusterError if the scheduler, a worker or a nanny of an encrypted cluster does not check names."""
    from dfact.data.sources.dask import worker_infos  # not needed by the processes that preload this module

    workers = worker_infos(client)
    nannies = [address for address, worker in workers.items() if worker.get("nanny")]
    try:
        checked = {"the scheduler": client.run_on_scheduler(checks_names)}
    except ImportError as error:
        raise _unknown_dfact(error) from error
    # A worker that is lost meanwhile returns an error, and has nothing to check any more.
    answers = {f"the worker {address}": found for address, found in client.run(checks_names, on_error="return").items()}
    if nannies:
        found = client.run(checks_names, workers=nannies, nanny=True, on_error="return")
        answers |= {f"the nanny of the worker {address}": value for address, value in found.items()}
    for process, value in answers.items():
        if isinstance(value, ImportError):
            raise _unknown_dfact(value) from value
        if isinstance(value, OSError):
            continue
        if isinstance(value, Exception):
            raise value
        checked[process] = value
    if unchecked := [process for process, found in checked.items() if not found]:
        raise ClusterError(
            f"{unchecked[0]} does not check names on certificates, expected that all {len(checked)} processes do; "
            f"start each with --preload {PRELOAD} (dask worker also needs --preload-nanny {PRELOAD})"
        )


def _unknown_dfact(error: ImportError) -> ClusterError:
    return ClusterError(f"a process of the cluster cannot import dfact ({error}); install dfact on all its machines")
