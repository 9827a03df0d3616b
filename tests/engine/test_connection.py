"""Waits of a driver before it starts, and the message to its workers at the end."""

import asyncio
import atexit
import gc
import logging
import pickle
import tempfile
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.core import ConnectionPool
from sklearn.base import clone

import dfact
from benchmarks.faults.fits import PATIENCE, Processes, forked_workers
from dfact.data.lazy_results import client_of_cluster, exit_quickly
from dfact.data.sources.dask import worker_infos
from dfact.engine.cluster.certificate_names import ClusterSecurity
from dfact.engine.cluster.connection import client_at, connect
from dfact.engine.cluster.dismissal import FILE, dismiss_workers
from dfact.engine.cluster.watchdog import Watchdog
from dfact.errors import ClusterError, DfactError, ParameterError
from tests.conftest import planted_answers


def test_driver_starts_with_the_expected_workers(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "dfact.cluster"),
        dask.config.set({"dfact.expected-workers": 2}),
        connect(cluster.scheduler_address, ClusterSecurity()) as client,
    ):
        assert len(worker_infos(client)) == 2
    assert not [record for record in caplog.records if "waiting" in record.getMessage()]


def test_driver_logs_what_it_waits_for(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"dfact.expected-workers": 3, "dfact.worker-timeout": "200ms"}
    with (
        caplog.at_level(logging.INFO, "dfact.cluster"),
        dask.config.set(settings),
        pytest.raises(DfactError, match=r"has 2 of 3 workers after 0\.2 s; start some with: dask worker .*fewer, lower dfact.expected-w"),
        connect(cluster.scheduler_address, ClusterSecurity()),
    ):
        pass
    [waiting] = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert waiting == "2 of 3 workers have joined; waiting for the others, at most 0.2 s in total (dfact.expected-workers)"


def test_polls_of_the_client_hide_no_workers(cluster: LocalCluster) -> None:
    """Dask's clients poll the scheduler without its workers, and Client.scheduler_info may return what such a poll has found."""
    with dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}), Client(cluster, set_as_default=False) as client:
        assert {len(worker_infos(client)) for _ in range(300)} == {2}


def test_copies_of_an_estimator_reach_the_cluster_of_its_client(cluster: LocalCluster) -> None:
    X = planted_answers(4100, 6, 2, 0)
    expected = dfact.ICQF(2, random_state=0, max_iter=3, executor="inline").fit(X).components_
    with Client(cluster, set_as_default=False) as client:
        model = dfact.ICQF(2, random_state=0, max_iter=3, executor=client)
        assert clone(model).executor is client
        copied = pickle.loads(pickle.dumps(model))
        assert copied.executor == deepcopy(model).executor == cluster.scheduler_address
        returned = client.submit(_fit_stored, X).result()
    np.testing.assert_array_equal(returned.components_, expected)
    assert isinstance(returned.factors_, np.ndarray)  # the temporary folder was the worker's
    np.testing.assert_array_equal(copied.fit(X).components_, expected)  # connects by the address, and stays connected
    assert client_at(cluster.scheduler_address) is client_at(cluster.scheduler_address)
    with pytest.raises(ClusterError, match=r"the Dask client is closed, .*or run in this process: set_params\(executor=None\)"):
        model.fit(X)
    np.testing.assert_array_equal(model.set_params(executor=None).fit(X).components_, expected)


def test_an_executor_may_be_a_cluster(cluster: LocalCluster) -> None:
    X = planted_answers(4100, 6, 2, 0)
    expected = dfact.ICQF(2, random_state=0, max_iter=3, executor="inline").fit(X).components_
    model = dfact.ICQF(2, random_state=0, max_iter=3, executor=cluster)
    np.testing.assert_array_equal(model.fit(X).components_, expected)
    assert clone(model).executor is cluster
    assert pickle.loads(pickle.dumps(model)).executor == deepcopy(model).executor == cluster.scheduler_address
    with Client(cluster) as client:
        assert client_of_cluster(cluster) is client, "the active one"
    assert client_of_cluster(cluster) is client_of_cluster(cluster) is not client
    assert client_of_cluster(client) is client_of_cluster(None) is client_of_cluster("threads") is None


def test_tables_are_imported_on_a_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n3,4\n" * 50)
    imported = [
        dfact.import_table(tmp_path / "a.csv", tmp_path / f"{i}.zarr", items="*", executor=each)
        for i, each in enumerate((cluster, "inline"))
    ]
    assert imported[0].fingerprint == imported[1].fingerprint


@pytest.mark.parametrize("processes", [True, False])
def test_what_is_left_of_a_closed_cluster_does_not_wait(processes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies have the address where nothing listens any more, none in this process; both errors name the way out."""
    X, out = planted_answers(4100, 6, 2, 0), r"run (here|in this process): set_params\(executor=None\)"
    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": processes, "dashboard_address": "127.0.0.1:0"}
    with forked_workers(), LocalCluster(**settings) as cluster, Client(cluster) as client:
        model = dfact.PCA(2, executor=client).fit(X)
        copied, of_cluster = pickle.loads(pickle.dumps(model)), deepcopy(model).set_params(executor=cluster)
    assert copied.executor == (cluster.scheduler_address if processes else None)
    monkeypatch.setattr("dfact.engine.cluster.connection.probe_scheduler", lambda *_: pytest.fail("waits for ten seconds"))
    for each in (model, of_cluster, copied) if processes else (model, of_cluster):
        with pytest.raises(DfactError, match=out):
            each.transform(X)
    for each in (model, of_cluster, copied):
        assert pickle.loads(pickle.dumps(each)).executor == (copied.executor if each is copied else None)
        np.testing.assert_array_equal(each.set_params(executor=None).transform(X), dfact.PCA(2, executor="inline").fit(X).transform(X))


def _count_frozen_at_exit(path: str) -> None:
    def write() -> None:
        Path(path).write_text(str(gc.get_freeze_count()))

    atexit.register(write)  # the first to be registered is the last to run


@pytest.mark.parametrize("use", ["fit", "lazy transform"])
def test_workers_end_without_a_search_for_cycles(use: str, tmp_path: Path) -> None:
    """It takes seconds on a busy machine, after which Dask kills the worker."""
    X = planted_answers(4100, 6, 2, 0)
    settings = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**settings) as cluster, Client(cluster) as client:
        client.run(_count_frozen_at_exit, str(tmp_path / "count"))
        if use == "fit":
            dfact.PCA(2, executor=client).fit(X)
        else:
            dfact.PCA(2, executor="inline").fit(X).transform(da.from_array(X, chunks=(1000, 6))).compute()
    assert int((tmp_path / "count").read_text()) > 10_000


def test_this_process_ends_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atexit.register", lambda *_: pytest.fail("of the user's process"))
    exit_quickly()


def _fit_stored(X: np.ndarray) -> dfact.ICQF:
    with tempfile.TemporaryDirectory() as folder:
        return dfact.ICQF(2, random_state=0, max_iter=3, executor="inline").fit(dfact.import_array(X, f"{folder}/x.zarr"))


def test_an_asynchronous_client_is_refused_and_a_running_loop_is_not(cluster: LocalCluster) -> None:
    X = planted_answers(4100, 6, 2, 0)

    async def fit(*, asynchronous: bool) -> dfact.ICQF:
        if asynchronous:
            async with Client(cluster.scheduler_address, asynchronous=True, set_as_default=False) as client:
                return dfact.ICQF(2, max_iter=3, executor=client).fit(X)
        return dfact.ICQF(2, max_iter=3, executor=cluster.scheduler_address).fit(X)  # as in a cell of a notebook

    with pytest.raises(ParameterError, match=r"the Dask client is asynchronous.*expected a synchronous one"):
        asyncio.run(fit(asynchronous=True))
    assert asyncio.run(fit(asynchronous=False)).n_iter_ == 3


@pytest.mark.cluster
def test_dismissed_workers_leave_a_file_in_their_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    with Processes(tmp_path) as processes:
        processes.start(0)
        for folder in folders:
            folder.mkdir()
            monkeypatch.setenv("TMPDIR", str(folder))
            processes.start_worker()
        with Client(processes.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=PATIENCE)
        assert dismiss_workers(processes.address) == 2
        assert all((folder / FILE).exists() for folder in folders)


@pytest.mark.parametrize("query", ["workers", "progress", "work"])
@pytest.mark.parametrize("status", ["closing", "running"])
def test_a_client_that_closes_during_a_wait_has_lost_its_scheduler(query: str, status: str) -> None:
    async def wait() -> None:
        pool = ConnectionPool()
        client = SimpleNamespace(status="running", scheduler=pool("tcp://127.0.0.1:1"))
        watchdog, asked = Watchdog(client), asyncio.Event()  # type: ignore[arg-type]  # as far as a wait needs a client

        async def close() -> None:
            client.status = status
            await pool.close()

        async def workers() -> dict[str, int] | None:
            if query == "workers":
                await close()
                return await Watchdog.workers(watchdog)
            return {"a": 1}

        async def progress() -> tuple[int, float]:
            asked.set()
            if query == "progress":
                await close()
                await client.scheduler.ncores()
            return 0, 0.0

        async def work() -> None:
            await asked.wait()
            if query == "work":
                await close()
                await client.scheduler.ncores()
            await asyncio.Event().wait()

        watchdog.workers = workers  # type: ignore[method-assign]
        watchdog._progress_timeout = 1e-3  # the first poll asks for progress
        await watchdog.wait(work(), progress)

    with pytest.raises(RuntimeError, match="ConnectionPool is closed" if status == "running" else "scheduler is lost") as caught:
        asyncio.run(wait())
    assert isinstance(caught.value, ClusterError) is (status == "closing")
