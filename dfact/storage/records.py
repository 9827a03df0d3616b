"""Named records of arrays, each complete or absent, that belong to one computation: the format of checkpoints."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.errors import ContainsGroupError

from dfact.errors import ParameterError, StoreError
from dfact.internals.zarr import sync
from dfact.storage.array_stream import StreamWriter, corruption_errors, read_stream
from dfact.storage.groups import ATTRIBUTE, FORMAT_VERSION, attributes, open_group, open_store
from dfact.storage.location import Location, absolute, parse_location
from dfact.storage.replacement import reason, sync_folder
from dfact.storage.seals import sealed

_STREAM = "arrays"
WRITER = "written_by"  # attribute with the version of dfact
_PARTIAL = ".partial"  # Zarr's suffix of a file that is being written


def check_writer(what: str, writer: Any, *, any_patch: bool = False) -> None:
    """Refuse what another version of dfact has begun: its solvers may take other steps, which would end with other bits.

    With ``any_patch``, versions that differ only in the patch number are accepted.
    """
    current = version("dfact")
    if writer == current or (any_patch and isinstance(writer, str) and writer.split(".")[:2] == current.split(".")[:2]):
        return
    found = "an unreleased version of dfact" if writer is None else f"dfact {writer}"
    expected = ".".join([*current.split(".")[:2], "x"]) if any_patch else current
    remedy = "delete it to start over, or end the computation with the version that wrote it"
    raise StoreError(f"{what} was written by {found}, expected dfact {expected}; {remedy}")


class Records:
    """A Zarr group at ``path`` with the records of some ``work``, each a group whose attributes are written last.

    ``work`` is the kind of computation, such as "fit", for messages. ``identity`` names everything that determines the records: a
    store with another identity is refused, and so is one of another version of dfact. ``seed`` is stored with a new store;
    ``recorded_seed`` is the one that the store has.

    The process that opened the records last is their owner. An earlier one notices that when it completes a record, and stops.
    """

    def __init__(self, path: str | PathLike[str], work: str, identity: Mapping[str, Any], seed: Any = None) -> None:
        kind = f"checkpoint of a {work}"
        self.location, self.owner = absolute(parse_location(path)), uuid4().hex
        identity = json.loads(json.dumps(identity))  # as it is stored: tuples become lists
        with self.write_errors():
            store = open_store(self.location)
            if any(not name.endswith(_PARTIAL) for name in _names(store)):
                group = open_group(self.location, kind)
                check_writer(f"the checkpoint {self.location}", attributes(group).get(WRITER))
                stored = attributes_of(group)
                for name in [*identity, *stored["identity"]]:
                    recorded, current = (values.get(name, "absent") for values in (stored["identity"], identity))
                    if recorded != current:
                        raise ParameterError(
                            f"the checkpoint {self.location} belongs to another {work}: {name} is {recorded}, expected {current}; "
                            "choose another path, or delete the checkpoint"
                        )
                seed = stored["seed"]
            self.recorded_seed = seed
            description: dict[str, Any] = {"kind": kind, "format": FORMAT_VERSION, "complete": True}
            description |= {"identity": identity, "seed": seed, "owner": self.owner, WRITER: version("dfact")}
            # Creation and description are one write: a process killed here leaves no group without a description.
            try:
                self.group = zarr.open_group(store, mode="a", zarr_format=3, attributes={ATTRIBUTE: sealed(description)})
            except ContainsGroupError as error:  # created by another process since the check above
                raise self._lost_ownership() from error
            _describe(self.group, **description)

    def names(self, prefix: str = "") -> list[str]:
        """Return the sorted names of the complete records."""
        return sorted(name for name, attributes in records_of(self.group).items() if name.startswith(prefix) and attributes)

    def write(self, name: str, arrays: Iterable[NDArray[Any]], **attributes: Any) -> None:
        """Write a record of arrays and attributes."""
        with self.write_errors():
            record = self.begin(name)
            for array in arrays:
                record.append(array)
            record.finish(**attributes)

    def begin(self, name: str) -> "RecordWriter":
        """Begin a record, which is complete once its writer is finished."""
        return RecordWriter(self, self.group.create_group(name, overwrite=True))

    def check_owner(self) -> None:
        """Raise StoreError if another process has taken over the records."""
        # A stated format is one read, where Zarr would look for the files of all formats; each record is checked twice.
        group = zarr.open_group(open_store(self.location, read_only=True), mode="r", zarr_format=3, use_consolidated=False)
        if attributes_of(group).get("owner") != self.owner:
            raise self._lost_ownership()

    def _lost_ownership(self) -> StoreError:
        return StoreError(f"another process has resumed the checkpoint {self.location}; this process stops")

    def write_errors(self) -> AbstractContextManager[None]:
        """Translate the errors of writing records into StoreError."""
        return _write_errors(self.location)

    def read(self, name: str) -> tuple[Mapping[str, Any], Iterator[NDArray[Any]]]:
        """Read the attributes and the arrays of a record; raise StoreError unless they are those that were written."""
        with corruption_errors(f"{name!r} of {self.group.store_path}"):
            group: Any = self.group[name]
            attributes = record_attributes(group)
            return attributes, read_stream(group, _STREAM, attributes["checksums"])

    def remove(self, name: str) -> None:
        """Delete a record; retry while a process that has just lost the records may still be writing to it."""
        with self.write_errors():
            for wait in (0.01, 0.1, 1.0):
                with suppress(OSError):
                    sync(self.group.store.delete_dir(name))
                    return
                time.sleep(wait)
            sync(self.group.store.delete_dir(name))

    def remove_incomplete(self) -> None:
        """Delete the records that were begun and never finished."""
        for name, stored in records_of(self.group).items():
            if not stored:
                self.remove(name)


class RecordWriter:
    """A writer of one record."""

    def __init__(self, records: Records, group: zarr.Group) -> None:
        self.group, self._records = group, records
        self._writer = StreamWriter(group, _STREAM)

    @property
    def name(self) -> str:
        """Name of the record."""
        return self.group.basename

    def append(self, array: NDArray[Any]) -> None:
        """Write an array after the previous one."""
        self._writer.append(array)

    def finish(self, **attributes: Any) -> None:
        """Write the attributes, which complete the record."""
        checksums = self._writer.close()
        self._records.check_owner()
        _describe(self.group, **attributes, checksums=checksums, record=self.name)
        try:
            self._records.check_owner()
        except StoreError:
            # The new owner has deleted incomplete records: without its arrays this one would look complete.
            self._records.remove(self.name)
            raise
        if isinstance(self._records.location, Path):  # an object store keeps what it has taken
            sync_folder(self._records.location / self.name)  # before records that this one replaces are deleted


def records_of(group: zarr.Group) -> dict[str, Mapping[str, Any]]:
    """Return the attributes of all records by name; those of an incomplete one, or of a folder that is not yet a Zarr group, are empty."""
    names = [name for name in _names(group.store, group.path) if "." not in name]  # files have a suffix; records are folders without
    records: dict[str, Mapping[str, Any]] = {}
    for name in names:
        with corruption_errors(f"{name!r} of {group.store_path}"):
            record = group.get(name)
        records[name] = attributes_of(record) if isinstance(record, zarr.Group) else {}
    return records


def _names(store: Store, path: str = "") -> list[str]:
    async def list_names() -> list[str]:
        return [name async for name in store.list_dir(path)]

    return sync(list_names())


def attributes_of(group: zarr.Group) -> Mapping[str, Any]:
    """Return dfact's attributes of a group; those of an incomplete one are empty, where ``groups.attributes`` raises KeyError.

    Raises StoreError unless they are those that were written.
    """
    stored: Any = group.attrs.get(ATTRIBUTE, {})
    if stored and (not isinstance(stored, dict) or sealed(stored) != stored):
        raise StoreError(
            f"the attributes of {group.store_path} do not match their digest: they are damaged; delete the checkpoint to start over"
        )
    return stored or {}


def record_attributes(group: zarr.Group) -> Mapping[str, Any]:
    """Return the attributes of a complete record; raise StoreError if they are those of another one."""
    attributes = attributes_of(group)
    if attributes.get("record") != group.basename:
        raise StoreError(f"{group.store_path} has the attributes of another record; delete the checkpoint to start over")
    return attributes


def _describe(group: zarr.Group, **attributes: Any) -> None:
    group.attrs[ATTRIBUTE] = sealed(attributes)


@contextmanager
def _write_errors(location: Location) -> Iterator[None]:
    """Translate OSError into a StoreError that names the remedy."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        remedy = "its records so far are complete: remove the cause and run the same command again"
        raise StoreError(f"cannot write the checkpoint {location}: {reason(error)}; {remedy}") from error
