"""Sites with a Dask cluster of their own: fits have the bits of the concatenated data, and plans the memory of the workers."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dfact
from benchmarks.faults.fits import Processes
from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.engine.cluster import watchdog
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.memory_plan import Footprint, WorkerResources, make_plan
from dfact.engine.partitions import partitions
from dfact.errors import MemoryPlanError
from dfact.sites import sessions
from dfact.sites.description import Description, pool
from dfact.sites.in_process import InProcessSites
from dfact.sites.ledger import Ledger
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.resources import Resources
from dfact.sites.row_sets import deal_rows
from dfact.sites.sessions import SiteExecutor
from tests.conftest import CutRows, planted_answers

OPEN = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)
SIZES = {"east": 190, "north": 700, "south": 211}
MODELS: dict[str, Any] = {
    "icqf": lambda: dfact.ICQF(3, max_iter=4, random_state=0),
    "pca": lambda: dfact.PCA(3),
    "admixture": lambda: dfact.Admixture(3, ploidy=3, max_iter=4, init="random", random_state=1),
    "cp": lambda: dfact.ElasticCP(3, lam=0.5, max_iter=4, random_state=0),
    "emf": lambda: dfact.ExpectileMF(3, ridge=0.1, max_iter=4, random_state=0),
    "fa, polychoric": lambda: dfact.FactorAnalysis(2, rotation=None, correlation="polychoric"),
}
EXHAUSTIVE = {"admixture", "cp", "emf", "fa, polychoric"}
FLOAT32 = np.dtype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:the uniqueness of", "ignore:.* negative eigenvalues")


@pytest.fixture(autouse=True)
def _many_partitions(cut_rows: CutRows) -> None:
    """Partitions of a block: 3, 11 and 4 at the sites."""
    cut_rows(segment_partition_rows=64)


def answers(seed: int = 0) -> dict[str, Any]:
    """Answers 0 to 3 of each site, a tenth of them missing."""
    X = planted_answers(sum(SIZES.values()), 40, 4, seed, 0.1).astype(np.float32)
    return dict(zip(SIZES, np.split(X, np.cumsum(list(SIZES.values()))[:-1]), strict=True))


def assert_pooled(found: Any, results: dict[str, Any], pooled: Any) -> None:
    np.testing.assert_array_equal(found.components_, pooled.components_)
    rows = np.concatenate([np.asarray(results[name].row_factors()) for name in SIZES])
    np.testing.assert_array_equal(rows, np.asarray(pooled.row_factors()))


@pytest.mark.further
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in EXHAUSTIVE)) for name in MODELS])
def test_a_fit_has_the_bits_of_the_concatenated_data(name: str, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled partitions and random starts depend on the numbers of partitions, blocks and rows in the data of all sites."""
    samples, data = set(), answers()
    run = sessions.CoordinatorSession.run
    monkeypatch.setattr(sessions.CoordinatorSession, "run", lambda self, request: samples.add(request.sample) or run(self, request))
    pooled = MODELS[name]().set_params(executor="inline").fit(dfact.concatenate(list(data.values())))
    with InProcessSites(data, policy=OPEN, executors={"north": client, "east": "threads"}) as sites:
        found = sites.fit(MODELS[name]())
        assert sites.failures == {}
    assert_pooled(found, sites.results, pooled)
    if name == "icqf":
        assert any(sample and min(sample) >= 3 and max(sample) < 14 for sample in samples), "partitions of the cluster's site"


@pytest.mark.exhaustive
def test_a_selection_has_the_bits_of_the_concatenated_data(client: Client) -> None:
    data, settings = answers(), {"grid": {"n_components": [2, 3]}, "n_blocks": (3, 3), "n_folds": 3, "random_state": 3}
    model = dfact.ICQF(max_iter=4, random_state=0, executor="inline")
    blocks = np.concatenate([deal_rows(range(size), Ledger(None).key, 3) for size in SIZES.values()])
    drawn = {"groups": blocks, "stratify": np.zeros(len(blocks))}
    whole = dfact.concatenate(list(data.values()))
    expected = dfact.selection.block_cross_validate(model, whole, **settings, **drawn, in_memory=False)
    with InProcessSites(data, policy=OPEN, executors={"north": client}) as sites:
        found = sites.select(dfact.ICQF(max_iter=4, random_state=0), **settings)
        assert sites.failures == {}
    assert found.table.drop(columns="seconds").equals(expected.table.drop(columns="seconds"))


class Small(DistributedExecutor):
    """A cluster whose workers have little memory."""

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        found = super().workers(memory_limit)
        return replace(found, limit=found.baseline + self.memory)

    memory = 1 << 30


@pytest.mark.exhaustive
def test_small_workers_of_a_site_make_all_sites_read_more_often(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of all pairs of items are counted a part at a time, everywhere the same part, to stay within the memory of the workers."""
    data, plans, passes = answers(), [], []
    opened, run = sessions.CoordinatorExecutor.open, sessions.CoordinatorSession.run
    monkeypatch.setattr(
        sessions.CoordinatorExecutor, "open", lambda self, rows, plan: plans.append(plan) or passes.append(0) or opened(self, rows, plan)
    )

    def counted(self: Any, request: Any) -> Any:
        passes[-1] += 1
        return run(self, request)

    monkeypatch.setattr(sessions.CoordinatorSession, "run", counted)
    pooled = MODELS["fa, polychoric"]().set_params(executor="inline").fit(dfact.concatenate(list(data.values())))
    for enough in (True, False):
        if not enough:
            monkeypatch.setattr(Small, "memory", plans[0].working + plans[0].driver - 1)
        with InProcessSites(data, policy=OPEN, executors={"north": Small(client)}) as sites:
            found = sites.fit(MODELS["fa, polychoric"]())
            assert sites.failures == {}
        np.testing.assert_array_equal(found.components_, pooled.components_)
    assert passes[-1] > passes[0]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """A cluster whose workers may be killed."""
    with Processes(tmp_path) as processes:
        processes.start(3)
        yield processes


@pytest.mark.faults
@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["icqf", "pca"])
def test_a_lost_worker_of_a_site_changes_no_bit(
    name: str, processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "POLL_SECONDS", 0.2)
    data, run = answers(), sessions.CoordinatorSession.run
    pooled = MODELS[name]().set_params(executor="inline").fit(dfact.concatenate(list(data.values())))
    counted = []

    def run_and_kill(self: Any, request: Any) -> Any:
        counted.append(request)
        if len(counted) == 4:
            processes.kill(processes.workers[0])
        return run(self, request)

    monkeypatch.setattr(sessions.CoordinatorSession, "run", run_and_kill)
    with Client(processes.address, set_as_default=False) as client:
        client.wait_for_workers(3)
        with InProcessSites(data, policy=OPEN, executors={"north": client}) as sites:
            found = sites.fit(MODELS[name]())
            assert sites.failures == {}
    assert len(counted) > 4
    assert "is lost; the others recompute its partitions" in caplog.text
    assert_pooled(found, sites.results, pooled)


def described(folder: Path) -> tuple[Description, dict[str, Dataset]]:
    """The data of all sites: those of the north are stored, others are in memory."""
    data = {name: as_dataset(X) for name, X in answers().items()}
    dfact.import_array(answers()["north"], folder / "north.zarr")
    data["north"] = dfact.open_dataset(folder / "north.zarr")
    return pool([Description.of(name, each, extremes=True) for name, each in data.items()], None), data


FOOTPRINT = Footprint(state_per_row=1 << 14, work_per_row=1 << 10, broadcast=1 << 16, result_per_row=8)


@pytest.mark.parametrize("workers", [0, 8])
def test_all_processes_of_a_run_plan_the_same(workers: int, tmp_path: Path) -> None:
    """They would form other passes, if the plan depended on how a site stores its rows."""
    common = Resources.common([Resources(1 << 30, 2, workers), Resources(1 << 24, 1, 0)]).planned()
    pooled, data = described(tmp_path)
    sources = [pooled.dataset().source, *(pooled.dataset(name, each).source for name, each in data.items())]
    plans = [make_plan(source, FLOAT32, FOOTPRINT, common) for source in sources]
    assert len({(plan.working, plan.driver, plan.state_in_memory, plan.fits) for plan in plans}) == 1
    assert 0 < plans[0].state_in_memory < 18


def test_passes_that_fit_at_all_sites_fit_at_each(tmp_path: Path) -> None:
    own = {
        "east": WorkerResources("threads", 1, 32, 1 << 30, 1 << 28),
        "north": WorkerResources("distributed", 5, 2, 1 << 30, 1 << 28),
        "south": WorkerResources("distributed", 1, 4, 1 << 30, 1 << 28),
    }
    pooled, data = described(tmp_path)
    common = make_plan(pooled.dataset().source, FLOAT32, FOOTPRINT, Resources.common(map(Resources.of, own.values())).planned())
    for name, workers in own.items():
        source = pooled.dataset(name, data[name]).source
        [segment] = [part.alone() for part in partitions(source, None, None).segments if part.source.present_rows]
        plan = make_plan(segment.source, FLOAT32, FOOTPRINT, workers, segment.layout)
        assert plan.working <= common.working
        assert plan.driver <= common.driver


def test_workers_without_a_limit_of_memory_may_join() -> None:
    stated = Resources.of(WorkerResources("distributed", 3, 2, sys.maxsize, 0))
    assert Resources.from_message(Message({"kind": "join", **stated.as_fields()})) == stated


class Opened:
    """An executor that keeps what it is asked to open."""

    tile_states = None

    def open(self, own: Any, plan: Any) -> Any:
        self.partitions, self.plan = own, plan
        return self


def test_a_site_plans_with_the_memory_of_its_own_workers(tmp_path: Path) -> None:
    pooled, data = described(tmp_path)
    source, inner, common = pooled.dataset("north", data["north"]).source, Opened(), Resources(1 << 30, 2, 2).planned()
    plan = make_plan(source, FLOAT32, FOOTPRINT, common)
    assert plan.resident_states >= 18

    def planned(limit: int) -> Any:
        own = WorkerResources("distributed", 2, 1, limit, 0)
        executor = SiteExecutor(inner, own, common, None, None)  # type: ignore[arg-type]  # nothing is sent
        executor.open(partitions(source, None, None), plan)
        return inner.plan

    roomy = planned(1 << 30)
    assert (roomy.workers.processes, roomy.n_partitions, roomy.state_in_memory) == (2, 11, 11)
    tight = planned(roomy.working + roomy.driver + 5 * (1 << 20) // 2)
    assert (tight.resident_states, tight.state_in_memory) == (2, 4)
    assert tight.fits
    with pytest.raises(MemoryPlanError, match="its limit is"):
        planned(roomy.working)
    blocks = list(inner.partitions.blocks(None))
    assert inner.partitions.numbers == range(11)
    assert [(block.index, block.start) for block in blocks] == [(3 + number, 190 + 64 * number) for number in range(11)]
