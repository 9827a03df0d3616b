"""Many cases of one claim as one test."""

import inspect
import itertools
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


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
