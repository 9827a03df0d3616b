"""A site or a coordinator that is lost: the others wait, and the resumed fit is bit-identical."""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from distributed import Client

import dfact
from dfact.data.dataset import Dataset
from dfact.engine.checkpoint import resume_point
from dfact.errors import DfactError, FederationError
from dfact.sites.coordinator import Hub, Run
from dfact.sites.exchange import Exchange
from dfact.sites.in_process import InProcessSites, MemoryConnection
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.site import Site, UnreachableError
from dfact.sites.tasks import Task
from tests.sites.conftest import NAMES, stored_sites

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore:.*confounder")]
POLICY = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfact.sites.site._PAUSE", 0.01)


JOINS = 3
"""Number of calls of a site before its first step: for the contract, to join, and for the task."""


class Lost(BaseException):
    """The end of a process."""


class LimitedConnection(MemoryConnection):
    """A connection of a process that ends at its call with this number, or at an answer that it is not to have."""

    calls, limit = 0, 1 << 30
    drops: Callable[[Message], bool] = staticmethod(lambda _: False)

    def call(self, message: Message) -> Message:
        if message.fields["kind"] == "alive":  # the clock decides how many there are
            return super().call(message)
        if self.calls >= self.limit:
            raise Lost
        answer = super().call(message)
        self.calls += answer.fields["kind"] != "wait"  # a site asks again while the coordinator has no task yet
        if self.drops(answer):
            raise Lost
        return answer


def site_at(connection: MemoryConnection, data: Dataset, policy: Policy = POLICY, **settings: Any) -> Site:
    return Site(connection.name, data, connection, policy=policy, **{"executor": "inline", **settings})


class Program(threading.Thread):
    """The program of a site."""

    def __init__(self, hub: Hub, name: str, data: Dataset, checkpoint: Path | None, limit: int = 1 << 30, executor: Any = "inline") -> None:
        super().__init__(daemon=True)
        self.connection = LimitedConnection(hub, name)
        self.connection.limit = limit
        self.site = site_at(self.connection, data, checkpoint=checkpoint, executor=executor)
        self.results: list[Any] = []
        self.told: bool | None = None
        """Whether the coordinator has said that it ends."""
        self.start()

    def run(self) -> None:
        try:
            self.told = self.site.serve(lambda _, result: self.results.append(result))
        except (DfactError, Lost):
            return


class Federation:
    """A coordinator and the programs of its sites until the coordinator closes, or is lost."""

    def __init__(self, data: Mapping[str, Dataset], folders: Mapping[str, Path]) -> None:
        self.hub = Hub(NAMES, wait=60, contract=None)
        self.programs = [Program(self.hub, name, data[name], folders.get(name)) for name in NAMES]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.hub.close()
        for program in self.programs:
            program.join()

    def fit(self, estimator: Any, checkpoint: Path | None = None, **runtime: Any) -> Any:
        settings = {} if checkpoint is None else {"checkpoint": checkpoint, "checkpoint_every": 1}
        return Run(self.hub).carry_out(Task.of("fit", estimator), **settings, **runtime)

    def assert_bits(self, found: Any, pooled: Any) -> None:
        """Assert that model and row factors of the last run are those of the pooled fit; the sites must have ended."""
        np.testing.assert_array_equal(found.components_, pooled.components_)
        rows = [np.asarray(program.results[-1].row_factors()) for program in self.programs]
        np.testing.assert_array_equal(np.concatenate(rows), np.asarray(pooled.row_factors()))


def folders_of(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name} checkpoints" for name in NAMES}


def kept(folders: Mapping[str, Path]) -> list[int]:
    """The numbers of steps in the checkpoints of the sites."""
    return [resume_point(path) for folder in folders.values() for path in folder.iterdir()]


def model() -> dfact.ICQF:
    return dfact.ICQF(3, solver="admm", max_iter=14, tol=0, random_state=0)


def stop(iteration: Any) -> None:
    if iteration.number == 11:
        raise Lost


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    return stored_sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def pooled(data: dict[str, Dataset]) -> Any:
    return model().set_params(executor="inline").fit(dfact.concatenate(list(data.values())))


def lose_and_start_again(data: Mapping[str, Dataset], pooled: Any, name: str, checkpoint: Path | None, first: Any, then: Any) -> None:
    """Lose a site at its 13th step, start it again with another executor, and assert that the fit is the pooled one."""
    hub, found = Hub(NAMES, wait=60, contract=None), list[Any]()
    lost = Program(hub, name, data[name], checkpoint, limit=JOINS + 12, executor=first)
    programs = {other: Program(hub, other, data[other], None) for other in NAMES if other != name}
    fit = threading.Thread(target=lambda: found.append(Run(hub).carry_out(Task.of("fit", model()))), daemon=True)
    fit.start()
    lost.join()
    assert not lost.results
    if checkpoint is not None:
        assert kept({name: checkpoint}) == [10]  # a site saves every tenth step
    programs[name] = Program(hub, name, data[name], checkpoint, executor=then)
    fit.join()
    hub.close()
    for program in programs.values():
        program.join()
    np.testing.assert_array_equal(found[0].components_, pooled.components_)
    rows = [np.asarray(programs[name].results[0].row_factors()) for name in NAMES]
    np.testing.assert_array_equal(np.concatenate(rows), np.asarray(pooled.row_factors()))


@pytest.mark.further
@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_site_that_is_started_again_catches_up(checkpointed: bool, data: dict[str, Dataset], pooled: Any, tmp_path: Path) -> None:
    lose_and_start_again(data, pooled, "north", tmp_path / "checkpoints" if checkpointed else None, "inline", "inline")


@pytest.mark.exhaustive
@pytest.mark.parametrize("then", ["threads", "cluster"])
def test_a_site_with_a_cluster_resumes(then: str, client: Client, data: dict[str, Dataset], pooled: Any, tmp_path: Path) -> None:
    lose_and_start_again(data, pooled, "east", tmp_path / "checkpoints", client, client if then == "cluster" else then)


@pytest.mark.further
@pytest.mark.parametrize("behind", ["sites", "coordinator"])
def test_a_coordinator_that_is_started_again_resumes(behind: str, data: dict[str, Dataset], pooled: Any, tmp_path: Path) -> None:
    """The checkpoints of the sites, or that of the coordinator, may be missing: the totals come from the others."""
    checkpoint, folders = tmp_path / "coordinator", folders_of(tmp_path)
    with Federation(data, folders) as sites, pytest.raises(Lost):
        sites.fit(model(), checkpoint, callbacks=[stop])
    assert resume_point(checkpoint) > 10
    assert kept(folders) == [10, 10, 10]
    if behind == "coordinator":
        checkpoint = tmp_path / "another"
    with Federation(data, folders if behind == "coordinator" else {}) as sites:
        found = sites.fit(model(), checkpoint)
    sites.assert_bits(found, pooled)


def test_sites_delete_checkpoints_of_runs_that_have_succeeded_everywhere(
    data: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may have lost its result even then: its own checkpoint is enough."""
    checkpoint, folders, estimator = tmp_path / "coordinator", folders_of(tmp_path), dfact.PCA(2, missing="mean")
    with monkeypatch.context() as patch, Federation(data, folders) as sites:
        patch.setattr("dfact.sites.site.record_sites", lambda *_: "another")
        with pytest.raises(FederationError, match="differ from the coordinator's in their bits"):
            sites.fit(estimator, checkpoint)
    assert len(kept(folders)) == 3
    for _ in range(2):  # from the checkpoints of all, then from that of the coordinator alone
        with Federation(data, folders) as sites:
            found = sites.fit(estimator, checkpoint)
            assert len(kept(folders)) == 3  # until the coordinator closes
        assert kept(folders) == []
        sites.assert_bits(found, estimator.set_params(executor="inline").fit(dfact.concatenate(list(data.values()))))


TILED: dict[str, tuple[Callable[[], Any], str, int]] = {
    "pca": (lambda: dfact.PCA(2, max_iter=4, tol=0), "pca_expectation", 1),
    "admixture": (lambda: dfact.Admixture(2, ploidy=3, max_iter=3, init="random", random_state=1), "binomial_step", 1),
    "admixture, two passes": (lambda: dfact.Admixture(2, ploidy=3, max_iter=1, init="random", random_state=1), "binomial_figures", 0),
}
"""Models with tiled passes; type and number of the total at which the fit is interrupted. Two passes have no step between them."""


def lose_coordinator(patch: pytest.MonkeyPatch, hub: Hub, name: str, ahead: str) -> Callable[[Message], bool]:
    """End the coordinator at a total of the model, before or after it has saved it; return which answers a lost site does not get."""
    _, kind, number = TILED[name]
    publish, numbers, lost = Exchange.publish, itertools.count(), list[Message]()

    def publish_or_lose(exchange: Exchange, total: Message) -> None:
        if total.fields["sums"]["type"] == kind and next(numbers) == number:
            lost.append(total)
        publish(exchange, total)
        while lost and ahead == "sites":
            if len(exchange._contributions) + len(hub._ended) == len(NAMES):  # all have saved the total
                raise Lost
            time.sleep(0.001)

    def lose(instead: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if lost:
                raise Lost
            return instead(*arguments)

        return call

    patch.setattr(Exchange, "publish", publish_or_lose)
    patch.setattr(Exchange, "collect", lose(Exchange.collect))
    patch.setattr(Hub, "end", lose(Hub.end))
    return lambda answer: ahead == "coordinator" and bool(lost) and answer.fields.get("kind") == "sums"


@pytest.mark.further
@pytest.mark.parametrize(
    ("name", "ahead"), [("pca", "sites"), ("pca", "coordinator"), ("admixture", "sites"), ("admixture, two passes", "coordinator")]
)
def test_tiled_passes_resume_from_unequal_checkpoints(
    name: str, ahead: str, data: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, checkpoint, folders = TILED[name][0], tmp_path / "coordinator", folders_of(tmp_path)
    with monkeypatch.context() as patch, Federation(data, folders) as sites:
        sites.programs[1].connection.drops = lose_coordinator(patch, sites.hub, name, ahead)
        with pytest.raises(Lost):
            sites.fit(make(), checkpoint)
    difference = resume_point(checkpoint) - kept(folders)[1]
    assert difference > 0 if ahead == "coordinator" else difference < 0
    with Federation(data, folders) as sites:
        found = sites.fit(make(), checkpoint)
    sites.assert_bits(found, make().set_params(executor="inline").fit(dfact.concatenate(list(data.values()))))


def test_checkpoints_that_are_several_tiled_passes_apart_are_reported(
    data: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, checkpoint, folders = TILED["pca"][0], tmp_path / "coordinator", folders_of(tmp_path)
    with monkeypatch.context() as patch, Federation(data, folders) as sites:
        lose_coordinator(patch, sites.hub, "pca", "coordinator")
        with pytest.raises(Lost):
            sites.fit(make(), checkpoint)
    remedy = "by more than one pass, and has no longer .* of ExpectationPass; delete the checkpoints of this fit at all sites"
    with Federation(data, folders) as sites, pytest.raises(FederationError, match=f"site east is ahead of the coordinator {remedy}"):
        sites.fit(make(), tmp_path / "another")
    with Federation(data, {}) as sites, pytest.raises(FederationError, match=f"of the coordinator is ahead of this site {remedy}"):
        sites.fit(make(), checkpoint)


@pytest.mark.further
def test_idle_sites_join_a_restarted_coordinator_and_carry_out_its_next_run(
    data: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first coordinator is killed after the run, before it has told the sites: they still have what its checkpoint lacks."""
    monkeypatch.setattr("dfact.sites.coordinator._POLL", 0.02)
    make, checkpoint, folders = TILED["pca"][0], tmp_path / "coordinator", folders_of(tmp_path)
    with Federation(data, folders) as sites:
        first = sites.fit(make(), checkpoint)
        killed, sites.hub = sites.hub, Hub(NAMES, wait=60, contract=None)
        for program in sites.programs:
            program.connection.hub = sites.hub
        assert killed.exchange is not None
        killed.exchange.close()
        again = sites.fit(make(), checkpoint)
        other = sites.fit(dfact.PCA(2, missing="mean"))
    assert [(len(program.results), program.told) for program in sites.programs] == [(3, True)] * 3
    np.testing.assert_array_equal(again.components_, first.components_)
    for program in sites.programs:
        np.testing.assert_array_equal(*(np.asarray(result.row_factors()) for result in program.results[:2]))
    sites.assert_bits(other, dfact.PCA(2, missing="mean", executor="inline").fit(dfact.concatenate(list(data.values()))))
    assert kept(folders) == []


def test_a_site_that_has_its_result_ends_well_without_its_coordinator(data: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    """While it saves the result, it shows that it lives."""
    monkeypatch.setattr("dfact.sites.site._BEAT", 0.01)
    lost = threading.Event()

    class Cut(MemoryConnection):
        def call(self, message: Message) -> Message:
            if message.fields["kind"] == "alive":
                alive.set()
            elif lost.is_set():
                raise UnreachableError("the coordinator was not reached")
            return super().call(message)

    def save(*_: Any) -> None:
        alive.clear()
        assert alive.wait(60)
        lost.set()

    alive, hub = threading.Event(), Hub(["south"], wait=60, contract=None)
    site = site_at(Cut(hub, "south"), data["south"])
    ends: list[bool] = []
    thread = threading.Thread(target=lambda: ends.append(site.serve(save)), daemon=True)
    thread.start()
    Run(hub).carry_out(Task.of("fit", dfact.PCA(2, missing="mean")))
    thread.join()
    hub.close()
    assert ends == [False]
    with pytest.raises(UnreachableError):
        site.serve(save)


@pytest.mark.needs("questionnaires")
def test_a_model_without_checkpoints_is_fitted_by_sites_that_keep_them(data: dict[str, Dataset], tmp_path: Path) -> None:
    folders = {name: tmp_path / f"{name} checkpoints" for name in NAMES}
    with InProcessSites(data, policy=POLICY, checkpoints=folders) as sites:
        found = sites.fit(dfact.FactorAnalysis(2, rotation=None))
    np.testing.assert_array_equal(
        found.components_, dfact.FactorAnalysis(2, rotation=None).fit(dfact.concatenate(list(data.values()))).components_
    )


def test_a_site_that_stays_away_ends_the_fit(data: dict[str, Dataset]) -> None:
    hub = Hub(NAMES, wait=1, contract=None)
    programs = [Program(hub, name, data[name], None, limit=9 if name == "north" else 1 << 30) for name in NAMES]
    with pytest.raises(FederationError, match="site north has not been heard of for 1 s"):
        Run(hub).carry_out(Task.of("fit", model()))
    hub.close()
    for program in programs:
        program.join()
    with pytest.raises(FederationError, match=r"east, north, south did not join within 0.1 s"):
        Run(Hub(NAMES, wait=0.1, contract=None)).carry_out(Task.of("fit", model()))


def test_a_site_that_has_missed_a_failed_run_ends_with_its_words(data: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for a task, but is so slow to ask again that the others have ended the run meanwhile."""
    monkeypatch.setattr("dfact.sites.coordinator._POLL", 0.02)
    asked, failed = threading.Event(), threading.Event()

    class Late(MemoryConnection):
        def call(self, message: Message) -> Message:
            assert not asked.is_set() or failed.wait(60)
            answer = super().call(message)
            if answer.fields["kind"] == "wait":
                asked.set()
            return answer

    hub = Hub(NAMES, wait=60, contract=None)
    with ThreadPoolExecutor() as pool:

        def served(connection: MemoryConnection) -> Future[bool]:
            site = site_at(connection, data[connection.name], replace(POLICY, models=("NMF",)))
            return pool.submit(site.serve, lambda *_: None)

        sites = [served(Late(hub, "south"))]
        assert asked.wait(60)
        sites += [served(MemoryConnection(hub, name)) for name in NAMES if name != "south"]
        with pytest.raises(FederationError, match="forbids the model ICQF"):
            Run(hub).carry_out(Task.of("fit", model()))
        hub.close()
        failed.set()
        for site in sites:
            with pytest.raises(FederationError, match="forbids the model ICQF"):
                site.result()


def test_a_late_or_repeated_message_changes_nothing(data: dict[str, Dataset], pooled: Any) -> None:
    earlier: list[Message] = []

    class Repeating(MemoryConnection):
        def call(self, message: Message) -> Message:
            answer = super().call(message)
            if message.fields["kind"] == "step":
                for repeated in (message, *earlier[-2:]):
                    super().call(repeated)
                earlier.append(message)
            return answer

    hub = Hub(NAMES, wait=60, contract=None)
    programs = [Program(hub, name, data[name], None) for name in NAMES if name != "south"]
    site = site_at(Repeating(hub, "south"), data["south"])
    thread = threading.Thread(target=site.serve, args=[lambda *_: None], daemon=True)
    thread.start()
    found = Run(hub).carry_out(Task.of("fit", model()))
    hub.close()
    for program in (*programs, thread):
        program.join()
    np.testing.assert_array_equal(found.components_, pooled.components_)
