"""A Dask cluster on several hosts, and fits on it that report their progress."""

import hashlib
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import dfact
from benchmarks.faults.fits import PATIENCE, partitions_by_worker
from benchmarks.faults.namespaces import Forked, Hosts
from dfact.data.layout import Layout

_PORT = 8786
NAME = "dfact-cluster"
"""Name on the certificates, as in dfact/batch/manifests/kubernetes/base/settings.env."""
_MARK = "REPORT"  # prefix of the driver's reports within its output
_numbers = itertools.count()
UNENDED = "not done after"
SHORT_TIMEOUT = {"distributed.comm.timeouts.tcp": "11s", "distributed.comm.timeouts.connect": "11s"}
"""The least that Dask allows for tcp."""


@dataclass(frozen=True)
class Certificates:
    """Files that admit a process to a cluster: an authority's certificate, and a signed certificate with its key."""

    authority: str
    certificate: str
    key: str

    @classmethod
    def make(cls, folder: Path, name: str = NAME) -> "Certificates":
        """Create an authority and a certificate for the name of the cluster."""
        folder.mkdir()
        made = cls(*(str(folder / file) for file in ("ca.pem", "cert.pem", "key.pem")))
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
        ca_key, request = str(folder / "ca-key.pem"), str(folder / "request.pem")
        _openssl("req", "-x509", *new, "-keyout", ca_key, "-out", made.authority, "-days", "2", "-subj", "/CN=dfact test authority")
        _openssl("req", *new, "-keyout", made.key, "-out", request, "-subj", "/CN=dfact", "-addext", f"subjectAltName=DNS:{name}")
        signed_by = ["-CA", made.authority, "-CAkey", ca_key, "-CAcreateserial"]
        _openssl("x509", "-req", "-in", request, *signed_by, "-days", "2", "-copy_extensions", "copy", "-out", made.certificate)
        return made

    def options(self) -> list[str]:
        return ["--tls-ca-file", self.authority, "--tls-cert", self.certificate, "--tls-key", self.key]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Ended:
    """The end of a fit on the hosts."""

    digest: str = ""
    """Of all bits of the model; empty if there is none."""
    error: str = ""
    seconds: float = float("nan")
    """Of the fit."""
    times: list[float] = field(default_factory=list)
    """When each iteration was done."""
    at: float = float("nan")
    """When it ended."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Partitions visited by each worker that is still there, by the worker's address."""

    @property
    def longest_wait(self) -> float:
        """Return the longest time between two iterations in seconds."""
        return float(np.diff(self.times).max())


class Fit:
    """A fit in its own process on the host "driver"."""

    def __init__(self, process: Forked, log: Path) -> None:
        self.process, self.log = process, log

    def _lines(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK) and line.endswith("}")]

    def reached(self, iteration: int, seconds: float = PATIENCE) -> None:
        """Wait until an iteration is done, as long as there is progress; raise an error if the fit has failed before."""
        self._wait(lambda lines: any(line.get("iteration", -1) >= iteration or "error" in line for line in lines), seconds)
        if failed := [line["error"] for line in self._lines() if "error" in line]:
            raise RuntimeError(f"failed before iteration {iteration}: {failed[0]}")

    def ended(self, seconds: float = PATIENCE) -> Ended:
        """Wait until the fit has ended, with or without an error; this time without any progress counts as an error."""
        try:
            self._wait(lambda lines: any("at" in line for line in lines), seconds)
            end = next(line for line in self._lines() if "at" in line)
        except TimeoutError:
            end = {"error": f"{UNENDED} {seconds:.0f} s", "at": time.monotonic()}
        return Ended(**end, times=[line["time"] for line in self._lines() if "iteration" in line])

    def _wait(self, met: Callable[[list[dict[str, Any]]], bool], seconds: float) -> None:
        """Wait until the condition holds; the limit is for the time between two reports, as a busy machine makes fits long."""
        reports, until = 0, time.monotonic() + seconds
        while not met(lines := self._lines()):
            if len(lines) > reports:
                reports, until = len(lines), time.monotonic() + seconds
            if self.process.poll() is not None and not met(self._lines()):
                raise RuntimeError(f"the driver left with {self.process.returncode}: {self.log.read_text()[-2000:]}")
            if time.monotonic() > until:
                raise TimeoutError(f"no report within {seconds} s: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)


class Cluster:
    """A scheduler and workers on hosts, over tcp or, with certificates, TLS."""

    def __init__(self, hosts: Hosts, certificates: Certificates | None = None, settings: dict[str, str] | None = None) -> None:
        self.hosts, self.certificates, self.settings = hosts, certificates, settings or {}
        self.address = f"{'tls' if certificates else 'tcp'}://{hosts.address('scheduler')}:{_PORT}"
        self.processes: dict[str, Forked] = {}
        self.hold = hosts.folder / "hold"
        """While this file is there, fits do not go on behind an iteration."""

    def scheduler(self) -> None:
        """Start the scheduler. Its HTTP server runs even with --no-dashboard, so it is bound to loopback."""
        here = ["--host", self.hosts.address("scheduler"), "--port", str(_PORT), "--protocol", self.address[:3]]
        self._start("scheduler", "scheduler", [*here, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"], self.certificates)

    def worker(self, name: str, certificates: Certificates | None = None, *options: str) -> None:
        """Start a worker on the host of its name; ``certificates`` are the cluster's unless given."""
        here = ["--host", self.hosts.address(name), "--name", name, "--nthreads", "1", "--memory-limit", "2GiB"]
        local_options = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--local-directory", str(self.hosts.folder)]
        own = [*here, *local_options, *(options or ("--no-nanny", "--death-timeout", "900"))]
        self._start(name, "worker", [self.address, *own], certificates or self.certificates)

    def _start(self, name: str, what: str, options: list[str], certificates: Certificates | None) -> None:
        command = [what, *options, *(certificates.options() if certificates else ())]
        self.processes[name] = self.hosts.fork(name, _dask, command, settings=self.settings, log=self.log(name))

    def log(self, name: str) -> Path:
        """Return the output of the process on this host."""
        return self.hosts.folder / f"{name}.log"

    def end(self) -> None:
        """End all processes of the cluster, as a power cut would."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()

    def fit(
        self, data: Path, iterations: int, n_workers: int, certificates: Certificates | None = None, checkpoint: Path | None = None
    ) -> Fit:
        """Start a fit on the host "driver" once this number of workers has joined."""
        log = self.hosts.folder / f"fit-{next(_numbers)}.log"
        known = certificates or self.certificates
        kept = {"checkpoint": str(checkpoint), "checkpoint_every": 2} if checkpoint else {}
        job = self.address, str(data), iterations, n_workers, known, str(self.hold), kept
        return Fit(self.hosts.fork("driver", drive, *job, settings=self.settings, log=log), log)


def _dask(command: list[str]) -> None:
    """Run ``dask scheduler`` or ``dask worker`` with these options."""
    import_module(f"distributed.cli.dask_{command[0]}").main(command[1:])


def model_of(iterations: int, **parameters: Any) -> "dfact.ICQF":
    """Return the model of every fit; it never converges."""
    return dfact.ICQF(3, init="random", random_state=0, max_iter=iterations, tol=0, **parameters)


def digest(model: "dfact.ICQF") -> str:
    """Return a hash of all bits of the model."""
    arrays = (model.components_, np.asarray(model.factors_[:]), model.objective_history_, model.lagrangian_history_)
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def make_data(folder: Path) -> Path:
    """Write answers in 64 partitions to disk, which all hosts share."""
    answers = np.random.default_rng(0).integers(0, 4, (131072, 512), dtype=np.uint8)
    assert Layout.of(answers.shape).n_partitions == 64
    path = folder / "answers.zarr"
    dfact.import_array(answers, path)
    return path


def drive(address: str, data: str, iterations: int, n_workers: int, known: Certificates | None, hold: str, kept: dict[str, Any]) -> None:
    """Fit in the driver's process, and print a line of JSON for each iteration and for the end."""
    from distributed import Client, Security

    def say(**line: Any) -> None:
        print(_MARK + json.dumps(line), flush=True)

    def done(iteration: Any) -> None:
        say(iteration=iteration.number, time=time.monotonic())
        while Path(hold).exists():
            time.sleep(0.02)

    files = {} if known is None else {"tls_ca_file": known.authority, "tls_client_cert": known.certificate, "tls_client_key": known.key}
    began = time.monotonic()
    try:
        client = Client(address, security=Security(require_encryption=known is not None, **files), timeout=PATIENCE)
        client.wait_for_workers(n_workers, timeout=PATIENCE)
        began = time.monotonic()
        model = model_of(iterations, executor=client, callbacks=[done], **kept)
        model.fit(data)
        seconds = time.monotonic() - began
        say(digest=digest(model), seconds=seconds, at=time.monotonic(), partitions=partitions_by_worker(client))
    except BaseException as error:
        say(error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", seconds=time.monotonic() - began, at=time.monotonic())
    os._exit(0)  # a client that has lost its scheduler closes slowly
