"""State that exceeds the memory plan: files of a partition's blocks, written and read in their order."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dfact.engine.arrays import read_array, write_array
from dfact.engine.passes import State
from dfact.errors import StoreError


@dataclass(frozen=True)
class SpilledState:
    """The state of a partition's blocks on disk."""

    path: Path
    names: tuple[str, ...]
    n_blocks: int

    def __iter__(self) -> Iterator[State]:
        try:
            with self.path.open("rb") as file:
                for _ in range(self.n_blocks):
                    yield {name: read_array(file) for name in self.names}
        except (OSError, ValueError, EOFError) as error:
            raise StoreError(f"cannot read the solver's state from {self.path}: {error}") from error

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


class SpillWriter:
    """Writes the state of a partition, block after block. ``result`` names it once the block has ended without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: tuple[str, ...] = ()
        self._n_blocks = 0

    def __enter__(self) -> Self:
        # A file that is there is written over: its pages are in memory already, which is five times
        # as fast as a new file.
        self._file = self._path.open("r+b" if self._path.exists() else "wb")
        return self

    def keep(self, state: State | None) -> None:
        if state is None:
            return
        try:
            for array in state.values():
                write_array(self._file, array)
            self._file.flush()
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
            remedy = "raise memory_limit, or set TMPDIR to a larger disk"
            raise StoreError(f"cannot write the solver's state to {self._path.parent}: {reason}; {remedy}") from error
        self._names = tuple(state)
        self._n_blocks += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with self._file:
                self._file.truncate()
        except OSError:
            if error is None:  # else it cannot be written now either
                raise

    @property
    def result(self) -> SpilledState | None:
        """What was written; None if the pass keeps no state."""
        return SpilledState(self._path, self._names, self._n_blocks) if self._n_blocks else None
