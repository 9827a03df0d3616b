"""Data that differs from the contract is refused with the difference, before any pass."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.engine.environment import as_fields, current_environment
from dfact.errors import FederationError
from dfact.sites.coordinator import Hub
from dfact.sites.description import Description
from dfact.sites.in_process import InProcessSites, MemoryConnection
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.site import Site

OPEN = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)


def dataset(**changes: Any) -> Dataset:
    values = np.random.default_rng(0).integers(0, 4, (120, 5)).astype(changes.pop("dtype", np.uint8))
    sex = pd.Categorical(np.arange(120) % 2, categories=[0, 1]).rename_categories(changes.pop("levels", ["f", "m"]))
    return replace(as_dataset(values, pd.DataFrame({"sex": sex})), **changes)


DIFFERENT: dict[str, tuple[Callable[[], Dataset], str]] = {
    "columns": (lambda: dataset(column_labels=np.array(["0", "1", "2", "3", "Q5"], object)), "column 4 is 'Q5', expected '4'"),
    "levels": (lambda: dataset(levels=["f", "x"]), "confounders .*'x'.* expected .*'m'"),
    "no confounder": (lambda: dataset().with_confounders(None), r"confounders \[\], expected"),
    "types": (lambda: dataset(dtype=np.float32), "type float32, expected uint8"),
    "missing code": (lambda: dataset(missing_code=3), "missing code 3, expected None"),
    "offsets": (lambda: dataset(offset=np.full(5, 1.0)), "begin at"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_difference_is_named_before_any_pass(name: str) -> None:
    make, words = DIFFERENT[name]
    contract = Description.of("contract", dataset(), extremes=True)
    with InProcessSites({"north": dataset(), "south": make()}, policy=OPEN, contract=contract, keep_bytes=True) as sites:
        with pytest.raises(FederationError, match=f"site south does not join: .*{words}"):
            sites.fit(dfact.ICQF(2, max_iter=2))
        sent = [Message.decode(data).fields["kind"] for each in sites.connections.values() for data in each.kept or ()]
    assert "step" not in sent
    # Without a contract the first site's columns count.
    with InProcessSites({"north": dataset(), "south": make()}, policy=OPEN) as sites, pytest.raises(FederationError, match=words):
        sites.fit(dfact.ICQF(2, max_iter=2))


def test_answers_beyond_the_range_are_named_at_the_site_alone() -> None:
    narrow = dataset(valid_range=np.tile([0.0, 2.0], (5, 1)))
    contract = replace(Description.of("contract", narrow, extremes=True), extremes=False)
    hub = Hub(["north"], wait=5, contract=contract)
    site = Site("north", dataset(valid_range=np.tile([0.0, 77.0], (5, 1))), MemoryConnection(hub, "north"), policy=Policy())
    with pytest.raises(FederationError, match="from 0 to 77"):
        site.join()
    with pytest.raises(FederationError, match=r"beyond the range of the contract from 0 to 2$"):
        hub.wait_for_sites()


def test_a_site_with_other_versions_or_other_data_than_before_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(["north"], wait=5, contract=None)
    Site("north", dataset(), MemoryConnection(hub, "north"), policy=OPEN).join()
    with pytest.raises(FederationError, match="had other data when it first joined"):
        Site("north", dataset(dtype=np.uint16), MemoryConnection(hub, "north"), policy=OPEN).join()
    monkeypatch.setattr("dfact.sites.site.as_fields", lambda found: as_fields(found) | {"numpy": "1.0"})
    with pytest.raises(FederationError, match=r"other versions: has NumPy 1\.0, expected NumPy"):
        Site("north", dataset(), MemoryConnection(hub, "north"), policy=OPEN).join()
    assert as_fields(current_environment())["numpy"] == np.__version__


def test_codebooks_and_ranges_of_confounders_differ(tmp_path: Path) -> None:
    values, age = np.random.default_rng(1).integers(0, 3, (80, 4)).astype(np.uint8), pd.DataFrame({"age": np.linspace(20, 60, 80)})
    sites = {}
    for name, limits in (("north", (0, 100)), ("south", (18, 65))):
        dfact.import_array(values, tmp_path / f"{name}.zarr", confounders=age, confounder_ranges={"age": limits})
        sites[name] = dfact.open_dataset(tmp_path / f"{name}.zarr")
    with InProcessSites(sites, policy=OPEN) as found, pytest.raises(FederationError, match="plausible ranges of confounders"):
        found.fit(dfact.ICQF(2, max_iter=2))
