"""HDF5 files of any program, and AnnData's .h5ad."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.array import LabelledArray
from dfact.data.sources.hidden import declared_missing
from dfact.errors import DataError
from dfact.formats import matlab, netcdf
from dfact.formats.hdf5_arrays import (
    HDF5,
    SIGNATURE,
    dense_source,
    dimension_labels,
    is_numeric,
    open_file,
    read_texts,
    sparse_source,
)
from dfact.imports.readers.arrays.array_files import choose_array
from dfact.imports.readers.base import Format, ReadOptions
from dfact.storage.input_files import InputFile

_MEMBERS = ("data", "indices", "indptr")
_AXES = {"X": ("obs", "var"), "layers": ("obs", "var"), "obsm": ("obs",), "varm": ("var",), "obsp": ("obs", "obs"), "varp": ("var", "var")}
"""Tables of an AnnData file whose rows name the modes of its arrays."""
_RAW_AXES = {"X": ("obs", "raw/var"), "varm": ("raw/var",)}
"""The same below the group ``raw``."""


def _open(file: InputFile, options: ReadOptions) -> LabelledArray:
    with open_file(file) as opened:
        if "_NCProperties" in opened.attrs:
            return netcdf.open_array(file, options)
        if any("MATLAB_class" in item.attrs for item in opened.values()):
            return matlab.read_hdf5(file, opened, options.object)
        arrays = _find_arrays(opened)
        annotated = file.suffixes[-1:] == [".h5ad"] or opened.attrs.get("encoding-type") == "anndata"
        name = None if options.object is None else options.object.strip("/")
        if annotated and name is None:
            if "X" not in arrays:
                others = ", ".join(other for other in arrays if other.partition("/")[0] in ("layers", "raw", "obsm"))
                expected = f"choose another array with object (--object): {others}" if others else "export it with values"
                raise DataError(f"{file.name} has no X, expected a matrix of observations × variables; {expected}")
            name = "X"
        candidates = {key: _shape(item) for key, item in arrays.items() if is_numeric(item) or _sparse_kind(item)}
        if name is None:
            name = choose_array(file.name, {key: shape for key, shape in candidates.items() if len(shape) > 1} or candidates, None)
        elif name not in arrays:
            choose_array(file.name, candidates, name)
        return _read(file, opened, name, arrays[name], annotated=annotated)


def _read(file: InputFile, opened: Any, name: str, item: Any, *, annotated: bool) -> LabelledArray:
    described = f"{name} of {file.name}"
    labels = _annotation_labels(opened, name) if annotated else ()
    kind = _sparse_kind(item)
    if kind:
        source = sparse_source(file, name, item, _shape(item), members=_MEMBERS, by_rows=kind == "csr")
        return LabelledArray(source, labels or _barcode_labels(item), name=described)
    if not is_numeric(item) or "categories" in item.attrs:
        return LabelledArray(read_texts(item), name=described)
    source_of_rows = dense_source(file, name, item)
    return LabelledArray(source_of_rows, labels or dimension_labels(item), declared_missing(item.attrs), name=described)


def _find_arrays(opened: Any) -> dict[str, Any]:
    """Return all arrays and sparse matrices by their paths; links to other files are not followed."""
    import h5py

    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        inside = name.rpartition("/")[0]
        if isinstance(item, h5py.Group):
            array = bool(_sparse_kind(item)) or item.attrs.get("encoding-type") == "categorical"
        else:
            array = isinstance(item, h5py.Dataset) and inside not in found
        if array:
            found[name] = item

    opened.visititems(visit)
    return found


def _sparse_kind(item: Any) -> str:
    """Return "csr" or "csc" for a group that holds a sparse matrix of AnnData or of Cell Ranger, else an empty text."""
    if hasattr(item, "dtype"):
        return ""
    encoding = str(item.attrs.get("encoding-type", item.attrs.get("h5sparse_format", "")))
    if encoding.startswith(("csr", "csc")):
        return encoding[:3]
    return "csc" if {*_MEMBERS, "shape", "barcodes"} <= set(item) else ""


def _shape(item: Any) -> tuple[int, ...]:
    if hasattr(item, "dtype"):
        return tuple(item.shape or ())
    shape = next((item.attrs[name] for name in ("shape", "h5sparse_shape") if name in item.attrs), None)
    sizes = item["shape"][:2] if shape is None and "shape" in item else shape
    if sizes is None or len(sizes) != 2:
        raise DataError(f"{item.name} declares no shape, expected the shape of a sparse matrix; the file is damaged: export it again")
    return tuple(int(size) for size in sizes)


def _annotation_labels(opened: Any, name: str) -> tuple[NDArray[Any] | None, ...]:
    """Read the names of observations and variables that belong to the modes of an array."""
    folder, _, rest = name.partition("/")
    tables = _RAW_AXES.get(rest.partition("/")[0], ()) if folder == "raw" else _AXES.get(folder, ())
    return tuple(_index(opened[table]) if table in opened else None for table in tables)


def _index(table: Any) -> NDArray[Any] | None:
    """Read the names of the rows of a table: a group of columns, or in early files a dataset of records."""
    if hasattr(table, "dtype"):
        names = table.dtype.names or ()
        field = next((name for name in ("index", "_index") if name in names), None)
        return None if field is None else _decoded(table[field])
    name = str(table.attrs.get("_index", "_index"))
    return read_texts(table[name]) if name in table else None


def _decoded(texts: NDArray[Any]) -> NDArray[Any]:
    decoded = [text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in texts]
    labels: NDArray[Any] = np.array(decoded, dtype=object)
    return labels


def _barcode_labels(group: Any) -> tuple[NDArray[Any] | None, ...]:
    """Read the features and barcodes of a matrix of Cell Ranger."""
    features = group.get("features/id", group.get("genes"))
    barcodes = group.get("barcodes")
    return tuple(None if each is None else read_texts(each) for each in (features, barcodes))


FORMATS = (
    Format(
        "HDF5",
        (".h5", ".hdf5", ".h5ad"),
        HDF5.in_child(_open),
        options=("object",),
        signatures=((0, SIGNATURE), (512, SIGNATURE)),
        extra="arrays",
        modules=("h5py",),
        holds="array",
    ),
)
