"""A coordinator and three sites as hosts, each with a disk that the others cannot see, joined by a network."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import dfact
from benchmarks.faults.namespaces import Hosts
from benchmarks.sites.cases import ANSWERS, KEY, SITES, Case, write_site
from dfact.sites.site_log import read_log
from tests.tls.authority import Authority

COORDINATOR, MIDDLE, SWITCH = "coordinator", "middle", "switch"
PORT = 8790
PATIENCE = 600.0
CERTIFICATES = ("ca", "cert", "key")
# Each process hides the disks of the other hosts from itself; `ip netns exec` has given it mounts of its own.
_ALONE = """
while [ "$1" != -- ]; do mount -t tmpfs -o size=4k,mode=0 hidden "$1"; shift; done
shift; exec "$@"
"""


class Network:
    """The hosts, their disks, data and certificates. Everything ends with the ``with`` block."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self._hosts = Hosts([COORDINATOR, *SITES, MIDDLE])
        self._runs = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._hosts)
            authority = Authority.make()
            for name in self._hosts.names:
                self._make_disk(name, stack)
                address = self._hosts.address(name)
                authority.issue(self.disk(name) / "tls", *([address] if name in {COORDINATOR, MIDDLE} else [name]))
                (self.disk(name) / "tls" / "key.pem").chmod(0o600)
            for site in SITES:
                # The middle shows sites the coordinator's name, and the coordinator those of the sites.
                authority.issue(self.disk(MIDDLE) / site, site)
                write_site(self.disk(site), site, self.rows, self.columns)
                (self.disk(site) / "policy.toml").write_text(
                    f"min_cell = {10 if self.rows >= 5000 else 1}\nmax_numbers = 1e9\nmax_share = 1.0\nmin_rows = 20\nmax_contracts = 9\n"
                )
            for contract in self.disk(SITES[0]).glob("*.json"):
                (self.disk(COORDINATOR) / contract.name).write_text(contract.read_text())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _make_disk(self, name: str, stack: ExitStack) -> None:
        disk = self.disk(name)
        disk.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", f"disk-of-{name}", disk], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
        (disk / "tmp").mkdir()

    def disk(self, name: str) -> Path:
        """Return the folder of a host's disk, at which no other host finds it."""
        return self._hosts.folder / name

    @property
    def folder(self) -> Path:
        """A folder of the machine, which only a capture uses."""
        return self._hosts.folder

    def host_address(self, name: str) -> str:
        return self._hosts.address(name)

    def address(self, name: str) -> str:
        return f"{self.host_address(name)}:{PORT}"

    def start(self, host: str, *command: str | Path, log: Path) -> "Program":
        """Start a program on a host, with its disk alone."""
        hidden = [str(self.disk(name)) for name in self._hosts.names if name != host]
        own = ["env", f"TMPDIR={self.disk(host) / 'tmp' if host in self._hosts.names else '/tmp'}"]  # of a capture
        process = self._hosts.run(host, ["sh", "-c", _ALONE, "sh", *hidden, "--", *own, sys.executable, *map(str, command)], log=log)
        return Program(host, process, log)

    def dfact(self, host: str, *arguments: str | Path, log: Path) -> "Program":
        return self.start(host, "-m", "dfact.cli.main", *arguments, log=log)

    def run(self, case: Case, *, via: str = COORDINATOR, checkpoint: bool = False) -> "Run":
        """Start the commands of a case on all hosts; sites connect to the coordinator, or to the one in the middle."""
        run = self.coordinator(case, via=via, checkpoint=checkpoint)
        run.sites = {site: run.start_site(site) for site in SITES}
        return run

    def coordinator(self, case: Case, *, via: str = COORDINATOR, checkpoint: bool = False) -> "Run":
        """Start the command of the coordinator alone."""
        self._runs += 1
        return Run(self, case, self._runs, via, checkpoint=checkpoint)

    def write_sites_file(self, data: str = ANSWERS) -> Path:
        """Write the file of the coordinator, and return its path."""
        names = ", ".join(f'"{site}"' for site in SITES)
        text = f'sites = [{names}]\naddress = "{self.address(COORDINATOR)}"\nwait = {PATIENCE}\ncontract = "{data}.json"\n'
        path = self.disk(COORDINATOR) / f"{data}.toml"
        path.write_text(text + "".join(f'{name} = "tls/{name}.pem"\n' for name in CERTIFICATES))
        return path

    def join(self, site: str, data: str, output: Path, *, via: str = COORDINATOR, checkpoint: bool = False) -> "Program":
        """Start the program of a site."""
        disk = self.disk(site)
        tls = [word for name in CERTIFICATES for word in (f"--{name}", disk / "tls" / f"{name}.pem")]
        own = ["--name", site, "--data", disk / f"{data}.zarr", "--policy", disk / "policy.toml", "--output", output]
        output.mkdir(exist_ok=True)
        (output / "log.key").write_text(KEY)
        kept = ["--checkpoint", output / "progress"] if checkpoint else []
        return self.dfact(site, "site", "join", self.address(via), *own, *tls, *kept, log=output / "program.log")

    def whole(self, data: str) -> Any:
        """Return the concatenated data, of which no host has more than its own rows."""
        return dfact.concatenate([self.disk(site) / f"{data}.zarr" for site in SITES])

    def cut(self, site: str, seconds: float) -> None:
        """Take the link of a site down for a time."""
        self._hosts.cut(site)
        time.sleep(seconds)
        self._hosts.restore(site)


class Program:
    """A process on a host, with its output."""

    def __init__(self, host: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.host, self._process, self._log = host, process, log

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)

    def require_success(self) -> None:
        """Wait for the end; raise RuntimeError with the last words of a program that fails."""
        code = self._process.wait(timeout=PATIENCE)
        if code != 0:
            raise RuntimeError(f"the program of {self.host} has ended with {code}: {self.said[-3000:]}")

    def wait_for(self, met: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; raise RuntimeError if the program ends before."""
        until = time.monotonic() + PATIENCE
        while not met():
            if self.ended:
                raise RuntimeError(f"the program of {self.host} has ended before {what}: {self.said[-3000:]}")
            if time.monotonic() > until:
                raise TimeoutError(f"{self.host}: not {what} within {PATIENCE:g} s")
            time.sleep(0.01)


class Run:
    """A case that is carried out across the sites by their commands."""

    def __init__(self, network: Network, case: Case, number: int, via: str, *, checkpoint: bool) -> None:
        self._network, self.case, self._number, self._via, self._checkpoint = network, case, number, via, checkpoint
        self.folder(COORDINATOR).mkdir()
        self.coordinator = self.start_coordinator()
        self.sites: dict[str, Program] = {}

    def folder(self, host: str) -> Path:
        """Return the folder of the run on the disk of a host."""
        return self._network.disk(host) / f"run-{self._number}"

    @property
    def output(self) -> Path:
        """What the coordinator writes."""
        return self.folder(COORDINATOR) / ("items.csv" if self.case.model is None else "result.model")

    def start_coordinator(self) -> Program:
        file = self._network.write_sites_file(self.case.data)
        words = [*self.case.command, "--sites", file, self.output, *self.case.options]
        if self._checkpoint:
            words += ["--checkpoint", self.folder(COORDINATOR) / "progress"]
        self.coordinator = self._network.dfact(COORDINATOR, *words, log=self.folder(COORDINATOR) / "program.log")
        return self.coordinator

    def start_site(self, site: str) -> Program:
        return self._network.join(site, self.case.data, self.folder(site), via=self._via, checkpoint=self._checkpoint)

    def finish(self) -> None:
        """Wait until all programs have ended well; raise RuntimeError as soon as one fails."""
        running = [*self.sites.values(), self.coordinator]
        until = time.monotonic() + PATIENCE
        while running:
            for program in [each for each in running if each.ended]:
                program.require_success()
                running.remove(program)
            if time.monotonic() > until:
                raise TimeoutError(f"not within {PATIENCE:g} s: {', '.join(program.host for program in running)}")
            time.sleep(0.02)

    def kill(self) -> None:
        for program in (*self.sites.values(), self.coordinator):
            program.kill()

    def steps(self, site: str) -> int:
        """Return the number of sums that have left a site so far."""
        log = self.folder(site) / "log.jsonl"
        return len(re.findall(r'"arrays"', log.read_text())) - 1 if log.exists() else 0

    def passes(self) -> int:
        """Return the number of passes, over all rows or over a sample of the partitions, in which a site may have no part."""
        return 1 + max(int(entry["step"]) for site in SITES for entry in read_log(self.folder(site) / "log.jsonl"))

    def model(self) -> Any:
        return dfact.load_model(self.output)

    def site_model(self, site: str) -> Any:
        [path] = self.folder(site).glob("*.model")
        return dfact.load_model(path)
