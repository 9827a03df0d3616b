"""The journal of passes since the last checkpoint, from which the partitions of a lost worker are recomputed.

It is not the log of a checkpoint, which holds the other side of the same passes. The state of a partition follows from the requests, passes
with their broadcasts; that of the solver follows from the replies, the sums. A lost worker's partitions need the requests since their last
saved state, which the driver has in any case; a driver that starts again needs all replies since the beginning, and its solver repeats
the requests. So the journal ends with the driver and is emptied by each checkpoint, and no broadcast is ever written to the store.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from dfact.errors import StoreError
from dfact.storage.files import TemporaryFolder

_BATCH_BYTES = 1 << 25


@dataclass(frozen=True)
class _Range:
    """A range of bytes in the file."""

    start: int
    size: int


class Journal:
    """Pickled passes and broadcasts by the numbers of the passes, in a temporary file of the driver. Each pass adds its broadcast."""

    def __init__(self) -> None:
        self.base = 0
        """Number of the pass before the first one in the journal."""
        self._entries: list[tuple[_Range, _Range]] = []
        self._pass = b""
        self._end = 0

    def __enter__(self) -> Self:
        self._folder = TemporaryFolder("journal")
        self._file = self._folder.new_file("passes")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._file)
        self._folder.remove()

    def append(self, pass_: bytes, broadcast: bytes) -> None:
        """Add the next pass."""
        same = bool(self._entries) and pass_ == self._pass
        stored = self._entries[-1][0] if same else self._write(pass_)
        self._pass = pass_
        self._entries.append((stored, self._write(broadcast)))

    def __getitem__(self, pass_number: int) -> tuple[bytes, bytes]:
        """Return the pass with this number and its broadcast."""
        pass_, broadcast = self._entries[pass_number - self.base - 1]
        return self._read(pass_), self._read(broadcast)

    def batches(self, last: int) -> Iterator[range]:
        """Yield the numbers of all passes up to ``last``, as many at once as fit into one message."""
        first, size = self.base + 1, 0
        for pass_number in range(self.base + 1, last + 1):
            pass_, broadcast = self._entries[pass_number - self.base - 1]
            size += pass_.size + broadcast.size
            if size >= _BATCH_BYTES or pass_number == last:
                yield range(first, pass_number + 1)
                first, size = pass_number + 1, 0

    def clear(self, base: int) -> None:
        """Remove all passes up to the number ``base``: a checkpoint holds the state after it, or there is no state."""
        self.base, self._entries, self._end = base, [], 0
        os.ftruncate(self._file, 0)

    def _write(self, data: bytes) -> _Range:
        written, rest = _Range(self._end, len(data)), memoryview(data)
        try:
            while rest:
                count = os.pwrite(self._file, rest, self._end)
                self._end, rest = self._end + count, rest[count:]
        except OSError as error:
            remedy = "set TMPDIR to a larger disk, or write checkpoints, which empty the journal"
            raise StoreError(f"cannot write the journal of passes to {self._folder.path}: {error}; {remedy}") from error
        return written

    def _read(self, stored: _Range) -> bytes:
        data = b""
        while len(data) < stored.size:
            data += os.pread(self._file, stored.size - len(data), stored.start + len(data))
        return data
