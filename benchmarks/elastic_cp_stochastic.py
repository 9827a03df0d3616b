"""ElasticCP's stochastic solver: how much it reads to come within 1 % of block coordinate descent, and the paper's table 3.

python -m benchmarks.elastic_cp_stochastic [--parts bytes table_3] [--runs 30] [--folder FOLDER]

Bytes are those of the chunks that were read, decoded, by either solver with no room to keep any of them.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import dfact
from benchmarks.common import exit_code, report
from benchmarks.elastic_cp_speed import make
from dfact.data.dataset import Dataset
from dfact.data.source import ZarrSource
from dfact.data.synthetic import elastic_cp_simulation
from dfact.engine.executors import InlineExecutor, LocalSession
from dfact.engine.partition import Partitions
from dfact.engine.plan import Plan
from dfact.models.elastic_cp_path import default_lambdas

Bars = list[tuple[str, bool]]


class CountedSource(ZarrSource):
    """Counts what is read of it and of its slices."""

    bytes_read: ClassVar[int] = 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        values = super().read(start, stop)
        CountedSource.bytes_read += values.nbytes
        return values

    def slice(self, rows: slice) -> "CountedSource":
        part = super().slice(rows)
        return CountedSource(part.array, part.offset, part.n)


def counted(path: Path) -> Dataset:
    dataset = dfact.open_dataset(path)
    assert isinstance(dataset.source, ZarrSource)
    return replace(dataset, source=CountedSource(dataset.source.array))


class Forgetful(InlineExecutor):
    """Keeps no values between passes, as where there is no room for them."""

    def open(self, partitions: Partitions, plan: Plan) -> LocalSession:
        return super().open(partitions, replace(plan, resident_values=0))


def fit(dataset: Dataset, **parameters: Any) -> tuple[dfact.ElasticCP, int, float]:
    """The model, the bytes it read and its seconds, in a process that has no room to keep values."""
    model = dfact.ElasticCP(executor=Forgetful(), **parameters)
    began, before = time.perf_counter(), CountedSource.bytes_read
    model.fit(dataset)
    return model, CountedSource.bytes_read - before, time.perf_counter() - began


def floats(folder: Path, shape: tuple[int, int, int], rank: int) -> Path:
    """Measurements of a planted model with noise of a third of its size, a fifth missing, in float32."""
    rng = np.random.default_rng(1)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, rank), np.float32) for size in shape))
    Z += np.float32(Z.std() / 3) * rng.standard_normal(shape, np.float32)
    Z[rng.random(shape, np.float32) < 0.2] = np.nan
    raw = zarr.create_array(folder / "floats-raw.zarr", shape=shape, chunks=(1000, *shape[1:]), dtype="f4", overwrite=True)
    raw[:] = Z
    dfact.import_array(raw, folder / "floats.zarr", overwrite=True)
    return folder / "floats.zarr"


def bytes_read(paths: list[Path], rank: int) -> Bars:
    rows, bars = [], []
    for path in paths:
        dataset = counted(path)
        size = float(np.prod(dataset.shape)) * dataset.dtype.itemsize
        found = {}
        for solver in ("bcd", "stochastic"):
            model, read, seconds = fit(dataset, n_components=rank, lam=1.0, solver=solver, random_state=0)
            found[solver] = float(model.objective_history_[-1]), read
            rows.append(
                {
                    "shape": "×".join(map(str, dataset.shape)),
                    "type": str(dataset.dtype),
                    "solver": solver,
                    "objective": found[solver][0],
                    "iterations": model.n_iter_,
                    "converged": model.converged_,
                    "times the data read": read / size,
                    "seconds": seconds,
                }
            )
        excess = 100 * (found["stochastic"][0] / found["bcd"][0] - 1)
        share = found["stochastic"][1] / found["bcd"][1]
        bars.append((f"{dataset.dtype}: {excess:+.2f} % of the objective of block coordinate descent (bar 1 %)", excess <= 1))
        bars.append((f"{dataset.dtype}: having read {share:.3f} of its bytes (bar 0.333)", share <= 1 / 3))
    report("elastic_cp_stochastic_bytes", rows, bars)
    return bars


def score(truth: list[NDArray[np.float64]], found: list[Any]) -> float:
    """Equation 57, components matched, averaged over the true ones."""
    cosines = 1.0
    for A, B in zip(truth, map(np.asarray, found), strict=True):
        cosines = cosines * ((A / np.linalg.norm(A, axis=0)).T @ (B / np.maximum(np.linalg.norm(B, axis=0), 1e-300)))
    rows, columns = linear_sum_assignment(-cosines)
    return float(np.asarray(cosines)[rows, columns].sum() / truth[0].shape[1])


def table_3(size: int, rank: int, runs: int, alphas: tuple[float, ...]) -> Bars:
    """20 dB, a quarter missing, from a rank one too high; the step is chosen as in section 7.1.2."""
    lambdas = [lam for lam in default_lambdas() if lam >= 1e-4]
    rows = []
    for seed in range(runs):
        alpha = alphas[seed % len(alphas)]
        sim = elastic_cp_simulation(size, rank, seed, snr=20, missing=0.25)
        began = time.perf_counter()
        path = dfact.ElasticCP(rank + 1, l1_ratio=alpha, solver="stochastic", random_state=seed).path(sim.Z, lambdas)
        seconds, table = time.perf_counter() - began, path.table
        table = table[table["rank"] == table["rank"][table["rank"] >= rank].min()]
        sparse = table[table["zeros"] <= sim.zeros]
        step = sparse.index[-1] if len(sparse) else table.index[0]
        rows.append(
            {
                "seed": seed,
                "alpha": alpha,
                "rank": int(table["rank"].iloc[0]),
                "score": score(sim.factors, path.at(step, refined=True).factors_),
                "zeros": int(table["zeros"][step]) / sim.zeros,
                "seconds": seconds,
            }
        )
        print(rows[-1], flush=True)
    right, good = sum(row["rank"] == rank for row in rows), sum(row["score"] >= 0.999 for row in rows)
    bars = [
        (f"the true rank in {right} of {runs} runs (bar: all)", right == runs),
        (f"a score of at least 0.999 in {good} of {runs} runs (bar: all)", good == runs),
    ]
    report("elastic_cp_stochastic_table_3", rows, bars)
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=["bytes", "table_3"], default=["bytes", "table_3"])
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    parser.add_argument("--runs", type=int, default=30, help="simulations of table 3, the values of α in turn")
    options = parser.parse_args()
    bars: Bars = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if "bytes" in options.parts:
            bars += bytes_read([make(folder, (200_000, 300, 5), 10), floats(folder, (20_000, 100, 6), 10)], 10)
        if "table_3" in options.parts:
            bars += table_3(50, 9, options.runs, (0.2, 0.8, 0.98))
    return exit_code(bars)


if __name__ == "__main__":
    sys.exit(main())
