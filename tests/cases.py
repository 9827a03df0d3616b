"""Many cases of one claim as one test, and the cases that represent all in the default run."""

import inspect
import itertools
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


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


def exhaustive_after(kept: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``: the first ones represent all in the default run, the others are marked ``exhaustive``."""
    return [case if number < kept else _exhaustive(case) for number, case in enumerate(cases)]


def exhaustive_unless(kept: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``: those with this property represent all in the default run."""
    return [case if kept(case) else _exhaustive(case) for case in cases]


def _exhaustive(case: Any) -> Any:
    values, marks, name = (case.values, case.marks, case.id) if hasattr(case, "marks") else (case, (), None)
    return pytest.param(*(values if isinstance(values, tuple) else (values,)), marks=[*marks, pytest.mark.exhaustive], id=name)
