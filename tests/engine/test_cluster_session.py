"""The cluster's session: placement, the journal, bit-identical results however many workers there are, and what becomes of lost ones."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from distributed import Client, Event, LocalCluster, Worker
from numpy.typing import NDArray

from benchmarks.faults.fits import SELECTIONS, Processes, answers, bits, forked_workers, long_fit, small_partitions
from dfact.data.layout import Layout, cut_into
from dfact.data.sources.base import ArraySource
from dfact.data.sources.dask import worker_infos
from dfact.engine.block_state import BlockState, PartitionStates
from dfact.engine.cluster import watchdog as watch
from dfact.engine.cluster import worker_shard as shard_module
from dfact.engine.cluster import workers as workers_module
from dfact.engine.cluster.certificate_names import require_names_checked
from dfact.engine.cluster.heartbeats import METRICS
from dfact.engine.cluster.journal import Journal
from dfact.engine.cluster.placement import build_call_tree, overlaps, split_runs, subtract_runs
from dfact.engine.cluster.rows import WrittenRows
from dfact.engine.cluster.session import ClusterSession, DistributedExecutor
from dfact.engine.cluster.transport import packed
from dfact.engine.cluster.worker_shard import Report, WorkerShard
from dfact.engine.cluster.workers import SessionWorkers, WorkersLost
from dfact.engine.executors import InlineExecutor, ThreadsExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import Leaves, TreeSum, partitions
from dfact.engine.passes import Block, PartialSums, Pass, RunPass
from dfact.engine.session import CheckpointableSession, Executor
from dfact.engine.shard import Shard
from dfact.errors import ClusterError, StoreError
from dfact.monitoring import metrics
from dfact.storage.array_stream import StreamWriter
from tests.cases import exhaustive_after
from tests.conftest import free_port

FLOAT32 = np.dtype(np.float32)
FOOTPRINT = Footprint(state_per_row=8, work_per_row=200, broadcast=1000, result_per_row=8)
N_PARTITIONS, BLOCKS = 24, 2
_LOCAL: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "memory_limit": "2GiB"}
WAIT = 200.0  # seconds, of what is polled: much more than it takes


# Passes that are counted, and that strike the workers


@dataclass
class Nothing(PartialSums):
    """A sum that only counts."""


@dataclass
class Sums(PartialSums, name="test_walk"):
    weighted: NDArray[Any]
    count: NDArray[Any]


@dataclass(frozen=True)
class Kill:
    """Where a worker kills itself, once: in the midst of a partition, in the pass with this number."""

    number: int
    partition: int
    after: int = -1
    """Only when the kill with this number has happened: so in the repetition of passes."""


@dataclass
class WalkState(BlockState):
    x: NDArray[Any]
    more: NDArray[Any] | None = None


@dataclass(frozen=True)
class Walk(Pass[WalkState, Any, Sums]):
    """A pass whose sums follow from all passes before and from the order of sums; it overwrites its state.

    In ``folder`` it notes the partitions that it runs on. The broadcast is the pass's number.
    """

    folder: str = ""
    kills: tuple[Kill, ...] = ()
    fails: int = 0
    """The number of the pass that raises an error."""
    poison: int = -1
    """The partition that kills each worker that runs on it, in pass 3."""
    pause: float = 0.0
    dtype: np.dtype[Any] = FLOAT32
    state_type = WalkState

    def start(self, block: Block) -> WalkState:
        return WalkState(np.full((2, len(block.values)), np.float32(block.index) / 7))

    def step(self, block: Block, state: WalkState, broadcast: Any) -> tuple[WalkState, Sums]:
        number = int(broadcast)
        state.x *= np.float32(1.1)
        state.x += np.float32(broadcast)
        if self.folder:
            self._note(block, number)
        if self.pause:
            time.sleep(self.pause)
        if number == self.fails:
            raise ValueError(f"block {block.index} is bad")
        return state, Sums(state.x.sum() * np.nansum(block.values, axis=0, dtype=np.float64) / 3, np.asarray(len(block.values)))

    def _note(self, block: Block, number: int) -> None:
        partition, within = divmod(block.index, BLOCKS)
        if within == 1:  # the state of the first block has been overwritten by now
            for i, kill in enumerate(self.kills):
                if (kill.number, kill.partition) == (number, partition) and (kill.after < 0 or self._struck(kill.after).exists()):
                    try:
                        self._struck(i).touch(exist_ok=False)
                    except FileExistsError:
                        continue
                    os.kill(os.getpid(), signal.SIGKILL)
            if (number, partition) == (3, self.poison):
                os.kill(os.getpid(), signal.SIGKILL)
            with (Path(self.folder) / f"{number}-{partition}").open("a") as processed_partitions:
                processed_partitions.write(".")

    def _struck(self, kill: int) -> Path:
        return Path(self.folder) / f"kill-{kill}"


@dataclass(frozen=True)
class Wide(Walk):
    """The same, with a state of other arrays in every third pass."""

    def step(self, block: Block, state: WalkState, broadcast: Any) -> tuple[WalkState, Sums]:
        x = state.x if state.more is None else state.x + state.more[:, :2].T
        state, sums = super().step(block, WalkState(x), broadcast)
        if int(broadcast) % 3 == 0:
            state.more = np.full((len(block.values), 5), broadcast, np.float32)
        return state, sums


@dataclass(frozen=True)
class Look(Pass[BlockState, Any, Sums]):
    """A pass that keeps no state, and drops what there is."""

    dtype: np.dtype[Any] = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: Any) -> tuple[BlockState, Sums]:
        return BlockState(), Sums(np.nansum(block.values, axis=0) * np.float32(broadcast) / np.float32(3), np.asarray(len(block.values)))


def processed_partitions(folder: Path) -> Counter[tuple[int, int]]:
    """How often each pass has been through each partition, by all workers."""
    found = Counter[tuple[int, int]]()
    for path in folder.glob("[0-9]*-*"):
        number, partition = map(int, path.name.split("-"))
        found[number, partition] = path.stat().st_size
    return found


def again(folder: Path) -> set[int]:
    """The partitions that some pass has been through more than once."""
    return {partition for (_, partition), count in processed_partitions(folder).items() if count > 1}


def kills_done(folder: Path) -> int:
    return len(list(folder.glob("kill-*")))


# Sessions


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small_partitions():
        yield


_patching = threading.Lock()


@contextmanager
def tiny_partitions() -> Iterator[None]:
    with cut_into(block_entries=1 << 10, partition_entries=BLOCKS << 10):
        yield


def opened(executor: Executor, n_partitions: int = N_PARTITIONS, **plan: Any) -> Any:
    """A session on data of so many partitions, of two blocks each."""
    with _patching, tiny_partitions():
        rows = BLOCKS * Layout.of((1 << 14, 16)).block_rows * n_partitions
        rng = np.random.default_rng(0)
        X = rng.integers(0, 5, (rows - (7 if n_partitions > 1 else 0), 16)).astype(np.uint8)
        source = ArraySource(X)
        found = partitions(source, 4, None)
        assert (len(found), found.layout.partition_rows // found.layout.block_rows) == (n_partitions, BLOCKS)
        laid_out = make_plan(source, FLOAT32, FOOTPRINT, executor.workers(None))
        return executor.open(found, replace(laid_out, **plan))


def on(client: Client, n_partitions: int = N_PARTITIONS, **plan: int) -> ClusterSession:
    found: ClusterSession = opened(DistributedExecutor(client), n_partitions, **plan)
    return found


def take(session: CheckpointableSession, pass_: Any, numbers: Sequence[int]) -> list[bytes]:
    """The sums of passes with these numbers."""
    sums = [session.run(RunPass(pass_, np.float32(number))) for number in numbers]
    return [part.weighted.tobytes() + part.count.tobytes() for part in sums]


def rows_of(session: CheckpointableSession) -> bytes:
    return np.concatenate(list(session.rows("x"))).tobytes()


def course(session: CheckpointableSession, pass_: Any, n: int) -> tuple[list[bytes], bytes]:
    """What n passes give, and their state."""
    with session:
        return take(session, pass_, range(1, n + 1)), rows_of(session)


def inline(n: int, n_partitions: int = N_PARTITIONS, pass_: Any = None) -> tuple[list[bytes], bytes]:
    return course(opened(InlineExecutor(), n_partitions), pass_ or Walk(), n)


def until(condition: Callable[[], Any]) -> None:
    """Wait for what is bound to come."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that soon looks after workers that do not answer, and waits for all to join, however busy the machine is."""
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(workers_module, "_JOIN_TIMEOUT", 300.0)


class Leaps:
    """A clock that stands still, except during the pauses between attempts to join, each of which exceeds all that a driver waits."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 2 * WAIT + seconds


@contextmanager
def two_attempts() -> Iterator[None]:
    """Sessions that give up workers that cannot join after two attempts, however long these take."""
    with dask.config.set({"dfact.worker-timeout": f"{WAIT:g}s"}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_module, "time", Leaps())
        yield


@contextmanager
def inside(n_workers: int, threads: int = 1) -> Iterator[Client]:
    """A cluster within this process."""
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=threads, processes=False, **_LOCAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(n_workers)
        yield client


def shards_of(client: Client) -> dict[str, int]:
    """Shards that are open in each worker's process."""
    found: dict[str, int] = client.run(open_shards)
    return found


def open_shards(dask_worker: Any) -> int:
    return sum(shard.worker is dask_worker for shard in shard_module._shards.values())


@contextmanager
def workers(processes: Processes, n: int) -> Iterator[Client]:
    """A client of the cluster with exactly so many workers."""
    alive(processes)
    processes.kill(*processes.workers[n:])
    processes.start(n)
    with Client(processes.address, set_as_default=False) as client:
        until(lambda: len(worker_infos(client)) == n)
        yield client


def alive(processes: Processes) -> list[str]:
    """Names of the workers that have not killed themselves."""
    processes.kill(*(name for name in processes.workers if not processes.running[name].is_alive()))
    return processes.workers


def owner(session: ClusterSession, partition: int) -> str:
    """The address of the worker that owns a partition."""
    return next(w.address for w in session._workers.owners for run in w.runs if partition in run)


def stem(client: Client, address: str) -> str:
    return str(worker_infos(client)[address]["name"])


# Who owns what


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_proportional_consecutive_and_cover_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = [range(10 * i, 10 * i + int(rng.integers(1, 11))) for i in range(int(rng.integers(1, 5)))]
    weights = rng.uniform(0.1, 5, int(rng.integers(1, 12)))
    shares = split_runs(runs, weights.tolist())
    numbers = [number for share in shares for run in share for number in run]
    assert numbers == [number for run in runs for number in run]
    exact, loads = weights / weights.sum() * len(numbers), [sum(map(len, share)) for share in shares]
    # As near as whole partitions come, and the busiest no busier than that for ending where sums are complete.
    nearest = np.diff(np.rint(np.cumsum([0, *exact])))
    assert max(loads / weights) <= 1.05 * max(nearest / weights)
    assert all(run for share in shares for run in share)
    if len(runs) == 1:
        assert all(len(share) <= 1 for share in shares)


def test_with_fewer_partitions_than_workers_some_get_none() -> None:
    shares = split_runs([range(3)], [1.0] * 7)
    assert sorted(sum(map(len, share)) for share in shares) == [0, 0, 0, 0, 1, 1, 1]
    assert split_runs([], [1.0, 2.0]) == [[], []]
    assert split_runs([range(5)], [3.0]) == [[range(5)]]


def test_runs_without_excluded_partitions() -> None:
    assert subtract_runs([range(10)], [range(2, 4), range(3, 5), range(9, 12)]) == [range(2), range(5, 9)]
    assert subtract_runs([range(3), range(5, 7)], []) == [range(3), range(5, 7)]
    assert subtract_runs([range(3)], [range(3)]) == []


@pytest.mark.parametrize("seed", range(4))
def test_overlaps_are_the_parts_of_a_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = np.unique(rng.integers(0, 60, 12)).tolist()
    pieces = [(range(a, b), i) for i, (a, b) in enumerate(pairwise(cuts)) if i % 3]
    for _ in range(20):
        start, size = rng.integers(0, 60), rng.integers(1, 30)
        run = range(start, start + size)
        found = overlaps(run, pieces)
        assert [(n, i) for part, i in found for n in part] == [(n, i) for piece, i in pieces for n in piece if n in run]
        assert all(len(part) for part, _ in found)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6, 21, 100, 401])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_tree_calls_each_worker_once_and_neighbours_together(n: int, seed: int) -> None:
    def flat(node: Any) -> list[int]:
        return [node[0], *(item for below in node[1] for item in flat(below))]

    def check(node: Any) -> int:
        """Each call reaches a run of workers, of which the first is called; returns the depth."""
        items = sorted(flat(node))
        assert items == list(range(node[0], node[0] + len(items)))
        return 1 + max(map(check, node[1]), default=0)

    firsts = np.sort(np.random.default_rng(seed).choice(np.arange(1, 5 * n), n - 1, replace=False))
    found = build_call_tree(list(range(n)), [0, *firsts.tolist()])
    assert sorted(flat(found)) == list(range(n))
    assert check(found) <= 1 + int(5 * n).bit_length()


@pytest.mark.parametrize(("n", "workers"), [(489, 64), (15625, 512), (1954, 128)])
def test_aligned_shares_have_the_sums_of_one_node(n: int, workers: int) -> None:
    """The alignment costs no worker more than a few percent of its time."""
    shares = [share for share in split_runs([range(n)], [1.0] * workers) if share]
    assert max(sum(map(len, share)) for share in shares) <= 1.05 * -(-n // workers)
    for [run] in shares:
        sums = TreeSum[Any](Leaves((n,)))
        for number in run:
            sums.add((0, number), Nothing())
        assert len(sums.nodes) == 1


# The journal


def test_the_journal_returns_its_entries_unchanged() -> None:
    rng = np.random.default_rng(0)
    with Journal() as journal:
        for base in (0, 4):
            journal.clear(base)
            passes = [b"one", b"one", b"", b"two", b"one"]
            broadcast = [rng.bytes(int(size)) for size in (0, 1, 1 << 20, 5, 3)]
            for entry in zip(passes, broadcast, strict=True):
                journal.append(*entry)
            assert [journal[base + 1 + i] for i in range(5)] == list(zip(passes, broadcast, strict=True))
        folder = journal._folder.path
        assert [path.name for path in folder.iterdir() if path.stat().st_size] == ["passes"]
    assert not folder.exists()


def test_the_journal_stores_a_pass_once_and_shrinks_when_cleared() -> None:
    with Journal() as journal:
        file, pass_ = journal._folder.path / "passes", os.urandom(1 << 16)
        for number in range(8):
            journal.append(pass_, bytes([number]) * 100)
        assert file.stat().st_size == (1 << 16) + 8 * 100
        journal.clear(8)
        assert file.stat().st_size == 0
        journal.append(pass_, b"x")
        assert journal[9] == (pass_, b"x")


def test_a_full_disk_of_the_journal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal() as journal:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match=r"journal of passes .*No space left.*; set TMPDIR to a larger disk, or write checkpoints"):
            journal.append(b"pass", b"shared")


# Bit-identical results


@pytest.mark.parametrize(("n_workers", "threads"), exhaustive_after(1, [(3, 2), (2, 1), (1, 1), (5, 1)]))
@pytest.mark.parametrize("plan", [{}, {"resident_states": 1, "resident_values": 1}], ids=["in memory", "spilled"])
def test_any_number_of_workers_gives_the_bits_of_one_thread(n_workers: int, threads: int, plan: dict[str, int]) -> None:
    with inside(n_workers, threads) as client:
        assert course(on(client, **plan), Walk(), 4) == inline(4)
        assert course(on(client, **plan), Wide(), 5) == inline(5, pass_=Wide())


@pytest.mark.parametrize("n_partitions", [1, 2])
def test_more_workers_than_partitions(n_partitions: int) -> None:
    with inside(5) as client:
        assert course(on(client, n_partitions), Walk(), 3) == inline(3, n_partitions)


def test_models_have_the_bits_of_one_thread() -> None:
    X = answers(0)
    expected = bits(long_fit(executor="inline").fit(X))
    for n_workers, threads in ((1, 2), (3, 1)):
        with inside(n_workers, threads) as client:
            assert bits(long_fit(executor=client).fit(X)) == expected


@pytest.mark.further
def test_shared_reads_of_a_selection() -> None:
    select = SELECTIONS["block_cross_validate, shared reads"]
    with inside(3) as client:
        assert bits(select(client)) == bits(select("inline"))


class StopHereError(Exception):
    pass


@pytest.mark.further
@pytest.mark.parametrize(("before", "after"), exhaustive_after(1, [(3, 2), (1, 5), (2, 0), (0, 3)]))
def test_a_checkpoint_resumes_with_another_number_of_workers(before: int, after: int, tmp_path: Path) -> None:
    def stop(iteration: Any) -> None:
        if iteration.number == 6:
            raise StopHereError

    def fitted(n_workers: int, *callbacks: Any) -> Any:
        with ExitStack() as stack:
            executor = stack.enter_context(inside(n_workers)) if n_workers else "threads"
            kept = {"checkpoint": tmp_path / "fit.zarr", "checkpoint_every": 3}
            return long_fit(executor=executor, callbacks=callbacks, **kept).fit(answers(5))

    with pytest.raises(StopHereError):
        fitted(before, stop)
    model = fitted(after)
    assert bits(model) == bits(long_fit(executor="inline").fit(answers(5)))


def sessions_in_turn(executors: Sequence[Executor], path: Path) -> tuple[list[bytes], bytes]:
    """Three passes each, the state of the one before from its checkpoint."""
    sums, states, number = list[bytes](), list[Any](), 0
    for i, executor in enumerate(executors):
        with opened(executor) as session:
            session.restore(states)
            sums += take(session, Walk(), range(number + 1, number + 4))
            number += 3
            states = session.save(zarr.create_group(path / f"{i}.zarr"))
            assert sorted(p for s in states for p in range(s.first, s.last)) == list(range(N_PARTITIONS))
            rows = rows_of(session)
    return sums, rows


@pytest.mark.further
def test_state_is_restored_on_other_executors(tmp_path: Path) -> None:
    with inside(3) as three, inside(5, 2) as five:
        of_three, of_five = DistributedExecutor(three), DistributedExecutor(five)
        executors: list[Executor] = [of_three, ThreadsExecutor(2), of_five, InlineExecutor(), of_three]
        assert sessions_in_turn(executors, tmp_path) == inline(15)


# What is lost


@pytest.mark.faults
class TestLosses:
    """Workers that are killed at a certain moment; all others keep what they have."""

    @pytest.fixture(autouse=True)
    def _no_balance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep partitions where they are, however other load on the machine slows the workers."""
        monkeypatch.setattr("dfact.engine.cluster.session._MIN_PASSES", sys.maxsize)

    @pytest.mark.exhaustive
    def test_before_the_first_pass(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 3) as client, on(client) as session:
            processes.kill(processes.workers[0])
            assert course_of(session, Walk(str(tmp_path)), 3) == inline(3)
            assert not again(tmp_path)

    @pytest.mark.further
    def test_between_passes_and_during_one(self, processes: Processes, tmp_path: Path) -> None:
        pass_ = Walk(str(tmp_path), (Kill(4, 23),))
        with workers(processes, 4) as client, on(client) as session:
            sums = take(session, pass_, [1, 2])
            first = held(session, owner(session, 0))
            processes.kill(stem(client, owner(session, 0)))
            sums += take(session, pass_, [3])
            assert again(tmp_path) == first
            counts = processed_partitions(tmp_path)
            assert {counts[number, partition] for number in (1, 2) for partition in first} == {2}
            last = held(session, owner(session, 23))
            sums += take(session, pass_, [4, 5])
            assert (sums, rows_of(session)) == inline(5)
            assert kills_done(tmp_path) == 1
            assert again(tmp_path) == first | last

    @pytest.mark.further
    def test_a_leaf_an_inner_node_and_the_root(self, processes: Processes, tmp_path: Path) -> None:
        # Six workers of four partitions each: the first calls all but the last, the fifth calls that.
        pass_ = Walk(str(tmp_path), (Kill(2, 23), Kill(4, 17), Kill(6, 0)))
        with workers(processes, 6) as client, on(client) as session:
            assert build_call_tree(list(range(6)), list(range(0, 24, 4))) == (0, [(4, [(5, [])]), (1, []), (2, []), (3, [])])
            assert course_of(session, pass_, 7) == inline(7)
            assert kills_done(tmp_path) == 3
            assert len(session._workers.all) == 3  # not the owners: a worker that others delay may get no partition

    @pytest.mark.exhaustive
    def test_several_at_once(self, processes: Processes, tmp_path: Path) -> None:
        pass_ = Walk(str(tmp_path), tuple(Kill(3, partition) for partition in (0, 9, 23)))
        with workers(processes, 4) as client, on(client) as session:
            assert course_of(session, pass_, 4) == inline(4)
            assert kills_done(tmp_path) == 3

    @pytest.mark.exhaustive
    def test_many_in_the_same_pass(self, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # As when a provider takes back most of its machines, one after the other: no partition has anything to do with it.
        remove, lost, names = SessionWorkers.remove, list[str](), dict[str, str]()

        def removed(self: SessionWorkers, members: Any) -> None:
            remove(self, members)
            lost.extend(worker.address for worker in members)
            if members and len(lost) < 4:
                processes.kill(names[self.owners[-(len(lost) % 2)].address])

        monkeypatch.setattr(SessionWorkers, "remove", removed)
        with workers(processes, 6) as client, on(client) as session:
            names |= {address: worker["name"] for address, worker in worker_infos(client).items()}
            sums = take(session, Walk(), [1, 2])
            sums += take(session, Walk(str(tmp_path), (Kill(3, 23),)), [3])
            assert len(lost) == 4
            assert (sums, rows_of(session)) == inline(3)

    def test_another_while_passes_are_repeated(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 3) as client, on(client) as session:
            pass_ = Walk(str(tmp_path), (Kill(4, 2), Kill(2, 3, after=0)))
            sums = take(session, pass_, [1])
            lost = held(session, owner(session, 2))
            sums += take(session, pass_, [2, 3, 4, 5])
            assert (sums, rows_of(session)) == inline(5)
            assert kills_done(tmp_path) == 2
            assert len(session._workers.owners) == 1
            assert lost < again(tmp_path)

    @pytest.mark.further
    def test_all_and_new_ones_join(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 2) as client, on(client) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2])
            processes.kill(*processes.workers)
            coming = threading.Timer(0.5, processes.start, [2])
            coming.start()
            sums += take(session, Walk(str(tmp_path)), [3])
            coming.join()
            assert (sums, rows_of(session)) == inline(3)

    @pytest.mark.exhaustive
    def test_all_and_none_joins(self, processes: Processes) -> None:
        with workers(processes, 2) as client, on(client) as session:
            take(session, Walk(), [1])
            processes.kill(*processes.workers)
            session._workers._watch.worker_timeout = 1.0
            with pytest.raises(ClusterError, match="for 1 s the Dask cluster has had no worker"):
                take(session, Walk(), [2])

    @pytest.mark.further
    def test_one_during_a_checkpoint_and_one_while_rows_are_read(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 3) as client, on(client) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2])
            client.run(doom, "save", workers=[owner(session, 12)])
            states = session.save(zarr.create_group(tmp_path / "state.zarr"))
            assert sorted(p for s in states for p in range(s.first, s.last)) == list(range(N_PARTITIONS))
            sums += take(session, Walk(str(tmp_path)), [3])
            client.run(doom, "rows", workers=[owner(session, 0)])
            assert (sums, rows_of(session)) == inline(3)
            assert len(session._workers.owners) == 1
            counts = processed_partitions(tmp_path)
            assert {counts[number, 12] for number in (1, 2)} == {2}  # from the start, as the checkpoint was not whole
            assert counts[1, 0] == counts[2, 0] == 1  # from the checkpoint
            assert counts[3, 0] == 2

    @pytest.mark.further
    def test_after_a_pass_without_state(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 2) as client, on(client) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2]) + take(session, Look(), [3])
            assert session._journal.base == 3
            processes.kill(stem(client, owner(session, 0)))
            sums += take(session, Look(), [4]) + take(session, Walk(str(tmp_path)), [5, 6])
            found = sums, rows_of(session)
            assert not again(tmp_path)
        with opened(InlineExecutor()) as session:
            sums = take(session, Walk(), [1, 2]) + take(session, Look(), [3, 4]) + take(session, Walk(), [5, 6])
            assert found == (sums, rows_of(session))

    @pytest.mark.exhaustive
    def test_a_pass_that_kills_each_worker(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 6) as client, on(client) as session:
            with pytest.raises(ClusterError, match="one worker after the other was lost in the same pass, 4 in all"):
                take(session, Walk(str(tmp_path), poison=11), [1, 2, 3])
            assert len(alive(processes)) == 2

    @pytest.mark.further
    def test_one_that_transfers_its_state(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 2) as client, on(client) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2])
            doomed = held(session, owner(session, 0))
            client.run(doom, "states", workers=[owner(session, 0)])
            new_worker(processes, client, session)
            sums += take(session, Walk(str(tmp_path)), [3, 4])
            assert (sums, rows_of(session)) == inline(4)
            assert again(tmp_path) == doomed

    @pytest.mark.further
    def test_another_worker_at_the_same_address(self, tmp_path: Path) -> None:
        with fixed_port(tmp_path) as (client, restart), on(client) as session:
            sums = take(session, Walk(), [1, 2])
            restart()
            sums += take(session, Walk(), [3])
            assert (sums, rows_of(session)) == inline(3)


def course_of(session: ClusterSession, pass_: Any, n: int) -> tuple[list[bytes], bytes]:
    return take(session, pass_, range(1, n + 1)), rows_of(session)


def held(session: ClusterSession, address: str) -> set[int]:
    """The partitions of a worker."""
    return {number for w in session._workers.owners if w.address == address for run in w.runs for number in run}


def doom(method: str) -> None:
    """In a worker: kill it when its shard does this."""

    def end(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Shard, method, end)


def new_worker(processes: Processes, client: Client, session: ClusterSession) -> str:
    """One that the session looks at before its next pass; its name."""
    n = len(worker_infos(client))
    name = processes.start_worker()
    until(lambda: len(worker_infos(client)) == n + 1)
    soon_balanced(session)
    return name


def soon_balanced(session: ClusterSession) -> None:
    """Before its next pass it looks for new workers; whatever their speed was, all get the same."""
    session._next_poll = 0.0
    for worker in session._workers.all:
        worker.speed = 1.0


@contextmanager
def fixed_port(folder: Path) -> Iterator[tuple[Client, Callable[[], None]]]:
    """A cluster of two workers, and what replaces one by a new process at the same address, as a nanny with a fixed port does."""
    with Processes(folder) as processes:
        processes.start(1)

        def start() -> None:
            processes._start("fixed", work_at, processes.address, port)

        port = free_port()
        start()
        with Client(processes.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=WAIT)

            def restart() -> None:
                processes.kill("fixed")
                start()
                until(lambda: pids(client).get(f"tcp://127.0.0.1:{port}") == processes.running["fixed"].pid)

            yield client, restart


def pids(client: Client) -> dict[str, int]:
    found: dict[str, int] = client.run(os.getpid, on_error="ignore")
    return found


def work_at(folder: str, settings: dict[str, Any], address: str, port: int) -> None:
    from benchmarks.faults.fits import _serve

    with small_partitions():
        own = {"host": "127.0.0.1", "port": port, "dashboard_address": "127.0.0.1:0", "name": "fixed", "nthreads": 1}
        _serve(lambda: Worker(address, **own), folder, settings, "fixed")


# What moves


@pytest.mark.faults
class TestMoves:
    @pytest.mark.further
    def test_a_worker_that_joins_takes_state_with_it(self, processes: Processes, tmp_path: Path) -> None:
        with workers(processes, 2) as client, on(client) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2])
            new_worker(processes, client, session)
            sums += take(session, Walk(str(tmp_path)), [3, 4])
            assert len(session._workers.owners) == 3
            assert (sums, rows_of(session)) == inline(4)
            assert not again(tmp_path)

    def test_states_of_many_messages(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(shard_module, "_STATES_BYTES", 2000)
        with inside(1) as client, on(client) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2])
            client.cluster.scale(3)
            client.wait_for_workers(3)
            soon_balanced(session)
            sums += take(session, Walk(str(tmp_path)), [3])
            assert [w.load for w in session._workers.owners] == [8, 8, 8]
            assert (sums, rows_of(session)) == inline(3)
            assert not again(tmp_path)

    def test_a_retired_worker(self, processes: Processes, tmp_path: Path) -> None:
        pass_ = Walk(str(tmp_path), pause=0.03)  # half a second a pass: it is retired in the midst of one
        with workers(processes, 3) as client, on(client) as session:
            sums = take(session, pass_, [1])
            retired = owner(session, 12)
            with Client(processes.address, set_as_default=False) as other:
                retiring = threading.Thread(target=other.retire_workers, args=([retired],))

                def in_its_midst() -> None:
                    until(lambda: processed_partitions(tmp_path)[2, 12])
                    retiring.start()

                starting = threading.Thread(target=in_its_midst)
                starting.start()
                sums += take(session, pass_, [2, 3])
                starting.join()
                retiring.join()
            sums += take(session, pass_, [4])
            assert (sums, rows_of(session)) == inline(4)
            assert retired not in {w.address for w in session._workers.owners}


@contextmanager
def joined_workers(n_workers: int, threads: int = 1) -> Iterator[tuple[Client, Callable[..., None]]]:
    """A cluster of which the session finds only some workers, and a function that names them by number."""
    found: dict[str, int] = {}
    with inside(n_workers, threads) as client, pytest.MonkeyPatch.context() as patch:
        addresses = sorted(worker_infos(client))
        patch.setattr(SessionWorkers, "available", lambda _: dict(found))
        patch.setattr("dfact.engine.cluster.session._POLL_WORKERS_SECONDS", 0.0)
        patch.setattr("dfact.engine.cluster.session._MIN_GAIN_SECONDS", float("inf"))  # numbers of partitions decide

        def find(*numbers: int) -> None:
            found.clear()
            found.update({addresses[number]: threads for number in numbers})

        yield client, find


def loads_of(session: ClusterSession) -> list[int]:
    return [worker.load for worker in session._workers.owners]


def test_few_partitions_move_to_new_workers_only_where_that_helps(tmp_path: Path) -> None:
    with joined_workers(5) as (client, find):
        find(0)
        with on(client, 3) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2])
            find(0, 1)
            sums += take(session, Walk(str(tmp_path)), [3])
            assert sorted(loads_of(session)) == [1, 2]
            find(0, 1, 2)
            sums += take(session, Walk(str(tmp_path)), [4])
            owners, epoch = [(worker.address, worker.runs) for worker in session._workers.owners], session._epoch
            for number, workers_found in ((5, range(4)), (6, range(5))):  # more workers than partitions
                find(*workers_found)
                sums += take(session, Walk(str(tmp_path)), [number])
                assert len(session._workers.all) == len(workers_found)
                assert ([(worker.address, worker.runs) for worker in session._workers.owners], session._epoch) == (owners, epoch)
            assert (sums, rows_of(session)) == inline(6, 3)
            assert not again(tmp_path)


def test_new_workers_take_over_from_those_lost_at_the_same_time(tmp_path: Path) -> None:
    with joined_workers(5) as (client, find):
        find(0, 1, 2)
        with on(client, 9) as session:
            sums = take(session, Walk(str(tmp_path)), [1, 2])
            kept = held(session, session._workers.owners[0].address)
            find(
                *(i for i, address in enumerate(sorted(worker_infos(client))) if address == owner(session, 0)),
                3,
                4,
            )
            sums += take(session, Walk(str(tmp_path)), [3, 4])
            assert loads_of(session) == [3, 3, 3]
            assert (sums, rows_of(session)) == inline(4, 9)
            assert again(tmp_path) == set(range(9)) - kept


def test_partitions_that_threads_cannot_share_evenly_stay() -> None:
    with inside(2, threads=4) as client, on(client, 9) as session:
        take(session, Walk(), [1])
        for worker in session._workers.owners:
            worker.speed = float("nan")
        session._uneven_passes = 0
        for _ in range(20):  # nine partitions on eight threads take two rounds, on whichever worker
            seconds = {worker.key: (worker.load, 0.1 * -(-worker.load // 4)) for worker in session._workers.owners}
            session._update_speeds(Report(seconds, stateless=False))
        assert session._uneven_passes == 0


@dataclass(frozen=True)
class Closing(Walk):
    """A pass in whose midst the shard on one worker is closed, as when Dask retires the worker."""

    address: str = ""

    def step(self, block: Block, state: WalkState, broadcast: Any) -> tuple[WalkState, Sums]:
        if (int(broadcast), block.index) == (2, 20) and not (marker := Path(self.folder) / "closed").exists():
            marker.touch()
            # This process may also have shards of an earlier test's session that have yet to close.
            [shard] = [s for s in shard_module._shards.values() if s.worker.address == self.address]
            asyncio.run_coroutine_threadsafe(shard.close(), shard.worker.loop.asyncio_loop)
            assert shard.closed.wait(WAIT)
        return super().step(block, state, broadcast)


def test_a_shard_that_closes_during_a_pass(tmp_path: Path) -> None:
    with inside(3) as client, on(client) as session:
        sums = take(session, Walk(), [1])
        sums += take(session, Closing(str(tmp_path), address=owner(session, 10)), [2, 3])
        assert (sums, rows_of(session)) == inline(3)
        assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("call", exhaustive_after(1, ["run", "give"]))
def test_a_worker_that_is_closed_while_it_calls_others(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call_shard, closing = WorkerShard.call_shard, list[Any]()

    async def called(self: WorkerShard, shard: tuple[str, str], name: str, **message: Any) -> Any:
        if name == call and not closing:
            closing.append(asyncio.ensure_future(self.worker.close()))
            await asyncio.sleep(0)  # now it is closing
            await self.worker.rpc.close()
        return await call_shard(self, shard, name, **message)

    monkeypatch.setattr(WorkerShard, "call_shard", called)
    with inside(3) as client, on(client) as session:
        sums = take(session, Walk(), [1, 2])
        if call == "give":
            client.cluster.scale(4)
            client.wait_for_workers(4)
            soon_balanced(session)
        sums += take(session, Walk(), [3])
        assert closing
        assert not session._workers.direct_calls
        assert (sums, rows_of(session)) == inline(3)


def test_a_second_loss_while_partitions_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    call_shard, call_each, given = WorkerShard.call_shard, SessionWorkers.call_each, list[str]()

    async def called(self: WorkerShard, shard: tuple[str, str], call: str, **message: Any) -> Any:
        if call == "give" and shard[0] == upper:  # the newcomer has the partitions, but not yet their state
            given.append(shard[0])
            await shard_module._shards[shard[1]].close()
            return {"lost": [shard]}
        return await call_shard(self, shard, call, **message)

    def called_each(self: SessionWorkers, call: str, messages: Any) -> Any:
        if call == "add" and len(given) == 1:
            given.append("")
            raise WorkersLost([worker for worker in self.all if worker.address == lower])  # before any of them has got it
        return call_each(self, call, messages)

    monkeypatch.setattr(WorkerShard, "call_shard", called)
    monkeypatch.setattr(SessionWorkers, "call_each", called_each)
    with inside(2) as client, on(client) as session:
        sums = take(session, Walk(), [1, 2])
        lower, upper = owner(session, 0), owner(session, 23)
        client.cluster.scale(3)
        client.wait_for_workers(3)
        soon_balanced(session)
        sums += take(session, Walk(), [3])
        assert len(given) == 2
        assert (sums, rows_of(session)) == inline(3)


def test_partitions_of_a_lost_worker_are_divided_among_old_and_new_workers() -> None:
    with inside(3) as client, on(client) as session:
        take(session, Walk(), [1, 2])
        for worker, speed in zip(session._workers.owners, (1e6, float("nan"), 1e6), strict=True):
            worker.speed = speed  # partitions a second; of one that has just joined it is not known
        session._next_poll = float("inf")  # it would join again
        session._workers.remove(session._workers.owners[:1])
        take(session, Walk(), [3])
        assert [worker.load for worker in session._workers.owners] == [12, 12]


def test_partitions_that_no_worker_survives_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def called_each(self: SessionWorkers, *_: Any) -> Any:
        raise WorkersLost(self.all)

    monkeypatch.setattr(SessionWorkers, "call_each", called_each)
    with inside(2) as client, on(client) as session, pytest.raises(ClusterError, match="lost in the same pass, 4"):
        take(session, Walk(), [1])


def test_a_stale_move_stores_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "_STATES_BYTES", 2000)
    call_shard, epochs = WorkerShard.call_shard, list[int]()

    async def called(self: WorkerShard, shard: tuple[str, str], call: str, **message: Any) -> Any:
        reply = await call_shard(self, shard, call, **message)
        if call == "give":
            epochs.append(self._epoch)
            if len(epochs) == 3:
                self._is_current(self._epoch + 1)
        return reply

    monkeypatch.setattr(WorkerShard, "call_shard", called)
    with inside(2) as client, on(client) as session:
        take(session, Walk(), [1])
        one, other = session._workers.owners
        shard = shard_module._shards[one.key]
        content = packed((session._partitions.part(12, 24), 1))
        epoch = session._epoch
        assert client.sync(session._workers._reach, one, "take", epoch=epoch, content=content, source=other.shard) == {"stale": epoch}
        assert len(epochs) == 3
        assert len([i for i in range(12, 24) if shard._shard._states._states.get(i)]) == 4


# Workers that cannot reach each other, and messages that come late


@pytest.mark.faults
@pytest.mark.parametrize("victim", [1, 4])
def test_workers_that_cannot_reach_each_other(victim: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call_shard = WorkerShard.call_shard
    cut = list[str]()

    async def called(self: WorkerShard, shard: tuple[str, str], call: str, **message: Any) -> Any:
        return {"lost": [shard]} if shard[0] in cut else await call_shard(self, shard, call, **message)

    monkeypatch.setattr(WorkerShard, "call_shard", called)
    with inside(6) as client, on(client) as session:
        sums = take(session, Walk(str(tmp_path)), [1])
        cut.append(session._workers.owners[victim].address)
        sums += take(session, Walk(str(tmp_path)), [2, 3])
        assert session._workers.direct_calls
        assert (sums, rows_of(session)) == inline(3)
        assert not again(tmp_path)


@pytest.mark.faults
def test_after_a_transient_error_calls_go_down_the_tree_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call_shard = WorkerShard.call_shard
    calls, lost = list[tuple[str, str]](), [True]

    async def called(self: WorkerShard, shard: tuple[str, str], call: str, **message: Any) -> Any:
        calls.append((call, shard[0]))
        if lost and call == "run":
            lost.pop()
            return {"lost": [shard]}  # as an OSError of the connection
        return await call_shard(self, shard, call, **message)

    monkeypatch.setattr(WorkerShard, "call_shard", called)
    with inside(4) as client, on(client) as session:
        sums, between = [], []
        for number in range(1, 11):
            calls.clear()
            sums += take(session, Walk(str(tmp_path)), [number])
            between.append(len(calls))
        assert between[0] > 0  # one of these was lost
        assert between[1:4] == [0, 0, 0]
        assert min(between[4:]) >= 3  # of four workers three are called by others, more than once if a busy machine repeats a pass
        assert (sums, rows_of(session)) == inline(10)


def test_passes_with_direct_calls_double_while_workers_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def called(_: WorkerShard, shard: tuple[str, str], call: str, **__: Any) -> Any:
        tried.append(call)
        return {"lost": [shard]}

    tried, shown = list[str](), list[float]()
    monkeypatch.setattr(WorkerShard, "call_shard", called)
    with inside(2) as client, on(client) as session:
        when = []
        for number in range(1, 30):
            tried.clear()
            take(session, Walk(), [number])
            when += [number] if tried else []
            shown.append(metrics.values()["fits_with_direct_calls"])
        assert when == [1, 5, 13, 29]
    # The last of the passes with direct calls also ends them.
    assert [number for number, direct in enumerate(shown, 1) if not direct] == [4, 12, 28]
    assert metrics.values()["fits_with_direct_calls"] == 0


_alive = threading.Event()


class Long(Walk):
    """A pass that lasts until the driver has seen that the workers are alive."""

    def step(self, block: Block, state: WalkState, broadcast: Any) -> tuple[WalkState, Sums]:
        assert _alive.wait(WAIT), "the driver has not seen the workers"
        return super().step(block, state, broadcast)


@pytest.mark.parametrize("limit", [2, 3])
def test_calls_of_more_workers_than_connections_leave_one_for_queries(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watch.Watchdog.workers

    async def workers(self: watch.Watchdog) -> dict[str, int] | None:
        answer = await found(self)
        if answer and started:
            _alive.set()
        return answer

    _alive.clear()
    started = list[int]()
    monkeypatch.setattr(watch.Watchdog, "workers", workers)
    with inside(5) as client:
        client.rpc.limit = limit  # of 512 by default
        client.rpc.semaphore = asyncio.Semaphore(limit)
        with on(client) as session:
            session._workers._direct = 3  # each pass calls all workers at once
            session._update_workers()
            session._next_poll = float("inf")
            started.append(1)
            sums = take(session, Long(), [1, 2, 3])
            assert (sums, rows_of(session)) == inline(3)


def test_workers_join_over_the_connections_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls, most = Client.run, Counter[str](), list[int]()

    async def counted(self: Client, function: Any, *arguments: Any, **options: Any) -> Any:
        if function is not workers_module.open_shard:
            return await run(self, function, *arguments, **options)
        calls["open"] += 1
        most.append(calls["open"])
        try:
            return await run(self, function, *arguments, **options)
        finally:
            calls["open"] -= 1

    with inside(5) as client:
        client.rpc.limit = 3
        monkeypatch.setattr(Client, "run", counted)
        with on(client) as session:
            assert len(session._workers.all) == 5
    assert (len(most), max(most)) == (5, 2)


def test_the_driver_learns_of_progress_without_a_call_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    with inside(3) as client:
        with on(client) as session, on(client, 8) as other:
            take(session, Walk(), [1, 2])
            take(other, Walk(), [1])
            monkeypatch.setattr(SessionWorkers, "_reach", None)
            client.sync(send_heartbeats, client)
            for asking, steps in ((session, 2 * N_PARTITIONS), (other, 8)):
                found, age = client.sync(asking._workers._n_steps)
                assert (found, age < WAIT) == (steps, True)
            monkeypatch.undo()
        client.sync(send_heartbeats, client)
        assert client.sync(session._workers._n_steps)[0] == 0


@pytest.mark.parametrize(("age", "seconds"), [(0, 6), (3, 9), (1000, 11)])
def test_a_timeout_is_longer_by_the_age_of_the_reports(age: float, seconds: int, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    async def progress() -> tuple[int, float]:
        return 7, age

    async def workers(_: watch.Watchdog) -> dict[str, int]:
        clock.now += 1
        return {"one": 1}

    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(watch.Watchdog, "workers", workers)
    with dask.config.set({"dfact.progress-timeout": "5s"}):
        watchdog = watch.Watchdog(client)
    with pytest.raises(ClusterError, match="for 5 s no worker"):
        client.sync(watchdog.wait, asyncio.sleep(WAIT), progress)
    assert clock.now == 1 + seconds  # the first query shows that a step has been made before


class SlowStep:
    """A step of a checkpoint, of a move or of a write that takes three fifths of the progress timeout, by a clock of its own."""

    def __init__(self, timeout: float, *, ends: bool = True) -> None:
        self.now, self.timeout, self.ends, self.queries, self.taken, self.over = 0.0, timeout, ends, 0, 0.0, False

    def monotonic(self) -> float:
        return self.now

    def wait(self) -> None:
        """Let the time pass, and return once the driver has asked for progress since."""
        while True:
            seen, self.now = self.queries, self.now + 0.6 * self.timeout
            self.taken += 0.6 * self.timeout
            until(lambda: self.queries > seen or self.over)  # noqa: B023  (called at once)
            if self.ends or self.over:
                return


async def send_heartbeats(client: Client) -> None:
    """Let the workers of a cluster within this process report what they have done, however long they wait otherwise."""
    await asyncio.gather(*(worker.heartbeat() for worker in client.cluster.workers.values()))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> SlowStep:
    step = SlowStep(5.0, ends=request.param)
    n_steps = SessionWorkers._n_steps

    async def asked(self: SessionWorkers) -> tuple[int, float]:
        await send_heartbeats(self._client)
        count, _ = await n_steps(self)
        step.queries += 1
        return count, 0.0

    monkeypatch.setattr(SessionWorkers, "_n_steps", asked)
    monkeypatch.setattr(watch, "time", step)
    return step


@pytest.mark.parametrize("slow", [True, False], indirect=True)
@pytest.mark.parametrize("kind", exhaustive_after(1, ["save", "restore", "write"]))
def test_long_saves_are_no_hangs(kind: str, slow: SlowStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and rows that take twice the progress timeout are written while bytes move, and end with an error if none do."""
    group = zarr.create_group(tmp_path / "c")
    with dask.config.set({"dfact.progress-timeout": "5s", "dfact.worker-timeout": "1000h"}), inside(1) as client:
        with on(client, resident_states=100) as session:
            take(session, Walk(), [1])
            saved = session.save(group)
            n = session._partitions.source.shape[0]
            target = zarr.create_array(tmp_path / "rows", shape=(n, 2), chunks=(n // 8, 2), dtype="f4")
            if kind == "save":
                patch_slow(monkeypatch, StreamWriter, "append", slow)
                action = lambda: session.save(zarr.create_group(tmp_path / "d"))  # noqa: E731
            elif kind == "write":
                patch_slow(monkeypatch, WrittenRows, "write", slow)
                action = lambda: session.write_rows("x", unchanged, target)  # noqa: E731
            if kind != "restore":
                check_slow(action, slow)
        if kind == "restore":
            with on(client, resident_states=100) as session:
                session.restore(saved)
                patch_slow(monkeypatch, PartitionStates, "put", slow)
                check_slow(lambda: session.run(RunPass(Walk(), np.float32(2))), slow)


def unchanged(rows: NDArray[Any]) -> NDArray[Any]:
    return rows


def patch_slow(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, slow: SlowStep) -> None:
    method, left = getattr(kind, name), [None] * 4  # calls that take long

    def waiting(*arguments: Any, **keywords: Any) -> Any:
        if left and not slow.over:
            left.pop()
            slow.wait()
        return method(*arguments, **keywords)

    monkeypatch.setattr(kind, name, waiting)


def check_slow(action: Callable[[], Any], slow: SlowStep) -> None:
    if slow.ends:
        action()
        assert slow.taken > 2 * slow.timeout
    else:
        with pytest.raises(ClusterError, match="for 5 s no worker has processed, read or written anything"):
            action()
        slow.over = True


def call(client: Client, session: ClusterSession, partition: int, method: str, **message: Any) -> Any:
    """What a shard answers to a call as a driver or a worker sends it."""
    worker = next(w for w in session._workers.owners if any(partition in run for run in w.runs))
    return client.sync(session._workers._reach, worker, method, **message)


def test_a_message_of_an_earlier_assignment_is_ignored(tmp_path: Path) -> None:
    pass_ = Walk(str(tmp_path))
    with inside(2) as client, on(client) as session:
        sums = take(session, pass_, [1])
        message: dict[str, Any] = {"pass_numbers": [2], "below": [], "leaves": [N_PARTITIONS]}
        message |= {"passes": [packed(Walk(str(tmp_path), fails=2))], "broadcasts": [packed(np.float32(2))]}
        session._start_epoch()
        sums += take(session, pass_, [2])
        stale = session._epoch - 1
        assert call(client, session, 0, "run", epoch=stale, runs=[(0, 1)], **message) == {"stale": stale}
        assert call(client, session, 0, "take", epoch=stale, content=packed(None), source=("", "")) == {"stale": stale}
        assert call(client, session, 0, "add", epoch=stale, content=packed(None)) == {}
        sums += take(session, pass_, [3])
        assert (sums, rows_of(session)) == inline(3)
        assert not again(tmp_path)


def test_a_shard_reports_partitions_that_it_lacks_and_receives_them(tmp_path: Path) -> None:
    with inside(3) as client, on(client) as session:
        sums = take(session, Walk(str(tmp_path)), [1, 2])
        for worker in session._workers.owners[:2]:
            shard_module._shards[worker.key]._shard._drop(range(6, 10))
        sums += take(session, Walk(str(tmp_path)), [3])
        assert (sums, rows_of(session)) == inline(3)
        assert again(tmp_path) == {6, 7, 8, 9}


# Errors, and what is left behind


@pytest.mark.further
@pytest.mark.parametrize("plan", [{}, {"resident_states": 0}], ids=["in memory", "spilled"])
def test_an_error_reaches_the_caller_and_all_shards_close(plan: dict[str, int], client: Client, tmp_path: Path) -> None:
    def scratch() -> list[str]:
        return sorted(path.name for path in Path(tempfile.gettempdir()).glob("dfact-state-*"))

    client.run(set_tempdir, str(tmp_path))
    try:
        for _ in range(2):
            with on(client, **plan) as session:
                take(session, Walk(), [1, 2])
                assert set(shards_of(client).values()) == {1}
                assert len(list(tmp_path.glob("dfact-state-*"))) == (2 if plan else 0)
                with pytest.raises(ValueError, match=r"block .* is bad"):
                    take(session, Walk(fails=3), [3])
            until(lambda: not any(shards_of(client).values()))
            until(lambda: not client.run_on_scheduler(tasks))
            assert not list(tmp_path.glob("dfact-*"))
        assert course(on(client), Walk(), 3) == inline(3)
    finally:
        client.run(set_tempdir, None)


def set_tempdir(folder: str | None) -> None:
    tempfile.tempdir = folder


def tasks(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


class StubbornError(Exception):
    """One that can be pickled, but not be made again."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} of {number} is bad")


@dataclass(frozen=True)
class Stubborn(Walk):
    def step(self, block: Block, state: WalkState, broadcast: Any) -> tuple[WalkState, Sums]:
        raise StubbornError("a block", block.index)


def test_an_error_that_cannot_be_pickled_is_sent_as_text(client: Client) -> None:
    with on(client) as session, pytest.raises(RuntimeError, match=r"StubbornError: a block of .* is bad"):
        take(session, Stubborn(), [1])


@pytest.mark.faults
def test_workers_that_cannot_join(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'dfact'")

    monkeypatch.setattr(workers_module, "open_shard", refuse)
    with two_attempts(), inside(2) as client, on(client) as session:  # noqa: SIM117
        with pytest.raises(ClusterError, match=r"no worker .*could join.*No module named 'dfact'"):
            take(session, Walk(), [1])


class Instant(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing that is due."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        due = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        if due and not self._ready:
            self.now = max(self.now, min(due))
        super()._run_once()


def test_calls_end_once_none_has_finished_for_a_while() -> None:
    async def call(seconds: float) -> float:
        await asyncio.sleep(seconds)
        if seconds == 3:
            raise ValueError("three")
        return seconds

    with asyncio.Runner(loop_factory=Instant) as runner:
        found = runner.run(watch.until_silent([call(seconds) for seconds in (4, 20, 1, 3, 7.5, 12.6)], 5))
        many = runner.run(watch.until_silent([call(seconds) for seconds in (*[15] * 200, 19, 24.1)], 5))
    assert many[:-1] == [15] * 200 + [19]
    assert str(many[-1]) == "no answer for 5 s"
    assert list(map(str, found)) == ["4", "no answer for 5 s", "1", "three", "7.5", "no answer for 5 s"]


@pytest.mark.exhaustive
@pytest.mark.faults
def test_slow_workers_join_later(monkeypatch: pytest.MonkeyPatch) -> None:
    open_shard = workers_module.open_shard

    async def open_late(*arguments: Any, dask_worker: Any, **options: Any) -> Any:
        await asyncio.sleep(0.5)  # more than the first attempts last
        return await open_shard(*arguments, dask_worker=dask_worker, **options)

    monkeypatch.setattr(workers_module, "open_shard", open_late)
    monkeypatch.setattr(workers_module, "_JOIN_TIMEOUT", 0.05)
    with inside(1) as client, on(client) as session:
        assert take(session, Walk(), [1]) == inline(1)[0]


# Beside others


def test_fits_at_the_same_time() -> None:
    found: dict[int, Any] = {}

    def fit(number: int, client: Client) -> None:
        found[number] = course(on(client), Walk() if number % 2 else Wide(), 4)

    with inside(3) as one, Client(one.cluster, set_as_default=False) as other:
        threads = [threading.Thread(target=fit, args=(number, [one, one, other][number])) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {0: inline(4, pass_=Wide()), 1: inline(4), 2: inline(4, pass_=Wide())}


def test_all_threads_of_the_workers_are_busy() -> None:
    with inside(2, 2) as client:
        end = Event("end", client=client)
        busy = [client.submit(wait_for, "end", number, pure=False) for number in range(8)]
        try:
            until(lambda: sum(map(len, client.processing().values())) == 8)
            assert course(on(client), Walk(), 3) == inline(3)
        finally:
            end.set()
        assert client.gather(busy) == [True] * 8


def wait_for(name: str, _: int) -> bool:
    return Event(name).wait(WAIT)


def test_a_client_that_is_closed_in_a_session() -> None:
    with inside(2) as client:
        for look in (0.0, float("inf")):
            session = on(Client(client.cluster, set_as_default=False))
            with session:
                take(session, Walk(), [1])
                until(lambda: all(client.run(all_held).values()))
                session._workers._client.close()
                session._next_poll = look
                with pytest.raises(ClusterError, match="the Dask scheduler is lost: the client was closed"):
                    take(session, Walk(), [2])
        until(lambda: not any(shards_of(client).values()))


def all_held(dask_worker: Any) -> bool:
    held_ones: list[bool] = [shard.task_started for shard in shard_module._shards.values() if shard.worker is dask_worker]
    return all(held_ones)


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
def test_shards_end_with_a_lost_driver(processes: Processes) -> None:
    script = f"""
from distributed import Client
from tests.engine.test_cluster_session import Walk, on, take
with Client({processes.address!r}) as client, on(client) as session:
    for number in range(1, 1 << 30):
        take(session, Walk(pause=0.01), [number])
        print(number, flush=True)
"""
    with workers(processes, 2) as client, subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "1\n"
        assert set(shards_of(client).values()) == {1}
        until(lambda: all(client.run(all_held).values()))
        driver.kill()
        driver.wait()
        until(lambda: not any(shards_of(client).values()))
        until(lambda: not client.run_on_scheduler(tasks))


def test_metrics_of_the_workers() -> None:
    before = metrics.values()
    with inside(2) as client, on(client) as session:
        take(session, Walk(), [1, 2])
        found = client.run(reported_metrics).values()
        counted = {name: metrics.values()[name] - before[name] for name in ("passes", "partitions", "fit_passes")}
        assert counted == {"passes": 4, "partitions": 2 * N_PARTITIONS, "fit_passes": 2}  # both workers are in this process
        assert metrics.values()["workers"] == 2
        assert all(set(METRICS) <= set(measured) for measured in found)
        assert [measured["dfact passes"] for measured in found] == [2, 2]
        assert sum(measured["dfact partitions"] for measured in found) == 2 * N_PARTITIONS
        assert all(measured["dfact rows/s"] > 0 for measured in found)


async def reported_metrics(dask_worker: Any) -> dict[str, Any]:
    return dict(await dask_worker.get_metrics())


# Clusters that grow and shrink


@contextmanager
def local_processes(n_workers: int) -> Iterator[tuple[LocalCluster, Client]]:
    with (
        forked_workers(),
        LocalCluster(n_workers=n_workers, threads_per_worker=1, processes=True, **_LOCAL) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield cluster, client


@pytest.mark.further
@pytest.mark.faults
@pytest.mark.cluster
def test_clusters_that_adapt_and_shrink() -> None:
    with local_processes(3) as (cluster, client):
        with on(client) as session:
            sums = take(session, Walk(), [1, 2])
            cluster.scale(1)
            sums += take(session, Walk(pause=0.01), [3])
            until(lambda: len(worker_infos(client)) == 1)
            sums += take(session, Walk(), [4])
            assert (sums, rows_of(session)) == inline(4)
        cluster.adapt(minimum=1, maximum=3, interval="50ms", wait_count=1)
        with on(client) as session:
            sums = take(session, Walk(pause=0.01), [1, 2, 3])
            assert (sums, rows_of(session)) == inline(3)
            # The worker that holds a shard is not idle, so it stays.
            assert {w.address for w in session._workers.owners} <= set(worker_infos(client))


def test_client_that_has_given_up_its_scheduler_is_reported() -> None:
    client: Any = SimpleNamespace(scheduler=None)
    for query in (lambda: DistributedExecutor(client).workers(None), lambda: require_names_checked(client)):
        with pytest.raises(ClusterError, match="the Dask scheduler is lost: the client was closed"):
            query()
