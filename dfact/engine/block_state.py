"""State of the partitions between passes: in memory, in one file on the local disk, or in a checkpoint."""

import errno
import os
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import get_annotations
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.errors import StoreError
from dfact.monitoring import metrics
from dfact.storage.array_stream import StreamReader, StreamWriter, bytes_of, corruption_errors, encoded_size
from dfact.storage.files import TemporaryFolder

StateArrays = dict[str, NDArray[Any]]
"""The state of a block as it is stored: arrays with the same names for all blocks; empty if the block has no state. Their shapes
are the pass's business, except that the rows of an array that :meth:`Session.rows` returns come last: (k, rows)."""
BlockStates = list[StateArrays]
"""The states of a partition's blocks."""


@dataclass
class BlockState:
    """Base class of the states that passes keep for a block from pass to pass.

    A subclass declares the arrays that its passes use. They are stored under the names of its fields, with blanks for
    underscores; a field that is None is not stored. ``BlockState`` itself is the state of a pass that uses no array and
    leaves those of other passes alone.
    """

    others: StateArrays = field(default_factory=dict, kw_only=True)
    """Stored arrays that the class does not declare; a step that returns its state passes them on."""
    field_names: ClassVar[dict[str, str]] = {}
    """The names of the declared fields by those under which they are stored."""

    def __init_subclass__(cls) -> None:
        cls.field_names = cls.field_names | {name.replace("_", " "): name for name in get_annotations(cls)}

    @classmethod
    def of(cls, arrays: StateArrays) -> Self:
        """Make the state from its stored arrays."""
        own, others = StateArrays(), StateArrays()
        for stored, array in arrays.items():
            if stored in cls.field_names:
                own[cls.field_names[stored]] = array
            else:
                others[stored] = array
        return cls(**own, others=others)

    def arrays(self) -> StateArrays:
        """Return the arrays to store."""
        own = {stored: array for stored, name in self.field_names.items() if (array := getattr(self, name)) is not None}
        return own | self.others if self.others else own


@dataclass
class RowFactors(BlockState):
    """State of the passes that keep the rows' factors, alone or with other arrays."""

    factors: NDArray[Any]
    """(k, rows)."""


@dataclass(frozen=True)
class CheckpointedState:
    """The block states of consecutive partitions in a checkpoint, as one stream."""

    group: zarr.Group
    stream: str
    names: tuple[str, ...]
    checksums: tuple[int, ...]
    first: int
    """Number of the first partition."""
    offsets: tuple[int, ...]
    """Offsets of the partitions in the stream, and the end of the last one, in bytes."""

    @property
    def last(self) -> int:
        """Number of the partition after the last."""
        return self.first + len(self.offsets) - 1

    def part(self, first: int, last: int) -> "CheckpointedState":
        """Return the states of the partitions ``first`` to ``last`` − 1."""
        return replace(self, first=first, offsets=self.offsets[first - self.first : last - self.first + 1])

    def __iter__(self) -> Iterator[BlockStates]:
        """Yield the block states of each partition."""
        with corruption_errors(f"{self.stream!r} of {self.group.store_path}"):
            reader = StreamReader(self.group, self.stream, self.checksums, self.offsets[0])
            for size in np.diff(self.offsets):
                blocks: BlockStates = []
                read = 0
                while read < size:
                    blocks.append({name: reader.get() for name in self.names})
                    read += sum(encoded_size(array) for array in blocks[-1].values())
                yield blocks

    def describe(self) -> dict[str, Any]:
        """Return the fields without the group, as JSON."""
        return {"stream": self.stream, "names": self.names, "checksums": self.checksums, "first": self.first, "offsets": self.offsets}

    @classmethod
    def from_description(cls, group: zarr.Group, description: Mapping[str, Any]) -> "CheckpointedState":
        names, checksums, offsets = (tuple(description[name]) for name in ("names", "checksums", "offsets"))
        return cls(group, description["stream"], names, checksums, description["first"], offsets)


_ALIGNMENT = 4096


@dataclass(frozen=True)
class SpilledState:
    """The position of a partition's state in a :class:`SpillFile`."""

    offset: int
    capacity: int
    """Bytes reserved for it."""
    layout: tuple[tuple[tuple[str, str, tuple[int, ...], bool], ...], ...]
    """Name, dtype, shape and order (True for Fortran) of the arrays of each block."""


class SpillFile:
    """A file for the state that exceeds the memory plan, in a temporary folder of this process. Thread-safe.

    Each state has a range of its own in the file, in which the next state of its partition is written too, unless it is larger. Ranges
    that were released are taken by later states that fit.
    """

    def __init__(self, kind: str = "state") -> None:
        self._folder = TemporaryFolder(kind)
        self._path = self._folder.path / "blocks.state"
        self._file = self._folder.new_file(self._path.name)
        self._end = 0
        self._released: list[tuple[int, int]] = []
        """Capacity and offset of the ranges that nothing uses, in their order."""
        self._lock = threading.Lock()

    def write(self, blocks: BlockStates, previous: SpilledState | None = None) -> SpilledState:
        """Write the state of a partition, in the range of its ``previous`` state if it fits."""
        arrays = [array for state in blocks for array in state.values()]
        layout = tuple(tuple((name, a.dtype.str, a.shape, _is_fortran(a)) for name, a in state.items()) for state in blocks)
        size = sum(array.nbytes for array in arrays)
        if previous is None or previous.capacity < size:
            if previous is not None:
                self.release(previous)
            offset, capacity = self._reserve(-(-size // _ALIGNMENT) * _ALIGNMENT)
        else:
            offset, capacity = previous.offset, previous.capacity
        position = offset
        try:
            for array in arrays:
                position += self._pwrite(bytes_of(array.T if _is_fortran(array) else np.ascontiguousarray(array)), position)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            remedy = "raise memory_limit, or set TMPDIR to a larger disk"
            raise StoreError(f"cannot write the solver's state to {self._path.parent}: {reason}; {remedy}") from error
        metrics.add(spilled_bytes=size)
        return SpilledState(offset, capacity, layout)

    def _reserve(self, size: int) -> tuple[int, int]:
        """Return the offset and the capacity of a free range: the smallest of those released that is large enough, else a new one."""
        with self._lock:
            fitting = bisect_left(self._released, (size, 0))
            if fitting < len(self._released):
                capacity, offset = self._released.pop(fitting)
                return offset, capacity
            offset, self._end = self._end, self._end + size
            return offset, size

    def release(self, state: SpilledState) -> None:
        """Let other states use the range of this one, which is not read again."""
        with self._lock:
            insort(self._released, (state.capacity, state.offset))

    def read(self, state: SpilledState, prefix: str = "") -> BlockStates:
        """Read the state of a partition, the arrays whose names have this prefix."""
        position, blocks = state.offset, []
        try:
            for arrays in state.layout:
                block = {}
                for name, dtype, shape, fortran in arrays:
                    if not name.startswith(prefix):
                        position += prod(shape) * np.dtype(dtype).itemsize
                        continue
                    array = np.empty(shape[::-1] if fortran else shape, dtype)
                    position += self._pread(bytes_of(array), position)
                    block[name] = array.T if fortran else array
                blocks.append(block)
        except (OSError, EOFError) as error:
            raise StoreError(f"cannot read the solver's state from {self._path}: {error}") from error
        return blocks

    def _pwrite(self, data: memoryview, offset: int) -> int:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], offset + done)
        return done

    def _pread(self, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._file, [buffer[done:]], offset + done)
            if not count:
                raise EOFError(f"{len(buffer) - done} bytes are missing at its end")
            done += count
        return done

    def close(self) -> None:
        os.close(self._file)
        self._folder.remove()


def _is_fortran(array: NDArray[Any]) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


class PartitionStates:
    """The states of a process's partitions: as many as planned stay in memory, the others are spilled to a file. Thread-safe."""

    def __init__(self, resident: int) -> None:
        self._free = resident
        self._states: dict[int, BlockStates | SpilledState] = {}
        self._spill: SpillFile | None = None
        self._lock = threading.Lock()

    def take(self, number: int, n_blocks: int) -> BlockStates:
        """Return the states of a partition's blocks, which may be overwritten."""
        stored = self._states.get(number)
        if stored is None:
            return [{} for _ in range(n_blocks)]
        return self._read(stored)

    def put(self, number: int, blocks: BlockStates) -> None:
        """Store the states of a partition's blocks, or drop them if the blocks have none."""
        previous = self._states.get(number)
        if not any(blocks):
            self.drop(number)
            return
        assert all(blocks), "a pass keeps a state for all blocks or for none"
        with self._lock:
            if not isinstance(previous, list) and self._free > 0:
                self._free -= 1
                self._states[number] = blocks  # the partition stays in memory from now on
                return
            if not isinstance(previous, list) and self._spill is None:
                self._spill = SpillFile()
        if isinstance(previous, list):
            self._states[number] = blocks
        else:
            assert self._spill is not None, "it was opened above"
            self._states[number] = self._spill.write(blocks, previous if isinstance(previous, SpilledState) else None)

    def drop(self, number: int) -> None:
        with self._lock:
            dropped = self._states.pop(number, None)
            if isinstance(dropped, list):
                self._free += 1
        if isinstance(dropped, SpilledState):
            assert self._spill is not None, "the state was spilled to it"
            self._spill.release(dropped)

    def block_states(self, number: int, prefix: str = "") -> BlockStates:
        """Return the states of a partition's blocks, to be read only; none if it has no state.

        If they are on disk, only the arrays whose names have the prefix are read.
        """
        return self._read(self._states[number], prefix) if number in self._states else []

    def split_by_names(self, run: range) -> list[range]:
        """Split a run where the names of the arrays change, as a pass over a sample leaves arrays in its partitions only."""
        parts, held = [range(run[0], run[0])], tuple[str, ...]()
        for number in run:
            names = self._names(number)
            if names and held and names != held:
                parts.append(range(number, number))
            held = names or held
            parts[-1] = range(parts[-1].start, number + 1)
        return parts

    def _names(self, number: int) -> tuple[str, ...]:
        """Return the names of the arrays that a partition's blocks have; none if it has no state."""
        stored = self._states.get(number)
        if isinstance(stored, SpilledState):
            return tuple(name for name, *_ in stored.layout[0])
        return tuple(stored[0]) if stored else ()

    @property
    def empty(self) -> bool:
        """Whether no partition has a state."""
        return not self._states

    def rows(self, name: str, numbers: Iterable[int]) -> NDArray[Any]:
        """Return a state array (k, rows) of all blocks of some partitions as (rows, k)."""
        parts = [state[name].T for number in numbers for state in self.block_states(number)]
        assert parts, "no pass has kept a state yet"
        return np.concatenate(parts)

    def save(
        self, numbers: Sequence[int], group: zarr.Group, stream: str, advance: Callable[[], None] = lambda: None
    ) -> CheckpointedState | None:
        """Copy the states of consecutive partitions to a checkpoint, as one stream. Returns None if none has a state.

        Those that have one must hold the same arrays. ``advance`` is called after each array.
        """
        if not any(number in self._states for number in numbers):
            return None
        writer, offsets = StreamWriter(group, stream), [0]
        names: tuple[str, ...] = ()
        for number in numbers:
            for state in self.block_states(number):
                assert names in ((), tuple(state)), "the partitions of a stream that have a state hold the same arrays"
                names = tuple(state)
                for array in state.values():
                    writer.append(array)
                    advance()
            offsets.append(writer.size)
        return CheckpointedState(group, stream, names, writer.close(), numbers[0], tuple(offsets))

    def restore(self, saved: CheckpointedState, advance: Callable[[], None] = lambda: None) -> None:
        """Read the states of consecutive partitions from a checkpoint; ``advance`` is called after each partition."""
        for number, blocks in enumerate(saved, saved.first):
            self.put(number, blocks)
            advance()

    def _read(self, state: BlockStates | SpilledState, prefix: str = "") -> BlockStates:
        if isinstance(state, SpilledState):
            assert self._spill is not None, "the state was spilled to it"
            return self._spill.read(state, prefix)
        return list(state)

    def close(self) -> None:
        self._states.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None
