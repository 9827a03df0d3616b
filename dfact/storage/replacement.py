"""Files and folders that replace others, so that one is complete at any time, even after a power cut; the removal of new ones."""

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dfact.errors import StoreError
from dfact.storage.arrays import reason
from dfact.storage.location import Location
from dfact.storage.writers import Writer, changed, locked, partial_prefix, take_turn, takes_over, writer_name, writer_of

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
SCRATCH, _REPLACED = "scratch", "replaced"
_METADATA = "zarr.json"


@contextmanager
def written_beside(path: Path, what: str, create: Callable[[Path], Any], check: Callable[[], None]) -> Iterator[Path]:
    """Yield a new "store" or "file" beside ``path``, which ``create`` makes there, and put it in place after the block.

    ``check`` raises an error if what is at the path is not to be replaced; what passes it must still be there in the end. After an
    error the path is as it was, without the folders that were created for it.

    Raises
    ------
    StoreError
        It cannot be written, or another writer is at work or has been faster.
    """
    prefix, new = partial_prefix(path), list[Path]()
    with writer_name(prefix) as name:
        own, found = path.with_name(name), None

        def attempt() -> Writer | None:
            nonlocal found
            while (other := _living(path)) is None:
                restore_folder(path)
                remove_ended(path)
                found = _version(path)
                check()
                with locked(path.parent):
                    if (other := _living(path)) is None and _version(path) == found:
                        create(own)
                        return None
            return other

        try:
            new = absent_parents(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            take_turn(path, attempt)
            created = _inode(own)
            yield own
            if found is not None:
                sync_folder(own)  # before the earlier one goes: the system may still hold the new bytes in memory alone
            with locked(path.parent):
                if _inode(own) != created:
                    raise StoreError(f"{own} has been removed or replaced, expected it to be left alone; run the same command again")
                if _version(path) != found:
                    raise changed(path)
                _put_in_place(own, path, found, path.with_name(f"{partial_prefix(path, _REPLACED)}{name.removeprefix(prefix)}"))
            delete(own, ignore_errors=True)  # the earlier one, after an exchange
        except BaseException as error:
            deleted = succeeds(lambda: delete(own))
            remove_empty(new)
            explain(error, path, f"no partial {what} is left" if deleted else f"a partial {what} may remain at {own}: delete it")
            raise


def succeeds(deletion: Callable[[], None]) -> bool:
    """Delete what an error has left; return whether the system could do so."""
    try:
        deletion()
    except OSError:
        return False
    return True


def explain(error: BaseException, location: Location, left: str) -> None:
    """Raise StoreError if an error is one of the system, with what it has left of the writing of a location."""
    # A lost connection to a cluster is an OSError too, but without the system's error number.
    if isinstance(error, OSError) and (not left.startswith("no ") if isinstance(error, StoreError) else error.errno is not None):
        raise StoreError(f"cannot write {location}: {reason(error)}; {left}") from error


def _living(path: Path) -> Writer | None:
    """Return a writer of the path that is at work; let those whose work this process has taken over find that theirs is gone."""
    if not takes_over():
        return next((writer for writer in writers_of(path) if writer.lives()), None)
    for writer in writers_of(path):
        if writer.pid == os.getpid() and writer.lives():
            return writer
        with writer_name(partial_prefix(path)) as name:
            with suppress(FileNotFoundError):
                path.with_name(writer.name).rename(path.with_name(name))
            delete(path.with_name(name), ignore_errors=True)
    return None


def _put_in_place(own: Path, path: Path, found: Any, aside: Path) -> None:
    """Rename ``own`` to ``path``, where the version ``found`` is. Where two names cannot be exchanged, that one lies aside meanwhile."""
    if found is None and not path.is_symlink():
        _rename_to_absent(own, path)
    elif not own.is_dir():
        own.replace(path)
    elif not _exchange(own, path):
        path.rename(aside)
        try:
            if _version(aside) != found:  # without a lock
                raise changed(path)
            own.rename(path)
            sync(path.parent)
        except BaseException:
            aside.rename(path)
            raise
        delete(aside, ignore_errors=True)
    if found is not None:
        sync(path.parent)


def _rename_to_absent(own: Path, path: Path) -> None:
    """Rename a file or a folder to a path at which nothing is, even where the lock has no effect."""
    try:
        if own.is_dir():
            own.rename(path)
            return
        try:
            os.link(own, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            own.rename(path)
        else:
            own.unlink()
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise changed(path) from error
        raise


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _version(path: Path) -> Any:
    """Return what differs between versions of a file, or of the metadata of a store; None if nothing is there."""
    try:
        status = path.stat()
        with suppress(FileNotFoundError, NotADirectoryError):
            inner = (path / _METADATA).stat()
            return status.st_dev, status.st_ino, inner.st_ino, inner.st_mtime_ns, inner.st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def writers_of(path: Path, use: str = "incomplete") -> list[Writer]:
    """Return the writers of a path that have left something beside it."""
    prefix = partial_prefix(path, use)
    try:
        names = os.listdir(path.parent)  # noqa: PTH208  # the names alone
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [writer for name in names if (writer := writer_of(name, prefix)) is not None]


def remove_ended(path: Path) -> None:
    """Delete what writers of the path have left that are known to have ended."""
    for writer in (*writers_of(path), *writers_of(path, SCRATCH)):
        if writer.lives() is False:
            delete(path.with_name(writer.name))
    if earlier := writers_of(path, _REPLACED):
        with locked(path.parent):
            for writer in earlier:
                if path.exists() and writer.lives() is False:
                    delete(path.with_name(writer.name))


def sync_folder(path: Path) -> None:
    """Let the system write all files of a folder to the disk, and the names of its files and folders; or a single file."""
    if not path.is_dir():
        sync(path)
        return
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


def delete(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a file, a folder, or a link without what it leads to; it may be gone, and another process may delete it, too."""
    if path.is_dir() and not path.is_symlink():
        with suppress(FileNotFoundError):
            shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        with suppress(OSError if ignore_errors else (FileNotFoundError, NotADirectoryError)):  # type: ignore[arg-type]  # classes
            path.unlink()


def restore_folder(path: Path) -> Path:
    """Rename the earlier folder of ``path`` back if its replacement was interrupted between two renames.

    Return where the folder is: beside the path if this process may not rename it.
    """
    if path.exists() or not writers_of(path, _REPLACED):
        return path
    with suppress(FileNotFoundError), locked(path.parent):
        for writer in writers_of(path, _REPLACED):
            if not path.exists():
                try:
                    path.with_name(writer.name).rename(path)
                except PermissionError:
                    return path.with_name(writer.name)
                except OSError as error:
                    if error.errno == errno.EROFS:
                        return path.with_name(writer.name)
                    raise
    return path


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
