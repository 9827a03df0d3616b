"""Checkpoints: what a fit needs to go on after an interruption, in a Zarr store.

A fit is a function of what its passes add up: the driver's part follows from that. So the sums of every
pass are kept, and the state of the partitions as the last of them left it. A fit that goes on is handed
the sums again, without a look at the data, until it is where it was, and ends with the same bits.

A step is a pass, or what the driver asks to be remembered beside the passes. The group of a checkpoint
holds ``steps-N``, those from number N on up to the next version, and ``state-N``, that behind step N, whose
attributes are written last and make the version whole. Older states go then.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact import signals as interrupts
from dfact.engine.block_state import CheckpointedState
from dfact.engine.passes import PARTIAL_SUMS, PartialSums, Pass
from dfact.engine.session import Arrays, CheckpointableSession, Session
from dfact.errors import StoppedError, StoreError
from dfact.storage.groups import open_store
from dfact.storage.records import Records, RecordWriter, attributes_of, records_of

P = TypeVar("P", bound=PartialSums)
Record = tuple[dict[str, Any], list[NDArray[Any]]]
"""A step as JSON, and its arrays, to which that refers by their numbers."""
_PASS = "pass"


def resume_point(path: str | PathLike[str]) -> int:
    """The number of steps that a fit with this checkpoint need not take again; 0 if there is none."""
    try:
        group = zarr.open_group(open_store(path, read_only=True), mode="r")
    except FileNotFoundError:
        return 0
    found = records_of(group).items()
    return max((_number(name) for name, attributes in found if name.startswith("state-") and attributes), default=0)


def _number(name: str) -> int:
    return int(name.split("-")[1])


def pack(partial: PartialSums, put: Callable[[NDArray[Any]], None], first: int = 0) -> tuple[dict[str, Any], int]:
    """Sums as JSON that refers to their arrays by number, from ``first`` on, and the number of the next; the arrays are put."""
    if PARTIAL_SUMS.get(str(partial.checkpoint_name)) is not type(partial):
        kind = type(partial).__name__
        raise TypeError(f"{kind} has no name in checkpoints; declare it as class {kind}(PartialSums, name=...)")
    packed: dict[str, Any] = {"of": partial.checkpoint_name}
    for field in fields(partial):
        value = getattr(partial, field.name)
        if isinstance(value, list):
            packed[field.name] = []
            for part in value:
                inner, first = pack(part, put, first)
                packed[field.name].append(inner)
        else:
            put(np.asarray(value))
            packed[field.name], first = first, first + 1
    return packed, first


def unpack(packed: Mapping[str, Any], arrays: list[NDArray[Any]]) -> Any:
    """What :func:`pack` was given."""
    values = {name: value for name, value in packed.items() if name != "of"}
    return PARTIAL_SUMS[packed["of"]](
        **{name: [unpack(p, arrays) for p in value] if isinstance(value, list) else arrays[value] for name, value in values.items()}
    )


class CheckpointedSession(Session):
    """A session whose passes a checkpoint at ``path`` keeps, every so many of them.

    ``identity`` is what the fit follows from, name by name: a checkpoint of another fit is refused.
    """

    def __init__(self, session: CheckpointableSession, path: str | PathLike[str], every: int, identity: Mapping[str, str]) -> None:
        self._session, self._path, self._every, self._identity = session, path, every, identity
        self._thread, self._lock, self._stack = threading.get_ident(), threading.Lock(), ExitStack()
        self._counts: Counter[str] = Counter()
        self._ahead: dict[str, Record] = {}  # read and not yet asked for
        self._unread: list[str] = []  # records with the steps that come then
        self._new: list[dict[str, Any]] = []  # steps that no version holds yet; their arrays are written already
        self._record: RecordWriter | None = None  # where
        self._version = 0
        self._steps: list[str] = []  # the names of all records of steps
        self._state = ""  # and that of the state

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._records = Records(self._path, "fit", self._identity)
            stack.enter_context(self._session)
            stack.enter_context(interrupts.defer_stop())
            stack.push(self._end)
            self._restore()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._save_if_due()  # a signal may have come behind the last pass

    def run(self, pass_: Pass[Any, P], broadcast: Any) -> P:
        name = type(pass_).__name__
        key, found = self._replay(_PASS)
        if found is not None:
            packed, arrays = found
            if packed["pass"] != name:
                raise self._diverged(key, packed["pass"], name)
            sums: P = unpack(packed["sums"], arrays)
            return sums
        if self._ahead or self._unread:
            raise self._diverged(key, "none", name)
        sums = self._session.run(pass_, broadcast)
        with self._recording(key) as (step, put):
            packed, count = pack(sums, put)
            step.update(record={"pass": name, "sums": packed}, arrays=count)
        self._save_if_due()
        return sums

    def memo(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        key, found = self._replay(name)
        if found is None:
            remembered = compute()
            with self._recording(key) as (step, put):
                for array in remembered.values():
                    put(array)
                step.update(record={"names": list(remembered)}, arrays=len(remembered))
            if threading.get_ident() == self._thread:  # beside other members' threads the next pass is soon enough
                self._save_if_due()
            return remembered
        return dict(zip(found[0]["names"], found[1], strict=True))

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        assert not [*self._ahead, *self._unread], "the state is that of the last version, which the fit has not come to yet"
        return self._session.rows(name)

    def write_rows(self, name: str, convert: Callable[[NDArray[Any]], NDArray[Any]], target: zarr.Array[Any]) -> bool:
        assert not [*self._ahead, *self._unread], "the state is that of the last version, which the fit has not come to yet"
        return self._session.write_rows(name, convert, target)

    def _replay(self, name: str) -> tuple[str, Record | None]:
        """The next step of this name, and what the checkpoint holds of it."""
        with self._lock:
            self._counts[name] += 1
            key = f"{name}-{self._counts[name]}"
            while key not in self._ahead and self._unread:
                self._ahead |= self._read_steps(self._unread.pop(0))
            return key, self._ahead.pop(key, None)

    @contextmanager
    def _recording(self, key: str) -> Iterator[tuple[dict[str, Any], Callable[[NDArray[Any]], None]]]:
        """A step that is filled in, and what takes its arrays: they are written at once, as who has them may change them."""
        with self._lock, self._records.write_errors():
            if self._record is None:
                self._record = self._begin("steps", self._version + 1)
            step: dict[str, Any] = {"key": key}
            yield step, self._record.append
            self._new.append(step)

    def _diverged(self, key: str, was: str, now: str) -> StoreError:
        met = f"{key} was {was} there and is {now} now"
        reason = "it was written on another machine or with other versions of the libraries"
        return StoreError(f"the fit takes another course than in {self._records.location}: {met}; {reason}: remove it to begin anew")

    def _restore(self) -> None:
        """Give the session the state of the last version, and remove what is not of it."""
        records, kept = self._records, set[str]()
        states = records.names("state-")
        if states:
            state: Any = records.group[states[-1]]
            found = attributes_of(state)
            self._version, self._steps = _number(states[-1]), list(found["steps"])
            self._unread, self._state, kept = list(self._steps), states[-1], {states[-1], *self._steps}
            self._session.restore([CheckpointedState.from_description(state, described) for described in found["states"]])
        for name in records_of(records.group).keys() - kept:
            records.remove(name)

    def _read_steps(self, name: str) -> dict[str, Record]:
        found, arrays = self._records.read(name)
        records: dict[str, Record] = {}
        for step in found["steps"]:
            records[step["key"]] = step["record"], [next(arrays) for _ in range(step["arrays"])]
        return records

    def _save_if_due(self) -> None:
        stop = interrupts.requested_signal()
        if len(self._new) >= self._every or (stop is not None and self._new):
            self._save()
        if stop is not None:
            raise StoppedError(
                stop, f"the checkpoint {self._records.location} holds {self._version} steps, from which the same fit goes on"
            )

    def _begin(self, what: str, number: int) -> RecordWriter:
        # The name is ours alone: a process that was given up for lost may still be writing its own.
        return self._records.begin(f"{what}-{number:06d}-{self._records.owner[:8]}")

    def _save(self) -> None:
        before, after = self._state, self._version + len(self._new)
        with self._lock, self._records.write_errors():
            assert self._record is not None, "there are new steps"
            self._record.finish(steps=self._new)
            self._steps.append(self._record.name)
            self._new, self._record, self._version = [], None, after
            state = self._begin("state", after)
            saved = self._session.save(state.group)
            state.finish(states=[stored.described() for stored in saved], steps=self._steps)
            self._state = state.name
            if before:
                self._records.remove(before)
