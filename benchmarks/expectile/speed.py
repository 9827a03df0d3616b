"""Expectile matrix factorization: time of a sweep against a NumPy row loop and cmfrec, growth with the entries, out of core.

    python -m benchmarks.expectile.speed [--rows 1000000] [--columns 300] [--folder DIR]

A sweep minimizes over the rows and takes a step for the columns. The NumPy loop does the same row by row and column by
column. cmfrec (``pip install cmfrec``) is measured if installed: explicit ALS without biases,
Cholesky, double precision, two threads.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the peers run on one thread, too; cmfrec has its own threads

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from benchmarks.bounded_nmf.out_of_core import Clock
from benchmarks.common import Peak, call_in_new_process, exit_code, report, side_by_side
from dfact.data.memory_limit import parse_bytes
from dfact.imports.writing.writer import dataset_writer

K, SWEEPS, RIDGE = 10, 30, 1e-3
SHAPE = 1000, 1000
"""Rows and columns of the sweeps side by side."""
PASSES = 8


def skewed(n: int, m: int, observed: float, seed: int = 0) -> Any:
    """Return the paper's synthetic data as CSR: U(0, 1) factors, noise ½χ²(3)."""
    rng = np.random.default_rng(seed)
    X, Y = rng.random((n, K)), rng.random((m, K))
    count = rng.binomial(m, observed, n)
    indptr = np.concatenate([[0], np.cumsum(count)])
    indices = np.concatenate([np.sort(rng.choice(m, c, replace=False)) for c in count])
    rows = np.repeat(np.arange(n), count)
    data = np.einsum("pk,pk->p", X[rows], Y[indices]) + 0.5 * rng.chisquare(3, len(indices))
    return sp.csr_array((data, indices, indptr), shape=(n, m))


def fit(A: Any, tau: float, sweeps: int) -> Callable[[], object]:
    model = dfact.ExpectileMF(K, tau=tau, ridge=RIDGE, max_iter=sweeps, tol=0, executor="inline")
    return lambda: model.fit(A)


def numpy_sweep(A: Any, tau: float) -> Callable[[], object]:
    """Minimize over every row by Newton's method on the signs, and take one Newton step for every column."""
    rng = np.random.default_rng(0)
    columns = A.T.tocsr()
    X, Y = rng.random((A.shape[0], K)), rng.random((A.shape[1], K))

    def step(F: NDArray[np.float64], b: NDArray[np.float64], x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        signs = b >= F @ x
        w = np.where(signs, tau, 1 - tau)[:, None]
        return np.linalg.solve(F.T @ (w * F) + RIDGE * np.eye(K), F.T @ (w[:, 0] * b)), signs

    def sweep() -> None:
        for i in range(len(X)):
            J, b = A.indices[A.indptr[i] : A.indptr[i + 1]], A.data[A.indptr[i] : A.indptr[i + 1]]
            before = None
            for _ in range(100):
                new, signs = step(Y[J], b, X[i])
                if before is not None and (signs == before).all():
                    break
                X[i], before = new, signs
        for j in range(len(Y)):
            entries = slice(columns.indptr[j], columns.indptr[j + 1])
            Y[j] = step(X[columns.indices[entries]], columns.data[entries], Y[j])[0]

    return sweep


def cmfrec_fit(A: Any, sweeps: int) -> Callable[[], object]:
    from cmfrec import CMF

    settings = {"user_bias": False, "item_bias": False, "center": False, "use_cg": False, "use_float": False, "verbose": False}
    model = CMF(k=K, lambda_=RIDGE, method="als", niter=sweeps, nthreads=2, precompute_for_predictions=False, **settings)
    triplets = A.tocoo()
    return lambda: model.fit(triplets)


def sweeps_side_by_side(n: int, m: int, repeats: int) -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    A = skewed(n, m, 0.1)
    few, many = 2, SWEEPS + 2
    functions = {f"{what} {tau}": fit(A, tau, sweeps) for tau in (0.1, 0.5) for what, sweeps in (("few", few), ("many", many))}
    functions |= {f"NumPy {tau}": numpy_sweep(A, tau) for tau in (0.1, 0.5)}
    functions["whole"] = fit(A, 0.1, SWEEPS)
    peer = find_spec("cmfrec") is not None
    if peer:
        functions |= {"cmfrec few": cmfrec_fit(A, few), "cmfrec many": cmfrec_fit(A, many)}
    times = side_by_side(functions, repeats)
    ours = {tau: (times[f"many {tau}"] - times[f"few {tau}"]) / SWEEPS for tau in (0.1, 0.5)}
    rows = [{"what": f"dfact, tau {tau}", "ms_per_sweep": s * 1e3, "ns_per_entry": s * 1e9 / A.nnz} for tau, s in ours.items()]
    rows += [{"what": f"NumPy loop, tau {o}", "ms_per_sweep": times[f"NumPy {o}"] * 1e3} for o in (0.1, 0.5)]
    ratio = times["NumPy 0.1"] / ours[0.1]
    thresholds = [
        (f"{SWEEPS} sweeps with start and end take {times['whole']:.2f} s (threshold 1)", times["whole"] <= 1),
        (f"{ratio:.0f} × faster than the NumPy loop (threshold 20)", ratio >= 20),
    ]
    if peer:
        theirs = (times["cmfrec many"] - times["cmfrec few"]) / SWEEPS
        rows.append({"what": "cmfrec, two threads", "ms_per_sweep": theirs * 1e3})
        thresholds += [
            (f"tau {tau}: {ours[tau] / theirs:.2f} × cmfrec's time (threshold 0.2)", ours[tau] <= 0.2 * theirs) for tau in (0.5, 0.1)
        ]
    else:
        print("cmfrec is not installed: not measured")
    return rows, thresholds


def growth(largest: int, repeats: int) -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Time sweeps on one core over three decades of entries, with 5% of the entries of 1000 columns observed."""
    rows = []
    for entries in (largest // 1000, largest // 100, largest // 10, largest):
        A = skewed(entries // 50, 1000, 0.05, 1)
        few, many = (2, 42) if entries <= 10**5 else (2, 6)
        times = side_by_side({"few": fit(A, 0.1, few), "many": fit(A, 0.1, many)}, repeats)
        seconds = (times["many"] - times["few"]) / (many - few)
        rows.append({"entries": A.nnz, "ms_per_sweep": seconds * 1e3, "million_entries_per_s": A.nnz / seconds / 1e6})
    # Without the fixed cost of a sweep.
    further = [(b["ms_per_sweep"] - a["ms_per_sweep"]) * 1e6 / (b["entries"] - a["entries"]) for a, b in pairwise(rows)]
    for row, ns in zip(rows[1:], further, strict=True):
        row["ns_a_further_entry"] = ns
    rate = rows[-1]["million_entries_per_s"]
    thresholds = [
        (f"{rate:.0f} million entries a second and core (threshold 10)", rate >= 10),
        (
            f"linear over three decades: a further entry takes {min(further):.0f} to {max(further):.0f} ns (threshold 2 ×)",
            max(further) <= 2 * min(further),
        ),
    ]
    return rows, thresholds


def make(path: Path, n: int, m: int) -> None:
    """Return skewed measurements as a dataset: 30% missing, float32."""
    rng = np.random.default_rng(0)
    Y = rng.random((K, m), dtype=np.float32)
    labels = np.asarray([f"M{j}" for j in range(m)], dtype=object)

    def measure() -> Iterator[NDArray[np.float32]]:
        for start in range(0, n, 10_000):
            rows = min(10_000, n - start)
            V = rng.random((rows, K), dtype=np.float32) @ Y + 0.5 * rng.standard_exponential((rows, m), np.float32)
            V[rng.random((rows, m), np.float32) < 0.3] = np.nan
            yield V

    with dataset_writer(path, (n, m), np.dtype(np.float32), missing_code=None, column_labels=labels, name="skewed") as writer:
        writer.finish(writer.write(measure()))


def out_of_core(path: str, limit: str) -> dict[str, Any]:
    dataset = dfact.open_dataset(path)
    clock = Clock([])
    model = dfact.ExpectileMF(K, tau=0.1, max_iter=PASSES, tol=0, memory_limit=limit, callbacks=[clock])
    plan = dfact.plan(model, dataset)
    began = time.perf_counter()
    with Peak() as peak:
        model.fit(dataset)
    seconds = float(np.median([b - a for a, b in pairwise(clock.times)][1:]))
    return {
        "memory_limit": limit,
        "planned_GiB": plan.peak / 2**30,
        "peak_GiB": peak.bytes / 2**30,
        "pass_s": seconds,
        "ns_per_entry": seconds * 1e9 / np.prod(dataset.shape),
        "fit_s": time.perf_counter() - began,
        "objective": float(model.objective_history_[-1]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the data on disk")
    parser.add_argument("--columns", type=int, default=300)
    parser.add_argument("--entries", type=int, default=10_000_000, help="the most observed entries of which the growth is measured")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limits", nargs="*", default=["4GiB", "1GiB"])
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    options = parser.parse_args()
    rows, thresholds = sweeps_side_by_side(*SHAPE, options.repeats)
    report("emf_sweeps", rows, thresholds)
    rows, more = growth(options.entries, min(options.repeats, 3))
    report("emf_growth", rows, more)
    thresholds += more
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"skewed-{options.rows}x{options.columns}.zarr"
        if not path.exists():
            make(path, options.rows, options.columns)
        rows = [call_in_new_process("benchmarks.expectile.speed", "out_of_core", str(path), limit) for limit in options.limits]
        more = [
            (f"peak {r['peak_GiB']:.2f} GiB within {r['memory_limit']}", r["peak_GiB"] * 2**30 <= parse_bytes(r["memory_limit"]))
            for r in rows
        ]
        more += [
            (f"{r['ns_per_entry']:.2f} ns per entry and pass at {r['memory_limit']} (threshold 3)", r["ns_per_entry"] <= 3) for r in rows
        ]
        more.append(("the same objective at every limit", len({r["objective"] for r in rows}) == 1))
        report("emf_out_of_core", rows, more)
    return exit_code([*thresholds, *more])


if __name__ == "__main__":
    sys.exit(main())
