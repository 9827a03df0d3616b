"""Stores of named records of arrays, each whole or not there, that belong to one piece of work: what checkpoints are."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from os import PathLike
from typing import Any
from uuid import uuid4

import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.errors import ContainsGroupError

from dfact.errors import ParameterError, StoreError
from dfact.storage.array_stream import StreamWriter, corruption_errors, read_stream
from dfact.storage.groups import ATTRIBUTE, FORMAT_VERSION, open_group, open_store, reason
from dfact.storage.location import Location, absolute, parse_location

_STREAM = "arrays"
_PARTIAL = ".partial"  # what Zarr calls a file until it is written


class Records:
    """A Zarr group at ``path`` of the records of some ``work``, each a group whose attributes are written last.

    ``identity`` is what the records follow from, name by name: a store with another one is refused. ``drawn``
    is kept with it when the store is made; of one that is there it is what was drawn then.
    """

    def __init__(self, path: str | PathLike[str], work: str, identity: Mapping[str, Any], drawn: Any = None) -> None:
        kind = f"checkpoint of a {work}"
        self.place, self.owner = absolute(parse_location(path)), uuid4().hex
        identity = json.loads(json.dumps(identity))
        with self.writing():
            store = open_store(self.place)
            if any(not name.endswith(_PARTIAL) for name in _names(store)):
                found = attributes_of(open_group(self.place, kind))
                for name in [*identity, *found["identity"]]:
                    was, now = (known.get(name, "not there") for known in (found["identity"], identity))
                    if was != now:
                        met = f"{name} was {was} there and is {now} now"
                        raise ParameterError(
                            f"the checkpoint {self.place} belongs to another {work}: {met}; give another path, or remove it"
                        )
                drawn = found["drawn"]
            self.drawn = drawn
            described: dict[str, Any] = {"kind": kind, "version": FORMAT_VERSION, "complete": True}
            described |= {"identity": identity, "drawn": drawn, "owner": self.owner}
            # A new one is told in the write that makes it: a process that is killed here leaves none that nobody knows.
            try:
                self.group = zarr.open_group(store, mode="a", attributes={ATTRIBUTE: described})
            except ContainsGroupError as error:  # made since we looked
                raise self._taken() from error
            _describe(self.group, **described)

    def names(self, prefix: str = "") -> list[str]:
        """Of the records that are whole, in their order."""
        return sorted(name for name, attributes in records_of(self.group).items() if name.startswith(prefix) and attributes)

    def write(self, name: str, arrays: Iterable[NDArray[Any]], **attributes: Any) -> None:
        """A record of arrays and attributes."""
        with self.writing():
            record = self.begin(name)
            for array in arrays:
                record.put(array)
            record.finish(**attributes)

    def begin(self, name: str) -> "RecordWriter":
        """A record, which is whole once it is finished."""
        return RecordWriter(self, self.group.create_group(name, overwrite=True))

    def check_owner(self) -> None:
        """Stop if another process has taken the records over."""
        if attributes_of(zarr.open_group(open_store(self.place, read_only=True), mode="r")).get("owner") != self.owner:
            raise self._taken()

    def _taken(self) -> StoreError:
        return StoreError(f"another process goes on with the checkpoint {self.place}; this one stops")

    def writing(self) -> AbstractContextManager[None]:
        """What prevents records from being written, in words."""
        return _writing(self.place)

    def read(self, name: str) -> tuple[Mapping[str, Any], Iterator[NDArray[Any]]]:
        """The attributes and the arrays of a record; StoreError if they are not those written."""
        with corruption_errors(f"{name!r} of {self.group.store_path}"):
            group: Any = self.group[name]
            found = attributes_of(group)
            return found, read_stream(group, _STREAM, found["checksums"])

    def remove(self, name: str) -> None:
        """Another process that has not yet seen that it lost the records may still be writing there: it will not be long."""
        with self.writing():
            for wait in (0.01, 0.1, 1.0):
                with suppress(OSError):
                    sync(self.group.store.delete_dir(name))
                    return
                time.sleep(wait)
            sync(self.group.store.delete_dir(name))

    def remove_incomplete(self) -> None:
        """What was begun and never became whole."""
        for name, attributes in records_of(self.group).items():
            if not attributes:
                self.remove(name)


class RecordWriter:
    """A record that is being written."""

    def __init__(self, records: Records, group: zarr.Group) -> None:
        self.group, self._records = group, records
        self._writer = StreamWriter(group, _STREAM)

    @property
    def name(self) -> str:
        return self.group.basename

    def put(self, array: NDArray[Any]) -> None:
        self._writer.put(array)

    def finish(self, **attributes: Any) -> None:
        checksums = self._writer.close()
        self._records.check_owner()
        _describe(self.group, **attributes, checksums=checksums)
        try:
            self._records.check_owner()
        except StoreError:
            # Whoever took over meanwhile has removed what was torn: these attributes alone would look whole.
            self._records.remove(self.name)
            raise


def records_of(group: zarr.Group) -> dict[str, Mapping[str, Any]]:
    """The attributes of all that lies there by name; empty of what is not whole, be it a folder in which Zarr sees nothing yet."""
    names = [name for name in _names(group.store, group.path) if "." not in name]  # a file is no record: Zarr's own, or who knows whose
    records: dict[str, Mapping[str, Any]] = {}
    for name in names:
        with corruption_errors(f"{name!r} of {group.store_path}"):
            found = group.get(name)
        records[name] = attributes_of(found) if isinstance(found, zarr.Group) else {}
    return records


def _names(store: Store, path: str = "") -> list[str]:
    async def listed() -> list[str]:
        return [name async for name in store.list_dir(path)]

    return sync(listed())


def attributes_of(group: zarr.Group) -> Mapping[str, Any]:
    """Dfact's attributes of a group, which are not there before it is whole."""
    found: Any = group.attrs.get(ATTRIBUTE, {})
    return found if isinstance(found, Mapping) else {}


def _describe(group: zarr.Group, **attributes: Any) -> None:
    group.attrs[ATTRIBUTE] = attributes


@contextmanager
def _writing(place: Location) -> Iterator[None]:
    """What prevents records from being written, in words."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        remedy = "what it holds already is whole: mend that, and run the same again"
        raise StoreError(f"cannot keep the checkpoint {place}: {reason(error)}; {remedy}") from error
