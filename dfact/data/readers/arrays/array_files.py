"""Parts that the readers of arrays share: the choice of an array in a file, errors of damaged files, limits, and rows read from files."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.memory_limit import require_memory
from dfact.data.readers.isolation.parsers import Parser, parse
from dfact.data.sources.base import contiguous
from dfact.data.sources.dense import DenseSource
from dfact.errors import DataError, DfactError, ParameterError
from dfact.storage.input_files import InputFile

_READ_BYTES = 1 << 25  # of one read, where the chunks of the file allow it
_MAX_READ_BYTES = 1 << 27  # of one read within chunks that are taller; each read decodes these chunks again
_MAX_LISTED = 20
_MAX_REASON = 200
_MAX_COMPRESSION = 1 << 13  # more than any file compresses numbers: deflate packs 1032 bytes into one, MATLAB 8 bytes of a number
_SMALL = 1 << 26  # bytes that may be allocated whatever a header declares


def choose_array(file: str, shapes: Mapping[str, tuple[int, ...]], name: str | None) -> str:
    """Return the name of the array to read: the given one, or the only one.

    Raises ParameterError if there is no array of this name, or if there are several and none is named.
    """
    listed = [f"{key} {'×'.join(map(str, shape)) or 'scalar'}" for key, shape in list(shapes.items())[:_MAX_LISTED]]
    known = ", ".join(listed) + (f", … ({len(shapes)} in all)" if len(shapes) > _MAX_LISTED else "")
    if name is not None:
        if name not in shapes:
            raise ParameterError(f"{file} has no array {name!r}, expected one of {known or 'none: it holds no arrays'}")
        return name
    if len(shapes) != 1:
        raise ParameterError(f"{file} holds {len(shapes)} arrays ({known}), expected one; choose one with object (--object)")
    return next(iter(shapes))


@contextmanager
def file_errors(name: str, kind: str) -> Iterator[None]:
    """Translate the errors of all kinds that damaged files cause in libraries into a DataError naming the file."""
    try:
        yield
    except DfactError:
        raise
    except MemoryError as error:
        remedy = "the file is damaged, or there is too little memory: export it again, or free memory"
        raise DataError(f"{name} requires more memory than is available; {remedy}") from error
    except Exception as error:
        text = " ".join(f"{error or type(error).__name__}".split())[:_MAX_REASON]
        raise DataError(f"{name} cannot be read as {kind}: {text}; the file is damaged: export it again") from error


def require_stored(name: str, shape: tuple[int, ...], n_bytes: int, stored: int) -> None:
    """Raise DataError if a header declares an array of ``n_bytes`` for which the ``stored`` bytes of the file are too few."""
    if n_bytes > max(_SMALL, stored * _MAX_COMPRESSION):
        size = "×".join(map(str, shape))
        raise DataError(f"{name} declares the shape {size}, for which the {stored} bytes of the file are too few; export it again")


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
