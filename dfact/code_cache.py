"""Code cache: compiled kernels on disk, stored and loaded by several processes at once."""

import grp
import inspect
import logging
import os
import pwd
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from hashlib import sha256
from multiprocessing import parent_process
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TextIO

from dfact.internals.numba import (
    IndexDataCacheFile,
    NullCache,
    cache_of,
    cached_files,
    enable_cache,
    set_cache,
    set_cache_file,
    shared_cache_folder,
)
from dfact.settings import is_watched

COMPILED = "DFACT_COMPILED_KERNELS"
"""Environment variable: a folder of kernels compiled before, such as those of the container image. They are only read."""
_ALL_USERS = (1 << 32) - 1
logger = logging.getLogger("dfact.kernels")


@cache
def digest(folder: Path) -> str:
    """Return a digest of all modules in a folder."""
    return sha256(b"".join(path.name.encode() + path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


def _version(source: Path, decorators: Path) -> str:
    """Return a digest of all that the compiled code of a source file may contain: the file and the modules beside the decorators."""
    folder = digest(decorators.parent)
    return folder if source.parent == decorators.parent else sha256(folder.encode() + source.read_bytes()).hexdigest()


class _ReadableFile(IndexDataCacheFile):
    """Compiled code on disk. Code that cannot be read, because a file is damaged, counts as absent: Numba compiles again."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # of any kind, as pickle finds damaged bytes
            return {}

    def _load_data(self, name: str) -> Any:
        try:
            return super()._load_data(name)
        except Exception as error:
            raise OSError(f"{name} is damaged") from error  # Numba compiles again


class _CacheFile(_ReadableFile):
    """The compiled code of a kernel on disk: a file for each signature, and an index of these files.

    Numba numbers the files 1, 2, …. Two processes that compile a kernel at the same time for arrays of different types then choose
    the same number, and later one type is processed by the code for the other, with wrong results. Here the number follows from
    the signature. If one process overwrites the index of another, a signature is compiled again, and that is all.

    Numba compiles again when the kernel's own file has another time. Here the content counts, so that code compiled before serves a
    new copy of the same sources. A change of any module in the folder of the decorators counts, as a kernel contains the functions of
    other modules that are inlined into it.

    Code that cannot be written, because the disk is full, is compiled again by the next process.

    Of several processes that need a kernel at the same time, such as the workers of a machine, one compiles it, and the others wait.

    ``compiled`` is a folder of code that was compiled before, which is looked up first. Numba's index holds the processor, so that
    code for another one is not found there.
    """

    def __init__(self, numbered: IndexDataCacheFile, folder: Path, version: str, compiled: Path | None) -> None:
        base = numbered._index_name.removesuffix(".nbi")
        super().__init__(cache_path=str(folder), filename_base=base, source_stamp=version)
        self._compiled = _ReadableFile(cache_path=str(compiled), filename_base=base, source_stamp=version) if compiled else None
        self._folder, self._turn = folder, _Turn(folder / f"{base}.lock")

    def load(self, key: Any) -> Any:
        found = self._compiled.load(key) if self._compiled else None
        found = super().load(key) if found is None else found
        if found is None:
            _announce_compilation()
            if self._turn.take(lambda: super(_CacheFile, self).load(key) is not None):
                found = super().load(key)
        return found

    def save(self, key: Any, data: Any) -> None:
        try:
            self._save(key, data)
        finally:
            self._turn.end()

    def _save(self, key: Any, data: Any) -> None:
        try:
            found = self._load_index()
            if not found and Path(self._index_path).exists():  # of another version of the source, or damaged
                for stale in self._folder.glob(self._data_name_pattern.replace("{number:d}", "*")):
                    stale.unlink(missing_ok=True)
            name = self._data_name(int.from_bytes(sha256(repr((self._source_stamp, key)).encode()).digest()[:8]))
            self._save_data(name, data)
            self._save_index({**found, key: name})
        except OSError as error:
            logger.warning("cannot store compiled code in %s: %s; every process will compile it", self._folder, error.strerror or error)


class _Turn:
    """The turn of a process to compile a kernel: a lock of a file beside the compiled code, which ends with the process at the latest.

    A process that forks while it compiles, or fails to, may keep its turn for longer. So the others wait for a limited time.
    """

    SECONDS = 60.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def take(self, is_done: Callable[[], bool]) -> bool:
        """Wait until it is this process's turn. Return whether another one has compiled the kernel meanwhile; then no turn is taken."""
        self.end()
        with suppress(OSError):  # a folder that cannot be written, or a file system without locks
            file = self._path.open("a")
            end = monotonic() + self.SECONDS
            waited = False
            while not _lock(file) and monotonic() < end:
                waited = True
                sleep(0.02)
            if waited and is_done():
                file.close()
                return True
            self._file = file
        return False

    def end(self) -> None:
        """Let others compile."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(file: TextIO) -> bool:
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


@cache
def _announce_compilation() -> None:
    """Tell a user who waits, once, that kernels are compiled; the log gets the message always."""
    message = "compiling kernels for this processor: some seconds, once for each kind of data and release"
    logger.info(message)
    if parent_process() is None and sys.stderr is not None and is_watched(sys.stderr):
        print(f"dfact: {message}", file=sys.stderr, flush=True)  # noqa: T201  # logs below warnings appear nowhere by default


@cache
def _unsafe_folder(folder: Path, owner: int) -> Path | None:
    """Return the folder, or the one above it, in which another user can put or replace files; None if there is none up to the root.

    The rule is that of OpenSSH for keys: each folder belongs to this user or to root, and neither its group nor others may write. It has
    these exceptions. ``owner`` of the sources is trusted as they are. The sticky bit, as of ``/tmp``, protects a folder in its parent, but
    not from new files in itself. A group without any other member is the user. In a user namespace, owners outside of it all look
    alike: a folder above that belongs to one of them counts as that of the system.
    """
    for path in (folder, *folder.parents):
        status, is_above = path.stat(), path != folder
        has_writers = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid))
        is_shared = has_writers and not (is_above and status.st_mode & stat.S_ISVTX)
        is_trusted = status.st_uid in (0, os.geteuid(), owner) or (is_above and status.st_uid == _owner_outside())
        if is_shared or not is_trusted:
            return path
    return None


@cache
def _is_private_group(group: int) -> bool:
    """Return whether this user is the only member of a group that has the user's name, as Debian and Fedora create one for each user."""
    try:
        user, named = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:  # a user of a container without a name
        return False
    if user.pw_gid != group or named.gr_name != user.pw_name or {*named.gr_mem} - {user.pw_name}:
        return False
    return all(other.pw_uid == user.pw_uid for other in pwd.getpwall() if other.pw_gid == group)


@cache
def _owner_outside() -> int | None:
    """Return the number that stands for all users outside of the user namespace of this process; None where there are none."""
    try:
        inside = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
        return int(Path("/proc/sys/kernel/overflowuid").read_text()) if inside < _ALL_USERS else None
    except FileNotFoundError:  # another system, without such namespaces
        return None


def _private_folder() -> Path | None:
    """Return a folder of this user for compiled code; None where it cannot be made, as without a home."""
    with suppress(OSError, RuntimeError):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dfact" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.resolve()
    return None


def store_by_signature(compiled: Any, decorators: str) -> Any:
    """Make a function that Numba compiles use :class:`_CacheFile`, and return it; ``decorators`` is their module's file.

    Code is unpickled, and runs. So where another user could plant it, in a folder of ``NUMBA_CACHE_DIR`` or of ``DFACT_COMPILED_KERNELS``,
    none is read or stored; a folder of this user takes its place. Where no folder can be written, every process compiles for itself.
    """
    if not enable_cache(compiled):
        _warn_no_folder()
        return compiled
    if (stored := cache_of(compiled)) is None:
        return compiled
    source = Path(inspect.getfile(compiled.py_func))
    owner, version = source.stat().st_uid, _version(source, Path(decorators))
    subfolder = f"{source.parent.name}_{version[:16]}"  # wherever the sources lie
    shared = shared_cache_folder()
    folder = _safe_folder(shared / subfolder if shared else Path(stored.cache_path), subfolder, owner)
    if folder is None:
        set_cache(compiled, NullCache())
        return compiled
    given = os.environ.get(COMPILED)
    before = (Path(given) / subfolder).resolve() if given else None
    if before is not None and before.is_dir() and (found := _unsafe_folder(before, owner)) is not None:
        _warn_unsafe_folder(found, COMPILED, "The kernels in it are not used")
        before = None
    set_cache_file(compiled, _CacheFile(cached_files(stored), folder, version, before))
    return compiled


def _safe_folder(folder: Path, subfolder: str, owner: int) -> Path | None:
    """Return a folder, with its links resolved, or a private one in its place; None without either.

    The private one takes its place if others can put files there, and if it neither exists nor can be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        if (private := _private_subfolder(subfolder, owner)) is None:
            _warn_no_folder()
        return private
    folder = folder.resolve()  # links may change later
    if (found := _unsafe_folder(folder, owner)) is None:
        return folder
    private = _private_subfolder(subfolder, owner)
    consequence = "every process compiles its kernels again" if private is None else f"compiled kernels are in {private.parent}"
    _warn_unsafe_folder(found, "NUMBA_CACHE_DIR", f"Until then {consequence}")
    return private


def _private_subfolder(subfolder: str, owner: int) -> Path | None:
    """Return a subfolder of the private folder; None where it cannot be made, or others can put files there."""
    private = _private_folder()
    if private is None or _unsafe_folder(private, owner) is not None:
        return None
    with suppress(OSError):  # a home that can only be read
        (private / subfolder).mkdir(mode=0o700, exist_ok=True)
        return private / subfolder
    return None


@cache
def _warn_no_folder() -> None:
    logger.warning(
        "no folder for compiled kernels can be written, neither beside the sources nor in the home folder; name a folder of your own in "
        "NUMBA_CACHE_DIR. Until then every process compiles its kernels again, which takes some seconds"
    )


@cache
def _warn_unsafe_folder(folder: Path, variable: str, consequence: str) -> None:
    status = folder.stat()
    logger.warning(
        "other users can change files in %s (owner %d, group %d, mode %04o), expected a folder that only you or root may write, as are all "
        "above it; take the permission away (chmod go-w), or name another folder in %s. %s",
        folder,
        status.st_uid,
        status.st_gid,
        stat.S_IMODE(status.st_mode),
        variable,
        consequence,
    )
