"""The decorators that compile all kernels, with the same options.

``kernel``
    is called from Python.
``subroutine``
    is called from kernels of its own module only. It is a function of its own in the compiled code and allocates nothing.
``inlined``
    is copied into each kernel that calls it. It may allocate, and kernels of several modules may call it.
"""

import logging
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import IndexDataCacheFile

F = TypeVar("F", bound=Callable[..., object])
logger = logging.getLogger("dfact.kernels")

# Reassociation lets the compiler vectorize a sum. NaN and infinity keep their meaning, because NaN marks a missing entry
# (with "fast" the compiler may assume that there is none).
# A loop that both sums and stores may be vectorized differently when its arrays happen to lie close together in memory, and then
# sums in another order. Therefore store in one loop and sum in the next.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


@cache
def _sources() -> tuple[tuple[str, int, int], ...]:
    """Return names, times and sizes of all modules of kernels."""
    files = ((path.name, path.stat()) for path in Path(__file__).parent.glob("*.py"))
    return tuple(sorted((name, status.st_mtime_ns, status.st_size) for name, status in files))


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]  # Numba has no types
    """The compiled code of a kernel on disk: a file for each signature, and an index of these files.

    Numba numbers the files 1, 2, …. Two processes that compile a kernel at the same time for arrays of different types then choose
    the same number, and later one type is processed by the code for the other, with wrong results. Here the number follows from
    the signature. If one process overwrites the index of another, a signature is compiled again, and that is all.

    Numba compiles again when the kernel's own file has changed. Here a change of any module of kernels counts, as a kernel contains the
    functions of other modules that are inlined into it.

    Code that cannot be read or written, because a file is damaged or the disk is full, is compiled again by the next process.
    """

    def __init__(self, numbered: IndexDataCacheFile) -> None:
        base, stamp = numbered._index_name.removesuffix(".nbi"), (numbered._source_stamp, _sources())
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


def kernel(function: F) -> F:
    """Compile a serial kernel that releases the GIL. Threads come from the executor."""
    compiled = numba.njit(cache=True, **_OPTIONS)(function)
    if (stored := getattr(compiled, "_cache", None)) is not None:  # there is none where NUMBA_DISABLE_JIT is set
        stored._cache_file = _CacheFile(stored._cache_file)
    return cast(F, compiled)


def subroutine(function: F) -> F:
    """Compile a function that only kernels call. Without the wrapper for Python this takes half the time.

    It must not allocate, so Numba need not count references to its arrays. Counting took two thirds of the time
    where small functions read many arrays from a tuple.
    """
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, **_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a function into each kernel that calls it.

    Use it for functions that several kernels share, and for functions that allocate. If a shared function is not inlined, each
    kernel compiles a copy of its own. The copies may differ by rounding, and all kernels use the one that was loaded first.
    """
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)(function))
