"""Checkpoints: what a fit needs to go on after an interruption, in a Zarr store.

A fit is a function of what its passes add up: the driver's part follows from that. So the sums of every
pass are kept, and the state of the partitions as the last of them left it. A fit that goes on is handed
the sums again, without a look at the data, until it is where it was, and ends with the same bits.

A step is a pass, or what the driver asks to be remembered beside the passes. The group of a checkpoint
holds ``steps-N``, those up to number N since the version before, and ``state-N``, whose attributes are
written last and make the version whole. Older states go then.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.sync import sync

from dfact.data.places import Place, absolute, place_of
from dfact.data.store import ATTRIBUTE, FORMAT_VERSION, open_group, reason, store_at
from dfact.engine import interrupts
from dfact.engine.passes import PARTIALS, Partial, Pass
from dfact.engine.session import Arrays, Session, Stateful
from dfact.engine.streams import StoredState, StreamWriter, read_stream
from dfact.errors import ParameterError, StoppedError, StoreError

P = TypeVar("P", bound=Partial)
Record = tuple[dict[str, Any], list[NDArray[Any]]]
"""A step as JSON, and its arrays, to which that refers by their numbers."""
KIND = "checkpoint"
_STREAM = "arrays"
_PASS = "pass"


def resume_point(path: str | PathLike[str]) -> int:
    """The number of steps that a fit with this checkpoint need not take again; 0 if there is none."""
    try:
        group = zarr.open_group(store_at(path, read_only=True), mode="r")
    except FileNotFoundError:
        return 0
    return max(_whole(group), default=0)


def _whole(group: zarr.Group) -> list[int]:
    """Numbers of the versions that are whole."""
    states = ((name, state) for name, state in group.groups() if name.startswith("state-"))
    return [_number(name) for name, state in states if _attributes(state).get("complete")]


def _number(name: str) -> int:
    return int(name.partition("-")[2])


def _attributes(group: zarr.Group) -> Mapping[str, Any]:
    found: Any = group.attrs.get(ATTRIBUTE, {})
    return found if isinstance(found, Mapping) else {}


def _describe(group: zarr.Group, **values: Any) -> None:
    """Write a group's attributes: the last of it that is written."""
    group.attrs[ATTRIBUTE] = values


def pack(partial: Partial, arrays: list[NDArray[Any]]) -> dict[str, Any]:
    """Sums as JSON that refers to copies of their arrays, which are appended."""
    packed: dict[str, Any] = {"of": f"{type(partial).__module__}.{type(partial).__qualname__}"}
    for field in fields(partial):
        value = getattr(partial, field.name)
        if isinstance(value, list):
            packed[field.name] = [pack(part, arrays) for part in value]
        else:
            packed[field.name] = len(arrays)
            arrays.append(np.array(value))
    return packed


def unpack(packed: Mapping[str, Any], arrays: list[NDArray[Any]]) -> Any:
    """What :func:`pack` was given."""
    values = {name: value for name, value in packed.items() if name != "of"}
    return PARTIALS[packed["of"]](
        **{name: [unpack(p, arrays) for p in value] if isinstance(value, list) else arrays[value] for name, value in values.items()}
    )


class CheckpointedSession(Session):
    """A session whose passes a checkpoint at ``path`` keeps, every so many of them.

    ``identity`` is what the fit follows from, name by name: a checkpoint of another fit is refused.
    """

    def __init__(self, session: Stateful, path: str | PathLike[str], every: int, identity: Mapping[str, str]) -> None:
        self._session, self._path, self._every, self._identity = session, absolute(place_of(path)), every, dict(identity)
        self._owner, self._thread = uuid4().hex, threading.get_ident()
        self._lock, self._stack = threading.Lock(), ExitStack()
        self._counts: Counter[str] = Counter()
        self._ahead: dict[str, Record] = {}  # read and not yet asked for
        self._unread: list[int] = []  # numbers of the versions with the steps that come then
        self._new: dict[str, Record] = {}  # steps that no version holds yet
        self._version = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            with writing(self._path):
                self._group = self._open()
            stack.enter_context(self._session)
            stack.enter_context(interrupts.obeying())
            with writing(self._path):
                self._restore()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, pass_: Pass[Any, P], shared: Any) -> P:
        name = type(pass_).__name__
        key, found = self._recall(_PASS)
        if found is not None:
            packed, arrays = found
            if packed["pass"] != name:
                raise self._other_course(key, packed["pass"], name)
            sums: P = unpack(packed["sums"], arrays)
            return sums
        if self._ahead or self._unread:
            raise self._other_course(key, "none", name)
        sums = self._session.run(pass_, shared)
        arrays = []
        self._keep(key, ({"pass": name, "sums": pack(sums, arrays)}, arrays))
        self._save_if_due()
        return sums

    def remember(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        key, found = self._recall(name)
        if found is None:
            remembered = compute()
            self._keep(key, ({"names": list(remembered)}, [np.array(array) for array in remembered.values()]))
            if threading.get_ident() == self._thread:  # beside other members' threads the next pass is soon enough
                self._save_if_due()
            return remembered
        return dict(zip(found[0]["names"], found[1], strict=True))

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        return self._session.rows(name)

    def _recall(self, name: str) -> tuple[str, Record | None]:
        """The next step of this name, and what the checkpoint holds of it."""
        with self._lock:
            self._counts[name] += 1
            key = f"{name}-{self._counts[name]}"
            while key not in self._ahead and self._unread:
                self._ahead |= self._read_steps(self._unread.pop(0))
            return key, self._ahead.pop(key, None)

    def _keep(self, key: str, record: Record) -> None:
        with self._lock:
            self._new[key] = record

    def _other_course(self, key: str, was: str, now: str) -> StoreError:
        met = f"{key} was {was} there and is {now} now"
        reason = "it was written on another machine or with other versions of the libraries"
        return StoreError(f"the fit takes another course than in the checkpoint {self._path}: {met}; {reason}: remove it to begin anew")

    def _open(self) -> zarr.Group:
        """The group of the checkpoint, which is now ours."""
        store = store_at(self._path)
        ours: Any = {"kind": KIND, "version": FORMAT_VERSION, "complete": True, "identity": self._identity, "owner": self._owner}
        if sync(store.is_empty("")):
            return zarr.create_group(store, attributes={ATTRIBUTE: ours})
        found = _attributes(open_group(self._path, KIND))["identity"]
        for name in [*self._identity, *found]:
            was, now = found.get(name, "not there"), self._identity.get(name, "not there")
            if was != now:
                met = f"{name} was {was} there and is {now} now"
                raise ParameterError(f"the checkpoint {self._path} belongs to another fit: {met}; give another path, or remove it")
        group = zarr.open_group(store, mode="r+")
        _describe(group, **ours)
        return group

    def _restore(self) -> None:
        """Remove what is not whole, and give the session the state of the last version."""
        self._version = max(_whole(self._group), default=0)
        for name in list(self._group.group_keys()):
            if _number(name) > self._version or (name.startswith("state-") and _number(name) < self._version):
                self._remove(name)
        if not self._version:
            return
        self._unread = sorted(_number(name) for name in self._group.group_keys() if name.startswith("steps-"))
        state: Any = self._group[f"state-{self._version:06d}"]
        states = _attributes(state)["states"]
        self._session.restore([s and StoredState(state, s["stream"], tuple(s["names"]), s["checksum"]) for s in states])

    def _read_steps(self, number: int) -> dict[str, Record]:
        group: Any = self._group[f"steps-{number:06d}"]
        found = _attributes(group)
        arrays = read_stream(group, _STREAM, found["checksum"])
        records: dict[str, Record] = {
            step["key"]: (step["record"], [next(arrays) for _ in range(step["arrays"])]) for step in found["steps"]
        }
        next(arrays, None)  # the checksum is compared behind the last
        return records

    def _save_if_due(self) -> None:
        stop = interrupts.asked()
        if len(self._new) >= self._every or (stop is not None and self._new):
            with writing(self._path):
                self._save()
        if stop is not None:
            raise StoppedError(stop, f"the checkpoint {self._path} holds {self._version} steps, from which the same fit goes on")

    def _save(self) -> None:
        found = _attributes(zarr.open_group(store_at(self._path, read_only=True), mode="r"))
        if found.get("owner") != self._owner:
            raise StoreError(f"another process goes on with the checkpoint {self._path}; this one stops")
        with self._lock:
            new, self._new = self._new, {}
        number = self._version + len(new)
        steps = self._group.create_group(f"steps-{number:06d}")
        writer = StreamWriter(steps, _STREAM)
        for _, arrays in new.values():
            for array in arrays:
                writer.put(array)
        listed = [{"key": key, "record": record, "arrays": len(arrays)} for key, (record, arrays) in new.items()]
        _describe(steps, checksum=writer.close(), steps=listed)
        state = self._group.create_group(f"state-{number:06d}")
        states = [s and {"stream": s.stream, "names": s.names, "checksum": s.checksum} for s in self._session.save(state)]
        _describe(state, complete=True, states=states)
        before, self._version = self._version, number
        if before:
            self._remove(f"state-{before:06d}")

    def _remove(self, name: str) -> None:
        sync(self._group.store.delete_dir(name))


@contextmanager
def writing(path: Place) -> Iterator[None]:
    """What prevents a checkpoint from being written, in words."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot keep the checkpoint {path}: {reason(error)}; its last version is whole: mend that, and fit again"
        ) from error
