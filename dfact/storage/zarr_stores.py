"""Zarr stores on a folder and on an object store. One that is opened to be read takes no lost chunk for empty.

Where a chunk is not there Zarr 3.1 gives the fill value. All chunks of ours are written, so the store,
which looks for it anyway, can say that it is lost at no cost.
"""

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, ObjectStore

from dfact.errors import StoreError
from dfact.storage.location import Location

_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")  # Zarr asks for these to find out what there is
_ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_")
RETRIES, RETRY_SECONDS = 8, 60.0
"""How often and how long a request is tried again that failed for a reason that may pass: the server's error, a lost connection."""


def _refuse_lost(key: str) -> None:
    if not key.endswith(_METADATA):
        raise StoreError(f"its chunk {key} is not there")


class StrictLocalStore(LocalStore):
    """A folder on this machine."""

    async def get(self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await super().get(key, prototype, byte_range)
        if found is None and self.read_only:
            _refuse_lost(key)
        return found


class StrictObjectStore(ObjectStore[Any]):
    """A prefix in an object store. It travels as its address: each process has its own credentials from its own environment."""

    def __init__(self, address: str, *, read_only: bool = False) -> None:
        super().__init__(_client(address, _settings()), read_only=read_only)
        self.address = address

    def with_read_only(self, read_only: bool = False) -> Self:
        return type(self)(self.address, read_only=read_only)

    def __getstate__(self) -> dict[Any, Any]:
        return {"address": self.address, "read_only": self.read_only}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        type(self).__init__(self, state["address"], read_only=state["read_only"])

    def __str__(self) -> str:
        return self.address

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        with self.object_errors(key):
            found = await super().get(key, prototype, byte_range)
        if found is None and self.read_only:
            _refuse_lost(key)
        return found

    async def exists(self, key: str) -> bool:
        with self.object_errors(key):
            return await super().exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        with self.object_errors(key):
            await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        with self.object_errors(key):
            await super().set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        with self.object_errors(key):
            await super().delete(key)

    async def getsize(self, key: str) -> int:
        with self.object_errors(key):
            return await super().getsize(key)

    async def list(self) -> AsyncIterator[str]:  # type: ignore[override]  # the base returns such an iterator
        with self.object_errors(""):
            async for key in super().list():
                yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:  # type: ignore[override]  # as of list
        with self.object_errors(prefix):
            async for key in super().list_prefix(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:  # type: ignore[override]  # as of list
        with self.object_errors(prefix):
            async for key in super().list_dir(prefix):
                yield key

    def holds_any(self) -> bool:
        """Whether there is an object under the prefix."""
        import obstore

        with self.object_errors(""):
            return any(len(found) > 0 for found in obstore.list(self.store, chunk_size=1))

    def keys(self) -> Sequence[str]:
        """Every object under the prefix."""
        import obstore

        with self.object_errors(""):
            return [found["path"] for found in obstore.list(self.store).collect()]

    def total_bytes(self) -> int:
        """Size of all objects under the prefix."""
        import obstore

        with self.object_errors(""):
            return sum(found["size"] for found in obstore.list(self.store).collect())

    def remove(self, keys: Sequence[str]) -> None:
        """Remove these objects."""
        import obstore

        with self.object_errors(""):
            obstore.delete(self.store, [*keys])

    @contextmanager
    def object_errors(self, key: str) -> Iterator[None]:
        """What the client raises, as an error that names the object."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, PermissionError) as error:
            # It begins with what was asked, in how many tries and seconds; then the client's inner structures follow.
            said = " ".join(str(error).split("\n\nDebug source")[0].split())
            raise StoreError(f"the object store failed at {self.address}/{key}".rstrip("/") + f": {said}") from error


def location_of(store: Any) -> Location | None:
    """Where a store lies, if it is in a folder or at an address."""
    if isinstance(store, StrictObjectStore):
        return store.address
    root = getattr(store, "root", None)
    return None if root is None else Path(root)


def _settings() -> tuple[tuple[str, str], ...]:
    """What the client reads from the environment."""
    return tuple(sorted((key, value) for key, value in os.environ.items() if key.startswith(_ENVIRONMENT)))


@lru_cache(maxsize=64)
def _client(address: str, _: tuple[tuple[str, str], ...]) -> Any:
    """One client of a place for all arrays there, with its open connections; another one where the environment has changed."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise StoreError(f"{address} is in an object store, which needs obstore; install dfact[cloud]") from error
    try:
        return from_url(address, retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)})
    except (BaseError, ValueError) as error:
        raise StoreError(f"cannot open {address}: {error}; credentials, region and endpoint are read from the environment") from error
