"""The demand that a fit shows: clusters that adapt grow for it and shrink after it, wherever they are scaled; others stay as they are."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from distributed import Client, LocalCluster

from benchmarks.faults.fits import FORKSERVER, small_partitions
from dfact.data.sources.dask import worker_infos
from tests.engine.test_cluster_session import (
    _LOCAL,
    Walk,
    _attentive,  # noqa: F401  # a fixture
    _small,  # noqa: F401  # a fixture
    inline,
    inside,
    on,
    rows_of,
    take,
    tasks,
    until,
)


def adapt(sender: Any) -> None:
    """Run a cluster that adapts until this process is ended."""
    with (
        small_partitions(),
        LocalCluster(n_workers=0, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", **_LOCAL) as cluster,
    ):
        cluster.adapt(minimum=0, maximum=3, interval="50ms", wait_count=1)
        sender.send(cluster.scheduler_address)
        time.sleep(1000)


@contextmanager
def adaptive() -> Iterator[str]:
    """The address of a cluster in another process."""
    receiver, sender = FORKSERVER.Pipe(duplex=False)
    process = FORKSERVER.Process(target=adapt, args=(sender,), daemon=True)
    process.start()
    try:
        yield receiver.recv()
    finally:
        process.kill()
        process.join()


def demanded(dask_scheduler: Any) -> bool:
    return any(str(key).startswith("dfact-demand") for key in dask_scheduler.tasks)


def workers_of(client: Client) -> int:
    return len(worker_infos(client))


@pytest.mark.further
@pytest.mark.process
@pytest.mark.cluster
def test_cluster_scaled_by_another_process_grows() -> None:
    with adaptive() as address, Client(address, set_as_default=False) as client:
        assert workers_of(client) == 0
        with on(client) as session:
            until(lambda: workers_of(client) == 3)
            session._next_poll = 0.0
            sums = take(session, Walk(), [1, 2, 3])
            assert (sums, rows_of(session)) == inline(3)
        until(lambda: workers_of(client) == 0)
        assert not client.run_on_scheduler(tasks)


def test_cluster_of_fixed_size_stays_unchanged() -> None:
    with inside(2) as client:
        with on(client) as session:
            # The tasks reach the scheduler after a while, all at once. Threads, of one worker each: one for every four partitions.
            until(lambda: client.run_on_scheduler(demanded))
            # The tasks that keep the shards open count as well once they run, as less than a thread.
            assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.adaptive_target()) in (24 // 4, 24 // 4 + 1)
            take(session, Walk(), [1])
            assert workers_of(client) == 2
        until(lambda: not client.run_on_scheduler(tasks))
