"""The same passes on two threads of one process and on two one-thread workers of a cluster on this machine, in turn.

    python -m benchmarks.engine.threads_and_workers [--rows 200000] [--columns 1000] [--rounds 15] [--folder DIR]

The answers lie in a store on disk, whose pages are in memory after the first pass. Passes read them anew each time, or keep their values
decoded. Three passes: an iteration of ICQF with 20 factors; the product of a block iteration for singular vectors; and the number of
answers of each block, which does little but read and has no limit. Threads and workers take turns, and the ratio of their times is the
median of the rounds' ratios. The sums must be bit-identical. With ``--threads-only`` there is no cluster, for a profiler.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray

import dfact
from benchmarks.bounded_nmf.out_of_core import make
from benchmarks.common import exit_code, report
from benchmarks.engine.idle_workers import IdleCluster
from dfact.data.dataset import Dataset
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.engine.block_state import BlockState
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.executors import ThreadsExecutor
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, PartialSums, Pass, RunPass
from dfact.engine.requests import drive
from dfact.linalg.svd import SketchPass
from dfact.models.bounded_nmf.passes import RowStart
from dfact.models.bounded_nmf.problem import make_problem
from dfact.models.bounded_nmf.solvers import MM

FLOAT32 = np.dtype(np.float32)
_FACTORS, _SKETCH = 20, 30
_WARM_UP = 8  # passes after which the multipliers of ICQF have typical values
_RATIO = 1.25
_PASSES = ("ICQF", "singular vectors", "count")


@dataclass
class Count(PartialSums):
    """Number of the answers."""

    answers: NDArray[Any]


@dataclass(frozen=True)
class CountPass(Pass[BlockState, None, Count]):
    """Count the answers, of one byte each."""

    missing: int
    dtype: np.dtype[Any] = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, Count]:
        stored = block.stored
        assert isinstance(stored, np.ndarray), "the answers are dense"
        observed = block.work.array("observed", stored.shape, bool)
        return state, Count(np.asarray(np.count_nonzero(np.not_equal(stored, self.missing, out=observed))))


def _sessions(dataset: Dataset, executor: Any, stack: ExitStack, *, resident: bool) -> dict[str, Callable[[], Any]]:
    """Return the passes on an executor, after those that bring ICQF to typical values."""
    model = dfact.ICQF(_FACTORS, bounds=(0, 3), q_max=3)
    plan = dfact.plan(model, dataset)
    plan = replace(plan, resident_states=plan.n_partitions, resident_values=plan.n_partitions if resident else 0)
    session = stack.enter_context(executor.open(partitions(dataset.source, dataset.missing_code, None), plan))
    dtype, m = FLOAT32, dataset.shape[1]
    solver = MM(make_problem(model, dataset, None), RowStart(None, 0), dtype)
    point = np.random.default_rng(0).uniform(0, 3, (_FACTORS, m)).astype(dtype)
    for _ in range(_WARM_UP):
        sums = session.run(RunPass(solver.pass_, solver.broadcast(point)))
        point = solver.next_point(drive(solver.loadings(sums, point), session))
    sketch = np.random.default_rng(1).standard_normal((m, _SKETCH)).astype(dtype)
    icqf, vectors, count = (
        RunPass(solver.pass_, solver.broadcast(point)),
        RunPass(SketchPass(dtype), sketch),
        RunPass(CountPass(int(dataset.missing_code or 0))),
    )
    return {name: lambda request=request: session.run(request) for name, request in zip(_PASSES, (icqf, vectors, count), strict=True)}


def _time(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def compare(dataset: Dataset, rounds: int, client: Client) -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Time all passes on threads and on workers, in turn."""
    rows, thresholds = [], []
    for resident in (False, True):
        where = "memory" if resident else "disk"
        with ExitStack() as stack:
            sides = [
                _sessions(dataset, executor, stack, resident=resident) for executor in (ThreadsExecutor(2), DistributedExecutor(client))
            ]
            for name in _PASSES:
                found = [[_time(side[name]) for side in sides] for _ in range(rounds + 1)][1:]
                threads, workers = (statistics.median(pair[i][0] for pair in found) for i in (0, 1))
                ratio = statistics.median(mine[0] / theirs[0] for mine, theirs in found)
                equal = all(_same(mine[1], theirs[1]) for mine, theirs in found)
                row = {"pass": name, "values": where, "two threads s": threads, "two workers s": workers, "ratio": ratio}
                rows.append(row | {"fastest ratio": min(a[0] for a, _ in found) / min(b[0] for _, b in found)})
                if name != "count":  # its blocks take no longer than the threads' turns in the interpreter
                    text = f"{name} from {where}: two threads take {ratio:.2f} × the time of two workers, at most {_RATIO}"
                    thresholds.append((text, ratio <= _RATIO))
                thresholds.append((f"{name} from {where}: the sums are bit-identical", equal))
    return rows, thresholds


def _same(mine: PartialSums, theirs: PartialSums) -> bool:
    return all(np.array_equal(value, getattr(theirs, name), equal_nan=True) for name, value in vars(mine).items())


def threads_only(dataset: Dataset, rounds: int, *, resident: bool) -> list[dict[str, Any]]:
    """Time the passes on one thread and on two, and their processor time and page faults."""
    rows = []
    with ExitStack() as stack:
        for threads in (1, 2):
            for name, run in _sessions(dataset, ThreadsExecutor(threads), stack, resident=resident).items():
                run()
                before, began = os.times(), time.perf_counter()
                found = [_time(run)[0] for _ in range(rounds)]
                clock, after = time.perf_counter() - began, os.times()
                user, system = ((a - b) / rounds for a, b in ((after.user, before.user), (after.system, before.system)))
                row = {"pass": name, "threads": threads, "s": statistics.median(found), "user s": user, "system s": system}
                rows.append(row | {"idle s": threads * clock / rounds - user - system})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    parser.add_argument("--threads-only", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = (options.folder or Path(temporary)) / f"planted-{options.rows}x{options.columns}.zarr"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            make(path, PlantedQuestionnaire(options.rows, options.columns, _FACTORS))
        dataset = dfact.open_dataset(path)
        if options.threads_only:
            for resident in (False, True):
                report(f"threads_{'memory' if resident else 'disk'}", threads_only(dataset, options.rounds, resident=resident))
            return 0
        with IdleCluster() as cluster:  # its scheduler has a process of its own, and does not disturb the threads
            cluster.grow(2)
            rows, thresholds = compare(dataset, options.rounds, cluster.client)
    report("threads_and_workers", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
