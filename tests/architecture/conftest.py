"""Fixtures of the tests of the architecture."""

import gc
from collections.abc import Iterator

import pytest

from tests.architecture.layers import imported, nodes


@pytest.fixture(scope="package", autouse=True)
def _forgotten() -> Iterator[None]:
    """Forget the syntax trees in the end: the garbage collector would walk through half a million objects in all later tests.

    It is off meanwhile, as it would take most of the time of parsing.
    """
    gc.disable()
    yield
    nodes.cache_clear()
    imported.cache_clear()
    gc.enable()
