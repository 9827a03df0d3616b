"""``dfact select icqf``."""

from pathlib import Path

import click
import pytest
from distributed import LocalCluster

import dfact
from dfact.cli.main import cli, main
from dfact.selection.result import RULES
from tests.conftest import planted_answers

QUICK = ["-k", "2,3", "--blocks", "4x4", "--folds", "4", "--seed", "0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "survey.zarr"
    confounders = {"sex": ["f", "m", "f"] * 50}
    dfact.import_array(planted_answers(150, 20, 3, 0, missing=0.1), path, confounders=confounders)
    return path


@pytest.mark.further
def test_select_icqf(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, plot = tmp_path / "survey.model", tmp_path / "errors.png"
    assert main(["select", "icqf", str(data), str(model), *QUICK, "--beta", "0.1,0.5", "--plot", str(plot), "--rule", "1se"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == ["n_components", "beta", "error", "se", "se_difference", "passes"]
    (best,) = [line.split() for line in lines if " best (" in line]
    fitted = dfact.load_model(model)
    assert (str(fitted.n_components), f"{fitted.beta:g}") == tuple(best[:2])
    assert len(fitted.confounder_components_) == 3
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "select: 16 of 16" in captured.err


def test_without_confounders_and_model(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "icqf", str(data), *QUICK, "--no-confounders", "--executor", "inline", "--rule", "knee"]) == 0
    assert "confounder" not in capsys.readouterr().out


@pytest.mark.further
def test_resumes_from_a_checkpoint(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["select", "icqf", str(data), *QUICK, "--checkpoint", str(tmp_path / "kept")]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert main(arguments) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert "select:" not in again.err
    assert main([*arguments, "--repeats", "2"]) == 1
    assert "belongs to another selection: repeats is 1, expected 2" in capsys.readouterr().err


@pytest.mark.further
def test_on_a_cluster(data: Path, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "icqf", str(data), *QUICK, "--scheduler", cluster.scheduler_address]) == 0
    there = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[:3]]
    assert main(["select", "icqf", str(data), *QUICK]) == 0
    assert there == [line.split()[:4] for line in capsys.readouterr().out.splitlines()[:3]]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--beta", "little"], 2, "'little' is not a list of numbers, expected such as 0.05,0.1,0.2"),
        (["--blocks", "10"], 2, "'10' is not a number of row blocks and one of column blocks, expected such as 10x10"),
        (["--rule", "best"], 2, "'best' is not one of"),
        (["--folds", "1"], 1, "n_folds is 1, expected from 2"),
        (["-k", "30"], 1, "n_components is 30 in the grid"),
        (["--plot", "errors.gif"], 1, "expected one of .png"),
    ],
)
def test_errors(data: Path, options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "icqf", str(data), *options]) == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_choices_match_the_function() -> None:
    command = cli.commands["select"].commands["icqf"]  # type: ignore[attr-defined]
    choices = {option.name: option.type.choices for option in command.params if isinstance(option.type, click.Choice)}
    assert tuple(choices["rule"]) == tuple(RULES)
    with command.make_context("icqf", ["data"]) as context:
        assert (context.params["n_components"], context.params["beta"]) == (list(range(2, 11)), [0.1])
