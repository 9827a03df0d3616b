"""Time of an iteration: the ADMM against NumPy, and the default solver against its matrix products alone.

    python -m benchmarks.bounded_nmf.speed
    python -m benchmarks.bounded_nmf.speed --limit [--rows 102400] [--columns 1000]

Without an option it times one ADMM iteration on eqsq on one thread, against the same steps written with NumPy arrays.
With --limit it times a pass of the default solver over planted answers, from memory and from disk, on one thread and on
two, against the three matrix products of its blocks (X'Q, QB' and XB), a lower bound of its time.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy runs on one thread, too
os.environ.setdefault("MKL_NUM_THREADS", "1")

import argparse
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.bounded_nmf.out_of_core import make
from benchmarks.common import answers, exit_code, report, side_by_side
from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.engine.executors import ThreadsExecutor
from dfact.engine.partitions import partitions
from dfact.engine.passes import RunPass
from dfact.engine.requests import drive
from dfact.engine.threads import single_threaded
from dfact.models.bounded_nmf.passes import MMPass, RowStart
from dfact.models.bounded_nmf.problem import make_problem
from dfact.models.bounded_nmf.solvers import MM

Thresholds = list[tuple[str, bool]]
K, TOP, RHO, BETA = 8, 3, 3.0, 0.1
MEMORY_THRESHOLD, DISK_THRESHOLD = 1.6, 2.0  # multiple of the time of the products
WARM_UP = 10  # passes after which the multipliers have typical values


def dfact_fit(M: NDArray[np.floating], iterations: int) -> Callable[[], object]:
    model = dfact.ICQF(K, solver="admm", bounds=(0, TOP), max_iter=iterations, tol=0, executor="inline")
    return lambda: model.fit(M)


def numpy_iteration(M: NDArray[np.floating]) -> Callable[[], object]:
    """Run the paper's four steps on complete arrays, with one coordinate sweep per side, in M's precision."""
    n, m = M.shape
    dtype = M.dtype.type
    mask, filled = (~np.isnan(M)).astype(dtype), np.nan_to_num(M)
    rng = np.random.default_rng(0)
    state = {"W": rng.random((n, K)).astype(dtype), "Q": rng.random((m, K)).astype(dtype)}
    state["Z"], state["A"] = np.clip(state["W"] @ state["Q"].T, 0, TOP), np.zeros((n, m), dtype)

    def sweep(X: NDArray[np.floating], H: NDArray[np.floating], G: NDArray[np.floating], penalty: float, top: float) -> None:
        for r in range(K):
            X[:, r] = np.clip(X[:, r] - (X @ G[:, r] - H[:, r] + dtype(penalty)) / G[r, r], 0, top)

    def iteration() -> None:
        W, Q, Z, A = state["W"], state["Q"], state["Z"], state["A"]
        B = Z + A / dtype(RHO)
        sweep(W, B @ Q, Q.T @ Q, BETA / RHO, 1)
        sweep(Q, B.T @ W, W.T @ W, BETA * n / m * TOP / RHO, TOP)
        R = W @ Q.T
        state["Z"] = np.clip((mask * filled + dtype(RHO) * R - A) / (dtype(RHO) + mask), 0, TOP)
        state["A"] = A + dtype(RHO) * (state["Z"] - R)

    return iteration


def products(n: int, m: int, k: int, threads: int) -> Callable[[], None]:
    """Compute the three products of all blocks, divided among threads, in arrays that stay in each thread's cache."""
    size = Layout.of((n, m)).block_rows
    rng = np.random.default_rng(0)
    Q = rng.random((k, m), np.float32)

    def run(blocks: int) -> None:
        X = rng.random((k, size), np.float32)
        B, H, C = (np.empty(shape, np.float32) for shape in ((size, m), (k, size), (k, m)))
        for _ in range(blocks):
            np.matmul(X.T, Q, out=B)
            np.matmul(Q, B.T, out=H)
            np.matmul(X, B, out=C)

    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(run, [max(1, n // size // threads)] * threads)) and None


def passes(dataset: Dataset, k: int, threads: int, stack: ExitStack) -> Callable[[], object]:
    """Time passes during a fit over data whose values are not cached in memory."""
    model = dfact.ICQF(k, bounds=(0, TOP), q_max=TOP)
    plan = replace(dfact.plan(model, dataset), resident_states=1 << 30, resident_values=0)
    problem, dtype = make_problem(model, dataset, None), np.dtype(np.float32)
    session = stack.enter_context(ThreadsExecutor(threads).open(partitions(dataset.source, dataset.missing_code, None), plan))
    solver = MM(problem, RowStart(None, 0), dtype)
    assert isinstance(solver.pass_, MMPass)
    point = np.random.default_rng(0).uniform(0, TOP, (k, dataset.shape[1])).astype(dtype)
    for _ in range(WARM_UP):
        sums = session.run(RunPass(solver.pass_, solver.broadcast(point)))
        point = solver.next_point(drive(solver.loadings(sums, point), session))
    return lambda: session.run(RunPass(solver.pass_, solver.broadcast(point)))


def limit(n: int, m: int, k: int = 20) -> Thresholds:
    """Compare the default solver's pass with its products."""
    planted = PlantedQuestionnaire(n, m, k, top=TOP, missing=0.1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "planted.zarr"
        make(path, planted)
        M = np.concatenate([np.where(chunk == 255, np.nan, chunk).astype(np.float32) for chunk in planted.chunks(10_000)])
        stack.enter_context(single_threaded())
        functions: dict[str, Callable[[], object]] = {}
        for threads in (1, 2):
            functions[f"products, {threads}"] = products(n, m, k, threads)
            functions[f"memory, {threads}"] = passes(as_dataset(M), k, threads, stack)
            functions[f"disk, {threads}"] = passes(dfact.open_dataset(path), k, threads, stack)
        seconds = side_by_side(functions, 3)
    rows, thresholds = [], Thresholds()
    for name, time in seconds.items():
        what, threads = name.split(", ")
        ratio = time / seconds[f"products, {threads}"]
        rows.append({"what": what, "threads": int(threads), "ns_per_entry": time * 1e9 / (n * m), "ratio": ratio})
        if what != "products":
            threshold = MEMORY_THRESHOLD if what == "memory" else DISK_THRESHOLD
            thresholds.append(
                (f"a pass from {what} on {threads} thread(s) takes {ratio:.2f} × its products (threshold {threshold})", ratio <= threshold)
            )
    report("icqf_limit", rows, thresholds)
    return thresholds


def admm() -> Thresholds:
    """Compare the ADMM's iteration with NumPy."""
    M32 = answers("eqsq")
    M64 = M32.astype(np.float64)
    few, many = 20, 120
    times = side_by_side(
        {
            "few32": dfact_fit(M32, few),
            "many32": dfact_fit(M32, many),
            "few64": dfact_fit(M64, few),
            "many64": dfact_fit(M64, many),
            "numpy32": numpy_iteration(M32),
            "numpy64": numpy_iteration(M64),
        }
    )
    seconds = {
        "dfact float32": (times["many32"] - times["few32"]) / (many - few),
        "dfact float64": (times["many64"] - times["few64"]) / (many - few),
        "NumPy float32": times["numpy32"],
        "NumPy float64": times["numpy64"],
    }
    rows = [{"what": name, "ms_per_iteration": s * 1e3, "ns_per_entry": s * 1e9 / M32.size} for name, s in seconds.items()]
    ns, ratio = seconds["dfact float32"] * 1e9 / M32.size, seconds["NumPy float64"] / seconds["dfact float32"]
    same = seconds["NumPy float32"] / seconds["dfact float32"]
    thresholds = [
        (f"{ns:.2f} ns per entry and iteration in float32 on one thread (threshold 2.5)", ns <= 2.5),
        (f"{ratio:.1f} × faster than NumPy's arrays as they come, float64 (threshold 10); {same:.1f} × at the same precision", ratio >= 10),
    ]
    report("icqf_speed", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", action="store_true", help="time the default solver's pass against its matrix products")
    parser.add_argument("--rows", type=int, default=102_400)
    parser.add_argument("--columns", type=int, default=1000)
    options = parser.parse_args()
    return exit_code(limit(options.rows, options.columns) if options.limit else admm())


if __name__ == "__main__":
    sys.exit(main())
