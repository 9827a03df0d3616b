"""The examples in docstrings run as they stand, each in a folder of its own, and every public name has one."""

import doctest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import dfact

NEEDS_NONE = {
    "ClusterError": "an error",
    "DataError": "an error",
    "DfactError": "an error",
    "FederationError": "an error",
    "MemoryPlanError": "an error",
    "ParameterError": "an error",
    "StoreError": "an error",
    "examples": "a module, whose names have examples",
    "report": "a module, whose names have examples",
    "selection": "a module, whose names have examples",
}
"""Public names that an example would say nothing about, with the reason."""


def public_names() -> list[str]:
    return [
        *dfact.__all__,
        *(f"selection.{name}" for name in dfact.selection.__all__),
        *(f"report.{name}" for name in dfact.report.__all__),
        *(f"examples.{name}" for name in dfact.examples.__all__),
    ]


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    names = [dfact.__name__, *(module.name for module in walk_packages(dfact.__path__, f"{dfact.__name__}."))]
    for name in names:
        yield from (found for found in finder.find(import_module(name), name) if found.examples)


EXAMPLES = {found.name: found for found in examples()}


@pytest.mark.further
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_what_it_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = EXAMPLES[name]
    example.globs = {}  # a reader types the imports as well
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)


def test_no_example_is_skipped() -> None:
    skipped = [name for name, found in EXAMPLES.items() if any(doctest.SKIP in one.options for one in found.examples)]
    assert skipped == []


def test_every_public_name_has_an_example() -> None:
    documented = set()
    for name in public_names():
        value = dfact
        for part in name.split("."):
            value = getattr(value, part)
        home = value.__name__ if name in ("examples", "report", "selection") else f"{value.__module__}.{value.__qualname__}"
        if home in EXAMPLES:
            documented.add(name)
    assert sorted(set(public_names()) - documented - NEEDS_NONE.keys()) == []
    assert sorted(NEEDS_NONE.keys() - set(public_names())) == [], "reasons without their name"
    assert sorted(NEEDS_NONE.keys() & documented) == [], "names with an example that need no reason"
