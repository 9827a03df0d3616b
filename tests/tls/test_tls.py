"""A cluster that only speaks with those who have a certificate of its authority, set up by the commands of the guide."""

import gc
import os
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

import dfact
from dfact.cli.main import main
from dfact.data.sources.dask import worker_infos
from dfact.engine.cluster.certificate_names import ClusterSecurity
from tests.conftest import free_port, planted_answers
from tests.documentation.pages import section
from tests.tls.authority import Authority, strangers
from tests.tls.connections import dasks_security, listeners, refusal, refusals

NAME = "our-cluster"
ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--tls-ca-file", "--tls-cert", "--tls-key")


SHELL, PYTHON = (
    "\n".join(block.text for block in section("clusters: Encrypt a cluster") if block.kind == kind) for kind in ("sh", "python")
)


def documented() -> list[str]:
    """Return the commands of the guide's section."""
    return SHELL.replace("\\\n", " ").splitlines()


def exported() -> dict[str, str]:
    """Return the variables that the guide exports."""
    return dict(line.removeprefix("export ").split("=", 1) for line in documented() if line.startswith("export "))


def certificates(folder: Path) -> Path:
    folder.mkdir()
    for command in documented()[:3]:
        subprocess.run(shlex.split(command), cwd=folder, check=True, capture_output=True)
    return folder


def listening(pid: int) -> list[str]:
    """The addresses at which a process and its children listen."""
    process = psutil.Process(pid)
    found = []
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it ended while we looked
            found += [c.laddr.ip for c in one.net_connections("inet") if c.status == "LISTEN"]
    assert found
    return found


class Secured:
    """A running cluster of the documented commands, on loopback."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.address = f"tls://127.0.0.1:{free_port()}"
        scheduler, worker, self.fit = (command.replace("10.0.0.1", "127.0.0.1") for command in documented()[-3:])
        self.processes = [self._start(scheduler, stack), self._start(worker, stack)]
        files = dict(zip(("tls_ca_file", "tls_client_cert", "tls_client_key"), options(folder)[1::2], strict=True))
        security = ClusterSecurity(require_encryption=True, **files)
        name = {"dfact.tls-name": NAME}
        with dask.config.set(name), Client(self.address, security=security, set_as_default=False, timeout=100) as client:
            client.wait_for_workers(1, timeout=100)

    def here(self, command: str) -> list[str]:
        return shlex.split(command.replace("8786", self.address.rpartition(":")[2]).replace("127.0.0.1:8787", "127.0.0.1:0"))

    def _start(self, command: str, stack: ExitStack) -> psutil.Process:
        environment = {**os.environ, **exported(), "PYTHONPATH": str(ROOT)}
        program = [sys.executable, "-m", "dask", *self.here(command)[1:]]
        log = stack.enter_context((self.folder / "log").open("a"))
        process = subprocess.Popen(program, cwd=self.folder, stdout=log, stderr=log, env=environment)
        stack.callback(self._stop, process)
        return psutil.Process(process.pid)

    def _stop(self, process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        process.wait(100)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = certificates(tmp_path_factory.mktemp("tls") / "ours")
    dfact.import_array(planted_answers(60, 8, 2, 0).astype(np.uint8), folder / "cohort.zarr")
    with ExitStack() as stack:
        yield Secured(folder, stack)


@pytest.fixture(autouse=True)
def _named() -> Iterator[None]:
    """The name of the guide's certificates."""
    with dask.config.set({"dfact.tls-name": NAME}):
        yield


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Some sockets of connections that are refused Dask leaves to the garbage collector, whose warning would befall any later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def options(folder: Path) -> list[str]:
    return [text for flag, name in zip(OPTIONS, ("ca", "cert", "key"), strict=True) for text in (flag, str(folder / f"{name}.pem"))]


def test_a_fit_with_certificates_is_the_fit_without_a_cluster(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(secured.folder)
    arguments = [*secured.here(secured.fit)[1:], "-k", "2"]
    assert arguments[4:6] == ["--scheduler", secured.address]
    assert main(arguments) == 0, capsys.readouterr().err
    assert main(["fit", "icqf", "cohort.zarr", str(tmp_path / "here.model"), "-k", "2"]) == 0
    found, expected = dfact.load_model("model.zarr"), dfact.load_model(tmp_path / "here.model")
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.objective_history_, expected.objective_history_)
    assert "Traceback" not in capsys.readouterr().err
    for process in secured.processes:
        assert all(ip_address(ip).is_loopback for ip in listening(process.pid))


@pytest.mark.further
def test_the_documented_lines_of_python(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(secured.folder)
    names: dict[str, Any] = {}
    exec(PYTHON.removeprefix("python\n").replace("tls://10.0.0.1:8786", secured.address), names)
    assert names["model"].factors_.shape == (60, 8)


def test_certificates_in_dasks_configuration(secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(secured.folder)
    names = {"ca-file": "ca.pem", "client.cert": "cert.pem", "client.key": "key.pem"}
    with dask.config.set({f"distributed.comm.tls.{name}": file for name, file in names.items()}):
        assert main(["fit", "icqf", "cohort.zarr", "-k", "2", "--plan", "--scheduler", secured.address]) == 0, capsys.readouterr().err
    assert "distributed, 1 process(es)" in capsys.readouterr().out


@pytest.mark.process
def test_other_certificates_are_refused(secured: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    foreign = certificates(tmp_path / "foreign")
    ours = secured.folder
    mixed = [*options(ours)[:2], *options(foreign)[2:]]  # knows our authority, but has no certificate of it
    torn = [*options(ours)[:4], "--tls-key", str(foreign / "key.pem")]
    plain = secured.address.replace("tls", "tcp")
    kinds = strangers(Authority.load(ours), NAME, tmp_path / "kinds")
    for address, given, words in (
        *((secured.address, options(folder), "certificates of the same authority") for folder in kinds.values()),
        (secured.address, mixed, "certificates of the same authority"),
        (secured.address, options(foreign), "TLS certificate does not match: self-signed certificate"),
        (secured.address, torn, "mismatch"),
        (secured.address, [], "--tls-ca-file, --tls-cert, --tls-key"),
        (plain, [], "tls://… of one that uses TLS"),
    ):
        began = time.monotonic()
        assert main(["fit", "icqf", str(ours / "cohort.zarr"), "-k", "2", "--plan", "--scheduler", address, *given]) == 1
        assert time.monotonic() - began < 60
        error = capfd.readouterr().err
        assert re.match(rf"Error: no Dask scheduler answers at {address} \(.+\); .*expected", error), error
        assert words in error
        assert "Traceback" not in error


@pytest.mark.further
@pytest.mark.process
def test_every_process_refuses_strangers_at_both_ends(secured: Secured, tmp_path: Path) -> None:
    kinds = strangers(Authority.load(secured.folder), NAME, tmp_path / "kinds")
    own = dasks_security(secured.folder)
    with (
        Client(secured.address, security=own, set_as_default=False, timeout=100) as client,
        listeners(own, *map(dasks_security, kinds.values())) as theirs,
    ):
        [(worker, details)] = worker_infos(client).items()
        for address in (secured.address, worker, details["nanny"]):
            assert refusal(address, own) == ""
            for kind, folder in kinds.items():
                assert refusal(address, dasks_security(folder)), kind
        opened = client.run_on_scheduler(refusals, theirs), client.run(refusals, theirs)[worker]
        for accepted, *refused in (*opened, client.run(refusals, theirs, nanny=True)[worker]):
            assert accepted == ""
            assert all("certificate verify failed" in reason for reason in refused), refused


@pytest.mark.process
@pytest.mark.usefixtures("unchecked")
def test_a_cluster_that_does_not_check_names_is_refused(secured: Secured, capfd: pytest.CaptureFixture[str]) -> None:
    own = dasks_security(secured.folder)
    settings = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "protocol": "tls://"}
    with LocalCluster(security=own, **settings) as cluster:
        fit = ["fit", "icqf", str(secured.folder / "cohort.zarr"), "-k", "2", "--plan", "--scheduler", cluster.scheduler_address]
        assert main([*fit, *options(secured.folder)]) == 1
    error = capfd.readouterr().err
    assert re.search(r"Error: the scheduler does not check names on certificates, expected that all \d processes do; start each", error), (
        error
    )


def test_a_cluster_without_tls_is_refused(cluster: LocalCluster, secured: Secured, capfd: pytest.CaptureFixture[str]) -> None:
    data, address = str(secured.folder / "cohort.zarr"), cluster.scheduler_address
    fit = ["fit", "icqf", data, "-k", "2", "--plan", "--scheduler"]
    assert main([*fit, address.replace("tcp", "tls"), *options(secured.folder)]) == 1
    assert "no Dask scheduler answers" in capfd.readouterr().err
    for arguments, words in (
        ([*fit, address, *options(secured.folder)], "is not encrypted"),
        ([*fit, "gateway://127.0.0.1:8000/one"], "which only the client of dask-gateway can reach"),
        ([*fit, secured.address, *options(secured.folder)[:4]], "go together"),
        ([*fit[:-1], *options(secured.folder)], "and with --scheduler"),
        ([*fit, secured.address, "--tls-key", "nowhere.pem"], "does not exist"),
    ):
        assert main(arguments) == 2
        assert words in capfd.readouterr().err


@pytest.mark.further
def test_our_own_clusters_listen_to_this_machine_alone(cluster: LocalCluster) -> None:
    assert all(ip_address(ip).is_loopback for ip in listening(os.getpid()))
    assert cluster.workers
