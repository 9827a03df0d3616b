"""Checkpoints: all that a fit needs to resume after an interruption, in a Zarr store.

A fit depends on the data only through the sums of its passes. A checkpoint therefore records the sums of every
pass, and the state of the partitions after the last of them. A resumed fit replays the recorded sums, without
reading any data, until it reaches the interruption, and ends with bit-identical results.

A step is a pass, or a result that the driver memoizes in addition. The group of a checkpoint
holds ``steps-N``, the records of the steps from number N up to the next version, and ``state-N``, the state after
step N. The attributes of the state are written last and complete the version; older states are then removed.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact import signals
from dfact.engine.block_state import CheckpointedState
from dfact.engine.column_map import ColumnMap
from dfact.engine.environment import Environment, as_fields, distinct, environments_from, warn_changed
from dfact.engine.passes import PARTIAL_SUMS, PartialSums, RunPass, TiledPass
from dfact.engine.session import Arrays, CheckpointableSession, Session
from dfact.engine.tiles import TileStep
from dfact.errors import StoppedError, StoreError
from dfact.monitoring import metrics
from dfact.progress import set_replaying
from dfact.storage.array_stream import corruption_errors
from dfact.storage.groups import open_store
from dfact.storage.records import Records, RecordWriter, record_attributes, records_of

P = TypeVar("P", bound=PartialSums)
Step = tuple[dict[str, Any], list[NDArray[Any]]]
"""A step as JSON, and the arrays to which the JSON refers by number."""


def resume_point(path: str | PathLike[str]) -> int:
    """Return the number of steps that a checkpoint holds, which a resumed fit need not repeat; 0 if there is no checkpoint."""
    with corruption_errors(f"the checkpoint {path}"):
        try:
            group = zarr.open_group(open_store(path, read_only=True), mode="r", zarr_format=3, use_consolidated=False)
        except FileNotFoundError:
            return 0
    records = records_of(group).items()
    return max((_step_number(name) for name, attributes in records if name.startswith("state-") and attributes), default=0)


def _step_number(name: str) -> int:
    return int(name.split("-")[1])


def pack(partial: PartialSums, put: Callable[[NDArray[Any]], None], first: int = 0) -> tuple[dict[str, Any], int]:
    """Pass the arrays of the sums to ``put``; returns JSON that refers to them by number, from ``first`` on, and the next number."""
    if PARTIAL_SUMS.get(str(partial.checkpoint_name)) is not type(partial):
        kind = type(partial).__name__
        raise TypeError(f"{kind} has no name in checkpoints; declare it as class {kind}(PartialSums, name=...)")
    packed: dict[str, Any] = {"type": partial.checkpoint_name}
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
    """Return the sums that :func:`pack` packed."""
    values = {name: value for name, value in packed.items() if name != "type"}
    return PARTIAL_SUMS[packed["type"]](
        **{name: [unpack(p, arrays) for p in value] if isinstance(value, list) else arrays[value] for name, value in values.items()}
    )


class CheckpointedSession(Session):
    """A session that records its passes in a checkpoint at ``path``, and writes a version after ``every`` new steps,
    and after each step for which the session asks.

    ``identity`` maps the names of everything that determines the fit to their values. A checkpoint with another identity is refused.
    """

    def __init__(self, session: CheckpointableSession, path: str | PathLike[str], every: int, identity: Mapping[str, str]) -> None:
        self._session, self._path, self._every, self._identity = session, path, every, identity
        self._stack = ExitStack()
        self._replayed = 0  # number of steps
        self._read: deque[Step] = deque()  # steps that were read and not replayed yet
        self._unread: list[str] = []  # names of the records with the steps after these
        self._new: list[dict[str, Any]] = []  # steps since the last version; their arrays are written already
        self._record: RecordWriter | None = None  # holds these arrays
        self._version = 0
        self._earlier: list[Environment] = []  # of the processes that have taken part before this one resumed
        self._steps: list[str] = []  # names of all records of steps
        self._state = ""  # name of the record of the state
        self._pending = False  # whether sums wait for a step on tiles: a version would not contain them

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._records = Records(self._path, "fit", self._identity)
            stack.enter_context(self._session)
            stack.enter_context(signals.defer_stop())
            stack.push(self._end)
            self._restore()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        set_replaying(False)
        if kind is None:
            self._save_if_due()  # a signal may have come after the last pass

    def run(self, request: RunPass[P]) -> P:
        pending = isinstance(request.pass_, TiledPass)
        return self._sums("pass", type(request.pass_).__name__, lambda: self._session.run(request), pending=pending)

    def step_tiles(
        self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str = "", sums: Mapping[str, NDArray[Any]] | None = None
    ) -> PartialSums:
        name = prefix + getattr(step, "__name__", type(step).__name__)
        return self._sums("tiles", name, lambda: self._session.step_tiles(step, given, prefix, sums), pending=False)

    def _sums(self, kind: str, name: str, compute: Callable[[], P], *, pending: bool) -> P:
        """Return the recorded sums of a step, or compute and record them; ``pending`` are those that wait for a step on tiles."""
        step = self._replay(kind, name)
        if step is not None:
            recorded: P = unpack(step[0]["sums"], step[1])
            if kind == "pass":
                self._session.replayed(recorded)
            return recorded
        sums = compute()
        with self._recording(kind, name) as (new, put):
            new["sums"], new["arrays"] = pack(sums, put)
        self._pending = pending
        self._save_if_due()
        return sums

    def map_columns(self, request: ColumnMap) -> NDArray[Any]:
        return self._session.map_columns(request)  # not recorded: its arrays follow from recorded sums

    @property
    def environments(self) -> list[Environment]:
        return distinct([*self._earlier, *self._session.environments])

    def tiles(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        recorded = self._replay("read", name)
        if recorded is not None:
            return recorded[1][0]
        array = self._session.tiles(name, dtype)
        with self._recording("read", name) as (new, put):
            put(array)
            new["arrays"] = 1
        self._save_if_due()
        return array

    def memo(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        step = self._replay("memo", name)
        if step is not None:
            return dict(zip(step[0]["names"], step[1], strict=True))
        computed = compute()
        with self._recording("memo", name) as (new, put):
            for array in computed.values():
                put(array)
            new.update(names=list(computed), arrays=len(computed))
        self._save_if_due()
        return computed

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        self._assert_replayed()
        return self._session.rows(name)

    def write_rows(self, name: str, convert: Callable[[NDArray[Any]], NDArray[Any]], target: zarr.Array[Any]) -> bool:
        self._assert_replayed()
        return self._session.write_rows(name, convert, target)

    def _assert_replayed(self) -> None:
        assert not self._read, "the state belongs to the last version, which the fit has not reached yet"
        assert not self._unread, "the state belongs to the last version, which the fit has not reached yet"

    def _replay(self, kind: str, name: str) -> Step | None:
        """Return the next step if the checkpoint holds it: a pass, or the result of a computation, with this name."""
        while not self._read and self._unread:
            self._read.extend(self._read_steps(self._unread.pop(0)))
        if not self._read:
            set_replaying(False)
            return None
        step, arrays = self._read.popleft()
        set_replaying(bool(self._read or self._unread))  # a fit that was stopped after the last one has not reported it
        self._replayed += 1
        if (step["kind"], step["name"]) != (kind, name):
            raise StoreError(
                f"the fit diverged from checkpoint {self._records.location} at step {self._replayed}: recorded {step['name']}, computed "
                f"{name}; it was written on another machine or with other versions of the libraries: delete the checkpoint to start over"
            )
        return step, arrays

    @contextmanager
    def _recording(self, kind: str, name: str) -> Iterator[tuple[dict[str, Any], Callable[[NDArray[Any]], None]]]:
        """Yield a step to be filled in, and a function that writes its arrays at once, as their owner may change them later."""
        with self._records.write_errors():
            if self._record is None:
                self._record = self._begin_record("steps", self._version + 1)
            step: dict[str, Any] = {"kind": kind, "name": name}
            yield step, self._record.append
            self._new.append(step)

    def _restore(self) -> None:
        """Restore the session's state from the last version, and remove all records that do not belong to it."""
        records, current = self._records, set[str]()
        states = records.names("state-")
        if states:
            state: Any = records.group[states[-1]]
            attributes = record_attributes(state)
            self._version, self._steps = _step_number(states[-1]), list(attributes["steps"])
            self._unread, self._state, current = list(self._steps), states[-1], {states[-1], *self._steps}
            self._earlier = environments_from(attributes.get("environments", ()))  # which earlier checkpoints lack
            warn_changed(f"the checkpoint {records.location}", self._earlier)
            self._session.restore([CheckpointedState.from_description(state, saved) for saved in attributes["states"]])
            for saved in attributes["tiles"]:
                self._session.tile_states.restore(CheckpointedState.from_description(state, saved))
        for name in records_of(records.group).keys() - current:
            records.remove(name)

    def _read_steps(self, name: str) -> Iterator[Step]:
        attributes, arrays = self._records.read(name)
        for step in attributes["steps"]:
            yield step, [next(arrays) for _ in range(step["arrays"])]

    def _save_if_due(self) -> None:
        if self._pending:
            return
        stop = signals.requested_signal()
        if len(self._new) >= self._every or ((stop is not None or self._session.save_due) and self._new):
            self._save()
        if stop is not None:
            raise StoppedError(
                stop, f"the checkpoint {self._records.location} holds {self._version} steps, from which the same fit resumes"
            )

    def _begin_record(self, kind: str, number: int) -> RecordWriter:
        # The name is unique to this process: another one that counts as lost may still be writing.
        return self._records.begin(f"{kind}-{number:06d}-{self._records.owner[:8]}")

    def _save(self) -> None:
        previous, version = self._state, self._version + len(self._new)
        with self._records.write_errors():
            assert self._record is not None, "there are new steps"
            self._record.finish(steps=self._new)
            self._steps.append(self._record.name)
            self._new, self._record, self._version = [], None, version
            state = self._begin_record("state", version)
            saved = self._session.save(state.group)
            tiles = self._session.tile_states.save(state.group, "tiles")
            described = [] if tiles is None else [tiles.describe()]
            environments = [as_fields(environment) for environment in self.environments]
            state.finish(states=[part.describe() for part in saved], tiles=described, steps=self._steps, environments=environments)
            self._state = state.name
            metrics.add(checkpoints=1)
            metrics.set_gauges(checkpoint_timestamp_seconds=time.time())
            if previous:
                self._records.remove(previous)
