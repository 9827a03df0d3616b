"""Files that are complete or absent, and temporary folders."""

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dfact.errors import StoreError
from dfact.signals import shield
from dfact.storage.groups import partial_path

_PREFIX = "dfact-"
_LOCK = "in-use"  # locked by the process that uses the folder; the system releases the lock when that process ends


class TemporaryFolder:
    """A new folder in TMPDIR, locked while its process lives."""

    def __init__(self, purpose: str) -> None:
        _remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        unlocked = self.path / f"{_LOCK}-soon"
        self._lock: int | None = os.open(unlocked, os.O_CREAT | os.O_WRONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)  # renamed once locked: another process would take an unlocked folder for a stale one

    def remove(self) -> None:
        """Delete the folder and release its lock."""
        with shield():  # runs in a finalizer, where an exception of a signal handler would only interrupt the deletion
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:  # close once: the system may since have given the descriptor to another file
            os.close(self._lock)
            self._lock = None

    def remove_with(self, owner: Any) -> None:
        """Delete the folder when ``owner`` is collected or the process ends."""
        weakref.finalize(owner, self.remove)


def _remove_stale() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # An OSError: the folder is in use, already removed, or belongs to another user.
        with suppress(OSError), path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to. The file moves to ``path`` if the block succeeds and is deleted otherwise."""
    partial = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; no partial file is left") from error
    finally:
        with suppress(OSError):  # absent after success, or if its folder could not be created
            partial.unlink()
