"""Memory of passes over a million columns, with sums of 65 numbers a column (520 MB): by tiles of columns, or whole.

    python -m benchmarks.engine.wide_columns [--rows 2048] [--columns 1000000] [--folder DIR]

Each measurement is a process of its own that runs two passes, each followed by a step of every column, on random answers on disk. The
singular vectors take as many passes as a start needs.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from benchmarks.common import Peak, call_in_new_process, exit_code, report
from dfact.data.layout import Layout
from dfact.data.sources.base import ZarrSource
from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.executors import ThreadsExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, PartialSums, Pass, TiledPass
from dfact.engine.requests import Solver, drive, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from dfact.linalg.svd import right_singular, tiled_gram_size

WIDTH = 65
FLOAT32 = np.dtype(np.float32)


@dataclass
class ColumnSums(PartialSums, name="benchmark_columns"):
    """Sums (WIDTH, m)."""

    columns: NDArray[Any]


@dataclass(frozen=True)
class ColumnPass(TiledPass[BlockState, Any, ColumnSums]):
    """Products of random weights of the rows with the answers."""

    dtype: np.dtype[Any] = FLOAT32
    tiled = ("columns",)

    def zeros(self, n_columns: int) -> ColumnSums:
        return ColumnSums(np.zeros((WIDTH, n_columns)))

    def accumulate(self, block: Block, state: BlockState, broadcast: Any, total: ColumnSums) -> BlockState:
        weights = np.random.default_rng(block.index).random((WIDTH, len(block.stored)), np.float32)
        for start in range(0, total.columns.shape[1], 1 << 12):
            part = slice(start, start + (1 << 12))
            values = block.work.converted("values", block.codes[0][:, part], FLOAT32)
            total.columns[:, part] += block.work.matmul(weights, values, "product")
        return state


@dataclass(frozen=True)
class WholePass(Pass[BlockState, Any, ColumnSums]):
    """The same pass, whose sums travel whole."""

    pass_: ColumnPass
    dtype: np.dtype[Any] = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: Any) -> tuple[BlockState, ColumnSums]:
        return self.pass_.step(block, state, broadcast)


def mean(tile: Tile) -> tuple[StateArrays, PartialSums]:
    """Store the columns' means over the sums, ten rows of them."""
    p = tile.sums["columns"][:10] / (1 + tile.sums["columns"].sum(axis=0))
    return {"p": p}, ColumnSums(np.asarray([[p.sum()]]))


def passes(*, whole: bool, n: int = 2) -> Solver[float]:
    """Run passes, each with a step on tiles unless the sums are ``whole``. Returns a sum over the columns."""
    total = 0.0
    for number in range(n):
        if whole:
            sums = (yield from run(WholePass(ColumnPass()), None)).columns
            total = float((sums[:10] / (1 + sums.sum(axis=0))).sum())
        else:
            yield from run(ColumnPass(), TileBroadcast("p", FLOAT32) if number else None)
            total = float((yield from step_tiles(mean)).columns[0, 0])
    return total


def singular_values(m: int, k: int = 10) -> Solver[float]:
    """Compute the singular vectors of a start."""
    V, _ = yield from right_singular(m, k, FLOAT32, tolerance=0.03)
    return float(np.abs(V).sum())


def measure(path: str, kind: str, threads: int, spare: int) -> dict[str, Any]:
    """Run one of the solvers with this many bytes in addition to those in use; return its figures."""
    source = ZarrSource(zarr.open_array(path, mode="r"))
    m = source.shape[1]
    executor = ThreadsExecutor(threads)
    workers = executor.workers(None)
    tiled = 8 * (tiled_gram_size(m, 10) if kind == "vectors" else WIDTH * m)
    broadcast = 4 * (20 if kind == "vectors" else 10) * m
    footprint = Footprint(0, 4 * m, broadcast, 0, tiled) if kind == "vectors" else Footprint(0, 0, broadcast, 0, tiled, converts=False)
    if kind == "whole":
        footprint = Footprint(0, 0, tiled, 0, converts=False)
    plan = make_plan(source, FLOAT32, footprint, replace(workers, limit=workers.baseline + spare))
    began = time.perf_counter()
    solver = singular_values(m) if kind == "vectors" else passes(whole=kind == "whole")
    with Peak() as peak, executor.open(partitions(source, None, None), replace(plan, resident_values=0)) as session:
        result = drive(solver, session)
    return {
        "solver": kind,
        "threads": threads,
        "limit_GB": spare / 1e9,
        "planned_GB": (plan.peak - workers.baseline) / 1e9,
        "peak_GB": (peak.bytes - workers.baseline) / 1e9,
        "sums_on_disk_GB": plan.spilled_sums / 1e9,
        "seconds": time.perf_counter() - began,
        "result": hashlib.sha256(np.float64(result).tobytes()).hexdigest()[:8],
    }


def store(path: Path, n: int, m: int) -> None:
    """Write random answers 0 to 3."""
    rows = Layout.of((n, m)).block_rows
    array = zarr.create_array(path, shape=(n, m), chunks=(rows, m), dtype="uint8")
    rng = np.random.default_rng(0)
    for start in range(0, n, rows):
        array[start : start + rows] = rng.integers(0, 4, (min(rows, n - start), m), np.uint8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        store(folder / "x.zarr", options.rows, options.columns)
        sums = 8 * WIDTH * options.columns
        cases = [("tiled", 1, 3 * sums), ("tiled", 1, 8 * sums), ("tiled", 2, 4 * sums), ("whole", 2, 20 * sums), ("vectors", 2, 8 * sums)]
        rows = [call_in_new_process("benchmarks.engine.wide_columns", "measure", str(folder / "x.zarr"), *case) for case in cases]
    finally:
        shutil.rmtree(folder)
    thresholds = [
        ("the peak is within the plan", all(row["peak_GB"] <= row["planned_GB"] for row in rows)),
        ("bit-identical with sums in memory and on disk", len({row["result"] for row in rows if row["solver"] == "tiled"}) == 1),
    ]
    report("wide_columns", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
