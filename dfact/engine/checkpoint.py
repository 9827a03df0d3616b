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
from contextlib import ExitStack
from dataclasses import fields
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.store import store_at
from dfact.engine import interrupts
from dfact.engine.passes import PARTIALS, Partial, Pass
from dfact.engine.records import Records, attributes_of
from dfact.engine.session import Arrays, Session, Stateful
from dfact.engine.streams import StoredState
from dfact.errors import StoppedError, StoreError

P = TypeVar("P", bound=Partial)
Record = tuple[dict[str, Any], list[NDArray[Any]]]
"""A step as JSON, and its arrays, to which that refers by their numbers."""
_PASS = "pass"


def resume_point(path: str | PathLike[str]) -> int:
    """The number of steps that a fit with this checkpoint need not take again; 0 if there is none."""
    try:
        group = zarr.open_group(store_at(path, read_only=True), mode="r")
    except FileNotFoundError:
        return 0
    return max((_number(name) for name, state in group.groups() if name.startswith("state-") and attributes_of(state)), default=0)


def _number(name: str) -> int:
    return int(name.partition("-")[2])


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
        self._session, self._path, self._every, self._identity = session, path, every, identity
        self._thread, self._lock, self._stack = threading.get_ident(), threading.Lock(), ExitStack()
        self._counts: Counter[str] = Counter()
        self._ahead: dict[str, Record] = {}  # read and not yet asked for
        self._unread: list[str] = []  # records with the steps that come then
        self._new: dict[str, Record] = {}  # steps that no version holds yet
        self._version = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._records = Records(self._path, "fit", self._identity)
            stack.enter_context(self._session)
            stack.enter_context(interrupts.obeying())
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
        return StoreError(f"the fit takes another course than in {self._records.place}: {met}; {reason}: remove it to begin anew")

    def _restore(self) -> None:
        """Remove what is not whole, and give the session the state of the last version."""
        records = self._records
        records.remove_torn()
        states = records.names("state-")
        self._version = _number(states[-1]) if states else 0
        for name in [*records.names("steps-"), *states]:
            if _number(name) > self._version or (name in states and _number(name) < self._version):
                records.remove(name)
        if not self._version:
            return
        self._unread = records.names("steps-")
        state: Any = records.group[states[-1]]
        kept = attributes_of(state)["states"]
        self._session.restore([s and StoredState(state, s["stream"], tuple(s["names"]), s["checksum"]) for s in kept])

    def _read_steps(self, name: str) -> dict[str, Record]:
        found, arrays = self._records.read(name)
        records: dict[str, Record] = {}
        for step in found["steps"]:
            records[step["key"]] = step["record"], [next(arrays) for _ in range(step["arrays"])]
        next(arrays, None)  # the checksum is compared behind the last
        return records

    def _save_if_due(self) -> None:
        stop = interrupts.asked()
        if len(self._new) >= self._every or (stop is not None and self._new):
            self._save()
        if stop is not None:
            raise StoppedError(stop, f"the checkpoint {self._records.place} holds {self._version} steps, from which the same fit goes on")

    def _save(self) -> None:
        with self._lock:
            new, self._new = self._new, {}
        before, self._version = self._version, self._version + len(new)
        steps = [{"key": key, "record": record, "arrays": len(arrays)} for key, (record, arrays) in new.items()]
        self._records.write(f"steps-{self._version:06d}", (array for _, arrays in new.values() for array in arrays), steps=steps)
        with self._records.begun(f"state-{self._version:06d}") as (state, described):
            saved = self._session.save(state)
            described["states"] = [s and {"stream": s.stream, "names": s.names, "checksum": s.checksum} for s in saved]
        if before:
            self._records.remove(f"state-{before:06d}")
