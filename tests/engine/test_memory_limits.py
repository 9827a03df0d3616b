"""Workers with little memory: a fit is refused before it starts, or it keeps to its plan, and Dask neither spills, pauses nor kills."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster

import dfact
from benchmarks.faults.fits import forked_workers
from dfact.data.sources.dask import worker_infos
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.engine.memory_plan import Plan, WorkerResources, cluster_workers
from dfact.errors import MemoryPlanError
from tests.cases import exhaustive_unless

pytestmark = [pytest.mark.faults, pytest.mark.cluster]
THREADS = 2


def answers() -> Any:
    return np.concatenate(list(PlantedQuestionnaire(60_000, 200, 4, missing=0).chunks(60_000)))


def measurements() -> Any:
    rng = np.random.default_rng(0)
    X = (rng.random((60_000, 3)) @ rng.random((3, 200)) + rng.standard_exponential((60_000, 200))).astype(np.float32)
    X[rng.random(X.shape, np.float32) < 0.3] = np.nan
    return X


def ratings() -> Any:
    rng = np.random.default_rng(0)
    n, m = 60_000, 400
    positions = np.flatnonzero(rng.random(n * m, np.float32) < 0.06)
    return sp.csr_array((rng.integers(1, 6, len(positions)).astype(np.float32), np.divmod(positions, m)), shape=(n, m))


def memberships() -> Any:
    rng = np.random.default_rng(0)
    shares = np.vstack([np.eye(3)[rng.integers(0, 3, 30_000)], rng.dirichlet([1, 1, 1], 30_000)])
    return rng.binomial(4, shares @ rng.random((3, 100))).astype(np.uint8)


def genotypes() -> Any:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(4, 0.3), 4_000)
    frequencies = (shares @ rng.uniform(0.05, 0.95, (4, 8_000))).astype(np.float32)
    return sum((rng.random(frequencies.shape, np.float32) < frequencies).view(np.uint8) for _ in range(2))


def waves() -> Any:
    rng = np.random.default_rng(0)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 3), np.float32) for size in (40_000, 40, 5)))
    X[rng.random(X.shape, np.float32) < 0.2] = np.nan
    return X


MAKERS: dict[str, Callable[[], Any]] = {made.__name__: made for made in (answers, measurements, ratings, memberships, genotypes, waves)}
SHORT: dict[str, Any] = {"max_iter": 3, "tol": 0}
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "ICQF mm": ("answers", lambda: dfact.ICQF(8, solver="mm", **SHORT)),
    "ICQF admm": ("answers", lambda: dfact.ICQF(8, solver="admm", **SHORT)),
    "NMF, divergence": ("answers", lambda: dfact.NMF(8, loss="kullback-leibler", **SHORT)),
    "NMF": ("answers", lambda: dfact.NMF(8, **SHORT)),
    "FactorAnalysis": ("answers", lambda: dfact.FactorAnalysis(3)),
    "PCA": ("measurements", lambda: dfact.PCA(8, **SHORT)),
    "GradeOfMembership": ("memberships", lambda: dfact.GradeOfMembership(3)),
    "Admixture": ("genotypes", lambda: dfact.Admixture(8, **SHORT)),
    "ExpectileMF surrogate": ("measurements", lambda: dfact.ExpectileMF(5, tau=0.2, ridge=0.1, solver="surrogate", **SHORT)),
    "ExpectileMF exact": ("ratings", lambda: dfact.ExpectileMF(5, tau=0.2, ridge=0.1, solver="exact", **SHORT)),
    "ElasticCP fill": ("waves", lambda: dfact.ElasticCP(5, lam=0.5, missing="fill", **SHORT)),
    "ElasticCP exact": ("waves", lambda: dfact.ElasticCP(5, lam=0.5, missing="exact", **SHORT)),
    "ElasticCP stochastic": ("waves", lambda: dfact.ElasticCP(5, lam=0.5, solver="stochastic", **SHORT)),
}


@dataclass
class Imagined:
    """A cluster of one worker with a limit, of which one only asks."""

    limit: int

    def workers(self, memory_limit: Any) -> WorkerResources:
        return cluster_workers([self.limit], THREADS, memory_limit)

    def open(self, *arguments: Any) -> Any:
        raise AssertionError("nothing is to be opened")


def planned(name: str, data: dfact.Dataset, limit: int) -> Plan:
    return dfact.plan(MODELS[name][1]().set_params(executor=Imagined(limit)), data)


def least_limit(name: str, data: dfact.Dataset) -> int:
    """The smallest memory limit of a worker with which the fit starts."""
    limit = ceil(planned(name, data, 1).peak / 0.6)
    while not planned(name, data, limit).fits:
        limit += 1
    assert not planned(name, data, limit - 2).fits
    return limit


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dfact.Dataset]:
    """The data of a model, on disk."""
    folder = tmp_path_factory.mktemp("data")

    def get(name: str) -> dfact.Dataset:
        kind = MODELS[name][0]
        path = folder / f"{kind}.zarr"
        if not path.exists():
            dfact.import_array(MAKERS[kind](), path)
        return dfact.open_dataset(path)

    return get


@contextmanager
def cluster(limit: int) -> Iterator[Client]:
    """A worker with this limit and its nanny, otherwise as Dask makes them, forked by a process that has imported dfact."""
    settings = {"n_workers": 1, "threads_per_worker": THREADS, "processes": True, "dashboard_address": "127.0.0.1:0"}
    with (
        forked_workers(),
        LocalCluster(**settings, memory_limit=limit) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def peak_bytes() -> int:
    """Of the resident memory of this process, since it began."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10


def spills(dask_worker: Any) -> int:
    """Bytes that Dask has written to disk."""
    return int(
        sum(count for (label, unit), count in dask_worker.data.cumulative_metrics.items() if label == "disk-write" and unit == "bytes")
    )


def check_kept(client: Client, before: Any, plan: Plan) -> None:
    """Nothing was spilled, paused or killed, and the worker has used no more than planned."""
    info = worker_infos(client)
    assert info.keys() == before.keys(), "a worker was killed"
    assert {worker["id"] for worker in info.values()} == {worker["id"] for worker in before.values()}
    [spilled] = client.run(spills).values()
    assert spilled == 0
    warned = [line for lines in client.get_worker_logs().values() for level, line in lines if level != "INFO"]
    assert not warned
    [peak] = client.run(peak_bytes).values()
    assert peak <= plan.peak


@pytest.mark.further
def test_below_the_plan_nothing_is_started(stored: Callable[[str], dfact.Dataset]) -> None:
    limits = {name: least_limit(name, stored(name)) for name in MODELS}
    with cluster(min(limits.values()) - 2) as client:
        for name, (_, make) in MODELS.items():
            with pytest.raises(MemoryPlanError, match="needs at least"):
                make().set_params(executor=client).fit(stored(name))
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter) == 0


@pytest.mark.further
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is Linux's to tell")
@pytest.mark.parametrize("name", exhaustive_unless({"ICQF admm", "GradeOfMembership", "ElasticCP stochastic"}.__contains__, MODELS))
def test_at_the_planned_minimum(name: str, stored: Callable[[str], dfact.Dataset], tmp_path: Path) -> None:
    data = stored(name)
    with cluster(least_limit(name, data)) as client:
        before = worker_infos(client)
        model = MODELS[name][1]().set_params(executor=client)
        if hasattr(model, "checkpoint"):
            model.set_params(checkpoint=tmp_path / "checkpoint.zarr", checkpoint_every=1)
        plan = dfact.plan(model, data)
        assert plan.fits
        assert plan.resident == 0
        model.fit(data)
        check_kept(client, before, plan)


@pytest.mark.further
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is Linux's to tell")
@pytest.mark.parametrize("name", ["ICQF admm", "ExpectileMF surrogate"])
def test_at_the_minimum_that_keeps_everything_in_memory(name: str, stored: Callable[[str], dfact.Dataset]) -> None:
    data = stored(name)
    with cluster(ceil(planned(name, data, 4 << 30).peak / 0.6) + 1) as client:
        before = worker_infos(client)
        model = MODELS[name][1]().set_params(executor=client)
        plan = dfact.plan(model, data)
        assert plan.state_in_memory == plan.cached_partitions == plan.n_partitions
        assert plan.resident > 20 << 20
        model.fit(data)
        check_kept(client, before, plan)
