"""A Dask cluster on several hosts, and what a fit on it survives.

python -m benchmarks.hosts            every fault, over tcp and TLS
python -m benchmarks.hosts paused     those whose name has the word
"""

import argparse
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import dfact
from benchmarks.common import report
from benchmarks.namespaces import Hosts, available
from dfact.data.source import Layout

_PORT = 8786
_MARK = "REPORT"  # before what the driver tells us, among all else it prints
_numbers = itertools.count()
SHORT_TIMEOUT = {"distributed.comm.timeouts.tcp": "11s", "distributed.comm.timeouts.connect": "11s"}
"""The least that Dask allows for tcp."""


@dataclass(frozen=True)
class Certificates:
    """Files that let a process into a cluster: an authority's certificate, and one that it signed with its key."""

    authority: str
    certificate: str
    key: str

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        """A new authority and a certificate for one name, all that Dask asks for."""
        folder.mkdir()
        made = cls(*(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")))
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
        ca_key, request = str(folder / "ca-key.pem"), str(folder / "request.pem")
        _openssl("req", "-x509", *new, "-keyout", ca_key, "-out", made.authority, "-days", "2", "-subj", "/CN=dfact test authority")
        _openssl("req", *new, "-keyout", made.key, "-out", request, "-subj", "/CN=dfact")
        signed_by = ["-CA", made.authority, "-CAkey", ca_key, "-CAcreateserial"]
        _openssl("x509", "-req", "-in", request, *signed_by, "-days", "2", "-out", made.certificate)
        return made

    def options(self) -> list[str]:
        return ["--tls-ca-file", self.authority, "--tls-cert", self.certificate, "--tls-key", self.key]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Ended:
    """How a fit on the hosts ended."""

    digest: str = ""
    """Of all bits of the model; empty if there is none."""
    error: str = ""
    seconds: float = float("nan")
    """Of the fit."""
    times: list[float] = field(default_factory=list)
    """When each iteration was done."""
    at: float = float("nan")
    """When it ended."""
    tasks: dict[str, list[float]] = field(default_factory=dict)
    """When the passes over partitions ended on each worker, by the worker's address."""

    @property
    def longest_wait(self) -> float:
        """Seconds between two iterations, at most."""
        return float(np.diff(self.times).max())


class Fit:
    """A fit in a process of its own on the host "driver"."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self.log = process, log

    def _lines(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK) and line.endswith("}")]

    def reached(self, iteration: int, seconds: float = 60) -> None:
        """Wait until an iteration is done."""
        self._wait(lambda lines: any(line.get("iteration", -1) >= iteration or "error" in line for line in lines), seconds)

    def ended(self, seconds: float = 60) -> Ended:
        """Wait until it has ended, well or not; what has not ended by then is an error too."""
        try:
            self._wait(lambda lines: any("at" in line for line in lines), seconds)
            end = next(line for line in self._lines() if "at" in line)
        except TimeoutError:
            end = {"error": f"not done after {seconds:.0f} s"}
        return Ended(**end, times=[line["time"] for line in self._lines() if "iteration" in line])

    def _wait(self, met: Callable[[list[dict[str, Any]]], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not met(self._lines()):
            if self.process.poll() is not None and not met(self._lines()):
                raise RuntimeError(f"the driver left with {self.process.returncode}: {self.log.read_text()[-2000:]}")
            if time.monotonic() > until:
                raise TimeoutError(f"not within {seconds} s: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)


class Cluster:
    """A scheduler and workers on hosts, over tcp or, with certificates, TLS."""

    def __init__(self, hosts: Hosts, certificates: Certificates | None = None, settings: dict[str, str] | None = None) -> None:
        self.hosts, self.certificates, self.settings = hosts, certificates, settings or {}
        self.address = f"{'tls' if certificates else 'tcp'}://{hosts.address('scheduler')}:{_PORT}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def scheduler(self) -> None:
        """Start the scheduler. Its HTTP pages are there even with --no-dashboard, so they go to loopback."""
        here = ["--host", self.hosts.address("scheduler"), "--port", str(_PORT), "--protocol", self.address[:3]]
        self._start("scheduler", "scheduler", [*here, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"], self.certificates)

    def worker(self, name: str, certificates: Certificates | None = None, *options: str) -> None:
        """Start a worker on the host of its name; ``certificates`` are the cluster's unless given."""
        here = ["--host", self.hosts.address(name), "--name", name, "--nthreads", "1", "--memory-limit", "2GiB"]
        places = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--local-directory", str(self.hosts.folder)]
        own = [*here, *places, *(options or ("--no-nanny", "--death-timeout", "30"))]
        self._start(name, "worker", [self.address, *own], certificates or self.certificates)

    def _start(self, name: str, what: str, options: list[str], certificates: Certificates | None) -> None:
        command = [sys.executable, "-m", "dask", what, *options, *(certificates.options() if certificates else ())]
        self.processes[name] = self.hosts.run(name, command, self.settings, self.log(name))

    def log(self, name: str) -> Path:
        """What the process on this host has printed."""
        return self.hosts.folder / f"{name}.log"

    def fit(self, data: Path, iterations: int, n_workers: int, certificates: Certificates | None = None) -> Fit:
        """Start a fit on the host "driver" once so many workers are there."""
        log = self.hosts.folder / f"fit-{next(_numbers)}.log"
        known = certificates or self.certificates
        job = [self.address, str(data), iterations, n_workers, vars(known) if known else None]
        code = "import json, sys; from benchmarks.hosts import drive; drive(*json.loads(sys.argv[1]))"
        return Fit(self.hosts.run("driver", [sys.executable, "-c", code, json.dumps(job)], self.settings, log), log)


def model_of(iterations: int, **parameters: Any) -> "dfact.ICQF":
    """The model of every fit here; it never converges."""
    return dfact.ICQF(3, init="random", random_state=0, max_iter=iterations, tol=0, **parameters)


def digest(model: "dfact.ICQF") -> str:
    """A hash of every bit of the model."""
    arrays = (model.components_, np.asarray(model.factors_[:]), model.objective_history_, model.lagrangian_history_)
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def make_data(folder: Path) -> Path:
    """Answers of 8 partitions on disk, which all hosts share."""
    answers = np.random.default_rng(0).integers(0, 4, (131072, 512), dtype=np.uint8)
    assert Layout.of(answers.shape).n_partitions == 8
    path = folder / "answers.zarr"
    dfact.import_array(answers, path)
    return path


def drive(address: str, data: str, iterations: int, n_workers: int, certificates: dict[str, str] | None) -> None:
    """The driver's process: fit, and print a line of JSON for each iteration and for the end."""
    from distributed import Client, Security

    def say(**line: Any) -> None:
        print(_MARK + json.dumps(line), flush=True)

    known = Certificates(**certificates) if certificates else None
    files = {} if known is None else {"tls_ca_file": known.authority, "tls_client_cert": known.certificate, "tls_client_key": known.key}
    began = time.monotonic()
    try:
        client = Client(address, security=Security(require_encryption=known is not None, **files), timeout=15)
        client.wait_for_workers(n_workers, timeout=60)
        client.get_task_stream()  # from now on
        began = time.monotonic()
        model = model_of(iterations, executor=client, callbacks=[lambda done: say(iteration=done.number, time=time.monotonic())])
        model.fit(data)
        seconds = time.monotonic() - began
        tasks: dict[str, list[float]] = {}
        for task in client.get_task_stream():
            if task["key"].startswith("_task-"):
                tasks.setdefault(task["worker"], []).append(task["startstops"][-1]["stop"] - time.time() + time.monotonic())
        say(digest=digest(model), seconds=seconds, at=time.monotonic(), tasks=tasks)
    except BaseException as error:
        say(error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", seconds=time.monotonic() - began, at=time.monotonic())
    os._exit(0)  # a client that has lost its scheduler takes its time to close


@dataclass(frozen=True)
class Fault:
    """What befalls a fit after its third iteration, and how long it may take to end."""

    name: str
    strike: Callable[[Cluster], None]
    settings: dict[str, str] = field(default_factory=dict)
    """Dask's, on all hosts."""
    workers: tuple[str, ...] = ("a", "b")
    options: tuple[str, ...] = ()
    """Of the workers."""
    iterations: int = 20
    patience: float = 60


def _for_a_while(strike: Callable[[Cluster], None], undo: Callable[[Cluster], None], seconds: float = 5) -> Callable[[Cluster], None]:
    def strike_and_undo(cluster: Cluster) -> None:
        strike(cluster)
        time.sleep(seconds)
        undo(cluster)

    return strike_and_undo


def _signals(number: signal.Signals, *names: str) -> Callable[[Cluster], None]:
    def send(cluster: Cluster) -> None:
        for name in names:
            cluster.processes[name].send_signal(number)

    return send


def _kill_under_nanny(cluster: Cluster) -> None:
    for child in psutil.Process(cluster.processes["b"].pid).children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()


def _foreign_worker(cluster: Cluster) -> None:
    cluster.worker("c", Certificates.make(cluster.hosts.folder / "foreign"))


def _cut(name: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.hosts.cut(name)


def _restore(name: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.hosts.restore(name)


def _part(cluster: Cluster) -> None:
    cluster.hosts.part("a", "b")


_STOP, _GO, _KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL
_TTL = {"distributed.scheduler.worker-ttl": "10s"}
_NO_WORKERS = {"distributed.scheduler.no-workers-timeout": "5s"}
FAULTS = [
    Fault("none", _signals(_GO, "a")),
    Fault("worker killed", _signals(_KILL, "b")),
    Fault("worker killed under its nanny", _kill_under_nanny, options=("--nanny", "--death-timeout", "30")),
    Fault("worker cut off for 5 s", _for_a_while(_cut("b"), _restore("b"))),
    Fault("worker cut off", _cut("b"), patience=90),
    Fault("worker cut off; short timeouts", _cut("b"), SHORT_TIMEOUT),
    Fault("workers cut off from each other for 5 s", _for_a_while(_part, lambda cluster: cluster.hosts.join("a", "b"))),
    Fault("workers cut off from each other", _part, patience=90),
    Fault("workers cut off from each other; short timeouts", _part, SHORT_TIMEOUT, patience=90),
    Fault("two of three workers cut off from each other; short timeouts", _part, SHORT_TIMEOUT, ("a", "b", "c"), patience=90),
    Fault("worker paused for 5 s", _for_a_while(_signals(_STOP, "b"), _signals(_GO, "b"))),
    Fault("worker paused", _signals(_STOP, "b"), patience=60),
    Fault("worker paused; worker-ttl 10 s", _signals(_STOP, "b"), _TTL),
    Fault("all workers killed", _signals(_KILL, "a", "b"), patience=30),
    Fault("all workers killed; no-workers-timeout 5 s", _signals(_KILL, "a", "b"), _NO_WORKERS, patience=30),
    Fault("scheduler killed", _signals(_KILL, "scheduler")),
    Fault("scheduler paused for 5 s", _for_a_while(_signals(_STOP, "scheduler"), _signals(_GO, "scheduler"))),
    Fault("scheduler paused", _signals(_STOP, "scheduler"), patience=60),
    Fault("scheduler cut off; short timeouts", _cut("scheduler"), SHORT_TIMEOUT),
    Fault("driver cut off for 5 s", _for_a_while(_cut("driver"), _restore("driver"))),
    Fault("driver cut off; short timeouts", _cut("driver"), SHORT_TIMEOUT),
    Fault("worker joins", lambda cluster: cluster.worker("c"), iterations=100, patience=90),
    Fault("foreign certificate", _foreign_worker, iterations=60),
]


def suffer(fault: Fault, data: Path, expected: str, *, tls: bool) -> dict[str, Any]:
    """One fit with one fault on new hosts; a row of the table."""
    with Hosts(["scheduler", "driver", "a", "b", "c"]) as hosts:
        certificates = Certificates.make(hosts.folder / "own") if tls else None
        cluster = Cluster(hosts, certificates, fault.settings)
        cluster.scheduler()
        for name in fault.workers:
            cluster.worker(name, None, *fault.options)
        fit = cluster.fit(data, fault.iterations, len(fault.workers))
        fit.reached(3)
        struck = time.monotonic()
        fault.strike(cluster)
        ended = fit.ended(fault.patience)
        names = {hosts.address(name): name for name in hosts.names}
        shares = {names[address.split("//")[1].split(":")[0]]: len(times) for address, times in sorted(ended.tasks.items())}
        time.sleep(1)  # who leaves does it now
        left = {name: process.returncode for name, process in cluster.processes.items() if process.poll() is not None}
        return {
            "protocol": "tls" if tls else "tcp",
            "fault": fault.name,
            "ended": ended.error or "finished",
            "equal": ended.digest == expected if ended.digest else None,
            "after the fault": ended.at - struck,
            "lost": ended.longest_wait - float(np.median(np.diff(ended.times))),
            "tasks": shares,
            "exit codes": left,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only the faults whose name has this word")
    word = parser.parse_args().word
    possible, reason = available()
    if not possible:
        sys.exit(reason)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(Path(folder))
        undisturbed: dict[int, str] = {}
        for fault in (fault for fault in FAULTS if word in fault.name):
            if fault.iterations not in undisturbed:
                undisturbed[fault.iterations] = digest(model_of(fault.iterations, executor="threads").fit(data))
            for tls in (False, True):
                rows.append(suffer(fault, data, undisturbed[fault.iterations], tls=tls))
                print(rows[-1], flush=True)
    ended_well = [(f"{row['fault']}, {row['protocol']}: the same bits", row["equal"]) for row in rows if row["ended"] == "finished"]
    report("hosts", rows, ended_well)


if __name__ == "__main__":
    main()
