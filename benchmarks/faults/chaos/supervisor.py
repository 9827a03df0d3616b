"""Hosts with a TLS cluster and an object store, whose processes are started again after each end, and the faults that hit them."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks.faults.chaos import store
from benchmarks.faults.chaos.schedule import DRIVER, SCHEDULER, STORE, Fault, worker_names
from benchmarks.faults.cluster_of_hosts import NAME, Certificates
from benchmarks.faults.namespaces import Hosts
from dfact.engine.cluster.certificate_names import PRELOAD

_PORT = 8786
_RESTART_SECONDS = 1.0
_DISK = "64m"
_RATE = "2mbit"
_LOSS_PERCENT = 10
_PATIENCE_FOR_A_TARGET = 15.0
"""Seconds for which a fault waits for a process that is just being started again."""
SETTINGS = {
    "distributed.comm.timeouts.tcp": "11s",
    "distributed.comm.timeouts.connect": "11s",
    "distributed.scheduler.worker-ttl": "30s",
    "distributed.scheduler.allowed-failures": "20",
    "dfact.worker-timeout": "60s",
    "dfact.progress-timeout": "120s",
}
"""Dask's, on all hosts: short, so that a loss is noticed within the run."""


@dataclass
class Kept:
    """A process that is to run all the time."""

    host: str
    command: list[str]
    process: "subprocess.Popen[bytes] | None" = None
    start_at: float = 0.0
    restarts: int = 0


@dataclass
class Struck:
    """A fault that has struck, and the job that it hit."""

    fault: Fault
    job: int
    until: float
    undone: bool = False


@dataclass
class Undo:
    """What ends a fault."""

    at: float
    struck: Struck
    act: Callable[[], None] = field(repr=False)


class Supervisor:
    """The hosts, processes and faults of a run; ``tick`` does what is due."""

    def __init__(self, n_workers: int, faults: list[Fault]) -> None:
        self.workers = worker_names(n_workers)
        self.hosts = Hosts([SCHEDULER, DRIVER, STORE, *self.workers])
        self.pending, self.struck, self.missed = list(faults), list[Struck](), list[Fault]()
        self.job = -1
        """Number of the job that runs, to which faults are attributed."""
        self.driver: subprocess.Popen[bytes] | None = None
        self._kept: dict[str, Kept] = {}
        self._undos: list[Undo] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._started: float | None = None
        self._mounted: list[Path] = []

    # start and end

    def __enter__(self) -> Self:
        unmount_leftovers()
        self.hosts.__enter__()
        try:
            self.folder = self.hosts.folder
            self._environment = os.environ.copy()
            os.environ.update(store.client_settings(self.hosts.address(STORE)) | {"PYTHONFAULTHANDLER": "1"})
            self.certificates = Certificates.make(self.folder / "certificates")
            preloads = {f"DASK_DISTRIBUTED__{role}__PRELOAD": PRELOAD for role in ("SCHEDULER", "WORKER")}
            os.environ.update(preloads | {"DASK_DFACT__TLS_NAME": NAME})
            self.address = f"tls://{self.hosts.address(SCHEDULER)}:{_PORT}"
            self._keep_all()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        for kept in self._kept.values():
            _kill(kept.process)
        _kill(self.driver)
        store.remove_sockets()
        for disk in self._mounted:
            subprocess.run(["umount", "--lazy", disk], check=True)
        self.hosts.__exit__(kind, error, trace)

    def _keep_all(self) -> None:
        self._keep("proxy", STORE, store.proxy_command(self.store_folder))
        self._keep(STORE, STORE, store.weed_command(self.folder / "objects"))
        dask, unseen = [sys.executable, "-m", "dask"], ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        here = ["--host", self.hosts.address(SCHEDULER), "--port", str(_PORT), "--protocol", "tls"]
        self._keep(SCHEDULER, SCHEDULER, [*dask, "scheduler", *here, *unseen, *self.certificates.options()])
        for name in self.workers:
            disk = self.folder / f"disk-{name}"
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", disk], check=True)
            self._mounted.append(disk)
            own = ["--host", self.hosts.address(name), "--name", name, "--nthreads", "1", "--memory-limit", "2GiB", "--no-nanny"]
            command = [*dask, "worker", self.address, *own, "--local-directory", str(disk), "--death-timeout", "60", *unseen]
            self._keep(name, name, ["env", f"TMPDIR={disk}", *command, *self.certificates.options()])

    def _keep(self, name: str, host: str, command: list[str]) -> None:
        self._kept[name] = Kept(host, command)

    @property
    def store_folder(self) -> Path:
        """Return the folder of the proxy before the store."""
        return self.folder / "proxy"

    def log(self, name: str) -> Path:
        """Return the output of a process."""
        return self.folder / f"{name}.log"

    def run(self, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a process on the host of the driver."""
        return self.hosts.run(DRIVER, command, SETTINGS, log)

    def cluster_options(self) -> list[str]:
        """Return the options by which a command computes on the cluster."""
        return ["--scheduler", self.address, *self.certificates.options()]

    # the run

    def begin(self) -> None:
        """Let the faults begin."""
        self._started = time.monotonic()

    def finish(self) -> None:
        """Let no more faults strike; those that last are undone when they are due."""
        self.missed += self.pending
        self.pending = []

    @property
    def faults_last(self) -> bool:
        return bool(self._undos)

    def tick(self) -> None:
        """Start processes again, let faults strike, and undo others."""
        now = time.monotonic()
        for name, kept in self._kept.items():
            if kept.process is not None and kept.process.poll() is not None:
                kept.process, kept.start_at = None, max(kept.start_at, now + _RESTART_SECONDS)
                kept.restarts += 1
            if kept.process is None and now >= kept.start_at:
                kept.process = self.hosts.run(kept.host, kept.command, SETTINGS, self.log(name))
        for undo in [undo for undo in self._undos if undo.at <= now]:
            undo.act()
            undo.struck.undone = True
            self._undos.remove(undo)
        if self._started is not None:
            while self.pending and self.pending[0].at <= now - self._started:
                fault = self.pending[0]
                if not self._strike(fault, now):
                    if now - self._started - fault.at < _PATIENCE_FOR_A_TARGET:
                        break
                    self.missed.append(fault)
                self.pending.pop(0)

    def _process(self, target: str) -> "subprocess.Popen[bytes] | None":
        process = self.driver if target == DRIVER else self._kept[target].process
        return process if process is not None and process.poll() is None else None

    def _strike(self, fault: Fault, now: float) -> bool:
        """Let a fault strike; return whether its target is there."""
        process, what = self._process(fault.target), fault.kind.split(" ", 1)[1]
        if process is None or self.job < 0:
            return False
        struck = Struck(fault, self.job, now + fault.seconds)
        self.struck.append(struck)
        print(f"{now - (self._started or now):7.1f} s  struck: {fault.kind} ({fault.target})", flush=True)
        undo = self._act(what, fault, process)
        if undo is None:
            struck.undone = True
        else:
            self._undos.append(Undo(now + fault.seconds, struck, undo))
        return True

    def _act(self, what: str, fault: Fault, process: "subprocess.Popen[bytes]") -> Callable[[], None] | None:
        """Do what a fault does; return what undoes it, None if the supervisor repairs it by a restart."""
        name = fault.target
        if what == "killed":
            self._kill_kept(fault, process)
            return None
        if what == "stopped by SIGTERM":
            process.send_signal(signal.SIGTERM)
            return None
        if what == "paused":
            process.send_signal(signal.SIGSTOP)
            return lambda: process.send_signal(signal.SIGCONT)  # nothing is sent to a process that has ended
        if what == "disk full":
            return self._nested("disk", name, self._fill, self._empty)
        if what == "cut off":
            return self._nested("cut", name, self.hosts.cut, self.hosts.restore)
        if what == "link slow":
            return self._nested("slow", name, lambda host: self.hosts.slow(host, _RATE), self.hosts.speed_up)
        if what == "link loses packets":
            return self._nested("losses", name, lambda host: self.hosts.lose(host, _LOSS_PERCENT), self.hosts.lose_nothing)
        return self._nested("troubles", fault.kind, lambda _: self._trouble_store(), lambda _: self._trouble_store())

    def _kill_kept(self, fault: Fault, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.wait()
        if fault.target in self._kept:
            self._kept[fault.target].start_at = time.monotonic() + fault.seconds

    def _nested(self, what: str, name: str, act: Callable[[str], None], undo: Callable[[str], None]) -> Callable[[], None]:
        """Do something once, and undo it after the last of the faults that wish it."""
        self._counts[what, name] += 1
        if self._counts[what, name] == 1:
            act(name)

        def release() -> None:
            self._counts[what, name] -= 1
            if not self._counts[what, name]:
                undo(name)

        return release

    def _trouble_store(self) -> None:
        store.set_troubles(self.store_folder, [name for (what, name), count in self._counts.items() if what == "troubles" and count])

    def _filling(self, name: str) -> Path:
        return self.folder / f"disk-{name}" / "filling"

    def _fill(self, name: str) -> None:
        room = os.statvfs(self.folder / f"disk-{name}")
        with contextlib.suppress(OSError), self._filling(name).open("wb") as file:  # the worker may take the last of it meanwhile
            file.write(bytes(room.f_bavail * room.f_frsize))

    def _empty(self, name: str) -> None:
        self._filling(name).unlink()


def unmount_leftovers() -> None:
    """Unmount the disks of killed runs, whose folders ``Hosts`` removes."""
    for disk in Path(tempfile.gettempdir()).glob("dfact-hosts-*/disk-*"):
        if disk.is_mount() and not psutil.pid_exists(int(disk.parent.name.split("-")[2])):
            subprocess.run(["umount", "--lazy", disk], check=True)


def _kill(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None:
        process.kill()
        process.wait()
