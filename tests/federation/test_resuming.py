"""A site or a coordinator that is lost: the others wait, and the resumed fit is bit-identical."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dfact
from dfact.data.dataset import Dataset
from dfact.engine.checkpoint import resume_point
from dfact.engine.executors import InlineExecutor
from dfact.errors import DfactError, FederationError
from dfact.federation.coordinator import Hub, Run
from dfact.federation.in_process import InProcessSites, MemoryConnection
from dfact.federation.messages import Message
from dfact.federation.policy import Policy
from dfact.federation.site import Site
from dfact.federation.tasks import Task
from tests.federation.conftest import NAMES, stored_sites

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore:.*confounder")]


class Lost(BaseException):
    """The end of a process."""


class LimitedConnection(MemoryConnection):
    """A connection of a process that ends at its call with this number."""

    limit = 1 << 30

    def call(self, message: Message) -> Message:
        if self.messages >= self.limit:
            raise Lost
        return super().call(message)


class Program(threading.Thread):
    """The program of a site."""

    def __init__(self, hub: Hub, name: str, data: Dataset, checkpoint: Path | None, limit: int = 1 << 30, executor: Any = "inline") -> None:
        super().__init__(daemon=True)
        self.connection = LimitedConnection(hub, name)
        self.connection.limit = limit
        self.site = Site(name, data, self.connection, policy=Policy(extremes=True), executor=executor, checkpoint=checkpoint)
        self.results: list[Any] = []
        self.start()

    def run(self) -> None:
        try:
            self.site.serve(lambda _, result: self.results.append(result))
        except (DfactError, Lost):
            return


def model() -> dfact.ICQF:
    return dfact.ICQF(3, max_iter=6, tol=0, random_state=0)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Dataset]:
    return stored_sites(tmp_path)


@pytest.fixture
def pooled(data: dict[str, Dataset]) -> Any:
    return model().set_params(executor="inline").fit(dfact.concatenate(list(data.values())))


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_site_that_is_started_again_catches_up(checkpointed: bool, data: dict[str, Dataset], pooled: Any, tmp_path: Path) -> None:
    hub = Hub(NAMES, wait=60, contract=None)
    folders = {name: tmp_path / f"{name} checkpoints" if checkpointed else None for name in NAMES}
    lost, others = (
        Program(hub, "north", data["north"], folders["north"], limit=9),
        [Program(hub, name, data[name], None) for name in ("east", "south")],
    )
    found: list[Any] = []
    fit = threading.Thread(target=lambda: found.append(Run(hub).carry_out(Task.of("fit", model()))), daemon=True)
    fit.start()
    lost.join()
    again = Program(hub, "north", data["north"], folders["north"])
    fit.join()
    hub.close()
    for program in (again, *others):
        program.join()
    np.testing.assert_array_equal(found[0].components_, pooled.components_)
    rows = {program.connection.name: np.asarray(program.results[0].row_factors()) for program in (again, *others)}
    np.testing.assert_array_equal(np.concatenate([rows[name] for name in NAMES]), np.asarray(pooled.row_factors()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("then", ["threads", "cluster"])
def test_a_site_with_a_cluster_resumes(then: str, client: Client, data: dict[str, Dataset], pooled: Any, tmp_path: Path) -> None:
    hub, checkpoint, found = Hub(NAMES, wait=60, contract=None), tmp_path / "checkpoints", []
    lost = Program(hub, "east", data["east"], checkpoint, limit=15, executor=client)
    others = [Program(hub, name, data[name], None) for name in ("north", "south")]
    fit = threading.Thread(target=lambda: found.append(Run(hub).carry_out(Task.of("fit", model()))), daemon=True)
    fit.start()
    lost.join()
    assert resume_point(next(checkpoint.iterdir())) == 10
    again = Program(hub, "east", data["east"], checkpoint, executor=client if then == "cluster" else then)
    fit.join()
    hub.close()
    for program in (again, *others):
        program.join()
    np.testing.assert_array_equal(found[0].components_, pooled.components_)
    rows = [np.asarray(program.results[0].row_factors()) for program in (again, *others)]
    np.testing.assert_array_equal(np.concatenate(rows), np.asarray(pooled.row_factors()))


@pytest.mark.parametrize("behind", ["sites", "coordinator"])
def test_a_coordinator_that_is_started_again_resumes(behind: str, data: dict[str, Dataset], pooled: Any, tmp_path: Path) -> None:
    """The checkpoints of the sites, or that of the coordinator, may be missing: the totals come from the others."""

    def stop(iteration: Any) -> None:
        if iteration.number == 4:
            raise Lost

    checkpoint, folders = tmp_path / "coordinator", {name: tmp_path / f"{name} checkpoints" for name in NAMES}
    settings: Any = {"checkpoint": checkpoint, "checkpoint_every": 1}
    hub = Hub(NAMES, wait=60, contract=None)
    programs = [Program(hub, name, data[name], folders[name]) for name in NAMES]
    with pytest.raises(Lost):
        Run(hub).carry_out(Task.of("fit", model()), callbacks=[stop], **settings)
    hub.close()
    for program in programs:
        program.join()
    assert resume_point(checkpoint) > 4
    hub = Hub(NAMES, wait=60, contract=None)
    if behind == "coordinator":
        settings["checkpoint"] = tmp_path / "another"
    programs = [Program(hub, name, data[name], folders[name] if name != "south" or behind == "coordinator" else None) for name in NAMES]
    found = Run(hub).carry_out(Task.of("fit", model()), **settings)
    hub.close()
    for program in programs:
        program.join()
    np.testing.assert_array_equal(found.components_, pooled.components_)
    np.testing.assert_array_equal(
        np.concatenate([np.asarray(p.results[0].row_factors()) for p in programs]), np.asarray(pooled.row_factors())
    )


def test_a_model_without_checkpoints_is_fitted_by_sites_that_keep_them(data: dict[str, Dataset], tmp_path: Path) -> None:
    folders = {name: tmp_path / f"{name} checkpoints" for name in NAMES}
    with InProcessSites(data, policy=Policy(extremes=True, min_cell=1), checkpoints=folders) as sites:
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
    site = Site("south", data["south"], Repeating(hub, "south"), policy=Policy(extremes=True), executor=InlineExecutor())
    thread = threading.Thread(target=site.serve, args=[lambda *_: None], daemon=True)
    thread.start()
    found = Run(hub).carry_out(Task.of("fit", model()))
    hub.close()
    for program in (*programs, thread):
        program.join()
    np.testing.assert_array_equal(found.components_, pooled.components_)
