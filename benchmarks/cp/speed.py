"""Speed of ElasticCP: an iteration against TensorLy's and pyttb's, the path of the paper's table 3, an iteration out of core.

python -m benchmarks.cp.speed [--parts sweeps path disk] [--folder FOLDER]

The peers are used if installed (pip install tensorly pyttb). The time of an iteration is the time of 22 or 10 iterations
minus the time of 2, divided by 20 or 8; both are medians of runs in turn.
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import dfact
from benchmarks.common import Peak, call_in_new_process, exit_code, report
from dfact.data.synthetic import elastic_cp_simulation
from dfact.models.cp.path import default_lambdas

Thresholds = list[tuple[str, bool]]
Fit = Callable[[int], object]
"""A fit of this many iterations."""

CHUNK = 10_000


def fits(T: NDArray[np.float64], mask: NDArray[np.bool_], rank: int) -> dict[str, Fit]:
    """Return the fits of dfact and the peers, with and without missing entries."""
    gaps, settings = np.where(mask, T, np.nan), {"lam": 1e-6, "l1_ratio": 0.0, "tol": 0, "n_init": 1, "random_state": 0}
    found: dict[str, Fit] = {
        "masked, dfact": lambda n: dfact.ElasticCP(rank, max_iter=n, **settings).fit(gaps),
        "masked, dfact exact": lambda n: dfact.ElasticCP(rank, max_iter=n, missing="exact", **settings).fit(gaps),
        "full, dfact": lambda n: dfact.ElasticCP(rank, max_iter=n, **settings).fit(T),
    }
    if find_spec("tensorly"):
        import tensorly as tl
        from tensorly.decomposition import parafac

        peer: dict[str, Any] = {"tol": 0, "init": "random", "random_state": 0}
        found["masked, TensorLy"] = lambda n: parafac(tl.tensor(np.where(mask, T, 0)), rank, n, mask=tl.tensor(mask.astype(float)), **peer)
        found["full, TensorLy"] = lambda n: parafac(tl.tensor(T), rank, n, **peer)
    if find_spec("pyttb"):
        import pyttb

        tensor = pyttb.tensor(T)
        found["full, pyttb"] = lambda n: pyttb.cp_als(tensor, rank, maxiters=n, stoptol=0, printitn=0)
    return found


def seconds_of(fit: Fit, iterations: int) -> float:
    began = time.perf_counter()
    fit(iterations)
    return time.perf_counter() - began


def sweeps(shape: tuple[int, ...], rank: int, repeats: int) -> Thresholds:
    rng = np.random.default_rng(0)
    T = np.einsum("ir,jr,kr->ijk", *(rng.random((size, rank)) for size in shape)) + 0.01 * rng.standard_normal(shape)
    solvers = fits(T, rng.random(shape) < 0.75, rank)
    long = {name: 10 if name in ("masked, TensorLy", "masked, dfact exact") else 22 for name in solvers}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the peers
        for fit in solvers.values():
            fit(1)
        # In turn, so that noise of the machine affects all alike.
        runs = [{name: (seconds_of(fit, 2), seconds_of(fit, long[name])) for name, fit in solvers.items()} for _ in range(repeats)]
    # A peer's runs of the same length may differ threefold, so their medians are taken before the difference.
    times = {}
    for name in solvers:
        short, whole = (statistics.median(run[name][i] for run in runs) for i in (0, 1))
        times[name] = (whole - short) / (long[name] - 2)
    rows = [{"what": name, "ms": 1e3 * seconds} for name, seconds in times.items()]
    masked, full = 1e3 * times["masked, dfact"], 1e3 * times["full, dfact"]
    thresholds = [(f"masked {masked:.1f} ms (threshold 25)", masked <= 25), (f"unmasked {full:.1f} ms (threshold 30)", full <= 30)]
    if "masked, TensorLy" in times:
        ratio = times["masked, TensorLy"] / times["masked, dfact"]
        thresholds.append((f"masked {ratio:.1f} × as fast as TensorLy (threshold 40)", ratio >= 40))
    peers = [times[name] for name in ("full, TensorLy", "full, pyttb") if name in times]
    if peers:
        ratio = min(peers) / times["full, dfact"]
        thresholds.append((f"unmasked {ratio:.2f} × as fast as the better peer (threshold 2)", ratio >= 2))
    report("elastic_cp_sweeps", rows, thresholds)
    return thresholds


def path(size: int, rank: int, seeds: int) -> Thresholds:
    """Time the path of table 3: 20 dB, a quarter missing, from a rank one too high, refined."""
    lambdas = [lam for lam in default_lambdas() if lam >= 1e-4]
    rows = []
    for seed in range(seeds):
        sim = elastic_cp_simulation(size, rank, seed, snr=20, missing=0.25)
        began = time.perf_counter()
        table = dfact.ElasticCP(rank + 1, l1_ratio=0.8, random_state=seed).path(sim.Z, lambdas).table
        seconds = time.perf_counter() - began
        iterations = int(table["iterations"].sum() + table["refined_iterations"].sum())
        rows.append(
            {"seed": seed, "steps": len(table), "iterations": iterations, "true rank": rank in set(table["rank"]), "seconds": seconds}
        )
    slowest = max(row["seconds"] for row in rows)
    thresholds = [
        (f"a path of {size}³ takes {slowest:.2f} s at most (threshold 15; the paper 322)", slowest < 15),
        (
            f"the true rank is on {sum(row['true rank'] for row in rows)} of {seeds} paths (threshold: all)",
            all(row["true rank"] for row in rows),
        ),
    ]
    report("elastic_cp_path", rows, thresholds)
    return thresholds


def make(folder: Path, shape: tuple[int, int, int], rank: int, missing: float = 0.2) -> Path:
    """Return answers 0 to 3 of a planted model, some missing (255), as a dataset."""
    rng = np.random.default_rng(0)
    H = np.einsum("jr,kr->rjk", rng.random((shape[1], rank)), rng.random((shape[2], rank))).astype(np.float32)
    H *= 6 / rank
    raw = zarr.create_array(folder / "raw.zarr", shape=shape, chunks=(CHUNK, *shape[1:]), dtype="u1", overwrite=True)
    for start in range(0, shape[0], CHUNK):
        n = min(CHUNK, shape[0] - start)
        values = (rng.random((n, rank), np.float32) @ H.reshape(rank, -1)).reshape(n, *shape[1:])
        values += rng.standard_normal(values.shape, np.float32) / 2
        answers = np.rint(np.clip(values, 0, 3)).astype(np.uint8)
        answers[rng.random(answers.shape, np.float32) < missing] = 255
        raw[start : start + n] = answers
    target = folder / "answers.zarr"
    dfact.import_array(raw, target, missing=255, overwrite=True)
    return target


def out_of_core(target: str, rank: int, long: int, keep: bool) -> dict[str, Any]:
    """Return nanoseconds per entry and iteration, and memory; the plan has room for the values only with ``keep``."""
    dataset = dfact.open_dataset(target)
    model = dfact.ElasticCP(rank, lam=1.0, max_iter=2, tol=0, random_state=0)
    plan = dfact.plan(model, dataset)
    if not keep:
        model.memory_limit = int(plan.workers.baseline + plan.working + plan.driver + 1.2 * plan.state) + (
            12 << 20
        )  # room for a partition or two
        plan = dfact.plan(model, dataset)
    marks: list[float] = []
    model.callbacks = [lambda iteration: marks.append(iteration.seconds)]
    model.max_iter = long
    with Peak() as peak:
        began = time.perf_counter()
        model.fit(dataset)
        whole = time.perf_counter() - began
    seconds = np.diff(marks[1:])
    return {
        "shape": "×".join(map(str, dataset.shape)),
        "values in memory": f"{plan.cached_partitions} of {plan.n_partitions} partitions",
        "ns an entry": 1e9 * statistics.median(seconds) / float(np.prod(dataset.shape)),
        "fit_s": whole,
        "peak_GiB": peak.bytes / 2**30,
        "plan_GiB": plan.peak / 2**30,
    }


def disk(folder: Path, shape: tuple[int, int, int], rank: int, iterations: int) -> Thresholds:
    target = str(make(folder, shape, rank))
    rows = [call_in_new_process("benchmarks.cp.speed", "out_of_core", target, rank, iterations, keep) for keep in (False, True)]
    thresholds = []
    for row in rows:
        text = f"{row['shape']}, {row['values in memory']} decoded in memory: {row['ns an entry']:.2f} ns an entry (threshold 4)"
        thresholds.append((text, row["ns an entry"] <= 4))
        thresholds.append((f"peak {row['peak_GiB']:.2f} GiB, the plan {row['plan_GiB']:.2f}", row["peak_GiB"] <= row["plan_GiB"]))
    report("elastic_cp_disk", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=["sweeps", "path", "disk"], default=["sweeps", "path", "disk"])
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    parser.add_argument("--repeats", type=int, default=3, help="runs whose median time counts")
    options = parser.parse_args()
    thresholds: Thresholds = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if "sweeps" in options.parts:
            thresholds += sweeps((300, 200, 100), 10, options.repeats)
        if "path" in options.parts:
            thresholds += path(50, 9, 3)
        if "disk" in options.parts:
            thresholds += disk(folder, (200_000, 300, 5), 10, 8)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
