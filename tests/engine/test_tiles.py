"""Sums by tiles of columns: bit-identical everywhere, in bounded memory, after losses and interruptions."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from numpy.typing import NDArray

from benchmarks.faults.fits import Processes
from dfact.data.layout import Layout
from dfact.data.sources.base import ArraySource, RowSource, ZarrSource
from dfact.engine import tiles
from dfact.engine.block_state import BlockState
from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.cluster import watchdog as watch
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.cluster.worker_shard import WorkerShard
from dfact.engine.executors import InlineExecutor, ThreadsExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, Pass, RunPass
from dfact.engine.requests import FusedSolver, Solver, drive, memo, run_fused
from dfact.engine.session import Executor
from dfact.engine.tiles import RESIDENT_COLUMNS, group_partitions, n_groups
from tests.conftest import CutRows
from tests.suites.tiles import FLOAT32, ColumnSums, NewtonStep, WeightedPass, cut_small, fit, reference

FOOTPRINT = Footprint(state_per_row=8, work_per_row=8 * 25, broadcast=8 * 25, result_per_row=0, tiled=16 * 25)


def values(seed: int, n: int = 3001, m: int = 25) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return rng.binomial(3, rng.random(m), (n, m)).astype(np.uint8)


def opened(executor: Executor, source: RowSource, **plan: Any) -> Any:
    laid_out = make_plan(source, FLOAT32, FOOTPRINT, executor.workers(None))
    return executor.open(partitions(source, None, None), replace(laid_out, **plan))


def course(executor: Executor, source: RowSource, **plan: Any) -> tuple[NDArray[Any], list[Any], NDArray[Any]]:
    with opened(executor, source, **plan) as session:
        p, history = drive(fit(source.shape[1]), session)
        return p, history, np.concatenate(list(session.rows("weights")))[:, 0]


def assert_same(a: tuple[NDArray[Any], list[Any], NDArray[Any]], b: tuple[NDArray[Any], list[Any], NDArray[Any]]) -> None:
    np.testing.assert_array_equal(a[0], b[0])
    assert a[1] == b[1]
    np.testing.assert_array_equal(a[2], b[2])


@pytest.fixture
def _small(cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(cut_rows, monkeypatch)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fit_by_tiles_is_that_of_numpy(seed: int) -> None:
    X = values(seed)
    layout = Layout.of(X.shape)
    assert (layout.n_partitions, group_partitions(layout), n_groups(layout)) == (24, 4, 6)
    p, history, weights = course(InlineExecutor(), ArraySource(X))
    expected = reference(X)
    np.testing.assert_allclose(p, expected[0], rtol=1e-9)
    np.testing.assert_allclose([row[:3] for row in history], expected[1], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(weights, expected[2], rtol=1e-9)
    assert {row[3] for row in history} == {0.0 + 1 + 2}, "a step on each of three tiles"


@pytest.mark.further
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("resident", [0, 1, 9])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_spilled_sums_give_the_bits_of_one_thread(threads: int, resident: int, tmp_path: Path) -> None:
    X = values(2)
    array = zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(300, 7))
    expected = course(InlineExecutor(), ArraySource(X), resident_sums=9)
    assert_same(course(ThreadsExecutor(threads), ZarrSource(array), resident_sums=resident, resident_values=0), expected)


@pytest.mark.usefixtures("_small")
def test_no_more_sums_than_planned_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    limit = tiles.SumsStore.limit

    def counted(self: tiles.SumsStore, waiting: Any) -> None:
        nonlocal most
        held = list(waiting)
        limit(self, held)
        most = max(most, sum(sums.in_memory for sums in held))

    monkeypatch.setattr(tiles.SumsStore, "limit", counted)
    for resident in (0, 1, 2):
        most = 0
        course(InlineExecutor(), ArraySource(values(0)), resident_sums=resident)
        assert most == resident


@pytest.mark.parametrize("spilled", [(False, False), (True, False), (False, True), (True, True)])
def test_added_sums_release_both_ranges_of_the_file(spilled: tuple[bool, bool]) -> None:
    store, rng = tiles.SumsStore(0), np.random.default_rng(5)
    columns = 3 * tiles._TILE_COLUMNS // 2
    ends = []
    for _ in range(20):
        arrays = rng.random((2, 4, columns))
        left, right = held = [
            tiles.HeldSums(store, ColumnSums(array.copy(), np.zeros(columns), np.zeros(1)), ["slope"], columns) for array in arrays
        ]
        for sums, moved in zip(held, spilled, strict=True):
            if moved:
                sums.spill()
        left.add(right)
        store.limit([left, right])  # of which the second one is no more
        found = np.concatenate([left.tile(number)["slope"] for number in range(2)], axis=-1)
        np.testing.assert_array_equal(found, arrays.sum(axis=0))
        left.release()
        assert store._file is not None
        ends.append(store._file._end)
    assert len(set(ends)) == 1
    store.close()


def test_sums_may_be_dropped_while_another_thread_asks_whether_they_are_in_memory() -> None:
    class DroppedMeanwhile(list[Any]):
        """Tiles that are dropped right after their number was asked for."""

        def __len__(self) -> int:
            held._tiles = []
            return super().__len__()

    held = tiles.HeldSums(tiles.SumsStore(0), ColumnSums(np.zeros((1, 4)), np.zeros(4), np.zeros(1)), ["slope"], 4)
    held._tiles = DroppedMeanwhile(held._tiles)
    assert held.in_memory
    assert not held.in_memory


@pytest.mark.usefixtures("_small")
def test_a_file_of_sums_does_not_grow_from_pass_to_pass() -> None:
    source = ArraySource(values(0))
    with opened(InlineExecutor(), source, resident_sums=0) as session:
        sizes: list[int] = []

        def watch() -> None:
            file = session._shard._tiled._file
            sizes.append(0 if file is None else file._end)

        drive(_watched(fit(25, passes=6), watch), session)
    assert sizes[-1] == next(size for size in sizes if size)


def _watched(solver: Any, watch: Callable[[], None]) -> Any:
    reply = None
    while True:
        try:
            request = solver.send(reply)
        except StopIteration as end:
            return end.value
        reply = yield request
        watch()


@pytest.mark.usefixtures("_small")
def test_fused_fits_equal_lone_ones_but_for_rounding() -> None:
    X = values(3)
    source = ArraySource(X)
    with opened(ThreadsExecutor(2), source) as session:
        results = run_fused([FusedSolver(fit(25, passes)) for passes in (4, 2)], session, FLOAT32)
    for (p, history), passes in zip(results, (4, 2), strict=True):
        expected = reference(X, passes)
        np.testing.assert_allclose(p, expected[0], rtol=1e-9)
        np.testing.assert_allclose([row[:3] for row in history], expected[1], rtol=1e-8, atol=1e-12)


class StopHereError(Exception):
    """Raised by a fit that ends early."""


@dataclass(frozen=True)
class StoppingPass(WeightedPass):
    """A pass that fails with this penalty."""

    fails: float = 0.4

    def accumulate(self, block: Any, state: Any, broadcast: Any, total: Any) -> Any:
        if broadcast[1] >= self.fails:
            raise StopHereError
        return super().accumulate(block, state, broadcast, total)


@pytest.mark.further
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("every", [1, 2, 4, 5])
def test_an_interrupted_fit_resumes_with_the_same_bits(every: int, tmp_path: Path) -> None:
    source = ArraySource(values(4))
    expected = course(InlineExecutor(), source)
    path = tmp_path / "checkpoint.zarr"
    with pytest.raises(StopHereError), CheckpointedSession(opened(InlineExecutor(), source), path, every, {}) as session:
        drive(fit(25, pass_=StoppingPass(fails=0.35)), session)
    with CheckpointedSession(opened(ThreadsExecutor(2), source), path, every, {}) as session:
        p, history = drive(fit(25, pass_=StoppingPass(fails=9)), session)
        assert_same((p, history, np.concatenate(list(session.rows("weights")))[:, 0]), expected)
    with CheckpointedSession(opened(InlineExecutor(), source), path, every, {}) as session:
        p, history = drive(fit(25, pass_=StoppingPass(fails=9)), session)
        assert_same((p, history, np.concatenate(list(session.rows("weights")))[:, 0]), expected)


@pytest.mark.usefixtures("_small")
def test_a_restored_fit_continues_from_the_tiles_of_its_last_version(tmp_path: Path) -> None:
    """A memo after a pass waits with the version until the step has used the sums."""
    source, path = ArraySource(values(4)), tmp_path / "checkpoint.zarr"
    expected = course(InlineExecutor(), source)

    def with_memos(fails: float) -> Solver[Any]:
        solver, reply = fit(25, pass_=StoppingPass(fails=fails)), None
        while True:
            try:
                request = solver.send(reply)
            except StopIteration as end:
                return end.value
            reply = yield request
            yield from memo("number", lambda: {"number": np.ones(1)})

    with pytest.raises(StopHereError), CheckpointedSession(opened(InlineExecutor(), source), path, 1, {}) as session:
        drive(with_memos(0.25), session)
    with CheckpointedSession(opened(InlineExecutor(), source), path, 1, {}) as session:
        p, history = drive(with_memos(9), session)
        assert_same((p, history, np.concatenate(list(session.rows("weights")))[:, 0]), expected)


def test_the_plan_counts_an_accumulator_for_each_thread_and_spills_what_waits() -> None:
    source = ArraySource(np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (8192, 10**6), (0, 0)))
    gib = 1 << 30
    plans = {}
    for threads in (1, 2):
        workers = replace(ThreadsExecutor(threads).workers("64GiB"), baseline=0)
        for limit in (2, 64):
            footprint = Footprint(40, 0, 0, 0, tiled=520 * 10**6)
            plans[threads, limit] = make_plan(source, FLOAT32, footprint, replace(workers, limit=limit * gib))
    assert plans[1, 64].resident_sums == n_groups(Layout.of(source.shape)).bit_length()
    assert plans[1, 64].spilled_sums == 0
    assert plans[1, 2].resident_sums < plans[1, 64].resident_sums
    assert plans[1, 2].spilled_sums > 0
    assert "sums on disk" in str(plans[1, 2])
    assert plans[2, 64].working - plans[1, 64].working > 520 * 10**6
    assert plans[1, 2].fits


def test_the_plan_counts_conversions_and_the_state_of_tiles_on_disk() -> None:
    workers = replace(ThreadsExecutor(1).workers("64GiB"), baseline=0)
    sources = {dtype: np.lib.stride_tricks.as_strided(np.zeros(1, dtype), (256, 10**6), (0, 0)) for dtype in (np.uint8, np.int32)}
    footprints = {converts: Footprint(0, 0, 0, 0, converts=converts, tile_state=640 * 10**6) for converts in (False, True)}
    plans = {
        (dtype, converts): make_plan(ArraySource(source), FLOAT32, footprint, workers)
        for dtype, source in sources.items()
        for converts, footprint in footprints.items()
    }
    assert plans[np.uint8, True].working - plans[np.uint8, False].working >= 4 * 10**6 * plans[np.uint8, True].block_rows
    assert plans[np.int32, True].working == plans[np.int32, False].working  # they are not codes
    assert plans[np.uint8, False].spilled_tiles == 640 * (10**6 - RESIDENT_COLUMNS)
    assert "columns on disk       state of 0.58 GiB on the driver" in str(plans[np.uint8, False])
    few = make_plan(ArraySource(np.zeros((256, 300))), FLOAT32, footprints[False], workers)
    assert few.spilled_tiles == 0
    assert "columns on disk" not in str(few)


# On workers


def large() -> NDArray[np.uint8]:
    """Data of which Dask's workers, which cut as usual, have several groups and tiles."""
    return values(5, 2000, 4500)


@pytest.mark.further
def test_two_processes_give_the_bits_of_one_thread(client: Client) -> None:
    source = ArraySource(large())
    assert n_groups(Layout.of(source.shape)) == 16
    expected = course(InlineExecutor(), source)
    assert_same(course(DistributedExecutor(client), source), expected)
    assert_same(course(DistributedExecutor(client), source, resident_sums=0), expected)


@contextmanager
def inside(n_workers: int, threads: int = 1) -> Iterator[Client]:
    """A cluster within this process."""
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=threads, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(n_workers)
        yield client


@dataclass(frozen=True)
class CountPass(Pass[BlockState, None, ColumnSums]):
    """An ordinary pass, without state."""

    dtype: np.dtype[Any] = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, ColumnSums]:
        return state, ColumnSums(block.values.sum(axis=0)[None], np.ones(1), np.zeros(()))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("n_workers", "threads"), [(1, 2), (3, 1), (7, 1)])
def test_any_number_of_workers_gives_the_bits_of_one_thread(n_workers: int, threads: int) -> None:
    source = ArraySource(values(6))
    expected = course(InlineExecutor(), source)
    with inside(n_workers, threads) as client:
        assert_same(course(DistributedExecutor(client), source), expected)


def strike(folder: str, name: str) -> None:
    """Kill this process, once under each name."""
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class StrikingPass(WeightedPass):
    """A pass that kills a worker in the midst of a group."""

    folder: str = ""
    blocks: tuple[tuple[int, float], ...] = ()
    """Numbers of blocks, and the broadcasts with which they kill."""

    def accumulate(self, block: Any, state: Any, broadcast: Any, total: Any) -> Any:
        weights = super().accumulate(block, state, broadcast, total)
        if (block.index, broadcast[1]) in self.blocks:
            strike(self.folder, f"pass-{block.index}-{broadcast[1]}")
        return weights


@dataclass(frozen=True)
class StrikingStep(NewtonStep):
    """A step that kills the worker on which it runs, once."""

    folder: str = ""

    def __call__(self, tile: Any) -> Any:
        if tile.number == 1:
            strike(self.folder, "step")
        return super().__call__(tile)


def connected(processes: Processes, n: int) -> Client:
    processes.kill(*(name for name in processes.workers if not processes.running[name].is_alive()))
    processes.start(n)
    client = Client(processes.address, set_as_default=False)
    client.wait_for_workers(n)
    return client


@pytest.mark.exhaustive
@pytest.mark.faults
def test_workers_lost_in_a_pass_and_in_a_step_change_no_bit(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.2)
    source = ArraySource(large())
    expected = course(InlineExecutor(), source)
    pass_ = StrikingPass(folder=str(tmp_path), blocks=((1, 0.2), (20, 0.1 * 3)))
    with connected(processes, 4) as client, opened(DistributedExecutor(client), source) as session:
        p, history = drive(fit(source.shape[1], pass_=pass_, newton=partial(StrikingStep, folder=str(tmp_path))), session)
        assert_same((p, history, np.concatenate(list(session.rows("weights")))[:, 0]), expected)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.faults
@pytest.mark.usefixtures("_small")
def test_workers_that_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def called(_: WorkerShard, shard: tuple[str, str], *__: Any, **___: Any) -> Any:
        return {"lost": [shard]}

    monkeypatch.setattr(WorkerShard, "call_shard", called)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.2)
    source = ArraySource(values(6))
    expected = course(InlineExecutor(), source)
    with inside(3) as client:
        assert_same(course(DistributedExecutor(client), source), expected)


@pytest.mark.usefixtures("_small")
def test_workers_own_complete_groups_once_a_pass_is_tiled() -> None:
    source = ArraySource(values(7))
    counts = CountPass()
    expected = course(InlineExecutor(), source)
    with inside(5) as client, opened(DistributedExecutor(client), source) as session:
        session.run(RunPass(counts, None))
        runs = [run for worker in session._workers.owners for run in worker.runs]
        assert any(run.start % 4 for run in runs), "as many partitions for each"
        p, history = drive(fit(25), session)
        runs = [run for worker in session._workers.owners for run in worker.runs]
        assert all(run.start % 4 == 0 for run in runs)
        assert_same((p, history, np.concatenate(list(session.rows("weights")))[:, 0]), expected)
        session.run(RunPass(counts, None))


@pytest.mark.usefixtures("_small")
def test_sums_by_tiles_are_led_out_of_a_session() -> None:
    X, found = values(8), []
    p = np.linspace(0, 2, X.shape[1])
    request = RunPass(WeightedPass(), (p, 0.1))
    with inside(3) as client:
        for executor in (InlineExecutor(), DistributedExecutor(client)):
            with opened(executor, ArraySource(X), resident_sums=1) as session:
                session.run(request)
                found.append(session.tiled_sums())
                session.run(request)
                assert np.any(session.tiled_sums()["slope"] != found[-1]["slope"]), "the weights of rows have changed"
    weights = np.sqrt(1 / (0.1 + np.square(X - p).mean(axis=1)))
    np.testing.assert_allclose(found[0]["slope"][0], weights @ (X - p), rtol=1e-9)
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array, name)
