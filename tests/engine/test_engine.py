"""Executors, partitions, the spilled state and the memory plan."""

import ctypes
import errno
import io
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.linalg.cython_blas
import scipy.sparse as sp
import zarr
from dask.sizeof import sizeof
from distributed import Client
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController, threadpool_info

import dfact
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.data.memory_limit import parse_bytes
from dfact.data.sources import sparse
from dfact.data.sources.base import ArraySource, RowSource, ZarrSource
from dfact.data.sources.sparse import CSRSource, StoredCSRSource
from dfact.engine import partitions as partition_module
from dfact.engine import threads
from dfact.engine.block_state import BlockState, PartitionStates, SpillFile
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.cluster.transport import Pickled
from dfact.engine.executors import InlineExecutor, ThreadsExecutor, resolve_executor
from dfact.engine.memory_plan import Footprint, Plan, WorkerResources, make_plan
from dfact.engine.partitions import Leaves, TreeSum, partitions, reduce_blocks
from dfact.engine.passes import Block, Pass, RunPass, Workspace
from dfact.engine.requests import FusedPass, Member
from dfact.engine.session import Executor
from dfact.engine.threads import prefetch, single_threaded
from dfact.progress import Iteration, Progress, TimeLeft
from tests.conftest import CutRows, planted_answers
from tests.suites.arrays import ARRAYS
from tests.suites.session import FLOAT32, FOOTPRINT, DriftPass, SessionSuite, Sums, cut_small, run, sparse_values, values


@pytest.fixture
def small_partitions(cut_rows: CutRows) -> None:
    cut_small(cut_rows)


class TestThreads(SessionSuite):
    @pytest.fixture(params=[None, 3], ids=["threads", "threads-3"])
    def executor(self, request: pytest.FixtureRequest) -> Executor:
        return ThreadsExecutor(request.param)


class TestInline(SessionSuite):
    @pytest.fixture
    def executor(self) -> Executor:
        return InlineExecutor()


class TestWorkers(SessionSuite):
    @pytest.fixture
    def executor(self, client: Client) -> Executor:
        return DistributedExecutor(client)


@dataclass(frozen=True)
class AddressPass(Pass[BlockState, list[NDArray[Any]], Sums]):
    """Counts what does not lie as it did where it was sent from."""

    own: tuple[NDArray[Any], ...]
    dtype: np.dtype[Any] = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: list[NDArray[Any]]) -> tuple[BlockState, Sums]:
        matrix = [block.matrix] if isinstance(block.matrix, np.ndarray) else [block.matrix.data, block.matrix.indices]
        assert block.covariates is not None
        odd = sum(not array.flags.aligned for array in (*broadcast, *self.own, *matrix, block.covariates))
        turned = sum(not array.flags.f_contiguous for array in (*broadcast, *self.own))
        return state, Sums(np.ones((3, 85), order="F"), np.asarray(odd + turned))


@pytest.mark.usefixtures("small_partitions")
@pytest.mark.parametrize("of", [ArraySource, lambda X: CSRSource(sp.csr_array(X))], ids=["dense", "sparse"])
def test_arrays_keep_their_memory_order_on_workers(of: Callable[[NDArray[Any]], RowSource], client: Client) -> None:
    """Elsewhere, or in another order, they would be copied, and BLAS sum in another order."""
    source, executor = of(values(0).astype(np.float32)), DistributedExecutor(client)
    arrays = tuple(np.ones((2, 81 + i), order="F") for i in range(10))
    plan = make_plan(source, FLOAT32, FOOTPRINT, executor.workers(None))
    with executor.open(partitions(source, None, np.ones((401, 3), np.float32)), plan) as session:
        for _ in range(5):
            sums = session.run(RunPass(AddressPass(arrays), list(arrays)))
            assert sums.count == 0
            assert sums.weighted.flags.aligned
            assert sums.weighted.flags.f_contiguous
    assert sizeof(Pickled(arrays)) > sum(array.nbytes for array in arrays)


@pytest.mark.usefixtures("small_partitions")
def test_sparse_blocks_give_the_same_bits() -> None:
    X = sparse_values(4)
    for a, b in zip(run(InlineExecutor(), ArraySource(X.toarray())), run(InlineExecutor(), CSRSource(X)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_partition_of_stored_sparse_rows(tmp_path: Path) -> None:
    X = sparse_values(5, n=300)
    source = dfact.import_array(X, tmp_path / "d.zarr", missing=255).source
    assert Layout.of(source.shape).n_partitions == 1
    for a, b in zip(run(InlineExecutor(), ArraySource(X.toarray())), run(InlineExecutor(), source), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("small_partitions")
def test_sparse_blocks_stay_sparse_and_each_range_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_READ_ENTRIES", 100)
    X = sparse_values(6)
    source = dfact.import_array(X, tmp_path / "d.zarr", missing=255).source
    assert isinstance(source, StoredCSRSource)
    bounds = []
    read = StoredCSRSource.read_native

    def noted(self: StoredCSRSource, start: int, stop: int) -> sp.csr_array:
        bounds.append((self.offset + start, self.offset + stop))
        return read(self, start, stop)

    monkeypatch.setattr(StoredCSRSource, "read_native", noted)
    parts = partitions(source, 255, None)
    blocks = list(parts.blocks(FLOAT32))
    assert all(sp.issparse(block.matrix) and block.matrix.dtype == np.float32 for block in blocks)
    assert (bounds[0][0], bounds[-1][1]) == (0, 401)
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    assert len(bounds) > len(parts)
    loaded = parts.part(1, 2).load()
    assert isinstance(loaded.source, CSRSource)
    assert (loaded.source.values != X[loaded.rows]).nnz == 0


@pytest.mark.usefixtures("small_partitions")
def test_chunks_are_decoded_once_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = values(0)
    dataset = dfact.import_array(X, tmp_path / "d.zarr", missing=255)
    count = 0
    read = ZarrSource.read

    def counted(self: ZarrSource, start: int, stop: int) -> NDArray[Any]:
        nonlocal count
        count += 1
        return read(self, start, stop)

    monkeypatch.setattr(ZarrSource, "read", counted)
    executor = InlineExecutor()
    plan = replace(make_plan(dataset.source, np.dtype(np.float32), FOOTPRINT, executor.workers(None)), resident_values=0)
    array = dataset.source.array  # type: ignore[attr-defined]
    with executor.open(partitions(dataset.source, 255, None), plan) as session:
        session.run(RunPass(DriftPass(), np.float32(0)))
        assert count == array.nchunks
    count = 0
    with executor.open(partitions(dataset.source, 255, None), replace(plan, resident_values=99)) as session:
        for _ in range(3):
            session.run(RunPass(DriftPass(), np.float32(0)))
    assert count == array.nchunks


def test_the_next_item_is_computed_while_the_current_one_is_in_use() -> None:
    made = threading.Semaphore(0)

    def items() -> Any:
        for i in range(3):
            made.release()
            yield i

    for i in prefetch(items()):
        assert made.acquire(timeout=100), "the item itself"
        if i == 0:
            assert made.acquire(timeout=100), "the next one was not begun"
            made.release()


def test_an_error_of_the_reader_reaches_the_pass() -> None:
    def items() -> Any:
        yield 1
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        list(prefetch(items()))


SHAPES = [(1, 1), (1005, 40), (13256, 120), (500_000, 1000), (10**7, 100), (10**6, 10**4), (500_000, 800_000), (10**9, 50), (2000, 1126, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_layout_covers_all_rows_with_complete_chunks_and_blocks(shape: tuple[int, ...]) -> None:
    check_layout(Layout.of(shape), shape)
    m = int(np.prod(shape[1:]))
    for stored in (0, shape[0] * m // 200, shape[0] * m):
        check_layout(Layout.of_stored((shape[0], m), stored), shape)


def test_blocks_of_stored_entries_are_large_enough_for_their_sums_over_the_columns() -> None:
    """Neither the rows nor the entries of a block grow without limit, and short rows make no tiny blocks."""
    for shape, stored in (((100_000, 10_000), 5 * 10**6), ((10**6, 10**6), 10**8), ((10**7, 3000), 10**9)):
        layout = Layout.of_stored(shape, stored)
        entries = layout.block_rows * stored / shape[0]
        assert max(shape[1], 1 << 17) / 2 <= entries <= max(4 * shape[1], 1 << 18)
        assert layout.n_partitions >= 16


def check_layout(layout: Layout, shape: tuple[int, ...]) -> None:
    rows = [layout.rows(i, i + 1) for i in range(layout.n_partitions)]
    assert rows[0].start == 0
    assert rows[-1].stop == shape[0]
    assert all(a.stop == b.start for a, b in pairwise(rows))
    assert len(rows) <= 1 << 14
    assert layout.chunk_rows % layout.partition_rows == layout.partition_rows % layout.block_rows == 0


@pytest.mark.parametrize(("shape", "workers"), [((13256, 120), 8), ((500_000, 1000), 64), ((10**6, 10**4), 512), ((500_000, 800_000), 512)])
def test_partitions_keep_many_workers_evenly_busy(shape: tuple[int, ...], workers: int) -> None:
    n = Layout.of(shape).n_partitions
    assert n / (workers * -(-n // workers)) > 0.8


def test_blas_has_one_thread_inside_and_its_own_outside() -> None:
    before = [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
    with single_threaded(), single_threaded():
        assert {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"} == {1}
    assert [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"] == before


@pytest.mark.skipif(threads._libraries_loaded() is None, reason="the C library does not count what it loads")
def test_blas_libraries_are_looked_for_again_once_a_library_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[object] = []

    def search() -> ThreadpoolController:
        searches.append(ThreadpoolController())
        return searches[-1]

    def limited() -> int:
        with single_threaded():
            assert {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"} == {1}
        return len(searches)

    monkeypatch.setattr(threads, "_found", None)
    monkeypatch.setattr(threads, "_users", 0)  # a worker in this process may still hold the limit
    monkeypatch.setattr(threads, "ThreadpoolController", search)
    assert [limited(), limited()] == [1, 1]
    ctypes.CDLL(shutil.copy(scipy.linalg.cython_blas.__file__, tmp_path))
    assert [limited(), limited()] == [2, 2]


def test_any_thread_may_be_the_first_to_limit_blas() -> None:
    """OpenBLAS obeys the thread alone that set its number first."""

    def limited() -> set[int]:
        with single_threaded():
            return {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}

    for _ in range(2):
        assert limited() == {1}
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(limited).result() == {1}


def test_executor_is_chosen_by_partitions_and_client(client: Client) -> None:
    assert isinstance(resolve_executor(None, 1), InlineExecutor)
    assert isinstance(resolve_executor(None, 2), ThreadsExecutor)
    assert isinstance(resolve_executor(client, 1), DistributedExecutor)
    with client.as_current():
        assert isinstance(resolve_executor("distributed", 1), DistributedExecutor)
    with pytest.raises(dfact.ParameterError, match="active"):
        resolve_executor("distributed", 1)
    with pytest.raises(dfact.ParameterError, match="'gpu'"):
        resolve_executor("gpu", 1)


def test_executor_without_a_method_is_refused() -> None:
    class Passes(InlineExecutor):
        """An executor of passes alone."""

        map: Any = None

        def __repr__(self) -> str:
            return "Passes()"

    class Tasks(Passes):
        open: Any = None

    executor = Passes()
    assert resolve_executor(executor, 1) is executor
    with pytest.raises(
        dfact.ParameterError, match=r"executor is Passes\(\) without the method 'map', expected one with workers, open, map"
    ):
        resolve_executor(executor, 1, tasks=True)
    with pytest.raises(dfact.ParameterError, match="without the method 'map'"):
        dfact.selection.block_cross_validate(dfact.ICQF(2, executor=executor), values(0, 40, 8), {"n_components": [1, 2]}, (2, 2), 2)
    with pytest.raises(dfact.ParameterError, match="without the method 'open', expected one with workers, open; add it"):
        resolve_executor(Tasks(), 1)


def test_number_of_threads_is_dasks() -> None:
    with dask.config.set(num_workers=5):
        assert ThreadsExecutor().threads == 5


def two_threads(limit: str) -> WorkerResources:
    """Of a process that has 300 MiB: this one has more the more tests it has run."""
    return WorkerResources("threads", 1, 2, parse_bytes(limit), 300 << 20)


def plan_for(limit: str, n: int = 500_000, m: int = 1000) -> Plan:
    source = ArraySource(np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (n, m), (0, 0)))
    footprint = Footprint(4 * (m + 20), 12 * (m + 20), 8 * (40 * m + 400), 0)
    return make_plan(source, np.dtype(np.float32), footprint, two_threads(limit))


def test_sparse_data_is_planned_by_its_stored_entries(tmp_path: Path) -> None:
    """Dense, a read of these rows would be gigabytes."""
    rng = np.random.default_rng(0)
    n, m = 50_000, 100_000
    X = sp.coo_array((np.ones(500_000), (rng.integers(0, n, 500_000), rng.integers(0, m, 500_000))), shape=(n, m)).tocsr()
    stored = dfact.import_array(X, tmp_path / "d.zarr").source
    for source, kept in ((stored, 782), (CSRSource(X), 0)):
        assert Layout.of(source.shape).n_partitions == 782
        plan = make_plan(source, FLOAT32, Footprint(80, 4 * 100, 1000, 80), two_threads("2GiB"))
        assert plan.cached_partitions == min(kept, plan.n_partitions)
        assert plan.resident < 50e6
        plan.check()


def test_plan_keeps_what_fits_and_spills_the_rest() -> None:
    roomy, tight = plan_for("6GiB"), plan_for("1GiB")
    assert roomy.spilled == 0
    assert 0 < tight.state_in_memory < tight.n_partitions
    assert tight.peak <= 2**30
    assert tight.spilled + tight.state_in_memory / tight.n_partitions * tight.state == pytest.approx(500_000 * 4080, rel=1e-6)
    assert "read and written in every pass" in str(tight)
    assert repr(tight) == str(tight), "what a console shows"
    roomy.check()


def test_peak_does_not_grow_with_the_rows() -> None:
    small, large = plan_for("1GiB", n=2_000_000), plan_for("1GiB", n=8_000_000)
    assert large.peak <= 1.05 * small.peak


def test_plan_refuses_with_the_number_needed() -> None:
    plan = plan_for("50MiB")
    assert not plan.fits
    with pytest.raises(dfact.MemoryPlanError, match=r"needs at least .* limit is 50\.0 MiB"):
        plan.check()
    with pytest.raises(MemoryError):
        plan.check()


@pytest.mark.parametrize(("text", "size"), [("4GiB", 4 * 2**30), (1000, 1000), ("500 MB", 500_000_000)])
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["lots", "0", -5, "1e400GB"])
def test_bad_sizes(text: str | int) -> None:
    with pytest.raises(dfact.ParameterError, match="memory_limit"):
        parse_bytes(text)


def test_progress_writes_lines_to_a_log_and_a_bar_to_a_terminal() -> None:
    log = io.StringIO()
    progress = Progress("fit", log, every=0)
    progress(Iteration(3, 10, 1234.5, 0.01, 0.5))
    progress.close()
    progress(Iteration(4, 10, float("nan"), float("nan"), 0.6))
    progress(Iteration(5, 10, 1234.5, float("nan"), 0.7))  # the first of a second stage
    progress(Iteration(6, 10, 1234.4, 1e-4, 0.8, replayed=True))
    assert log.getvalue().splitlines() == [
        "fit: 3 of 10, objective 1234.5, change 1.0e-02",
        "fit: 4 of 10",
        "fit: 5 of 10, objective 1234.5",
    ]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    bar = Progress("fit", terminal)
    bar.update(5, 10)
    bar.close()
    assert "50%" in terminal.getvalue()
    assert os.linesep not in terminal.getvalue().strip()


@pytest.mark.parametrize("together", [1, 4], ids=["one by one", "four at once"])
def test_the_time_left_is_estimated_from_recent_steps(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dfact.progress.time.perf_counter", lambda: now)
    left, estimates = TimeLeft(400), {}
    for done in range(1, 401):
        now = 60 + 2.0 * together * ((done - 1) // together)  # what is done but once takes a minute
        words = left.text(done)
        estimates[done] = words and float(words.removesuffix(" s left"))
    assert estimates[1] == estimates[4] == estimates[8] == "", "by then next to all of the time went to the start"
    for done in range(32, 400):
        assert estimates[done] == pytest.approx(2.0 * (400 - done), rel=0.25, abs=1)
    assert estimates[400] == "", "nothing is left"


def test_log_lines_are_rare() -> None:
    log = io.StringIO()
    progress = Progress("fit", log, every=3600)
    for i in range(1, 51):
        progress.update(i, 100)
    assert log.getvalue().splitlines() == ["fit: 1 of 100"]
    progress.close()
    assert log.getvalue().splitlines()[1:] == ["fit: 50 of 100"]


def test_blocks_of_the_users_array_are_read_only() -> None:
    X = np.zeros((10, 3), np.float32)
    block = next(partitions(as_dataset(X).source, None, None).blocks(np.dtype(np.float32)))
    assert not block.values.flags.writeable
    assert X.flags.writeable


def test_blocks_do_not_depend_on_the_chunks_per_partition() -> None:
    X = np.arange(100)[:, None]
    for size in (1, 7, 16, 30, 100):
        blocks = list(partition_module.rechunk_rows((X[a : a + size] for a in range(0, 100, size)), 16))
        assert [len(b) for b in blocks] == [16] * 6 + [4]
        np.testing.assert_array_equal(np.concatenate(blocks), X)


def test_spilled_state_is_read_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # CPython's parser fails now and then where several threads parse literals, and a pass reads in many.
    monkeypatch.setattr("ast.parse", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = SpillFile()
    others = file.write([{"a": np.arange(7.0)}])
    written = file.write([ARRAYS, ARRAYS])
    smaller = file.write([{"a": np.zeros(3)}], others)
    larger = file.write([{"a": np.zeros(10_000)}], smaller)
    assert smaller.offset == others.offset
    assert larger.offset != others.offset
    found = file.read(written)
    assert len(found) == 2
    for state in found:
        assert list(state) == list(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(state[name], array, strict=True)
            assert state[name].flags.f_contiguous == array.flags.f_contiguous
    [path] = tmp_path.glob("dfact-*/*.state")
    os.truncate(path, written.offset + 5)
    with pytest.raises(dfact.StoreError, match=r"cannot read the solver's state from .*: \d+ bytes are missing at its end"):
        file.read(written)
    file.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", range(3))
def test_a_spill_file_uses_released_ranges_again(seed: int) -> None:
    """Partitions move away and come back a hundred times: their states take the space that the largest ones ever took together."""
    states, rng = PartitionStates(0), np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 8) * 1000
    for number, size in enumerate(sizes):
        states.put(number, [{"x": rng.random((2, size))}])
    assert states._spill is not None
    full = states._spill._end
    for _ in range(100):
        moved = rng.permutation(8)[: rng.integers(1, 8)]
        for number in moved:
            states.drop(int(number))
        expected = {int(number): rng.random((2, sizes[number])) for number in sorted(moved)}
        for number, x in sorted(expected.items(), key=lambda item: -item[1].size):
            states.put(number, [{"x": x}])
        for number, x in expected.items():
            np.testing.assert_array_equal(states.take(number, 1)[0]["x"], x)
    assert states._spill._end == full
    states.close()


def test_a_state_that_has_outgrown_its_range_releases_it() -> None:
    file = SpillFile()
    small = file.write([{"x": np.zeros(500)}])
    file.write([{"x": np.zeros(5000)}], small)
    assert file.write([{"x": np.zeros(400)}]).offset == small.offset
    file.close()


@pytest.mark.parametrize("resident", [0, 1, 3])
def test_states_stay_in_memory_or_in_one_file(resident: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    states, rng = PartitionStates(resident), np.random.default_rng(resident)
    expected = {}
    for size in (4, 9, 2):  # they grow and shrink
        for number in range(3):
            expected[number] = [{"x": rng.random((2, size))} for _ in range(2)]
            states.put(number, list(expected[number]))
    assert len(list(tmp_path.glob("dfact-*/*.state"))) == (resident < 3)
    for number, blocks in expected.items():
        for found, block in zip(states.take(number, 2), blocks, strict=True):
            np.testing.assert_array_equal(found["x"], block["x"])
    np.testing.assert_array_equal(states.rows("x", range(1, 3)), np.concatenate([b["x"].T for i in (1, 2) for b in expected[i]]))
    states.drop(0)
    assert states.take(0, 2) == [{}, {}]
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w")
    stored = states.save(range(1, 3), group, "s")
    assert stored is not None
    others = PartitionStates(1)
    others.restore(stored.part(2, 3))
    np.testing.assert_array_equal(others.rows("x", range(2, 3)), states.rows("x", range(2, 3)))
    states.put(1, [{}, {}])
    assert states.save(range(1, 2), group, "t") is None
    states.close()


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpillFile()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(dfact.StoreError, match=r"state to .*dfact-state.*: the disk is full; raise memory_limit, or set TMPDIR"):
        file.write([{"a": np.zeros(3)}])
    file.close()


def binary(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The sum in the order of a binary tree, as its definition says."""
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 60, 97])
@pytest.mark.parametrize("seed", range(3))
def test_sums_have_the_bits_of_the_tree_in_any_order_of_any_parts(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [Sums(10.0 ** rng.integers(-8, 8, 3) * rng.random(3), np.asarray(1.0)) for _ in range(n)]
    expected = binary([part.weighted for part in parts])
    whole = TreeSum[Sums](Leaves((n,)))
    whole.update({(0, i): part.accumulator() for i, part in enumerate(parts)})
    np.testing.assert_array_equal(whole.result.weighted, expected)
    whole = TreeSum[Sums](Leaves((n,)))
    edges = [0, *sorted(rng.integers(0, n + 1, 4).tolist()), n]
    for first, last in rng.permutation(np.column_stack([edges[:-1], edges[1:]])):
        share = TreeSum[Sums](Leaves((n,)))
        for i in rng.permutation(np.arange(first, last)):
            share.add((0, int(i)), parts[i].accumulator())
        assert len(share.nodes) <= 2 * max(1, int(last - first).bit_length())
        whole.update(share.nodes)
    np.testing.assert_array_equal(whole.result.weighted, expected)
    assert whole.result.count == n


@pytest.mark.parametrize("counts", [(5,), (1, 1), (3, 8, 1), (16, 1, 5, 7), (2, 300, 4)])
def test_the_sum_of_a_segment_does_not_depend_on_the_others(counts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(counts))
    segments = [[Sums(10.0 ** rng.integers(-8, 8, 3) * rng.random(3), np.asarray(1.0)) for _ in range(n)] for n in counts]
    leaves, parts = Leaves(counts), [part for segment in segments for part in segment]
    expected = binary([binary([part.weighted for part in segment]) for segment in segments])
    total = TreeSum[Sums](leaves)
    for i in rng.permutation(len(parts)):
        total.add((0, leaves.numbers[i]), parts[i].accumulator())
    np.testing.assert_array_equal(total.result.weighted, expected)
    roots = TreeSum[Sums](leaves)
    for number, segment in enumerate(segments):
        alone = TreeSum[Sums](Leaves((len(segment),)))
        alone.update({(0, i): part.accumulator() for i, part in enumerate(segment)})
        roots.add((leaves.segment_depth, number), alone.result)
    np.testing.assert_array_equal(roots.result.weighted, expected)


def test_sums_are_added_by_many_threads() -> None:
    parts = [Sums(np.random.default_rng(i).random(3), np.asarray(1.0)) for i in range(500)]
    total = TreeSum[Sums](Leaves((500,)))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: total.add((0, i), parts[i].accumulator()), range(500)))
    np.testing.assert_array_equal(total.result.weighted, binary([part.weighted for part in parts]))


def test_blocks_of_a_pass_over_the_state_alone_have_the_right_number_of_rows() -> None:
    parts = partitions(ArraySource(np.zeros((5000, 300))), None, None)
    rows = [block.values.shape for block in parts.blocks(None)]
    assert rows == [(len(block.values), 0) for block in parts.blocks(FLOAT32)]
    assert rows[-1][0] < rows[0][0], "the last block is a short one"


def test_the_driver_of_a_cluster_computes_with_one_blas_thread(client: Client) -> None:
    """With more than one BLAS thread its products would have other bits."""
    X = planted_answers(3000, 300, 6, 0, 0.1).astype(np.float64)
    fits = [dfact.ICQF(6, max_iter=15, tol=0, executor=executor).fit(X) for executor in ("inline", client)]
    np.testing.assert_array_equal(fits[0].components_, fits[1].components_)
    np.testing.assert_array_equal(fits[0].objective_history_, fits[1].objective_history_)


# --- working memory ---------------------------------------------------------------------------------


def test_arrays_of_the_same_name_share_memory() -> None:
    work = Workspace()
    first = work.array("a", (4, 6), np.float32)
    assert np.shares_memory(first, work.array("a", (2, 3), np.float64))
    assert not np.shares_memory(first, work.array("b", (4, 6), np.float32))
    larger = work.array("a", (40, 60), np.float32)
    assert larger.shape == (40, 60)
    assert larger.flags.c_contiguous
    assert not np.shares_memory(first, larger)


def test_lasting_arrays_are_released_with_the_next_block() -> None:
    work = Workspace()
    first, second = work.zeros((3, 2)), work.matmul(np.eye(3), np.eye(3))
    assert not np.shares_memory(first, second)
    work.next_block()
    assert np.shares_memory(first, work.until_next_block((3, 2), np.float64))


@dataclass(frozen=True)
class LendingPass(Pass[BlockState, NDArray[Any], Sums]):
    """A pass whose sums lie in the block's workspace."""

    dtype: np.dtype[Any] = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, Sums]:
        return state, Sums(block.work.matmul(broadcast, block.values), np.asarray(len(block.values)))


@pytest.mark.usefixtures("small_partitions")
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_sums_in_a_workspace_are_those_of_all_blocks_and_members(dtype: Any) -> None:
    X = np.random.default_rng(0).integers(0, 9, (640, 100)).astype(dtype)
    part, work = partitions(ArraySource(X), None, None).part(0, 1), Workspace()
    n, rows = part.rows.stop, part.layout.block_rows
    assert part.n_blocks(0) > 1
    A = [np.full((2, rows), factor, np.float32) for factor in (1, 2)]
    together = RunPass(FusedPass(tuple(Member(name, RunPass(LendingPass())) for name in "ab"), FLOAT32), A)
    for _ in range(2):
        sums = reduce_blocks(part.blocks(FLOAT32, work), together, [{} for _ in range(part.n_blocks(0))], [].append)
        for member, factor in zip(sums.parts, (1, 2), strict=True):
            np.testing.assert_array_equal(member.weighted, factor * np.tile(X[:n].astype(float).sum(axis=0), (2, 1)))


def test_blocks_without_a_workspace_may_be_kept() -> None:
    X = np.random.default_rng(0).integers(0, 9, (5000, 100)).astype(np.uint8)
    part = partitions(ArraySource(X), 8, None)
    blocks = list(part.blocks(FLOAT32))
    assert len(blocks) > 1
    np.testing.assert_array_equal(np.concatenate([block.values for block in blocks]), np.where(X == 8, np.nan, X))
    first, second, *_ = (block.values.ctypes.data for block in part.blocks(FLOAT32, Workspace()))
    assert first == second
