"""Zarr groups that are whole or not there: written beside their place, marked complete, renamed."""

import errno
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.errors import GroupNotFoundError, ZarrUserWarning

from dfact.data.places import place_of
from dfact.data.stores import AddressStore, FolderStore
from dfact.errors import StoreError

ATTRIBUTE = "dfact"
FORMAT_VERSION = 1
_WORTH = 0.75  # of its size at most, for compressing to be worth the time of every read
WRITE_ALL: Any = {"write_empty_chunks": True}  # so that a chunk that is not there is known to be lost


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


def store_at(path: str | PathLike[str], *, read_only: bool = False) -> Store:
    """The Zarr store of a folder, or of an address such as ``s3://bucket/prefix`` (needs ``dfact[cloud]``).

    Credentials, region and endpoint of an object store come from the environment, as obstore reads them
    (``AWS_ENDPOINT_URL``, …). Requests that fail are tried again, with a limit. A store that is ``read_only``
    refuses chunks that are not there, so whatever it reads must have been written with ``WRITE_ALL``.

    Raises
    ------
    StoreError
        No such address, or obstore is not installed. Whatever fails later is one, too, and names the object.
    """
    place = place_of(path)
    return FolderStore(place, read_only=read_only) if isinstance(place, Path) else AddressStore(place, read_only=read_only)


@contextmanager
def create_group(path: Path, kind: str, *, overwrite: bool = False) -> Iterator[zarr.Group]:
    """A new Zarr v3 group that appears at ``path`` only when the block ends without an error.

    It is written at ``path`` + ".incomplete"; the complete marker is set last, then the folder is
    renamed. Whatever an earlier interrupted writer left there is removed. A full disk or any other
    failure removes what was written and leaves an old store at ``path`` as it was.
    """
    refuse_existing(path, overwrite=overwrite)
    partial = incomplete_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        group = zarr.create_group(partial, attributes={ATTRIBUTE: {"kind": kind, "version": FORMAT_VERSION, "complete": False}})
        yield group
        group.attrs[ATTRIBUTE] = {**attributes(group), "complete": True}
        with warnings.catch_warnings():
            # Consolidated metadata is an extension that we never require, but xarray looks for it first.
            warnings.simplefilter("ignore", ZarrUserWarning)
            zarr.consolidate_metadata(group.store)
        _put_in_place(partial, path)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, StoreError):
            raise
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise StoreError(f"cannot write {path}: {reason}; nothing was left behind there") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is, unless it is a dfact store that may be replaced."""
    if path.exists() and not overwrite:
        raise StoreError(f"{path} exists already; choose another path, or replace it with overwrite=True (--overwrite)")
    if path.exists() and store_kind(path) is None:
        raise StoreError(f"{path} exists and is no dfact store, so it is not replaced; choose another path")


def _put_in_place(partial: Path, path: Path) -> None:
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


def open_group(path: Path, kind: str) -> zarr.Group:
    """The complete group of this kind at ``path``, read-only; anything else is refused with the reason."""
    if not path.exists():
        hint = "; an import that was interrupted left it incomplete: run it again" if incomplete_path(path).exists() else ""
        raise StoreError(f"{path} does not exist, expected a dfact {kind}{hint}")
    try:
        # The consolidated copy is for xarray: the arrays' own metadata is the truth.
        group = zarr.open_group(path, mode="r", use_consolidated=False)
    except (GroupNotFoundError, FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise StoreError(f"{path} is no Zarr group, expected a dfact {kind}") from error
    found = group.attrs.get(ATTRIBUTE)
    if not isinstance(found, Mapping):
        raise StoreError(f"{path} is a Zarr group but no dfact {kind}: write one with dfact.import_array or dfact.import_table")
    if found.get("kind") != kind:
        raise StoreError(f"{path} holds a dfact {found.get('kind')}, expected a {kind}")
    if found.get("version") != FORMAT_VERSION:
        raise StoreError(f"{path} has format version {found.get('version')}, this dfact reads version {FORMAT_VERSION}")
    if found.get("complete") is not True:
        raise StoreError(f"{path} is incomplete: its writer was interrupted; write it again")
    return group


def store_kind(path: Path) -> str | None:
    """What kind of dfact store is at ``path``, whole or not; None if there is none."""
    try:
        found = zarr.open_group(path, mode="r").attrs.get(ATTRIBUTE)
    except (GroupNotFoundError, OSError, ValueError):
        return None
    return str(found.get("kind")) if isinstance(found, Mapping) else None


def incomplete_path(path: Path) -> Path:
    return path.with_name(path.name + ".incomplete")


def attributes(group: zarr.Group) -> dict[str, Any]:
    """The group's dfact attributes."""
    return dict(group.attrs[ATTRIBUTE])  # type: ignore[arg-type]  # written by us as a JSON object


def update_attributes(group: zarr.Group, **values: Any) -> None:
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
        config=WRITE_ALL,
    )
    if data.size:
        array[...] = data


def write_labels(group: zarr.Group, name: str, labels: NDArray[Any], dimension: str) -> None:
    """Strings, one for each position along ``dimension``."""
    chunk = min(max(1, len(labels)), 1 << 16)
    array = group.create_array(name, shape=(len(labels),), chunks=(chunk,), dtype="string", dimension_names=(dimension,), config=WRITE_ALL)
    if len(labels):
        array[:] = np.asarray(labels, dtype=object)


def read_array(group: zarr.Group, name: str) -> NDArray[Any]:
    """A whole array of the group, with an error that names what is missing or damaged."""
    try:
        array = group[name]
        if not isinstance(array, zarr.Array):
            raise KeyError(name)
        if array.size and array.nchunks_initialized < array.nchunks:
            raise ValueError("its values are gone")
        return np.asarray(array[...])
    except (KeyError, ValueError, RuntimeError, OSError) as error:
        raise StoreError(f"array {name!r} of {group.store} is missing or damaged ({error}); write the store again") from error


def read_labels(group: zarr.Group, name: str) -> NDArray[Any]:
    return read_array(group, name).astype(object)
