"""Numba's cache of compiled code, and the processor for which it compiles."""

from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.runtime import rtsys

from dfact.internals.checks import missing_names_error, require, require_attributes

__all__ = [
    "IndexDataCacheFile",
    "NullCache",
    "cache_of",
    "cached_files",
    "compiler_target",
    "enable_cache",
    "host_features",
    "set_cache",
    "set_cache_file",
    "shared_cache_folder",
]
_METHODS = ("load", "save", "_load_index", "_save_index", "_load_data", "_save_data", "_data_name", "_open_for_write")
require("numba", *(f"numba.core.caching:IndexDataCacheFile.{name}" for name in _METHODS))
require(
    "numba",
    *(f"numba.core.caching:FunctionCache.{name}" for name in ("load_overload", "_load_overload", "_guard_against_spurious_io_errors")),
)
require("numba", "numba.core.runtime:rtsys.initialize")
require("numba", "numba.core.dispatcher:Dispatcher.enable_caching")
require(
    "numba", "numba.core.config:CPU_NAME", "numba.core.config:CPU_FEATURES", "numba.core.config:DISABLE_JIT", "numba.core.config:CACHE_DIR"
)
require_attributes(
    "numba", IndexDataCacheFile("", "", ()), "_index_name", "_index_path", "_data_name_pattern", "_source_stamp", "_cache_path"
)


def enable_cache(compiled: Any) -> bool:
    """Give a compiled function Numba's cache on disk. Return False if Numba finds no folder for it that can be written."""
    if numba.config.DISABLE_JIT:
        return True
    try:
        compiled.enable_caching()
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return False
    return True


def cache_of(compiled: Any) -> Any:
    """Return the cache of a function that Numba compiles with one; None where NUMBA_DISABLE_JIT is set."""
    if numba.config.DISABLE_JIT:
        return None
    cache = getattr(compiled, "_cache", None)
    if not isinstance(getattr(cache, "_cache_file", None), IndexDataCacheFile):  # without this check Numba's own file names would stay
        raise missing_names_error("numba", ["Dispatcher._cache._cache_file"])
    require_attributes("numba", cache, "cache_path", "_cache_path")
    return cache


class _QuickCache(FunctionCache):
    """Numba's cache of a function, which loads compiled code without preparing the compiler: 0.1 s of the first call in a process.

    The compiler prepares itself when it compiles.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)  # the allocator, which compiled code may call
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def cached_files(cache: Any) -> IndexDataCacheFile:
    """Return the files of a cache."""
    return cache._cache_file


def shared_cache_folder() -> Path | None:
    """Return the folder that NUMBA_CACHE_DIR names; None where compiled code lies beside its sources."""
    return Path(numba.config.CACHE_DIR) if numba.config.CACHE_DIR else None


def set_cache(compiled: Any, cache: Any) -> None:
    """Replace the cache of a compiled function."""
    compiled._cache = cache


def set_cache_file(compiled: Any, file: IndexDataCacheFile) -> None:
    """Replace the cache of a compiled function by one with these files."""
    compiled._cache = _QuickCache(compiled.py_func)
    compiled._cache._cache_file, compiled._cache._cache_path = file, file._cache_path


def compiler_target() -> tuple[str, set[str]]:
    """Return the processor for which Numba compiles, and the features beyond those that its name implies."""
    name = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    features = numba.config.CPU_FEATURES
    if features is None:
        return name, host_features()
    return name, {feature.removeprefix("+") for feature in features.split(",") if feature.startswith("+")}


def host_features() -> set[str]:
    """Return LLVM's names of the features of this processor."""
    return {feature for feature, present in llvmlite.binding.get_host_cpu_features().items() if present}
