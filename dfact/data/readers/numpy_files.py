"""Arrays in NumPy's files."""

import lzma
import struct
import tokenize
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError

_BROKEN = (OSError, ValueError, EOFError, RuntimeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""What NumPy and the zip reader raise on files that are damaged, encrypted, or packed in a way they do not know."""


def read_array_file(path: Path, key: str | None = None) -> NDArray[Any]:
    """The array in an .npy file, which stays on disk until it is read, or that named ``key`` in an .npz file.

    Raises
    ------
    DataError
        The file is missing, or none of NumPy's, or holds Python objects, which are code that would run.
    ParameterError
        The file has no array of this name, or several and no name was given.
    """
    try:
        found = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        if isinstance(found, np.ndarray):
            if key is not None:
                raise ParameterError(f"{path} holds one array without a name, expected an .npz file to take {key!r} of")
            return found
        with found:
            name = _only(path, found.files) if key is None else key
            if name not in found.files:
                raise ParameterError(f"{path} has no array {name!r}, expected one of {', '.join(found.files)}")
            _refuse_larger_than_it_is(found.zip, name)
            return np.asarray(found[name])
    except (ParameterError, MemoryError):
        raise
    except _BROKEN as error:
        remedy = "expected an .npy or .npz file of numbers, as numpy.save and numpy.savez write them"
        raise DataError(f"cannot read an array from {path}: {error}; {remedy}") from error


def _refuse_larger_than_it_is(archive: zipfile.ZipFile, name: str) -> None:
    """Refuse an array whose header says more bytes than there are: room for all of it is taken before the first is read."""
    member = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    if not dtype.hasobject and prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{name!r} is said to have shape {shape}, for which the file is too short")


def _only(path: Path, names: list[str]) -> str:
    if len(names) != 1:
        raise ParameterError(f"{path} holds {len(names)} arrays ({', '.join(names)}); say which (--key)")
    return names[0]
