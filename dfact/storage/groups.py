"""Zarr groups that are whole or not there: on a disk written beside their place and renamed, in an object store marked complete last."""

import errno
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.errors import ZarrUserWarning

from dfact.errors import StoreError
from dfact.storage.location import Location, parse_location
from dfact.storage.zarr_stores import StrictLocalStore, StrictObjectStore

ATTRIBUTE = "dfact"
FORMAT_VERSION = 2
_INCOMPLETE = ".incomplete"
_REASON = 500  # characters of a library's message: some hold the whole of what they refuse
_WORTH = 0.75  # of its size at most, for compressing to be worth the time of every read
WRITE_EMPTY_CHUNKS: Any = {"write_empty_chunks": True}  # so that a chunk that is not there is known to be lost


def compressor(dtype: np.dtype[Any]) -> tuple[BloscCodec, Crc32cCodec]:
    """lz4 with bit shuffle for integers (answers shrink to a third at 1 GB/s), byte shuffle for floats; then a checksum.

    Blosc reads beyond a chunk that was cut short and returns what lies there; the checksum refuses it.
    """
    shuffle = "bitshuffle" if dtype.kind in "iub" else "shuffle"
    return BloscCodec(cname="lz4", clevel=1, shuffle=shuffle), Crc32cCodec()  # type: ignore[arg-type]  # zarr takes the enum's name too


def compressor_for(sample: NDArray[Any]) -> tuple[BloscCodec, Crc32cCodec] | tuple[Crc32cCodec]:
    """The same, but the checksum alone where that saves little: measurements with noise in every digit are read three times as fast so."""
    if sample.dtype.kind in "iub":
        return compressor(sample.dtype)
    shrunk = Blosc(cname="lz4", clevel=1, shuffle=Blosc.SHUFFLE).encode(np.ascontiguousarray(sample))
    return compressor(sample.dtype) if len(shrunk) <= _WORTH * sample.nbytes else (Crc32cCodec(),)


def open_store(path: str | PathLike[str], *, read_only: bool = False) -> Store:
    """The Zarr store of a folder, or of an address such as ``s3://bucket/prefix`` (needs ``dfact[cloud]``).

    Credentials, region and endpoint of an object store come from the environment, as obstore reads them
    (``AWS_ENDPOINT_URL``, …). Requests that fail are tried again, with a limit. A store that is ``read_only``
    refuses chunks that are not there, so whatever it reads must have been written with ``WRITE_EMPTY_CHUNKS``.

    Raises
    ------
    StoreError
        No such address, or obstore is not installed. Whatever fails later is one, too, and names the object.
    """
    place = parse_location(path)
    return StrictLocalStore(place, read_only=read_only) if isinstance(place, Path) else StrictObjectStore(place, read_only=read_only)


@contextmanager
def create_group(path: str | PathLike[str], kind: str, *, overwrite: bool = False) -> Iterator[zarr.Group]:
    """A new Zarr v3 group that is whole at ``path``, or not there at all.

    A folder is written at ``path`` + ".incomplete", the complete marker is set last, then the folder is
    renamed. In an object store nothing can be renamed: there the group is written in its place, where it is
    refused until the marker is set, and one that it replaces (``overwrite``) is removed first. Whatever an
    interrupted writer left is removed; a full disk or any other failure removes what was written, and
    leaves an old folder at ``path`` as it was.

    Raises
    ------
    StoreError
        Something is at ``path`` that is not to be replaced, or it cannot be written.
    """
    with _writing(parse_location(path), overwrite=overwrite) as store:
        group = zarr.create_group(store, attributes={ATTRIBUTE: _begun(kind)})
        yield group
        with warnings.catch_warnings():
            # Consolidated metadata is an extension that we never require, but xarray looks for it first.
            warnings.simplefilter("ignore", ZarrUserWarning)
            consolidated = zarr.consolidate_metadata(store)
        update_attributes(consolidated, complete=True)


@contextmanager
def create_array(path: str | PathLike[str], kind: str, **settings: Any) -> Iterator[zarr.Array[Any]]:
    """A new array of its own, whole at ``path`` or not there, as :func:`create_group`; ``settings`` are those of ``zarr.create_array``."""
    with _writing(parse_location(path), overwrite=False) as store:
        array = zarr.create_array(store, attributes={ATTRIBUTE: _begun(kind)}, config=WRITE_EMPTY_CHUNKS, **settings)
        yield array
        update_attributes(array, complete=True)


def write_chunk(target: Any, start: int, rows: NDArray[Any]) -> None:
    """Write rows of the factors from ``start`` on to an array; StoreError if they cannot be."""
    try:
        target[start : start + len(rows)] = rows
    except OSError as error:
        where = f"rows {start} to {start + len(rows)} of the factors to {getattr(target, 'store_path', 'memory')}"
        raise StoreError(f"cannot write {where}: {reason(error)}; make room there, or name a larger place (out, TMPDIR)") from error


def _begun(kind: str) -> dict[str, Any]:
    return {"kind": kind, "version": FORMAT_VERSION, "complete": False}


@contextmanager
def _writing(place: Location, *, overwrite: bool) -> Iterator[Store]:
    """An empty store for what shall be at ``place``; removed if the block fails."""
    ensure_absent(place, overwrite=overwrite)
    target = partial_path(place) if isinstance(place, Path) else place
    try:
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
        remove(target)
        yield open_store(target)
        if isinstance(place, Path):
            _replace_atomically(partial_path(place), place)
    except BaseException as error:
        left = _clean_up(target)
        # A connection that is lost to a cluster is an OSError, too, but none of the system's.
        if isinstance(error, OSError) and (left if isinstance(error, StoreError) else error.errno is not None):
            raise StoreError(f"cannot write {place}: {reason(error)}; {left or 'nothing was left behind there'}") from error
        raise


@contextmanager
def read_errors(what: str) -> Iterator[None]:
    """Damaged metadata and bytes make Zarr and its codecs raise errors of every kind: here they are a StoreError that names ``what``."""
    try:
        yield
    except MemoryError as error:
        raise StoreError(f"cannot read {what}: it says that it takes more memory than there is; the store is damaged") from error
    except Exception as error:
        words = f"{error or type(error).__name__}"[:_REASON]
        raise StoreError(f"cannot read {what}: {words}; the store is damaged or out of reach: bring it back, or write it again") from error


def reason(error: OSError) -> str:
    """Why nothing can be written, in words."""
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)


def _clean_up(target: Location) -> str:
    """Remove what a writer began; what is to be said if that fails, too."""
    try:
        remove(target)
    except OSError:
        return f"what was begun may still be at {target}, marked as incomplete: remove it"
    return ""


def remove(place: Location) -> None:
    """Remove a store. What is left of it if that is interrupted is marked as incomplete."""
    if isinstance(place, Path):
        partial = place if place.suffix == _INCOMPLETE else partial_path(place)
        if partial.exists():
            shutil.rmtree(partial)
        if place.exists():
            place.rename(partial)
            shutil.rmtree(partial)
        return
    store = StrictObjectStore(place)
    found = _dfact_attributes(place)
    if found and found.get("complete") is True:
        _open(store, mode="r+").attrs[ATTRIBUTE] = {**found, "complete": False}
    keys = store.keys()
    store.remove([key for key in keys if key != "zarr.json"])
    store.remove([key for key in keys if key == "zarr.json"])


def ensure_absent(path: str | PathLike[str], *, overwrite: bool) -> None:
    """Refuse to write where something is, unless it is a dfact store that may be replaced.

    One in an object store that was never finished may always.
    """
    place = parse_location(path)
    if not exists(place):
        return
    found = _dfact_attributes(place)
    if isinstance(place, str) and found and found.get("complete") is not True:
        return
    if not overwrite:
        raise StoreError(f"{place} exists already; choose another path, or replace it with overwrite=True (--overwrite)")
    if found is None:
        raise StoreError(f"{place} exists and is no dfact store, so it is not replaced; choose another path")


def ensure_not_source(path: str | PathLike[str], sources: Iterable[Location | None]) -> None:
    """Refuse to write where something lies that is still to be read: in an object store the old goes before the new is written."""
    place = parse_location(path)
    if isinstance(place, str) and place in sources:
        raise StoreError(f"{place} is still to be read, and in an object store it would be removed first; choose another place")


def exists(place: Location) -> bool:
    """Whether anything is there, whole or not."""
    return place.exists() if isinstance(place, Path) else StrictObjectStore(place).holds_any()


def stored_size(place: Location) -> int:
    """Size of all that lies there."""
    if isinstance(place, Path):
        return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return StrictObjectStore(place).total_bytes()


def _replace_atomically(partial: Path, path: Path) -> None:
    """Rename; an old store steps aside first, so that it is there whole until the new one is."""
    if not path.exists():
        partial.rename(path)
        return
    old = path.with_name(path.name + ".replaced")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    try:
        partial.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def open_group(path: str | PathLike[str], kind: str) -> zarr.Group:
    """The complete group of this kind at ``path``, read-only; anything else is refused with the reason."""
    place = parse_location(path)
    if not exists(place):
        interrupted = isinstance(place, Path) and partial_path(place).exists()
        hint = "; an import that was interrupted left it incomplete: run it again" if interrupted else ""
        raise StoreError(f"{place} does not exist, expected a dfact {kind}{hint}")
    try:
        # The consolidated copy is for xarray: the arrays' own metadata is the truth. Version 2 can hold pickles, which are code.
        group = zarr.open_group(open_store(place, read_only=True), mode="r", use_consolidated=False, zarr_format=3)
    except StoreError:
        raise
    except Exception as error:  # damaged metadata makes Zarr raise errors of every kind
        raise StoreError(f"{place} is no Zarr group, expected a dfact {kind} ({f'{error}'[:_REASON]})") from error
    found = group.attrs.get(ATTRIBUTE)
    if not isinstance(found, Mapping):
        raise StoreError(f"{place} is a Zarr group but no dfact {kind}: write one with dfact.import_array or dfact.import_table")
    if found.get("kind") != kind:
        raise StoreError(f"{place} holds a dfact {found.get('kind')}, expected a {kind}")
    if found.get("version") != FORMAT_VERSION:
        raise StoreError(f"{place} has format version {found.get('version')}, this dfact reads version {FORMAT_VERSION}")
    if found.get("complete") is not True:
        raise StoreError(f"{place} is incomplete: its writer was interrupted; write it again")
    return group


def kind_at(path: str | PathLike[str]) -> str | None:
    """What kind of dfact store is at ``path``, whole or not; None if there is none."""
    found = _dfact_attributes(parse_location(path))
    return None if found is None else str(found.get("kind"))


def is_complete(place: Location) -> bool:
    """Whether what is there was written to its end: in an object store what was interrupted lies in its place, without the mark."""
    found = None if isinstance(place, Path) and place.is_file() else _dfact_attributes(place)
    return exists(place) if found is None else found.get("complete") is True


def _dfact_attributes(place: Location) -> dict[str, Any] | None:
    """Our attributes of the group or array there; None if there is none of ours."""
    try:
        found = _open(open_store(place, read_only=True), mode="r").attrs.get(ATTRIBUTE)
    except StoreError:
        raise
    except Exception:  # damaged metadata makes Zarr raise errors of every kind
        return None
    return dict(found) if isinstance(found, Mapping) else None


def _open(store: Store, mode: Literal["r", "r+"]) -> Any:
    """The group or array of a store."""
    return zarr.open(store, mode=mode, zarr_format=3)


def partial_path(path: Path) -> Path:
    return path.with_name(path.name + _INCOMPLETE)


def attributes(group: zarr.Group | zarr.Array[Any]) -> dict[str, Any]:
    """The dfact attributes of a group or an array."""
    return dict(group.attrs[ATTRIBUTE])  # type: ignore[arg-type]  # written by us as a JSON object


def update_attributes(group: zarr.Group | zarr.Array[Any], **values: Any) -> None:
    group.attrs[ATTRIBUTE] = {**attributes(group), **values}


def write_array(group: zarr.Group, name: str, data: NDArray[Any], dimensions: tuple[str, ...], **attrs: Any) -> None:
    """A small array in one chunk."""
    array = group.create_array(
        name,
        shape=data.shape,
        chunks=tuple(max(1, s) for s in data.shape),
        dtype=data.dtype,
        compressors=compressor(data.dtype),
        dimension_names=dimensions,
        attributes=attrs,
        config=WRITE_EMPTY_CHUNKS,
    )
    if data.size:
        array[...] = data


def write_labels(group: zarr.Group, name: str, labels: NDArray[Any], dimension: str) -> None:
    """Strings, one for each position along ``dimension``, compressed and with a checksum."""
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
    """A whole array of the group, which must have this shape: a damaged one may say that it is larger than any memory."""
    where = f"array {name!r} of {group.store}"
    with read_errors(where):
        array = group[name]
    if not isinstance(array, zarr.Array) or array.shape != shape:
        raise StoreError(f"{where} is {array}, expected shape {shape}; write the store again")
    with read_errors(where):
        return np.asarray(array[...])


def read_numbers(group: zarr.Group, name: str, n: int) -> NDArray[Any]:
    """An array of one dimension and n numbers."""
    found = read_array(group, name, (n,))
    if found.dtype.kind not in "iuf":
        raise StoreError(f"array {name!r} of {group.store} holds {found.dtype}, expected numbers; write the store again")
    return found


def read_labels(group: zarr.Group, name: str, n: int) -> NDArray[Any]:
    """An array of n texts."""
    found = read_array(group, name, (n,))
    if found.dtype.kind not in "TUO":
        raise StoreError(f"array {name!r} of {group.store} holds {found.dtype}, expected text; write the store again")
    return found.astype(object)
