"""Sites over gRPC: the bits of the pooled fit, also across broken connections; peers without the right certificate are refused."""

import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfact
from dfact.engine.executors import InlineExecutor
from dfact.errors import DfactError, FederationError, ParameterError
from dfact.sites.coordinator import Hub
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.site import Site, UnreachableError
from dfact.sites.transport import FRAME, GrpcConnection, HubServer, Security, Sites
from tests.sites.certificates import issue
from tests.tls.authority import Authority

grpc = pytest.importorskip("grpc", reason="gRPC is not installed: pip install 'dfact[federated]'")
LOCAL = "127.0.0.1:0"
NAMES = ("east", "north", "south")
ALIVE = Message({"kind": "alive"})


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfact.sites.transport._PAUSE", 0.01)
    monkeypatch.setattr("dfact.sites.transport._PROBED", 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Security]:
    """The security of the coordinator, of sites, and of strangers."""
    folder, own, foreign = tmp_path_factory.mktemp("certificates"), Authority.make(), Authority.make()
    found = {name: issue(own, folder / name, name, "other.example") for name in (*NAMES, "west")}
    return found | {
        "coordinator": issue(own, folder / "coordinator", "127.0.0.1"),
        "two names": issue(own, folder / "two", "east", "north"),
        "foreign": issue(foreign, folder / "foreign", "north", trusted=own.pem),
        "expired": issue(own, folder / "expired", "north", from_day=-9),
        "other coordinator": issue(own, folder / "other", "coordinator.example"),
        "foreign coordinator": issue(foreign, folder / "impostor", "127.0.0.1", trusted=own.pem),
    }


def data_of_sites() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {name: rng.integers(0, 4, (60 + 9 * number, 40)).astype(np.float32) for number, name in enumerate(NAMES)}


def fit_over(address: str, sites: Sites, security: Callable[[str], dict[str, Any]]) -> Any:
    """Fit with one thread for each site, whose connections lead to ``address``."""
    failures: list[Exception] = []

    def serve(name: str, data: Any) -> None:
        with GrpcConnection(address, **security(name)) as connection:
            policy = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)
            try:
                Site(name, dfact.data.coerce.as_dataset(data), connection, policy=policy, executor=InlineExecutor()).serve(lambda *_: None)
            except DfactError as error:
                failures.append(error)

    threads = [threading.Thread(target=serve, args=each, daemon=True) for each in data_of_sites().items()]
    for thread in threads:
        thread.start()
    with sites:
        found = sites.fit(dfact.ICQF(3, max_iter=5))
    for thread in threads:
        thread.join()
    assert failures == []
    return found


def assert_bits_of_the_pooled_fit(found: Any) -> None:
    pooled = dfact.ICQF(3, max_iter=5, executor="inline").fit(dfact.concatenate(list(data_of_sites().values())))
    np.testing.assert_array_equal(found.components_, pooled.components_)
    np.testing.assert_array_equal(found.objective_history_, pooled.objective_history_)


class Forwarder:
    """A TCP forwarder that cuts its first connections after some bytes each, and then none."""

    def __init__(self, address: str, limits: Iterable[int]) -> None:
        host, port = address.split(":")
        self._target, self._limits = (host, int(port)), list(limits)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                ends = self._listener.accept()[0], socket.create_connection(self._target)
                left = [self._limits.pop(0) if self._limits else 1 << 60]
                for source, target in (ends, ends[::-1]):
                    threading.Thread(target=self._forward, args=(source, target, left), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        with suppress(OSError):  # the other direction has cut both
            while data := source.recv(4096):
                left[0] -= len(data)
                target.sendall(data[: len(data) + min(left[0], 0)])
                if left[0] <= 0:
                    self.cuts += 1
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_fit_over_tls_has_the_bits_of_the_pooled_fit(files: dict[str, Security]) -> None:
    sites = Sites(NAMES, LOCAL, security=files["coordinator"], wait=60)
    assert_bits_of_the_pooled_fit(fit_over(sites.address, sites, lambda name: {"security": files[name]}))


@pytest.mark.faults
def test_the_bits_stay_when_connections_break() -> None:
    sites = Sites(NAMES, LOCAL, insecure=True, wait=60)
    limits = [300, 5_000, 9_000, 14_000, 20_000, 30_000]
    with closing(Forwarder(sites.address, limits)) as forwarder:
        found = fit_over(forwarder.address, sites, lambda name: {"insecure": True, "name": name})
    assert forwarder.cuts >= len(limits)
    assert_bits_of_the_pooled_fit(found)


def test_a_coordinator_waits_until_its_sites_have_saved_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure it would not wait for longer than some seconds."""
    monkeypatch.setattr("dfact.sites.transport._LINGER", 0)
    ends: list[bool] = []
    sites = Sites(["north"], LOCAL, insecure=True, wait=60)

    def save(*_: Any) -> None:
        assert closing_begun.wait(60)

    def serve() -> None:
        with GrpcConnection(sites.address, insecure=True, name="north", wait=5) as connection:
            data = dfact.data.coerce.as_dataset(data_of_sites()["north"])
            site = Site(
                "north",
                data,
                connection,
                policy=Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9),
                executor=InlineExecutor(),
            )
            ends.append(site.serve(save))

    close, closing_begun = Hub.close, threading.Event()
    monkeypatch.setattr(Hub, "close", lambda hub: (close(hub), closing_begun.set()))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with sites:
        sites.fit(dfact.ICQF(2, max_iter=2))
    thread.join()
    assert ends == [True]


def test_a_site_that_does_not_join_ends_the_fit_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfact.sites.transport._LINGER", 1e6)  # nobody is waited for in vain
    ends: list[str] = []

    def serve(name: str) -> None:
        data = dfact.data.coerce.as_dataset(data_of_sites()[name])
        policy = Policy(extremes=True, min_rows=50 if name == "north" else 10**6)
        with GrpcConnection(sites.address, insecure=True, name=name) as connection:
            try:
                Site(name, data, connection, policy=policy, executor=InlineExecutor()).serve(lambda *_: None)
                ends.append(name)
            except DfactError as error:
                ends.append(f"{name}: {error}")

    threads = [threading.Thread(target=serve, args=(name,), daemon=True) for name in ("north", "south")]

    def start_next(missing: Sequence[str]) -> None:
        threads[2 - len(missing)].start()

    sites = Sites(("north", "south"), LOCAL, insecure=True, wait=60, on_change=start_next)
    with sites, pytest.raises(FederationError, match=r"site south does not join: .*1000000") as failed:
        sites.fit(dfact.ICQF(2))
    for thread in threads:
        thread.join()
    told = str(failed.value).removeprefix("site south does not join: ")
    assert sorted(ends) == ["north", f"south: {told}: it has 78"]  # the number of rows stays at the site


@pytest.fixture(scope="module")
def server(files: dict[str, Security]) -> Iterator[HubServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dfact.sites.transport._LINGER", 0)
        with HubServer(Hub(NAMES, wait=60, contract=None), LOCAL, files["coordinator"], max_bytes=FRAME + 2000) as server:
            yield server


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        ("foreign", "does not accept the certificate of this site"),
        ("expired", "does not accept the certificate of this site"),
        ("west", "proves the names ['west', 'other.example'], expected exactly one"),
        ("two names", "proves the names ['east', 'north'], expected exactly one"),
    ],
)
def test_a_wrong_certificate_is_refused_and_others_are_answered(
    holder: str, words: str, server: HubServer, files: dict[str, Security]
) -> None:
    with GrpcConnection(server.address, files[holder], 30) as stranger, GrpcConnection(server.address, files["north"]) as site:
        with pytest.raises(FederationError, match=re.escape(words)):
            stranger.call(ALIVE)
        assert site.call(ALIVE).fields == ALIVE.fields


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_peer_without_certificate_is_not_answered(encrypted: bool, server: HubServer, files: dict[str, Security]) -> None:
    credentials = grpc.ssl_channel_credentials(files["north"].read()[0])
    open_channel = grpc.secure_channel if encrypted else lambda address, _: grpc.insecure_channel(address)
    with open_channel(server.address, credentials) as channel, pytest.raises(grpc.RpcError) as refused:
        list(channel.stream_stream("/dfact.Federation/Call")(iter([ALIVE.encode()]), metadata=[("dfact-site-bin", b"north")]))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    site = GrpcConnection(server.address, wait=30, insecure=True, name="north")
    with site, pytest.raises(FederationError, match="does not accept the certificate of this site: it expects one"):
        site.call(ALIVE)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_proxy_without_its_coordinator_is_not_taken_for_a_refusal(
    encrypted: bool, server: HubServer, files: dict[str, Security], caplog: pytest.LogCaptureFixture
) -> None:
    """It accepts connections and closes them, as a coordinator does that accepts no certificate."""
    plain = HubServer(Hub(NAMES, wait=60, contract=None), LOCAL, insecure=True)
    settings: Any = {"security": files["north"]} if encrypted else {"insecure": True, "name": "north"}
    with plain, closing(Forwarder((server if encrypted else plain).address, [1] * 3)) as proxy:
        with GrpcConnection(proxy.address, **settings) as site:
            assert site.call(ALIVE).fields == ALIVE.fields
        assert "are closed, as by a proxy or a tunnel whose coordinator is down" in caplog.text
    with (
        closing(Forwarder(server.address, [1] * 99)) as proxy,
        GrpcConnection(proxy.address, wait=0.1, **settings) as site,
        pytest.raises(UnreachableError, match=r"not reached within 0.1 s: .*, as by a proxy or a tunnel whose coordinator is down"),
    ):
        site.call(ALIVE)


@pytest.mark.parametrize("holder", ["other coordinator", "foreign coordinator"])
def test_sites_refuse_a_coordinator_with_another_certificate(holder: str, files: dict[str, Security]) -> None:
    with HubServer(Hub(NAMES, wait=60, contract=None), LOCAL, files[holder]) as impostor:
        site = GrpcConnection(impostor.address, files["north"], 30)
        with site, pytest.raises(FederationError, match="does not show a certificate of this authority and name"):
            site.call(ALIVE)


def test_the_coordinators_name_may_differ_from_its_host(files: dict[str, Security]) -> None:
    server = HubServer(Hub(NAMES, wait=60, contract=None), LOCAL, files["other coordinator"])
    with server, GrpcConnection(server.address, files["north"], server_name="coordinator.example") as site:
        assert site.call(ALIVE).fields == ALIVE.fields


@pytest.fixture
def reserved() -> Iterator[str]:
    """An address at which nobody listens, and a server may."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def test_a_coordinator_that_never_comes_ends_the_wait(reserved: str) -> None:
    with GrpcConnection(reserved, wait=0.2, insecure=True, name="north") as site:
        for _ in range(2):
            with pytest.raises(FederationError, match=rf"coordinator at {reserved} was not reached within 0.2 s: .*refused"):
                site.call(ALIVE)


def test_a_site_may_come_before_the_coordinator(reserved: str, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Message] = []
    caplog.set_level("INFO", "dfact.sites")
    with GrpcConnection(reserved, insecure=True, name="north") as site:
        thread = threading.Thread(target=lambda: answers.append(site.call(ALIVE)))
        thread.start()
        while "is not reached, trying again" not in caplog.text:
            thread.join(0.01)
        with HubServer(Hub(NAMES, wait=60, contract=None), reserved, insecure=True):
            thread.join()
    assert answers[0].fields == ALIVE.fields


def frames_of(message: Message, size: int) -> list[bytes]:
    data = message.encode()
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize(
    ("frames", "code", "words"),
    [
        ([bytes(FRAME)] * 3, "FAILED_PRECONDITION", f"a message has more than {FRAME + 2000} bytes"),
        ([bytes(FRAME + 1)], "RESOURCE_EXHAUSTED", "larger than max"),
        ([], "FAILED_PRECONDITION", "a message of 0 bytes"),
        ([b"\xff" * 99], "FAILED_PRECONDITION", "expected one within the message"),
        (frames_of(ALIVE, 4)[:-1], "FAILED_PRECONDITION", "expected one within the message"),
        (frames_of(Message({"kind": 7}), 1), "FAILED_PRECONDITION", "a message has the kind 7"),
        (frames_of(Message({"kind": ["join"]}), 9), "FAILED_PRECONDITION", "a message has the kind ['join']"),
        (frames_of(Message({"kind": "join", "environment": {}, "description": {}}), 9), "FAILED_PRECONDITION", "versions"),
    ],
    ids=["large", "large frame", "empty", "noise", "cut", "unknown", "list", "other versions"],
)
def test_hostile_messages_are_refused_and_both_ends_live(
    frames: Sequence[bytes], code: str, words: str, server: HubServer, files: dict[str, Security]
) -> None:
    authority, certificate, key = files["north"].read()
    with grpc.secure_channel(server.address, grpc.ssl_channel_credentials(authority, key, certificate)) as channel:
        method = channel.stream_stream("/dfact.Federation/Call")
        with pytest.raises(grpc.RpcError) as refused:
            list(method(iter(frames)))
        assert refused.value.code().name == code
        assert words in refused.value.details()
        answer = b"".join(method(iter(frames_of(ALIVE, 3))))
    assert Message.decode(answer).fields == ALIVE.fields


class Echo:
    """A hub that answers with the message, refuses, fails, or waits."""

    sites = NAMES
    succeeded = False

    def __init__(self) -> None:
        self.waiting, self.released = threading.Semaphore(0), threading.Event()

    def answer(self, site: str, message: Message, alive: Any = None) -> Message:
        match message.fields["kind"]:
            case "refuse":
                raise FederationError(message.fields["text"])
            case "fail":
                raise ZeroDivisionError("secret")
            case "wait":
                self.waiting.release()
                self.released.wait()
        return message

    def close(self) -> None:
        self.released.set()


@pytest.fixture
def echo() -> Iterator[tuple[Echo, str]]:
    hub: Any = Echo()
    with HubServer(hub, LOCAL, insecure=True) as server:
        yield hub, server.address


def test_words_and_errors_of_the_coordinator(echo: tuple[Echo, str], caplog: pytest.LogCaptureFixture) -> None:
    text = "«ж»\n" * 500  # as many letters as a site may be told, of two bytes
    with GrpcConnection(echo[1], insecure=True, name="north") as site:
        with pytest.raises(FederationError) as refused:
            site.call(Message({"kind": "refuse", "text": text}))
        assert str(refused.value) == text
        with pytest.raises(FederationError, match="INTERNAL: an error of the coordinator") as failed:
            site.call(Message({"kind": "fail"}))
        assert "secret" not in str(failed.value)
        assert "secret" in caplog.text
        array = np.random.default_rng(0).normal(size=FRAME // 3)  # several frames
        answer = site.call(Message({"kind": "echo"}, [array]))
    np.testing.assert_array_equal(answer.arrays[0], array)


def test_calls_of_one_site_leave_room_for_others(echo: tuple[Echo, str]) -> None:
    hub, address = echo
    with (
        GrpcConnection(address, wait=0.3, insecure=True, name="north") as site,
        GrpcConnection(address, insecure=True, name="east") as other,
    ):
        threads = [threading.Thread(target=lambda: site.call(Message({"kind": "wait"}))) for _ in range(4)]
        for thread in threads:
            thread.start()
            hub.waiting.acquire()
        with pytest.raises(FederationError, match="site north has 4 other calls"):
            site.call(ALIVE)
        assert other.call(ALIVE).fields == ALIVE.fields
        hub.released.set()
        for thread in threads:
            thread.join()
        assert site.call(ALIVE).fields == ALIVE.fields


def test_closing_a_connection_ends_its_calls(echo: tuple[Echo, str]) -> None:
    hub, address = echo
    errors: list[str] = []

    def wait() -> None:
        try:
            site.call(Message({"kind": "wait"}))
        except FederationError as error:
            errors.append(str(error))

    with GrpcConnection(address, insecure=True, name="north") as site:
        thread = threading.Thread(target=wait)
        thread.start()
        hub.waiting.acquire()
    thread.join()
    assert errors == [f"the connection to {address} is closed"]


def test_insecure_connections_stay_on_one_machine(files: dict[str, Security]) -> None:
    hub = Hub(NAMES, wait=60, contract=None)
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:8790", "coordinator.example:8790"):
        with pytest.raises(ParameterError, match="is not of this machine alone"):
            HubServer(hub, address, insecure=True)
        with pytest.raises(ParameterError, match="is not of this machine alone"):
            GrpcConnection(address, insecure=True, name="north")
    for settings in ({}, {"security": files["north"], "insecure": True}):
        with pytest.raises(ParameterError, match="either the files of certificates"):
            HubServer(hub, LOCAL, **settings)
    for address in ("127.0.0.1", "unix:/tmp/socket", "127.0.0.1:99999", "ipv4:127.0.0.1:80", ":8790"):
        with pytest.raises(ParameterError, match="expected HOST:PORT"):
            HubServer(hub, address, insecure=True)


@pytest.mark.parametrize("given", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)])
def test_certificates_in_part_are_refused(given: tuple[int, int, int]) -> None:
    path = Path("file.pem")
    with pytest.raises(ParameterError, match="ca, cert and key are given in part, expected all three or none"):
        Security.of(*(path if each else None for each in given))
    assert Security.of(path, path, path) == Security(path, path, path)
    assert Security.of(None, None, None) is None


def test_two_coordinators_do_not_share_a_port(server: HubServer, files: dict[str, Security]) -> None:
    with pytest.raises(FederationError, match="its port is taken"):
        Sites(NAMES, server.address, security=files["coordinator"])


def test_unusable_files_are_refused(files: dict[str, Security], tmp_path: Path) -> None:
    north, south = files["north"], files["south"]
    (noise := tmp_path / "noise.pem").write_text("no certificate")
    (shared := tmp_path / "shared.pem").write_bytes(Path(north.key).read_bytes())
    shared.chmod(0o604)
    for security, words in (
        (Security(tmp_path / "none.pem", north.certificate, north.key), r"the authority \S*none.pem cannot be read \(No such file"),
        (Security(noise, north.certificate, north.key), "expected certificates in PEM"),
        (Security(north.authority, noise, north.key), "expected a certificate in PEM, and its key"),
        (Security(north.authority, north.certificate, south.key), "expected a certificate in PEM, and its key"),
        (Security(north.authority, north.certificate, shared), "everyone on this machine may use the key"),
    ):
        with pytest.raises(ParameterError, match=words):
            security.read()
