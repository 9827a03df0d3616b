"""Sums and parameters by tiles of columns, for data with so many columns that no process may hold the sums of several partitions.

A :class:`~dfact.engine.passes.TiledPass` adds a group of partitions into one accumulator. Afterwards the sums of all groups meet tile
by tile, in the order of the tree over the groups. A function steps from a tile's sums and state to the tile's new state and small sums.
Groups and tiles follow from the layout and the columns, so the bits do not depend on the executor.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.engine.block_state import CheckpointedState, PartitionStates, SpilledState, SpillFile, StateArrays
from dfact.engine.partitions import Leaves, Node, TreeSum
from dfact.engine.passes import PartialSums

_TILE_COLUMNS = 1 << 12  # the sums of a tile take a few megabytes, and hundreds of workers have a tile each
_GROUP_ROWS = 512  # minimum number of rows in a group: merging and spilling its sums costs a tenth of the arithmetic of its rows
_FEW_GROUPS = 16  # few rows have this number of smaller groups, for as many threads
_MAX_GROUPS = 256
RESIDENT_COLUMNS = 8 * _TILE_COLUMNS
"""Number of columns whose tiles keep their state in memory, so that small data needs no file."""


def group_partitions(layout: Layout) -> int:
    """Return the number of partitions that a tiled pass adds into one accumulator, one after the other."""
    if layout.segments:  # whose partitions have the rows of a group, which must not cross the edge of a segment
        return 1
    rows = min(_GROUP_ROWS, max(1, layout.n_rows // _FEW_GROUPS))
    return max(-(-rows // layout.partition_rows), -(-layout.n_partitions // _MAX_GROUPS))


def n_groups(layout: Layout) -> int:
    """Return the number of groups of partitions, at least one."""
    return -(-layout.n_partitions // group_partitions(layout))


def group_leaves(layout: Layout) -> Leaves:
    """Return the leaves of the tree of sums over the groups of partitions."""
    return Leaves.of(range(layout.n_partitions), layout.partition_ranges) if layout.segments else Leaves((n_groups(layout),))


def n_columns(source: RowSource) -> int:
    """Return the number of columns of the data, all modes but the first together."""
    return prod(source.shape[1:])


def tile_columns(columns: int) -> list[slice]:
    """Return the columns of each tile."""
    return [slice(start, min(start + _TILE_COLUMNS, columns)) for start in range(0, columns, _TILE_COLUMNS)]


@dataclass(frozen=True)
class Tile:
    """A run of columns, as a step sees them. All arrays have its columns as their last axis and are read-only."""

    number: int
    columns: slice
    sums: StateArrays
    """The tiled sums of the last pass by name; empty unless the pass was tiled and no other step has used them."""
    state: StateArrays
    """The arrays that the last step returned for the tile; empty at first."""
    given: StateArrays
    """The tile's columns of arrays on the driver."""


TileStep = Callable[[Tile], tuple[StateArrays, PartialSums]]
"""A function that returns a tile's new state and its small sums, which are added up in the order of the tiles. It is sent to workers,
so it must be a module's function or a dataclass. The same arguments give bit-identical results."""


@dataclass(frozen=True)
class TileBroadcast:
    """A broadcast that contains a state array of the tiles. The pass receives the pair of the array (…, columns) and ``rest``."""

    name: str
    dtype: np.dtype[Any]
    rest: Any = None


@dataclass
class TileSums:
    """The sums of one tile over some groups."""

    arrays: StateArrays

    def add(self, other: "TileSums") -> None:
        """Add ``other`` in place."""
        for name, total in self.arrays.items():
            np.add(total, other.arrays[name], out=total)


class SumsStore:
    """Storage for the sums of groups that wait for others: as many as planned stay in memory, others in a file. Thread-safe."""

    def __init__(self, resident: int) -> None:
        self._resident = resident
        self._file: SpillFile | None = None
        self._lock = threading.Lock()

    def limit(self, waiting: Iterable["HeldSums"]) -> None:
        """Move sums to the file until no more than planned are in memory."""
        with self._lock:
            in_memory = [sums for sums in waiting if sums.in_memory]
            for sums in in_memory[: max(0, len(in_memory) - self._resident)]:
                sums.spill()

    def write(self, arrays: StateArrays) -> SpilledState:
        """Write the sums of a tile to the file; the caller holds the lock by :meth:`limit`."""
        if self._file is None:
            self._file = SpillFile("sums")
        return self._file.write([arrays])

    def read(self, spilled: SpilledState) -> StateArrays:
        """Read the sums of a tile."""
        assert self._file is not None, "the sums were written to it"
        [arrays] = self._file.read(spilled)
        return arrays

    def release(self, spilled: SpilledState) -> None:
        """Let others use the range of a tile's sums."""
        assert self._file is not None, "the sums were written to it"
        self._file.release(spilled)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class HeldSums:
    """The sums of one or more groups, whose tiles are in memory or in the file of a store."""

    def __init__(self, store: SumsStore, total: PartialSums, names: Sequence[str], columns: int) -> None:
        self.small, arrays = split_sums(total, names)
        assert all(array.shape[-1] == columns for array in arrays.values()), "tiled sums have the columns of the data"
        self._store, self._lock = store, threading.Lock()
        self._tiles: list[StateArrays | SpilledState] = [
            {name: array[..., part] for name, array in arrays.items()} for part in tile_columns(columns)
        ]

    @property
    def in_memory(self) -> bool:
        tiles = self._tiles  # read once: another thread may be adding the sums to others, which drops them
        return bool(tiles) and isinstance(tiles[0], dict)

    def tile(self, number: int) -> StateArrays:
        """Return the sums of a tile, as views if they are in memory."""
        tile = self._tiles[number]
        return tile if isinstance(tile, dict) else self._store.read(tile)

    def add(self, other: "HeldSums") -> None:
        """Add ``other``, which is dropped, in the memory of either."""
        with self._lock, other._lock:  # either may be about to be spilled
            self.small.add(other.small)
            for number, tile in enumerate(self._tiles):
                mine, others = self.tile(number), other.tile(number)
                # The sum is formed in the array that is in memory. Addition is commutative.
                target, addend = (others, mine) if not isinstance(tile, dict) and other.in_memory else (mine, others)
                for name, total in target.items():
                    np.add(total, addend[name], out=total)
                for spilled in (tile, other._tiles[number]):
                    self._release(spilled)
                self._tiles[number] = target
            other._tiles = []

    def spill(self) -> None:
        """Move the tiles to the file."""
        with self._lock:
            for number, tile in enumerate(self._tiles):
                if isinstance(tile, dict):
                    self._tiles[number] = self._store.write(tile)

    def release(self) -> None:
        """Drop the sums."""
        with self._lock:
            for tile in self._tiles:
                self._release(tile)
            self._tiles = []

    def _release(self, tile: StateArrays | SpilledState) -> None:
        if not isinstance(tile, dict):
            self._store.release(tile)


def split_sums(total: PartialSums, names: Sequence[str]) -> tuple[PartialSums, StateArrays]:
    """Return the sums with no columns in the fields of these names, and these fields."""
    arrays = {name: getattr(total, name) for name in names}
    return replace(total, **{name: np.empty((*array.shape[:-1], 0)) for name, array in arrays.items()}), arrays


class TileStates:
    """The state of all tiles, in the process that drives the session: a few in memory, the others in a file."""

    def __init__(self, columns: int) -> None:
        self.columns = tile_columns(columns)
        self._states = PartitionStates(RESIDENT_COLUMNS // _TILE_COLUMNS)

    def tile(self, number: int, sums: StateArrays, given: Mapping[str, NDArray[Any]], prefix: str = "") -> Tile:
        """Return a tile of a solver, whose arrays have names with this prefix."""
        part, arrays = self.columns[number], self._arrays(number, prefix)
        state = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        return Tile(number, part, sums, state, {name: np.ascontiguousarray(array[..., part]) for name, array in given.items()})

    def put(self, number: int, arrays: StateArrays, prefix: str = "") -> None:
        """Set the state of a tile of a solver."""
        others = {name: array for name, array in self._arrays(number).items() if not name.startswith(prefix)} if prefix else {}
        self._states.put(number, [others | {prefix + name: np.ascontiguousarray(array) for name, array in arrays.items()}])

    def run(
        self,
        step: TileStep,
        given: Mapping[str, NDArray[Any]],
        prefix: str,
        sums: Mapping[str, NDArray[Any]] | None,
        tile_sums: Callable[[int], StateArrays],
        map_: Callable[[Callable[[int], PartialSums], Sequence[int]], list[PartialSums]],
    ) -> PartialSums:
        """Run a step on every tile in this process, with its columns of ``sums``, or else those that ``tile_sums`` returns."""

        def work(number: int) -> PartialSums:
            part = self.columns[number]
            own = tile_sums(number) if sums is None else {name: np.ascontiguousarray(array[..., part]) for name, array in sums.items()}
            arrays, small = step(self.tile(number, own, given, prefix))
            self.put(number, arrays, prefix)
            return small

        return add_small(map_(work, range(len(self.columns))))

    def read(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield a state array tile by tile."""
        for number in range(len(self.columns)):
            yield self._arrays(number, name)[name]

    def array(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a state array of all columns."""
        out: NDArray[Any] | None = None
        for part, array in zip(self.columns, self.read(name), strict=True):
            out = np.empty((*array.shape[:-1], self.columns[-1].stop), dtype) if out is None else out
            out[..., part] = array
        assert out is not None, "the data has columns"
        return out

    @staticmethod
    def join(parts: Sequence[StateArrays]) -> StateArrays:
        """Return arrays of all columns, given those of each tile."""
        return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}

    def resolve(self, broadcast: Any) -> Any:
        """Return a broadcast with the arrays that it refers to."""
        if isinstance(broadcast, TileBroadcast):
            return self.array(broadcast.name, broadcast.dtype), broadcast.rest
        if isinstance(broadcast, list):  # of a fused pass
            return [self.resolve(part) for part in broadcast]
        return broadcast

    def save(self, group: zarr.Group, stream: str) -> CheckpointedState | None:
        """Copy the state to a checkpoint; returns None if there is none."""
        return self._states.save(range(len(self.columns)), group, stream)

    def restore(self, saved: CheckpointedState) -> None:
        """Read the state from a checkpoint."""
        self._states.restore(saved)

    def close(self) -> None:
        self._states.close()

    def _arrays(self, number: int, prefix: str = "") -> StateArrays:
        return next(iter(self._states.block_states(number, prefix)), {})


def tile_total(parts: Iterable[Mapping[Node, StateArrays]], groups: Leaves) -> StateArrays:
    """Return the sums of a tile over all groups, given those over parts of them in any order."""
    total = TreeSum[TileSums](groups)
    for part in parts:
        add_tiles([total], [part])
    return total.result.arrays


def add_tiles(totals: Iterable[TreeSum[TileSums]], parts: Iterable[Mapping[Node, StateArrays]]) -> None:
    """Add the sums of some tiles over some groups."""
    for total, part in zip(totals, parts, strict=True):
        for node, arrays in part.items():
            total.add(node, TileSums({name: np.array(array, order="C") for name, array in arrays.items()}))


def collect_sums(tile: Tile) -> tuple[StateArrays, PartialSums]:
    """Return the sums of a tile in place of a new state: a step that moves them out of the processes that hold them."""
    return tile.sums, PartialSums()


def add_small(parts: Sequence[PartialSums]) -> PartialSums:
    """Return the small sums of all tiles, added up in their order."""
    total = parts[0].accumulator()
    for part in parts[1:]:
        total.add(part)
    return total
