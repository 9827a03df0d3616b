"""A job under a real Slurm, on hosts of this machine: python -m benchmarks.deployment.slurm_job

A controller and two nodes run in network namespaces, each node with its own host name and processes of Slurm. The batch script
of `deploy/` runs a job on three tasks: it is stopped before its time limit and queued again, a worker is killed, and a stranger
tries to connect. The result is compared with a fit in this process. It needs Linux, root, and Slurm with munge:
apt-get install --no-install-recommends slurmd slurmctld slurm-client munge
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import dfact
from benchmarks.common import exit_code, report, wait_until
from benchmarks.faults.cluster_of_hosts import Certificates
from benchmarks.faults.namespaces import Hosts
from benchmarks.faults.namespaces import available as namespaces_available
from tests.batch.manifest_rules import MANIFESTS

_TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare")
_PATIENCE = 1200  # seconds after which a step hangs, on a busy machine as well
_ITERATIONS = 80
_JOB = f"""\
[job]
state = "job.state"

[[step]]
run = "fit icqf"
data = "answers.zarr"
model = "icqf.model"
components = 3
max-iter = {_ITERATIONS}
tol = 0
init = "random"
seed = 0
"""
_SLURM = """\
ClusterName=dfact
SlurmctldHost=control({control})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
NodeName=one NodeAddr={one} CPUs=4 RealMemory=16000
NodeName=two NodeAddr={two} CPUs=4 RealMemory=16000
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
"""


def available() -> tuple[bool, str]:
    """Return whether Slurm can run on this machine and, if not, the reason."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return False, f"not installed: {', '.join(missing)}; apt-get install --no-install-recommends slurmd slurmctld slurm-client munge"
    return namespaces_available()


def until(met: Callable[[], Any], what: str, log: Path) -> Any:
    """Wait until the condition holds, and return its value; an error has the end of the log."""
    return wait_until(met, lambda: f"{what}: {log.read_text()[-3000:] if log.exists() else ''}", _PATIENCE)


class Slurm:
    """A controller and two nodes, and the jobs that are submitted to them."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self.folder = hosts, hosts.folder
        for name in ("state", "spool-one", "spool-two", "home"):
            (self.folder / name).mkdir()
        addresses = {name: hosts.address(name) for name in hosts.names}
        (self.folder / "slurm.conf").write_text(_SLURM.format(folder=self.folder, **addresses))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # `ip netns exec` hides the mounts that Slurm detects
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        own = [f"--{name}={self.folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        self._on("control", ["munged", "--foreground", "--force", f"--key-file={key}", *own])
        until((self.folder / "munge.socket").exists, "munge starts", self.folder / "control.log")
        self._on("control", ["slurmctld", "-D", "-i"])
        for name in ("one", "two"):
            self._on(name, ["slurmd", "-D"])
        until(
            lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "both nodes are idle", self.folder / "slurmctld.log"
        )

    def _command(self, host: str, command: list[str]) -> list[str]:
        """Return the command with the host's name, and the names of all hosts."""
        names = f"hostname {host} && mount --bind {self.folder}/hosts /etc/hosts"
        return ["unshare", "--uts", "--mount", "sh", "-c", f'{names} && exec env SLURM_CONF={self.folder}/slurm.conf "$@"', "sh", *command]

    def _on(self, host: str, command: list[str]) -> "subprocess.Popen[bytes]":
        return self.hosts.run(host, self._command(host, command), log=self.folder / f"{host}.log")

    def ask(self, *command: str) -> str:
        """Run a command of Slurm on the controller's host, from the top folder of the source; returns its output."""
        log = self.folder / "ask.log"
        log.unlink(missing_ok=True)
        self.hosts.run("control", self._command("control", list(command)), log=log).wait(timeout=_PATIENCE)
        return log.read_text()

    def submit(self, job: Path, log: Path) -> str:
        """Submit the batch script as a user does; returns the number of the job."""
        size = ["--ntasks=3", "--nodes=2", "--cpus-per-task=2", "--mem-per-cpu=1G", "--time=30", f"--output={log}"]
        given = f"--export=ALL,DFACT_BIN={Path(sys.executable).parent}"
        said = self.ask("sbatch", "--parsable", *size, given, str(MANIFESTS / "slurm" / "job.sbatch"), str(job))
        if not said.strip().isdigit():
            raise RuntimeError(f"sbatch: {said}")
        return said.strip()

    def state(self, number: str) -> dict[str, str]:
        """Return what Slurm shows of the job."""
        return dict(part.split("=", 1) for part in self.ask("scontrol", "show", "job", number).split() if "=" in part)


def processes(number: str, *words: str) -> list[psutil.Process]:
    """Return the processes of the job whose command has all these words."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            command = " ".join(process.info["cmdline"] or ())
            if all(word in command for word in words) and process.environ().get("SLURM_JOB_ID") == number:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def held(number: str) -> psutil.Process:
    """Return the driver of the job, paused, so that the job does not end before what follows."""
    (driver,) = processes(number, "dfact run")
    driver.suspend()
    return driver


def story(slurm: Slurm, study: Path, log: Path) -> list[dict[str, Any]]:
    """Run the job to its end; return a row for each event, with whether it was as it must be."""
    rows: list[dict[str, Any]] = []

    def tell(what: str, found: Any, held: bool) -> None:
        rows.append({"what": what, "found": str(found), "held": held})
        print(rows[-1], flush=True)

    number = slurm.submit(study / "job.toml", log)
    until(lambda: list(study.glob("job.state.*/state-*")), "the first checkpoint", log)
    driver = held(number)
    workers = processes(number, "dask worker")
    step = dict(part.split("=", 1) for part in slurm.ask("scontrol", "show", "step", f"{number}.0").split() if "=" in part)
    hosts = sorted(process.environ()["SLURMD_NODENAME"] for process in workers)
    tell("workers and their nodes", hosts, hosts == ["one", "two"])
    tell("cores of three tasks", step["CPUs"], step["CPUs"] == "6")
    folders = [Path(process.environ()["TMPDIR"]) for process in workers]
    modes = sorted({oct(path.stat().st_mode & 0o777) for path in folders})
    tell("modes of the temporary folders", modes, modes == ["0o700"])
    private = list(study.glob(".dfact-*"))
    modes = [oct(path.stat().st_mode & 0o777) for path in (*private, *(path / "key.pem" for path in private))]
    tell("modes of the key and its folder", modes, modes == ["0o700", "0o600"])
    foreign = Certificates.make(slurm.folder / "foreign")
    own = [workers[0].environ()["DASK_SCHEDULER_ADDRESS"], str(private[0] / "cert.pem"), foreign.certificate, foreign.key]
    answers = slurm.ask(sys.executable, "-c", _STRANGER, *own).split("ANSWER ")[1:]
    answers = [answer.split("\n")[0] for answer in answers]
    tell("strangers, over tls and tcp", answers, len(answers) == 2 and all(answer.startswith("refused") for answer in answers))

    driver.resume()
    slurm.ask("scancel", "--signal=USR1", number)  # as --signal=USR1@300; proctrack/linuxproc sends it to all processes
    until(lambda: slurm.state(number).get("Restarts") == "1", "the job is queued again", log)
    left = [str(path) for path in (*private, *folders) if path.exists()]
    tell("stopped before its time limit, queued again; files that are left", left, not left)
    time.sleep(3)  # Slurm revokes credentials by whole seconds: a job that starts again at once is killed
    slurm.ask("scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm would wait for two minutes
    until(lambda: "Resuming from step" in log.read_text(), "the job resumes", log)
    driver = held(number)
    resumed = next(line for line in log.read_text().splitlines() if "Resuming from step" in line)
    tell("started again", resumed.split('"message": "')[-1].split(" of ")[0], True)
    until(lambda: len(processes(number, "dask worker")) == 2, "the workers join", log)
    processes(number, "dask worker")[-1].send_signal(signal.SIGKILL)
    driver.resume()
    going = ("RUNNING", "PENDING", "COMPLETING", "CONFIGURING", None)
    until(lambda: slurm.state(number).get("JobState") not in going, "the job ends", log)
    final = slurm.state(number)
    ended = final["JobState"], final["ExitCode"]
    tell("a worker was killed; state and exit code of the job", ended, ended == ("COMPLETED", "0:0"))
    left = [path.name for path in study.iterdir() if path.name.startswith(".dfact")]
    tell("files that are left", left, not left)
    return rows


_STRANGER = """
import sys
from distributed import Client, Security
# It trusts the scheduler, which must not trust it.
own = Security(tls_ca_file=sys.argv[2], tls_client_cert=sys.argv[3], tls_client_key=sys.argv[4])
for address, security in (sys.argv[1], own), (sys.argv[1].replace("tls://", "tcp://"), None):
    try:
        Client(address, timeout=60, security=security)
        print("ANSWER admitted", flush=True)
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        print("ANSWER refused", type(error).__name__, flush=True)
"""


def main() -> None:
    possible, reason = available()
    if not possible:
        sys.exit(reason)
    with Hosts(["control", "one", "two"]) as hosts:
        study = hosts.folder / "study"
        study.mkdir()
        answers = np.random.default_rng(0).integers(0, 4, (16384, 128), dtype=np.uint8)
        dataset = dfact.import_array(answers, study / "answers.zarr")
        (study / "job.toml").write_text(_JOB)
        slurm, log = Slurm(hosts), hosts.folder / "job.log"
        try:
            rows = story(slurm, study, log)
        except Exception:
            print(log.read_text()[-6000:] if log.exists() else "no log", (hosts.folder / "slurmctld.log").read_text()[-3000:])
            raise
        found = dfact.load_model(study / "icqf.model")
        expected = dfact.ICQF(3, max_iter=_ITERATIONS, tol=0, init="random", random_state=0).fit(dataset)
        equal = all(
            np.array_equal(one, other)
            for one, other in ((found.components_, expected.components_), (found.factors_[:], expected.factors_[:]))
        )
    thresholds = [*((row["what"], row["held"]) for row in rows), ("the result equals the local one", equal)]
    report("slurm_job", rows, thresholds)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
