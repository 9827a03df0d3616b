"""Hosts on one machine: network namespaces with addresses that can be disconnected from each other.

A bridge in another namespace connects them, so that nothing remains once the namespaces are removed.
It needs Linux, root, iproute2 and openssl.
"""

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

_ROOT = Path(__file__).resolve().parents[2]
_PREFIX = "dfact-hosts"
_LOSSES = "losses"
_NOBODY = "02:00:00:00:00:00"  # a hardware address that no host has
_CLONE_NEWNET = 0x40000000  # of sched.h: the file of setns is a network namespace
_numbers = itertools.count()


def _ip(*arguments: str) -> str:
    return _call("ip", *arguments)


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def available() -> tuple[bool, str]:
    """Return whether hosts can be created on this machine and, if not, the reason."""
    if not sys.platform.startswith("linux"):
        return False, "network namespaces are Linux's"
    if os.geteuid() != 0:
        return False, "making network namespaces needs root"
    if missing := [tool for tool in ("ip", "openssl") if shutil.which(tool) is None]:
        return False, f"not installed: {', '.join(missing)}"
    try:
        with Hosts(["probe"]) as hosts:
            hosts.run("probe", [sys.executable, "-c", ""]).wait(timeout=30)
    except OSError as error:
        return False, f"network namespaces are not permitted here: {error}"
    return True, ""


class Forked:
    """A process that the fork server has forked, with those methods of a ``Popen`` that faults need."""

    def __init__(self, process: Any) -> None:
        self._process, self.pid = process, int(process.pid)

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Hosts:
    """Network namespaces as hosts with private addresses; their processes end with the ``with`` block."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._run = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        self._switch = f"{self._run}-switch"
        self._processes: list[subprocess.Popen[bytes] | Forked] = []

    def __enter__(self) -> Self:
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self._run}-"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for name in self.names:
            space = self._space(name)
            _ip("netns", "add", space)
            _ip("-n", self._switch, "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", self._switch, "link", "set", "dev", name, "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        _remove_namespaces(self._run + "-")

    def _space(self, name: str) -> str:
        return f"{self._run}-{name}"

    def address(self, name: str) -> str:
        """Return the host's address, the same in every run, as other namespaces do not see it."""
        return f"10.77.0.{self.names.index(name) + 1}"

    def network(self, name: str) -> str:
        """Return the host's network as podman's argument for a container."""
        return f"ns:/var/run/netns/{self._space(name)}"

    def run(
        self, name: str, command: Sequence[str], settings: dict[str, str] | None = None, log: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a process on a host; ``settings`` are Dask's, output goes to ``log``."""
        full = ["ip", "netns", "exec", self._space(name), *command]
        with (log or Path(os.devnull)).open("ab") as out:
            # A new session, so that Ctrl-C reaches only the caller, which ends the processes itself.
            process = subprocess.Popen(
                full,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=_environment(settings),
                cwd=_ROOT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def fork(self, name: str, function: Callable[..., Any], *arguments: Any, settings: dict[str, str] | None = None, log: Path) -> Forked:
        """Call a function in a process on a host that needs no imports; ``settings`` are Dask's, output goes to ``log``."""
        from benchmarks.faults.fits import FORKSERVER  # imports dfact, which hosts for other processes do not need

        given = self.network(name).removeprefix("ns:"), str(log), _environment(settings), function, arguments
        process = FORKSERVER.Process(target=_on_host, args=given)
        process.start()
        self._processes.append(Forked(process))
        return Forked(process)

    def cut(self, name: str) -> None:
        """Disconnect the host: packets from and to it are lost."""
        _ip("-n", self._switch, "link", "set", "dev", name, "down")

    def restore(self, name: str) -> None:
        """Connect the host again."""
        _ip("-n", self._switch, "link", "set", "dev", name, "up")

    def slow(self, name: str, rate: str) -> None:
        """Limit what the host sends and receives to a rate such as 2mbit."""
        for space, device in ((self._space(name), "eth0"), (self._switch, name)):
            _call("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "32k", "latency", "400ms")

    def speed_up(self, name: str) -> None:
        """Undo ``slow``."""
        for space, device in ((self._space(name), "eth0"), (self._switch, name)):
            _call("tc", "-n", space, "qdisc", "del", "dev", device, "root")

    def lose(self, name: str, percent: int) -> None:
        """Lose this share of the packets that the host sends and receives."""
        rule = f"numgen random mod 100 < {percent} drop;"
        chains = "; ".join(f"chain {hook} {{ type filter hook {hook} priority 0; {rule} }}" for hook in ("input", "output"))
        _ip("netns", "exec", self._space(name), "nft", f"table ip {_LOSSES} {{ {chains}; }}")

    def lose_nothing(self, name: str) -> None:
        """Undo ``lose``."""
        _ip("netns", "exec", self._space(name), "nft", "delete", "table", "ip", _LOSSES)

    def part(self, one: str, other: str) -> None:
        """Disconnect two hosts from each other, but not from others."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self._space(here), "neigh", "replace", self.address(there), "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")

    def join(self, one: str, other: str) -> None:
        """Undo ``part``."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self._space(here), "neigh", "del", self.address(there), "dev", "eth0")


def _environment(settings: dict[str, str] | None) -> dict[str, str]:
    """Return the variables of a process with these settings of Dask."""
    return os.environ | {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": value for key, value in (settings or {}).items()}


def _on_host(space: str, log: str, environment: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Call the function in this process, a forked one, as a new process on the host would."""
    import dask

    from benchmarks.faults.fits import log_to

    os.setsid()
    log_to(Path(log))
    with Path(space).open() as opened:
        if ctypes.CDLL(None, use_errno=True).setns(opened.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {space}")
    os.chdir(_ROOT)
    os.environ.clear()
    os.environ.update(environment)
    dask.config.refresh()
    function(*arguments)


def remove_leftovers() -> None:
    """Remove the processes, namespaces and folders that killed runs have left."""
    folders = list(Path(tempfile.gettempdir()).glob(_PREFIX + "-*"))
    owners = {
        int(name.removeprefix(_PREFIX + "-").split("-")[0]) for name in _namespaces(_PREFIX + "-") + [folder.name for folder in folders]
    }
    for owner in owners:
        if not psutil.pid_exists(owner):
            _remove_namespaces(f"{_PREFIX}-{owner}-")
    for folder in folders:
        if not psutil.pid_exists(int(folder.name.removeprefix(_PREFIX + "-").split("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)


def _namespaces(prefix: str) -> list[str]:
    names = (line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip())
    return [name for name in names if name.startswith(prefix)]


def _remove_namespaces(prefix: str) -> None:
    for space in _namespaces(prefix):
        try:
            for process in _ip("netns", "pids", space).split():  # such as the workers of a nanny that was killed
                _kill(int(process))
            _ip("netns", "del", space)
        except OSError:
            if space in _namespaces(prefix):  # otherwise another run has just removed it
                raise


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself
