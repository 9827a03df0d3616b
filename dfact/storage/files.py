"""Files that are complete or absent, and temporary folders."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from dfact.errors import StoreError
from dfact.signals import finish_before_stop
from dfact.storage.folder_owners import is_stale, owner_tag
from dfact.storage.groups import partial_path
from dfact.storage.location import Location
from dfact.storage.remote_files import describe, file_name, upload
from dfact.storage.replacement import absent_parents, remove_empty, sync

_PREFIX = "dfact-"
_folders: set[Path] = set()
"""The temporary folders of this process that have not been removed."""
_PRIVATE = 0o600  # for the user alone


class TemporaryFolder:
    """A new folder in TMPDIR for its user alone. If its process is killed, a later one of the same host removes it."""

    def __init__(self, purpose: str) -> None:
        _remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-{owner_tag()}."))
        _folders.add(self.path)

    def remove(self) -> None:
        """Delete the folder."""
        _folders.discard(self.path)
        with finish_before_stop():  # runs in a finalizer, where an exception of a signal handler would only interrupt the deletion
            shutil.rmtree(self.path, ignore_errors=True)

    def remove_with(self, owner: Any) -> None:
        """Delete the folder when ``owner`` is collected or the process ends."""
        weakref.finalize(owner, self.remove)

    def new_file(self, name: str) -> int:
        """Create a file for its user alone, and return its descriptor for reading and writing."""
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)


def is_temporary(location: Location | None) -> bool:
    """Return whether a location lies in a temporary folder of this process."""
    return isinstance(location, Path) and not _folders.isdisjoint(location.parents)


def _remove_stale() -> None:
    """Remove the folders that killed processes of this host and user have left in TMPDIR."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # already removed
            status = folder.lstat()
            # A folder or link of another user could lead anywhere.
            if is_stale(folder.name) and S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _uploaded_file(url: str) -> Iterator[Path]:
    """Yield a path in a temporary folder. Its file becomes the object at the URL if the block succeeds."""
    folder = TemporaryFolder("upload")
    try:
        partial = folder.path / file_name(url)
        yield partial
        upload(partial, url)
    finally:
        folder.remove()


@contextmanager
def atomic_file(path: Location) -> Iterator[Path]:
    """Yield a path next to ``path`` to write to. The file moves to ``path`` if the block succeeds.

    Otherwise it is deleted, with the folders that were created for it. A file for an object store is written in TMPDIR and uploaded.
    """
    if isinstance(path, str):
        with _uploaded_file(path) as partial:
            yield partial
        return
    partial, new = partial_path(path), list[Path]()
    try:
        new = absent_parents(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # of a writer that was killed, or a link to somewhere else
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        yield partial
        if path.exists():
            sync(partial)  # before the earlier file goes
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; no partial file is left") from error
    finally:
        with suppress(OSError):  # absent after success, or if its folder could not be created
            partial.unlink()
        remove_empty(new)


def file_size(location: Location) -> int:
    """Return the size of a file or an object in bytes."""
    if isinstance(location, Path):
        return location.stat().st_size
    found = describe(location)
    if found is None:
        raise StoreError(f"{location} does not exist, expected a file")
    return found[0]
