"""State that exceeds the memory plan: one file for each partition and version, written and read in block order."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from dfact.engine.passes import State
from dfact.errors import StoreError


@dataclass(frozen=True)
class SpilledState:
    """The state of a partition's blocks on disk. A version is written once and then only read."""

    path: Path
    names: tuple[str, ...]
    n_blocks: int

    def __iter__(self) -> Iterator[State]:
        try:
            with self.path.open("rb") as file:
                for _ in range(self.n_blocks):
                    yield {name: np.load(file, allow_pickle=False) for name in self.names}
        except (OSError, ValueError, EOFError) as error:
            raise StoreError(f"cannot read the solver's state from {self.path}: {error}") from error

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


class SpillWriter:
    """Writes the state of a partition, block after block, beside its place; it is there when whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_suffix(".incomplete")
        self._names: tuple[str, ...] = ()
        self._n_blocks = 0

    def __enter__(self) -> Self:
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("wb")
        return self

    def keep(self, state: State | None) -> None:
        if state is None:
            return
        try:
            for array in state.values():
                np.save(self._file, array, allow_pickle=False)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "requested and" in str(error)
            reason = "the disk is full" if full else str(error)
            raise StoreError(
                f"cannot write the solver's state to {self._path.parent}: {reason}; raise memory_limit, or set TMPDIR to a larger disk"
            ) from error
        self._names = tuple(state)
        self._n_blocks += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if kind is None and self._n_blocks:
            self._partial.replace(self._path)
        else:
            self._partial.unlink()

    @property
    def result(self) -> SpilledState | None:
        """What was written; None if the pass keeps no state."""
        return SpilledState(self._path, self._names, self._n_blocks) if self._n_blocks else None
