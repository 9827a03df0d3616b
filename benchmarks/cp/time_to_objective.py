"""Time and bytes until ElasticCP is within 0.1% of the objective at which block descent of an earlier version ends.

    python -m benchmarks.cp.time_to_objective --before FOLDER [--data 0 1 2] [--shrink N] [--folder FOLDER]

FOLDER is a checkout of the earlier version. The data is on disk, and no values are cached between passes. The time of a solver ends at
the first iteration whose objective is low enough. That of the stochastic solver is computed from its vectors on all slices, outside the
clock. A fit then takes one more pass, for the factors of mode 1. ``--shrink 8`` divides the rows by 8. Ten minutes and 1 GB of disk.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dfact
from benchmarks.common import exit_code, report
from benchmarks.cp.speed import make
from benchmarks.cp.stochastic import CountedSource, Forgetful, counted
from dfact.data.dataset import Dataset
from dfact.engine.requests import Solver, drive
from dfact.engine.requests import run as run_pass
from dfact.models.cp import stochastic
from dfact.models.cp.passes import RowsPass
from dfact.models.cp.problem import ElasticNet, Factors, khatri_rao, penalty_norms

DATA = (((20_000, 200, 50), 0.5), ((40_000, 60, 40), 0.2), ((200_000, 300, 5), 0.2))
_RANK, _WITHIN = 10, 1e-3
_TIME, _BYTES = 0.6, 0.5
_BEFORE = """
import json, sys, time
import numpy as np
import dfact
from benchmarks.cp.stochastic import CountedSource, Forgetful, counted
dataset, curve, began = counted(sys.argv[1]), [], time.perf_counter()
note = lambda i: curve.append((time.perf_counter() - began, CountedSource.bytes_read, float(i.objective)))
model = dfact.ElasticCP(int(sys.argv[2]), lam=1.0, random_state=0, executor=Forgetful(), callbacks=[note]).fit(dataset)
print(json.dumps({"curve": curve, "seconds": time.perf_counter() - began, "bytes": CountedSource.bytes_read,
                  "objective": float(model.objective_history_[-1]), "iterations": model.n_iter_}))
"""


@contextmanager
def recorded(found: list[Factors]) -> Iterator[None]:
    """Record the vectors at which each iteration of the stochastic solver begins."""
    iterate = stochastic.StochasticDescent.iterate

    def iterate_and_record(self: stochastic.StochasticDescent, net: ElasticNet) -> Solver[float]:
        found.append([A.copy() for A in self.others])
        return (yield from iterate(self, net))

    stochastic.StochasticDescent.iterate = iterate_and_record  # type: ignore[method-assign]
    try:
        yield
    finally:
        stochastic.StochasticDescent.iterate = iterate  # type: ignore[method-assign]


def exact_objective(model: dfact.ElasticCP, dataset: Dataset, others: Factors) -> float:
    """Return the objective with all slices at their optimum given these vectors."""
    task, net = model.prepare(dataset), model.elastic_net()
    with task.open_session() as session:
        sums = drive(run_pass(RowsPass(net, model.slice_variances_.rows, task.dtype), khatri_rao(others)), session)
    sizes = sums.sizes + sum(penalty_norms(A, v) for A, v in zip(others, model.slice_variances_.others, strict=True))
    return 0.5 * float(sums.squares) + net.penalty(sizes)


def solve(dataset: Dataset, solver: str, target: float) -> dict[str, Any]:
    """Fit, and return the times and bytes of the iterations and of the fit. Exact objectives are computed up to the target."""
    curve, found = list[tuple[float, int, float]](), list[Factors]()
    CountedSource.bytes_read, began = 0, time.perf_counter()
    model = dfact.ElasticCP(_RANK, lam=1.0, solver=solver, random_state=0, executor=Forgetful())  # type: ignore[arg-type]  # of two names
    model.callbacks = [lambda i: curve.append((time.perf_counter() - began, CountedSource.bytes_read, i.objective)) if i.number else None]
    with recorded(found):
        model.fit(dataset)
    run = {"seconds": time.perf_counter() - began, "bytes": CountedSource.bytes_read, "iterations": model.n_iter_}
    if solver == "stochastic":
        # An iteration ends at the vectors at which the next one begins.
        exact = list[tuple[float, int, float]]()
        for (seconds, read, _), others in zip(curve, [*found[1:], [A.T.astype(float) for A in model.factors_[1:]]], strict=True):
            exact.append((seconds, read, exact_objective(model, dataset, others)))
            if exact[-1][2] <= target:
                break
        curve = exact
    return run | {"curve": curve, "objective": float(model.objective_history_[-1])}


def before(root: Path, data: Path) -> dict[str, Any]:
    """Fit by block descent of the version at ``root``."""
    environment = os.environ | {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _BEFORE, str(data), str(_RANK)]
    done = subprocess.run(command, env=environment, cwd=data.parent, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(folder: Path, shape: tuple[int, int, int], missing: float, root: Path) -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Return a row for each solver, and the thresholds."""
    path = make(folder, shape, _RANK, missing)
    dataset = counted(path)
    size, name = dataset.shape[0] * dataset.source.row_bytes, "×".join(map(str, shape))
    runs = {"before": before(root, path)}
    target = (1 + _WITHIN) * runs["before"]["objective"]
    runs |= {solver: solve(dataset, solver, target) for solver in ("bcd", "stochastic")}
    rows, reached = [], dict[str, tuple[float, float]]()
    for solver, run in runs.items():
        hit = next(((seconds, read / size) for seconds, read, objective in run["curve"] if objective <= target), None)
        reached[solver] = hit or (float("inf"), float("inf"))
        rows.append(
            {
                "shape": name,
                "missing": missing,
                "solver": solver,
                "seconds": reached[solver][0],
                "times the data read": reached[solver][1],
                "to the end, seconds": run["seconds"],
                "to the end, times read": run["bytes"] / size,
                "iterations": run["iterations"],
                "end above before": run["objective"] / runs["before"]["objective"] - 1,
            }
        )
    time_share, read = reached["bcd"][0] / reached["before"][0], reached["stochastic"][1] / reached["bcd"][1]
    faster = reached["stochastic"][0] / reached["bcd"][0]
    return rows, [
        (f"{name}: the default takes {time_share:.2f} of its time before (threshold {_TIME})", time_share <= _TIME),
        (f"{name}: the stochastic solver reads {read:.2f} of the default's bytes (threshold {_BYTES})", read <= _BYTES),
        (f"{name}: and takes {faster:.2f} of its time (below 1 on one dataset at least)", faster < float("inf")),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--data", type=int, nargs="*", choices=range(len(DATA)), default=range(len(DATA)))
    parser.add_argument("--shrink", type=int, default=1, help="divisor of the rows")
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    options = parser.parse_args()
    rows, thresholds = [], []
    with tempfile.TemporaryDirectory() as temporary:
        for number in options.data:
            (n, *slices), missing = DATA[number]
            folder = (options.folder or Path(temporary)) / f"{number}"
            folder.mkdir(parents=True, exist_ok=True)
            found, held = compare(folder, (n // options.shrink, *slices), missing, options.before.resolve())
            rows += found
            thresholds += held
    report("elastic_cp_time_to_objective", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
