"""Zarr groups that are complete or absent: local ones are written next to their path and renamed, remote ones below a name of their own."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.store import Store
from zarr.errors import ZarrUserWarning

from dfact.errors import StoreError
from dfact.storage.arrays import MAX_REASON, WRITE_EMPTY_CHUNKS
from dfact.storage.location import Location, parse_location, suffix
from dfact.storage.remote_files import describe, remove_object
from dfact.storage.replacement import (
    SCRATCH,
    absent_parents,
    delete,
    explain,
    remove_empty,
    remove_ended,
    restore_folder,
    succeeds,
    writers_of,
    written_beside,
)
from dfact.storage.seals import read_seal
from dfact.storage.versions import (
    ATTRIBUTE,
    current_version,
    is_version,
    read_metadata,
    remove_versions,
    replace_metadata,
    version_writer,
    written_version,
)
from dfact.storage.writers import changed, locked, partial_prefix, writer_name
from dfact.storage.zarr_stores import StrictLocalStore, StrictObjectStore

FORMAT_VERSION = 2
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
    return {"kind": kind, "version": FORMAT_VERSION, "complete": False}


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
    if stored.get("version") != FORMAT_VERSION:  # kinds may have had other names
        raise StoreError(f"{location} has format version {stored.get('version')}, expected {FORMAT_VERSION}; {_remedy(kind, stored)}")
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


def _remedy(kind: str, stored: Mapping[str, Any]) -> str:
    """Return what to do with a store of this kind and of another format version."""
    version = stored.get("version")
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
    return [stored.get(name) for name in ("kind", "version", "complete")] == [kind, FORMAT_VERSION, True]


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
