"""Inputs and outputs of a step, read off the types of its command's parameters."""

from pathlib import Path
from typing import Any

import click
import pytest

import dfact
from dfact.batch.job_file import JobError, Step, read_job
from dfact.cli.main import cli
from dfact.cli.types import InputLocation, LocationType, OutputLocation, UpdatedLocation


def step(**parameters: Any) -> Step:
    settings = [
        click.Argument(["model"], type=UpdatedLocation()),
        click.Argument(["data"], type=InputLocation(), nargs=-1),
        click.Option(["--out"], type=OutputLocation(each="levels")),
        click.Option(["--plot"], type=OutputLocation("dfact.report.plots:FORMATS")),
        click.Option(["--levels"]),
        click.Option(["--checkpoint"], type=LocationType()),
    ]
    return Step(1, 1, "try", click.Command("try", params=settings), {}, {"levels": [], "checkpoint": None} | parameters)


def test_types_of_parameters_declare_inputs_and_outputs() -> None:
    found = step(model=Path("m"), data=(Path("a"), "s3://b/c"), out=Path("o.x"), plot=Path("p.svg"))
    assert found.inputs == [Path("a"), "s3://b/c", Path("m")]
    assert found.created == [Path("o.x"), Path("p.svg")]
    assert found.outputs == [Path("m"), Path("o.x"), Path("p.svg")]
    assert found.is_resumable


def test_an_output_for_each_value_has_it_in_its_name() -> None:
    found = step(out="s3://b/o.x", levels=[0.1, 0.5])
    assert found.outputs == ["s3://b/o-0.1.x", "s3://b/o-0.5.x"]
    assert not found.is_resumable
    assert step(out="s3://b/o.x", levels=[0.1]).outputs == ["s3://b/o.x"]


def test_the_ending_of_an_output_is_checked_when_it_is_parsed() -> None:
    kind = OutputLocation("dfact.report.plots:FORMATS")
    assert kind("p.svg") == Path("p.svg")
    with pytest.raises(dfact.ParameterError, match=r"p.txt ends in '.txt', expected one of"):
        kind("p.txt")


def steps(group: Any) -> list[click.Command]:
    found = [[command] if not isinstance(command, click.Group) else steps(command) for command in group.commands.values()]
    return [command for commands in found for command in commands]


def test_commands_declare_all_locations_but_their_checkpoints() -> None:
    undeclared = {parameter.name for command in steps(cli) for parameter in command.params if type(parameter.type) is LocationType}
    assert undeclared == {"checkpoint"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ('["age", 5, 110]', {"age": (5.0, 110.0)}),
        ('[["age", 5, 110], ["pay", 0, 1e6]]', {"age": (5.0, 110.0), "pay": (0.0, 1e6)}),
        ('[["age", 5], ["pay", 0, 1]]', None),
        ('[["age", "x", 5]]', None),
        ('"age"', None),
    ],
)
def test_options_of_several_values_are_lists_in_jobs(tmp_path: Path, setting: str, expected: Any) -> None:
    text = f'[[step]]\nrun = "import"\nsource = "job.toml"\ndest = "d.zarr"\nitems = "Q*"\nconfounder-range = {setting}\n'
    (tmp_path / "job.toml").write_text(text)
    if expected is None:
        with pytest.raises(JobError, match="6: import: confounder-range"):
            read_job(tmp_path / "job.toml", cli)
        return
    ((step,), _) = read_job(tmp_path / "job.toml", cli)
    assert step.parameters["confounder_ranges"] == expected
