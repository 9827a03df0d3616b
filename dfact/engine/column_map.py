"""A problem for every column of some arrays, solved between passes: on the driver, on its threads, or on the workers.

The columns are cut into tiles of a fixed width, and a function solves one tile after the other. So the bits do not depend on who solves
them, and the arrays of a tile stay in a second-level cache.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import StateArrays
from dfact.engine.tiles import Tile

_TILE_COLUMNS = 128
_THREADS_SECONDS = 1e-3  # least work for which threads are started
_WORKERS_SECONDS = 12e-3  # least gain for which work is sent to workers: packing, calls and results take about that long

ColumnFunction = Callable[[StateArrays], NDArray[Any]]
"""A function of contiguous arrays (…, columns) that returns one. It is sent to workers, so it must be a module's function or a dataclass.
The same arguments give bit-identical results."""


@dataclass(frozen=True)
class ColumnMap:
    """A function to be mapped over tiles of columns."""

    function: ColumnFunction
    given: Mapping[str, NDArray[Any]]
    """Arrays (…, columns) by name, of which the function gets some columns."""
    column_seconds: float
    """Estimated seconds of a thread for a column. It follows from the problem's size, since it decides where the function runs."""

    @property
    def columns(self) -> int:
        return int(next(iter(self.given.values())).shape[-1])

    @property
    def seconds(self) -> float:
        """Estimated seconds of a thread."""
        return self.column_seconds * self.columns

    @property
    def suits_threads(self) -> bool:
        """Whether threads of this process should share the work."""
        return self.seconds >= _THREADS_SECONDS

    def suits_workers(self, threads: int) -> bool:
        """Whether workers, with this number of threads in all, should share the work."""
        return threads > 1 and self.seconds * (1 - 1 / threads) >= _WORKERS_SECONDS

    def __call__(self, part: slice = slice(None)) -> NDArray[Any]:
        """Return the function's results for some columns, which begin with a tile."""
        start, stop, _ = part.indices(self.columns)
        results = []
        for first in range(start, stop, _TILE_COLUMNS):
            columns = slice(first, min(first + _TILE_COLUMNS, stop))
            results.append(self.function({name: np.ascontiguousarray(array[..., columns]) for name, array in self.given.items()}))
        return results[0] if len(results) == 1 else np.concatenate(results, axis=-1)

    def parts(self, count: int) -> list[slice]:
        """Cut the columns into at most this number of runs of complete tiles, of nearly equal length."""
        tiles = -(-self.columns // _TILE_COLUMNS)
        edges = [min(share[0] * _TILE_COLUMNS, self.columns) for share in np.array_split(np.arange(tiles), min(count, tiles))]
        return [slice(a, b) for a, b in zip(edges, [*edges[1:], self.columns], strict=True)]

    def map(self, map_: Callable[[Callable[[slice], NDArray[Any]], Sequence[slice]], list[NDArray[Any]]], count: int) -> NDArray[Any]:
        """Return the results for all columns, with ``map_`` over at most ``count`` parts of them."""
        return np.concatenate(map_(self, self.parts(count)), axis=-1)

    def tiles(self, parts: Sequence[slice]) -> list[Tile]:
        """Return parts of the columns as workers take them, for the step :class:`SolveTile`."""
        return [
            Tile(number, part, {}, {}, {name: np.ascontiguousarray(array[..., part]) for name, array in self.given.items()})
            for number, part in enumerate(parts)
        ]


@dataclass(frozen=True)
class SolveTile:
    """A step of a worker on some columns, which returns the function's results."""

    function: ColumnFunction

    def __call__(self, tile: Tile) -> NDArray[Any]:
        return ColumnMap(self.function, tile.given, 0.0)()
