"""Workers that get a notice: their partitions move with their state to the others before they end, and nothing is recomputed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any
from uuid import uuid4

import pytest
from distributed import Client

from benchmarks.faults.fits import Processes, small_partitions
from dfact import signals
from dfact.engine.checkpoint import CheckpointedSession, resume_point
from tests.engine.test_cluster_session import (
    Kill,
    Walk,
    _attentive,  # noqa: F401  # a fixture
    _small,  # noqa: F401  # a fixture
    again,
    inline,
    kills_done,
    local_processes,
    on,
    owner,
    processed_partitions,
    rows_of,
    take,
    until,
)

PAUSE = 0.03  # seconds of a block: a pass of eight partitions takes half a second


def command(folder: str, settings: dict[str, Any], address: str, name: str) -> None:
    """Run the command `dask worker` in a new process."""
    import dask
    from distributed.cli.dask_worker import main

    from benchmarks.faults.fits import _serve  # noqa: F401  # the module that the fork server has imported

    with small_partitions(), dask.config.set(settings["config"]):
        arguments = ["--no-nanny", "--nthreads", "1", "--memory-limit", "2GiB", "--local-directory", folder, "--host", "127.0.0.1"]
        main([address, *arguments, "--name", name, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"], standalone_mode=False)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A cluster of workers that the command has started."""
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        processes.start(0)
        yield processes


def start(processes: Processes, n: int) -> None:
    """Start so many further workers."""
    for _ in range(n):
        name = f"command-{uuid4().hex}"
        processes._start(name, command, processes.address, name)


@contextmanager
def workers(processes: Processes, n: int) -> Iterator[Client]:
    processes.kill(*(name for name in processes.workers if not processes.running[name].is_alive()))
    start(processes, n - len(processes.workers))
    with Client(processes.address, set_as_default=False) as client:
        until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == n)
        yield client


def name_of(client: Client, address: str) -> str:
    return str(client.scheduler_info(n_workers=-1)["workers"][address]["name"])


@contextmanager
def amid(folder: Path, number: int, partition: int, action: Callable[[], Any]) -> Iterator[None]:
    """Call the action while this pass runs, after this partition."""

    def act() -> None:
        until(lambda: processed_partitions(folder)[number, partition])
        action()

    acting = threading.Thread(target=act)
    acting.start()
    yield
    acting.join()


@pytest.mark.faults
@pytest.mark.cluster
class TestNotices:
    @pytest.mark.parametrize("partition", [0, 12])
    def test_sigterm_amid_a_pass(self, partition: int, commands: Processes, tmp_path: Path) -> None:
        pass_ = Walk(str(tmp_path), pause=PAUSE)
        with workers(commands, 3) as client, on(client) as session:
            sums = take(session, pass_, [1])
            leaver = owner(session, partition)  # the root of the tree, or another
            process = commands.running[name_of(client, leaver)]
            with amid(tmp_path, 2, partition, lambda: commands.send(SIGTERM, name_of(client, leaver))):
                sums += take(session, pass_, [2, 3])
            process.join(30)
            assert process.exitcode == 0
            sums += take(session, pass_, [4])
            assert leaver not in {worker.address for worker in session._workers.all}
            assert (sums, rows_of(session)) == inline(4)
        assert not again(tmp_path)

    def test_retirement_between_passes_and_amid_one(self, commands: Processes, tmp_path: Path) -> None:
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

    def test_the_loss_of_a_worker_that_took_over(self, commands: Processes, tmp_path: Path) -> None:
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

    def test_all_at_once(self, commands: Processes, tmp_path: Path) -> None:
        pass_, checkpoint = Walk(str(tmp_path), pause=PAUSE), tmp_path / "checkpoint"
        with workers(commands, 2) as client, CheckpointedSession(on(client), checkpoint, 1000, {}) as session:
            sums = take(session, pass_, [1])
            names = list(commands.workers)

            def stop() -> None:
                for name in names:
                    commands.send(SIGTERM, name)

            with amid(tmp_path, 2, 0, stop):
                sums += take(session, pass_, [2])
            until(lambda: session._session.ends_soon)
            start(commands, 2)
            sums += take(session, pass_, [3, 4, 5])
            assert resume_point(checkpoint) in {2, 3}
            for name in names:
                commands.running[name].join(30)
                assert commands.running[name].exitcode == 0
            assert (sums, rows_of(session)) == inline(5)
        assert not again(tmp_path)

    def test_the_driver_is_stopped_as_well(self, commands: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            commands.running[leaver].join(30)
            assert commands.running[leaver].exitcode == 0
        assert not again(tmp_path)


@pytest.mark.faults
@pytest.mark.cluster
def test_a_cluster_that_is_scaled_down(tmp_path: Path) -> None:
    pass_ = Walk(str(tmp_path), pause=PAUSE)
    with local_processes(3) as (cluster, client), on(client) as session:
        sums = take(session, pass_, [1])
        with amid(tmp_path, 2, 0, lambda: cluster.scale(2)):
            sums += take(session, pass_, [2, 3])
        until(lambda: len(session._workers.all) == 2 or take(session, Walk(), []))
        sums += take(session, pass_, [4])
        assert (sums, rows_of(session)) == inline(4)
        assert len(session._workers.all) == 2
    assert not again(tmp_path)
