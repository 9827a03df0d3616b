"""CPU time of small commands from their start, with this version and with an earlier one, compared with fastmixture2's.

    python -m benchmarks.versions.start_up --before FOLDER [--repeats 5] [--install]

FOLDER is a checkout of the earlier version, made for instance by ``git worktree add FOLDER COMMIT``. Each command is a process of its
own, with compiled kernels; its time is that of the user and the system. The versions run in turn. ``--install`` installs fastmixture2.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.admixture.peers import COHORTS, PROGRAMS, Cohort
from benchmarks.common import exit_code, report

_MAIN = "from dfact.cli.main import main; raise SystemExit(main())"
_FIT = "import numpy as np, dfact; dfact.ICQF(n_components=3).fit(np.random.default_rng(0).random((500, 20)))"
_DEMO = "dfact-demo/answers.zarr"
_LIMITS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "2")
BARS = {"dfact --help": 0.15, "dfact info": 0.4, "dfact fit icqf": 1.0, "ICQF().fit(X)": 1.0}
"""Seconds of CPU time of each program."""
_PEER, _PEER_BAR = "fastmixture2", 1.2


def programs(folder: Path, cohort: Cohort) -> dict[str, list[list[str]]]:
    """Return the arguments of Python for each program, whose commands run in turn in this folder."""
    bed = str(cohort.write(folder))
    fit = ["-k", str(cohort.Q.shape[1]), "--overwrite"]
    return {
        "dfact --help": [["-c", _MAIN, "--help"]],
        "dfact info": [["-c", _MAIN, "info", _DEMO]],
        "dfact fit icqf": [["-c", _MAIN, "fit", "icqf", _DEMO, "icqf.model", "-k", "4", "--overwrite"]],
        "ICQF().fit(X)": [["-c", _FIT]],
        "dfact fit admixture": [
            ["-c", _MAIN, "import", bed, "data.zarr", "--overwrite"],
            ["-c", _MAIN, "fit", "admixture", "data.zarr", "data.model", *fit],
        ],
    }


def cpu_seconds(commands: list[list[str]], folder: Path, version: Path | None = None) -> float:
    """Run commands in turn; return the CPU seconds of the user and the system."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | _LIMITS
    if version is not None:
        environment["PYTHONPATH"] = str(version)
    seconds = 0.0
    for command in commands:
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            errors = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{command} ended with {process.returncode}: {errors.decode(errors='replace')[-500:]}")
        seconds += usage.ru_utime + usage.ru_stime
    return seconds


def medians(measured: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Return the median of each measurement; they run in turn, after one round that compiles."""
    rounds = [{name: measure() for name, measure in measured.items()} for _ in range(repeats + 1)][1:]
    return {name: statistics.median(each[name] for each in rounds) for name in measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="FOLDER", required=True, help="checkout of the earlier version")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each program")
    parser.add_argument("--install", action="store_true", help="install fastmixture2")
    arguments = parser.parse_args()
    versions = {"before": arguments.before.resolve(), "now": Path(__file__).resolve().parents[2]}
    cohort = COHORTS["scope"]()
    rows, thresholds = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cpu_seconds([[sys.executable, "-c", _MAIN, "demo"]], folder, versions["now"])
        for name, commands in programs(folder, cohort).items():
            with_python = [[sys.executable, *command] for command in commands]
            measured: dict[str, Callable[[], float]] = {
                version: (lambda path=path, run=with_python: cpu_seconds(run, folder, path)) for version, path in versions.items()
            }
            peer = PROGRAMS[_PEER].find(arguments.install) if name == "dfact fit admixture" else None
            if peer is not None:
                cohort_path = str((folder / "cohort.bed").with_suffix(""))
                run = PROGRAMS[_PEER].commands(peer, cohort_path, cohort.Q.shape[1])
                measured[_PEER] = lambda run=run: cpu_seconds(run, folder)
            row = medians(measured, arguments.repeats)
            rows.append({"program": name, **row})
            if name in BARS:
                thresholds.append((f"{name}: {row['now']:.2f} s of CPU time (threshold {BARS[name]})", row["now"] <= BARS[name]))
            elif peer is not None:
                ratio = row["now"] / row[_PEER]
                thresholds.append((f"{name}: {ratio:.2f} of {_PEER}'s CPU time (threshold {_PEER_BAR})", ratio <= _PEER_BAR))
    report("start_up", rows, thresholds)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
