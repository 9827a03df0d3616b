"""``dfact import``: options of answers, and what the command prints."""

from pathlib import Path

import click
import numpy as np
import pytest

import dfact
from dfact.cli.answer_options import levels_option, missing_option, not_missing_option, recode_option
from dfact.cli.main import main
from tests.imports.test_import_table import answers_of


@click.command()
@levels_option
@recode_option
@missing_option
@not_missing_option
@click.pass_context
def echo(context: click.Context, **settings: object) -> None:
    context.obj.update(settings)


def parsed(*arguments: str) -> dict[str, object]:
    settings: dict[str, object] = {}
    echo.main(list(arguments), obj=settings, standalone_mode=False)
    return settings


def test_options_of_answers(tmp_path: Path) -> None:
    table = tmp_path / "levels.csv"
    table.write_text("text,code\nno,0\nyes,1\n")
    settings = parsed(
        "--missing=0,-9", "--missing", "race=6,7,sex=9", "--recode", "a,b:95=0,1=2", "--levels", "v*: a<b", "--levels", str(table)
    )
    assert settings["missing"] == {"*": ["0", "-9"], "race": ["6", "7"], "sex": ["9"]}
    assert settings["recode"] == {"a": {95: 0, 1: 2}, "b": {95: 0, 1: 2}}
    assert settings["levels"] == {"v*": "a<b", "*": {"no": 0, "yes": 1}}
    assert settings["not_missing"] is None


@pytest.mark.parametrize("arguments", [("--recode", "95=0"), ("--recode", "q:a=b"), ("--levels", "no-file.csv")])
def test_invalid_options_of_answers(arguments: tuple[str, str]) -> None:
    with pytest.raises(click.BadParameter):
        parsed(*arguments)


def test_text_answers_are_imported_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "t.csv"
    source.write_text("id,v1,v2\na,no,1\nb,yes,2\nc,no,9\n")
    arguments = ["--items", "v1,-v2", "--levels", "v1: no<yes", "--missing", "v2=9", "--valid-range", "1", "2", "--id-column", "id"]
    assert main(["import", str(source), str(tmp_path / "d.zarr"), *arguments]) == 0
    dataset = dfact.open_dataset(tmp_path / "d.zarr")
    np.testing.assert_array_equal(answers_of(dataset), [[1, 2], [2, 1], [1, np.nan]])
    assert "2 items" in capsys.readouterr().out
