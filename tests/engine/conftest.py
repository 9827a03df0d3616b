"""What the tests of clusters share."""

from collections.abc import Iterator

import pytest

from benchmarks.faults.fits import Processes


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A cluster whose workers may be killed."""
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes
