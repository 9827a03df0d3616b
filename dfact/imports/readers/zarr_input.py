"""Zarr stores of other programs: opened for reading, without codecs that run code of the store."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.errors import ZarrUserWarning
from zarr.storage import ObjectStore

from dfact.errors import DataError
from dfact.storage.location import Location
from dfact.storage.zarr_stores import ContainedLocalStore, object_client

_UNSAFE = ("pickle",)  # codecs that run code of the file


def open_input_store(location: Location) -> Store:
    """Open the store for reading; Zarr writes no chunks that hold the fill value alone, so chunks may be missing."""
    if isinstance(location, Path):
        return ContainedLocalStore(location, read_only=True)
    return ObjectStore(object_client(location), read_only=True)


@contextmanager
def invalid_chunks_as_errors() -> Iterator[None]:
    """Raise an error where Zarr merely warns: 3.4 and later replaces invalid chunk sizes, so that an array has its fill value alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*stored .* is invalid", ZarrUserWarning)
        yield


def check_codecs(name: str, array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return the array; raise DataError if a codec of it would run code of the file."""
    metadata: Any = array.metadata
    codecs = [*(getattr(metadata, "filters", None) or ()), getattr(metadata, "compressor", None), *getattr(metadata, "codecs", ())]
    for codec in codecs:
        if any(unsafe in f"{getattr(codec, 'codec_id', '')} {type(codec).__name__}".lower() for unsafe in _UNSAFE):
            raise DataError(
                f"{name}: the array {array.name!r} holds pickles, which run code, expected numbers or texts; write the store again"
            )
    return array
