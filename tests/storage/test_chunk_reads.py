"""Reads of Zarr arrays by threads: a single chunk is read where it is asked for, and all reads return the stored entries."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from dfact.data.sources.base import ZarrSource
from dfact.errors import StoreError
from dfact.storage.arrays import compressor, read_entries
from dfact.storage.zarr_stores import StrictLocalStore

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


class WatchedStore(StrictLocalStore):
    """A store that records the threads in which chunks are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.threads = set[int]()

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        if key.startswith("c/"):
            self.threads.add(threading.get_ident())
        return await super().get(key, *arguments, **options)


def watched_array(path: Path, **options: Any) -> tuple[zarr.Array[Any], WatchedStore]:
    store = WatchedStore(path)
    options = {"chunks": (7, 5)} | options
    array = zarr.create_array(store, shape=(30, 5), dtype=np.uint8, compressors=compressor(np.dtype(np.uint8)), **options)
    array[...] = np.random.default_rng(0).integers(0, 200, (30, 5))
    store.threads.clear()
    return array, store


def test_a_single_chunk_is_read_in_the_thread_that_asks(tmp_path: Path) -> None:
    array, store = watched_array(tmp_path)
    threads, rows = in_thread(lambda: ({threading.get_ident()}, read_entries(array, 8, 14)))
    assert store.threads == threads
    np.testing.assert_array_equal(rows, array[8:14])


@pytest.mark.parametrize(
    ("options", "stop"), [({}, 15), ({"chunks": (7, 3)}, 14), ({"shards": (14, 5)}, 14)], ids=["rows", "columns", "shards"]
)
def test_several_chunks_are_left_to_zarr(options: dict[str, Any], stop: int, tmp_path: Path) -> None:
    array, store = watched_array(tmp_path, **options)
    threads, rows = in_thread(lambda: ({threading.get_ident()}, read_entries(array, 8, stop)))
    assert store.threads
    assert not store.threads & threads
    np.testing.assert_array_equal(rows, array[8:stop])


def test_no_event_loop_runs_where_signals_arrive(tmp_path: Path) -> None:
    array, store = watched_array(tmp_path)
    np.testing.assert_array_equal(read_entries(array, 8, 14), array[8:14])
    assert threading.main_thread().ident not in store.threads


def test_a_thread_with_an_event_loop_reads(tmp_path: Path) -> None:
    array, _ = watched_array(tmp_path)

    async def read() -> Any:
        return read_entries(array, 0, 7)

    np.testing.assert_array_equal(in_thread(lambda: asyncio.run(read())), array[:7])


def test_other_stores_are_read() -> None:
    array = zarr.create_array(MemoryStore(), shape=(9,), chunks=(4,), dtype=np.int64)
    array[...] = np.arange(9)
    np.testing.assert_array_equal(in_thread(lambda: read_entries(array, 4, 8)), np.arange(4, 8))


@pytest.mark.parametrize("damage", ["missing", "altered", "truncated"])
def test_errors_are_those_of_zarr(damage: str, tmp_path: Path) -> None:
    watched_array(tmp_path)
    chunk = tmp_path / "c" / "1" / "0"
    content = chunk.read_bytes()
    if damage == "missing":
        chunk.unlink()
    else:
        chunk.write_bytes(content[:-9] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    source = ZarrSource(zarr.open_array(StrictLocalStore(tmp_path, read_only=True), mode="r"))
    messages = []
    for read in (lambda: source.read(7, 14), lambda: in_thread(lambda: source.read(7, 14))):
        with pytest.raises(StoreError) as raised:
            read()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
