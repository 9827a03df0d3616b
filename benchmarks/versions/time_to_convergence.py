"""Time from a file to an objective within 0.1% of an earlier version's final one, for this version and the earlier one.

    python -m benchmarks.versions.time_to_convergence --before FOLDER [--cases WORD ...] [--scale 1] [--folder FOLDER]
    python -m benchmarks.versions.time_to_convergence --before FOLDER --refits

FOLDER is a checkout of the earlier version, made for instance by ``git worktree add FOLDER COMMIT``. The target is 1.001 times the lowest
objective that the earlier version reaches on convergence. For each version the minimum number of iterations that reaches the
target is determined, and a complete fit with this number is timed three times in turn, each in a new process with compiled
kernels. ``--scale 0.1`` uses a tenth of the rows of planted data. ``--refits`` times selection and the bootstrap instead.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dfact
from benchmarks.bounded_nmf import out_of_core
from benchmarks.common import answers, exit_code, report
from benchmarks.cp import stochastic
from benchmarks.expectile import speed
from dfact.data.synthetic import PlantedQuestionnaire

_WITHIN, _REPEATS = 1e-3, 3
_ITERATIONS = [*range(1, 20), *range(20, 60, 4), *range(60, 161, 10), 200, 300]
_FIT = """
import json, sys, time, warnings
import dfact
warnings.simplefilter("ignore")
name, data, parameters = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model = getattr(dfact, name)(**parameters, executor="threads")
if json.loads(sys.argv[4]):
    getattr(dfact, name)(**parameters | {"max_iter": 2}, executor="threads").fit(sys.argv[5])
began = time.perf_counter()
model.fit(dfact.open_dataset(data))
print(json.dumps([float(model.objective_history_[-1]), time.perf_counter() - began]))
"""
_REFITS = """
import inspect, json, sys, time, warnings
import dfact
from dfact.selection import block_cross_validate
from dfact.selection import bootstrap
warnings.simplefilter("ignore")
name, X = sys.argv[1], dfact.open_dataset(sys.argv[2])
warm = dfact.ICQF(2, executor="threads", random_state=0, max_iter=12).fit(X)
bootstrap(warm, X, n_resamples=2, random_state=0)
model = dfact.ICQF(4, executor="threads", random_state=0).fit(X)
began = time.perf_counter()
if name == "bootstrap":
    bootstrap(model, X, n_resamples=20, random_state=0)
elif name == "bootstrap, cold":
    name = next(name for name in ("warm_start", "warm") if name in inspect.signature(bootstrap).parameters)  # renamed since
    bootstrap(model, X, n_resamples=20, random_state=0, **{name: False})
else:
    block_cross_validate(model, X, {"n_components": range(2, 6), "beta": (0.1, 0.2)}, n_folds=5, random_state=0)
print(json.dumps(time.perf_counter() - began))
"""


@dataclass(frozen=True)
class Case:
    """Data, its estimator, and the threshold."""

    make: Callable[[Path, float], Path]
    """Writes the data, planted ones with this share of their rows, into a folder."""
    estimator: str
    parameters: Mapping[str, Any]
    threshold: float
    most: int = 300
    """Iterations after which the earlier version has settled."""


def _planted(n: int, m: int, k: int) -> Callable[[Path, float], Path]:
    def make(folder: Path, scale: float) -> Path:
        path, rows = folder / f"planted-{n}x{m}-{scale}.zarr", max(200, round(scale * n))
        if not path.exists():
            out_of_core.make(path, PlantedQuestionnaire(rows, m, k))
        return path

    return make


def _real(name: str) -> Callable[[Path, float], Path]:
    def make(folder: Path, _: float) -> Path:
        path = folder / f"{name}.zarr"
        if not path.exists():
            dfact.import_array(answers(name), path)
        return path

    return make


def _skewed(folder: Path, scale: float) -> Path:
    path = folder / f"skewed-{scale}.zarr"
    if not path.exists():
        speed.make(path, max(200, round(scale * 1_000_000)), 300)
    return path


def _tensor(folder: Path, scale: float) -> Path:
    return stochastic.make(folder, (max(200, round(scale * 200_000)), 300, 5), 5, 0.2)


CASES = {
    "icqf planted 500000x1000": Case(_planted(500_000, 1000, 20), "ICQF", {"n_components": 20, "memory_limit": "1GiB"}, 0.5, 160),
    "icqf planted 100000x500": Case(_planted(100_000, 500, 10), "ICQF", {"n_components": 10}, 0.5, 200),
    "icqf big5": Case(_real("big5"), "ICQF", {"n_components": 5}, 0.5),
    "icqf ecr": Case(_real("ecr"), "ICQF", {"n_components": 4}, 0.5),
    "icqf sd3": Case(_real("sd3"), "ICQF", {"n_components": 3}, 0.5),
    "icqf npi": Case(_real("npi"), "ICQF", {"n_components": 5}, 0.5),
    "emf skewed 1000000x300": Case(_skewed, "ExpectileMF", {"n_components": 10, "tau": 0.1, "ridge": 0.1}, 0.6, 100),
    "cp 200000x300x5": Case(_tensor, "ElasticCP", {"n_components": 5, "lam": 1.0, "random_state": 0}, 0.6, 200),
}


def fit(root: Path, case: Case, data: Path, iterations: int, *, warm: Path | None = None) -> tuple[float, float]:
    """Return final objective and seconds of a fit with this number of iterations and the version at ``root``, in a new process.

    With ``warm``, a small dataset, a fit to it compiles the kernels first.
    """
    parameters = dict(case.parameters) | {"max_iter": iterations, "tol": 0}
    arguments = [case.estimator, str(data), json.dumps(parameters), json.dumps(warm is not None), str(warm)]
    objective, seconds = run(root, _FIT, arguments)
    return objective, seconds


def run(root: Path, code: str, arguments: Sequence[str]) -> Any:
    """Return the printed output of the code, run in a new process with the version at ``root``."""
    environment = os.environ | {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:  # a folder without a package
        done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, cwd=folder, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def least_iterations(objective: Callable[[int], float], target: float, most: int) -> int:
    """Return the minimum number of iterations that reaches the target, as objectives fall; ``most`` if none does."""
    numbers = [i for i in _ITERATIONS if i < most] + [most]
    low, high = 0, len(numbers) - 1
    while low < high:
        middle = (low + high) // 2
        if objective(numbers[middle]) <= target:
            high = middle
        else:
            low = middle + 1
    return numbers[low]


def race(name: str, case: Case, versions: Mapping[str, Path], folder: Path, scale: float) -> tuple[dict[str, Any], tuple[str, bool]]:
    """Return a row of the table and its threshold."""
    data, warm = case.make(folder, scale), case.make(folder, 1e-9 if name.split()[1] in {"planted", "skewed"} else scale)
    end = min(fit(versions["before"], case, data, most)[0] for most in (case.most // 2, case.most))
    target = (1 + _WITHIN) * end
    row: dict[str, Any] = {"case": name, "end_before": end}
    for version, root in versions.items():
        row[f"iterations_{version}"] = least_iterations(lambda i, root=root: fit(root, case, data, i)[0], target, case.most)  # type: ignore[misc]  # bound now
    runs = {
        version: [fit(root, case, data, row[f"iterations_{version}"], warm=warm) for _ in range(_REPEATS)]
        for version, root in versions.items()
    }
    for version, found in runs.items():
        row[f"objective_{version}"], row[f"seconds_{version}"] = found[-1][0], statistics.median(seconds for _, seconds in found)
    ratio = row["seconds_now"] / row["seconds_before"]
    row["ratio"] = ratio
    met = all(row[f"objective_{version}"] <= target for version in versions)
    return row, (
        f"{name}: {ratio:.2f} × the time before (threshold {case.threshold}){'' if met else ', target not met'}",
        met and ratio <= case.threshold,
    )


def race_refits(data: Path, versions: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return a row for selection and for the bootstrap, with warm and cold starts."""
    rows: list[dict[str, Any]] = []
    for name in ("selection", "bootstrap", "bootstrap, cold"):
        times: dict[str, list[float]] = {version: [] for version in versions}
        for _ in range(_REPEATS):
            for version, root in versions.items():
                times[version].append(run(root, _REFITS, [name, str(data)]))
        before, now = (statistics.median(times[version]) for version in ("before", "now"))
        rows.append({"case": f"{name} on {data.stem}", "seconds_before": before, "seconds_now": now, "ratio": now / before})
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=[""], help="words, of which a case's name has one")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--refits", action="store_true")
    options = parser.parse_args()
    versions = {"before": options.before.resolve(), "now": Path(__file__).resolve().parents[2]}
    rows, thresholds = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.refits:
            report("time_to_refits", [row for name in ("sd3", "big5") for row in race_refits(_real(name)(folder, 1), versions)])
            return 0
        for name, case in CASES.items():
            if any(word in name for word in options.cases):
                row, threshold = race(name, case, versions, folder, options.scale)
                print(row, flush=True)
                rows.append(row)
                thresholds.append(threshold)
    report("time_to_end", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
