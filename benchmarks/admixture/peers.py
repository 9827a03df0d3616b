"""Admixture against fastmixture2, ADAMIXTURE and SCOPE, each run as a program on two processors: likelihood, error, time, memory.

    python -m benchmarks.admixture.peers [--repeats 3] [--install] [--data simulated ...] [--programs dfact scope ...]

The data are SCOPE's example, HapMap 3, ADAMIXTURE's demo and simulated genotypes, 2,000 × 50,000, without the SNPs that do not vary,
which fastmixture2 refuses. A program's Q and P are read from its files, and their log-likelihood is computed here in float64. Times
and peak memory are measured for the processes, start-up and reading included; dfact's are of ``dfact import`` and ``dfact fit``. The
programs run in turn, after a small run of dfact that compiles its kernels. ``--install`` installs those that PyPI has, each
in an environment of its own in the folder of temporary files; others are found on the PATH.
"""

import argparse
import gzip
import importlib.metadata
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.admixture.simulation import root_mean_square_error, write_lists
from benchmarks.common import REAL_DATA, exit_code, report
from dfact.data.synthetic import PlantedAdmixture
from dfact.genetics.genotype_file import pack
from dfact.genetics.kernels import MISSING

_GENOTYPES = REAL_DATA.parent / "genotypes"
_SIMULATED = 2000, 50_000, 8
_THREADS = 2
_GAP, _OTHERS = 1e-6, 0.6  # relative, to the best log-likelihood; ratio to the median time of the others
_FLOOR = 1e-10  # of a probability: SCOPE's frequencies may be 0 or 1
_SECONDS = 3600
_LOG = "output.txt"

Floats = NDArray[np.float64]
Command = list[str]


@dataclass(frozen=True)
class Cohort:
    """Genotypes of which a program finds the populations."""

    name: str
    G: NDArray[np.uint8]
    """Numbers of A2 alleles (n, m), 9 where missing."""
    Q: Floats
    """The memberships to compare with (n, K): planted ones, or those of another program."""

    def write(self, folder: Path) -> Path:
        """Write a .bed file with its .bim and .fam."""
        n, m = self.G.shape
        path = folder / "cohort.bed"
        path.write_bytes(b"\x6c\x1b\x01" + pack(np.ascontiguousarray(self.G.T)).tobytes())
        write_lists(path, n, m)
        return path

    def log_likelihood(self, Q: Floats, P: Floats) -> float:
        """Return Σ g log f + (2 − g) log(1 − f) over the observed genotypes, f = QP."""
        total = 0.0
        for start in range(0, len(Q), 100):
            G = self.G[start : start + 100]
            F = np.clip(Q[start : start + 100] @ P, _FLOOR, 1 - _FLOOR)
            total += float(np.where(G == MISSING, 0.0, G * np.log(F) + (2.0 - G) * np.log1p(-F)).sum())
        return total


@dataclass(frozen=True)
class Program:
    """A program that writes Q (n, K) and P (m, K) for a .bed file."""

    name: str
    commands: Callable[[str, str, int], list[Command]]
    """Takes the executable, the path of the cohort without its suffix, and K; called in an empty folder."""
    read: Callable[[Path], tuple[Floats, Floats]]
    """Return Q (n, K) and P (K, m), of either allele, from the folder."""
    installable: bool = False
    """Whether PyPI has it."""

    def find(self, install: bool) -> str | None:
        """Return the path of the executable; None if there is none."""
        if self.name == "dfact":
            return sys.executable
        folder = Path(tempfile.gettempdir()) / f"peer-{self.name}"
        path = folder / "bin" / self.name
        if install and self.installable and not path.exists():
            venv.create(folder, with_pip=True)
            done = subprocess.run([folder / "bin" / "pip", "install", "-q", self.name], capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{self.name} is not installed: {done.stderr.strip().splitlines()[-1]}")
        return str(path) if path.exists() else shutil.which(self.name)


def _dfact(python: str, cohort: str, k: int) -> list[Command]:
    command = [python, "-m", "dfact.cli.main"]
    return [[*command, "import", f"{cohort}.bed", "data.zarr"], [*command, "fit", "admixture", "data.zarr", "data.model", "-k", str(k)]]


def _fastmixture(program: str, cohort: str, k: int) -> list[Command]:
    return [[program, "-b", cohort, "-k", str(k), "-t", str(_THREADS), "-o", "run"]]


def _adamixture(program: str, cohort: str, k: int) -> list[Command]:
    options = ["--save_dir", ".", "--name", "run", "--chrom_mode", "all", "-t", str(_THREADS)]
    return [[program, "--data_path", f"{cohort}.bed", "-k", str(k), *options]]


def _scope(program: str, cohort: str, k: int) -> list[Command]:
    return [[program, "-g", cohort, "-k", str(k), "-nt", str(_THREADS), "-seed", "1", "-o", "run_"]]


def _read_model(folder: Path) -> tuple[Floats, Floats]:
    model = dfact.load_model(folder / "data.model")
    return np.asarray(model.memberships_[:], np.float64), np.asarray(model.allele_frequencies_, np.float64)


def _read_numbers(folder: Path) -> tuple[Floats, Floats]:
    [Q], [P] = ([np.loadtxt(path, ndmin=2) for path in folder.glob(f"run*.{kind}")] for kind in "QP")
    return Q, P.T


def _read_scope(folder: Path) -> tuple[Floats, Floats]:
    return np.loadtxt(folder / "run_Qhat.txt", ndmin=2).T, np.loadtxt(folder / "run_Phat.txt", ndmin=2).T


PROGRAMS = {
    program.name: program
    for program in (
        Program("dfact", _dfact, _read_model),
        Program("fastmixture2", _fastmixture, _read_numbers, installable=True),
        Program("adamixture", _adamixture, _read_numbers, installable=True),
        Program("fastmixture", _fastmixture, _read_numbers, installable=True),
        Program("scope", _scope, _read_scope),
    )
}
_DEFAULT = ["dfact", "fastmixture2", "adamixture", "scope"]  # fastmixture takes twenty minutes for the simulated genotypes


def read_cohort(name: str, file: str, truth: str) -> Cohort:
    """Read a cohort of the shared data, with the memberships to compare with, without SNPs that do not vary."""
    path = _GENOTYPES / file
    with path.with_suffix(".fam").open() as fam, gzip.open(path.with_suffix(".bim.gz")) as bim:
        n, m = sum(1 for _ in fam), sum(1 for _ in bim)
    packed = np.fromfile(path, np.uint8)[3:].reshape(m, -1)
    codes = (packed[:, :, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    G = np.array([0, MISSING, 1, 2], np.uint8)[codes.reshape(m, -1)[:, :n].T]
    return Cohort(name, _varying(G), np.loadtxt(_GENOTYPES / truth))


def _varying(G: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the SNPs (columns) at which both alleles occur."""
    seen = G != MISSING
    counts = np.where(seen, G, 0).sum(axis=0, dtype=np.int64)
    return np.ascontiguousarray(G[:, (counts > 0) & (counts < 2 * seen.sum(axis=0))])


def simulate(shape: tuple[int, int, int] = _SIMULATED) -> Cohort:
    """Return simulated genotypes."""
    planted = PlantedAdmixture(*shape)
    return Cohort("simulated", _varying(np.concatenate(list(planted.blocks()))), planted.Q)


COHORTS: dict[str, Callable[[], Cohort]] = {
    "scope": lambda: read_cohort("scope", "scope/example_1k.bed", "scope/Q_true.txt.gz"),
    "hapmap3": lambda: read_cohort("hapmap3", "hapmap3/hapmap3.bed", "hapmap3/admixture.3.Q"),
    "demo": lambda: read_cohort("demo", "demo/demo_data.bed", "demo/Q_adamixture_brqn.txt"),
    "simulated": simulate,
}


def measure(commands: Sequence[Command], folder: Path) -> tuple[float, float]:
    """Run commands in turn on two processors; return their wall seconds, and the peak resident memory of a process in MiB."""
    processors = sorted(os.sched_getaffinity(0))[:_THREADS]
    limits = {name: str(_THREADS) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")}
    seconds, peak = 0.0, 0
    with (folder / _LOG).open("wb") as log:
        for command in commands:
            began = time.perf_counter()
            # A process of its own waits for the command, so that the peak belongs to this command alone.
            code = (
                "import os, resource, subprocess, sys; "
                f"os.sched_setaffinity(0, {processors}); "
                f"done = subprocess.run(sys.argv[1:], stdout=sys.stderr, timeout={_SECONDS}).returncode; "
                "print(done, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
            )
            waiter = [sys.executable, "-S", "-c", code, *command]
            done = subprocess.run(waiter, cwd=folder, env=os.environ | limits, stdout=subprocess.PIPE, stderr=log, check=True, text=True)
            seconds += time.perf_counter() - began
            status, kilobytes = map(int, done.stdout.split())
            if status:
                last = (folder / _LOG).read_text(errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(f"exit code {status}: {''.join(last)}")
            peak = max(peak, kilobytes)
    return seconds, peak / 1024


def compare(cohort: Cohort, programs: dict[str, str], repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Run the programs in turn; return a row for each, with medians of the runs."""
    path = cohort.write(folder)
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(repeats):
        for name, executable in programs.items():
            work = folder / f"run-{name}"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            rows[name] = {"data": cohort.name, "program": name}
            try:
                runs[name].append(measure(PROGRAMS[name].commands(executable, str(path.with_suffix("")), cohort.Q.shape[1]), work))
            except (RuntimeError, subprocess.SubprocessError) as error:
                print(f"{name} failed on {cohort.name}: {error}")
                continue
            Q, P = PROGRAMS[name].read(work)
            logs = max(cohort.log_likelihood(Q, P), cohort.log_likelihood(Q, 1 - P))  # frequencies may be of either allele
            rows[name] |= {"log_likelihood": logs, "rmse": root_mean_square_error(Q, cohort.Q)}
    for name, values in runs.items():
        if values:
            seconds, peaks = zip(*values, strict=True)
            rows[name] |= {"seconds": statistics.median(seconds), "least_s": min(seconds), "peak_mib": statistics.median(peaks)}
    best = max(row["log_likelihood"] for row in rows.values() if "log_likelihood" in row)
    for row in rows.values():
        if "log_likelihood" in row:
            row["gap"] = (best - row["log_likelihood"]) / abs(best)
    return list(rows.values())


def thresholds_of(rows: Sequence[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Return the thresholds of dfact for one cohort: the likelihood, and on simulated genotypes the time."""
    measured = {row["program"]: row for row in rows if "seconds" in row}
    name, own = rows[0]["data"], measured.get("dfact")
    if own is None:
        return [(f"{name}: dfact finds the populations", False)]
    found = [(f"{name}: log-likelihood {own['gap']:.1e} below the best (threshold {_GAP:.0e})", own["gap"] <= _GAP)]
    if name != "simulated":
        return found
    if peer := measured.get("fastmixture2"):
        ratio = own["seconds"] / peer["seconds"]
        found.append((f"{name}: {ratio:.2f} of fastmixture2's time (threshold 1)", ratio <= 1))
    others = [row["seconds"] for other, row in measured.items() if other not in ("dfact", "fastmixture2")]
    if others:
        ratio = own["seconds"] / statistics.median(others)
        found.append((f"{name}: {ratio:.2f} of the median time of {len(others)} others (threshold {_OTHERS})", ratio <= _OTHERS))
    return found


def _compile(folder: Path) -> None:
    """Run dfact on a few genotypes, so that its kernels are compiled."""
    rng = np.random.default_rng(0)
    G = rng.integers(0, 3, (200, 300)).astype(np.uint8)
    path = Cohort("small", G, rng.dirichlet(np.ones(3), len(G))).write(folder)
    measure(_dfact(sys.executable, str(path.with_suffix("")), 3), folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--data", nargs="+", default=list(COHORTS), choices=list(COHORTS))
    parser.add_argument("--programs", nargs="+", default=_DEFAULT, choices=list(PROGRAMS))
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    found = {name: PROGRAMS[name].find(options.install) for name in options.programs}
    for name, path in found.items():
        if path is None:
            hint = "pass --install" if PROGRAMS[name].installable else "PyPI does not have it: build it, and put it on the PATH"
            print(f"{name} is left out: it is not on the PATH; {hint}")
    programs = {name: path for name, path in found.items() if path is not None}
    print(f"Python {platform.python_version()}, dfact {importlib.metadata.version('dfact')}, {_THREADS} processors")
    rows: list[dict[str, Any]] = []
    thresholds: list[tuple[str, bool]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        (small := Path(root) / "small").mkdir()
        _compile(small)
        for name in options.data:
            if name != "simulated" and not _GENOTYPES.exists():
                print(f"{name} is left out: there is no folder {_GENOTYPES.name} beside the questionnaires")
                continue
            (folder := Path(root) / name).mkdir()
            measured = compare(COHORTS[name](), programs, options.repeats, folder)
            rows += measured
            thresholds += thresholds_of(measured)
    report("admixture_peers", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
