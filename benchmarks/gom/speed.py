"""Speed of grade of membership and of its singular vectors, against the paper, scikit-learn and Dask.

    python -m benchmarks.gom.speed [--parts simulation svd scale] [--folder DIR]

The parts are a simulation of 8000 × 2000; the SVD of a planted matrix 200,000 × 500 in memory and on disk; and
500,000 × 200 answers on disk, with the number of classes chosen from 2 to 10.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.utils.extmath import randomized_svd

import dfact
from benchmarks.common import GOM_ALGORITHMS, Peak, call_in_new_process, exit_code, lone_pure_subjects, report, side_by_side
from dfact.data.layout import Layout
from dfact.data.sources.base import ArraySource, RowSource
from dfact.data.synthetic import gom_simulation
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, NoSums, Pass, RunPass
from dfact.engine.requests import drive
from dfact.linalg.kmeans import kmeans
from dfact.linalg.row_points import Embedding, EmbedPass
from dfact.linalg.svd import gram_size, right_singular, zero_filled

Thresholds = list[tuple[str, bool]]
Triples = tuple[NDArray[Any], NDArray[Any]]
"""Left (n, k) and right (m, k) singular vectors."""

CHUNK = 50_000


def simulation(n: int, repeats: int) -> Thresholds:
    """Time a fit of the paper's largest simulation, n × n/4."""
    R = gom_simulation(0.2, n, 0).R
    inputs = {"float32": R.astype(np.uint8), "float64": R.astype(np.float64)}
    fits = {}
    for name, parameters in GOM_ALGORITHMS.items():
        for precision, X in inputs.items():
            model = dfact.GradeOfMembership(3, **parameters, max_response=4, random_state=0)
            fits[name, precision] = lambda model=model, X=X: model.fit(X)
    with lone_pure_subjects():
        times = side_by_side({f"{name}; {precision}": fit for (name, precision), fit in fits.items()}, repeats)
    rows = [{"algorithm": name, "precision": precision, "seconds": times[f"{name}; {precision}"]} for name, precision in fits]
    slowest = max(rows, key=lambda row: row["seconds"])
    text = f"{n} × {n // 4} is fitted within {slowest['seconds']:.2f} s by every method (threshold 1.5; the paper 12)"
    thresholds = [(text, slowest["seconds"] < 1.5)]
    report("gom_speed_simulation", rows, thresholds)
    return thresholds


def planted(n: int, m: int, k: int) -> NDArray[np.float32]:
    """Return a matrix of rank k plus noise; singular values fall to a tenth of the first, whose entries are as strong as the noise."""
    rng = np.random.default_rng(0)
    Q = rng.standard_normal((k, m), np.float32) * np.linspace(1, 0.1, k, dtype=np.float32)[:, None]
    return rng.standard_normal((n, k), np.float32) @ Q + rng.standard_normal((n, m), np.float32)


def ours(source: RowSource, k: int, *, small_memory: bool = False) -> Triples:
    """Compute the SVD by passes; with ``small_memory`` each pass reads the source, and the left vectors are on disk."""
    dtype, (_, m) = np.dtype(np.float32), source.shape
    executor = resolve_executor(None, Layout.of(source.shape).n_partitions)
    footprint = Footprint(dtype.itemsize * k, dtype.itemsize * (m + k), 8 * (gram_size(m, k) + m * k), dtype.itemsize * k)
    plan = make_plan(source, dtype, footprint, executor.workers(None))
    if small_memory:
        plan = replace(plan, resident_states=0, resident_values=0)
    with executor.open(partitions(source, None, None), plan) as session:
        V, sigma = drive(right_singular(m, k, dtype), session)
        session.run(RunPass(EmbedPass(dtype, zero_filled), (V / sigma).astype(dtype)))
        return np.concatenate(list(session.rows("embedding"))), V


def of_sklearn(M: NDArray[np.float32], k: int) -> Triples:
    U, _, Vt = randomized_svd(M, k, random_state=0)
    return U, Vt.T


def of_dask(path: Path, k: int, *, compute: bool) -> Triples:
    """Compute Dask's SVD as its manual advises for data larger than memory."""
    U, _, Vt = da.compute(*da.linalg.svd_compressed(da.from_zarr(path, component="values"), k, n_power_iter=2, seed=0, compute=compute))
    return U, Vt.T


def exact(M: NDArray[np.float32], k: int) -> Triples:
    m = M.shape[1]
    gram = np.zeros((m, m))
    for start in range(0, len(M), CHUNK):
        rows = M[start : start + CHUNK].astype(np.float64)
        gram += rows.T @ rows
    V = eigh(gram, subset_by_index=(m - k, m - 1))[1]
    return np.concatenate([M[start : start + CHUNK] @ V for start in range(0, len(M), CHUNK)]), V


def sine(A: NDArray[Any], B: NDArray[Any]) -> float:
    """Return the sine of the largest principal angle between the spans of the columns."""
    a, b = (np.linalg.qr(X.astype(np.float64))[0] for X in (A, B))
    return float(np.linalg.norm(a - b @ (b.T @ a), 2))


def singular_vectors(folder: Path, n: int, m: int, k: int, repeats: int) -> Thresholds:
    M = planted(n, m, k)
    path = folder / f"planted-{n}x{m}.zarr"
    dfact.import_array(M, path, overwrite=True)
    solvers = {
        "dfact, memory": lambda: ours(ArraySource(M), k),
        "scikit-learn, memory": lambda: of_sklearn(M, k),
        "dfact, disk": lambda: ours(dfact.open_dataset(path).source, k, small_memory=True),
        "Dask, disk": lambda: of_dask(path, k, compute=False),
        "Dask, disk, compute=True": lambda: of_dask(path, k, compute=True),
    }
    U, V = exact(M, k)
    rows = []
    for name, solve in solvers.items():
        found = solve()
        rows.append({"what": name, "sine_left": sine(found[0], U), "sine_right": sine(found[1], V)})
    seconds = side_by_side(solvers, repeats)
    for row in rows:
        row["seconds"] = seconds[row["what"]]
    memory, disk = seconds["scikit-learn, memory"] / seconds["dfact, memory"], seconds["dfact, disk"]
    peer = min(seconds[name] for name in seconds if name.startswith("Dask"))
    thresholds = [
        (f"in memory {memory:.2f} × as fast as scikit-learn's randomized_svd (threshold 1)", memory >= 1),
        (f"on disk {peer / disk:.2f} × as fast as Dask's svd_compressed (threshold 1.5)", peer / disk >= 1.5),
    ]
    for side in ("left", "right"):
        errors = {row["what"]: row[f"sine_{side}"] for row in rows}
        mine = max(error for name, error in errors.items() if name.startswith("dfact"))
        theirs = min(error for name, error in errors.items() if not name.startswith("dfact"))
        thresholds.append((f"{side} subspace off by {mine:.1e} of the exact one; the nearest peer's by {theirs:.1e}", mine <= theirs))
    report("gom_speed_svd", rows, thresholds)
    return thresholds


def make(folder: Path, n: int, m: int, k: int, levels: int) -> Path:
    """Return answers 0 to M of subjects with memberships from a Dirichlet distribution of 0.3, as a dataset."""
    rng = np.random.default_rng(0)
    Theta = rng.random((m, k)) * levels
    raw = zarr.create_array(folder / "raw.zarr", shape=(n, m), chunks=(CHUNK, m), dtype="u1", overwrite=True)
    for start in range(0, n, CHUNK):
        Pi = rng.dirichlet(np.full(k, 0.3), min(CHUNK, n - start))
        raw[start : start + CHUNK] = rng.binomial(levels, np.clip(Pi @ Theta.T / levels, 0, 1)).astype(np.uint8)
    path = folder / f"answers-{n}x{m}.zarr"
    dfact.import_array(raw, path, overwrite=True)
    return path


def fit(path: str, algorithm: str, candidates: list[int]) -> dict[str, Any]:
    """Return seconds and peak memory of the selection among the candidates, or of a fit with a single one."""
    dataset = dfact.open_dataset(path)
    model = dfact.GradeOfMembership(**GOM_ALGORITHMS[algorithm], max_response=4, random_state=0)
    steps: dict[str, float] = {}
    model.callbacks = [lambda step: steps.update({step.step: step.seconds - sum(steps.values())})]
    began = time.perf_counter()
    with Peak() as peak, lone_pure_subjects():
        chosen = dfact.selection.select_by_modularity(model, dataset, candidates)
    return {
        "algorithm": algorithm,
        "candidates": f"{min(candidates)} to {max(candidates)}",
        "K": chosen.best_params["n_components"],
        "seconds": time.perf_counter() - began,
        "peak_GiB": peak.bytes / 2**30,
        **steps,
    }


def kmeans_speed(n: int, widths: list[int], repeats: int) -> dict[str, float]:
    """Time K-means for all numbers of classes, and one pass of their products alone: n points with the centres."""
    rng = np.random.default_rng(0)
    source = ArraySource((np.eye(max(widths))[rng.integers(0, 4, n)] + rng.standard_normal((n, max(widths))) / 2).astype(np.float32))
    dtype, executor = np.dtype(np.float32), resolve_executor(None, Layout.of(source.shape).n_partitions)
    plan = make_plan(source, dtype, Footprint(40, 10_000, 1 << 24, 0), executor.workers(None))
    with executor.open(partitions(source, None, None), plan) as session:
        session.run(RunPass(EmbedPass(dtype, zero_filled), np.eye(max(widths), dtype=dtype)))
        centers = np.zeros((sum(widths), max(widths)), dtype)
        solvers = {
            "kmeans": lambda: drive(kmeans(widths, n, 0), session),
            "products": lambda: session.run(RunPass(ProductsPass(), centers)),
        }
        return side_by_side(solvers, repeats)


@dataclass(frozen=True)
class ProductsPass(Pass[Embedding, NDArray[Any], NoSums]):
    """A pass of the products of the centres (c, d) with all points alone, a lower bound for a pass of K-means."""

    dtype: None = None
    state_type = Embedding

    def step(self, block: Block, state: Embedding, broadcast: NDArray[Any]) -> tuple[Embedding, NoSums]:
        block.work.matmul(broadcast, state.embedding, "products")
        return state, NoSums()


def scale(folder: Path, n: int, m: int) -> Thresholds:
    path = str(make(folder, n, m, 4, 4))
    many, one = list(range(2, 11)), [4]
    runs = [("crsc, kmeans", many), ("srsc", many), ("crsc, svm-cone", one)]
    rows = [call_in_new_process("benchmarks.gom.speed", "fit", path, algorithm, candidates) for algorithm, candidates in runs]
    thresholds = []
    for row in rows:
        what = f"{row['algorithm']}, K from {row['candidates']}, {n} × {m} on disk"
        thresholds.append(
            (
                f"{what}: {row['seconds']:.1f} s (threshold 60), {row['peak_GiB']:.2f} GiB (threshold 2)",
                row["seconds"] <= 60 and row["peak_GiB"] <= 2,
            )
        )
    seconds = kmeans_speed(n, many, 3)
    passes = seconds["kmeans"] / seconds["products"]
    text = f"K-means, K from 2 to 10, {n} rows: {seconds['kmeans']:.2f} s, as long as {passes:.0f} passes of products with the centres"
    thresholds.append((f"{text} (threshold 100)", passes <= 100))
    report("gom_speed_scale", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=["simulation", "svd", "scale"], default=["simulation", "svd", "scale"])
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    parser.add_argument("--repeats", type=int, default=3, help="runs whose median time counts")
    options = parser.parse_args()
    thresholds: Thresholds = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if "simulation" in options.parts:
            thresholds += simulation(8000, options.repeats)
        if "svd" in options.parts:
            thresholds += singular_vectors(folder, 200_000, 500, 10, options.repeats)
        if "scale" in options.parts:
            thresholds += scale(folder, 500_000, 200)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
