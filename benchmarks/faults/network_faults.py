"""Faults of hosts and networks that hit a fit on a Dask cluster of several hosts.

    python -m benchmarks.faults.network_faults [word]

Each row is a fault, over tcp and over TLS, that hits a fit with a checkpoint; with a word, only faults whose name contains
it. A fit either continues by itself, or ends with an error message; then all processes are ended, networks are restored,
and the same fit resumes from its checkpoint on a new cluster. *Equal*: the model is bit-identical to the undisturbed fit.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common import exit_code, report, wait_until
from benchmarks.faults.cluster_of_hosts import SHORT_TIMEOUT, UNENDED, Certificates, Cluster, Fit, digest, make_data, model_of
from benchmarks.faults.fits import PATIENCE
from benchmarks.faults.namespaces import Hosts, available


@dataclass(frozen=True)
class Fault:
    """A fault that hits a fit after its third iteration, and the time without progress after which the fit hangs."""

    name: str
    strike: Callable[[Cluster], None]
    mend: Callable[[Cluster], None] | None = None
    """Join again what was cut; processes are ended and restarted in any case."""
    settings: dict[str, str] = field(default_factory=dict)
    """Dask's, on all hosts."""
    workers: tuple[str, ...] = ("a", "b")
    options: tuple[str, ...] = ()
    """Of the workers."""
    iterations: int = 15
    patience: float = PATIENCE
    used: tuple[str, ...] = ()
    """WorkerResources that must have had a part."""


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


def _another_worker(cluster: Cluster) -> None:
    """Add a worker, with which the fit continues."""
    cluster.hold.touch()
    cluster.worker("c")
    wait_until(lambda: "name: c" in cluster.log("scheduler").read_text(), "the scheduler has another worker", PATIENCE)
    cluster.hold.unlink()


def _strangers(cluster: Cluster) -> None:
    """Start a worker and a driver with certificates of another authority while the fit runs."""
    foreign = Certificates.make(cluster.hosts.folder / "foreign")
    stranger = cluster.fit(Path("nothing"), 1, 1, foreign)
    cluster.worker("c", foreign, "--no-nanny", "--death-timeout", "4")
    refused = stranger.ended().error
    if not refused.startswith(("FatalCommClosedError: TLS certificate does not match", "RuntimeError: encryption required")):
        raise RuntimeError(f"the stranger was not refused for its certificate: {refused}")
    if cluster.processes["c"].wait(timeout=PATIENCE) == 0 or "name: c" in cluster.log("scheduler").read_text():
        raise RuntimeError("the worker of a stranger was let in")


def _cut(name: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.hosts.cut(name)


def _restore(name: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.hosts.restore(name)


def _part(cluster: Cluster) -> None:
    cluster.hosts.part("a", "b")


def _join(cluster: Cluster) -> None:
    cluster.hosts.join("a", "b")


_STOP, _GO, _KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL
_TTL = {"distributed.scheduler.worker-ttl": "30s"}
_WORKER_TIMEOUT = {"dfact.worker-timeout": "5s"}
_PROGRESS_TIMEOUT = {"dfact.progress-timeout": "60s"}
FAULTS = [
    Fault("none", _signals(_GO, "a")),
    Fault("worker killed", _signals(_KILL, "b")),
    Fault("worker killed under its nanny", _kill_under_nanny, options=("--nanny", "--death-timeout", "900")),
    Fault("worker cut off for 5 s", _for_a_while(_cut("b"), _restore("b"))),
    Fault("worker cut off", _cut("b"), _restore("b")),
    Fault("worker cut off; short timeouts", _cut("b"), _restore("b"), SHORT_TIMEOUT),
    Fault("workers cut off from each other for 5 s", _for_a_while(_part, _join)),
    Fault("workers cut off from each other; progress-timeout 60 s", _part, _join, _PROGRESS_TIMEOUT),
    Fault("two of three workers cut off from each other; progress-timeout 60 s", _part, _join, _PROGRESS_TIMEOUT, ("a", "b", "c")),
    Fault("worker paused for 5 s", _for_a_while(_signals(_STOP, "b"), _signals(_GO, "b"))),
    Fault("worker paused; progress-timeout 60 s", _signals(_STOP, "b"), settings=_PROGRESS_TIMEOUT),
    Fault("worker paused; worker-ttl 30 s", _signals(_STOP, "b"), settings=_TTL),
    Fault("all workers killed; worker-timeout 5 s", _signals(_KILL, "a", "b"), settings=_WORKER_TIMEOUT),
    Fault("scheduler killed", _signals(_KILL, "scheduler")),
    Fault("scheduler paused for 5 s", _for_a_while(_signals(_STOP, "scheduler"), _signals(_GO, "scheduler"))),
    Fault("scheduler paused; worker-timeout 5 s", _signals(_STOP, "scheduler"), settings=_WORKER_TIMEOUT),
    Fault("scheduler cut off; short timeouts", _cut("scheduler"), _restore("scheduler"), SHORT_TIMEOUT),
    Fault("driver cut off for 5 s", _for_a_while(_cut("driver"), _restore("driver"))),
    Fault("driver cut off; short timeouts", _cut("driver"), _restore("driver"), SHORT_TIMEOUT),
    Fault("worker joins", _another_worker, used=("c",)),
    Fault("foreign certificates", _strangers),
]


@contextmanager
def a_cluster(fault: Fault, tls: bool) -> Iterator[Cluster]:
    """Create hosts and a cluster on which nothing runs yet."""
    with Hosts(["scheduler", "driver", "a", "b", "c"]) as hosts:
        yield Cluster(hosts, Certificates.make(hosts.folder / "own") if tls else None, fault.settings)


def start_fit(fault: Fault, cluster: Cluster, data: Path) -> Fit:
    """Start the fit on a new scheduler with new workers."""
    cluster.scheduler()
    for name in fault.workers:
        cluster.worker(name, None, *fault.options)
    return cluster.fit(data, fault.iterations, len(fault.workers), checkpoint=cluster.hosts.folder / "checkpoint.zarr")


def suffer(fault: Fault, data: Path, expected: str, *, tls: bool) -> dict[str, Any]:
    """Run a fit with a fault on new hosts; return a row of the table."""
    with a_cluster(fault, tls) as cluster:
        fit = start_fit(fault, cluster, data)
        fit.reached(3)
        struck = time.monotonic()
        fault.strike(cluster)
        ended, resumed = fit.ended(fault.patience), None
        if ended.error:
            fit.process.kill()
            fit.process.wait()
            cluster.end()
            if fault.mend:
                fault.mend(cluster)
            resumed = start_fit(fault, cluster, data).ended()
        last, names = resumed or ended, {cluster.hosts.address(name): name for name in cluster.hosts.names}
        return {
            "protocol": "tls" if tls else "tcp",
            "fault": fault.name,
            "ended": ended.error or "finished",
            "after the fault": ended.at - struck,
            "resumed": "" if resumed is None else resumed.error or "finished",
            "equal": last.digest == expected,
            "lost": ended.longest_wait - float(np.median(np.diff(ended.times))),
            "partitions": {names[address.split("//")[1].split(":")[0]]: count for address, count in sorted(last.partitions.items())},
        }


def row_of(fault: Fault, data: Path, expected: str, *, tls: bool) -> dict[str, Any]:
    """Return the row of a fault, even if the run did not complete."""
    try:
        return suffer(fault, data, expected, tls=tls)
    except Exception as error:
        said = f"{UNENDED} {type(error).__name__}: {' '.join(str(error).split())}"
        return {"protocol": "tls" if tls else "tcp", "fault": fault.name, "ended": said, "equal": False, "partitions": {}}


def make_thresholds(fault: Fault, row: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return the thresholds for a row."""
    what = f"{fault.name}, {row['protocol']}"
    held = [(f"{what}: completes, or ends with a message", not row["ended"].startswith(UNENDED)), (f"{what}: bit-identical", row["equal"])]
    return held + [(f"{what}: {name} took part", row["partitions"].get(name, 0) > 0) for name in fault.used]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    word = parser.parse_args().word
    possible, reason = available()
    if not possible:
        sys.exit(reason)
    rows, thresholds = [], []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        data = make_data(Path(folder))
        expected = digest(model_of(FAULTS[0].iterations, executor="threads").fit(data))
        for fault in (fault for fault in FAULTS if word in fault.name):
            for row in pool.map(lambda tls, fault=fault: row_of(fault, data, expected, tls=tls), (False, True)):
                rows.append(row)
                thresholds += make_thresholds(fault, row)
                print(row, flush=True)
    report("network_faults", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
