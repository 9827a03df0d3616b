"""The contract of files with genotypes: packed variants, the individuals, and the tables next to them."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dfact.errors import DataError, StoreError
from dfact.genetics.kernels import MISSING
from dfact.imports.readers.arrays.array_files import file_errors
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.formats import open_content
from dfact.storage.input_files import InputFile, open_input, open_input_file

FAM_COLUMNS = ("family", "person", "father", "mother", "sex", "phenotype")
"""Columns of a .fam file, which has no header."""
_PACKED_CODES = np.full(MISSING + 1, 1, np.uint8)
_PACKED_CODES[:3] = 0, 2, 3


class GenotypeFile(ABC):
    """Genotypes of individuals at variants, in the order of the variants."""

    name: str
    """Name in messages."""
    variants: pd.DataFrame
    """Table with the columns of :data:`dfact.data.dataset.COLUMNS`."""
    persons: NDArray[np.object_]
    """Person ids."""
    labels: NDArray[np.object_]
    """Unique labels of the individuals: their ids, or family and individual id."""
    file: InputFile | None = None
    """The file, where it is one; a file of populations may lie next to it."""

    @property
    def multiallelic(self) -> NDArray[np.bool_]:
        """Whether each variant has more than two alleles."""
        return np.zeros(len(self.variants), np.bool_)

    @property
    def failing(self) -> NDArray[np.bool_]:
        """Whether each variant fails a filter of the file."""
        return np.zeros(len(self.variants), np.bool_)

    @cached_property
    def irregular(self) -> dict[int, tuple[int, str]]:
        """Variants with calls that do not have two alleles, among those that have been read: the kind of the first, and its individual.

        The kinds are those of :mod:`dfact.genetics.kernels`. Such calls are read as missing.
        """
        return {}

    @abstractmethod
    def read_packed(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the variants start to stop, packed as in :mod:`dfact.genetics.kernels`; those with more alleles hold any codes."""


def open_genotypes(source: str | PathLike[str]) -> GenotypeFile:
    """Open a file of genotypes, in the format of its suffix; raises what :func:`dfact.imports.readers.formats.open_table` raises."""
    _, genotypes = open_content(open_input(source), ReadOptions(), "genotypes")
    if not isinstance(genotypes, GenotypeFile):
        raise TypeError(f"a format of genotypes opened {genotypes!r}")
    return genotypes


def pack(genotypes: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Pack genotypes (variants, individuals), which are 0, 1, 2 or 9 = missing."""
    m, n = genotypes.shape
    codes = np.zeros((m, -(-n // 4) * 4), np.uint8)
    codes[:, :n] = _PACKED_CODES[genotypes]
    quads = codes.reshape(m, -1, 4)
    packed: NDArray[np.uint8] = quads[:, :, 0] | quads[:, :, 1] << 2 | quads[:, :, 2] << 4 | quads[:, :, 3] << 6
    return packed


def person_labels(file: str, families: NDArray[np.object_] | None, persons: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return unique labels: the individual ids if they are unique, else family_person, as PLINK writes them.

    Raises
    ------
    DataError
        Two individuals have the same ids.
    """
    labels = persons
    if families is not None and pd.Series(persons).duplicated().any():
        labels = np.array([f"{family}_{person}" for family, person in zip(families, persons, strict=True)], dtype=object)
    repeated = np.flatnonzero(pd.Series(labels).duplicated())
    if repeated.size:
        found = f"{file} holds the individual {labels[repeated[0]]!r} twice, expected distinct individuals"
        raise DataError(f"{found}; remove or rename one of them")
    return labels


def sibling(file: InputFile, suffixes: Sequence[str], required: bool = True) -> InputFile | None:
    """Find the first existing file with the name of ``file`` and another suffix; raise StoreError if there is none."""
    location, name = str(file.location), file.name
    name = name.removesuffix(".gz").removesuffix(".bgz")
    stem = location[: len(location) - len(file.name)] + name.rpartition(".")[0]
    for suffix in suffixes:
        try:
            return open_input_file(stem + suffix)
        except StoreError:
            continue
    if not required:
        return None
    expected = " or ".join(name.rpartition(".")[0] + suffix for suffix in suffixes)
    raise StoreError(f"{file} has no {' or '.join(suffixes)} file next to it, expected {expected}; copy it there")


def read_fields(file: InputFile, names: Sequence[str] | None, what: str, wanted: Collection[str] = ()) -> pd.DataFrame:
    """Read a text file whose fields are separated by blanks or tabs, as texts.

    Its columns have these ``names`` unless a line that begins with "#" names them; of those, only the ``wanted`` ones are read if
    there are any. Lines that begin with "##" are skipped.

    Raises
    ------
    DataError
        A line has fewer or more fields than the others, or a field is not UTF-8.
    """
    with file_errors(file.name, what), _open_text(file) as stream:
        header, skipped = _read_header(stream)
    if header is None and names is None:
        raise DataError(f"{file.name} has no line with the names of its columns, expected one that begins with '#'; export it again")
    separator = "\t" if header is not None else r"\s+"
    read = [number for number, name in enumerate(header or ()) if name in wanted] if wanted else None
    with file_errors(file.name, what), _open_text(file) as stream:
        table = pd.read_csv(
            stream,
            sep=separator,
            header=None,
            skiprows=skipped,
            usecols=read or None,
            dtype=str,
            keep_default_na=False,
            quoting=3,
            encoding="utf-8",
        )
    found = list(names or ()) if header is None else header if not read else [header[number] for number in read]
    empty = (table.isna() | (table == "")).to_numpy().any(axis=1)
    if table.shape[1] != len(found) or empty.any():
        short = np.flatnonzero(empty)
        line = f"line {skipped + int(short[0]) + 1} of {file.name}" if short.size else f"{file.name}"
        said = "fewer fields than the first line" if short.size else f"{table.shape[1]} columns"
        raise DataError(f"{line} has {said}, expected {len(found)} ({', '.join(found)}); export it again")
    return table.set_axis(found, axis="columns").astype(object)


@contextmanager
def _open_text(file: InputFile) -> Iterator[Any]:
    with file.open() as stream:
        if file.name.endswith(".zst"):
            yield pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd")
        else:
            yield stream


def _read_header(stream: Any) -> tuple[list[str] | None, int]:
    """Return the names in the line that begins with one "#", and the number of lines before the first record."""
    pending, skipped = b"", 0
    while True:
        window = stream.read(1 << 16)
        pending += window
        *lines, pending = pending.split(b"\n") if window else [pending, b""]
        for line in lines:
            if line.startswith(b"##"):
                skipped += 1
            elif line.startswith(b"#"):
                return line[1:].decode().rstrip("\r").split("\t"), skipped + 1
            else:
                return None, skipped
        if not window:
            return None, skipped


def parse_numbers(file: str, texts: "pd.Series[Any]", column: str, *, whole: bool, first_line: int = 1, what: str = "line") -> NDArray[Any]:
    """Return a column as numbers; raise DataError with the line (``what``) of the first text that is none."""
    pattern = r"[-+]?\d{1,18}" if whole else r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?"
    invalid = np.flatnonzero(~texts.str.fullmatch(pattern).to_numpy(bool))
    if invalid.size:
        found, kind = texts.iloc[int(invalid[0])], "whole number" if whole else "number"
        raise DataError(f"{what} {first_line + int(invalid[0])} of {file}: the {column} is {found!r}, expected a {kind}; correct it")
    return texts.to_numpy(object).astype(np.int64 if whole else np.float64)
