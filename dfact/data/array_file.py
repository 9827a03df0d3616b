"""Arrays in NumPy's files."""

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError


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
            return np.asarray(found[name])
    except (ParameterError, MemoryError):
        raise
    except (OSError, ValueError, EOFError, tokenize.TokenError, zipfile.BadZipFile, zlib.error) as error:
        remedy = "expected an .npy or .npz file of numbers, as numpy.save and numpy.savez write them"
        raise DataError(f"cannot read an array from {path}: {error}; {remedy}") from error


def _only(path: Path, names: list[str]) -> str:
    if len(names) != 1:
        raise ParameterError(f"{path} holds {len(names)} arrays ({', '.join(names)}); say which (--key)")
    return names[0]
