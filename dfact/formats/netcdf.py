"""NetCDF files, classic and HDF5, through xarray."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.array import LabelledArray
from dfact.data.sources.hidden import declared_missing
from dfact.errors import DataError
from dfact.formats.file_source import FileSource
from dfact.formats.hdf5_arrays import SIGNATURE, dense_source, open_file
from dfact.formats.isolation.parsers import Parser
from dfact.imports.readers.arrays.array_files import choose_array, file_errors
from dfact.imports.readers.base import Format, ReadOptions
from dfact.storage.input_files import InputFile

_PARSER = Parser("xarray", ("xarray", "h5netcdf", "scipy.io"))
_CLASSIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_FLOAT_FILL = 9.969209968386869e36
_DEFAULT_FILLS = {"f": _FLOAT_FILL, "i2": -32767, "i4": -2147483647, "i8": -9223372036854775806}
"""Values of entries that were never written, by type; NetCDF defines none for bytes."""
_PACKED = {"scale_factor", "add_offset", "_Unsigned"}
"""Attributes of values that xarray decodes to floats, with NaN for missing entries."""


@contextmanager
def _dataset(file: InputFile, group: str, *, decoded: bool) -> Iterator[Any]:
    """Open a group with xarray, without reading its values."""
    import xarray as xr

    classic = file.read_start(4) in _CLASSIC
    with file_errors(file.name, "NetCDF"), file.open() as stream:
        # SciPy maps a classic file into memory if it has its path, and reads all of a stream.
        source: Any = str(file.location) if classic and isinstance(file.location, Path) else stream
        opened = xr.open_dataset(
            source,
            engine="scipy" if classic else "h5netcdf",
            mask_and_scale=decoded,
            decode_times=False,
            cache=False,
            **({} if classic else {"group": group or None}),
        )
        with opened:
            yield opened


@dataclass(frozen=True, eq=False)
class NetCDFSource(FileSource):
    """Rows of a variable."""

    parser = _PARSER
    decoded: bool = False
    """Whether the values are unpacked, with NaN for missing entries."""

    def read_stored(self, index: tuple[slice, ...]) -> NDArray[Any]:
        group, _, name = self.name.rpartition("/")
        with _dataset(self.file, group, decoded=self.decoded) as dataset:
            values: NDArray[Any] = dataset.variables[name][index].values
        return values


def open_array(file: InputFile, options: ReadOptions) -> LabelledArray:
    """Open a variable with its coordinates as labels and its fill values as missing codes."""
    chosen = None if options.object is None else options.object.strip("/")
    group, _, wanted = (chosen or "").rpartition("/")
    with _dataset(file, group, decoded=False) as dataset:
        sizes = {name: variable.shape for name, variable in dataset.variables.items() if variable.dtype.kind in "biuf"}
        arrays = {name: shape for name, shape in sizes.items() if len(shape) > 1 and name not in dataset.coords}
        if not arrays and chosen is None:
            raise DataError(
                f"{file.name} holds no variable of numbers with two or more dimensions, expected one; "
                "name a variable of a group with object (--object GROUP/NAME)"
            )
        if wanted in dataset.variables and wanted not in sizes:
            return LabelledArray(np.ravel(dataset.variables[wanted].values).astype(str).astype(object), name=f"{wanted} of {file.name}")
        name = choose_array(file.name, arrays if chosen is None else sizes, wanted or None)
        variable = dataset.variables[name]
        labels = tuple(_labels(dataset, dimension) for dimension in variable.dims)
        modes = " × ".join(f"{dimension} ({size})" for dimension, size in zip(variable.dims, variable.shape, strict=True))
        packed = bool(_PACKED & set(variable.attrs))
        missing = () if packed else declared_missing(variable.attrs)
        dtype, chunks = variable.dtype, variable.encoding.get("chunksizes")
    if packed:
        with _dataset(file, group, decoded=True) as dataset:
            dtype = dataset.variables[name].dtype
    path = f"{group}/{name}".lstrip("/")
    source = NetCDFSource(file, path, variable.shape, dtype.newbyteorder("="), chunks and tuple(chunks), decoded=packed)
    _check_size(file, path, source)
    fill = None if packed or missing else _DEFAULT_FILLS.get(dtype.kind, _DEFAULT_FILLS.get(dtype.str[1:]))
    return LabelledArray(
        source, labels, missing, () if fill is None else (fill,), name=f"{path} of {file.name}", notes=(f"{path}: {modes}",)
    )


def _check_size(file: InputFile, path: str, source: NetCDFSource) -> None:
    """Raise DataError if the header declares more values than the file holds."""
    if file.read_start(len(SIGNATURE)) == SIGNATURE:
        with open_file(file) as opened:
            dense_source(file, path, opened[path])
        return
    with file.open() as stream:
        source.check_size(stream.seek(0, 2))


def _labels(dataset: Any, dimension: str) -> NDArray[Any] | None:
    """Return the coordinates of a dimension as texts: times as dates where their units are known."""
    import xarray as xr

    if dimension not in dataset.coords or dataset.coords[dimension].dims != (dimension,):
        return None
    coordinate = dataset[[dimension]]
    try:
        values = xr.decode_cf(coordinate).coords[dimension].values
    except Exception:  # of any kind: units of times that no library knows leave the numbers
        values = coordinate.coords[dimension].values
    labels: NDArray[Any] = (np.datetime_as_string(values, unit="auto") if values.dtype.kind == "M" else values.astype(str)).astype(object)
    return labels


FORMATS = (
    Format(
        "NetCDF",
        (".nc", ".nc4"),
        _PARSER.in_child(open_array),
        options=("object",),
        signatures=((0, SIGNATURE), *((0, start) for start in _CLASSIC)),
        extra="arrays",
        modules=("xarray", "h5netcdf"),
        holds="array",
    ),
)
