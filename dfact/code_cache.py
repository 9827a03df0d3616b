"""Code cache: compiled kernels on disk, stored and loaded by several processes at once."""

import logging
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from dfact.internals.numba import IndexDataCacheFile, cache_file, set_cache_file

logger = logging.getLogger("dfact.kernels")


@cache
def sources(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, times and sizes of all modules in a folder."""
    files = ((path.name, path.stat()) for path in folder.glob("*.py"))
    return tuple(sorted((name, status.st_mtime_ns, status.st_size) for name, status in files))


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]  # Numba has no types
    """The compiled code of a kernel on disk: a file for each signature, and an index of these files.

    Numba numbers the files 1, 2, …. Two processes that compile a kernel at the same time for arrays of different types then choose
    the same number, and later one type is processed by the code for the other, with wrong results. Here the number follows from
    the signature. If one process overwrites the index of another, a signature is compiled again, and that is all.

    Numba compiles again when the kernel's own file has changed. Here a change of any module in the folder of the decorators counts,
    as a kernel contains the functions of other modules that are inlined into it.

    Code that cannot be read or written, because a file is damaged or the disk is full, is compiled again by the next process.
    """

    def __init__(self, numbered: IndexDataCacheFile, folder: Path) -> None:
        base, stamp = numbered._index_name.removesuffix(".nbi"), (numbered._source_stamp, sources(folder))
        super().__init__(cache_path=numbered._cache_path, filename_base=base, source_stamp=stamp)

    def save(self, key: Any, data: Any) -> None:
        try:
            found = self._load_index()
            if not found and Path(self._index_path).exists():  # of another version of the source, or damaged
                for stale in Path(self._cache_path).glob(self._data_name_pattern.replace("{number:d}", "*")):
                    stale.unlink(missing_ok=True)
            name = self._data_name(int.from_bytes(sha256(repr((self._source_stamp, key)).encode()).digest()[:8]))
            self._save_data(name, data)
            self._save_index({**found, key: name})
        except OSError as error:
            logger.warning("cannot store compiled code in %s: %s; every process will compile it", self._cache_path, error.strerror or error)

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


def store_by_signature(compiled: Any, decorators: str) -> Any:
    """Make a function that Numba compiles with a cache use :class:`_CacheFile`, and return it; ``decorators`` is their module's file."""
    if (numbered := cache_file(compiled)) is not None:
        set_cache_file(compiled, _CacheFile(numbered, Path(decorators).parent))
    return compiled
