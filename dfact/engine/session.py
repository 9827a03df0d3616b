"""The protocols of sessions, which run passes on the partitions of a dataset, and of executors, which open sessions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.engine.block_state import CheckpointedState
from dfact.engine.column_map import ColumnMap
from dfact.engine.environment import Environment, current_environment
from dfact.engine.memory_plan import Plan, WorkerResources
from dfact.engine.partitions import Partitions
from dfact.engine.passes import PartialSums, RunPass
from dfact.engine.tiles import TileStates, TileStep

P = TypeVar("P", bound=PartialSums)
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]


class Session(Protocol):
    """The partitions of one dataset, with the state that passes keep for them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return

    def run(self, request: RunPass[P]) -> P:
        """Run a pass and return its sums, added up in the order of a fixed tree."""
        ...

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield a state array, rows first, a few partitions at a time in order."""
        ...

    def write_rows(self, name: str, convert: Callable[[NDArray[Any]], NDArray[Any]], target: zarr.Array[Any]) -> bool:
        """Let the workers write a state array, each run of rows converted; returns False if they cannot reach the target."""
        del name, convert, target
        return False

    def memo(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the result of ``compute``; a resumed fit reads it from its checkpoint instead.

        This is for results that depend on more than parameters and passes, such as random numbers, and for steps without a pass.
        """
        return compute()

    def step_tiles(
        self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str = "", sums: Mapping[str, NDArray[Any]] | None = None
    ) -> PartialSums:
        """Run a step on every tile of columns and return its small sums, added up in the order of the tiles.

        The tiles' arrays have names with this prefix. Their sums come from the last tiled pass, unless ``sums`` (…, columns) are given.
        """
        raise TypeError(f"{type(self).__name__} has no tiles of columns")

    def tiles(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a state array of the tiles (…, columns)."""
        raise TypeError(f"{type(self).__name__} has no tiles of columns")

    def map_columns(self, request: ColumnMap) -> NDArray[Any]:
        """Return the results of a function that is mapped over tiles of columns. A repeated call gives bit-identical results."""
        return request()

    @property
    def environments(self) -> list[Environment]:
        """The environments of all processes that took part, each kind once; more than one if bits may differ."""
        return [current_environment()]


@dataclass(frozen=True)
class StateRows:
    """A state array of all rows, rows first, to be iterated over by runs of rows, or to be written."""

    session: Session
    name: str
    convert: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    """A function applied to each run of rows; it is sent to the workers."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self.convert(rows) for rows in self.session.rows(self.name))

    def write(self, target: zarr.Array[Any]) -> bool:
        """Let the workers write the rows; returns False if they cannot reach the target."""
        return self.session.write_rows(self.name, self.convert, target)


class CheckpointableSession(Session, Protocol):
    """A session whose state a checkpoint can hold."""

    tile_states: TileStates
    """The state of the tiles of columns."""

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        """Write the state of all partitions, if there is any, to the group."""
        ...

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        """Resume from states that were saved."""
        ...

    def replayed(self, sums: PartialSums) -> None:
        """Take notice of sums of a pass that a checkpoint had recorded, so that the pass was not run."""
        return

    def tiled_sums(self) -> Arrays:
        """Return the tiled sums (…, columns) of the last pass, which no step has used, and drop them here."""
        raise TypeError(f"{type(self).__name__} has no tiles of columns")

    @property
    def save_due(self) -> bool:
        """Whether the state should be saved after this step, as when all processes that hold it are about to end."""
        return False

    def tiles(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.tile_states.array(name, dtype)


class Executor(Protocol):
    """The processes and threads that run passes, or tasks."""

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        """Return the number of processes and threads, and their memory."""
        ...

    def open(self, partitions: Partitions, plan: Plan) -> CheckpointableSession:
        """Open a session on the partitions of a dataset."""
        ...

    def map(
        self,
        function: Callable[[T, D], Iterable[R]],
        tasks: Sequence[T],
        load: Callable[[], D],
        on_result: Callable[[T, R], None],
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Call ``function(task, data)`` for each task, in parallel, and ``on_result(task, result)`` for each result that it yields.

        ``load`` returns the data and is called once. ``context`` is entered where the tasks run. The first error ends the other
        tasks as soon as possible and is raised.
        """
        ...
