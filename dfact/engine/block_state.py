"""State of the partitions between passes: in memory, in one file on the local disk, or in a checkpoint."""

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.engine.passes import State
from dfact.errors import StoreError
from dfact.storage.array_stream import StreamReader, StreamWriter, bytes_of, corruption_errors, stored_size
from dfact.storage.files import TemporaryFolder


@dataclass(frozen=True)
class CheckpointedState:
    """The states of the blocks of consecutive partitions in a checkpoint, one stream."""

    group: zarr.Group
    stream: str
    names: tuple[str, ...]
    checksums: tuple[int, ...]
    first: int
    """Number of the first partition."""
    edges: tuple[int, ...]
    """Where the partitions begin in the stream, and where the last one ends, in bytes."""

    @property
    def last(self) -> int:
        """Number of the partition after the last."""
        return self.first + len(self.edges) - 1

    def part(self, first: int, last: int) -> "CheckpointedState":
        """The states of the partitions ``first`` to ``last`` − 1."""
        return replace(self, first=first, edges=self.edges[first - self.first : last - self.first + 1])

    def __iter__(self) -> Iterator[list[State]]:
        """The states of each partition's blocks."""
        with corruption_errors(f"{self.stream!r} of {self.group.store_path}"):
            reader = StreamReader(self.group, self.stream, self.checksums, self.edges[0])
            for size in np.diff(self.edges):
                blocks: list[State] = []
                read = 0
                while read < size:
                    blocks.append({name: reader.get() for name in self.names})
                    read += sum(stored_size(array) for array in blocks[-1].values())
                yield blocks

    def described(self) -> dict[str, Any]:
        """As JSON, without the group."""
        return {"stream": self.stream, "names": self.names, "checksums": self.checksums, "first": self.first, "edges": self.edges}

    @classmethod
    def from_description(cls, group: zarr.Group, described: Mapping[str, Any]) -> "CheckpointedState":
        names, checksums, edges = (tuple(described[name]) for name in ("names", "checksums", "edges"))
        return cls(group, described["stream"], names, checksums, described["first"], edges)


Blocks = list[State | None]
"""The states of a partition's blocks."""
_ALIGNMENT = 4096


@dataclass(frozen=True)
class SpilledState:
    """Position of a partition's state in a :class:`SpillFile`."""

    offset: int
    room: int
    layout: tuple[tuple[tuple[str, str, tuple[int, ...], bool], ...], ...]
    """Name, dtype, shape and order (True for Fortran) of the arrays of each block."""


class SpillFile:
    """State that exceeds the memory plan: one file in a folder of this process, which goes with it. Thread-safe.

    A partition has a place of its own in the file, which its next state takes as well if it is no larger.
    """

    def __init__(self) -> None:
        self._scratch = TemporaryFolder("state")
        self._path = self._scratch.path / "blocks.state"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._end = 0
        self._lock = threading.Lock()

    def write(self, blocks: Sequence[State], before: SpilledState | None = None) -> SpilledState:
        """Write the state of a partition, over the one ``before`` if there is room."""
        arrays = [array for state in blocks for array in state.values()]
        layout = tuple(tuple((name, a.dtype.str, a.shape, _by_columns(a)) for name, a in state.items()) for state in blocks)
        size = sum(array.nbytes for array in arrays)
        if before is None or before.room < size:
            with self._lock:
                offset, room = self._end, -(-size // _ALIGNMENT) * _ALIGNMENT
                self._end += room
        else:
            offset, room = before.offset, before.room
        at = offset
        try:
            for array in arrays:
                at += self._put(bytes_of(array.T if _by_columns(array) else np.ascontiguousarray(array)), at)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            remedy = "raise memory_limit, or set TMPDIR to a larger disk"
            raise StoreError(f"cannot write the solver's state to {self._path.parent}: {reason}; {remedy}") from error
        return SpilledState(offset, room, layout)

    def read(self, state: SpilledState) -> Blocks:
        """The state of a partition."""
        at, blocks = state.offset, []
        try:
            for arrays in state.layout:
                block = {}
                for name, dtype, shape, turned in arrays:
                    array = np.empty(shape[::-1] if turned else shape, dtype)
                    at += self._get(bytes_of(array), at)
                    block[name] = array.T if turned else array
                blocks.append(block)
        except (OSError, EOFError) as error:
            raise StoreError(f"cannot read the solver's state from {self._path}: {error}") from error
        return list(blocks)

    def _put(self, data: memoryview, at: int) -> int:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], at + done)
        return done

    def _get(self, room: memoryview, at: int) -> int:
        done = 0
        while done < len(room):
            count = os.preadv(self._file, [room[done:]], at + done)
            if not count:
                raise EOFError(f"{len(room) - done} bytes are missing at its end")
            done += count
        return done

    def close(self) -> None:
        os.close(self._file)
        self._scratch.remove()


def _by_columns(array: NDArray[Any]) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


class PartitionStates:
    """The state of a process's partitions; as many stay in memory as the plan says, the rest lies in a file. Thread-safe."""

    def __init__(self, resident: int) -> None:
        self._room = resident
        self._states: dict[int, Blocks | SpilledState] = {}
        self._spill: SpillFile | None = None
        self._lock = threading.Lock()

    def take(self, number: int, n_blocks: int) -> Blocks:
        """The states of a partition's blocks, to overwrite: of a partition without a state, None for each."""
        found = self._states.get(number)
        if found is None:
            return [None] * n_blocks
        return self._read(found)

    def put(self, number: int, blocks: Blocks) -> None:
        """Keep the states of a partition's blocks, or none."""
        before = self._states.get(number)
        full = [state for state in blocks if state is not None]
        if not full:
            self.drop(number)
            return
        assert len(full) == len(blocks), "a pass keeps a state for all blocks or for none"
        with self._lock:
            if not isinstance(before, list) and self._room > 0:
                self._room -= 1
                self._states[number] = blocks  # it has its place in memory from now on
                return
            if not isinstance(before, list) and self._spill is None:
                self._spill = SpillFile()
        if isinstance(before, list):
            self._states[number] = blocks
        else:
            assert self._spill is not None, "it was opened above"
            self._states[number] = self._spill.write(full, before if isinstance(before, SpilledState) else None)

    def drop(self, number: int) -> None:
        with self._lock:
            if isinstance(self._states.pop(number, None), list):
                self._room += 1

    def blocks(self, number: int) -> Iterator[State]:
        """The states of a partition's blocks, to look at."""
        for state in self._read(self._states[number]) if number in self._states else ():
            assert state is not None, "what is kept is a state"
            yield state

    @property
    def empty(self) -> bool:
        """Whether no partition has a state."""
        return not self._states

    def rows(self, name: str, numbers: Iterable[int]) -> NDArray[Any]:
        """A state array (k, rows) of all blocks of some partitions as (rows, k)."""
        parts = [state[name].T for number in numbers for state in self.blocks(number)]
        assert parts, "no pass has kept a state yet"
        return np.concatenate(parts)

    def store(self, numbers: Sequence[int], group: zarr.Group, stream: str) -> CheckpointedState | None:
        """Copy the states of consecutive partitions to a checkpoint, as one stream; None if none has a state."""
        if not any(number in self._states for number in numbers):
            return None
        writer, edges = StreamWriter(group, stream), [0]
        names: tuple[str, ...] = ()
        for number in numbers:
            for state in self.blocks(number):
                assert names in ((), tuple(state)), "the states of all partitions that have one hold the same arrays"
                names = tuple(state)
                for array in state.values():
                    writer.append(array)
            edges.append(writer.size)
        return CheckpointedState(group, stream, names, writer.close(), numbers[0], tuple(edges))

    def restore(self, stored: CheckpointedState) -> None:
        """Take the states of consecutive partitions from a checkpoint."""
        for number, blocks in enumerate(stored, stored.first):
            self.put(number, list(blocks))

    def _read(self, state: Blocks | SpilledState) -> Blocks:
        if isinstance(state, SpilledState):
            assert self._spill is not None, "it lies there"
            return self._spill.read(state)
        return list(state)

    def close(self) -> None:
        self._states.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None
