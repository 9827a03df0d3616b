"""Files that are whole or not there."""

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
_LOCK = "in-use"  # held by the process that has the folder, however that ends


class TemporaryFolder:
    """A new folder in TMPDIR."""

    def __init__(self, purpose: str) -> None:
        _remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        unlocked = self.path / f"{_LOCK}-soon"
        self._lock: int | None = os.open(unlocked, os.O_CREAT | os.O_WRONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)  # nobody finds it before it is held

    def remove(self) -> None:
        with shield():  # in a finalizer, where an error stops nothing but the removal
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:  # once: the number may be another file's by now
            os.close(self._lock)
            self._lock = None

    def remove_with(self, owner: Any) -> None:
        """The folder goes with its owner, or with the process."""
        weakref.finalize(owner, self.remove)


def _remove_stale() -> None:
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # In use, gone already, or not ours to remove.
        with suppress(OSError), place.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A place beside ``path`` to write to, which takes its place when the block ends without an error, and goes otherwise."""
    unfinished = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; nothing was left behind there") from error
    finally:
        with suppress(OSError):  # it is not there where all went well, or its folder could not be made
            unfinished.unlink()
