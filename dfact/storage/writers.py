"""Writers of one location: each has a name of its own, and what it replaces must be what it found when it began.

A writer works beside the location under a name that contains its process (:mod:`dfact.storage.folder_owners`), so that no other one
touches its work. While another writer of the same host is at work, it waits, unless it has taken over that work. Those of other hosts
cannot be seen to live or to have ended; whoever ends first has written the location, and the others find it changed. On a disk, looking
and replacing are one step under a lock of the folder above, where its file system has locks; in an object store the request that
replaces is a conditional one.
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dfact.errors import StoreError
from dfact.storage.folder_owners import host, owner_tag, process_start
from dfact.storage.location import Location

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
