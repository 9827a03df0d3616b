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
from dfact.storage.location import Location
from dfact.storage.remote_files import describe, file_name, object_version, upload
from dfact.storage.replacement import changed, is_stale, owner_tag, written_beside

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
def _uploaded_file(url: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield a path in a temporary folder. Its file becomes the object at the URL if the block succeeds."""
    found = object_version(url)
    if found is not None and not overwrite:
        raise _exists(url)
    folder = TemporaryFolder("upload")
    try:
        partial = folder.path / file_name(url)
        yield partial
        if not upload(partial, url, found):
            raise changed(url)
    finally:
        folder.remove()


@contextmanager
def atomic_file(path: Location, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path next to ``path`` to write to. The file moves to ``path`` if the block succeeds.

    Otherwise it is deleted, with the folders that were created for it. A file for an object store is written in TMPDIR and uploaded.

    Raises
    ------
    StoreError
        ``path`` exists (unless ``overwrite``) or has been changed meanwhile, or cannot be written.
    """
    if isinstance(path, str):
        with _uploaded_file(path, overwrite=overwrite) as partial:
            yield partial
        return

    def check() -> None:
        if path.exists() and not overwrite:
            raise _exists(path)

    def create(new: Path) -> None:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))

    with written_beside(path, "file", create, check) as partial:
        yield partial


def _exists(location: Location) -> StoreError:
    return StoreError(f"{location} exists already, expected a new path; choose another one or replace it with overwrite=True (--overwrite)")


def file_size(location: Location) -> int:
    """Return the size of a file or an object in bytes."""
    if isinstance(location, Path):
        return location.stat().st_size
    found = describe(location)
    if found is None:
        raise StoreError(f"{location} does not exist, expected a file")
    return found[0]
