"""What a pass costs the scheduler of a large cluster, and up to how many workers two large fits gain from another.

python -m benchmarks.cluster_scale            1000 partitions on 100 workers, and what tells its parts: fewer of both, larger sums
python -m benchmarks.cluster_scale --small    a tenth of it

The workers do no arithmetic: a pass reads nothing and returns sums of a model's size. They are Worker objects in a few
processes on loopback, so what a pass costs is what no further worker takes away; it is told as time of the scheduler's
and the driver's processor, since all share this machine's. The model of larger clusters made of it is at the end.
"""

import argparse
import asyncio
import importlib
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
from distributed import Client, Scheduler, Worker
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report
from dfact.data.source import ArraySource, Layout
from dfact.engine.cluster import DistributedSession
from dfact.engine.partition import GROUP, Partition
from dfact.engine.passes import Block, Partial, Startless, State
from dfact.engine.plan import Footprint, Workers, make_plan

_PASSES = 3
_PROCESSES = 4
_ENTRY_SECONDS = 1.5e-9
"""A thread's time for an entry of ICQF with 20 factors, read from disk: benchmarks/icqf_out_of_core."""
_NETWORK = 1.25e9
"""Bytes a second that the scheduler's and the driver's machine take in: 10 Gbit/s."""


def noise(size: int) -> NDArray[Any]:
    """So many bytes, which no compression on their way makes less."""
    return np.random.default_rng(0).random(size // 8)


@dataclass
class Sums(Partial):
    """As large as those of a model."""

    of_items: NDArray[Any]


@dataclass(frozen=True)
class Idle(Startless):
    """A pass that only answers."""

    bytes: int
    dtype: None = None

    def step(self, block: Block, state: State | None, shared: Any) -> tuple[State, Sums]:
        return {"rows": np.zeros((1, block.matrix.shape[0]))}, Sums(noise(self.bytes))


def _run_scheduler(connection: Any) -> None:
    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler:
            connection.send(scheduler.address)
            await scheduler.finished()

    logging.disable(logging.INFO)
    asyncio.run(run())


def _run_workers(address: str, count: int) -> None:
    async def run() -> None:
        settings: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
        workers = [await Worker(address, name=f"{os.getpid()}-{i}", **settings) for i in range(count)]
        await asyncio.gather(*(worker.finished() for worker in workers))

    logging.disable(logging.INFO)
    asyncio.run(run())


@contextmanager
def cluster(workers: int) -> Iterator[tuple[Client, psutil.Process]]:
    """A client of so many workers, and the scheduler's process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    scheduler = context.Process(target=_run_scheduler, args=(theirs,), daemon=True)
    scheduler.start()
    address = ours.recv()
    counts = [len(part) for part in np.array_split(np.arange(workers), min(_PROCESSES, workers))]
    processes = [context.Process(target=_run_workers, args=(address, count), daemon=True) for count in counts]
    for process in processes:
        process.start()
    try:
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=120)
            yield client, psutil.Process(scheduler.pid)
    finally:
        for process in (*processes, scheduler):
            process.kill()
            process.join()


def groups(partitions: int) -> int:
    return -(-partitions // GROUP)


@dataclass(frozen=True)
class Cost:
    """Of one pass."""

    partitions: int
    workers: int
    sums: int
    """Bytes that each partition gives, and that all get."""
    seconds: float
    scheduler: float
    """Seconds of its processor."""
    driver: float
    moved: float
    """Bytes that workers gave each other."""

    @property
    def gathered(self) -> int:
        """Bytes that the scheduler took from them, and handed on to the driver: the sums of groups of partitions."""
        return groups(self.partitions) * self.sums


def _busy(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def measure(partitions: int, workers: int, sums: int) -> Cost:
    """The median pass of the engine's own session, once all partitions are where they stay."""
    layout = Layout(partitions, 1, 1, 1)
    parts = [Partition(slice(i, i + 1), ArraySource(np.zeros((1, 1))), None, None, layout) for i in range(partitions)]
    footprint, few = Footprint(8, 0, sums, 0), Workers("distributed", workers, 1, 1 << 40, 0)
    plan = make_plan(ArraySource(np.zeros((partitions, 1))), np.dtype(np.float64), footprint, few)
    plan = replace(plan, n_partitions=partitions, state_in_memory=partitions, values_in_memory=0)
    shared, me, rows = noise(sums), psutil.Process(), []
    with cluster(workers) as (client, scheduler), DistributedSession(client, parts, plan) as session:

        def moved() -> float:
            return float(sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values()))

        session.run(Idle(sums), shared)
        for _ in range(_PASSES):
            before = (time.perf_counter(), _busy(scheduler), _busy(me), moved())
            session.run(Idle(sums), shared)
            after = (time.perf_counter(), _busy(scheduler), _busy(me), moved())
            rows.append([late - early for early, late in zip(before, after, strict=True)])
    return Cost(partitions, workers, sums, *(float(value) for value in np.median(rows, axis=0)))


@dataclass(frozen=True)
class Constants:
    """Seconds of a pass that workers do not share among them."""

    per_task_set: float
    """For each partition: its tasks, in the scheduler and the driver."""
    per_worker: float
    per_byte: float
    """Of sums, through the scheduler to the driver, which adds them up."""

    @classmethod
    def of(cls, costs: "list[Cost]") -> "Constants":
        """By least squares, none of them negative."""
        from scipy.optimize import nnls

        what = np.array([[cost.partitions, cost.workers, cost.gathered] for cost in costs], dtype=float)
        scale = what.max(axis=0)
        found, _ = nnls(what / scale, np.array([cost.scheduler + cost.driver for cost in costs]))
        return cls(*(float(value) for value in found / scale))

    def seconds(self, fit: "Fit", workers: int, partitions: int) -> float:
        """A pass: the partitions of the busiest worker, and what is not shared. Nothing of it is taken to overlap."""
        sums = self.per_byte + 2 / _NETWORK  # into the scheduler and on to the driver
        alone = partitions * self.per_task_set + groups(partitions) * fit.sums * sums + workers * (self.per_worker + fit.sums / _NETWORK)
        each = fit.rows * fit.columns / partitions * _ENTRY_SECONDS + fit.sums / _NETWORK  # and to the worker that adds up
        return alone + -(-partitions // workers) * each


@dataclass(frozen=True)
class Fit:
    """An ICQF with 20 factors."""

    rows: int
    columns: int

    @property
    def sums(self) -> int:
        """Bytes of what each partition gives."""
        return int(dfact.ICQF(20)._footprint((self.rows, self.columns), 0, np.dtype(np.float32)).shared) // 2

    def outlook(self, constants: Constants, partitions: int) -> dict[str, Any]:
        """The fastest cluster of one-thread workers, and the largest of which half is gained."""
        times = {workers: constants.seconds(self, workers, partitions) for workers in range(1, partitions + 1)}
        best = min(times, key=lambda workers: times[workers])
        half = max(workers for workers in times if times[1] / times[workers] >= workers / 2)
        return {
            "fit": f"{self.rows:,} x {self.columns:,}",
            "partitions": partitions,
            "pass, 1 worker": times[1],
            "gains up to": best,
            "pass then": times[best],
            "faster then": times[1] / times[best],
            "half as fast as by number": half,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of all")
    part = 10 if parser.parse_args().small else 1
    shapes = [(1000, 100, 160_000), (1000, 20, 160_000), (1000, 100, 8_000), (250, 100, 160_000), (250, 20, 8_000), (250, 20, 1_600_000)]
    costs = []
    for partitions, workers, sums in shapes:
        costs.append(measure(partitions // part, workers // part, sums))
        print(costs[-1], flush=True)
    constants = Constants.of(costs)
    each = f"a partition {constants.per_task_set * 1e3:.2f} ms, a worker {constants.per_worker * 1e3:.2f} ms"
    print(f"{each}, sums {constants.per_byte * 1e9:.2f} s/GB")
    first = costs[0]
    ours = (first.scheduler + first.driver) / first.partitions
    bars = [(f"scheduler and driver take {ours * 1e3:.1f} ms for a partition in a pass, at most 10", ours < 0.01)]
    report("cluster_scale", [vars(cost) | {"gathered": cost.gathered} for cost in costs], bars)
    fits = [Fit(500_000, 1_000), Fit(1_000_000, 10_000)]
    cuts = [(fit, partitions) for fit in fits for partitions in (Layout.of((fit.rows, fit.columns)).n_partitions, 1000)]
    report("cluster_scale_outlook", [fit.outlook(constants, partitions) for fit, partitions in cuts])
    sys.exit(exit_code(bars))


if __name__ == "__main__":
    # As the workers' processes know it, so that what they exchange is named and not sent along.
    importlib.import_module("benchmarks.cluster_scale").main()
