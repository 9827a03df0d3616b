"""Matrix Market files, plain or gzipped, with the labels of rows and columns in files next to them."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dfact.data.memory_limit import require_memory
from dfact.data.sources.array import LabelledArray
from dfact.errors import DataError, StoreError
from dfact.imports.readers.arrays.array_files import file_errors, require_stored
from dfact.imports.readers.base import Format, ReadOptions
from dfact.lazy import sp
from dfact.storage.input_files import InputFile, open_input

_GZIP_RATIO = 1032
_WINDOW = 1 << 20
_NUMBER = rb"[+-]?+(?:(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?+\d++)?+|nan|inf|NaN|Inf)"
_PATTERN = re.compile(rb"(?:[ \t]*+(?:%%[^\n]*+|%s(?:[ \t]++%s){0,3}+[ \t\r]*+|\r?+)\n)*+" % (_NUMBER, _NUMBER))
"""Comments, lines of numbers, and empty lines."""
_ENTRY_BYTES = {"coordinate": 4, "array": 2}
"""Least length of the text of an entry: "1 1" or "1", and the end of the line."""
_LABEL_FILES = (("features.tsv", "genes.tsv"), ("barcodes.tsv",))
"""Names of the files with the labels of rows and of columns, as Cell Ranger writes them."""


class _Lines:
    """The lines of a stream, checked for SciPy's parser, which reads beyond its memory after a number that other bytes follow.

    There is no ``seek``: the parser would seek back by what it has not used, and end the process where that fails.
    """

    def __init__(self, stream: BinaryIO | gzip.GzipFile) -> None:
        self._stream, self._rest, self._ready, self._n_lines = stream, b"", memoryview(b""), 0

    def read(self, n: int) -> bytes:
        if not self._ready:
            self._ready = memoryview(self._next_lines())
        piece, self._ready = bytes(self._ready[:n]), self._ready[n:]
        return piece

    def _next_lines(self) -> bytes:
        text = self._rest
        while b"\n" not in text:
            window = self._stream.read(_WINDOW)
            if len(text) > _WINDOW:
                raise ValueError(f"line {self._n_lines + 1} is longer than {_WINDOW} bytes")
            text += window or (b"\n" if text else b"")
            if not text:
                return text
        cut = text.rfind(b"\n") + 1
        lines, self._rest = text[:cut], text[cut:]
        found = _PATTERN.match(lines)
        end = found.end() if found else 0
        if end < len(lines):
            number, line = self._n_lines + lines.count(b"\n", 0, end) + 1, lines[end : lines.index(b"\n", end)]
            raise ValueError(f"line {number} is {line[:40]!r}, expected numbers")
        self._n_lines += lines.count(b"\n")
        return lines


@contextmanager
def _stream(file: InputFile) -> Iterator[Any]:
    with file.open() as stream:
        if file.suffixes[-1:] == [".gz"]:
            with gzip.open(stream) as unpacked:
                yield unpacked
        else:
            yield stream


def _open(file: InputFile, _: ReadOptions) -> LabelledArray:
    with file.open() as stream:
        size = stream.seek(0, 2) * (_GZIP_RATIO if file.suffixes[-1:] == [".gz"] else 1)
    with file_errors(file.name, "Matrix Market"):
        import scipy.io  # takes long to import

        with _stream(file) as stream:
            reader: Any = _Lines(stream)  # SciPy's types ask for more than reading
            n, m, n_stored, layout, field, symmetry = scipy.io.mminfo(reader)
        if field == "complex":
            raise DataError(f"{file.name} holds complex numbers, expected real ones; write their real part or size")
        if n < 1 or m < 1:
            raise DataError(f"{file.name} has the shape {n}×{m}, expected at least one row and one column")
        if n_stored * _ENTRY_BYTES[layout] // (1 if symmetry == "general" else 2) > size:
            raise DataError(f"{file.name} declares {n_stored} entries, for which the file is too short; export it again")
        dense = layout == "array"
        require_stored(file.name, (n, m), 8 * (n + m), size)
        copies = (1 if symmetry == "general" else 2) * 3
        require_memory(
            file.name, 16 * n * m if dense else copies * 16 * n_stored + 16 * (n + m), "write it as .h5ad, which is read by rows"
        )
        with _stream(file) as stream:
            reader = _Lines(stream)
            values = scipy.io.mmread(reader, spmatrix=False)
    return LabelledArray(values if dense else sp.csr_array(values), _labels(file, (n, m)), name=file.name)


def _labels(file: InputFile, shape: tuple[int, int]) -> tuple[NDArray[Any] | None, ...]:
    """Read the labels next to the file; if their number does not fit, they belong to another matrix."""
    return tuple(_beside(file, names, size) for names, size in zip(_LABEL_FILES, shape, strict=True))


def _beside(file: InputFile, names: tuple[str, ...], size: int) -> NDArray[Any] | None:
    own = Path(file.name).name
    prefix = own[: own.rindex("matrix.mtx")] if "matrix.mtx" in own else ""
    for name in (f"{prefix}{each}{suffix}" for each in names for suffix in (".gz", "")):
        location = file.location.with_name(name) if isinstance(file.location, Path) else f"{file.location.rpartition('/')[0]}/{name}"
        try:
            found = open_input(location)
        except StoreError:
            continue
        if not isinstance(found, InputFile):
            continue
        with file_errors(found.name, "a table of labels"), _stream(found) as stream:
            lines = csv.reader(io.TextIOWrapper(stream, "utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE)
            labels = [row[0] if row else "" for row in lines]
        if len(labels) != size:
            raise DataError(
                f"{found.name} has {len(labels)} lines, expected {size}, one for each label of {file.name}; remove or rename it"
            )
        return np.array(labels, dtype=object)
    return None


FORMATS = (Format("Matrix Market", (".mtx", ".mtx.gz"), _open, holds="array"),)
