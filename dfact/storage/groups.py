"""Zarr groups that are complete or absent: local ones are written next to their path and renamed, remote ones below a name of their own.

Nothing can be renamed in an object store. There the object ``zarr.json`` at the URL of the store is a Zarr group that names the current
version. It is replaced by conditional requests, so that of several writers one succeeds, and a complete version is there at any time. A
store without such a name, such as a folder that another program has copied to the URL, is its own version.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import zarr
from zarr.abc.store import Store
from zarr.errors import ZarrUserWarning

from dfact.errors import StoreError
from dfact.storage.arrays import MAX_REASON, WRITE_EMPTY_CHUNKS
from dfact.storage.location import Location, parse_location, suffix
from dfact.storage.remote_files import describe, remove_object
from dfact.storage.replacement import (
    SCRATCH,
    Writer,
    absent_parents,
    changed,
    delete,
    explain,
    locked,
    partial_prefix,
    remove_empty,
    remove_ended,
    restore_folder,
    succeeds,
    sync,
    take_turn,
    takes_over,
    writer_name,
    writer_of,
    writers_of,
    written_beside,
)
from dfact.storage.seals import METADATA, read_seal
from dfact.storage.zarr_stores import StrictLocalStore, StrictObjectStore

ATTRIBUTE = "dfact"
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


FORMAT_VERSION = 1
"""Version of the layout of stores, their attribute ``format``."""
_REMEDIES = {"dataset": "import it again", "model": "fit it again", "job": "delete it to run all steps of the job again"}
"""Remedies for stores of an earlier format version, by kind."""


def open_store(path: str | PathLike[str], *, read_only: bool = False) -> Store:
    """Open the Zarr store of a folder, or of a URL such as ``s3://bucket/prefix`` (needs ``dfact[cloud]``).

    Credentials, region and endpoint of an object store come from the environment, as obstore reads them
    (``AWS_ENDPOINT_URL``, …). Failed requests are retried, within a limit. A ``read_only`` store reports missing
    chunks as errors, so all that it reads must have been written with ``WRITE_EMPTY_CHUNKS``.

    Raises
    ------
    StoreError
        The URL is invalid, or obstore is not installed. Later failures also raise it, with the name of the object.
    """
    location = parse_location(path)
    return (
        StrictLocalStore(location, read_only=read_only) if isinstance(location, Path) else StrictObjectStore(location, read_only=read_only)
    )


@contextmanager
def create_group(
    path: str | PathLike[str], kind: str, *, overwrite: bool = False, check: Callable[[], None] | None = None
) -> Iterator[zarr.Group]:
    """Create a Zarr v3 group that is complete at ``path`` after the block, or absent.

    It is written under a name of its own, beside ``path`` or, in an object store, below it, and takes its place once it is complete. A
    group that it replaces (``overwrite``) stays until then, and must be the same as before the block; ``check`` may raise an error if
    that is not the one that the writer has read. After a failure, such as a full disk, the partial group is deleted. What killed writers
    of this host have left is deleted, too.

    Raises
    ------
    StoreError
        ``path`` exists and must not be replaced, or cannot be written, or another writer is at work there or has been faster.
    """
    with _new_store(parse_location(path), kind, overwrite=overwrite, check=check) as store:
        group = zarr.create_group(store, zarr_format=3, attributes={ATTRIBUTE: _initial_attributes(kind)})
        yield group
        update_attributes(consolidate(store), complete=True)


def consolidate(store: Store) -> zarr.Group:
    """Store the metadata of all arrays with those of the group. dfact never requires that, but xarray looks for it first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # an extension of the format
        return zarr.consolidate_metadata(store, zarr_format=3)


@contextmanager
def create_array(path: str | PathLike[str], kind: str, **settings: Any) -> Iterator[zarr.Array[Any]]:
    """Create a standalone array, complete at ``path`` after the block or absent, as :func:`create_group` does.

    ``settings`` are arguments of ``zarr.create_array``.
    """
    with _new_store(parse_location(path), kind, overwrite=False) as store:
        attributes: dict[str, Any] = {ATTRIBUTE: _initial_attributes(kind)}
        array = zarr.create_array(store, zarr_format=3, attributes=attributes, config=WRITE_EMPTY_CHUNKS, **settings)
        yield array
        update_attributes(array, complete=True)


def _initial_attributes(kind: str) -> dict[str, Any]:
    return {"kind": kind, "format": FORMAT_VERSION, "complete": False}


@contextmanager
def _new_store(location: Location, kind: str, *, overwrite: bool, check: Callable[[], None] | None = None) -> Iterator[Store]:
    """Yield an empty store that becomes ``location``; delete it and raise StoreError if the block fails."""

    def check_both() -> None:
        ensure_absent(location, overwrite=overwrite)
        if check is not None:
            check()

    if isinstance(location, Path):
        with written_beside(location, "store", Path.mkdir, check_both) as own:
            yield open_store(own)
    else:
        with written_version(location, kind, check_both) as own_url:
            yield open_store(own_url)


@contextmanager
def scratch_store(path: str | PathLike[str]) -> Iterator[Store]:
    """Yield an empty store next to ``path`` for temporary objects, which is deleted after the block.

    Raises
    ------
    StoreError
        The store cannot be written.
    """
    target = parse_location(path)
    new = absent_parents(target) if isinstance(target, Path) else []
    with writer_name(partial_prefix(target, SCRATCH) if isinstance(target, Path) else SCRATCH) as name:
        location = target.with_name(name) if isinstance(target, Path) else f"{target}/{name}"
        try:
            if isinstance(target, Path):
                remove_ended(target)
            yield open_store(location)
        except BaseException as error:
            deleted = succeeds(lambda: _delete(location))
            remove_empty(new)
            left = "no partial store is left" if deleted else f"temporary objects may remain at {location}: delete them"
            explain(error, target, left)
            raise
        _delete(location)


def _delete(location: Location) -> None:
    if isinstance(location, Path):
        delete(location)
    else:
        store = StrictObjectStore(location)
        store.remove(store.keys())


def remove(location: Location) -> None:
    """Delete a store. If the deletion is interrupted, the store is absent, or marked as incomplete."""
    if isinstance(location, Path):
        with writer_name(partial_prefix(location)) as name:
            if location.exists():
                location.rename(location.with_name(name))
            delete(location.with_name(name))
        remove_ended(location)
        return
    if suffix(location) and describe(location) is not None:  # a single object, such as a report
        remove_object(location)
    if remove_versions(location):
        return
    store = StrictObjectStore(location)
    stored = _dfact_attributes(location)
    if stored and stored.get("complete") is True:
        _open(store, mode="r+").attrs[ATTRIBUTE] = {**stored, "complete": False}
    keys = store.keys()
    store.remove([key for key in keys if key != "zarr.json"])
    store.remove([key for key in keys if key == "zarr.json"])


def ensure_absent(path: str | PathLike[str], *, overwrite: bool) -> None:
    """Raise StoreError if ``path`` exists, unless it is a dfact store and ``overwrite`` is set.

    An incomplete store in an object store can always be replaced.
    """
    location = parse_location(path)
    if not exists(location):
        return
    stored = _dfact_attributes(location)
    if isinstance(location, str) and stored and stored.get("complete") is not True:  # a copy that was interrupted
        return
    if not overwrite:
        raise StoreError(f"{location} exists already; choose another path, or replace it with overwrite=True (--overwrite)")
    if stored is None:
        raise StoreError(f"{location} exists and is not a dfact store, so it is not replaced; choose another path")


def exists(location: Location) -> bool:
    """Check whether anything is at the location, complete or not; versions that are not the current one of a store are not."""
    if isinstance(location, Path):
        return restore_folder(location).exists()
    if any(not is_version(name) for name in StrictObjectStore(location).names()):
        return True
    return bool(suffix(location)) and describe(location) is not None


def stored_size(location: Location) -> int:
    """Return the total size in bytes of the files or objects at the location."""
    if isinstance(location, Path):
        return sum(file.stat().st_size for file in location.rglob("*") if file.is_file())
    return StrictObjectStore(location).total_bytes()


def open_group(path: str | PathLike[str], kind: str) -> zarr.Group:
    """Open the complete group of this kind at ``path``, read-only; raise StoreError with the reason if there is none."""
    location = parse_location(path)
    if not exists(location):
        raise StoreError(f"{location} does not exist, expected a dfact {kind}{_writer_hint(location)}")
    place = _place(location)
    try:
        # Consolidated metadata is a copy for xarray; the arrays' own metadata is authoritative. Zarr format 2 can hold pickles: code.
        group = zarr.open_group(open_store(place, read_only=True), mode="r", use_consolidated=False, zarr_format=3)
    except StoreError:
        raise
    except Exception as error:  # damaged metadata makes Zarr raise errors of all kinds
        if _place(location) != place:  # replaced meanwhile
            return open_group(path, kind)
        raise StoreError(
            f"{location} is not a Zarr group, expected a dfact {kind} ({f'{error}'[:MAX_REASON]}){_how_to_import(location)}"
        ) from error
    stored = group.attrs.get(ATTRIBUTE)
    if not isinstance(stored, Mapping):
        remedy = _how_to_import(location, group) or "; write one with dfact.import_array or dfact.import_table"
        raise StoreError(f"{location} is a Zarr group, expected a dfact {kind}{remedy}")
    if stored.get("format") != FORMAT_VERSION:  # kinds may have had other names
        raise StoreError(f"{location} has {_found_format(stored)}, expected {FORMAT_VERSION}; {_remedy(kind, stored)}")
    if stored.get("kind") != kind:
        raise StoreError(f"{location} holds a dfact {stored.get('kind')}, expected a {kind}")
    if stored.get("complete") is not True:
        raise StoreError(f"{location} is incomplete: its writer was interrupted; write it again")
    group.store.seal = read_seal(location, stored)  # type: ignore[attr-defined]  # of both stores that open_store returns
    return group


def _place(location: Location) -> Location:
    """Return where the current version of a store is."""
    return current_version(restore_folder(location) if isinstance(location, Path) else location)


def _writer_hint(location: Location) -> str:
    """Return what is known of writers of a location at which nothing is; an empty text without any."""
    if isinstance(location, str):
        found = [writer for name in StrictObjectStore(location).names() if (writer := version_writer(name))]
    else:
        found = [*writers_of(location), *writers_of(location, SCRATCH)]
    if not found:
        return ""
    if living := next((writer for writer in found if writer.lives()), None):
        return f"; it is being written by {living}: wait until that has ended"
    if unknown := next((writer for writer in found if writer.lives() is None), None):
        return f"; {unknown}, has begun to write it: wait for it, or write it again if it has ended"
    return "; its writer was interrupted: run the same command again"


def _how_to_import(location: Location, group: zarr.Group | None = None) -> str:
    """Return the line that imports an array of another program's store at the location; an empty text if there is none."""
    line = "; import an array of it: dfact.import_array({}, 'new.zarr')".format
    if group is None:  # an array, or another format
        older = isinstance(location, Path) and any((location / name).is_file() for name in (".zarray", ".zgroup"))
        return f"{' in Zarr format 2' if older else ''}{line(f'zarr.open({str(location)!r})')}" if older or _is_array(location) else ""
    tables = [name for name in sorted(group.array_keys()) if len(group[name].shape) > 1]  # type: ignore[union-attr]  # an array has a shape
    if not tables:
        return ""
    named = getattr(group[tables[0]].metadata, "dimension_names", None)
    opened = f"xarray.open_zarr({str(location)!r})" if named else f"zarr.open_group({str(location)!r})"
    return line(f"{opened}[{tables[0]!r}]")


def _is_array(location: Location) -> bool:
    try:
        return isinstance(_open(open_store(location, read_only=True), mode="r"), zarr.Array)
    except Exception:  # damaged metadata makes Zarr raise errors of all kinds
        return False


def _found_format(stored: Mapping[str, Any]) -> str:
    """Describe the format version of a store; those written before the first release have the attribute ``version`` in its place."""
    unreleased = "format" not in stored and "version" in stored
    return f"format version {stored['version']} of an unreleased dfact" if unreleased else f"format version {stored.get('format')}"


def _remedy(kind: str, stored: Mapping[str, Any]) -> str:
    """Return what to do with a store of this kind and of another format version."""
    version = stored.get("format")
    if type(version) is int and version > FORMAT_VERSION:
        return "a later version of dfact wrote it: upgrade dfact (pip install --upgrade dfact)"
    if kind.startswith("checkpoint"):
        return "delete it to start over, or end the computation with the version that wrote it"
    return _REMEDIES.get(kind, "write it again with this version of dfact")


@contextmanager
def changing(location: Location) -> Iterator[tuple[Location, Callable[[Mapping[str, Any], Iterable[str]], None]]]:
    """Yield where the current version of a store is, and a function that replaces its attributes, given the names of its arrays.

    That raises StoreError if the metadata have been changed since the beginning of the block; no other local writer does so within it.
    """
    with locked(location.parent) if isinstance(location, Path) else nullcontext():
        place = _place(location)
        before = read_metadata(place)

        def replace(values: Mapping[str, Any], arrays: Iterable[str]) -> None:
            if before is None:
                raise changed(location)
            metadata = json.loads(before[0]) | {"attributes": {ATTRIBUTE: values}}
            parts = {name: read_metadata(place / name if isinstance(place, Path) else f"{place}/{name}") for name in sorted(arrays)}
            inner = {name: json.loads(found[0]) for name, found in parts.items() if found is not None}
            metadata["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": inner}
            replace_metadata(place, metadata, before)

        yield place, replace


def kind_at(path: str | PathLike[str]) -> str | None:
    """Return the kind of the dfact store at ``path``, complete or not; None if there is none."""
    stored = _dfact_attributes(parse_location(path))
    return None if stored is None else str(stored.get("kind"))


def is_current(location: Location, kind: str) -> bool:
    """Check whether a complete store of this kind, which this version of dfact reads, is at the location."""
    stored = stored_attributes(location)
    return [stored.get(name) for name in ("kind", "format", "complete")] == [kind, FORMAT_VERSION, True]


def is_complete(location: Location) -> bool:
    """Check whether the store or file at the location is complete. Interrupted remote stores exist, but lack the marker."""
    stored = None if isinstance(location, Path) and location.is_file() else _dfact_attributes(location)
    return exists(location) if stored is None else stored.get("complete") is True


def stored_attributes(location: Location) -> dict[str, Any]:
    """Return the dfact attributes of the store at the location, complete or not; an empty dict if there are none."""
    return _dfact_attributes(location) or {}


def _dfact_attributes(location: Location) -> dict[str, Any] | None:
    """Return the dfact attributes of the group or array at the location; None if there are none."""
    try:
        stored = _open(open_store(_place(location), read_only=True), mode="r").attrs.get(ATTRIBUTE)
    except StoreError:
        raise
    except Exception:  # damaged metadata makes Zarr raise errors of all kinds
        return None
    return dict(stored) if isinstance(stored, Mapping) else None


def _open(store: Store, mode: Literal["r", "r+"]) -> Any:
    return zarr.open(store, mode=mode, zarr_format=3)


def attributes(group: zarr.Group | zarr.Array[Any]) -> dict[str, Any]:
    """Return the dfact attributes of a group or an array."""
    return dict(group.attrs[ATTRIBUTE])  # type: ignore[arg-type]  # dfact writes a JSON object there


def update_attributes(group: zarr.Group | zarr.Array[Any], **values: Any) -> None:
    """Set some dfact attributes of a group or an array."""
    group.attrs[ATTRIBUTE] = {**attributes(group), **values}
