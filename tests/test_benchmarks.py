"""The benchmarks run, small: their figures are for a quiet machine, that they compute is for here."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import common, icqf_oracles, icqf_out_of_core


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def load(folder: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return result


def test_out_of_core_writes_the_same_answers_in_every_form(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--rows", "3000", "--columns", "30", "--components", "3", "--limits", "2GiB", "--tables", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["icqf_out_of_core", *arguments])
    icqf_out_of_core.main()
    fit = load(results, "icqf_out_of_core")
    assert fit["rows"][0]["objective"] > 0
    assert {bar["bar"]: bar["held"] for bar in load(results, "import_tables")["bars"]}["both files give the same dataset"]


def test_oracles_on_the_simulation(results: Path) -> None:
    assert all(held for _, held in icqf_oracles.simulation(1))
    assert len(load(results, "icqf_simulation")["rows"]) == 6


@pytest.mark.usefixtures("results")
def test_a_missed_bar_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    bars = [("as fast as light", False), ("right", True)]
    common.report("example", [{"a": 1}], bars)
    assert "MISSED:  as fast as light" in capsys.readouterr().out
    assert common.exit_code(bars) == 1
