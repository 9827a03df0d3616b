"""The id of a run: one text in the logs and metrics of a driver, its scheduler and its workers, and in the record of a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from dfact.settings import setting

SETTING = "dfact.run-id"
"""The setting in ``dask.config`` that all processes of a run share."""
_used: list[str] = []
"""The ids that this process uses, the present one last."""


def run_id() -> str:
    """Return the id of the run that this process belongs to; empty if none was given."""
    return _used[-1] if _used else str(setting(SETTING) or "")


@contextmanager
def use_run_id(given: str | None = None) -> Iterator[str]:
    """Give this process the id that is ``given`` or configured, else a new one; yields it."""
    name = given or run_id() or uuid4().hex[:12]
    _used.append(name)
    try:
        yield name
    finally:
        _used.pop()
