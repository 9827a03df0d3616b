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

from dfact.data.readers.base import Format, LabelledArray, ReadOptions
from dfact.errors import DataError, ParameterError
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
        loaded = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if key is not None:
                raise ParameterError(
                    f"{path} holds one array without a name, expected an .npz file with an array {key!r}; omit key (--key)"
                )
            return loaded
        with loaded:
            name = _single_name(path, loaded.files) if key is None else key
            if name not in loaded.files:
                raise ParameterError(f"{path} has no array {name!r}, expected one of {', '.join(loaded.files)}")
            _check_size(loaded.zip, name)
            return np.asarray(loaded[name])
    except (ParameterError, MemoryError):
        raise
    except _BROKEN as error:
        remedy = "expected an .npy or .npz file of numbers, as numpy.save and numpy.savez write them"
        raise DataError(f"cannot read an array from {path}: {error}; {remedy}") from error


def _check_size(archive: zipfile.ZipFile, name: str) -> None:
    """Raise ValueError if the header declares more bytes than the file has: NumPy allocates them all before it reads."""
    member = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    if not dtype.hasobject and prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"the header of {name!r} declares shape {shape}, for which the file is too short")


def _single_name(path: Path, names: list[str]) -> str:
    if len(names) != 1:
        raise ParameterError(f"{path} holds {len(names)} arrays ({', '.join(names)}), expected one; choose one with key (--key)")
    return names[0]


def _open(file: InputFile, options: ReadOptions) -> LabelledArray:
    return LabelledArray(read_array_file(file.keep_local(), options.object))


FORMATS = (Format("NumPy arrays", (".npy", ".npz"), _open, options=("object",), arrays=True),)
