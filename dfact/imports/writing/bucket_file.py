"""BucketFile: an external bucket sort, for records that do not fit in memory and are needed group by group."""

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.errors import StoreError


class BucketFile:
    """Records in buckets of known sizes, in a temporary file that is deleted after the block.

    ``sizes`` are the largest numbers of records in each bucket. A record is an entry of the type ``dtype``, or an array of such
    entries of the shape ``shape``. ``what`` names the records in messages, ``purpose`` the file.
    """

    def __init__(self, sizes: NDArray[np.int64], dtype: np.dtype[Any], shape: tuple[int, ...] = (), *, purpose: str, what: str) -> None:
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._filled = np.zeros(len(sizes), np.int64)
        self._dtype, self._shape, self._purpose, self._what = dtype, shape, purpose, what
        self._record_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    def __enter__(self) -> Self:
        with self._write_errors():
            self._file: IO[bytes] = TemporaryFile(prefix=f"dfact-{self._purpose}-")
        return self

    def __exit__(self, *_: object) -> None:
        with self._write_errors():
            self._file.close()

    def __len__(self) -> int:
        return len(self._filled)

    def add(self, buckets: NDArray[np.integer[Any]], records: NDArray[Any]) -> None:
        """Append records to the buckets of these numbers; a record of bucket −1 is left out."""
        order = np.argsort(buckets, kind="stable")
        records = records[order]
        bounds = np.searchsorted(buckets[order], np.arange(len(self) + 1))
        for i in np.flatnonzero(np.diff(bounds)).tolist():
            self._append(i, records[bounds[i] : bounds[i + 1]])

    def replace(self, i: int, records: NDArray[Any]) -> None:
        """Replace the records of bucket i by at most as many."""
        self._filled[i] = 0
        self._append(i, records)

    def read(self, i: int) -> NDArray[Any]:
        """Read the records of bucket i in the order in which they came."""
        with self._write_errors():
            self._file.seek(int(self._starts[i]) * self._record_bytes)
            content = self._file.read(int(self._filled[i]) * self._record_bytes)
        return np.frombuffer(content, self._dtype).reshape(-1, *self._shape)

    def _append(self, i: int, records: NDArray[Any]) -> None:
        with self._write_errors():
            self._file.seek(int(self._starts[i] + self._filled[i]) * self._record_bytes)
            self._file.write(np.ascontiguousarray(records).data)
        self._filled[i] += len(records)

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = f"set TMPDIR to a disk with {int(self._starts[-1]) * self._record_bytes / 2**30:.2g} GiB free"
            raise StoreError(f"cannot sort {self._what} in {gettempdir()}: {error.strerror or error}; {remedy}") from error
