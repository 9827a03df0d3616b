"""Versions of a store in an object store, where nothing can be renamed: each lies below a name of its own.

The object ``zarr.json`` at the URL of the store is a Zarr group that names the current version. It is replaced by conditional requests, so
that of several writers one succeeds, and a complete version is there at any time. A store without such a name, such as a folder that
another program has copied to the URL, is its own version.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from dfact.errors import StoreError
from dfact.storage.location import Location
from dfact.storage.replacement import explain, succeeds, sync
from dfact.storage.writers import Writer, changed, take_turn, takes_over, writer_name, writer_of
from dfact.storage.zarr_stores import StrictObjectStore

ATTRIBUTE = "dfact"
METADATA = "zarr.json"
_PREFIX, _SCRATCH = "version", "scratch"
_CURRENT, _PREVIOUS = "current", "previous"


def named_version(metadata: bytes | None, which: str = _CURRENT) -> str | None:
    """Return the name of the version that the metadata of a group state; None if they state none."""
    try:
        name = json.loads(metadata or b"")["attributes"][ATTRIBUTE][which]
    except (ValueError, KeyError, TypeError):
        return None
    # The name is also part of a path, and the store may be one of others.
    return name if isinstance(name, str) and "/" not in name and writer_of(name, _PREFIX) is not None else None


def read_metadata(location: Location) -> tuple[bytes, Any] | None:
    """Return the metadata of a store, and what tells their version; None if there are none."""
    if isinstance(location, str):
        return StrictObjectStore(location).read(METADATA)
    try:
        content = (location / METADATA).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return content, None


def replace_metadata(location: Location, metadata: dict[str, Any], before: tuple[bytes, Any] | None) -> tuple[bytes, Any]:
    """Replace the metadata of a store, or write the first ones; raise StoreError if they are not those from before.

    Return the new ones as :func:`read_metadata` does. On a disk, this needs the lock of the folder above.
    """
    content = json.dumps(metadata, indent=2, allow_nan=False).encode()
    if isinstance(location, str):
        version = StrictObjectStore(location).replace(METADATA, content, None if before is None else before[1])
        if version is not None:
            return content, version
        now = read_metadata(location)
        if now is None or now[0] != content:  # a request that was repeated may have met its own result
            raise changed(location)
        return now
    if read_metadata(location) != before:
        raise changed(location)
    location.mkdir(exist_ok=True)
    partial = location / f"{METADATA}.{uuid4().hex}.partial"  # as Zarr names its own
    try:
        partial.write_bytes(content)
        sync(partial)
        partial.replace(location / METADATA)
    finally:
        partial.unlink(missing_ok=True)
    return content, None


def current_version(location: Location) -> Location:
    """Return where the current version of a store is: at its location, or below it."""
    if isinstance(location, Path):  # a copy of an object store
        found = read_metadata(location)
        name = named_version(None if found is None else found[0])
        return location if name is None else location / name
    found = read_metadata(location)
    name = named_version(None if found is None else found[0])
    return location if name is None else f"{location}/{name}"


def version_writer(name: str) -> Writer | None:
    """Return the writer of the version, or of the temporary objects, of this name below a URL; None if it names something else."""
    return writer_of(name, _PREFIX) or writer_of(name, _SCRATCH)


def is_version(name: str) -> bool:
    """Return whether a name below the URL of a store is that of a version, or of temporary objects."""
    return version_writer(name) is not None


@contextmanager
def written_version(url: str, kind: str, check: Callable[[], None]) -> Iterator[str]:
    """Yield the URL of a new version, which becomes the current one after the block.

    ``check`` raises an error if what is at the URL is not to be replaced; what passes it must still be there in the end.
    """
    store, found = StrictObjectStore(url), None
    with writer_name(_PREFIX) as name:

        def attempt() -> Writer | None:
            nonlocal found
            writers = [(writer, writer.lives()) for each in store.names() if (writer := version_writer(each))]
            found = store.read(METADATA)  # after it is known which writers have ended: none of these makes its version the current one
            content = None if found is None else found[0]
            current, previous = named_version(content), named_version(content, _PREVIOUS)
            others = [(writer, lives) for writer, lives in writers if writer.name != current]
            for writer, lives in others:
                if (
                    lives
                    and writer.name.startswith(_PREFIX)
                    and writer.name != previous
                    and (not takes_over() or writer.pid == os.getpid())
                ):
                    return writer
            for writer, lives in others:
                if lives is False or writer.name == previous:
                    _remove_below(store, f"{writer.name}/")
            check()
            return None

        take_turn(url, attempt)
        in_place = False
        try:
            yield f"{url}/{name}"
            if store.read(f"{name}/{METADATA}") is None:
                raise StoreError(f"{url}/{name} has been removed, expected it to be left alone; run the same command again")
            content, version = found or (None, None)
            previous = named_version(content)
            in_place = True  # or perhaps, if the request fails in a way that does not tell
            if not store.replace(METADATA, _pointer(kind, name, previous), version):
                now = store.read(METADATA)  # a request that was repeated may have met its own result
                in_place = now is not None and named_version(now[0]) == name
                if not in_place:
                    raise changed(url)
        except BaseException as error:
            deleted = in_place or succeeds(lambda: _remove_below(store, f"{name}/"))
            left = "no partial store is left" if deleted else f"a partial store may remain at {url}/{name}: delete it"
            explain(error, url, left)
            raise
        if previous is not None:
            _remove_below(store, f"{previous}/")
        elif found is not None:  # a store that was its own version
            _remove(store, lambda key: key != METADATA and not is_version(key.partition("/")[0]))


def _pointer(kind: str, name: str, previous: str | None) -> bytes:
    values = {"kind": kind, _CURRENT: name, _PREVIOUS: previous}
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: values}}, indent=2).encode()


def _remove_below(store: StrictObjectStore, prefix: str) -> None:
    """Delete the objects whose keys begin so."""
    _remove(store, lambda key: key.startswith(prefix))


def _remove(store: StrictObjectStore, chosen: Callable[[str], bool]) -> None:
    store.remove(list(filter(chosen, store.keys())))


def remove_versions(url: str) -> bool:
    """Delete a store with all its versions but those that others may be writing. Return whether it has versions."""
    store = StrictObjectStore(url)
    found = store.read(METADATA)
    if found is None or named_version(found[0]) is None:
        return False
    named = {named_version(found[0]), named_version(found[0], _PREVIOUS)}
    ended = {writer.name for name in store.names() if (writer := version_writer(name)) and writer.lives() is False}
    store.remove([METADATA])  # first: without it there is no store
    _remove(store, lambda key: (top := key.partition("/")[0]) in named | ended or not is_version(top))
    return True
