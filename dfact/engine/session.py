"""The contract of where passes run: a session on the partitions of a data set, and the executor that opens it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.engine.block_state import CheckpointedState
from dfact.engine.memory_plan import Plan, WorkerResources
from dfact.engine.partitions import Partitions
from dfact.engine.passes import PartialSums, Pass

P = TypeVar("P", bound=PartialSums)
Arrays = dict[str, NDArray[Any]]


class Session(Protocol):
    """The partitions of one data set with the state the passes keep for them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return

    def run(self, pass_: Pass[Any, P], broadcast: Any) -> P:
        """One pass over all rows; the sum of the partial results, in the order of a fixed tree."""
        ...

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        """A state array, rows first, some partitions at a time in order."""
        ...

    def write_rows(self, name: str, convert: Callable[[NDArray[Any]], NDArray[Any]], target: zarr.Array[Any]) -> bool:
        """Have a state array, converted a run of rows at a time, written by those who hold it; False if they cannot reach the target."""
        del name, convert, target
        return False

    def memo(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """What ``compute`` gives; a resumed fit has it from its checkpoint.

        For what follows from more than parameters and passes, such as chance, and for steps that take no pass.
        """
        return compute()


@dataclass(frozen=True)
class StateRows:
    """A state array of all rows, rows first: to iterate over a run of rows after the other, or to have written."""

    session: Session
    name: str
    convert: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    """Applied to each run of rows; it is sent to the workers."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self.convert(part) for part in self.session.rows(self.name))

    def write(self, target: zarr.Array[Any]) -> bool:
        """Have the rows written by those who hold them; False if they cannot reach the target."""
        return self.session.write_rows(self.name, self.convert, target)


class CheckpointableSession(Session, Protocol):
    """A session whose state a checkpoint can hold."""

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        """Write the state of all partitions to the group; nothing if there is none."""
        ...

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        """Resume from what was saved."""
        ...


class Executor(Protocol):
    """Where passes run."""

    def workers(self, memory_limit: int | str | None) -> WorkerResources: ...

    def open(self, partitions: Partitions, plan: Plan) -> CheckpointableSession: ...
