"""MATLAB files: version 4 to 7 through SciPy, version 7.3 as HDF5."""

from math import prod
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.memory_limit import require_memory
from dfact.data.sources.array import LabelledArray
from dfact.errors import DataError
from dfact.formats.hdf5_arrays import SIGNATURE, dense_source, open_file, sparse_source
from dfact.formats.isolation.parsers import Parser
from dfact.imports.readers.arrays.array_files import choose_array, file_errors, require_stored
from dfact.imports.readers.base import Format, ReadOptions, require_modules
from dfact.storage.input_files import InputFile

_NUMERIC = {"double", "single", "logical", "sparse", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
_TEXTS = {"char", "cell"}
_SPARSE_MEMBERS = ("data", "ir", "jc")


def _open(file: InputFile, options: ReadOptions) -> LabelledArray:
    start = file.read_start(len(SIGNATURE) + 512)
    if SIGNATURE in (start[:8], start[512:]):
        require_modules(file.name, ("h5py",), "arrays")
        with open_file(file) as opened:
            return read_hdf5(file, opened, options.object)
    import scipy.io

    with file_errors(file.name, "MATLAB"), file.open() as stream:
        source: Any = stream  # SciPy's types know paths only
        variables = {name: (shape, str(kind)) for name, shape, kind in scipy.io.whosmat(source)}
        name = _choose(file.name, variables, options.object)
        shape, kind = variables[name]
        size = stream.seek(0, 2)
        described = f"{name} of {file.name}"
        if kind == "sparse":
            require_stored(described, shape, 16 * sum(shape), size)
        else:
            require_stored(described, shape, 8 * prod(shape), size)
            require_memory(described, 16 * prod(shape), "save it with -v7.3, which is read by rows")
        stream.seek(0)
        # loadmat takes positions as they are: a conversion, which SciPy before 1.17 makes by default, would read beyond the entries.
        values = scipy.io.loadmat(source, variable_names=[name], chars_as_strings=True, spmatrix=False)[name]
        if kind == "sparse":
            values = sp.csc_array(values)
            if (np.diff(values.indptr) < 0).any():  # which check_format overlooks where the last position is 0
                raise DataError(f"{described} has positions of columns that descend; the file is damaged: save it again")
            values.check_format(full_check=True)
    if kind not in _NUMERIC:
        return LabelledArray(_texts(described, values), name=described)
    if np.iscomplexobj(values):
        raise DataError(f"{described} holds complex numbers, expected real ones; save abs({name}) or real({name})")
    return LabelledArray(values, name=described)


def _choose(file: str, variables: dict[str, tuple[tuple[int, ...], str]], name: str | None) -> str:
    """Choose a variable: of numbers, or of texts if it is named."""
    shapes = {key: shape for key, (shape, kind) in variables.items() if kind in _NUMERIC}
    if name is None and not shapes and variables:
        found = ", ".join(f"{key} {kind}" for key, (_, kind) in variables.items())
        raise DataError(f"{file} holds no arrays of numbers ({found}), expected one; save the numbers as a matrix")
    if name in variables and variables[name][1] not in _NUMERIC | _TEXTS:
        found = f"{name} of {file} is a {variables[name][1]}"
        raise DataError(f"{found}, expected an array of numbers; save the field or cell with the numbers as a variable of its own")
    return choose_array(file, shapes | ({name: variables[name][0]} if name in variables else {}), name)


def _texts(described: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix of characters or a cell array of texts as texts."""
    cells = [np.asarray(cell) for cell in np.ravel(values)] if values.dtype.kind == "O" else [values]
    if any(cell.dtype.kind != "U" for cell in cells):
        raise DataError(f"{described} is a cell array of other things than texts, expected an array of numbers; save it as a matrix")
    return np.array([str(text).rstrip() for cell in cells for text in np.ravel(cell)], dtype=object)


def read_hdf5(file: InputFile, opened: Any, name: str | None) -> LabelledArray:
    """Read an array of a file of version 7.3, whose axes HDF5 lists in reverse order."""
    variables = {key: (_shape(item), _class(item)) for key, item in opened.items() if not key.startswith("#")}
    name = _choose(file.name, variables, name)
    shape, kind = variables[name]
    item, described = opened[name], f"{name} of {file.name}"
    if kind in _TEXTS:
        return LabelledArray(np.array([_text(described, opened, cell) for cell in _cells(item, kind)], dtype=object), name=described)
    if kind == "sparse":
        n, m = shape
        if "data" not in item:
            raise DataError(f"{described} is a sparse matrix without entries, expected values; save it again")
        source = sparse_source(file, name, item, (n, m), members=_SPARSE_MEMBERS, by_rows=False)
        return LabelledArray(source, name=described)
    if "MATLAB_empty" in item.attrs:
        raise DataError(f"{described} is empty, expected numbers; save it again")
    if item.dtype.kind not in "biuf":
        raise DataError(f"{described} holds complex numbers, expected real ones; save abs({name}) or real({name})")
    return LabelledArray(dense_source(file, name, item, reverse=True), name=described)


def _class(item: Any) -> str:
    if "MATLAB_sparse" in item.attrs:
        return "sparse"
    kind = item.attrs.get("MATLAB_class", b"struct" if not hasattr(item, "dtype") else b"double")
    return kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)


def _shape(item: Any) -> tuple[int, ...]:
    if "MATLAB_sparse" in item.attrs:
        n_columns = item["jc"].shape[0] - 1 if "jc" in item else 0
        return int(item.attrs["MATLAB_sparse"]), n_columns
    return tuple(getattr(item, "shape", None) or ())[::-1]


def _cells(item: Any, kind: str) -> list[Any]:
    return [item] if kind == "char" else list(np.ravel(item[()].T))


def _text(described: str, opened: Any, cell: Any) -> str:
    import h5py

    item = opened[cell] if isinstance(cell, h5py.Reference) else cell
    if not hasattr(item, "dtype") or _class(item) != "char" or item.dtype.kind != "u":
        raise DataError(f"{described} is a cell array of other things than texts, expected an array of numbers; save it as a matrix")
    require_memory(described, 4 * item.size, "save fewer texts")
    return "" if "MATLAB_empty" in item.attrs else bytes(np.ravel(item[()]).astype("<u2")).decode("utf-16-le", "replace")


FORMATS = (Format("MATLAB", (".mat",), Parser("SciPy", ("scipy.io",)).in_child(_open), options=("object",), holds="array"),)
