"""Messages over a network: gRPC with TLS, in which both ends show certificates. Sites connect outwards, only the coordinator listens.

There is one method, without generated code. Both directions of a call are a stream of frames, strings of up to a mebibyte that joined
are an encoded message. All messages may be sent again, so a site repeats a call whose connection breaks.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from os import PathLike
from pathlib import Path
from typing import Any, Self

from dfact.errors import DfactError, FederationError, ParameterError
from dfact.sites.contract import read_contract
from dfact.sites.coordinator import Hub, Run, SitesBase
from dfact.sites.description import Description
from dfact.sites.exchange import VoidCallError
from dfact.sites.messages import MAX_BYTES, Message
from dfact.sites.site import UnreachableError

logger = logging.getLogger("dfact.sites")
FRAME = 1 << 20
SITE_BYTES = 1 << 28
"""Default size of the largest message that a coordinator reads, with room for the sums of 5000 × 5000 pairs of items."""
_SERVICE, _METHOD = "dfact.Federation", "Call"
_SITE, _ACCEPTED = "dfact-site-bin", "dfact-accepted"  # keys of metadata
_CALLS = 4  # of one site at the same time: a step, a task, a sign of life, and one whose connection has broken unnoticed
_LINGER, _PRESENT = 10.0, 15.0
"""Seconds for which a closing server stays for its sites after a failure, and after which a site without a call is not waited for."""
_PAUSE, _MAX_PAUSE, _LIVED = 0.1, 5.0, 10.0
"""Seconds between two attempts, at first and at most, and seconds after which a call that breaks begins a new outage."""
_CLOSED = re.compile("socket closed|connection reset", re.IGNORECASE)
_PROBED, _PROBE = 5, 5.0  # attempts to connect until a refusal is looked for, and seconds to find it
_NO_COORDINATOR = "as by a proxy or a tunnel whose coordinator is down or refuses this site"
_TLS_FAILURE = re.compile("handshake failed|verification check failed|not in peer certificate", re.IGNORECASE)
"""Words of gRPC about a certificate of the coordinator; a release that has others lets the site wait, and prints them at the end."""
_MAX_TEXT = 2000  # characters of a refusal, which travels in a header
_OPTIONS = (
    ("grpc.keepalive_time_ms", 15_000),  # a dead peer is noticed after 25 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # of the same ping, where a proxy still takes it
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # a step waits for other sites without data, for any time
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", FRAME),
    ("grpc.max_metadata_size", 1 << 16),
    ("grpc.absolute_max_metadata_size", 1 << 16),
)
_SERVER_OPTIONS = (*_OPTIONS, ("grpc.so_reuseport", 0))  # else two coordinators share a port
_CLIENT_OPTIONS = (
    *_OPTIONS,
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class Security:
    """Files in PEM with which a site or a coordinator proves its name and checks its peer's.

    A coordinator's certificate has the host name or IP address to which the sites connect as a subject alternative name, a site's
    the name of the site as a DNS name.

    Parameters
    ----------
    authority : path
        Certificate of the authority that has signed the certificates of the other end.
    certificate : path
        Own certificate, followed by those of intermediate authorities.
    key : path
        Its private key without a passphrase. Other users of the machine may not read it.
    """

    authority: str | PathLike[str]
    certificate: str | PathLike[str]
    key: str | PathLike[str]

    @classmethod
    def of(cls, authority: Path | None, certificate: Path | None, key: Path | None) -> Security | None:
        """Return the files if all are given, None if none is; raise ParameterError if some are missing."""
        if authority is None and certificate is None and key is None:
            return None
        if authority is None or certificate is None or key is None:
            raise ParameterError("ca, cert and key are given in part, expected all three or none")
        return cls(authority, certificate, key)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the contents of the files; raise ParameterError if one cannot be used."""
        authority, certificate, key = (_read(name, path) for name, path in vars(self).items())
        if Path(self.key).stat().st_mode & 0o007:
            raise ParameterError(f"everyone on this machine may use the key {self.key}, expected a file of its owner: chmod 600 {self.key}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise ParameterError(f"the authority {self.authority} is not valid ({error}), expected certificates in PEM") from error
        try:
            context.load_cert_chain(self.certificate, self.key, password="")
        except ssl.SSLError as error:
            text = f"the certificate {self.certificate} and the key {self.key} are not valid ({error})"
            raise ParameterError(f"{text}, expected a certificate in PEM, and its key without a passphrase") from error
        return authority, certificate, key


def _read(name: str, path: str | PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ParameterError(f"the {name} {path} cannot be read ({error.strerror}), expected a file in PEM") from error


def _grpc() -> Any:
    try:
        import grpc
    except ImportError as error:
        raise DfactError("fits across sites need gRPC, which is not installed: pip install 'dfact[federated]'") from error
    return grpc


def _parse_address(address: str) -> tuple[str, bool]:
    """Return the host of an address, and whether it is this machine."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ParameterError(f"the address is {address!r}, expected HOST:PORT, such as coordinator.example.org:8790")
    try:
        return match[1], ip_address(match[1].strip("[]")).is_loopback
    except ValueError:
        return match[1], match[1] == "localhost"


def _files(address: str, security: Security | None, insecure: bool) -> tuple[bytes, bytes, bytes] | None:
    """Return the contents of the files of a connection; None if it is insecure, and may be."""
    _, local = _parse_address(address)
    if (security is None) != insecure:
        raise ParameterError("expected either the files of certificates (security), or insecure=True for a trial on one machine")
    if security is not None:
        return security.read()
    if not local:
        raise ParameterError(f"the address {address} is not of this machine alone: insecure=True is for 127.0.0.1 and the like")
    return None


def _split(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    return (bytes(view[start : start + FRAME]) for start in range(0, len(data), FRAME))


def _join(frames: Iterable[bytes], max_bytes: int) -> memoryview:
    """Join frames as they come: small ones need no more memory than large ones."""
    data = bytearray()
    for frame in frames:
        if len(data) + len(frame) > max_bytes:
            raise FederationError(f"a message has more than {max_bytes} bytes, the limit of its reader (max_bytes)")
        data += frame
    return memoryview(data).toreadonly()


class HubServer:
    """Serves a hub to the sites, each known by its certificate.

    Parameters
    ----------
    hub : Hub
        Answers the messages; closed with the server.
    address : str
        Host and port to listen at; port 0 is any free one.
    security : Security, optional
        Certificate of the coordinator, and the authority of the sites' certificates.
    insecure : bool
        Whether sites connect without certificates and are believed their names: on loopback addresses alone.
    max_bytes : int
        Size of the largest message that is read.
    """

    def __init__(
        self, hub: Hub, address: str, security: Security | None = None, *, insecure: bool = False, max_bytes: int = SITE_BYTES
    ) -> None:
        grpc = _grpc()
        self._hub, self._max_bytes = hub, max_bytes
        files, (host, _) = _files(address, security, insecure), _parse_address(address)
        self._certified = files is not None
        self._changed = threading.Condition()
        self._open = Counter[str]()
        """Calls of each site."""
        self._called: dict[str, float] = {}
        """Time of the last call of each site that has joined or asks for tasks: it is to be told when there are no more."""
        self._pool = ThreadPoolExecutor(_CALLS * len(hub.sites) + 4, "dfact-hub")
        self._server = grpc.server(self._pool, options=_SERVER_OPTIONS)
        method = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method}),))
        try:
            if files is None:
                port = self._server.add_insecure_port(address)
            else:
                authority, certificate, key = files
                credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            text = f"the coordinator cannot listen at {address}"
            raise FederationError(f"{text}: its port is taken, or the address is not of this machine") from error
        self.address = f"{host}:{port}"
        self._server.start()

    def close(self) -> None:
        """Close the hub, wait until the sites that are still there know it, and stop to listen.

        Sites that save the result of a run that has succeeded call meanwhile. They are waited for as long as the hub waits for a site.
        """
        self._hub.close()
        until = time.monotonic() + (self._hub.wait if self._hub.succeeded else _LINGER)
        with self._changed:
            while self._is_awaited() and (rest := until - time.monotonic()) > 0:
                self._changed.wait(min(rest, 1.0))
        self._server.stop(1).wait()
        self._pool.shutdown(wait=False)

    def _is_awaited(self) -> bool:
        """Return whether a site is still there that does not know yet that there are no more runs."""
        now = time.monotonic()
        return any(self._open[site] or now - called < _PRESENT for site, called in self._called.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Answer a call, on a thread of the pool."""
        code = _grpc().StatusCode
        try:
            site = self._site_of(context)
        except FederationError as error:
            context.abort(code.FAILED_PRECONDITION, str(error)[:_MAX_TEXT])
        with self._call_of(site) as free:
            if not free:
                context.abort(code.UNAVAILABLE, f"site {site} has {_CALLS} other calls")
            context.send_initial_metadata(((_ACCEPTED, "1"),))
            yield from self._answer(site, frames, context)

    def _site_of(self, context: Any) -> str:
        """Return the name that the certificate of a peer proves."""
        if self._certified:
            names = context.auth_context().get("peer_dns", ())  # of the subject alternative names
        else:
            names = [value for key, value in context.invocation_metadata() if key == _SITE]
        shown = [name.decode(errors="replace") for name in names]
        found = [site for site in self._hub.sites if site in shown]
        if len(found) != 1:
            raise FederationError(f"a connection proves the names {shown}, expected exactly one that is the name of a site")
        return found[0]

    @contextmanager
    def _call_of(self, site: str) -> Iterator[bool]:
        """Count a call of a site; yield False if it has too many, so that it does not take the threads of others."""
        with self._changed:
            self._open[site] += 1
            free = self._open[site] <= _CALLS
        try:
            yield free
        finally:
            with self._changed:
                self._open[site] -= 1
                if site in self._called:
                    self._called[site] = time.monotonic()

    def _answer(self, site: str, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        grpc = _grpc()
        try:
            message = Message.decode(_join(frames, self._max_bytes), self._max_bytes)
            if not context.is_active():  # the site has sent the message again, and that call counts
                return
            kind = message.fields.get("kind")
            if kind in ("join", "task"):
                with self._changed:
                    self._called[site] = time.monotonic()
            elif kind == "refused":
                self._forget(site)
            answer = self._hub.answer(site, message, context.is_active)
            data = answer.encode()
        except VoidCallError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))  # a site that still waits repeats it
        except FederationError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_MAX_TEXT])
        except grpc.RpcError:  # the site has ended the call, or its connection is broken
            return
        except Exception:
            logger.exception("a message of site %s could not be answered", site)
            context.abort(grpc.StatusCode.INTERNAL, "an error of the coordinator, which its log has")
        yield from _split(data)
        if answer.fields.get("kind") == "closed":
            self._forget(site)

    def _forget(self, site: str) -> None:
        """Do not wait for a site at the end, unless it asks for another task."""
        with self._changed:
            self._called.pop(site, None)
            self._changed.notify_all()


class _InterruptedError(Exception):
    """A call that may succeed if it is repeated."""

    def __init__(self, text: str, lived: bool) -> None:
        super().__init__(text)
        self.lived = lived
        """Whether the coordinator had been reached, for some time."""


class GrpcConnection:
    """A site's connection to the coordinator. Thread-safe.

    Parameters
    ----------
    address : str
        Host and port of the coordinator.
    security : Security, optional
        Certificate of the site, and the authority of the coordinator's.
    wait : float
        Seconds for which a call tries to reach the coordinator, at first and after each interruption.
    insecure : bool
        Whether to connect without certificates: on loopback addresses alone.
    name : str, optional
        Name of the site, if no certificate has it.
    server_name : str, optional
        Name in the coordinator's certificate, if it is not the host of the address.
    """

    def __init__(
        self,
        address: str,
        security: Security | None = None,
        wait: float = 600,
        *,
        insecure: bool = False,
        name: str = "",
        server_name: str | None = None,
    ) -> None:
        grpc = _grpc()
        self._address, self._patience, self._security, self._server_name = address, wait, security, server_name
        self._closed = threading.Event()
        self._gave_up = False
        """Whether the last call has waited in vain: further calls, as of a failure, try only once."""
        options: list[tuple[str, int | str]] = [*_CLIENT_OPTIONS]
        files, (_, local) = _files(address, security, insecure), _parse_address(address)
        if local:
            options.append(("grpc.enable_http_proxy", 0))
        self._metadata = [] if files is not None else [(_SITE, name.encode())]
        if files is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            authority, certificate, key = files
            if server_name is not None:
                options.append(("grpc.ssl_target_name_override", server_name))
            credentials = grpc.ssl_channel_credentials(authority, key, certificate)
            self._channel = grpc.secure_channel(address, credentials, options)
        self._method = self._channel.stream_stream(f"/{_SERVICE}/{_METHOD}")

    def close(self) -> None:
        """End the connection; calls that wait raise FederationError."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def call(self, message: Message) -> Message:
        """Send a message until it is answered, and return the answer.

        Raises FederationError with the coordinator's words if it refuses, and if one of the certificates is refused, and
        UnreachableError if the coordinator is not reached in time.
        """
        data, until, pause, failures = message.encode(), None, _PAUSE, 0
        while True:
            try:
                answer = self._attempt(data)
            except _InterruptedError as interruption:
                text, lived = str(interruption), interruption.lived
            else:
                return Message.decode(answer)
            now = time.monotonic()
            if until is None or lived:
                until, pause = now + (0 if self._gave_up else self._patience), _PAUSE
                logger.info("the coordinator at %s is not reached, trying again: %s", self._address, text)
            failures = failures + 1 if "failed to connect" in text else 0
            self._refuse_tls(text, failures)
            if now >= until:
                self._gave_up = True
                text += f", {_NO_COORDINATOR}" if _CLOSED.search(text) else ""
                raise UnreachableError(f"the coordinator at {self._address} was not reached within {self._patience:g} s: {text}")
            self._closed.wait(min(random.uniform(pause / 2, pause), until - now))
            pause = min(2 * pause, _MAX_PAUSE)

    def _refuse_tls(self, text: str, failures: int) -> None:
        """Raise FederationError if repeating is in vain."""
        if _TLS_FAILURE.search(text):
            raise FederationError(f"the coordinator at {self._address} does not show a certificate of this authority and name: {text}")
        if failures == 0 or failures % _PROBED:
            return
        if self._is_refused():
            why = "it expects one" if self._security is None else "its authority is another, or it has expired"
            raise FederationError(f"the coordinator at {self._address} does not accept the certificate of this site: {why}")
        if failures == _PROBED and _CLOSED.search(text):
            logger.warning("connections to %s are closed, %s; trying again for up to %g s", self._address, _NO_COORDINATOR, self._patience)

    def _is_refused(self) -> bool:
        """Return whether the coordinator shows its certificate, and then closes the connection: it accepts no other certificate.

        gRPC reports a closed connection in the same words before and after that, as of a proxy without its coordinator.
        """
        shown = False
        try:
            with self._probe() as encrypted:
                shown = True
                return not encrypted.recv(1)  # a coordinator that accepts the site sends the settings of HTTP/2
        except TimeoutError:
            return False
        except OSError:
            return shown

    @property
    def peer(self) -> str:
        """SHA-256 fingerprint of the certificate that the coordinator shows, whose authority and name have been checked."""
        if self._security is None:
            return f"{self._address}, without a certificate"
        try:
            with self._probe() as encrypted:
                return f"sha256:{hashlib.sha256(encrypted.getpeercert(binary_form=True) or b'').hexdigest()}"
        except OSError as error:  # a coordinator behind a proxy is reached by gRPC alone
            return f"{self._address}, whose certificate was not read ({type(error).__name__})"

    @contextmanager
    def _probe(self) -> Iterator[ssl.SSLSocket]:
        """Connect as gRPC does, to see the certificate of the coordinator."""
        (host, _, port), security = self._address.rpartition(":"), self._security
        host = host.strip("[]")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        if security is None:  # a server that speaks TLS expects a certificate, whoever it is
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        else:
            context.load_verify_locations(security.authority)
            context.load_cert_chain(security.certificate, security.key)
        with (
            socket.create_connection((host, int(port)), _PROBE) as plain,
            context.wrap_socket(plain, server_hostname=self._server_name or host) as encrypted,
        ):
            yield encrypted

    def _attempt(self, data: bytes) -> memoryview:
        """Send a message once, and return the answer."""
        grpc, started, call = _grpc(), time.monotonic(), None
        code = grpc.StatusCode
        try:
            call = self._method(_split(data), metadata=self._metadata)
            answer = _join(call, MAX_BYTES)
            self._gave_up = False
            return answer
        except ValueError as error:  # of gRPC, whose channel is closed
            raise FederationError(f"the connection to {self._address} is closed") from error
        except grpc.RpcError as error:
            status, text = error.code(), error.details() or ""
            if status in {code.UNAVAILABLE, code.CANCELLED, code.DEADLINE_EXCEEDED}:
                accepted = any(key == _ACCEPTED for key, _ in error.initial_metadata() or ())
                raise _InterruptedError(text, accepted and time.monotonic() - started > _LIVED) from error
            self._gave_up = False
            if status is code.FAILED_PRECONDITION:
                raise FederationError(text) from None
            raise FederationError(f"the coordinator at {self._address} answers {status.name}: {text}") from error
        finally:
            if call is not None:
                call.cancel()  # has no effect on one that has ended


class Sites(SitesBase):
    """Sites of a network, which connect to this coordinator.

    Parameters
    ----------
    names : sequence of str
        Names of the sites; each has a certificate with its name.
    address : str
        Host and port to listen at. Port 0 is any free one, which the attribute ``address`` then has.
    security : Security, optional
        Certificate of the coordinator, and the authority of the sites' certificates.
    insecure : bool
        Whether to do without certificates, for a trial on one machine: the address is then a loopback address.
    wait : float
        Seconds to wait for a site that has not joined yet, or is lost.
    contract : path or Description, optional
        Contract that the data of each site must keep, a file of ``dfact site contract``; by default the columns of the first site.
    max_bytes : int
        Size of the largest message that is accepted from a site.
    on_change : callable, optional
        Called with the names of the sites that are missing, whenever these change.

    Raises
    ------
    FederationError
        The address cannot be listened at.
    ParameterError
        Files of certificates that are not valid, or none for an address that other machines reach.

    Examples
    --------
    >>> import dfact
    >>> with dfact.Sites(["north", "south"], "127.0.0.1:0", insecure=True, wait=0.1) as sites:  # where sites join, there is a fit
    ...     sites.fit(dfact.ICQF(4))
    Traceback (most recent call last):
    dfact.errors.FederationError: north, south did not join within 0.1 s (--wait)
    """

    def __init__(
        self,
        names: Sequence[str],
        address: str = "0.0.0.0:8790",
        *,
        security: Security | None = None,
        insecure: bool = False,
        wait: float = 600,
        contract: Description | str | PathLike[str] | None = None,
        max_bytes: int = SITE_BYTES,
        on_change: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        if contract is not None and not isinstance(contract, Description):
            contract = read_contract(contract)
        self._hub = Hub(names, wait=wait, contract=contract)
        self._run = Run(self._hub, on_change)
        self._server = HubServer(self._hub, address, security, insecure=insecure, max_bytes=max_bytes)

    @property
    def address(self) -> str:
        """Host and port at which the coordinator listens."""
        return self._server.address

    def close(self) -> None:
        """End the programs of the sites, once they have saved their results.

        Save the models before: the sites delete the checkpoints of fits that have succeeded, without which not all models resume.
        """
        self._server.close()
