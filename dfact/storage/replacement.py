"""Files and folders that replace others, so that one is complete at any time, even after a power cut; the removal of new ones.

A writer works beside the location under a name of its own, so that no other one touches its work, and what it replaces must be what it
found when it began. While another writer of the same host is at work, it waits, unless it has taken over that work. Those of other hosts
cannot be seen to live or to have ended; whoever ends first has written the location, and the others find it changed. On a disk, looking
and replacing are one step under a lock of the folder above, where its file system has locks; in an object store the request that
replaces is a conditional one.

The name contains the process. Several machines may share a folder, and locks of files do not hold on all network file systems, so it
consists of the host, the boot id, the PID namespace, the process id and the start time of the process.
``dfact/batch/manifests/node-entrypoint`` makes such names too.
"""

import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from dfact.errors import StoreError
from dfact.storage.location import Location

_PROC = Path("/proc")


@cache
def host() -> str:
    """Return the name of this host with its boot and the namespace in which its process ids hold, joined by dots."""
    boot, pid_namespace = "0", "0"
    with suppress(OSError):  # other systems than Linux have none of the two
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        pid_namespace = "".join(filter(str.isdigit, (_PROC / "self/ns/pid").readlink().name))
    return f"{socket.gethostname()}.{boot}.{pid_namespace}"


def process_start(pid: int) -> str | None:
    """Return when a process of this host began, as text that differs from any other process with the same id; None if there is none."""
    if _PROC.is_dir():
        try:
            return (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()[19]  # ticks since the boot
        except (FileNotFoundError, ProcessLookupError):
            return None
    import psutil

    try:
        return str(round(psutil.Process(pid).create_time() * 100))
    except psutil.NoSuchProcess:
        return None


def owner_tag() -> str:
    """Return this process's part of the name of a temporary folder."""
    pid = os.getpid()
    return f"{host()}.{pid}.{process_start(pid)}"


def is_stale(name: str) -> bool:
    """Return whether a folder with this name, ``…-OWNER.RANDOM``, belongs to a process of this host that has ended."""
    if f"-{host()}." not in name:
        return False  # another host's, or of an earlier boot: nothing here tells whether its owner lives
    pid, _, rest = name.partition(f"-{host()}.")[2].partition(".")
    start = rest.partition(".")[0]
    return pid.isdecimal() and start.isdecimal() and process_start(int(pid)) != start


logger = logging.getLogger(__name__)

WAIT_SECONDS = 60.0
"""A writer waits no longer than that for another one of the same host."""
_POLL = 0.05
_MAX_NAME = 255  # bytes, of most file systems
_taking_over = ContextVar("taking_over", default=False)
_at_work: set[str] = set()
"""The names of the writers of this process."""


@dataclass(frozen=True)
class Writer:
    """A writer, as its name tells."""

    name: str
    host: str
    pid: int
    start: str
    began: int
    """Nanoseconds since 1970."""

    def lives(self) -> bool | None:
        """Return whether the writer is at work; None if only another host, or another boot of this one, could tell."""
        if self.host != host():
            return None
        if self.pid == os.getpid() and self.start == process_start(self.pid):
            return self.name in _at_work
        return process_start(self.pid) == self.start

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.began / 1e9, UTC)
        return f"process {self.pid} on {self.host.rsplit('.', 2)[0]}, which began at {began:%Y-%m-%d %H:%M:%S} UTC"


@contextmanager
def taking_over() -> Iterator[None]:
    """Let no writer wait within the block: others at its locations belong to work that this process has taken over, and are to stop."""
    token = _taking_over.set(True)
    try:
        yield
    finally:
        _taking_over.reset(token)


def takes_over() -> bool:
    """Return whether this is within :func:`taking_over`."""
    return _taking_over.get()


@contextmanager
def writer_name(prefix: str) -> Iterator[str]:
    """Yield a new name, ``PREFIX-OWNER.NUMBER``, whose writer counts as living within the block."""
    name = f"{prefix}-{owner_tag()}.{time.time_ns()}"
    _at_work.add(name)
    try:
        yield name
    finally:
        _at_work.discard(name)


def partial_prefix(path: Path, use: str = "incomplete") -> str:
    """Return what the names of the writers of a path begin with; a name that would be too long is cut, and made distinct by a digest."""
    name, room = path.name, _MAX_NAME - len(os.fsencode(f".{use}-{owner_tag()}.{time.time_ns()}"))
    if len(os.fsencode(name)) > room:
        digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
        name = f"{os.fsencode(name)[: max(0, room - 17)].decode(errors='ignore')}~{digest}"
    return f"{name}.{use}"


def writer_of(name: str, prefix: str) -> Writer | None:
    """Return the writer of a name; None if it is the name of something else."""
    if not name.startswith(f"{prefix}-"):
        return None
    where, *numbers = name.removeprefix(f"{prefix}-").rsplit(".", 3)
    if len(numbers) < 3 or where.count(".") < 2 or not all(map(str.isdecimal, numbers)):
        return None
    pid, start, began = numbers
    return Writer(name, where, int(pid), start, int(began))


def take_turn(location: Location, attempt: Callable[[], Writer | None]) -> None:
    """Call ``attempt``, which begins unless it returns another writer that is at work, until it does.

    Raises StoreError if the other writer is one of this process, or is at work for too long.
    """
    until = None
    while (other := attempt()) is not None:
        if until is None:
            until = time.monotonic() + WAIT_SECONDS
            logger.info("%s is being written by %s; waiting for it", location, other)
        if other.pid == os.getpid() or time.monotonic() > until:
            raise StoreError(
                f"{location} is being written by {other}, expected no other writer; wait until that has ended, or choose another path"
            )
        time.sleep(_POLL)


def changed(location: Location) -> StoreError:
    """Return the error of a location at which another writer has been faster."""
    return StoreError(
        f"{location} has been changed by another writer since this one began, expected it to be as it was; it is complete and stays, and "
        "nothing else was written: run the same command again, or choose another path"
    )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which ends with its process; without an effect where the file system has no locks of folders."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # a process that was forked meanwhile holds the descriptor, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


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


def reason(error: OSError) -> str:
    """Describe the cause of a failed write."""
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
