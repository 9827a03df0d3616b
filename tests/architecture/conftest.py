"""Fixtures of the tests of the architecture."""

from collections.abc import Iterator

import pytest

from tests.architecture.layers import imported, nodes


@pytest.fixture(scope="package", autouse=True)
def _forgotten() -> Iterator[None]:
    """Forget the syntax trees in the end: half a million objects would slow down the garbage collector in all later tests."""
    yield
    nodes.cache_clear()
    imported.cache_clear()
