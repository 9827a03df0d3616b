"""A Dask cluster without arithmetic: workers on loopback that answer at once, or wait for the time of the arithmetic.

All workers share the cores of this machine, which allows many of them only if they are idle. Their remaining processor
time is the overhead of passes.
"""

import asyncio
import logging
import os
import threading
import time
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
import psutil
from dask import config
from distributed import Client, Scheduler, Worker
from numpy.typing import NDArray

from benchmarks.faults.fits import FORKSERVER
from dfact.data.layout import Layout
from dfact.data.sources.dense import ArraySource
from dfact.engine.block_state import BlockState
from dfact.engine.cluster.session import ClusterSession
from dfact.engine.memory_plan import Footprint, WorkerResources, make_plan
from dfact.engine.partitions import Partitions
from dfact.engine.passes import Block, PartialSums, Pass, SampledPass
from dfact.models.cp.samples import AdamaxState

_QUIET = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1s", "distributed.admin.tick.limit": "1m"}
"""Workers of Dask's look at themselves a hundred times a second. A core of its own does not feel that; two cores that a hundred
workers share are busy with nothing else."""
_NEXT = 1e-3
"""Seconds within which a partition follows another in the same pass."""
_slowness = 1.0
_thread = threading.local()


@cache
def noise(size: int) -> NDArray[Any]:
    """Return this number of incompressible bytes."""
    found = np.random.default_rng(0).random(size // 8)
    found.flags.writeable = False
    return found


@dataclass
class Sums(PartialSums):
    """Sums of the size of a model's."""

    of_items: NDArray[Any]


@dataclass
class Rows(BlockState):
    rows: NDArray[Any]


@dataclass(frozen=True)
class Idle(Pass[BlockState, Any, Sums]):
    """A pass without arithmetic."""

    bytes: int
    dtype: None = None

    def step(self, block: Block, state: BlockState, broadcast: Any) -> tuple[Rows, Sums]:
        return Rows(np.zeros((1, block.matrix.shape[0]))), Sums(noise(self.bytes))


@dataclass(frozen=True)
class Waiting(Pass[Rows, NDArray[Any], Sums]):
    """A pass that waits at each partition; state and sums show whether every partition took part in every pass."""

    seconds: float
    bytes: int
    dtype: None = None
    state_type = Rows

    def start(self, block: Block) -> Rows:
        return Rows(np.full((2, block.matrix.shape[0]), 0.1 * block.index))

    def step(self, block: Block, state: Rows, broadcast: NDArray[Any]) -> tuple[Rows, Sums]:
        _wait(self.seconds * _slowness)
        rows = np.cos(3 * state.rows + broadcast[0])
        return Rows(rows), Sums(noise(self.bytes) * rows.mean())


@dataclass(frozen=True)
class WaitingSteps(SampledPass[BlockState, tuple[AdamaxState, float, int], AdamaxState]):
    """Local steps of the stochastic CP solver that wait instead of computing."""

    changes_state: ClassVar[bool] = False
    seconds: float
    dtype: None = None

    def step(self, block: Block, state: BlockState, broadcast: tuple[AdamaxState, float, int]) -> tuple[BlockState, AdamaxState]:
        _wait(self.seconds)
        return state, broadcast[0].scaled(43.0)


def _wait(seconds: float) -> None:
    """Let the thread wait, less the time since its last wait in this pass: summation is part of the arithmetic."""
    now = time.perf_counter()
    last: float = getattr(_thread, "until", 0.0)
    _thread.until = seconds + (last if now - last < _NEXT else now)
    time.sleep(max(0.0, _thread.until - now))


def slow_down(factor: float) -> None:
    """Multiply the waits of this process by a factor."""
    global _slowness  # noqa: PLW0603  # the pass is the same object for all workers
    _slowness = factor


def _run_scheduler(connection: Any) -> None:
    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler:
            connection.send(scheduler.address)
            await scheduler.finished()

    logging.disable(logging.WARNING)
    asyncio.run(run())


def _run_workers(address: str, count: int) -> None:
    async def run() -> None:
        settings: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
        workers = [await Worker(address, name=f"{os.getpid()}-{i}", **settings) for i in range(count)]
        await asyncio.gather(*(worker.finished() for worker in workers))

    logging.disable(logging.WARNING)
    with config.set(_QUIET):
        asyncio.run(run())


@dataclass
class Usage:
    """Processor seconds and wall-clock seconds."""

    clock: float
    scheduler: float
    driver: float
    workers: float

    def since(self, before: "Usage") -> "Usage":
        return Usage(*(late - early for early, late in zip(vars(before).values(), vars(self).values(), strict=True)))

    def beyond(self, idle: "Usage") -> "Usage":
        """Return the usage without that of the same processes when idle."""
        share = self.clock / idle.clock
        return Usage(
            self.clock, self.scheduler - share * idle.scheduler, self.driver - share * idle.driver, self.workers - share * idle.workers
        )


class IdleCluster:
    """A scheduler in its own process, a client, and workers that join on request."""

    def __enter__(self) -> Self:
        ours, theirs = FORKSERVER.Pipe()
        self._scheduler = FORKSERVER.Process(target=_run_scheduler, args=(theirs,), daemon=True)
        self._scheduler.start()
        self.processes: list[BaseProcess] = []
        self.workers = 0
        self._data_uri = ours.recv()
        self.client = Client(self._data_uri, set_as_default=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()
        for process in (*self.processes, self._scheduler):
            process.kill()
            process.join()

    def grow(self, workers: int, processes: int | None = None) -> None:
        """Grow to this number of one-thread workers; new workers share a number of new processes, by default one each."""
        new = workers - self.workers
        counts = [len(part) for part in np.array_split(np.arange(new), min(processes or new, new))] if new else []
        for count in counts:
            self.processes.append(FORKSERVER.Process(target=_run_workers, args=(self._data_uri, count), daemon=True))
            self.processes[-1].start()
        self.workers = workers
        if new:
            self.client.wait_for_workers(workers, timeout=300)

    def lose_all_but_the_first(self) -> None:
        """Kill all processes of workers but the first, and wait until the scheduler has noticed."""
        first, *others = self.processes
        for process in others:
            process.kill()
            process.join()
        self.processes, self.workers = [first], 1
        while len(self.client.scheduler_info(n_workers=-1)["workers"]) > 1:
            time.sleep(0.05)

    def usage(self) -> Usage:
        """Return the usage since the start."""
        [scheduler] = self.each(self._scheduler)
        return Usage(time.perf_counter(), scheduler, time.process_time(), sum(self.each()))

    def each(self, *processes: BaseProcess) -> list[float]:
        """Return the processor seconds of these processes, by default those of the workers."""
        return [sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes or self.processes]

    def session(self, partitions: int) -> ClusterSession:
        """Open a session on this number of partitions of one row, which stay in memory."""
        source = ArraySource(np.zeros((partitions, 1)))
        plan = make_plan(source, np.dtype(np.float64), Footprint(16, 0, 0, 0), WorkerResources("distributed", self.workers, 1, 1 << 40, 0))
        return ClusterSession(self.client, Partitions(0, source, None, None, Layout(partitions, 1, 1, 1)), plan)
