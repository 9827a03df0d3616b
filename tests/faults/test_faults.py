"""Workers, schedulers and drivers that are killed or paused while a fit runs: it ends with bit-identical results.

``python -m benchmarks.faults`` tries more faults, more often, and prints what they cost.
"""

import logging
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import dfact
from benchmarks.faults.commands import Stored, StoredAdmixture, StoredBootstrap, StoredFit, reached_by
from benchmarks.faults.fits import (
    SELECTIONS,
    SOLVERS,
    Processes,
    Strike,
    answers,
    bits,
    forked_workers,
    joined,
    long_fit,
    partitions_by_worker,
    small_partitions,
)
from dfact.data.sources.dask import worker_infos
from dfact.engine.checkpoint import resume_point
from dfact.engine.cluster.certificate_names import ClusterSecurity
from dfact.engine.cluster.connection import connect
from tests.cases import exhaustive_after, installed
from tests.conftest import CutRows

pytestmark = pytest.mark.faults
PAUSE = 0.02
ADMIXTURE = [(StoredAdmixture, 0)] if installed("genetics") else []


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small_partitions():
        yield


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A cluster of slow workers."""
    with Processes(tmp_path_factory.mktemp("cluster"), pause=PAUSE) as processes:
        yield processes


def connected(processes: Processes, n_workers: int) -> Client:
    """A client of the cluster, once that has so many workers."""
    processes.start(n_workers)
    client = Client(processes.address, set_as_default=False)
    client.wait_for_workers(n_workers, timeout=200)
    return client


@pytest.fixture
def client(processes: Processes) -> Iterator[Client]:
    """A client of it, with two workers."""
    with connected(processes, 2) as client:
        yield client


def killing(processes: Processes, seed: int, last: int) -> Strike:
    """Kills one of two workers, at a random moment of the pass behind a random iteration; a new one comes then."""
    rng = np.random.default_rng(seed)
    victim = str(rng.choice(processes.workers))

    def kill() -> None:
        processes.kill(victim)
        processes.start_worker()

    return Strike(int(rng.integers(1, last + 1)), rng.uniform(0, 3 * PAUSE), kill)


# The engine's part is the same for all solvers: with and without a checkpoint, in turn.
@pytest.mark.parametrize(("name", "checkpoint"), exhaustive_after(2, [(name, number % 2 == 1) for number, name in enumerate(SOLVERS)]))
def test_a_killed_worker(name: str, checkpoint: bool, processes: Processes, client: Client, tmp_path: Path) -> None:
    solver, seed = SOLVERS[name], 2 * list(SOLVERS).index(name) + checkpoint
    X = solver.data(seed)
    assert dfact.plan(solver.make(), X).n_partitions >= 4
    expected = bits(solver.make(executor="inline").fit(X))
    strike = killing(processes, seed, solver.last)
    kept: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint.zarr", "checkpoint_every": 3} if checkpoint else {}
    model = solver.make(executor=client, callbacks=[strike], **kept).fit(X)
    assert strike.done()
    assert bits(model) == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_worker_killed_in_a_selection(name: str, processes: Processes, client: Client) -> None:
    expected = bits(SELECTIONS[name]("inline"))
    strike = killing(processes, 7, 2)
    chosen = SELECTIONS[name](client, [strike])
    assert strike.done()
    assert bits(chosen) == expected


@pytest.mark.exhaustive
def test_a_killed_worker_that_its_nanny_restarts() -> None:
    X = answers(1)
    with (
        forked_workers(),
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", memory_limit="2GiB") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        [victim] = client.run(os.getpid).values()
        strike = Strike(3, 0, lambda: os.kill(victim, signal.SIGKILL))
        assert bits(long_fit(executor=client, callbacks=[strike]).fit(X)) == bits(long_fit(executor="inline").fit(X))
        assert strike.done()
        assert [*client.run(os.getpid).values()] != [victim]


@pytest.mark.exhaustive
def test_a_worker_that_joins_is_used(processes: Processes, client: Client, cut_rows: CutRows) -> None:
    cut_rows(partition_entries=1 << 11)
    X = answers(2)
    assert dfact.plan(long_fit(), X).n_partitions > 30
    before = {worker["name"] for worker in worker_infos(client).values()}
    strikes = [Strike(1, 0, processes.start_worker), joined(client, 3, behind=4)]
    model = dfact.ICQF(3, max_iter=9, tol=0, executor=client, callbacks=strikes).fit(X)
    assert bits(model) == bits(dfact.ICQF(3, max_iter=9, tol=0, executor="inline").fit(X))
    names = {address: worker["name"] for address, worker in worker_infos(client).items()}
    [newcomer] = set(names.values()) - before
    processed_partitions = {names[address]: count for address, count in partitions_by_worker(client).items()}
    assert processed_partitions[newcomer] >= 10
    processes.kill(newcomer)


@pytest.mark.exhaustive
def test_a_paused_worker(tmp_path: Path) -> None:
    X = answers(3)
    with Processes(tmp_path, {"distributed.scheduler.worker-ttl": "2s"}, PAUSE) as processes, connected(processes, 2) as client:
        strike = Strike(3, PAUSE, lambda: processes.send(signal.SIGSTOP, processes.workers[0]))
        began = time.monotonic()
        make = partial(dfact.ICQF, 3, max_iter=6, tol=0, init="random", random_state=0)
        model = make(executor=client, callbacks=[strike]).fit(X)
        assert strike.done()
        assert time.monotonic() - began > 4  # it counted as lost only then
        assert bits(model) == bits(make(executor="inline").fit(X))


@pytest.mark.further
@pytest.mark.parametrize(
    ("stored", "seed"),
    exhaustive_after(1, [(StoredFit, 0), (StoredFit, 1), *ADMIXTURE]),
)
def test_a_killed_driver(stored: type[Stored], seed: int, tmp_path: Path) -> None:
    fit, rng = stored(tmp_path, PAUSE / 2, "--executor", "threads"), np.random.default_rng(seed)
    reached = []
    for _ in range(3):
        before, command = reached_by(fit.checkpoint), fit.run()
        command.reached(fit.checkpoint, max(before, 4) + int(rng.integers(1, 5)))  # that version may be torn, the one before it is not
        time.sleep(rng.uniform(0, 0.1))
        command.send(signal.SIGKILL)
        assert command.ended() == -signal.SIGKILL
        assert not fit.model.exists()
        reached.append(resume_point(fit.checkpoint))
    command = fit.run()
    assert command.ended() == 0, command.said
    assert "Resuming from step" in command.said
    assert 0 < reached[0] < reached[-1]
    assert fit.lost() == 0


@pytest.mark.exhaustive
def test_a_killed_bootstrap(tmp_path: Path) -> None:
    stored = StoredBootstrap(tmp_path, PAUSE / 8, "--executor", "threads")
    finished: dict[Path, int] = {}
    for _ in range(2):
        command = stored.run()
        command.reached(stored.checkpoint, len(finished) + 3)
        command.send(signal.SIGKILL)
        assert command.ended() == -signal.SIGKILL
        whole = [path for path in stored.checkpoint.glob("result-*/zarr.json") if "checksums" in path.read_text()]  # not those torn
        assert len(finished) < len(whole) < stored.RESAMPLES
        assert finished.items() <= {path: path.stat().st_mtime_ns for path in whole}.items()
        finished = {path: path.stat().st_mtime_ns for path in whole}
    command = stored.run()
    assert command.ended() == 0, command.said
    assert finished.items() <= {path: path.stat().st_mtime_ns for path in stored.checkpoint.glob("result-*/zarr.json")}.items()
    assert stored.lost() == 0


@pytest.mark.further
def test_a_driver_that_is_asked_to_stop(tmp_path: Path) -> None:
    fit = StoredFit(tmp_path, PAUSE / 2, "--executor", "threads")
    done = [0]
    for number in (signal.SIGTERM, signal.SIGINT):
        command = fit.run()
        command.reached(fit.checkpoint, done[-1] + 2)
        command.send(number)
        assert command.ended() == 128 + number
        done.append(resume_point(fit.checkpoint))
        assert f"holds {done[-1]} steps, from which the same fit resumes" in command.said
    assert done[0] < done[1] < done[2]
    command = fit.run()
    assert command.ended() == 0, command.said
    assert fit.lost() == 0


def test_a_scheduler_lost_after_the_last_result_leaves_no_traceback(tmp_path: Path) -> None:
    logger, logged = logging.getLogger("distributed.client"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]  # of this handler alone
    logger.addHandler(handler)
    try:
        with Processes(tmp_path) as processes:
            processes.start(1)
            with connect(processes.address, ClusterSecurity()) as client:
                processes.kill("scheduler")
                while client.status != "connecting":
                    time.sleep(0.01)
        assert not [record.getMessage() for record in logged if record.exc_info]
    finally:
        logger.removeHandler(handler)


@pytest.mark.exhaustive
def test_all_workers_lost_then_the_scheduler(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    folder = tmp_path / "fit"
    folder.mkdir()
    with Processes(cluster, pause=PAUSE) as processes:
        fit = StoredFit(folder, PAUSE / 2, "--scheduler", processes.address)
        processes.start(2)
        command = fit.run({"dfact.worker-timeout": "2s"})
        command.reached(fit.checkpoint, 8)
        struck = time.monotonic()
        processes.kill(*processes.workers)
        assert command.ended() == 1
        assert time.monotonic() - struck >= 2
        assert "for 2 s the Dask cluster has had no worker" in command.said
        processes.kill("scheduler")
        processes.start(2)
        command = fit.run({"dfact.worker-timeout": "1h"})
        command.reached(fit.checkpoint, reached_by(fit.checkpoint) + 4)  # one that is torn counts
        assert command.alive, command.said
        processes.kill("scheduler")
        assert command.ended(300) == 1  # no wait for what does not come back, which would be ten minutes
        assert "the Dask scheduler is lost" in command.said
        processes.kill(*processes.workers)
        processes.pause = 0
        processes.start(2)
        command = fit.run()
        assert command.ended() == 0, command.said
        assert f"Resuming from step {resume_point(fit.checkpoint)}" not in command.said
    assert fit.lost() == 0
