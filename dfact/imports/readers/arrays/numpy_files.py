"""Arrays in NumPy's npy and npz files."""

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

from dfact.data.sources.array import LabelledArray
from dfact.errors import DataError, ParameterError
from dfact.imports.readers.arrays.array_files import choose_array
from dfact.imports.readers.base import Format, ReadOptions
from dfact.storage.input_files import InputFile

_BROKEN = (OSError, ValueError, EOFError, RuntimeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Exceptions of NumPy and of zipfile on files that are damaged, encrypted, or compressed with an unsupported method."""


def read_array_file(path: Path, key: str | None = None) -> NDArray[Any]:
    """Open the array in an npy file, memory-mapped, or read the array ``key`` of an npz file.

    Raises
    ------
    DataError
        The file is missing, is not a NumPy file, or contains Python objects, whose loading would run code.
    ParameterError
        The file has no array of this name, or several arrays and ``key`` is None.
    """
    try:
        if path.suffix.lower() == ".npy":
            if key is not None:
                raise ParameterError(f"{path} holds one array without a name, expected an .npz file with an array {key!r}; omit --object")
            return np.lib.format.open_memmap(path, mode="r")
        # NumPy leaves a file open that it has opened itself and cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            headers = {name: _read_header(loaded.zip, name) for name in loaded.files}
            name = choose_array(str(path), {name: shape for name, (shape, _) in headers.items()}, key)
            _check_size(loaded.zip, name, *headers[name])
            return np.asarray(loaded[name])
    except (ParameterError, MemoryError):
        raise
    except _BROKEN as error:
        remedy = "expected an .npy or .npz file of numbers, as numpy.save and numpy.savez write them"
        raise DataError(f"cannot read an array from {path}: {error}; {remedy}") from error


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    return archive.getinfo(name if name in archive.namelist() else f"{name}.npy")


def _read_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and the type that the header of an array declares."""
    with archive.open(_member(archive, name)) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    return shape, dtype


def _check_size(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ValueError if the header declares more bytes than the file has: NumPy allocates them all before it reads."""
    if not dtype.hasobject and prod(shape) * dtype.itemsize > _member(archive, name).file_size:
        raise ValueError(f"the header of {name!r} declares shape {shape}, for which the file is too short")


def _open(file: InputFile, options: ReadOptions) -> LabelledArray:
    return LabelledArray(
        read_array_file(file.keep_local(), options.object),
        name=file.name if options.object is None else f"{options.object} of {file.name}",
    )


FORMATS = (Format("NumPy arrays", (".npy", ".npz"), _open, options=("object",), holds="array"),)
