"""Fits across sites by the commands, each in a process of its own."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

import dfact
from benchmarks.faults.commands import Command
from dfact.cli.main import main
from dfact.sites.policy import Policy
from dfact.sites.site_log import read_log
from tests.sites.conftest import NAMES, stored_sites

pytest.importorskip("grpc")
pytestmark = [pytest.mark.process, pytest.mark.faults]
POLICY = "extremes = true\nmin_cell = 1\nmin_rows = 3\nmax_share = 1.0\nmax_numbers = 1e9\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the data of the sites, without confounders, their policy and the file of the coordinator."""
    stored_sites(tmp_path, confounders=None, confounder_ranges={})
    (tmp_path / "policy.toml").write_text(POLICY)
    names = json.dumps(list(NAMES))
    (tmp_path / "sites.toml").write_text(f'sites = {names}\naddress = "127.0.0.1:0"\ninsecure = true\nwait = 120\n')
    return tmp_path


def started(folder: Path, name: str, *arguments: str | Path) -> Command:
    (folder / f"{name} process").mkdir(exist_ok=True)
    return Command(folder / f"{name} process", *arguments)


def address_of(coordinator: Command) -> str:
    coordinator.says("Listening at ")
    found = re.search(r"Listening at (\S+)\.\n", coordinator.said)
    assert found, coordinator.said
    return found[1]


def join(folder: Path, name: str, address: str, *further: str) -> Command:
    data, policy, output = folder / f"{name}.zarr", folder / "policy.toml", folder / name
    options = ["--name", name, "--insecure", "--data", data, "--policy", policy, "--output", output, "--checkpoint", output / "progress"]
    return started(folder, name, "site", "join", address, *options, *further)


def pooled(folder: Path, **parameters: Any) -> Any:
    return dfact.ICQF(3, executor="inline", **parameters).fit(dfact.concatenate([folder / f"{name}.zarr" for name in NAMES]))


@pytest.mark.further
def test_a_fit_survives_the_loss_of_a_site_and_of_the_coordinator(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", "icqf", "--sites", folder / "sites.toml", folder / "out.model", "-k", "3", "--max-iter", "150", "--tol", "0"]
    fit += ["--checkpoint", folder / "progress"]
    coordinator = started(folder, "coordinator", *fit)
    address = address_of(coordinator)
    sites = {name: join(folder, name, address) for name in NAMES}
    log = folder / "north" / "log.jsonl"
    sites["north"].wait(lambda: log.exists() and len(log.read_text().splitlines()) > 20)
    sites["north"].send(signal.SIGKILL)
    assert sites["north"].ended() == -signal.SIGKILL, sites["north"].said
    sites["north"] = join(folder, "north", address)
    sites["south"].wait(lambda: len((folder / "south" / "log.jsonl").read_text().splitlines()) > 60)
    coordinator.send(signal.SIGKILL)
    assert coordinator.ended() == -signal.SIGKILL
    (folder / "sites.toml").write_text((folder / "sites.toml").read_text().replace("127.0.0.1:0", address))
    coordinator = started(folder, "coordinator", *fit)
    assert coordinator.ended() == 0, coordinator.said
    for name, site in sites.items():
        assert site.ended() == 0, (name, site.said)
    expected, found = pooled(folder, max_iter=150, tol=0), dfact.load_model(folder / "out.model")
    np.testing.assert_array_equal(found.components_, expected.components_)
    own = [np.asarray(dfact.load_model(folder / name / "icqf.model").factors_) for name in NAMES]
    np.testing.assert_array_equal(np.concatenate(own), np.asarray(expected.factors_))
    assert not (folder / "progress").exists()
    assert [path for name in NAMES for path in (folder / name / "progress").iterdir()] == []
    entries = [entry for entry in read_log(log) if entry.get("way") == "out"]
    assert min(entry["rows"] for entry in entries if entry["arrays"]) == len(own[1])
    capsys.readouterr()
    assert main(["site", "log", str(log)]) == 0
    assert main(["site", "log", str(log), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "bounded_nmf" in said
    assert "Numbers about an item that have left, in all runs: " in said
    assert main(["transform", str(folder / "out.model"), str(folder / "north.zarr"), str(folder / "north.csv")]) == 0


@pytest.mark.needs("questionnaires")
@pytest.mark.further
def test_a_selection_and_a_description(folder: Path, cluster: LocalCluster) -> None:
    """One of the sites has a cluster."""
    own = {"north": ["--scheduler", cluster.scheduler_address]}
    select = ["--sites", folder / "sites.toml", folder / "best.model", "-k", "2-3", "--blocks", "3x3", "--folds", "3", "--seed", "0"]
    coordinator = started(folder, "coordinator", "select", "icqf", *select)
    sites = [join(folder, name, address_of(coordinator), *own.get(name, ())) for name in NAMES]
    assert coordinator.ended() == 0, coordinator.said
    assert [site.ended() for site in sites] == [0, 0, 0], [site.said for site in sites]
    best = dfact.load_model(folder / "best.model")
    assert best.selection_ is not None
    assert [len(dfact.load_model(folder / name / "icqf.model").factors_) for name in NAMES] == [700, 190, 211]
    coordinator = started(folder, "coordinator", "describe", "--sites", folder / "sites.toml", folder / "items.csv")
    sites = [join(folder, name, address_of(coordinator)) for name in NAMES]
    assert coordinator.ended() == 0, coordinator.said
    assert [site.ended() for site in sites] == [0, 0, 0], [site.said for site in sites]
    assert len((folder / "items.csv").read_text().splitlines()) == 41


@pytest.mark.further
def test_a_policy_ends_the_fit_with_the_words_of_the_site(folder: Path) -> None:
    (folder / "policy.toml").write_text(POLICY + 'models = ["NMF"]\n')
    coordinator = started(folder, "coordinator", "fit", "icqf", "--sites", folder / "sites.toml", folder / "out.model", "-k", "3")
    sites = [join(folder, name, address_of(coordinator)) for name in NAMES]
    assert coordinator.ended() == 1
    assert "the policy forbids the model ICQF; it allows NMF" in coordinator.said
    assert {site.ended() for site in sites} == {1}
    assert not (folder / "out.model").exists()


def test_invalid_files_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "sites = []\n": "names no sites",
        'sites = ["a"]\nport = 3\n': "has the field 'port'",
        'sites = ["a"]\nwait = "long"\n': "is 'long', expected a number above 0",
        'sites = "a"\n': "is 'a', expected a list of texts",
        "sites = [\n": "is not TOML",
        'sites = ["a"]\naddress = "0.0.0.0:1"\ninsecure = true\n': "insecure",
        'sites = ["a"]\nca = "ca.pem"\nkey = "key.pem"\n': "ca, cert and key are given in part",
        'sites = ["a"]\ncontract = "policy.toml"\ninsecure = true\naddress = "127.0.0.1:0"\n': "is not a contract",
    }
    for text, message in cases.items():
        (folder / "sites.toml").write_text(text)
        assert main(["fit", "icqf", "--sites", str(folder / "sites.toml"), str(folder / "out.model")]) == 1
        assert message in capsys.readouterr().err
    for text, message in {"min_rows = -1\n": "at least 0", "rows = 1\n": "the field 'rows'", "models = [1]\n": "a list of texts"}.items():
        (folder / "policy.toml").write_text(text)
        options = ["--name", "north", "--data", str(folder / "north.zarr"), "--output", str(folder / "north"), "--insecure"]
        assert main(["site", "join", "127.0.0.1:1", *options, "--policy", str(folder / "policy.toml")]) == 1
        assert message in capsys.readouterr().err
    certificate = ["--cert", str(folder / "north.pem")]
    assert main(["site", "join", "127.0.0.1:1", *options, *certificate]) == 1
    assert "ca, cert and key are given in part" in capsys.readouterr().err
    assert main(["site", "policy"]) == 0
    (folder / "policy.toml").write_text(capsys.readouterr().out)
    assert Policy.read(folder / "policy.toml") == Policy()
