"""Problems of columns between passes: bit-identical on the driver, on threads and on workers, for any cut."""

import os
import signal
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

import dfact
from benchmarks.faults.fits import Processes
from dfact.data.sources.base import ArraySource
from dfact.engine import column_map
from dfact.engine.block_state import StateArrays
from dfact.engine.cluster import watchdog as watch
from dfact.engine.cluster.session import ClusterSession, DistributedExecutor
from dfact.engine.column_map import ColumnMap, SolveTile
from dfact.engine.executors import ThreadsExecutor
from dfact.engine.memory_plan import make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import RunPass
from tests.conftest import CutRows
from tests.suites.session import FLOAT32, FOOTPRINT, DriftPass, cut_small, values


@dataclass(frozen=True)
class Solve:
    """A linear system for each column."""

    G: NDArray[np.float64]

    def __call__(self, given: StateArrays) -> NDArray[np.float64]:
        assert all(array.flags.c_contiguous for array in given.values())
        solutions: NDArray[np.float64] = np.linalg.solve(self.G, given["h"]) / given["scale"]
        return solutions


def request(columns: int, seconds: float = 0.0) -> ColumnMap:
    rng = np.random.default_rng(columns)
    given = {"h": rng.random((3, columns)), "scale": 1 + rng.random(columns)}
    return ColumnMap(Solve(np.eye(3) + rng.random((3, 3))), given, seconds)


@pytest.mark.parametrize("columns", [1, 127, 128, 129, 1000])
def test_any_cut_gives_the_same_bits(columns: int) -> None:
    whole = request(columns)
    expected = whole()
    solve = whole.function
    assert isinstance(solve, Solve)
    np.testing.assert_allclose(solve.G @ expected * whole.given["scale"], whole.given["h"], atol=1e-12)
    for count in (1, 2, 3, 64):
        parts = whole.parts(count)
        assert len(parts) == min(count, -(-columns // 128))
        assert [parts[0].start, parts[-1].stop] == [0, columns]
        assert all(a.stop == b.start and b.start % 128 == 0 for a, b in pairwise(parts))
        np.testing.assert_array_equal(whole.map(lambda work, slices: [work(part) for part in slices], count), expected)
        np.testing.assert_array_equal(np.concatenate([SolveTile(solve)(tile) for tile in whole.tiles(parts)], axis=-1), expected)


def test_the_size_of_the_problem_decides_where_it_is_solved() -> None:
    assert not request(1000, 0.5e-6).suits_threads
    assert request(1000, 2e-6).suits_threads
    assert not request(1000, 2e-6).suits_workers(1000)
    assert not request(1000, 20e-6).suits_workers(2)
    assert request(1000, 20e-6).suits_workers(4)
    assert not request(1000, 1.0).suits_workers(1)


def answers(m: int = 300) -> NDArray[np.float64]:
    """Answers with several tiles of items."""
    rng = np.random.default_rng(1)
    V = rng.binomial(4, rng.random((400, 3)) @ rng.random((3, m)) / 3).astype(float)
    V[rng.random(V.shape) < 0.1] = np.nan
    return V


def test_loadings_are_the_same_on_threads_and_on_workers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = ClusterSession._step_on_workers

    def counted(self: ClusterSession, step: object, tiles: object) -> object:
        calls.append(step)
        return original(self, step, tiles)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(ClusterSession, "_step_on_workers", counted)
    client.wait_for_workers(2)  # another test may have killed one
    settings = {"n_components": 3, "max_iter": 5, "random_state": 0}
    expected = dfact.ICQF(**settings, executor="inline").fit(answers())
    assert np.count_nonzero(expected.components_) > 100
    monkeypatch.setattr(column_map, "_THREADS_SECONDS", 0.0)
    monkeypatch.setattr(column_map, "_WORKERS_SECONDS", 0.0)
    for executor in (ThreadsExecutor(2), client):
        model = dfact.ICQF(**settings, executor=executor).fit(answers())
        np.testing.assert_array_equal(model.components_, expected.components_)
        np.testing.assert_array_equal(model.objective_history_, expected.objective_history_)
    assert len(calls) >= 5, "one for each update of the loadings"


@dataclass(frozen=True)
class StrikingSolve(Solve):
    """A function that kills the worker on which it runs, once."""

    folder: str = ""

    def __call__(self, given: StateArrays) -> NDArray[np.float64]:
        try:
            (Path(self.folder) / "struck").touch(exist_ok=False)
        except FileExistsError:
            return super().__call__(given)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the process has ended")


@pytest.mark.exhaustive
@pytest.mark.faults
def test_a_worker_lost_between_passes_changes_no_bit(
    processes: Processes, tmp_path: Path, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(cut_rows)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.2)
    whole = request(700, 1.0)
    solve = whole.function
    assert isinstance(solve, Solve)
    source = ArraySource(values(0))
    processes.start(3)
    with Client(processes.address, set_as_default=False) as client:
        client.wait_for_workers(3)
        executor = DistributedExecutor(client)
        plan = make_plan(source, FLOAT32, FOOTPRINT, executor.workers(None))
        with executor.open(partitions(source, None, None), plan) as session:
            session.run(RunPass(DriftPass(), np.ones(1)))
            striking = ColumnMap(StrikingSolve(solve.G, str(tmp_path)), whole.given, 1.0)
            np.testing.assert_array_equal(session.map_columns(striking), whole())
    assert (tmp_path / "struck").exists()
