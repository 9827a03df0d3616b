"""Many cases of one claim as one test, and the tiers of the cases of a test."""

import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dfact.catalogue import BY_NAME, MISSING

ABSENT = {name.rpartition(".")[2] for each in MISSING for name in (*each.names, *each.commands)}
ABSENT |= {str(name) for each in MISSING for entry in each.models for name in (entry.name, entry.command)}
"""Functions, models and commands that are not installed: cases of tests whose names begin with these do not run."""
Case = TypeVar("Case")


def installed(name: str) -> bool:
    """Whether a slice is there, for tests of many models at once."""
    return all(each.name != name for each in MISSING)


def of_installed(models: dict[str, Case]) -> dict[str, Case]:
    """Those whose names do not begin with that of something that is not installed."""
    return {name: case for name, case in models.items() if first_word(name) not in ABSENT}


def first_word(name: str) -> str:
    """The word with which the name of a case begins, such as ``Admixture.fit``."""
    return re.split(r"[^A-Za-z]", name)[0]


def every(**values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for all combinations of these arguments, and list the cases that fail.

    For cases that are trivial apart: a few milliseconds each, of which none says more than another where it fails.
    """
    names = list(values)
    combinations = list(itertools.product(*values.values()))

    def fold(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(*arguments: Any, **fixtures: Any) -> None:
            failed: dict[str, AssertionError] = {}
            for combination in combinations:
                case = dict(zip(names, combination, strict=True))
                try:
                    test(*arguments, **fixtures, **case)
                except AssertionError as error:
                    failed[str(case)] = error
            if failed:
                first, cases = next(iter(failed.values())), ", ".join(failed)
                raise AssertionError(f"{len(failed)} of {len(combinations)} cases fail: {cases}; the first is\n{first}") from first

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # read by pytest
            parameters=[parameter for name, parameter in signature.parameters.items() if name not in names]
        )
        return run

    return fold


def unseal(path: Path) -> None:
    """Remove the seal of a stored dataset, which finds every change, so that a test reaches the checks of datasets without one."""
    document = json.loads((path / "zarr.json").read_text())
    del document["attributes"]["dfact"]["seal"]
    (path / "zarr.json").write_text(json.dumps(document))


def exhaustive_after(kept: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``: the first ones represent all, the others are marked ``exhaustive``."""
    return [case if number < kept else _marked(case, pytest.mark.exhaustive) for number, case in enumerate(cases)]


def exhaustive_unless(kept: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``: those with this property represent all, the others are marked ``exhaustive``."""
    return [case if kept(case) else _marked(case, pytest.mark.exhaustive) for case in cases]


def further_unless(kept: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``: those with this property are default tests, the others are marked ``further``."""
    return [case if kept(case) else _marked(case, pytest.mark.further) for case in cases]


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    values, marks, name = (case.values, case.marks, case.id) if hasattr(case, "marks") else (case, (), None)
    return pytest.param(*(values if isinstance(values, tuple) else (values,)), marks=[*marks, mark], id=name)


def of_slice(name: str, *arguments: Any, **settings: Any) -> list[Any]:
    """Return a list with a model that a slice of dfact may have, by the name of its class; an empty one without the slice."""
    return [BY_NAME[name].load()(*arguments, **settings)] if name in BY_NAME else []


def needing(slice_: str, which: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``: those with this property need a slice of dfact, and are left out without it."""
    return [_marked(case, pytest.mark.needs(slice_)) if which(case) else case for case in cases]
