"""Final objectives of default fits with this version and with an earlier one, on all shared data and with several seeds.

    python -m benchmarks.versions.default_fits --before FOLDER [--cases WORD ...]

FOLDER is a checkout of the earlier version, made for instance by ``git worktree add FOLDER COMMIT``. No fit may end more than 0.05%
above the same fit with the earlier version.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import QUESTIONNAIRES, REAL_DATA, answers, exit_code, report
from benchmarks.expectile.paper import response_times

_BAR = 5e-4
_SEEDS = 5
_FIT = """
import json, sys, time, warnings
import numpy as np
import dfact
warnings.simplefilter("ignore")
data, found = np.load(sys.argv[2]), []
for parameters in json.loads(sys.argv[3]):
    began = time.perf_counter()
    model = getattr(dfact, sys.argv[1])(**parameters).fit(data)
    found.append([float(model.objective_history_[-1]), model.n_iter_, time.perf_counter() - began])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Case:
    """Data and its estimator."""

    data: Callable[[], NDArray[Any]]
    estimator: str
    parameters: Mapping[str, Any]

    def fits(self) -> list[dict[str, Any]]:
        """Return the parameters of a fit with the default start, and of one with a random start for each seed."""
        starts = [{"random_state": 0}, *({"init": "random", "random_state": seed} for seed in range(_SEEDS))]
        return [dict(self.parameters) | start for start in starts]


def _real(name: str) -> Callable[[], NDArray[Any]]:
    return lambda: answers(name)


def _tensor(name: str) -> Callable[[], NDArray[Any]]:
    return lambda: np.asarray(np.load(REAL_DATA.parent / "tensors" / f"{name}.npz")["X"], np.float64)


_COMPONENTS = {name: values[3] for name, values in QUESTIONNAIRES.items()} | {"ecr": 4, "sd3": 3, "npi": 5}
CASES = {
    f"{estimator.lower()} {name}": Case(_real(name), estimator, {"n_components": k})
    for estimator in ("ICQF", "NMF")
    for name, k in _COMPONENTS.items()
}
CASES |= {
    f"emf latency, {tau}": Case(response_times, "ExpectileMF", {"n_components": 10, "tau": tau, "ridge": 0.1}) for tau in (0.1, 0.5, 0.9)
}
CASES |= {f"cp {name}": Case(_tensor(name), "ElasticCP", {"n_components": 3, "lam": 0.1}) for name in ("amino", "il2", "kinetic")}


def ends(root: Path, case: Case, data: Path) -> list[tuple[float, int, float]]:
    """Return final objective, iterations and seconds of each fit with the version at ``root``."""
    environment = os.environ | {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    arguments = [case.estimator, str(data), json.dumps(case.fits())]
    done = subprocess.run([sys.executable, "-c", _FIT, *arguments], env=environment, cwd=data.parent, check=True, stdout=subprocess.PIPE)
    return [(objective, n, seconds) for objective, n, seconds in json.loads(done.stdout.splitlines()[-1])]


def compare(name: str, case: Case, versions: Mapping[str, Path]) -> tuple[list[dict[str, Any]], tuple[str, bool]]:
    """Return a row for each fit, and the threshold for all."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npy"
        np.save(data, case.data())
        found = {version: ends(root, case, data) for version, root in versions.items()}
    rows: list[dict[str, Any]] = []
    for i, parameters in enumerate(case.fits()):
        row: dict[str, Any] = {"case": name, "start": f"random, {parameters['random_state']}" if "init" in parameters else "default"}
        for version, fits in found.items():
            row[f"end_{version}"], row[f"iterations_{version}"], row[f"seconds_{version}"] = fits[i]
        rows.append(row | {"above": row["end_now"] / row["end_before"] - 1})
    worst = max(row["above"] for row in rows)
    return rows, (f"{name}: at most {100 * worst:+.3f}% above the end before (threshold {100 * _BAR:+.2f}%)", worst <= _BAR)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=[""], help="words, of which a case's name has one")
    options = parser.parse_args()
    versions = {"before": options.before.resolve(), "now": Path(__file__).resolve().parents[2]}
    rows, thresholds = [], []
    for name, case in CASES.items():
        if any(word in name for word in options.cases):
            found, threshold = compare(name, case, versions)
            print(threshold[0], flush=True)
            rows += found
            thresholds.append(threshold)
    report("default_ends", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
