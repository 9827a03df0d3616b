"""A session on a thousand workers without arithmetic: passes, a checkpoint, losses, joins, preemption, a write of rows, adaptive scaling.

python -m benchmarks.engine.thousand                  a quarter of an hour
python -m benchmarks.engine.thousand --minutes 60     5% of the workers are preempted in an hour instead of in three minutes
python -m benchmarks.engine.thousand --workers 100    fewer workers
python -m benchmarks.engine.thousand adaptive         one part: passes, adaptive

Scheduler, driver and workers are real, and so are their connections; many workers share each process. The data has the layout of 10⁹ rows
of 100 columns, but nothing is read: a row has one byte of state, and each pass returns the sums of 20 factors. So scheduler and driver do
what they do in a large fit. All workers share the cores of this machine, so their speeds say nothing, and no partitions move because of
them. The table has their processor time beyond that of an idle session (heartbeats), the messages that they send
and receive, likewise, and their connections and peak memory. Sums and rows are compared with what they must be.
"""

import argparse
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import zarr
from distributed import Client
from distributed.deploy import ProcessInterface, SpecCluster
from numpy.typing import NDArray

from benchmarks.common import exit_code, peak_bytes, report
from benchmarks.engine.idle_workers import IdleCluster, count_messages, noise
from benchmarks.faults.fits import FORKSERVER
from dfact.data.layout import Layout
from dfact.data.sources.base import DenseSource
from dfact.data.sources.dask import worker_infos
from dfact.engine.block_state import BlockState
from dfact.engine.cluster import session as session_module
from dfact.engine.cluster.session import ClusterSession
from dfact.engine.memory_plan import Footprint, WorkerResources, make_plan
from dfact.engine.partitions import Partitions
from dfact.engine.passes import Block, PartialSums, Pass, RunPass

Thresholds = list[tuple[str, bool]]
_SHAPE, _FACTORS = (10**9, 100), 20
_PASS_MS, _MEMORY = 50.0, 2 << 30
_PREEMPTED = 0.05
"""Share of the workers that are preempted, and of those that are killed together."""
_IDLE_SECONDS = 20.0
_PATIENCE = 900.0
_GONE = re.compile(r"Worker (\S+) (?:is lost|is leaving)")
_LEAVING = (
    "A worker is leaving",
    "A worker that is leaving",
    "partitions from leaving workers",
    "could not be reached while a worker is leaving",
)
"""Messages of the driver about workers that leave, without their names."""


@dataclass(frozen=True, eq=False)
class UnreadSource(DenseSource):
    """Rows that are never read."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n, _SHAPE[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        raise AssertionError("the pass reads no values")

    def slice(self, rows: slice) -> "UnreadSource":
        return UnreadSource(len(range(*rows.indices(self.n))))


@dataclass
class Marks(BlockState):
    marks: NDArray[Any]
    """(1, rows), bytes."""


@dataclass
class Sums(PartialSums):
    """Sums of the size of a model's, the number of rows and the sum of a mark of each partition."""

    of_items: NDArray[Any]
    rows: NDArray[Any]
    marks: NDArray[Any]


@dataclass(frozen=True)
class Marking(Pass[Marks, NDArray[Any], Sums]):
    """A pass that reads nothing and adds 1 to each row's mark, so that state and sums show which passes took place."""

    dtype: None = None
    state_type = Marks

    def start(self, block: Block) -> Marks:
        return Marks(np.full((1, block.matrix.shape[0]), _first_marks(block.index), np.uint8))

    def step(self, block: Block, state: Marks, broadcast: NDArray[Any]) -> tuple[Marks, Sums]:
        state.marks += 1
        return state, Sums(noise(_SHAPE[1] * _FACTORS * 8), np.asarray(state.marks.shape[1]), np.asarray(int(state.marks[0, 0])))


def _first_marks(partition: Any) -> Any:
    return partition % 241


def _partitions() -> Partitions:
    """Return the partitions of the data's layout, each a single block: kernels' blocks are none of the scheduler's or driver's business."""
    layout = Layout.of(_SHAPE)
    return Partitions(0, UnreadSource(_SHAPE[0]), None, None, replace(layout, block_rows=layout.partition_rows))


def _session(client: Client, workers: int) -> ClusterSession:
    parts, sums = _partitions(), _SHAPE[1] * _FACTORS * 8
    plan = make_plan(parts.source, np.dtype(np.float64), Footprint(1, 0, sums, 0), WorkerResources("distributed", workers, 1, 1 << 34, 0))
    return ClusterSession(client, parts, plan)


def _preempt(address: str, count: int, seconds: float, preempted: Any) -> None:
    """Preempt workers at even intervals, drawn at random, and send the name and address of each."""
    rng = np.random.default_rng(0)
    with Client(address, set_as_default=False) as client:
        began = time.monotonic()
        for i in range(count):
            time.sleep(max(0.0, began + (i + 0.5) * seconds / count - time.monotonic()))
            found = worker_infos(client)
            worker = sorted(found)[rng.integers(len(found))]
            preempted.send((found[worker]["name"], worker))
            client.retire_workers([worker])  # the notice: it hands its partitions over within dfact.leave-timeout, 25 s
        preempted.send(None)


class LoggedMessages(logging.Handler):
    """Messages of the driver about lost workers, direct calls and failed joins."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Collect messages meanwhile."""
        logger = logging.getLogger("dfact.cluster")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def false(self, gone: set[str]) -> list[str]:
        """Return the messages that name no cause, or one that is not true: only these workers are ``gone``."""
        found = [(message, _GONE.match(message)) for message in self.messages]
        unnamed = [message for message, named in found if named is None and not (gone and any(text in message for text in _LEAVING))]
        return [message for message, named in found if named is not None and named[1] not in gone] + unnamed


@dataclass
class Figures:
    """Seconds of the clock and of the processors of driver and scheduler, and their messages, so far."""

    seconds: float
    driver: float
    scheduler: float
    driver_messages: float
    scheduler_messages: float

    def since(self, before: "Figures") -> "Figures":
        return Figures(*(late - early for early, late in zip(vars(before).values(), vars(self).values(), strict=True)))

    def beyond(self, idle: "Figures") -> "Figures":
        """Return the figures minus the figures of the same processes when idle."""
        share = self.seconds / idle.seconds
        own = (value - share * rest for value, rest in zip(list(vars(self).values())[1:], list(vars(idle).values())[1:], strict=True))
        return Figures(self.seconds, *own)


@dataclass
class Bench:
    """A cluster without arithmetic, a session on it, and the rows of the table."""

    cluster: IdleCluster
    session: ClusterSession
    messages: Any
    idle: Figures = field(default_factory=lambda: Figures(1.0, 0, 0, 0, 0))
    rows: list[dict[str, Any]] = field(default_factory=list)
    n_passes: int = 0
    wrong: int = 0
    """Number of passes whose sums were not those of all partitions after all passes before."""

    def figures(self) -> Figures:
        [scheduler] = self.cluster.each(self.cluster.scheduler)
        return Figures(time.perf_counter(), time.process_time(), scheduler, self.messages.value, self.cluster.messages.value)

    def measure(self, what: str, action: Callable[[], Any], count: int = 1) -> dict[str, Any]:
        """Add a row on an action that does something ``count`` times; the figures are for one time."""
        before = self.figures()
        action()
        used = self.figures().since(before).beyond(self.idle)
        row: dict[str, Any] = {"what": what, "times": count, "workers": len(self.session._workers.all), "s": used.seconds / count}
        row |= {"driver ms": 1e3 * used.driver / count, "scheduler ms": 1e3 * used.scheduler / count}
        row |= {"driver messages": used.driver_messages / count, "scheduler messages": used.scheduler_messages / count}
        pids = {"driver": os.getpid(), "scheduler": self.cluster.scheduler.pid}
        row |= {f"{name} connections": _connections(pid) for name, pid in pids.items()}
        row |= {f"{name} MiB": peak_bytes(pid) / 2**20 for name, pid in pids.items()}
        self.rows.append(row)
        texts = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()]
        print("  ".join(texts), flush=True)
        return row

    def passes(self, count: int = 1) -> None:
        found = [self.session.run(RunPass(Marking(), noise(_SHAPE[1] * _FACTORS * 8))) for _ in range(count)]
        for sums in found:
            self.n_passes += 1
            marks = (_first_marks(np.arange(len(self.session._partitions))) + self.n_passes) % 256
            self.wrong += int(sums.rows) != _SHAPE[0] or int(sums.marks) != marks.sum()

    def passes_until(self, reached: Callable[[], bool]) -> None:
        """Run passes until something has happened."""
        end = time.monotonic() + _PATIENCE
        while not reached():
            assert time.monotonic() < end, f"it has not happened within {_PATIENCE:g} s"
            self.passes()

    def has(self, workers: int) -> bool:
        """Return whether this number of workers has joined, and partitions have been placed with regard to all."""
        return len(self.session._workers.all) == workers and all(worker.placed for worker in self.session._workers.all)


def _connections(pid: int) -> int:
    """Return the number of sockets of a process."""
    count = 0
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # it has just been closed
                count += str(Path(entry.path).readlink()).startswith("socket:")
    return count


def passes(n_workers: int, n_passes: int, minutes: float) -> Thresholds:
    """Measure passes, a checkpoint, losses, joins, preemption and a write of rows on a session of many workers."""
    messages, records, gone = SimpleNamespace(value=0), LoggedMessages(), set[str]()
    few = max(1, round(_PREEMPTED * n_workers))
    with (
        count_messages(messages),
        IdleCluster() as cluster,
        tempfile.TemporaryDirectory() as folder,
        patch.object(session_module, "_MIN_GAIN_SECONDS", np.inf),
        records.attached(),
    ):
        cluster.grow(1)
        cluster.grow(1 + few, processes=1)
        cluster.grow(n_workers, processes=-(-n_workers // 150))
        bench = Bench(cluster, _session(cluster.client, n_workers), messages)
        bench.measure("all join", bench.session.__enter__)
        with bench.session:
            bench.measure("first pass", bench.passes)
            bench.idle = _idle(bench)
            usual = bench.measure("pass", lambda: bench.passes(n_passes), n_passes)
            group = zarr.create_group(Path(folder) / "checkpoint")
            bench.measure("checkpoint", lambda: bench.session.save(group))
            for count in (1, few):
                gone |= _kill_first(cluster, count)
                bench.measure(f"pass in which {count} are lost", bench.passes)
                bench.measure("next pass", bench.passes)
            cluster.host()
            cluster.start(len(cluster.processes) - 1, n_workers - cluster.workers)
            bench.measure(f"{1 + few} join, with passes", lambda: bench.passes_until(lambda: bench.has(n_workers)))
            gone |= _preemption(bench, few, minutes)
            bench.passes_until(lambda: bench.has(n_workers))
            after = bench.measure("pass after that", lambda: bench.passes(n_passes), n_passes)
            path = Path(folder) / "rows"
            size = bench.session._partitions.layout.chunk_rows
            target = zarr.create_array(path, shape=(_SHAPE[0], 1), chunks=(size, 1), dtype=np.uint8)
            written: list[bool] = []
            bench.measure("write of rows", lambda: written.append(bench.session.write_rows("marks", _unchanged, target)))
            right = _right_rows(bench, target)
    false = records.false(gone)
    for message in false[:10]:
        print(f"false cause: {message}")
    thresholds = [
        *_limits(bench, [usual, after]),
        (f"{len(false)} of {len(records.messages)} messages on lost workers and failed calls have no true cause, at most 0", not false),
        (f"{bench.wrong} of {bench.n_passes} passes have wrong sums, at most 0", bench.wrong == 0),
        (f"workers wrote the rows ({written}), and all {_SHAPE[0]} are right", written == [True] and right),
    ]
    report("thousand_passes", bench.rows, thresholds)
    return thresholds


def _idle(bench: Bench) -> Figures:
    before = bench.figures()
    time.sleep(_IDLE_SECONDS)
    return bench.figures().since(before)


def _limits(bench: Bench, rows: Sequence[dict[str, Any]]) -> Thresholds:
    """Compare the processor time of passes, and the peak memory, with their limits."""
    thresholds = []
    for name in ("driver", "scheduler"):
        most, memory = max(row[f"{name} ms"] for row in rows), bench.rows[-1][f"{name} MiB"]
        thresholds += [
            (f"the {name} takes {most:.1f} ms of a pass, at most {_PASS_MS:g}", most <= _PASS_MS),
            (f"the {name} takes {memory:.0f} MiB, at most {_MEMORY >> 20}", memory <= _MEMORY >> 20),
        ]
    return thresholds


def _kill_first(cluster: IdleCluster, count: int) -> set[str]:
    """Kill the first process, of this number of workers, and return their addresses."""
    names, infos = cluster.names[0], worker_infos(cluster.client)
    assert len(names) == count
    cluster.kill(0)
    return {address for address, info in infos.items() if info["name"] in names}


def _preemption(bench: Bench, count: int, minutes: float) -> set[str]:
    """Run passes while workers are preempted with notice and replaced. Returns the addresses of those that were."""
    ours, theirs = FORKSERVER.Pipe()
    gone, ended = set[str](), list[None]()

    def reached() -> bool:
        assert process.exitcode in (None, 0), "the process that preempts workers has failed"
        while ours.poll():
            if (preempted := ours.recv()) is None:
                ended.append(None)
                break
            name, address = preempted
            gone.add(address)
            bench.cluster.forget(name)
            bench.cluster.start(-1, 1)
        return bool(ended)

    process = FORKSERVER.Process(target=_preempt, args=(bench.cluster.address, count, 60 * minutes, theirs), daemon=True)
    process.start()
    before = bench.n_passes
    row = bench.measure(f"{minutes:g} minutes in which {count} are preempted", lambda: bench.passes_until(reached))
    row["what"] += f", {bench.n_passes - before} passes"
    process.join()
    return gone


def _unchanged(rows: NDArray[Any]) -> NDArray[Any]:
    return rows


def _right_rows(bench: Bench, target: zarr.Array[Any]) -> bool:
    """Return whether the rows that were written are those after all passes."""
    parts, step = bench.session._partitions, 64
    right = True
    for first in range(0, len(parts), step):
        rows = parts.layout.rows(first, min(first + step, len(parts)))
        partition = np.arange(rows.start, rows.stop) // parts.layout.partition_rows
        right &= np.array_equal(target[rows.start : rows.stop, 0], (_first_marks(partition) + bench.n_passes) % 256)
    return bool(right)


class _Scheduler(ProcessInterface):  # type: ignore[misc]  # Dask brings no types
    """The scheduler of an :class:`IdleCluster`, which runs already."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address


class _HostedWorker(ProcessInterface):  # type: ignore[misc]
    """A worker in one of several processes."""

    def __init__(self, scheduler: str, name: Any, hosts: Sequence[Any]) -> None:
        super().__init__(name=name)
        self._name, self._host = name, hosts[int(name) % len(hosts)]

    async def start(self) -> None:
        self._host.send({"start": [self._name]})
        await super().start()

    async def close(self) -> None:
        self._host.send({"close": [self._name]})
        await super().close()


def adaptive(n_workers: int) -> Thresholds:
    """Let a cluster grow from no workers to many during a fit, and shrink to none after it."""
    messages, records = SimpleNamespace(value=0), LoggedMessages()
    with count_messages(messages), IdleCluster() as cluster, patch.object(session_module, "_MIN_GAIN_SECONDS", np.inf):
        cluster.client.close()  # the adaptive cluster has its own, and stops the scheduler
        hosts = [cluster.host() for _ in range(-(-n_workers // 150))]
        spec = {"cls": _HostedWorker, "options": {"hosts": hosts}}
        with (
            SpecCluster({}, {"cls": _Scheduler, "options": {"address": cluster.address}}, spec, silence_logs=False) as adapting,
            Client(adapting, set_as_default=False) as client,
        ):
            adapting.adapt(minimum=0, maximum=n_workers)
            bench = Bench(cluster, _session(client, n_workers), messages)
            with bench.session, records.attached():
                bench.measure("the first join, and the first pass", bench.passes)
                bench.measure(f"to {n_workers}, with passes", lambda: bench.passes_until(lambda: bench.has(n_workers)))
                most = len(bench.session._workers.owners)
                bench.idle = _idle(bench)  # with the heartbeats, and the questions of what scales the cluster
                usual = bench.measure("pass", lambda: bench.passes(5), 5)
            bench.measure("back to none", lambda: _until_none(client))
            left = len(client.nthreads())
    false = records.false(set())
    for message in false[:10]:
        print(f"false cause: {message}")
    thresholds = [
        *_limits(bench, [usual]),
        (f"an adaptive cluster grew to {most} workers with partitions, at least {n_workers}", most == n_workers),
        (f"{left} of its workers are left after the fit, at most 0", left == 0),
        (f"{len(false)} workers or calls were lost meanwhile, at most 0", not false),
        (f"{bench.wrong} of {bench.n_passes} passes have wrong sums, at most 0", bench.wrong == 0),
    ]
    report("thousand_adaptive", bench.rows, thresholds)
    return thresholds


def _until_none(client: Client) -> None:
    end = time.monotonic() + _PATIENCE
    while client.nthreads() and time.monotonic() < end:
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["passes", "adaptive"]
    parser.add_argument("parts", nargs="*", choices=[*names, []], help="parts to run, by default all")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--passes", type=int, default=10, help="number of passes over which a figure is taken")
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes in which 5%% of the workers are preempted")
    arguments = parser.parse_args()
    thresholds: Thresholds = []
    for name in arguments.parts or names:
        if name == "passes":
            thresholds += passes(arguments.workers, arguments.passes, arguments.minutes)
        else:
            thresholds += adaptive(arguments.workers)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
