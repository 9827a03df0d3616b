"""Tasks of an executor on the workers of a cluster."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from dfact.engine.cluster.handshake import verify_versions_in_task
from dfact.engine.cluster.transport import Pickled

D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")


def run_task(
    driver: dict[str, str], work: Pickled[tuple[Callable[[T, D], Iterable[R]], T, Callable[[], AbstractContextManager[object]]]], data: D
) -> tuple[dict[str, dict[str, str]], list[R]]:
    """Return the environment of this worker by its address, and the results."""
    environment, (function, task, context) = verify_versions_in_task(driver), work.value
    with context():
        return environment, list(function(task, data))
