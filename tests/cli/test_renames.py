"""Names that have changed: the table is consistent, each old name warns and works, and stores have names that every version reads."""

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import patch

import click
import numpy as np
import pytest
from sklearn.base import clone

import dfact
import dfact.selection
from dfact.cli.main import cli, main
from dfact.jobs.job_file import setting_names
from dfact.models.catalogue import BY_NAME, CATALOGUE
from dfact.models.estimator import SAVED_TYPES, Factorization
from dfact.renames import NAMES, VALUES, OldNameWarning, current, current_arguments, stored
from tests.documentation.pages import TEXTS

CLASSES: dict[str, Any] = {
    **{entry.name: entry.load() for entry in CATALOGUE},
    **{kind.__name__: kind for kind in (Factorization, dfact.Description)},
    **SAVED_TYPES,
}
OWNERS = sorted({*NAMES, *VALUES})
CHANGELOG = (Path(dfact.__file__).parent / "guides/changelog.md").read_text()


def command_of(owner: str) -> click.Command:
    command: click.Command = cli
    for word in owner.split()[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


def names_of(owner: str) -> set[str]:
    """Return all current names of an owner."""
    if owner.startswith("dfact "):
        return {name for parameter in command_of(owner).params for name in setting_names(parameter)}
    if owner in CLASSES:
        kind = CLASSES[owner]
        properties = {name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, property)}
        return {*signature(kind).parameters, *get_type_hints(kind), *properties}
    if owner.startswith("dfact."):
        return set(import_module(owner).__all__)
    return set(signature(function_of(owner)).parameters)


def function_of(owner: str) -> Any:
    module = dfact if hasattr(dfact, owner.split(".", maxsplit=1)[0]) else dfact.selection
    return attrgetter(owner)(module)


ATTRIBUTES = [(owner, old, name) for owner in CLASSES for old, name in NAMES.get(owner, {}).items()]
PARAMETERS = [(owner, old, name) for owner, old, name in ATTRIBUTES if owner in BY_NAME and not name.endswith("_")]


@pytest.mark.parametrize("owner", OWNERS)
def test_new_names_exist_and_old_ones_do_not(owner: str) -> None:
    names, renamed = names_of(owner), NAMES.get(owner, {})
    assert {*renamed.values(), *VALUES.get(owner, {})} <= names
    assert not {*renamed} & names
    assert len({*renamed.values()}) == len(renamed), "two old names for one new one"
    for old, name in renamed.items():
        prefix = "--" if owner.startswith("dfact ") else ""
        assert f"`{prefix}{old}`" in CHANGELOG, old
        assert f"`{prefix}{name}`" in CHANGELOG, name


def test_no_estimator_spells_a_name_in_two_ways() -> None:
    """What one estimator has renamed is not a current name of another one."""
    for owner, renamed in NAMES.items():
        for entry in CATALOGUE if owner in CLASSES else ():
            ours = {*signature(entry.load()).parameters, *get_type_hints(entry.load())}
            assert not ours & {*renamed} - ALLOWED, entry.name


ALLOWED: set[str] = set()
"""Names with different meanings in different estimators."""


@pytest.mark.parametrize(("owner", "old", "name"), PARAMETERS)
def test_old_parameters_warn_and_work(owner: str, old: str, name: str) -> None:
    kind, value = CLASSES[owner], object()
    with pytest.warns(OldNameWarning, match=f"{owner}: {old} is an old name, which the next version drops; use {name}") as caught:
        model = kind(**{old: value})
    assert caught[0].filename == __file__
    assert model.get_params()[name] is value
    assert old not in model.get_params()
    assert clone(kind(**{name: 5})).get_params()[name] == 5
    with pytest.warns(OldNameWarning, match=f"use {name}") as caught:
        assert model.set_params(**{old: 3}) is model
    assert caught[0].filename == __file__
    assert getattr(model, name) == 3
    with pytest.raises(TypeError, match=f"{owner} has {name} and {old}, which is its old name; pass {name} alone"):
        kind(**{old: 1, name: 2})


@pytest.mark.parametrize(("owner", "old", "name"), ATTRIBUTES)
def test_old_attributes_warn_and_work(owner: str, old: str, name: str) -> None:
    kind, value = CLASSES[owner], object()
    instance = object.__new__(kind)
    with patch.object(kind, name, value, create=True), pytest.warns(OldNameWarning, match=f"{old} is an old name.* use {name}") as caught:
        assert getattr(instance, old) is value
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [(owner, name, old, new) for owner in OWNERS for name, renamed in VALUES.get(owner, {}).items() for old, new in renamed.items()],
)
def test_old_values_warn_and_work(owner: str, name: str, old: str, new: str) -> None:
    with pytest.warns(OldNameWarning, match=f"{name}='{old}' is an old name.* use {name}='{new}'"):
        assert current(owner, {name: old}) == {name: new}
    assert (f"`--{name} {old}`" if owner.startswith("dfact ") else f'`{name}="{old}"`') in CHANGELOG
    if owner in BY_NAME:
        with pytest.warns(OldNameWarning):
            model = CLASSES[owner](**{name: old})
        assert model.get_params()[name] == new
        model._check_parameters()


@pytest.mark.parametrize("owner", [owner for owner in OWNERS if owner.startswith("dfact ")])
def test_old_options_warn_and_work(owner: str) -> None:
    words = owner.split()[1:]
    for old, name in NAMES.get(owner, {}).items():
        for arguments, expected in ((["--{}", "3"], ["--{}", "3"]), (["--{}=3"], ["--{}=3"])):
            with pytest.warns(OldNameWarning, match=f"{owner}: {old} is an old name.* use {name}"):
                found = current_arguments([*words, *(argument.format(old) for argument in arguments)])
            assert found == [*words, *(argument.format(name) for argument in expected)]
    for name, renamed in VALUES.get(owner, {}).items():
        for old, new in renamed.items():
            with pytest.warns(OldNameWarning):
                assert current_arguments([*words, f"--{name}", old]) == [*words, f"--{name}", new]
    assert current_arguments([*words, "--", "--levels"]) == [*words, "--", "--levels"]


@pytest.mark.parametrize("owner", [owner for owner in OWNERS if not (owner in CLASSES or owner.startswith("dfact"))])
def test_old_keywords_of_functions_warn(owner: str) -> None:
    for old, name in NAMES.get(owner, {}).items():
        with pytest.raises(TypeError, match=f"{owner} has {name} and {old}"):
            function_of(owner)(*[None] * owner.count("."), **{old: 1, name: 1})


def test_an_old_value_in_its_place_warns() -> None:
    with pytest.warns(OldNameWarning, match="use rule='min'"), pytest.raises(dfact.ParameterError, match="grid is empty"):
        dfact.selection.block_cross_validate(dfact.ICQF(), np.eye(30), {}, (2, 2), 2, 1, "lowest")
    with pytest.raises(TypeError, match="takes from 3 to 7 positional arguments but 8 were given"):
        dfact.selection.block_cross_validate(dfact.ICQF(), np.eye(30), {}, (2, 2), 2, 1, "min", "more")  # type: ignore[misc]


@pytest.mark.parametrize("owner", [owner for owner in OWNERS if owner.startswith("dfact.")])
def test_old_functions_warn_and_work(owner: str) -> None:
    for old, name in NAMES[owner].items():
        with pytest.warns(OldNameWarning, match=f"{owner}: {old} is an old name.* use {name}"):
            assert getattr(import_module(owner), old) is getattr(import_module(owner), name)


@pytest.mark.parametrize("owner", OWNERS)
def test_stored_names_are_read(owner: str) -> None:
    given = dict.fromkeys(NAMES.get(owner, {}).values(), 0)
    given |= {name: new for name, renamed in VALUES.get(owner, {}).items() for new in renamed.values()}
    kind = CLASSES.get(owner, owner)
    assert not {*stored(kind, given)} & {*NAMES.get(owner, {}).values()}
    assert current(kind, stored(kind, given), warn=False) == given


@pytest.mark.parametrize("page", TEXTS)
def test_pages_use_the_new_names(page: str) -> None:
    """OldNameWarning is an error in tests, so that an old option or value in a command fails; examples in Python run elsewhere."""
    for command in re.findall(r"^ *dfact ((?:.*\\\n)*.+)$", TEXTS[page], re.MULTILINE):
        current_arguments(command.replace("\\\n", " ").split())


def test_examples_of_commands_use_the_new_names() -> None:
    for line in iter_examples(cli):
        current_arguments(line.split())


def iter_examples(command: click.Command) -> Iterator[str]:
    for line in (command.epilog or "").replace("\\\n", " ").splitlines():
        if line.strip().startswith("dfact "):
            yield line.strip().removeprefix("dfact ")
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from iter_examples(each)


def write_job(path: Path, step: str) -> None:
    path.write_text(f'[[step]]\nrun = "fit gom"\ndata = "d.zarr"\nmodel = "{path.stem}.model"\ncomponents = 2\n{step}\n')


def test_a_job_of_old_names_runs_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = np.random.default_rng(0).integers(1, 4, (200, 8))
    dfact.import_array(answers, tmp_path / "d.zarr")
    job = tmp_path / "job.toml"
    write_job(job, "levels = 5")
    assert main(["run", str(job)]) == 0
    assert "Warning: dfact fit gom: levels is an old name, which the next version drops; use max-response" in capsys.readouterr().err
    model = dfact.load_model(tmp_path / "job.model")
    assert model.max_response == 5
    write_job(job, "max-response = 5")
    assert main(["run", str(job)]) == 0
    assert "already done" in capsys.readouterr().err, "the new name alone changes nothing"
    write_job(job, "max-response = 5\nlevels = 5")
    assert main(["run", str(job)]) == 2
    assert "dfact fit gom has max-response and levels, which is its old name; pass max-response alone" in " ".join(
        capsys.readouterr().err.split()
    )


def test_an_old_option_is_printed_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.import_array(np.random.default_rng(0).integers(1, 4, (200, 8)), tmp_path / "d.zarr")
    fit = ["fit", "gom", str(tmp_path / "d.zarr"), str(tmp_path / "m.model"), "-k", "2"]
    assert main([*fit, "--levels", "5"]) == 0
    output = capsys.readouterr()
    assert "Warning: dfact fit gom: levels is an old name, which the next version drops; use max-response" in output.err
    assert dfact.load_model(tmp_path / "m.model").max_response == 5
