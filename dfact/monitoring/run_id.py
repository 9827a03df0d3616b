"""The id of a run: one text in the logs and metrics of a driver, its scheduler and its workers, and in the record of a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

SETTING = "dfact.run-id"
"""The setting in ``dask.config`` that all processes of a run share."""


def run_id() -> str:
    """Return the id of the run that this process belongs to; empty if none was given."""
    import dask

    return str(dask.config.get(SETTING, None) or "")


@contextmanager
def use_run_id(given: str | None = None) -> Iterator[str]:
    """Give this process, and those that it starts, the id that is ``given`` or configured, else a new one; yields it."""
    import dask

    name = given or run_id() or uuid4().hex[:12]
    with dask.config.set({SETTING: name}):
        yield name
