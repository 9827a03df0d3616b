"""Settings: Dask's configuration, read without importing Dask unless it is needed, the id of this run, the processors and the screen."""

import os
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

_ENDINGS = (".json", ".yaml", ".yml")


def setting(name: str, default: Any = None) -> Any:
    """Return the value of a name in ``dask.config``. Importing Dask takes a tenth of a second, and a default needs none of it."""
    if "dask" not in sys.modules and not _is_configured():
        return default
    import dask

    return dask.config.get(name, default)


@cache
def _is_configured() -> bool:
    """Return whether an environment variable or a file sets anything. The files that Dask writes hold comments alone."""
    if any(name.startswith("DASK_") for name in os.environ):
        return True
    prefixes = (Path(prefix) for prefix in (sys.prefix, *site.PREFIXES))
    folders = (Path("/etc/dask"), Path.home() / ".config/dask", *(prefix / "etc/dask" for prefix in prefixes))
    files = (file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.suffix in _ENDINGS)
    texts = (file.read_text(errors="replace") for file in files if os.access(file, os.R_OK))
    return any(line.strip() and not line.lstrip().startswith("#") for text in texts for line in text.splitlines())


def processors() -> int:
    """Return the number of processors that this process may use, by its affinity and the quotas of control groups."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in _quotas(Path("/")):
        count = min(count, ceil(quota / period))
    return max(count, 1)


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the microseconds of processors that a control group of either version grants, and the period for which it does."""
    groups = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):  # "max" is not a number, and other systems have no control groups
        own = (root / "proc/self/cgroup").read_text().strip().rpartition(":")[2].lstrip("/")
        quota, period = map(int, (groups / own / "cpu.max").read_text().split())
        yield quota, period
    for name in ("cpuacct,cpu", "cpu,cpuacct"):
        with suppress(OSError, ValueError):
            quota, period = (int((groups / name / f"cpu.cfs_{each}_us").read_text()) for each in ("quota", "period"))
            if quota > 0:  # −1 without a limit
                yield quota, period


def in_notebook() -> bool:
    """Return whether this process runs the cells of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def is_watched(stream: TextIO) -> bool:
    """Return whether a user sees what is written to the stream at once."""
    return stream.isatty() or (in_notebook() and stream in (sys.stdout, sys.stderr))


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
