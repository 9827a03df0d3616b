"""Fits that share the workers of a cluster: each sees what the others have reserved, and a worker never grants more than it has."""

import threading
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from benchmarks.faults.fits import Processes
from dfact.data.sources.base import ArraySource
from dfact.data.sources.dask import worker_infos
from dfact.engine.cluster import reservation as reservation_module
from dfact.engine.cluster.reservation import reservations
from dfact.engine.cluster.session import ClusterSession, DistributedExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.errors import ClusterError, MemoryPlanError
from tests.engine.test_cluster_session import (
    WAIT,
    Walk,
    _attentive,  # noqa: F401  # a fixture
    _small,  # noqa: F401  # a fixture
    inline,
    on,
    rows_of,
    take,
    two_attempts,
    until,
    workers,
)

MEMORY, PART = 2 << 30, 500 << 20  # of a worker, and what a fit adds: two of them exceed the 60% that fits may use


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers that wait for the reservations however busy the machine is: without an answer they would see none."""
    monkeypatch.setattr(reservation_module, "_ANSWER_SECONDS", WAIT)


def held(client: Client) -> list[int]:
    return [reservation.size for found in reservations(client).values() for reservation in found]


@pytest.mark.further
@pytest.mark.faults
@pytest.mark.cluster
def test_a_second_fit_sees_what_the_first_reserves(processes: Processes) -> None:
    with workers(processes, 2) as one, Client(processes.address, set_as_default=False) as other:
        alone = DistributedExecutor(other).workers(None)
        session = on(one, working=PART)
        with session:
            take(session, Walk(), [1])
            beside = DistributedExecutor(other).workers(None)
            assert alone.limit - beside.limit == session._workers._reservation.size >= PART
            assert "by a fit of" in beside.limit_source
            assert not alone.limit_source
            source = ArraySource(np.zeros((1000, 16), np.uint8))
            with pytest.raises(MemoryPlanError, match=r"memory that others hold on worker tcp://.* by a fit of \d+×16 of process"):
                make_plan(source, np.dtype(np.float32), Footprint(8, 8, 600 << 20, 0), beside).check()
            make_plan(source, np.dtype(np.float32), Footprint(8, 8, 1000, 0), beside).check()
            with two_attempts(), on(other, working=PART) as second:  # noqa: SIM117
                with pytest.raises(
                    ClusterError, match=r"no worker .*could join: .*needs 0.49 GiB, expected at most .* others hold .* by a fit of"
                ):
                    take(second, Walk(), [1])
            with on(other, working=PART // 4) as second:  # the rest is enough
                take(second, Walk(), [1])
                assert len(held(one)) == 4
        until(lambda: not held(other))
        assert DistributedExecutor(other).workers(None) == alone


@pytest.mark.further
@pytest.mark.faults
@pytest.mark.cluster
def test_reservations_end_with_a_lost_driver(processes: Processes) -> None:
    with workers(processes, 2) as client:
        lost = Client(processes.address, set_as_default=False)
        session = on(lost, working=PART)
        with session:
            take(session, Walk(), [1])
            assert len(held(client)) == 2
            lost.close()
            until(lambda: not held(client))


@pytest.mark.faults
@pytest.mark.cluster
def test_one_of_two_simultaneous_fits_is_refused(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    """Their drivers have not seen each other, so each worker refuses one of them, which takes the workers that are left, or waits."""
    found: dict[int, Any] = {}
    together = threading.Barrier(2)

    def fit(number: int, session: ClusterSession) -> None:
        with session:
            together.wait(WAIT)  # both have asked all workers
            found[number] = take(session, Walk(), [1, 2, 3]), rows_of(session)

    with (
        dask.config.set({"dfact.worker-timeout": f"{WAIT:g}s"}),
        workers(processes, 2) as one,
        Client(processes.address, set_as_default=False) as other,
    ):
        addresses = sorted(worker_infos(one))
        threads = [threading.Thread(target=fit, args=(number, on(client, working=PART))) for number, client in enumerate((one, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {0: inline(3), 1: inline(3)}
    refusals = [message for message in caplog.messages if "cannot join" in message and "others hold" in message]
    assert all(any(address in message for message in refusals) for address in addresses)
