"""Solvers as generators: they yield requests, which :mod:`dfact.engine.driver` has a session answer.

A helper of a solver is a generator too, and is called by ``yield from``::

    def solver(max_iter):
        for _ in range(max_iter):
            sums = yield from run(pass_, broadcast)
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.column_map import ColumnFunction, ColumnMap
from dfact.engine.environment import Environment
from dfact.engine.passes import BlockView, PartialSums, Pass, RunPass
from dfact.engine.session import Arrays, StateRows
from dfact.engine.tiles import TileBroadcast, TileStep

P = TypeVar("P", bound=PartialSums)
B = TypeVar("B")
T = TypeVar("T")


@dataclass(frozen=True)
class Memo:
    """A request for the result of ``compute``, which a resumed fit reads from its checkpoint; see :meth:`Session.memo`."""

    name: str
    compute: Callable[[], Arrays]


@dataclass(frozen=True)
class ReadState:
    """A request for a state array by rows, to be read before the next pass."""

    name: str


@dataclass(frozen=True)
class StepTiles:
    """A request for the small sums of a step on every tile of columns, which gets the tiled sums of the pass before it."""

    step: TileStep
    given: Mapping[str, NDArray[Any]]
    """Arrays (…, columns) by name, of which each tile gets its columns."""


@dataclass(frozen=True)
class ReadTiles:
    """A request for a state array of the tiles as one array."""

    name: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class ReadEnvironments:
    """A request for the environments of the processes that took part so far."""


Request = RunPass[Any] | Memo | ReadState | StepTiles | ReadTiles | ReadEnvironments | ColumnMap
Solver = Generator[Request, Any, T]
"""A generator of requests that returns a T."""


def run(
    pass_: Pass[Any, B, P],
    broadcast: B | TileBroadcast,
    view: BlockView | None = None,
    *,
    sample: tuple[int, ...] | None = None,
    reset: bool = False,
) -> Solver[P]:
    """Run a pass as a :class:`~dfact.engine.passes.RunPass` says, and return its sums; those that are tiled come without columns."""
    sums: P = yield RunPass(pass_, broadcast, view, sample, reset)
    return sums


def memo(name: str, compute: Callable[[], Arrays]) -> Solver[Arrays]:
    """Return the result of ``compute``, or the recorded one."""
    arrays: Arrays = yield Memo(name, compute)
    return arrays


def state_rows(name: str) -> Solver[StateRows]:
    """Return a state array by rows, to be read before the next pass."""
    rows: StateRows = yield ReadState(name)
    return rows


def step_tiles(step: TileStep, given: Mapping[str, NDArray[Any]] | None = None) -> Solver[Any]:
    """Run a step on every tile of columns and return its small sums, added up in the order of the tiles.

    The first step after a tiled pass gets its sums. ``given`` contains arrays (…, columns), of which each tile gets its columns.
    """
    sums = yield StepTiles(step, given or {})
    return sums


def map_columns(function: ColumnFunction, given: Mapping[str, NDArray[Any]], *, column_seconds: float) -> Solver[NDArray[Any]]:
    """Return a function of arrays (…, columns), which is called for tiles of columns, on workers if there is enough work."""
    array: NDArray[Any] = yield ColumnMap(function, given, column_seconds)
    return array


def read_tiles(name: str, dtype: np.dtype[Any]) -> Solver[NDArray[Any]]:
    """Return a state array of the tiles (…, columns)."""
    array: NDArray[Any] = yield ReadTiles(name, dtype)
    return array


def read_environments() -> Solver[list[Environment]]:
    """Return the environments of the processes that took part so far."""
    found: list[Environment] = yield ReadEnvironments()
    return found
