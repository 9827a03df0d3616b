"""The passes since the last checkpoint, from which the survivors of a fault compute what a lost worker held."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from dfact.errors import StoreError
from dfact.storage.files import TemporaryFolder

_BATCH = 1 << 25


@dataclass(frozen=True)
class _Place:
    """Where some bytes lie in the file."""

    start: int
    size: int


class Journal:
    """Passes and broadcasts as they were sent, by their numbers, in a file of the driver's own: it grows by one broadcast a pass."""

    def __init__(self) -> None:
        self.base = 0
        """The number of the pass before the first that is held."""
        self._entries: list[tuple[_Place, _Place]] = []
        self._pass = b""
        self._end = 0

    def __enter__(self) -> Self:
        self._scratch = TemporaryFolder("journal")
        self._file = os.open(self._scratch.path / "passes", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._file)
        self._scratch.remove()

    def append(self, pass_: bytes, broadcast: bytes) -> None:
        """Add the next pass."""
        same = bool(self._entries) and pass_ == self._pass
        place = self._entries[-1][0] if same else self._write(pass_)
        self._pass = pass_
        self._entries.append((place, self._write(broadcast)))

    def __getitem__(self, number: int) -> tuple[bytes, bytes]:
        """The pass with this number and its broadcast."""
        pass_, broadcast = self._entries[number - self.base - 1]
        return self._read(pass_), self._read(broadcast)

    def batches(self, last: int) -> Iterator[range]:
        """The numbers of all passes up to ``last``, as many at once as one message takes."""
        first, size = self.base + 1, 0
        for number in range(self.base + 1, last + 1):
            pass_, broadcast = self._entries[number - self.base - 1]
            size += pass_.size + broadcast.size
            if size >= _BATCH or number == last:
                yield range(first, number + 1)
                first, size = number + 1, 0

    def clear(self, base: int) -> None:
        """Start over after the pass with the number ``base``: a checkpoint holds the state since, or there is none."""
        self.base, self._entries, self._end = base, [], 0
        os.ftruncate(self._file, 0)

    def _write(self, data: bytes) -> _Place:
        place, rest = _Place(self._end, len(data)), memoryview(data)
        try:
            while rest:
                count = os.pwrite(self._file, rest, self._end)
                self._end, rest = self._end + count, rest[count:]
        except OSError as error:
            remedy = "set TMPDIR to a larger disk, or keep a checkpoint, which empties it"
            raise StoreError(f"cannot write the journal of passes to {self._scratch.path}: {error}; {remedy}") from error
        return place

    def _read(self, place: _Place) -> bytes:
        found = b""
        while len(found) < place.size:
            found += os.pread(self._file, place.size - len(found), place.start + len(found))
        return found
