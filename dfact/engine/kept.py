"""What a session keeps for its partitions between passes, and the visit that takes it and hands on the new."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.engine.partition import Partition, one_ahead, walk
from dfact.engine.passes import Partial, Pass, State
from dfact.engine.plan import Plan
from dfact.engine.scratch import Scratch
from dfact.engine.spill import SpilledState, SpillWriter
from dfact.engine.streams import StoredState, store_state

P = TypeVar("P", bound=Partial)
KeptState = list[State | None] | SpilledState | StoredState | None
"""A partition's state in memory (by block), in a file, or in a checkpoint; None if the passes keep none."""


def visit(
    partition: Partition, pass_: Pass[Any, P], shared: Any, kept: KeptState, spill_to: Path | None, *, own: bool
) -> tuple[KeptState, P]:
    """One pass over one partition; the task of every executor.

    ``own`` says that the state is ours to overwrite; otherwise every block gets a copy, as a
    task that may run twice must find its inputs unchanged.
    """
    states: Any = [None] * partition.n_blocks if kept is None else kept
    if isinstance(kept, (SpilledState, StoredState)):
        states = one_ahead(kept)
    elif not own:
        states = ({name: array.copy() for name, array in state.items()} if state else None for state in states)
    if spill_to is None:
        new: list[State | None] = []
        total = walk(partition, pass_, shared, states, new.append)
        return (new if any(state is not None for state in new) else None), total
    with SpillWriter(spill_to) as writer:
        total = walk(partition, pass_, shared, states, writer.keep)
    return writer.result, total


def rows_of(kept: KeptState, name: str) -> NDArray[Any]:
    """A state array (k, rows) of all blocks of a partition as (rows, k)."""
    return np.concatenate([state[name].T for state in blocks_of(kept)])


def blocks_of(kept: KeptState) -> Iterator[State]:
    """The states of a partition's blocks."""
    assert kept is not None, "no pass has kept a state yet"
    for state in kept:
        assert state is not None, "a pass keeps a state for all blocks or for none"
        yield state


def store(kept: KeptState, group: zarr.Group, stream: str) -> StoredState | None:
    """Copy the state of a partition to a checkpoint."""
    return None if kept is None else store_state(blocks_of(kept), group, stream)


class Versions:
    """Places for the spilled states of every partition.

    On this machine two files take turns: one is read while the other is written over. Workers get a
    new file for every pass, as one that was given up for lost may still be writing an old one.
    """

    def __init__(self, plan: Plan, *, take_turns: bool) -> None:
        self._take_turns = take_turns
        self._n_resident = plan.state_in_memory
        self._spills = plan.state_in_memory < plan.n_partitions
        self._scratch: Scratch | None = None
        self._version = 0

    def next_pass(self) -> None:
        if self._spills and self._scratch is None:
            self._scratch = Scratch("state")
            self._scratch.belongs_to(self)
        self._version += 1

    def place(self, partition: int) -> Path | None:
        """Where the partition's new state goes; None if it stays in memory."""
        if partition < self._n_resident or self._scratch is None:
            return None
        version = self._version % 2 if self._take_turns else self._version
        return self._scratch.path / f"{partition}-{version}.state"

    def remove(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()
