"""External bucket sort: the entries of a matrix in a temporary file, grouped by ranges of rows that fit in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.errors import StoreError

_BUCKET_ENTRIES = 1 << 20  # maximum number of entries in a bucket of several rows: 24 MB
ENTRY = np.dtype([("row", np.int32), ("column", np.int32), ("value", np.float64), ("triplet", np.int64)])
"""Type of an entry; ``triplet`` is its number in the order of the table."""
Entries = NDArray[Any]
"""Array of the type ``ENTRY``."""


class EntrySorter:
    """Buckets of entries on disk, each of a range of rows with a bounded number of entries, or of a single row.

    ``counts`` are the numbers of entries that each row will have.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        ends = np.concatenate([[0], np.cumsum(counts)])
        rows = [0]
        while rows[-1] < len(counts):
            last = int(np.searchsorted(ends, ends[rows[-1]] + _BUCKET_ENTRIES, side="right")) - 1
            rows.append(max(last, rows[-1] + 1))
        self._rows, self._starts = np.array(rows), ends[rows]
        self._filled = np.zeros(len(rows) - 1, np.int64)

    def __enter__(self) -> Self:
        with self._write_errors():
            self._file: IO[bytes] = TemporaryFile(prefix="dfact-triplets-")
        return self

    def __exit__(self, *_: object) -> None:
        with self._write_errors():
            self._file.close()

    def rows(self) -> list[slice]:
        """Return the rows of every bucket, in order."""
        return [slice(a, b) for a, b in pairwise(self._rows.tolist())]

    def add(self, entries: Entries) -> None:
        """Append entries to their buckets."""
        bucket = np.searchsorted(self._rows, entries["row"], side="right") - 1
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(len(self._rows)))
        for i in np.flatnonzero(np.diff(bounds)).tolist():
            self._append(i, entries[order[bounds[i] : bounds[i + 1]]])

    def replace(self, i: int, entries: Entries) -> None:
        """Replace the entries of bucket i by at most as many."""
        self._filled[i] = 0
        self._append(i, entries)

    def read(self, i: int) -> Entries:
        """Read the entries of bucket i."""
        with self._write_errors():
            self._file.seek(int(self._starts[i]) * ENTRY.itemsize)
            return np.frombuffer(self._file.read(int(self._filled[i]) * ENTRY.itemsize), ENTRY)

    def _append(self, i: int, entries: Entries) -> None:
        with self._write_errors():
            self._file.seek(int(self._starts[i] + self._filled[i]) * ENTRY.itemsize)
            self._file.write(entries.tobytes())
        self._filled[i] += len(entries)

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            size = f"{int(self._starts[-1]) * ENTRY.itemsize / 2**30:.2g} GiB"
            remedy = f"set TMPDIR to a disk with {size} free"
            raise StoreError(f"cannot sort the triplets in {gettempdir()}: {error.strerror or error}; {remedy}") from error
