"""Rows of an array in a file that a library parses in a child process."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.memory_limit import require_memory
from dfact.data.sources.base import DenseSource, contiguous
from dfact.formats.isolation.parsers import Parser, parse
from dfact.imports.readers.arrays.array_files import file_errors, require_stored
from dfact.storage.input_files import InputFile

_READ_BYTES = 1 << 25  # of one read, where the chunks of the file allow it
_MAX_READ_BYTES = 1 << 27  # of one read within chunks that are taller; each read decodes these chunks again


@dataclass(frozen=True, eq=False)
class FileSource(DenseSource):
    """Rows of an array in a file. Each read opens the file, so that no handle is left open or has to be sent to a worker."""

    parser: ClassVar[Parser]
    file: InputFile
    name: str
    """Name of the array in the file."""
    stored_shape: tuple[int, ...]
    stored_type: np.dtype[Any]
    stored_chunks: tuple[int, ...] | None = None
    reversed: bool = False
    """Whether the modes are the file's in reverse order, so that the last axis of the file holds the rows."""
    offset: int = 0
    n: int | None = None

    @abstractmethod
    def read_stored(self, index: tuple[slice, ...]) -> NDArray[Any]:
        """Read a part of the array with the axes of the file."""

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.stored_shape[::-1] if self.reversed else self.stored_shape
        return shape if self.n is None else (self.n, *shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored_type

    @property
    def chunk_rows(self) -> int | None:
        """Number of rows of a read: some chunks of the file, or a part of chunks that are too tall for one read."""
        if self.stored_chunks is None:
            return None
        chunk, row = self.stored_chunks[-1 if self.reversed else 0], max(1, self.row_bytes)
        if chunk * row > _READ_BYTES:
            return max(1, min(chunk, _MAX_READ_BYTES // row))
        return max(1, _READ_BYTES // (chunk * row)) * chunk

    @property
    def T(self) -> Self:
        """The array with its modes in reverse order; only of an array that is not sliced."""
        return replace(self, reversed=not self.reversed)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        rows = slice(self.offset + start, self.offset + stop)
        others = (slice(None),) * (len(self.stored_shape) - 1)
        values = parse(self.file, self.parser, self._parse_rows, rows, (*others, rows) if self.reversed else (rows, *others))
        return contiguous(values.T if self.reversed else values)

    def _parse_rows(self, rows: slice, index: tuple[slice, ...]) -> NDArray[Any]:
        with file_errors(f"{self.name} of {self.file.name}, rows {rows.start} to {rows.stop},", "an array"):
            return self.read_stored(index)

    def slice(self, rows: slice) -> Self:
        start, stop, _ = rows.indices(self.shape[0])
        return replace(self, offset=self.offset + start, n=stop - start)

    def check_size(self, stored: int) -> Self:
        """Return the source; raise DataError if a row does not fit in memory or the file does not hold the array."""
        described = f"{self.name} of {self.file.name}"
        require_stored(described, self.shape, prod(self.shape) * self.dtype.itemsize, stored)
        require_memory(f"a row of {described}", 4 * self.row_bytes, "import a part of it")
        return self
