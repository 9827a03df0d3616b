"""The catalogue of models names every model, and only models that exist."""

import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest

import dfact
import dfact.models
from dfact.catalogue import BY_COMMAND, CATALOGUE, INSTALLED, Entry
from dfact.cli.main import cli
from dfact.models.estimator import Factorization


def subclasses(kind: type[Factorization]) -> set[type[Factorization]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_every_factorization_is_in_the_catalogue() -> None:
    for room in ("models", *(each.name for each in INSTALLED if each.models)):
        for module in walk_packages(import_module(f"dfact.{room}").__path__, f"dfact.{room}."):
            import_module(module.name)
    # A class that prepares no fit of its own is a base of others.
    models = {kind for kind in subclasses(Factorization) if kind.__module__.startswith("dfact.") and "_prepare" in vars(kind)}
    current = {(entry.name, entry.module) for entry in CATALOGUE}
    assert {(kind.__name__, kind.__module__) for kind in models - {Factorization}} == current


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_each_entry_resolves_to_a_public_class(entry: Entry) -> None:
    kind = entry.load()
    assert issubclass(kind, Factorization)
    assert kind.__name__ == entry.name
    assert kind.__module__ == entry.module
    assert getattr(dfact, entry.name) is kind


def test_public_estimators_are_those_of_the_catalogue() -> None:
    public = {name for name in dfact.__all__ if isinstance(getattr(dfact, name), type) and issubclass(getattr(dfact, name), Factorization)}
    assert public == {entry.name for entry in CATALOGUE}


def test_commands_of_the_catalogue_are_those_that_fit_models() -> None:
    assert set(cli.commands["fit"].commands) == set(BY_COMMAND)  # type: ignore[attr-defined]  # click types groups as commands


def test_the_catalogue_imports_no_model() -> None:
    code = "import sys, dfact; print(*(name for name in sys.modules if name.split('.')[0] in ('numba', 'sklearn', 'numpy')))"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
