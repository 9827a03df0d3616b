"""The handshake of driver and workers: the same versions, and a statement where bits may differ.

A worker takes part only with the versions of the driver, of dfact and of the libraries that compute. It checks them itself, as it joins a
session and in each task, and its refusal names both versions and the remedy. Processors may differ: the session goes on, logs which
processes compute with which instructions, and keeps their environments for the model and the checkpoint.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from dfact.engine.cluster.transport import Pickled
from dfact.engine.environment import (
    Environment,
    as_fields,
    current_environment,
    mixed_text,
    version_mismatch,
)
from dfact.errors import ClusterError

logger = logging.getLogger("dfact.cluster")
_REMEDY = "install the same versions on all machines"
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")


def driver_fields() -> dict[str, str]:
    """Return the environment of this process, the driver, as it is sent to workers."""
    return as_fields(current_environment())


def verify_versions(driver: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of this process, a worker; raise ClusterError unless its versions are those of the driver."""
    fields = as_fields(current_environment())
    if driver is None:
        raise ClusterError(
            f"it has dfact {fields['dfact']}, and the dfact of the driver is older and does not state its version; {_REMEDY}"
        )
    if (mismatch := version_mismatch(fields, driver)) is not None:
        raise ClusterError(f"it {mismatch}, the driver's; {_REMEDY}")
    return fields


def verify_versions_in_task(driver: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the same in a task of a worker, by the worker's address, which the error names."""
    from distributed import get_worker

    address = get_worker().address
    try:
        return {address: verify_versions(driver)}
    except ClusterError as error:
        raise ClusterError(f"worker {address} cannot run a task: {error}") from error


def refusal(error: BaseException) -> str:
    """Return why a worker could not join; one whose dfact does not know the handshake fails at its argument."""
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        expected = current_environment().dfact
        return f"its dfact is older than that of the driver and does not state its version, expected dfact {expected}; {_REMEDY}"
    return str(error) or type(error).__name__


class SessionEnvironments:
    """The environments of the processes of one session, the driver's first."""

    def __init__(self) -> None:
        self._named: dict[str, Environment] = {"the driver": current_environment()}

    @property
    def distinct(self) -> list[Environment]:
        """Environments that compute differently, each once."""
        return list(self._named.values())

    def add(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        """Add workers by their addresses, with their replies; state it if they bring new instructions."""
        before = len(self._named)
        for address, fields in workers.items():
            environment = Environment(**fields)
            if not any(environment.computes_as(known) for known in self._named.values()):
                self._named[f"worker {address}"] = environment
        if len(self._named) > before:
            logger.warning("The %s", mixed_text(self._named))


def run_task(
    driver: dict[str, str], work: Pickled[tuple[Callable[[T, D], Iterable[R]], T, Callable[[], AbstractContextManager[object]]]], data: D
) -> tuple[dict[str, dict[str, str]], list[R]]:
    """Return the environment of this worker by its address, and the results."""
    environment, (function, task, context) = verify_versions_in_task(driver), work.value
    with context():
        return environment, list(function(task, data))
