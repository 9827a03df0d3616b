"""Zarr stores of Dask, xarray and other programs, in Zarr format 2 or 3."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

from dfact.data.sources.array import LabelledArray
from dfact.data.sources.base import ZarrSource
from dfact.data.sources.hidden import declared_missing
from dfact.errors import DataError, ParameterError
from dfact.imports.readers.arrays.array_files import choose_array
from dfact.imports.readers.base import Format, ReadOptions
from dfact.imports.readers.zarr_input import check_codecs, invalid_chunks_as_errors, open_input_store
from dfact.storage.arrays import member, read_errors
from dfact.storage.groups import ATTRIBUTE
from dfact.storage.input_files import InputFolder

_PACKED = ("scale_factor", "add_offset", "_Unsigned")  # xarray's, of values that have to be decoded
_MAX_LABELS = 1 << 24  # a damaged shape has labels without end


def _open(folder: InputFolder, options: ReadOptions) -> LabelledArray:
    with read_errors(str(folder)), invalid_chunks_as_errors():
        opened = zarr.open(open_input_store(folder.location), mode="r")
        arrays = {} if isinstance(opened, zarr.Array) else _members(opened)
    if isinstance(opened, zarr.Array):
        if options.object is not None:
            raise ParameterError(f"{folder.name} holds one array without a name, expected none; omit --object")
        return _read(folder.name, opened, arrays)
    if isinstance(stored := opened.attrs.get(ATTRIBUTE), dict):
        raise DataError(f"{folder.name} holds a dfact {stored.get('kind')}, expected an array of another program; pass a dataset as it is")
    if opened.attrs.get("encoding-type") == "anndata":
        return _read_anndata(folder.name, opened, options.object or "X")
    shapes = {name: array.shape for name, array in arrays.items() if array.dtype.kind in "biuf"}
    tables = {name: shape for name, shape in shapes.items() if len(shape) > 1}
    wanted = options.object
    if wanted in arrays and wanted not in shapes:
        return LabelledArray(_texts(arrays[wanted]), name=f"{wanted} of {folder.name}")
    name = choose_array(folder.name, tables or shapes if wanted is None else shapes, wanted)
    return _read(f"{name} of {folder.name}", arrays[name], arrays)


def _members(group: zarr.Group) -> dict[str, zarr.Array[Any]]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*not recognized as a component", ZarrUserWarning)  # files of other programs
        names = sorted(group.array_keys())
    return {name: array for name in names if isinstance(array := member(group, name), zarr.Array)}


def _read_anndata(file: str, group: zarr.Group, name: str) -> LabelledArray:
    """Read a dense array of AnnData, such as layers/counts, with the names of its observations and variables."""
    with read_errors(file), invalid_chunks_as_errors():
        stored = group.get(name)
        axes = [found for axis in ("obs", "var") if isinstance(found := group.get(axis), zarr.Group)]
        named = [axis.get(str(axis.attrs.get("_index", "_index"))) for axis in axes]
    if not isinstance(stored, zarr.Array):
        held = "nothing" if stored is None else str(stored.attrs.get("encoding-type", "a group")).replace("_", " ")
        raise DataError(f"{file} is an AnnData store and holds {held} as {name!r}, expected a dense array; save it as .h5ad: write_h5ad")
    pairs = zip(named, stored.shape, strict=False)
    labels = tuple(_labels(each if isinstance(each, zarr.Array) else None, size) for each, size in pairs)
    return replace(_read(f"{name} of {file}", stored, {}), labels=labels)


def _read(name: str, array: zarr.Array[Any], arrays: dict[str, zarr.Array[Any]]) -> LabelledArray:
    check_codecs(name, array)
    if 0 in array.chunks:
        raise DataError(f"{name} has chunks of {array.chunks}, expected at least one entry; write the store again")
    if packed := [key for key in _PACKED if key in array.attrs]:
        raise DataError(f"{name} is packed ({packed[0]}), expected plain numbers; open it with xarray and pass it to dfact.import_array")
    dimensions: Any = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS") or ()
    labels = tuple(_labels(arrays.get(str(dimension)), size) for dimension, size in zip(dimensions, array.shape, strict=False))
    return LabelledArray(ZarrSource(array), labels, declared_missing(array.attrs), name=name)


def _labels(coordinate: zarr.Array[Any] | None, size: int) -> NDArray[Any] | None:
    """Read the coordinate of a dimension as texts; None if the store has none."""
    return None if coordinate is None or coordinate.shape != (size,) else _texts(coordinate)


def _texts(array: zarr.Array[Any]) -> NDArray[Any]:
    if array.size > _MAX_LABELS:
        raise DataError(f"{array.name} has {array.size} labels, expected at most {_MAX_LABELS}; the store is damaged: write it again")
    with read_errors(f"the array {array.name!r} of {array.store}"):
        values = np.ravel(np.asarray(check_codecs(str(array.name), array)[...]))
    return values.astype(object).astype(str).astype(object)  # NumPy casts no texts of variable width to texts of a fixed one


FORMATS = (Format("Zarr", (".zarr",), _open, options=("object",), folders=True, holds="array"),)
