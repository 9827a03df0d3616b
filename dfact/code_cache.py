"""Code cache: compiled kernels on disk, stored and loaded by several processes at once."""

import inspect
import logging
import os
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
    """Return the folder if another user can put files there, or its parent if one can replace the folder; None if both are safe.

    ``owner`` of the sources is trusted as they are. The sticky bit protects a folder in its parent, not from new files in itself.
    """
    for path, protects in ((folder, 0), (folder.parent, stat.S_ISVTX)):
        status = path.stat()
        is_shared = status.st_mode & stat.S_IWOTH and not status.st_mode & protects
        if is_shared or status.st_uid not in (0, os.geteuid(), owner):
            return path
    return None


def store_by_signature(compiled: Any, decorators: str) -> Any:
    """Make a function that Numba compiles use :class:`_CacheFile`, and return it; ``decorators`` is their module's file.

    Code is unpickled, and runs. So where another user could plant it, in a folder of ``NUMBA_CACHE_DIR`` or of ``DFACT_COMPILED_KERNELS``,
    none is read or stored. Nor is any where no folder can be written.
    """
    if not enable_cache(compiled):
        _warn_no_folder()
        return compiled
    if (stored := cache_of(compiled)) is None:
        return compiled
    source = Path(inspect.getfile(compiled.py_func))
    owner, version = source.stat().st_uid, _version(source, Path(decorators))
    subfolder = f"{source.parent.name}_{version[:16]}"  # wherever the sources lie
    folder = Path(stored.cache_path)
    if shared := shared_cache_folder():
        folder = shared / subfolder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            _warn_no_folder()
            set_cache(compiled, NullCache())
            return compiled
    if (found := _unsafe_folder(folder, owner)) is not None:
        _warn_unsafe_folder(found, "NUMBA_CACHE_DIR")
        set_cache(compiled, NullCache())
        return compiled
    given = os.environ.get(COMPILED)
    before = Path(given) / subfolder if given else None
    if before is not None and before.is_dir() and (found := _unsafe_folder(before, owner)) is not None:
        _warn_unsafe_folder(found, COMPILED)
        before = None
    set_cache_file(compiled, _CacheFile(cached_files(stored), folder, version, before))
    return compiled


@cache
def _warn_no_folder() -> None:
    logger.warning(
        "no folder for compiled code can be written: neither that of the sources nor one in the home folder. Every process compiles its "
        "kernels again, which takes some seconds; set NUMBA_CACHE_DIR to a folder of your own that can be written"
    )


@cache
def _warn_unsafe_folder(folder: Path, variable: str) -> None:
    logger.warning(
        "%s belongs to another user or is writable by others, expected a folder of your own (mode 0700) for compiled kernels; "
        "change %s. Until then every process compiles its kernels again",
        folder,
        variable,
    )
