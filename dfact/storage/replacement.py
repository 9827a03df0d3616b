"""Folders: the replacement of one by another, so that one is complete at any time, even after a power cut; the removal of new ones."""

import ctypes
import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_REPLACED = ".replaced"


def replace_folder(new: Path, path: Path) -> None:
    """Rename the folder ``new`` to ``path``; an existing one there is deleted afterwards.

    Where the system can exchange two names, a folder is at ``path`` at any time. Elsewhere there is none between two renames, and
    :func:`restore_folder` puts the earlier one back after an interruption.
    """
    if not path.exists():
        new.rename(path)
        return
    sync_folder(new)  # before the earlier one goes: the system may still hold the new bytes in memory alone
    if _exchange(new, path):
        sync(path.parent)
        delete_folder(new, ignore_errors=True)
    else:
        old = path.with_name(path.name + _REPLACED)
        delete_folder(old, ignore_errors=True)
        path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            old.rename(path)
            raise
        sync(path.parent)
        delete_folder(old, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Let the system write all files of a folder to the disk, and the names of its files and folders."""
    for folder, _, files in os.walk(path):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))
    sync(path.parent)


def sync(path: Path) -> None:
    """Let the system write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_folder(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder, or a link to one without what it leads to."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=ignore_errors)


def replaced_folder(path: Path) -> Path | None:
    """Return the earlier folder of ``path`` if its replacement was interrupted between two renames."""
    old = path.with_name(path.name + _REPLACED)
    return old if old.exists() and not path.exists() else None


def restore_folder(path: Path) -> None:
    """Rename the earlier folder of ``path`` back if its replacement was interrupted."""
    if (old := replaced_folder(path)) is not None:
        old.rename(path)


def absent_parents(path: Path) -> list[Path]:
    """Return the folders above a path that do not exist yet, the deepest first."""
    return [parent for parent in path.parents if not parent.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Delete those of the folders that are empty, the deepest first."""
    for folder in folders:
        with suppress(OSError):  # not empty, or never created
            folder.rmdir()


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders at once. Return whether the system and the file system can do so."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # not Linux, or an old C library
        return False
    if rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(second))
