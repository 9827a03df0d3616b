"""Matrix Market files, plain or gzipped, with the labels of rows and columns in files beside them."""

import csv
import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.readers.array_files import file_errors, require_memory, require_stored
from dfact.data.readers.base import Format, LabelledArray, ReadOptions
from dfact.errors import DataError, StoreError
from dfact.storage.input_files import InputFile, open_input

_GZIP_RATIO = 1032
_ENTRY_BYTES = {"coordinate": 4, "array": 2}
"""Least length of the text of an entry: "1 1" or "1", and the end of the line."""
_LABEL_FILES = (("features.tsv", "genes.tsv"), ("barcodes.tsv",))
"""Names of the files with the labels of rows and of columns, as Cell Ranger writes them."""


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
        with _stream(file) as stream:
            n, m, n_stored, layout, field, symmetry = scipy.io.mminfo(stream)
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
            values = scipy.io.mmread(stream)
    return LabelledArray(values if dense else sp.csr_array(values), _labels(file, (n, m)), name=file.name)


def _labels(file: InputFile, shape: tuple[int, int]) -> tuple[NDArray[Any] | None, ...]:
    """Read the labels beside the file; those whose number does not fit belong to another matrix."""
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


FORMATS = (Format("Matrix Market", (".mtx", ".mtx.gz"), _open, arrays=True),)
