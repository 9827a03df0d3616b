"""Workers that are told to stop: their partitions move with their state to the others before they end, and nothing is recomputed."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dask
import numpy as np
import pytest
from distributed import Client

from benchmarks.faults.fits import Processes, small_partitions
from dfact import signals
from dfact.data.sources.base import ArraySource
from dfact.data.sources.concatenated import ConcatenatedSource
from dfact.data.sources.dask import worker_infos
from dfact.engine.checkpoint import CheckpointedSession, resume_point
from dfact.engine.cluster import leaving
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.memory_plan import make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import RunPass
from tests.engine.test_cluster_session import (
    FLOAT32,
    FOOTPRINT,
    WAIT,
    Kill,
    Walk,
    _attentive,  # noqa: F401  # a fixture
    _small,  # noqa: F401  # a fixture
    again,
    inline,
    inside,
    kills_done,
    local_processes,
    on,
    owner,
    processed_partitions,
    rows_of,
    take,
    tiny_partitions,
    until,
)

PAUSE = 0.03  # seconds of a block: a pass of eight partitions takes half a second
LEAVE_TIMEOUT = {"dfact.leave-timeout": f"{WAIT:g}s"}  # workers end because of what happens, not because of the clock


def command(folder: str, settings: dict[str, Any], address: str, name: str) -> None:
    """Run the command `dask worker` in a new process."""
    from distributed.cli.dask_worker import main

    from benchmarks.faults.fits import _serve  # noqa: F401  # the module that the fork server has imported
    from dfact.engine.cluster import leaving

    leaving._ANSWER_SECONDS = WAIT  # of a scheduler on a busy machine
    with small_partitions(), dask.config.set(settings["config"]):
        arguments = ["--no-nanny", "--nthreads", "1", "--memory-limit", "2GiB", "--local-directory", folder, "--host", "127.0.0.1"]
        main([address, *arguments, "--name", name, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"], standalone_mode=False)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A cluster of workers that the command has started."""
    with Processes(tmp_path_factory.mktemp("cluster"), LEAVE_TIMEOUT) as processes:
        processes.start(0)
        yield processes


def start(processes: Processes, n: int) -> None:
    """Start so many further workers."""
    for _ in range(n):
        name = f"command-{uuid4().hex}"
        processes._start(name, command, processes.address, name)


@contextmanager
def workers(processes: Processes, n: int) -> Iterator[Client]:
    processes.kill(*processes.workers)  # those that have got a notice may still be there
    start(processes, n)
    with Client(processes.address, set_as_default=False) as client:
        until(lambda: {info["name"] for info in worker_infos(client).values()} == set(processes.workers))
        yield client


def name_of(client: Client, address: str) -> str:
    return str(worker_infos(client)[address]["name"])


@contextmanager
def amid(folder: Path, number: int, partition: int, action: Callable[[], Any]) -> Iterator[None]:
    """Call the action while this pass runs, after this partition."""

    def is_processed() -> bool:
        return processed_partitions(folder)[number, partition] > 0

    def act() -> None:
        until(lambda: is_processed() or ended.is_set())
        if is_processed():
            action()

    ended = threading.Event()
    acting = threading.Thread(target=act)
    acting.start()
    try:
        yield
    finally:
        ended.set()
        acting.join()


def test_sums_of_segments_that_were_handed_over_are_discarded_with_lost_partitions() -> None:
    """Partitions 3 and 4, of the second segment, have leaves 4 and 5."""
    with tiny_partitions():
        source = ConcatenatedSource(tuple(ArraySource(np.zeros((rows, 16), np.uint8)) for rows in (1200, 900)))
        found = partitions(source, None, None)
    assert found.layout.partition_ranges == [range(3), range(3, 5)]
    with inside(1) as client:
        executor = DistributedExecutor(client)
        with executor.open(found, make_plan(source, FLOAT32, FOOTPRINT, executor.workers(None), found.layout)) as session:
            sums = session.run(RunPass(Walk(), np.float32(1)))
            [worker] = session._workers.owners
            for lost, runs, kept in ((range(2, 3), [range(5)], 1), (range(4, 5), [range(3)], 0)):
                worker.runs, session._handed_over = [range(5)], [{(1, 2): sums}]
                session._discard_handed_over([lost])
                assert worker.runs == runs
                assert [len(nodes) for nodes in session._handed_over] == [kept]


@pytest.mark.faults
@pytest.mark.cluster
class TestNotices:
    @pytest.mark.further
    @pytest.mark.parametrize("partition", [0, 12])
    def test_sigterm_during_a_pass_moves_partitions(self, partition: int, commands: Processes, tmp_path: Path) -> None:
        pass_ = Walk(str(tmp_path), pause=PAUSE)
        with workers(commands, 3) as client, on(client) as session:
            sums = take(session, pass_, [1])
            leaver = owner(session, partition)  # the root of the tree, or another
            process = commands.running[name_of(client, leaver)]
            with amid(tmp_path, 2, partition, lambda: commands.send(SIGTERM, name_of(client, leaver))):
                sums += take(session, pass_, [2, 3])
            process.join(WAIT)
            assert process.exitcode == 0
            sums += take(session, pass_, [4])
            assert leaver not in {worker.address for worker in session._workers.all}
            assert (sums, rows_of(session)) == inline(4)
        assert not again(tmp_path)

    @pytest.mark.further
    def test_retirement_moves_partitions(self, commands: Processes, tmp_path: Path) -> None:
        pass_ = Walk(str(tmp_path), pause=PAUSE)
        with workers(commands, 3) as client, on(client) as session, Client(commands.address, set_as_default=False) as other:
            sums = take(session, pass_, [1])
            first = owner(session, 12)
            other.retire_workers([first])
            session._next_poll = 0.0
            sums += take(session, pass_, [2])
            assert first not in {worker.address for worker in session._workers.owners}
            second = owner(session, 12)
            with amid(tmp_path, 3, 12, lambda: other.retire_workers([second])):
                sums += take(session, pass_, [3, 4])
            assert len(session._workers.all) == 1
            assert (sums, rows_of(session)) == inline(4)
        assert not again(tmp_path)

    @pytest.mark.exhaustive
    def test_loss_of_the_new_owner_is_recovered(self, commands: Processes, tmp_path: Path) -> None:
        pass_ = Walk(str(tmp_path), pause=PAUSE, kills=(Kill(2, 23),))
        with workers(commands, 3) as client, on(client) as session:
            sums = take(session, pass_, [1])
            leaver = name_of(client, owner(session, 8))
            with amid(tmp_path, 2, 8, lambda: commands.send(SIGTERM, leaver)):
                sums += take(session, pass_, [2])
            assert kills_done(tmp_path) == 1
            assert len(session._workers.all) == 1
            sums += take(session, pass_, [3])
            assert (sums, rows_of(session)) == inline(3)
        assert again(tmp_path) >= set(range(17, 23))

    @pytest.mark.further
    def test_notice_to_all_workers_writes_a_checkpoint(self, commands: Processes, tmp_path: Path) -> None:
        pass_, checkpoint = Walk(str(tmp_path), pause=PAUSE), tmp_path / "checkpoint"
        with workers(commands, 2) as client, CheckpointedSession(on(client), checkpoint, 1000, {}) as session:
            sums = take(session, pass_, [1])
            names = list(commands.workers)

            def stop() -> None:
                for name in names:
                    commands.send(SIGTERM, name)

            with amid(tmp_path, 2, 0, stop):
                sums += take(session, pass_, [2])
            until(lambda: session._session.save_due)
            start(commands, 2)
            sums += take(session, pass_, [3, 4, 5])
            assert resume_point(checkpoint) in {2, 3}
            for name in names:
                commands.running[name].join(WAIT)
                assert commands.running[name].exitcode == 0
            assert (sums, rows_of(session)) == inline(5)
        assert not again(tmp_path)

    @pytest.mark.further
    def test_workers_stay_for_a_stopped_driver(self, commands: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pass_ = Walk(str(tmp_path), pause=PAUSE)
        with workers(commands, 2) as client:
            with on(client) as session:
                sums = take(session, pass_, [1])
                leaver = commands.workers[0]
                monkeypatch.setattr(signals, "requested_signal", lambda: SIGTERM)
                with amid(tmp_path, 2, 0, lambda: commands.send(SIGTERM, leaver)):
                    sums += take(session, pass_, [2, 3])
                assert (sums, rows_of(session)) == inline(3)
                assert len(session._workers.owners) == 2
                assert commands.running[leaver].is_alive()
            commands.running[leaver].join(WAIT)
            assert commands.running[leaver].exitcode == 0
        assert not again(tmp_path)


@pytest.mark.further
@pytest.mark.faults
@pytest.mark.cluster
def test_scaling_down_moves_partitions(tmp_path: Path) -> None:
    pass_ = Walk(str(tmp_path), pause=PAUSE)
    with dask.config.set(LEAVE_TIMEOUT), local_processes(3) as (cluster, client), on(client) as session:
        sums = take(session, pass_, [1])
        with amid(tmp_path, 2, 0, lambda: cluster.scale(2)):
            sums += take(session, pass_, [2, 3])
        until(lambda: len(session._workers.all) == 2 or take(session, Walk(), []))
        sums += take(session, pass_, [4])
        assert (sums, rows_of(session)) == inline(4)
        assert len(session._workers.all) == 2
    assert not again(tmp_path)


@pytest.mark.parametrize(("answer", "expected"), [("late", True), ("none", False), ("closed", False), ("given up", False)])
def test_a_worker_waits_for_a_driver_as_long_as_a_scheduler_may_know_one(
    answer: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get_task_status(keys: list[str]) -> dict[str, Any]:
        if answer == "late":
            await asyncio.Event().wait()
        if answer == "none":
            raise OSError("refused")
        if answer == "closed":
            raise RuntimeError("the pool is closed")
        return dict.fromkeys(keys)

    monkeypatch.setattr(leaving, "_ANSWER_SECONDS", 0.01)
    worker: Any = SimpleNamespace(scheduler=SimpleNamespace(get_task_status=get_task_status))
    assert asyncio.run(leaving._is_expected(worker, ["shard"])) is expected
