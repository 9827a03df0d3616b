"""Arrays of Zarr groups: compressed with a checksum, written with all their chunks, and read with errors that name them.

Zarr runs all reads of a process on one event loop, in a separate thread, which also verifies checksums and copies chunks. Two threads that
read chunks of a few megabytes are therefore hardly faster than one. To avoid this, a thread that reads a single chunk from a local folder
runs the whole read itself, on its own event loop.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore

from dfact.errors import StoreError
from dfact.storage.replacement import reason

MAX_REASON = 500  # characters of a library's message: some quote all of the input that they reject
MAX_CHUNK_BYTES = (1 << 31) - 1  # that the compressor takes
_WHOLE_BYTES = 1 << 27  # arrays up to this size have one chunk
_MAX_RATIO = 0.75  # compressed to original size, above which compression is not worth its time in every read
WRITE_EMPTY_CHUNKS: Any = {"write_empty_chunks": True}  # with it, every missing chunk is a lost one


def compressor(dtype: np.dtype[Any]) -> tuple[BloscCodec, Crc32cCodec]:
    """Return lz4 with bit shuffle for integers (answers shrink to a third at 1 GB/s), byte shuffle for floats; then a checksum.

    Blosc reads past the end of a truncated chunk and returns those bytes; the checksum detects that.
    """
    shuffle = "bitshuffle" if dtype.kind in "iub" else "shuffle"
    return BloscCodec(cname="lz4", clevel=1, shuffle=shuffle), Crc32cCodec()  # type: ignore[arg-type]  # zarr accepts the enum's name too


def compressor_for(sample: NDArray[Any]) -> tuple[BloscCodec, Crc32cCodec] | tuple[Crc32cCodec]:
    """Choose the compressor of an array like ``sample``: the checksum alone where compression saves little.

    Measurements with noise in every digit are read three times as fast without it.
    """
    if sample.dtype.kind in "iub":
        return compressor(sample.dtype)
    compressed = Blosc(cname="lz4", clevel=1, shuffle=Blosc.SHUFFLE).encode(np.ascontiguousarray(sample))
    return compressor(sample.dtype) if len(compressed) <= _MAX_RATIO * sample.nbytes else (Crc32cCodec(),)


def write_chunk(target: Any, start: int, rows: NDArray[Any]) -> None:
    """Write rows of the factors to an array from row ``start`` on; raise StoreError if that fails."""
    try:
        target[start : start + len(rows)] = rows
    except OSError as error:
        where = f"rows {start} to {start + len(rows)} of the factors to {getattr(target, 'store_path', 'memory')}"
        raise StoreError(f"cannot write {where}: {reason(error)}; free space there, or choose a larger disk (out, TMPDIR)") from error


@contextmanager
def read_errors(what: str) -> Iterator[None]:
    """Translate the errors of all kinds that damaged metadata and bytes cause in Zarr and its codecs into a StoreError naming ``what``."""
    try:
        yield
    except MemoryError as error:
        raise StoreError(f"cannot read {what}: its metadata requires more memory than is available; the store is damaged") from error
    except Exception as error:
        text = f"{error or type(error).__name__}"[:MAX_REASON]
        raise StoreError(f"cannot read {what}: {text}; the store is damaged or out of reach: restore it, or write it again") from error


def member(group: zarr.Group, name: str) -> zarr.Array[Any] | zarr.Group | None:
    """Return an array or a group of ``group``, None if there is none.

    Zarr casts the fill value of damaged metadata to the type of the array, for which it may be too large: that is an error.
    """
    with read_errors(f"array {name!r} of {group.store}"), np.errstate(over="raise"):
        return group.get(name)


def write_array(
    group: zarr.Group, name: str, data: NDArray[Any], dimensions: tuple[str, ...], *, chunks: tuple[int, ...] | None = None, **attrs: Any
) -> None:
    """Write an array that is in memory: in one chunk, or in several along its first axis if it is large, such as a number for each row.

    ``chunks`` states other chunks, such as one for each column.
    """
    rows = max(1, len(data) if data.nbytes <= _WHOLE_BYTES else _WHOLE_BYTES * len(data) // data.nbytes)
    array = group.create_array(
        name,
        shape=data.shape,
        chunks=chunks or (rows, *(max(1, s) for s in data.shape[1:])),
        dtype=data.dtype,
        compressors=compressor(data.dtype),
        dimension_names=dimensions,
        attributes=attrs,
        config=WRITE_EMPTY_CHUNKS,
    )
    if data.size:
        array[...] = data


def write_labels(group: zarr.Group, name: str, labels: NDArray[Any], dimension: str) -> None:
    """Write strings, one for each position along ``dimension``, compressed and with a checksum."""
    chunk = min(max(1, len(labels)), 1 << 16)
    array = group.create_array(
        name,
        shape=(len(labels),),
        chunks=(chunk,),
        dtype="string",
        compressors=(ZstdCodec(), Crc32cCodec()),
        dimension_names=(dimension,),
        config=WRITE_EMPTY_CHUNKS,
    )
    if len(labels):
        array[:] = np.asarray(labels, dtype=object)


def read_array(group: zarr.Group, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read all of an array. Its shape must be the given one: damaged metadata may describe an array larger than any memory."""
    where = f"array {name!r} of {group.store}"
    array = member(group, name)
    if not isinstance(array, zarr.Array) or array.shape != shape:
        raise StoreError(f"{where} is {array}, expected shape {shape}; write the store again")
    with read_errors(where):
        return np.asarray(array[...])


def read_numbers(group: zarr.Group, name: str, n: int) -> NDArray[Any]:
    """Read an array of n numbers."""
    numbers = read_array(group, name, (n,))
    if numbers.dtype.kind not in "iuf":
        raise StoreError(f"array {name!r} of {group.store} holds {numbers.dtype}, expected numbers; write the store again")
    return numbers


def read_labels(group: zarr.Group, name: str, n: int) -> NDArray[Any]:
    """Read an array of n strings."""
    labels = read_array(group, name, (n,))
    if labels.dtype.kind not in "TUO":
        raise StoreError(f"array {name!r} of {group.store} holds {labels.dtype}, expected text; write the store again")
    return labels.astype(object)


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _InlineLoop(asyncio.SelectorEventLoop):
    """An event loop that calls in its own thread what others leave to a pool of threads: a read has nothing else to do meanwhile."""

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def read_entries(array: zarr.Array[Any], start: int, stop: int) -> NDArray[Any]:
    """Return entries start to stop along the first axis."""
    if not (_lies_in_one_chunk(array, start, stop) and isinstance(array.store, LocalStore) and _may_run_loop()):
        return np.asarray(array[start:stop])  # Zarr reads the chunks side by side, and those of an object store from one client
    with asyncio.Runner(loop_factory=_InlineLoop) as runner:
        return np.asarray(runner.run(array.async_array.getitem(slice(start, stop))))


def _lies_in_one_chunk(array: zarr.Array[Any], start: int, stop: int) -> bool:
    step = array.chunks[0]
    whole = all(chunk >= size for chunk, size in zip(array.chunks[1:], array.shape[1:], strict=True))
    return array.shards is None and whole and start // step == (stop - 1) // step


def _may_run_loop() -> bool:
    """Return whether this thread runs no event loop, and gets no signals, which an event loop may lose: these reach the main thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is not threading.main_thread()
    return False
