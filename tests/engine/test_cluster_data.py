"""What a cluster does with data: dask arrays stay on it, rows are written by who holds them, adaptive clusters grow."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import dfact
from benchmarks.faults.fits import SOLVERS, bits, forked_workers, small_partitions
from dfact.data.sources.dask import worker_infos
from dfact.engine.cluster.rows import marker, reaches
from dfact.engine.cluster.session import ClusterSession
from tests.conftest import CutRows, planted_answers


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_partitions():
        yield


@contextmanager
def local_cluster(n_workers: int) -> Iterator[tuple[LocalCluster, Client]]:
    with (
        forked_workers(),
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield cluster, client


def gathered_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each array that comes to the driver as the result of a task."""
    sizes: list[int] = []
    gather = Client._gather_remote

    async def noted(self: Client, *arguments: Any) -> Any:
        found = await gather(self, *arguments)
        sizes.extend(value.nbytes for value in found.get("data", {}).values() if isinstance(value, np.ndarray))
        return found

    monkeypatch.setattr(Client, "_gather_remote", noted)
    return sizes


def lazy(X: NDArray[Any], rows: int) -> da.Array:
    """X in uneven chunks, some of its columns each."""
    return da.from_array(X, chunks=(rows, *(max(1, size // 2) for size in X.shape[1:])))


@pytest.mark.further
@pytest.mark.parametrize(("name", "rows"), list(zip(SOLVERS, [123, 700, 5000, 300, 451, 200, 333, 640, 70, 400], strict=True)))
def test_fits_of_dask_arrays_have_the_bits_of_those_in_memory(
    name: str, rows: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = SOLVERS[name]
    X = solver.data(1)
    expected = bits(solver.make(executor="inline").fit(X))
    sizes = gathered_bytes(monkeypatch)
    with client.as_current():
        found = bits(solver.make().fit(lazy(X, rows)))
    assert found == expected
    assert not sizes, "no chunk came to the driver"


@pytest.mark.further
@pytest.mark.cluster
def test_a_dask_array_survives_the_loss_of_its_worker() -> None:
    X = planted_answers(3000, 40, 4, 0, 0.1).astype(np.float32)
    expected = bits(dfact.ICQF(3, max_iter=8, tol=0, executor="inline").fit(X))
    with local_cluster(2) as (_, client):

        def kill(iteration: Any) -> None:
            if iteration.number == 3:
                victim = next(iter(worker_infos(client)))
                with pytest.raises(Exception):  # noqa: B017, PT011  # however Dask says that it is gone
                    client.run(os._exit, 1, workers=[victim])

        assert bits(dfact.ICQF(3, max_iter=8, tol=0, executor=client, callbacks=[kill]).fit(lazy(X, 500))) == expected


@pytest.mark.further
def test_workers_write_their_rows(client: Client, tmp_path: Path, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_rows(block_entries=1 << 10, partition_entries=1 << 10, chunk_entries=1 << 10)  # chunks of factors that two workers share
    X = planted_answers(3001, 40, 4, 1, 0.1)
    stored = dfact.import_array(X, tmp_path / "x.zarr")
    here = dfact.ICQF(3, max_iter=4, tol=0, executor="inline").fit(stored)
    written: list[bool] = []
    write = ClusterSession._write
    monkeypatch.setattr(ClusterSession, "_write", lambda *arguments: written.append(write(*arguments)) or written[-1])
    monkeypatch.setattr(ClusterSession, "rows", None)  # nothing comes to the driver
    there = dfact.ICQF(3, max_iter=4, tol=0, executor=client).fit(stored)
    assert isinstance(there.factors_, zarr.Array)
    assert there.factors_.nchunks > 2
    there.transform(stored, out=tmp_path / "w.zarr")
    assert written == [True, True]
    for found in (there.factors_, zarr.open_array(tmp_path / "w.zarr")):
        np.testing.assert_array_equal(found[:], here.factors_[:])
    assert not [path for path in (tmp_path / "w.zarr").iterdir() if path.name.startswith("reached")]


@pytest.mark.further
def test_the_driver_writes_what_workers_do_not_reach(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = planted_answers(3001, 40, 4, 2, 0.1)
    stored = dfact.import_array(X, tmp_path / "x.zarr")
    here = dfact.ICQF(3, max_iter=4, tol=0, executor="inline").fit(stored)
    monkeypatch.setattr(ClusterSession, "_write", lambda *_: False)
    there = dfact.ICQF(3, max_iter=4, tol=0, executor=client).fit(stored)
    np.testing.assert_array_equal(there.factors_[:], here.factors_[:])


def test_the_marker_is_found_by_processes_that_reach_the_same_store(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(4, 2), dtype=float)
    other = zarr.create_array(tmp_path / "b.zarr", shape=(4, 2), dtype=float)
    with marker(array) as name:
        assert reaches(zarr.open_array(tmp_path / "a.zarr"), name)
        assert not reaches(other, name)
    assert not reaches(array, name)
    assert [path.name for path in (tmp_path / "a.zarr").iterdir()] == ["zarr.json"]


@pytest.mark.further
@pytest.mark.cluster
def test_an_adaptive_cluster_grows_for_a_fit_and_shrinks_after_it() -> None:
    X = planted_answers(3000, 40, 4, 3, 0.1)
    expected = bits(dfact.ICQF(3, max_iter=100, tol=0, executor="inline").fit(X))
    with local_cluster(0) as (cluster, client):
        cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=2)
        grown: list[int] = []

        def wait(iteration: Any) -> None:
            if iteration.number == 1:
                client.wait_for_workers(2, timeout=200)
            grown.append(len(worker_infos(client)))

        assert bits(dfact.ICQF(3, max_iter=100, tol=0, executor=client, callbacks=[wait]).fit(X)) == expected
        assert grown[-1] == 2, "what the fit needs is not taken away"
        for _ in range(1000):
            if not worker_infos(client):
                break
            client.sync(client.scheduler.identity)
        assert not client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.unrunnable)


@pytest.mark.further
def test_the_dashboard_shows_what_workers_do(client: Client) -> None:
    def metrics(dask_worker: Any) -> dict[str, float]:
        # Not by get_metrics: the worker's next heartbeat would miss what that takes away, and close the worker.
        return {name: metric(dask_worker) for name, metric in dask_worker.metrics.items() if str(name).startswith("dfact")}

    dfact.ICQF(3, max_iter=4, tol=0, executor=client).fit(planted_answers(3000, 40, 4, 4))
    for found in client.run(metrics).values():
        assert found["dfact passes"] >= 4
        assert found["dfact partitions"] >= found["dfact passes"]
        assert found["dfact rows/s"] > 0
