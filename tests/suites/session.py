"""What every executor keeps to: its sessions give the sums and the state that one thread gives, whatever the data lie in."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

import dfact
from dfact.data import stored_dataset
from dfact.data.layout import Layout
from dfact.data.sources import sparse
from dfact.data.sources.base import ArraySource, RowSource, ZarrSource
from dfact.data.sources.sparse import StoredCSRSource
from dfact.engine.block_state import BlockState
from dfact.engine.executors import InlineExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, PartialSums, Pass, RunPass
from dfact.engine.session import Executor
from tests.conftest import CutRows

FLOAT32 = np.dtype(np.float32)
FOOTPRINT = Footprint(state_per_row=200, work_per_row=200, broadcast=1000, result_per_row=8)


@dataclass
class Sums(PartialSums, name="test_drift"):
    weighted: NDArray[Any]
    count: NDArray[Any]


@dataclass
class DriftState(BlockState):
    drift: NDArray[Any]
    rows: NDArray[Any]


@dataclass(frozen=True)
class DriftPass(Pass[DriftState, NDArray[Any], Sums]):
    """A pass whose result depends on the state, the order of sums and the block index; overwrites its state."""

    dtype: np.dtype[Any] = FLOAT32
    state_type = DriftState

    def start(self, block: Block) -> DriftState:
        return DriftState(np.full((2, len(block.values)), np.float32(block.index) / 7), np.nan_to_num(block.values))

    def step(self, block: Block, state: DriftState, broadcast: NDArray[Any]) -> tuple[DriftState, Sums]:
        state.drift *= np.float32(1.1)
        state.rows += broadcast
        cov = 0 if block.covariates is None else block.covariates.sum()
        weighted = state.drift.sum() * np.nansum(block.values, axis=0) / np.float32(3) + state.rows.sum() + cov
        return state, Sums(weighted, np.asarray(len(block.values)))


@dataclass(frozen=True)
class FailingPass(DriftPass):
    def step(self, block: Block, state: DriftState, broadcast: NDArray[Any]) -> tuple[DriftState, Sums]:
        raise ValueError(f"block {block.index} is bad")


def values(seed: int, n: int = 401, m: int = 25) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 5, (n, m)).astype(np.uint8)
    X[rng.random(X.shape) < 0.1] = 255
    return X


def run(executor: Executor, source: RowSource, *, spill: bool = False, passes: int = 3, seed: int = 0) -> tuple[Any, ...]:
    covariates = np.random.default_rng(seed).random((source.shape[0], 3)).astype(np.float32)
    plan = make_plan(source, np.dtype(np.float32), FOOTPRINT, executor.workers(None))
    if spill:
        plan = replace(plan, resident_states=1, resident_values=1)
    with executor.open(partitions(source, 255, covariates), plan) as session:
        results = [session.run(RunPass(DriftPass(), np.float32(i))) for i in range(passes)]
        drift = np.concatenate(list(session.rows("drift")))
    return (*[r.weighted for r in results], *[r.count for r in results], drift)


def sparse_values(seed: int, n: int = 401, m: int = 25) -> sp.csr_array:
    """Codes, missing ones among them, in rows of unequal lengths."""
    X = values(seed, n, m)
    rng = np.random.default_rng(seed)
    X[rng.random(X.shape) > rng.choice([0.0, 0.1, 0.8], (n, 1))] = 0
    return sp.csr_array(X)


@dataclass
class Threads(PartialSums):
    excess: NDArray[Any]


@dataclass(frozen=True)
class ThreadCountPass(Pass[BlockState, None, Threads]):
    dtype: np.dtype[Any] = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, Threads]:
        counts = [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
        return state, Threads(np.asarray(max(counts) - 1))


def cut_small(cut_rows: CutRows) -> None:
    """Cut a few hundred rows into several partitions of several blocks."""
    cut_rows(block_entries=1 << 8, block_rows=(8, 64), chunk_entries=1 << 10, partition_entries=1 << 12)


class SessionSuite:
    """A subclass has a fixture ``executor``."""

    @pytest.fixture
    def small_partitions(self, cut_rows: CutRows) -> None:
        cut_small(cut_rows)

    @pytest.mark.usefixtures("small_partitions")
    @pytest.mark.parametrize("spill", [False, True])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_every_executor_gives_the_bits_of_the_inline_one(self, executor: Executor, spill: bool, seed: int) -> None:
        source = ArraySource(values(seed))
        assert Layout.of(source.shape).n_partitions > 2
        expected = run(InlineExecutor(), source, seed=seed)
        for a, b in zip(expected, run(executor, source, spill=spill, seed=seed), strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.usefixtures("small_partitions")
    @pytest.mark.parametrize("chunk_rows", [64, 1, 17, 300, 500])
    def test_any_chunking_gives_the_same_bits(self, executor: Executor, chunk_rows: int, tmp_path: Path) -> None:
        X = values(3)[: 100 if chunk_rows == 1 else None]  # each chunk is a file
        array = zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(chunk_rows, 13))
        expected = run(InlineExecutor(), ArraySource(X))
        for a, b in zip(expected, run(executor, ZarrSource(array), spill=True), strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.usefixtures("small_partitions")
    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("spill", [False, True])
    def test_stored_sparse_rows_give_the_bits_of_dense_ones(
        self, executor: Executor, seed: int, spill: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng = np.random.default_rng(seed)
        for module, name in ((sparse, "_READ_ENTRIES"), (stored_dataset, "_CHUNK_ENTRIES"), (stored_dataset, "_INDPTR_CHUNK")):
            monkeypatch.setattr(module, name, int(rng.integers(1 if "READ" in name else 40, 400)))
        X = sparse_values(seed)
        source = dfact.import_array(X, tmp_path / "d.zarr", missing=255).source
        assert isinstance(source, StoredCSRSource)
        assert Layout.of(source.shape).n_partitions > 2
        expected = run(InlineExecutor(), ArraySource(X.toarray()), seed=seed)
        for a, b in zip(expected, run(executor, source, spill=spill, seed=seed), strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.usefixtures("small_partitions")
    def test_an_error_in_a_block_reaches_the_caller(self, executor: Executor) -> None:
        source = ArraySource(values(0))
        plan = make_plan(source, np.dtype(np.float32), FOOTPRINT, executor.workers(None))
        with pytest.raises(ValueError, match=r"block \d+ is bad"), executor.open(partitions(source, 255, None), plan) as session:
            session.run(RunPass(FailingPass(), np.float32(0)))

    @pytest.mark.usefixtures("small_partitions")
    def test_spilled_state_is_removed_at_the_end(self, executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        run(executor, ArraySource(values(0)), spill=True)
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith("dfact-")] == []

    def test_passes_run_with_one_blas_thread(self, executor: Executor) -> None:
        seen = executor.open(
            partitions(ArraySource(values(0)), 255, None),
            make_plan(ArraySource(values(0)), np.dtype(np.float32), FOOTPRINT, executor.workers(None)),
        )
        with seen as session:
            assert session.run(RunPass(ThreadCountPass(), None)).excess == 0
