"""A Dask cluster without arithmetic: workers on loopback that answer at once, or wait for the time of the arithmetic.

All workers share the cores of this machine, which allows many of them only if they are idle. Their remaining processor
time is the overhead of passes.
"""

import asyncio
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, ClassVar, Self
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import psutil
from dask import config
from distributed import Client, Scheduler, Worker
from distributed.comm.tcp import TCP
from numpy.typing import NDArray

from benchmarks.common import wait_until
from benchmarks.faults.fits import FORKSERVER, PATIENCE
from dfact.data.layout import Layout
from dfact.data.sources.base import ArraySource
from dfact.engine.block_state import BlockState
from dfact.engine.cluster.session import ClusterSession
from dfact.engine.memory_plan import Footprint, WorkerResources, make_plan
from dfact.engine.partitions import Partitions
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.models.cp.samples import AdamaxState

_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "1m",
    "distributed.admin.system-monitor.interval": "1m",
    "distributed.worker.http.routes": [],
    "distributed.worker.use-file-locking": False,
}
"""Workers of Dask's look at themselves a hundred times a second. A core of its own does not feel that; two cores that hundreds of
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
class WaitingSteps(Pass[BlockState, tuple[AdamaxState, float, int], AdamaxState]):
    """Local steps of the stochastic CP solver that wait instead of computing."""

    changes_state: ClassVar[bool] = False
    seconds: float
    dtype: None = None

    def step(self, block: Block, state: BlockState, broadcast: tuple[AdamaxState, float, int]) -> tuple[BlockState, AdamaxState]:
        _wait(self.seconds)
        return state, broadcast[0].scaled(43.0)


def _wait(seconds: float) -> None:
    """Let the thread wait, minus the time since its last wait in this pass: summation is part of the arithmetic."""
    now = time.perf_counter()
    last: float = getattr(_thread, "until", 0.0)
    _thread.until = seconds + (last if now - last < _NEXT else now)
    time.sleep(max(0.0, _thread.until - now))


def slow_down(factor: float) -> None:
    """Multiply the waits of this process by a factor."""
    global _slowness  # noqa: PLW0603  # the pass is the same object for all workers
    _slowness = factor


@contextmanager
def count_messages(messages: Any) -> Iterator[None]:
    """Count the messages that this process sends and receives meanwhile, in a shared number."""
    write, read = TCP.write, TCP.read

    async def counted_write(self: TCP, *arguments: Any, **options: Any) -> Any:
        messages.value += 1
        return await write(self, *arguments, **options)

    async def counted_read(self: TCP, *arguments: Any, **options: Any) -> Any:
        found = await read(self, *arguments, **options)
        messages.value += 1
        return found

    with patch.multiple(TCP, write=counted_write, read=counted_read):
        yield


def _run_scheduler(connection: Any, messages: Any) -> None:
    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler:
            connection.send(scheduler.address)
            await scheduler.finished()

    _allow_connections()
    logging.disable(logging.WARNING)
    with count_messages(messages):
        asyncio.run(run())


def _run_workers(address: str, folder: str, connection: Any) -> None:
    """Start and close workers on request, each with a name."""

    async def run() -> None:
        settings: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
        settings["local_directory"] = folder
        workers: dict[Any, Worker] = {}
        while request := await asyncio.get_running_loop().run_in_executor(None, connection.recv):
            for name in request.get("start", ()):
                workers[name] = await Worker(address, name=name, **settings)
            await asyncio.gather(*(workers.pop(name).close() for name in request.get("close", ())))

    _allow_connections()
    logging.disable(logging.ERROR)  # Dask reports calls of workers that are being closed
    with config.set(_QUIET):
        asyncio.run(run())


def _allow_connections() -> None:
    """Raise the limit of open files to the highest that is allowed, as Dask's command lines do."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
        """Return the usage minus the usage of the same processes when idle."""
        share = self.clock / idle.clock
        return Usage(
            self.clock, self.scheduler - share * idle.scheduler, self.driver - share * idle.driver, self.workers - share * idle.workers
        )


class IdleCluster:
    """A scheduler in its own process, a client, and workers that join on request."""

    def __enter__(self) -> Self:
        ours, theirs = FORKSERVER.Pipe()
        self.messages = FORKSERVER.Value("q", 0)
        """Number of messages that the scheduler has sent and received."""
        self.scheduler = FORKSERVER.Process(target=_run_scheduler, args=(theirs, self.messages), daemon=True)
        self.scheduler.start()
        self._folder = TemporaryDirectory()
        self.processes: list[BaseProcess] = []
        self._pipes: list[Any] = []
        self.names: list[list[str]] = []
        """Names of the workers of each process."""
        self.address = ours.recv()
        self.client = Client(self.address, set_as_default=False)
        return self

    @property
    def workers(self) -> int:
        """Number of workers."""
        return sum(map(len, self.names))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()
        for process in (*self.processes, self.scheduler):
            process.kill()
            process.join()
        self._folder.cleanup()

    def host(self) -> Any:
        """Start a process for workers, without any, and return the connection over which it starts and closes them."""
        ours, theirs = FORKSERVER.Pipe()
        self.processes.append(FORKSERVER.Process(target=_run_workers, args=(self.address, self._folder.name, theirs), daemon=True))
        self.processes[-1].start()
        self._pipes.append(ours)
        self.names.append([])
        return ours

    def grow(self, workers: int, processes: int | None = None) -> None:
        """Grow to this number of one-thread workers; new workers share a number of new processes, by default one each."""
        new = workers - self.workers
        for part in np.array_split(np.arange(new), min(processes or new, new)) if new else ():
            self.host()
            self.start(len(self.processes) - 1, len(part))
        self._wait_until(lambda n: n >= workers, f"{workers} workers have joined")

    def start(self, process: int, count: int) -> None:
        """Start further workers in a process."""
        names = [uuid4().hex for _ in range(count)]
        self._pipes[process].send({"start": names})
        self.names[process] += names

    def forget(self, name: str) -> None:
        """Forget a worker that has been retired."""
        next(names for names in self.names if name in names).remove(name)

    def kill(self, process: int) -> None:
        """Kill a process with all its workers."""
        self.processes[process].kill()
        self.processes[process].join()
        for parts in (self.processes, self._pipes, self.names):
            del parts[process]

    def lose_all_but_the_first(self) -> None:
        """Kill all processes of workers but the first, and wait until the scheduler has noticed."""
        while len(self.processes) > 1:
            self.kill(1)
        self._wait_until(lambda n: n <= 1, "all workers but one are gone")

    def _wait_until(self, reached: Callable[[int], bool], what: str) -> None:
        """Wait for a number of workers; Dask's own wait asks for all that is known of all workers."""
        count = lambda: len(self.client.nthreads())  # noqa: E731
        wait_until(lambda: reached(count()), lambda: f"the scheduler has {count()} workers, expected that {what}", PATIENCE)

    def usage(self) -> Usage:
        """Return the usage since the start."""
        [scheduler] = self.each(self.scheduler)
        return Usage(time.perf_counter(), scheduler, time.process_time(), sum(self.each()))

    def each(self, *processes: BaseProcess) -> list[float]:
        """Return the processor seconds of these processes, by default of the workers."""
        return [sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes or self.processes]

    def session(self, partitions: int) -> ClusterSession:
        """Open a session on this number of partitions of one row, which stay in memory."""
        source = ArraySource(np.zeros((partitions, 1)))
        plan = make_plan(source, np.dtype(np.float64), Footprint(16, 0, 0, 0), WorkerResources("distributed", self.workers, 1, 1 << 40, 0))
        return ClusterSession(self.client, Partitions(0, source, None, None, Layout(partitions, 1, 1, 1)), plan)
