"""Entries of a matrix in a temporary file, those of each run of its rows together."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.errors import StoreError

_RUN_ENTRIES = 1 << 20  # of a run: 24 MB
ENTRY = np.dtype([("row", np.int32), ("column", np.int32), ("value", np.float64), ("triplet", np.int64)])
"""``triplet`` is the number of the entry in the order in which they came."""
Entries = NDArray[Any]
"""Of the type ``ENTRY``."""


class EntrySorter:
    """Runs of rows of about as many entries each, or of one row; ``counts`` are how many each row will have."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        edges = np.concatenate([[0], np.cumsum(counts)])
        rows = [0]
        while rows[-1] < len(counts):
            within = int(np.searchsorted(edges, edges[rows[-1]] + _RUN_ENTRIES, side="right")) - 1
            rows.append(max(within, rows[-1] + 1))
        self._rows, self._starts = np.array(rows), edges[rows]
        self._filled = np.zeros(len(rows) - 1, np.int64)

    def __enter__(self) -> Self:
        with self._disk():
            self._file: IO[bytes] = TemporaryFile(prefix="dfact-triplets-")
        return self

    def __exit__(self, *_: object) -> None:
        with self._disk():
            self._file.close()

    def rows(self) -> list[slice]:
        """The rows of every run, in order."""
        return [slice(a, b) for a, b in pairwise(self._rows.tolist())]

    def add(self, entries: Entries) -> None:
        """Deal entries out to their runs, each behind those that came before."""
        run = np.searchsorted(self._rows, entries["row"], side="right") - 1
        order = np.argsort(run, kind="stable")
        edges = np.searchsorted(run[order], np.arange(len(self._rows)))
        for i in np.flatnonzero(np.diff(edges)).tolist():
            self._put(i, entries[order[edges[i] : edges[i + 1]]])

    def replace(self, i: int, entries: Entries) -> None:
        """Put entries, no more of them, in the place of those of run i."""
        self._filled[i] = 0
        self._put(i, entries)

    def read(self, i: int) -> Entries:
        """The entries of run i."""
        with self._disk():
            self._file.seek(int(self._starts[i]) * ENTRY.itemsize)
            return np.frombuffer(self._file.read(int(self._filled[i]) * ENTRY.itemsize), ENTRY)

    def _put(self, i: int, entries: Entries) -> None:
        with self._disk():
            self._file.seek(int(self._starts[i] + self._filled[i]) * ENTRY.itemsize)
            self._file.write(entries.tobytes())
        self._filled[i] += len(entries)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            size = f"{int(self._starts[-1]) * ENTRY.itemsize / 2**30:.2g} GiB"
            remedy = f"set TMPDIR to a disk with {size} free"
            raise StoreError(f"cannot put the triplets in order in {gettempdir()}: {error.strerror or error}; {remedy}") from error
