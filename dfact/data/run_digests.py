"""Digests of runs of consecutive rows: the leaves of a dataset's fingerprint, which tasks compute side by side."""

from __future__ import annotations

import hashlib
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.lazy import sp

DIGEST_BYTES = 16
_RUN_ENTRIES = 1 << 18  # hashed in a fraction of a millisecond
_RUN_ROWS = (64, 2048)


def run_rows(tail: tuple[int, ...]) -> int:
    """Return the number of rows of a run: a power of two that follows from the sizes of the modes after the first alone.

    So the digests do not depend on chunks, batches, dropped rows or the number of tasks.
    """
    rows = max(1, _RUN_ENTRIES // max(1, prod(tail)))
    return min(max(1 << (rows.bit_length() - 1), _RUN_ROWS[0]), _RUN_ROWS[1])


class RunDigests:
    """BLAKE2b digests of runs of rows, for rows that arrive in batches of any size.

    The lengths, column numbers and values of CSR rows have a digest each, so that batches may cut a run anywhere.
    """

    def __init__(self, tail: tuple[int, ...]) -> None:
        self._step = run_rows(tail)
        self._filled = 0
        self._streams: list[Any] = []
        self._digests = bytearray()

    def update(self, rows: NDArray[Any] | sp.csr_array) -> None:
        """Add the next rows."""
        n, start = rows.shape[0], 0
        while start < n:
            stop = min(n, start + self._step - self._filled)
            streams = _bytes_of(rows if stop - start == n else rows[start:stop])
            self._streams = self._streams or [hashlib.blake2b(digest_size=DIGEST_BYTES) for _ in streams]
            for digest, stream in zip(self._streams, streams, strict=True):
                digest.update(stream.data)
            self._filled += stop - start
            start = stop
            if self._filled == self._step:
                self._end_run()

    def finish(self) -> bytes:
        """End the last run and return the digests of all runs, one after the other."""
        if self._filled:
            self._end_run()
        return bytes(self._digests)

    def _end_run(self) -> None:
        for digest in self._streams:
            self._digests += digest.digest()
        self._filled, self._streams = 0, []


def _bytes_of(rows: NDArray[Any] | sp.csr_array) -> list[NDArray[Any]]:
    if isinstance(rows, np.ndarray):
        return [np.ascontiguousarray(rows)]
    parts = np.diff(rows.indptr).astype(np.int64), rows.indices.astype(np.int32, copy=False), rows.data
    return [np.ascontiguousarray(part) for part in parts]
