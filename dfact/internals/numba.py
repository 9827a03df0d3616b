"""Numba's cache of compiled code, and the processor for which it compiles."""

from typing import Any

import llvmlite.binding
import numba
from numba.core.caching import IndexDataCacheFile

from dfact.internals.checks import lacks, require, require_attributes

__all__ = ["IndexDataCacheFile", "cache_file", "compiler_target", "host_features", "set_cache_file"]
_METHODS = ("save", "_load_index", "_save_index", "_load_data", "_save_data", "_data_name", "_open_for_write")
require("numba", *(f"numba.core.caching:IndexDataCacheFile.{name}" for name in _METHODS))
require("numba", "numba.core.config:CPU_NAME", "numba.core.config:CPU_FEATURES", "numba.core.config:DISABLE_JIT")
require_attributes(
    "numba", IndexDataCacheFile("", "", ()), "_index_name", "_index_path", "_data_name_pattern", "_source_stamp", "_cache_path"
)


def cache_file(compiled: Any) -> IndexDataCacheFile | None:
    """Return the cache of a function that Numba compiles with one; None where NUMBA_DISABLE_JIT is set."""
    if numba.config.DISABLE_JIT:
        return None
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if not isinstance(file, IndexDataCacheFile):  # without this check Numba's own numbers of the files would stay
        raise lacks("numba", ["Dispatcher._cache._cache_file"])
    return file


def set_cache_file(compiled: Any, file: IndexDataCacheFile) -> None:
    """Replace the cache of a compiled function."""
    compiled._cache._cache_file = file


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
