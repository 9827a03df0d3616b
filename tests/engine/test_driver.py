"""Solvers as generators: driven alone, together on shared reads, and replayed from a checkpoint."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dfact.data.sources.base import ArraySource
from dfact.engine.block_state import BlockState
from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.executors import ThreadsExecutor, resolve_executor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, PartialSums, Pass, RunPass
from dfact.engine.requests import FusedSolver, Solver, drive, memo, run, run_fused, state_rows
from dfact.engine.session import CheckpointableSession
from dfact.errors import StoreError
from dfact.monitoring import metrics
from tests.conftest import CutRows

N, M = 700, 8


@dataclass
class Totals(PartialSums, name="test_driver_totals"):
    total: NDArray[Any]


@dataclass
class RowSums(BlockState):
    sums: NDArray[Any]


@dataclass(frozen=True)
class DecayPass(Pass[RowSums, float, Totals]):
    """State: the row sums plus those of earlier passes, each decayed by the broadcast."""

    dtype: np.dtype[Any]

    state_type = RowSums

    def start(self, block: Block) -> RowSums:
        return RowSums(np.zeros((1, len(block.values))))

    def step(self, block: Block, state: RowSums, broadcast: float) -> tuple[RowSums, Totals]:
        sums = np.nansum(block.values, axis=1)[None] + broadcast * state.sums
        return RowSums(sums), Totals(np.asarray(sums.sum()))


@dataclass(frozen=True)
class Scaled:
    """A view of the block times a number."""

    factor: float

    def __call__(self, block: Block) -> Block:
        return block.with_matrix(block.values * self.factor)


Result = tuple[list[float], NDArray[Any]]


def solver(decay: float, steps: int = 4, fails: bool = False) -> Solver[Result]:
    """Run passes, one of them on a view of its own, with a memoized number in between."""
    totals = []
    pass_ = DecayPass(np.dtype("float64"))
    seed = yield from memo("number", lambda: {"number": np.asarray(3.0)})
    for _ in range(steps):
        totals += [float((yield from run(pass_, decay)).total)]
    if fails:
        raise KeyError("mine")
    totals.append(float((yield from run(pass_, decay, Scaled(float(seed["number"])))).total))
    return totals, np.concatenate(list((yield from state_rows("sums"))))


def values(seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(N, M))


def opened(X: NDArray[Any], executor: str) -> CheckpointableSession:
    where, source = resolve_executor(executor, 1), ArraySource(X)
    return where.open(partitions(source, None, None), make_plan(source, X.dtype, Footprint(8, 8 * M, 8, 0), where.workers(None)))


def same(one: Result, other: Result) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1])


@pytest.fixture(autouse=True)
def small_partitions(cut_rows: CutRows) -> None:
    cut_rows(block_entries=1 << 9, chunk_entries=1 << 10, partition_entries=1 << 10)


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("seed", [0, 1])
def test_fused_solvers_equal_those_driven_alone(executor: str, seed: int) -> None:
    X = values(seed)
    alone = []
    for decay, steps, factor in ((0.5, 4, 1.0), (0.9, 2, 2.0), (0.1, 7, 2.0)):
        with opened(X * factor, executor) as session:
            alone.append(drive(solver(decay, steps), session))
    kept: list[Result] = []

    def keeping(one: Solver[Result]) -> Solver[Result]:
        result = yield from one
        kept.append(result)  # its state is read before the next fused pass drops it
        return result

    with opened(X, executor) as session:
        solvers = [(0.5, 4, 1.0), (0.9, 2, 2.0), (0.1, 7, 2.0)]
        # The view of the last pass replaces the solver's: three times the data itself.
        fused = run_fused(
            [FusedSolver(keeping(solver(decay, steps)), Scaled(factor)) for decay, steps, factor in solvers], session, X.dtype
        )
    for one, other, (_, _, factor) in zip(alone, fused, solvers, strict=True):
        assert one[0][:-1] == other[0][:-1]
        if factor == 1:
            assert same(one, other)
    assert [result[0] for result in kept] == [fused[i][0] for i in (1, 0, 2)], "the shortest ends first"


def test_sampled_passes_run_before_the_others_continue() -> None:
    X = values(2)

    def two() -> Solver[list[float]]:
        pass_ = DecayPass(np.dtype("float64"))
        first = yield from run(pass_, 0.5, sample=(0, 1))
        second = yield from run(pass_, 0.5)
        return [float(first.total), float(second.total)]

    def one() -> Solver[list[float]]:
        return [float((yield from run(DecayPass(np.dtype("float64")), 0.5)).total)]

    with opened(X, "inline") as session:
        alone = drive(two(), session)
    with opened(X, "inline") as session:
        fused = run_fused([FusedSolver(one()), FusedSolver(two())], session, X.dtype)
    assert fused[1] == alone
    np.testing.assert_allclose(fused[0], X.sum(), rtol=1e-12)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_replay_reads_no_data(together: bool, every: int, tmp_path: Path) -> None:
    X = values(3)

    def work(session: Any, *, fails: bool = False) -> list[Result]:
        if not together:
            return [drive(solver(0.5, fails=fails), session)]
        return run_fused([FusedSolver(solver(0.5, fails=fails)), FusedSolver(solver(0.2, 6))], session, X.dtype)

    with opened(X, "inline") as session:
        expected = work(session)
    with pytest.raises(KeyError), CheckpointedSession(opened(X, "inline"), tmp_path / "c", every, {}) as recorded:
        work(recorded, fails=True)
    reads: list[int] = []
    inner = opened(X, "inline")
    run_pass = inner.run
    inner.run = lambda *request: reads.append(1) or run_pass(*request)  # type: ignore[method-assign]
    with CheckpointedSession(inner, tmp_path / "c", every, {}) as resumed:
        found = work(resumed)
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    total = 5 if not together else 7
    assert len(reads) <= total - 4 + every, "recorded passes are not run again"


def test_a_solver_that_diverges_from_its_record_is_refused(tmp_path: Path) -> None:
    X = values(4)
    with CheckpointedSession(opened(X, "inline"), tmp_path / "c", 1, {}) as recorded:
        drive(solver(0.5), recorded)

    def other() -> Solver[None]:
        yield from memo("another number", dict)

    with (
        pytest.raises(StoreError, match=r"diverged from checkpoint .* at step 1: recorded number, computed another number"),
        CheckpointedSession(opened(X, "inline"), tmp_path / "c", 1, {}) as resumed,
    ):
        drive(other(), resumed)


def test_the_first_error_of_fused_solvers_is_raised() -> None:
    with opened(values(5), "inline") as session, pytest.raises(KeyError, match="mine"):
        run_fused([FusedSolver(solver(0.5)), FusedSolver(solver(0.5, fails=True))], session, np.dtype("float64"))


def test_an_error_ends_the_other_tasks_at_their_next_pass() -> None:
    begun, finished = threading.Event(), list[str]()

    def task(which: str, X: NDArray[Any]) -> Iterator[Result]:
        if which == "fails":
            begun.wait()
            raise KeyError("mine")
        with opened(X, "inline") as session:
            drive(solver(0.5, steps=1), session)
            begun.set()
            result = drive(solver(0.5, steps=20_000), session)
        finished.append(which)
        yield result

    def none_expected(which: str, result: Result) -> None:
        raise AssertionError(f"{which} ended with {result[0][-1]}")

    with pytest.raises(KeyError, match="mine"):
        ThreadsExecutor(2).map(task, ["fails", "goes on"], lambda: values(0), none_expected)
    assert not finished
    with opened(values(0), "inline") as session:  # later fits go on
        drive(solver(0.5), session)


# Metrics


def test_an_interrupted_pass_counts_once_with_its_continuation(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(values(0), "inline") as session:
        shard: Any = session._shard  # type: ignore[attr-defined]
        end_partition = shard._end_partition
        before = metrics.values()

        def end_and_interrupt(rows: slice) -> None:
            end_partition(rows)
            shard.interrupt_pass()

        with monkeypatch.context() as patch:
            patch.setattr(shard, "_end_partition", end_and_interrupt)
            shard.run(1, RunPass(DecayPass(np.dtype("float64")), 0.5))
        assert shard.has_pending(1)
        assert metrics.values()["passes"] == before["passes"]
        shard.allow_passes()
        shard.run(1, RunPass(DecayPass(np.dtype("float64")), 0.5))
        counted = {name: metrics.values()[name] - before[name] for name in ("passes", "rows")}
    assert counted == {"passes": 1, "rows": N}
