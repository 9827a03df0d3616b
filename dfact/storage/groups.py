"""Zarr groups that are complete or absent: local ones are written next to their path and renamed, remote ones marked complete last."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.store import Store
from zarr.errors import ZarrUserWarning

from dfact.errors import StoreError
from dfact.storage.arrays import MAX_REASON, WRITE_EMPTY_CHUNKS, reason
from dfact.storage.location import Location, parse_location, suffix
from dfact.storage.remote_files import describe, remove_object
from dfact.storage.replacement import absent_parents, delete_folder, remove_empty, replace_folder, replaced_folder, restore_folder
from dfact.storage.zarr_stores import StrictLocalStore, StrictObjectStore

ATTRIBUTE = "dfact"
FORMAT_VERSION = 2
_INCOMPLETE, _SCRATCH = ".incomplete", ".scratch"
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
def create_group(path: str | PathLike[str], kind: str, *, overwrite: bool = False) -> Iterator[zarr.Group]:
    """Create a Zarr v3 group that is complete at ``path`` after the block, or absent.

    A local group is written to ``path`` + ".incomplete", marked complete, then renamed. An object store cannot
    rename: there the group is written directly to ``path``, where readers refuse it until it is marked complete,
    and a group that it replaces (``overwrite``) is deleted first. The remains of an interrupted writer are deleted.
    After a failure, such as a full disk, the partial group is deleted, and an existing local group at ``path`` stays
    unchanged.

    Raises
    ------
    StoreError
        ``path`` exists and must not be replaced, or cannot be written.
    """
    with _write_errors(parse_location(path), overwrite=overwrite) as store:
        group = zarr.create_group(store, attributes={ATTRIBUTE: _initial_attributes(kind)})
        yield group
        update_attributes(consolidate(store), complete=True)


def consolidate(store: Store) -> zarr.Group:
    """Store the metadata of all arrays with those of the group. dfact never requires that, but xarray looks for it first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # an extension of the format
        return zarr.consolidate_metadata(store)


@contextmanager
def create_array(path: str | PathLike[str], kind: str, **settings: Any) -> Iterator[zarr.Array[Any]]:
    """Create a standalone array, complete at ``path`` after the block or absent, as :func:`create_group` does.

    ``settings`` are arguments of ``zarr.create_array``.
    """
    with _write_errors(parse_location(path), overwrite=False) as store:
        array = zarr.create_array(store, attributes={ATTRIBUTE: _initial_attributes(kind)}, config=WRITE_EMPTY_CHUNKS, **settings)
        yield array
        update_attributes(array, complete=True)


def _initial_attributes(kind: str) -> dict[str, Any]:
    return {"kind": kind, "version": FORMAT_VERSION, "complete": False}


@contextmanager
def _write_errors(location: Location, *, overwrite: bool) -> Iterator[Store]:
    """Yield an empty store that becomes ``location``; delete it and raise StoreError if the block fails."""
    if isinstance(location, Path):
        restore_folder(location)
    ensure_absent(location, overwrite=overwrite)
    target, new = (partial_path(location), absent_parents(location)) if isinstance(location, Path) else (location, [])
    try:
        if isinstance(location, Path):
            location.parent.mkdir(parents=True, exist_ok=True)
        remove(target)
        yield open_store(target)
        if isinstance(location, Path):
            replace_folder(partial_path(location), location)
    except BaseException as error:
        remains = _clean_up(target)
        remove_empty(new)
        # A lost connection to a cluster is an OSError too, but without the system's error number.
        if isinstance(error, OSError) and (remains if isinstance(error, StoreError) else error.errno is not None):
            raise StoreError(f"cannot write {location}: {reason(error)}; {remains or 'no partial store is left'}") from error
        raise


@contextmanager
def scratch_store(path: str | PathLike[str]) -> Iterator[Store]:
    """Yield an empty store next to ``path`` for temporary objects, which is deleted after the block with the remains of earlier ones.

    It is next to ``path`` and not in it, because an object store deletes a group that is replaced before it takes the new one.

    Raises
    ------
    StoreError
        The store cannot be written.
    """
    location = _scratch_path(parse_location(path))
    new = absent_parents(location) if isinstance(location, Path) else []
    try:
        remove(location)
        yield open_store(location)
    except BaseException as error:
        remains = _clean_up(location)
        remove_empty(new)
        if isinstance(error, OSError) and not isinstance(error, StoreError) and error.errno is not None:
            raise StoreError(f"cannot write {path}: {reason(error)}; {remains or 'no partial store is left'}") from error
        raise
    remove(location)


def _scratch_path(location: Location) -> Location:
    return location.with_name(location.name + _SCRATCH) if isinstance(location, Path) else location + _SCRATCH


def _clean_up(target: Location) -> str:
    """Delete a partial store; return a note for the message if that fails too, else an empty string."""
    try:
        remove(target)
    except OSError:
        return f"a partial store may remain at {target}, marked as incomplete: delete it"
    return ""


def remove(location: Location) -> None:
    """Delete a store. If the deletion is interrupted, the remains are marked as incomplete."""
    if isinstance(location, Path):
        partial = location if location.suffix == _INCOMPLETE else partial_path(location)
        if partial.is_symlink() or partial.exists():
            delete_folder(partial)
        if location.exists():
            location.rename(partial)
            delete_folder(partial)
        return
    if suffix(location) and describe(location) is not None:  # a single object, such as a report
        remove_object(location)
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
    if isinstance(location, str) and stored and stored.get("complete") is not True:
        return
    if not overwrite:
        raise StoreError(f"{location} exists already; choose another path, or replace it with overwrite=True (--overwrite)")
    if stored is None:
        raise StoreError(f"{location} exists and is not a dfact store, so it is not replaced; choose another path")


def ensure_not_source(path: str | PathLike[str], sources: Iterable[Location | None]) -> None:
    """Raise StoreError if ``path`` is a remote store that is still to be read: it is deleted before its replacement is written."""
    location = parse_location(path)
    if isinstance(location, str) and location in sources:
        raise StoreError(f"{location} is a source of its own replacement, and an object store deletes it first; choose another path")


def exists(location: Location) -> bool:
    """Check whether anything is at the location, complete or not."""
    if isinstance(location, Path):
        return location.exists()
    return StrictObjectStore(location).holds_any() or (bool(suffix(location)) and describe(location) is not None)


def stored_size(location: Location) -> int:
    """Return the total size in bytes of the files or objects at the location."""
    if isinstance(location, Path):
        return sum(file.stat().st_size for file in location.rglob("*") if file.is_file())
    return StrictObjectStore(location).total_bytes()


def open_group(path: str | PathLike[str], kind: str) -> zarr.Group:
    """Open the complete group of this kind at ``path``, read-only; raise StoreError with the reason if there is none."""
    location = parse_location(path)
    if not exists(location):
        if isinstance(location, Path) and (old := replaced_folder(location)) is not None:
            raise StoreError(f"{location} was being replaced when its writer was stopped; rename {old} back, or run the command again")
        interrupted = isinstance(location, Path) and (partial_path(location).exists() or exists(_scratch_path(location)))
        hint = "; an interrupted import left it incomplete: run it again" if interrupted else ""
        raise StoreError(f"{location} does not exist, expected a dfact {kind}{hint}")
    try:
        # Consolidated metadata is a copy for xarray; the arrays' own metadata is authoritative. Zarr format 2 can hold pickles: code.
        group = zarr.open_group(open_store(location, read_only=True), mode="r", use_consolidated=False, zarr_format=3)
    except StoreError:
        raise
    except Exception as error:  # damaged metadata makes Zarr raise errors of all kinds
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
    return group


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


def kind_at(path: str | PathLike[str]) -> str | None:
    """Return the kind of the dfact store at ``path``, complete or not; None if there is none."""
    stored = _dfact_attributes(parse_location(path))
    return None if stored is None else str(stored.get("kind"))


def is_current(location: Location, kind: str) -> bool:
    """Check whether a complete store of this kind, which this version of dfact reads, is at the location."""
    stored = _dfact_attributes(location) or {}
    return [stored.get(name) for name in ("kind", "version", "complete")] == [kind, FORMAT_VERSION, True]


def is_complete(location: Location) -> bool:
    """Check whether the store or file at the location is complete. Interrupted remote stores exist, but lack the marker."""
    stored = None if isinstance(location, Path) and location.is_file() else _dfact_attributes(location)
    return exists(location) if stored is None else stored.get("complete") is True


def _dfact_attributes(location: Location) -> dict[str, Any] | None:
    """Return the dfact attributes of the group or array at the location; None if there are none."""
    try:
        stored = _open(open_store(location, read_only=True), mode="r").attrs.get(ATTRIBUTE)
    except StoreError:
        raise
    except Exception:  # damaged metadata makes Zarr raise errors of all kinds
        return None
    return dict(stored) if isinstance(stored, Mapping) else None


def _open(store: Store, mode: Literal["r", "r+"]) -> Any:
    return zarr.open(store, mode=mode, zarr_format=3)


def partial_path(path: Path) -> Path:
    """Return the path at which a file or folder is written before it is renamed to ``path``."""
    return path.with_name(path.name + _INCOMPLETE)


def attributes(group: zarr.Group | zarr.Array[Any]) -> dict[str, Any]:
    """Return the dfact attributes of a group or an array."""
    return dict(group.attrs[ATTRIBUTE])  # type: ignore[arg-type]  # dfact writes a JSON object there


def update_attributes(group: zarr.Group | zarr.Array[Any], **values: Any) -> None:
    """Set some dfact attributes of a group or an array."""
    group.attrs[ATTRIBUTE] = {**attributes(group), **values}
