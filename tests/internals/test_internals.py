"""A release of a library without a name that dfact uses is refused when the module that collects these names is imported."""

import ast
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dfact
from dfact.code_cache import store_by_signature
from dfact.errors import DependencyError
from dfact.internals.checks import require
from dfact.internals.distributed import check_client, check_worker

ROOT = Path(dfact.__file__).parent


@pytest.mark.parametrize(
    ("library", "owner", "name"),
    [
        ("numba", "numba.core.caching:IndexDataCacheFile", "_load_index"),
        ("numba", "numba.core.caching:IndexDataCacheFile", "save"),
        ("numba", "numba.core.config", "CPU_FEATURES"),
        # Without this one only the check of names on certificates would fail: it would no longer be called.
        ("distributed", "distributed.comm.tcp:TLSListener", "on_connection"),
        ("distributed", "distributed.comm.tcp:TLSBackend", "get_listener"),
        ("distributed", "distributed.comm.registry", "backends"),
        ("distributed", "distributed.utils_comm", "gather_from_workers"),
        ("distributed", "distributed.scheduler:Scheduler", "proxy"),
        ("zarr", "zarr.core.sync", "sync"),
        ("dask", "dask.array:Array", "_meta"),
        ("rdata", "rdata.parser._parser:Parser", "_parse_vector_value"),
        ("pyreadstat", "pyreadstat.pyreadstat", "parser_entry_point"),
    ],
)
def test_a_name_that_is_gone_is_reported_at_the_import(library: str, owner: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"dfact.internals.{library}")
    [holder] = require(library, owner)
    owners = [kind for kind in holder.__mro__ if name in vars(kind)] if isinstance(holder, type) else [holder]
    for each in owners:
        monkeypatch.delattr(each, name)
    with pytest.raises(DependencyError, match=rf"^{library} \d\S* lacks \S+.*{name}.*, which dfact {dfact.__version__} uses; install"):
        importlib.reload(module)
    monkeypatch.undo()
    importlib.reload(module)


@pytest.mark.parametrize("gone", ["_cache", "_cache_file"])
def test_kernels_are_not_stored_under_the_numbers_of_numba(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher under whose new names the cache would not be found keeps Numba's own, which numbers the files."""
    monkeypatch.setattr("numba.config.DISABLE_JIT", False)
    found = {"cached": {}} if gone == "_cache" else {"_cache": SimpleNamespace(file=object())}
    compiled = SimpleNamespace(enable_caching=lambda: None, **found)
    with pytest.raises(DependencyError, match=r"^numba \d\S* lacks Dispatcher._cache._cache_file"):
        store_by_signature(compiled, __file__)


def test_attributes_of_workers_and_clients_are_checked() -> None:
    complete = {"scheduler": SimpleNamespace(who_has=None), "state": SimpleNamespace(nthreads=1, tasks={}), "rpc": SimpleNamespace(limit=1)}
    complete |= {"status": SimpleNamespace(name=""), "loop": SimpleNamespace(asyncio_loop=None)}
    complete |= {"memory_manager": SimpleNamespace(memory_limit=1)}
    names = ["handlers", "data", "active_threads_lock", "active_threads", "metrics", "get_current_task", "sync"]
    names += ["plugins", "plugin_add", "close_gracefully"]
    worker: dict[str, Any] = complete | dict.fromkeys(names)
    check_worker(SimpleNamespace(**worker))
    check_client(SimpleNamespace(**worker))
    with pytest.raises(DependencyError, match=r"^distributed \d\S* lacks SimpleNamespace.active_threads_lock, which"):
        check_worker(SimpleNamespace(**{name: value for name, value in worker.items() if name != "active_threads_lock"}))
    with pytest.raises(DependencyError, match=r"^distributed \d\S* lacks SimpleNamespace.rpc.limit, which"):
        check_client(SimpleNamespace(**worker | {"rpc": object()}))


PRIVATE = {
    "numba": ("numba.core",),
    "distributed": ("distributed.comm.", "distributed.protocol", "distributed.utils_comm", "distributed.client", "distributed.scheduler"),
    "zarr": ("zarr.core",),
    "dask": ("dask._", "dask.threaded"),
    "rdata": ("rdata.parser._",),
    "pyreadstat": ("pyreadstat.pyreadstat",),
}
"""Beginnings of the names of modules without documentation, by library."""


def test_no_other_module_imports_undocumented_ones() -> None:
    offenders = []
    for path in sorted(ROOT.rglob("*.py")):
        library = path.stem if path.parent.name == "internals" else ""
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            offenders += [
                f"{path.relative_to(ROOT)} imports {name}"
                for name in names
                for other, starts in PRIVATE.items()
                if other != library and name.startswith(starts)
            ]
    assert offenders == []


def test_modules_are_named_after_their_libraries() -> None:
    names = {path.stem for path in (ROOT / "internals").glob("*.py")} - {"__init__", "checks"}
    assert names == PRIVATE.keys()
