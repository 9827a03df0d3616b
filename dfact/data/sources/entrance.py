"""The entrance of arrays: whatever a user passes as data, weights, labels or parameters becomes an array here, and nowhere else.

Entries that a mask, a null or a declared code hides are missing: NaN in data, None among labels. Where nothing may be missing, the
caller refuses NaN, or :func:`require_complete` does.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.array import LabelledArray
from dfact.data.sources.dask import dask_array
from dfact.data.sources.frames import as_pandas, frame_array, frame_numbers, is_dask_frame, refuse_containers
from dfact.data.sources.hidden import (
    declared_missing,
    float_type,
    from_sequence,
    hide_codes,
    hides,
    visible,
    visible_chunks,
    visible_objects,
    without_hidden,
)
from dfact.errors import DataError, DfactError
from dfact.lazy import is_data_frame, is_sparse, pd


def as_arrays(X: Any) -> Any:
    """Return data with hidden entries as NaN: data frames of any library as pandas frames of numbers, Dask frames as Dask arrays.

    Lists become arrays, and an array whose mask hides nothing is not copied. A Dask array stays lazy, and a Zarr array with a declared
    code of missing entries becomes a ``LabelledArray`` with that code. Anything else than an array, such as a path, is unchanged.

    The columns of a frame keep their names. The levels of ordered categories become the numbers 1, 2, …;
    :func:`dfact.data.sources.frames.frame_codebook` returns their labels. A lazy frame of polars is collected, and the lengths of a
    Dask frame's partitions are computed.

    Raises
    ------
    DataError
        The frame is none of rows and named columns: several levels of names, equal names, text, dates, categories without an order, an
        xarray Dataset, a Zarr group. A structured or complex array; a list of rows of different lengths.
    """
    if isinstance(X, (list, tuple)):
        X = from_sequence(X)
    X = _read_hdf5(X)
    if isinstance(X, np.ndarray):
        return _numbers(X)
    if is_sparse(X):
        return _visible_entries(X)
    X = as_pandas(X)
    if is_data_frame(X):
        return frame_numbers(X)
    if is_dask_frame(X):
        return frame_array(X)
    refuse_containers(X)
    return _lazy_numbers(X)


def lazy_array(X: Any) -> Any:
    """Return a Dask array, the Dask array of an xarray DataArray or a Dask frame as :func:`as_arrays` does; None for anything else."""
    return dask_array(as_arrays(X)) if is_dask_frame(X) or dask_array(X) is not None else None


def as_numbers(name: str, values: Any, expected: str = "numbers") -> NDArray[np.float64]:
    """Return numbers of any kind, such as weights or a parameter, as an array in double precision with NaN for hidden ones.

    Raises
    ------
    DataError
        A value is not a number.
    """
    if isinstance(values, (int, float)) or (type(values) is np.ndarray and values.dtype.kind in "iuf"):  # a subclass may have a mask
        return np.asarray(values, np.float64)
    try:
        if is_data_frame(frame := as_pandas(values)):
            return np.asarray(frame_numbers(frame).to_numpy(np.float64, na_value=np.nan))
        array = as_column(values, name)
        if isinstance(array, np.ndarray) and array.dtype != object:
            return np.asarray(array, np.float64)
        objects = np.asarray(array, object)
        return np.where(pd.isna(objects), np.nan, objects).astype(np.float64)
    except DfactError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} holds a value that is not a number ({error}), expected {expected}; correct it") from error


def as_column(values: Any, name: str = "X") -> Any:
    """Return labels, numbers or categories as an array: NaN for hidden numbers, None for hidden texts; series of pandas stay series.

    Boolean values stay such, so that they remain the same levels.
    """
    if "pandas" in sys.modules and isinstance(values, (pd.Series, pd.Index)):
        return _visible_series(values) if values.dtype == object else values
    values = _computed(values)
    if hasattr(values, "dims"):
        values = _visible_xarray(values).data
    if isinstance(values, (list, tuple)):
        scalars = any(isinstance(value, np.ma.MaskedArray) and not value.ndim for value in values)  # NumPy would make numbers of truths
        array = np.array(values, object) if scalars else from_sequence(values, name)
    else:
        if not hasattr(values, "__array__") and hasattr(values, "__arrow_c_stream__"):
            import pyarrow as pa

            values = pa.chunked_array(values)
        array = np.asanyarray(values)
    if isinstance(array, np.ma.MaskedArray) and array.dtype.kind == "b":
        array = array.astype(object)
    array = visible(array)
    return visible_objects(array) if array.dtype == object else array


def as_labels(name: str, values: Any, expected: str = "a label") -> list[Any]:
    """Return labels as a list; raise DataError if one is hidden or missing."""
    labels = known_labels(values)
    missing = next((i for i, label in enumerate(labels) if label is None), None)
    if missing is not None:
        raise DataError(f"{name} is missing at position {missing}, expected {expected} for each of {len(labels)}; name it")
    return labels


def known_labels(values: Any) -> list[Any]:
    """Return labels as a list, with None for those that are hidden or missing."""
    values = _computed(values)
    if hasattr(values, "dims") or (hasattr(values, "__arrow_c_stream__") and not hasattr(values, "__array__")):
        values = as_column(values)
    # Arrow's integers would become floats, and their labels "1.0".
    return without_hidden(values.to_pylist() if hasattr(values, "to_pylist") else values)


def _read_hdf5(X: Any) -> Any:
    """Return an open dataset of h5py in memory, with NaN for the codes that it declares as missing; anything else unchanged."""
    h5py = sys.modules.get("h5py")
    if h5py is None or not isinstance(X, h5py.Dataset):
        return X
    values = X.asstr()[()] if h5py.check_string_dtype(X.dtype) else X[()]
    return hide_codes(values, declared_missing(X.attrs)) if values.dtype.kind in "iuf" else values


def _computed(values: Any) -> Any:
    """Return a lazy column of Dask, or an open one of h5py, in memory, anything else unchanged."""
    values = _read_hdf5(values)
    return values.compute() if hasattr(values, "compute") and hasattr(values, "dask") and not hasattr(values, "dims") else values


def name_of(values: Any) -> str | None:
    """Return the name of a series or of a DataArray; None without one, or with an empty one, as polars has it.

    That of a Dask array is a key of its graph, and that of an open HDF5 dataset its place in the file.
    """
    is_keyed = hasattr(values, "chunks") and not (hasattr(values, "dims") and hasattr(values, "coords"))
    name = None if is_keyed else getattr(values, "name", None)
    return None if name in (None, "") else str(name)


def require_complete(name: str, values: NDArray[Any], expected: str, kind: type[DfactError] = DataError) -> None:
    """Raise an error that names the first entry that is not a finite number, if there is one."""
    invalid = np.argwhere(~np.isfinite(values))
    if invalid.size:
        at = tuple(invalid[0].tolist())
        found = "missing" if np.isnan(values[at]) else "infinite"
        raise kind(f"{name} is {found} at {at[0] if len(at) == 1 else at}, expected {expected}; correct it")


def _numbers(X: NDArray[Any]) -> NDArray[Any]:
    """Return an array of rows as numbers; other types than numbers stay, and are refused where their use is known."""
    if X.dtype.names is not None:
        fields = ", ".join(map(str, X.dtype.names))
        remedy = "pass numpy.lib.recfunctions.structured_to_unstructured(X), or pandas.DataFrame(X)"
        raise DataError(f"X is a structured array with the fields {fields}, expected an array of numbers; {remedy}")
    if X.dtype.kind == "c":
        raise DataError(f"Complex data not supported: X holds {X.dtype}, expected real numbers, NaN where missing; pass X.real")
    if isinstance(X, np.ma.MaskedArray):
        X = visible(X)
    if X.dtype.kind == "f":
        return X.astype(float_type(X.dtype), copy=False)
    return _object_numbers(X) if X.dtype == object else X


def _object_numbers(X: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects as numbers if they are numbers or missing, otherwise the array itself."""
    objects = visible_objects(X)
    try:
        return np.where(pd.isna(objects), np.nan, objects).astype(np.float64)
    except (TypeError, ValueError):  # of text, or of objects
        return X


def _visible_entries(X: Any) -> Any:
    """Return a sparse matrix whose stored entries are not masked."""
    if not isinstance(getattr(X, "data", None), np.ma.MaskedArray):
        return X
    shown = X.copy()
    shown.data = visible(X.data)
    return shown


def _lazy_numbers(X: Any) -> Any:
    """Return a Dask, xarray or Zarr array with hidden entries as NaN, which is not computed; anything else unchanged."""
    xarray, zarr = sys.modules.get("xarray"), sys.modules.get("zarr")
    if xarray is not None and isinstance(X, xarray.DataArray):
        return _visible_xarray(X)
    if zarr is not None and isinstance(X, zarr.Array):
        codes = declared_missing(X.attrs)
        return LabelledArray(X, missing=codes) if codes else X
    lazy = dask_array(X)
    return visible_chunks(lazy) if lazy is not None and hides(lazy) else X


def _visible_xarray(X: Any) -> Any:
    """Return a DataArray with NaN for masked entries, and for those that its attributes declare as missing."""
    codes = declared_missing(X.attrs) if X.dtype.kind in "iuf" else ()
    lazy = dask_array(X)
    if lazy is None:
        values = X.data
        shown = hide_codes(values, codes) if isinstance(values, np.ndarray) and values.dtype.kind in "iufb" else values
        return X if shown is values else X.copy(data=shown)
    shown = visible_chunks(lazy) if hides(lazy) else lazy
    if codes:
        dtype = float_type(shown.dtype)
        shown = shown.map_blocks(hide_codes, codes, dtype, dtype=dtype, meta=np.empty((0,) * shown.ndim, dtype))
    return X if shown is lazy else X.copy(data=shown)


def _visible_series(values: Any) -> Any:
    """Return a series or an index of objects with None for all its missing values."""
    objects = values.to_numpy()
    shown = visible_objects(objects)
    return values if shown is objects else pd.Series(shown, getattr(values, "index", None), name=values.name)
