"""Hidden values: entries that a mask, a null or a declared code takes out of an array become missing."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.base import ArraySource, DenseSource, RowSource
from dfact.data.sources.sparse import CSRSource
from dfact.errors import DataError
from dfact.lazy import pd, sp
from dfact.storage.location import Location

_DOUBLE = 8
"""Bytes of a number in double precision; passes have no wider type."""


def float_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that holds numbers of this type and NaN: that of floats itself, at most in double precision."""
    if dtype.kind != "f":
        return np.result_type(dtype, np.float32)
    return dtype if dtype.itemsize <= _DOUBLE else np.dtype(np.float64)


def visible(values: Any) -> NDArray[Any]:
    """Return an array with its hidden entries as NaN, or as None among texts and objects; without any, the array itself.

    An array whose mask hides nothing gives its data without a copy, another one a single copy.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    data, mask = np.ma.getdata(values, subok=False), np.ma.getmask(values)
    if data.dtype.names is not None or not mask.any():  # a structured mask has no sum; such arrays are refused by their type
        return data
    if data.dtype.kind in "iufb":
        filled = data.astype(float_type(data.dtype).newbyteorder("="))
        filled[mask] = np.nan
    elif data.dtype.kind in "Mm":
        filled = data.copy()
        filled[mask] = "NaT"
    else:
        filled = data.astype(object)
        filled[mask] = None
    return filled


def visible_chunk(chunk: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a computed chunk of an array of this type with its hidden entries as NaN.

    Raises
    ------
    DataError
        The chunk hides entries, and the declared type has no NaN.
    """
    values = visible(chunk)
    if not isinstance(chunk, np.ma.MaskedArray) or values.dtype == dtype:
        return values
    if dtype.kind != "f":
        raise DataError(
            f"a computed chunk of the dask array X hides entries, and X is declared as an array of {dtype}, which has no NaN, expected a "
            "declaration of masked chunks; pass X.map_blocks(numpy.ma.asarray, meta=numpy.ma.empty(0, X.dtype)), or X.astype(float)"
        )
    return values.astype(dtype)


def visible_chunks(array: Any) -> Any:
    """Return a dask array whose chunks have NaN for hidden entries; each is converted when it is computed."""
    from dfact.internals.dask import chunk_type

    kind = chunk_type(array)
    if not issubclass(kind, np.ndarray):
        return array
    dtype = float_type(array.dtype) if issubclass(kind, np.ma.MaskedArray) and array.dtype.kind in "iufb" else array.dtype
    return array.map_blocks(visible_chunk, dtype, dtype=dtype, meta=np.empty((0,) * array.ndim, dtype))


def hides(array: Any) -> bool:
    """Return whether a dask array declares masked chunks."""
    from dfact.internals.dask import chunk_type

    return issubclass(chunk_type(array), np.ma.MaskedArray)


def is_hidden(value: Any) -> bool:
    """Return whether a single value is masked, None, NaN, or a missing value of pandas."""
    if value is None:
        return True
    if isinstance(value, np.ma.MaskedArray):
        return value.ndim == 0 and bool(np.ma.getmaskarray(value).any())
    scalar: Any = value
    return isinstance(value, (float, np.generic, *_missing_types())) and bool(pd.isna(scalar))


def _missing_types() -> tuple[type[Any], ...]:
    return type(pd.NA), type(pd.NaT)


def without_hidden(values: Iterable[Any]) -> list[Any]:
    """Return values with None for those that are hidden."""
    return [None if is_hidden(value) else value for value in values]


def visible_objects(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects with None for all missing ones; the array itself if only None and NaN mark missing ones."""
    flat = values.ravel()
    kinds = {type(value) for value in flat}
    if not any(issubclass(kind, (np.ma.MaskedArray, *_missing_types())) for kind in kinds):
        return values
    found = np.empty(flat.shape, object)
    for i, value in enumerate(flat):
        found[i] = None if is_hidden(value) else value[()] if isinstance(value, np.ma.MaskedArray) and value.ndim == 0 else value
    return found.reshape(values.shape)


def from_sequence(values: list[Any] | tuple[Any, ...], name: str = "X") -> NDArray[Any]:
    """Return a list of values or of rows as an array; hidden values in it are NaN, or None among texts.

    Raises
    ------
    DataError
        The rows have different lengths.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*converting a masked element to nan", UserWarning)
        try:
            array = _stacked(values) if _holds_masked(values) else np.asarray(values)
        except np.ma.MaskError:  # of a masked integer among others
            return visible_objects(np.asarray(values, object))
        except ValueError as error:
            found = f"{name} is a {type(values).__name__} of rows that form no array ({error})"
            raise DataError(f"{found}, expected rows of the same length; fill them with NaN") from error
    if array.dtype.kind in "USO":  # NumPy makes texts of masked elements among texts
        objects = np.asarray(values, object)
        shown = visible_objects(objects)
        return array if shown is objects and array.dtype != object else shown
    return visible(array)


def _holds_masked(values: Any) -> bool:
    """Return whether a list holds masked arrays, whose masks NumPy would drop."""
    nested = [each for each in values if isinstance(each, (list, tuple)) and len(each) and isinstance(each[0], (list, tuple, np.ndarray))]
    return any(isinstance(each, np.ma.MaskedArray) and each.ndim for each in values) or any(map(_holds_masked, nested))


def _stacked(values: Any) -> Any:
    """Return a list of masked arrays, or of lists of them, as a masked array."""
    if not isinstance(values, (list, tuple)):
        return np.ma.asanyarray(values)
    if any(isinstance(each, (list, tuple)) or np.ndim(each) for each in values):
        return np.ma.stack([_stacked(each) for each in values])
    return np.ma.asanyarray(from_sequence(values))


def declared_missing(attributes: Any) -> tuple[float, ...]:
    """Return the codes that the attributes ``_FillValue`` and ``missing_value`` declare as missing."""
    values = [np.ravel(attributes[name]) for name in ("_FillValue", "missing_value") if name in attributes]
    codes = [value for found in values if found.dtype.kind in "iuf" for value in found.tolist()]
    return tuple(dict.fromkeys(code for code in codes if code == code))  # NaN is missing in any case


def hide_codes(values: NDArray[Any], codes: tuple[float, ...], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Return an array with NaN for the entries that are one of the codes, of the given type, or if there are any, of floats."""
    values = visible(values)
    found = np.isin(values, np.array([code for code in codes if _is_of_type(code, values.dtype)], values.dtype))
    if not found.any():
        return values if dtype is None else values.astype(dtype, copy=False)
    filled = values.astype(float_type(values.dtype) if dtype is None else dtype)
    filled[found] = np.nan
    return filled


def _is_of_type(code: float, dtype: np.dtype[Any]) -> bool:
    """Return whether a value of this type may be the code; NumPy would wrap -999 to 25 in eight bits."""
    return dtype.kind == "f" or (float(code).is_integer() and np.iinfo(dtype).min <= code <= np.iinfo(dtype).max)


@dataclass(frozen=True, eq=False)
class CodedSource(DenseSource):
    """Rows of a source whose codes of missing entries become NaN when they are read."""

    source: RowSource
    codes: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return float_type(self.source.dtype)

    @property
    def chunk_rows(self) -> int | None:
        return self.source.chunk_rows

    @property
    def offset(self) -> int:
        return self.source.offset

    @property
    def location(self) -> Location | None:
        return self.source.location

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return hide_codes(self.source.read(start, stop), self.codes, self.dtype)

    def slice(self, rows: slice) -> CodedSource:
        return CodedSource(self.source.slice(rows), self.codes)


def coded_source(source: RowSource, codes: tuple[float, ...]) -> RowSource:
    """Return a source in which these codes are missing; one in memory is converted at once."""
    if not codes or source.dtype.kind not in "iuf":
        return source
    if isinstance(source, CSRSource):
        rows = source.values
        return replace(source, values=sp.csr_array((hide_codes(rows.data, codes), rows.indices, rows.indptr), shape=rows.shape))
    if isinstance(source, ArraySource):
        return ArraySource(hide_codes(source.values, codes))
    return CodedSource(source, codes)
