"""Data frames of any library as frames of numbers, with the labels of ordered categories."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.codebook import Codebook, Item
from dfact.data.sources.hidden import visible_objects
from dfact.errors import DataError
from dfact.lazy import is_data_frame, pd

ORDERED = "dfact.ordered"
"""Key in the attributes of a frame: the levels of its columns of ordered categories, by column."""
_DOUBLE = 8
"""Bytes of a number in double precision; passes have no wider type."""
_PROTOCOLS = ("__arrow_c_stream__", "__dataframe__")
"""Methods by which a frame of another library gives its columns: Arrow's stream, and the older interchange of data frames."""
_NULLABLE = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")


def collected(X: Any) -> Any:
    """Return a lazy frame of polars as a frame in memory, anything else unchanged."""
    polars = sys.modules.get("polars")
    return X.collect() if polars is not None and isinstance(X, polars.LazyFrame) else X


def as_pandas(X: Any) -> Any:
    """Return a frame of another library, or a lazy frame of polars, as one of pandas; anything else unchanged."""
    X = collected(X)
    # A series has a stream, too, and so has an array of xarray.
    is_foreign = any(hasattr(X, name) for name in _PROTOCOLS) and not hasattr(X, "dims") and len(getattr(X, "shape", ())) != 1
    return _from_arrow(X) if is_foreign and not (is_data_frame(X) or is_dask_frame(X) or _is_arrow_array(X)) else X


def _is_arrow_array(X: Any) -> bool:
    """Return whether X is a single column of Arrow."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(X, (arrow.Array, arrow.ChunkedArray))


def is_dask_frame(X: Any) -> bool:
    """Return whether X is a Dask DataFrame."""
    return hasattr(X, "to_dask_array") and hasattr(X, "dtypes") and hasattr(X, "columns")


def frame_codebook(X: Any) -> Codebook | None:
    """Return the levels of a frame that :func:`frame_numbers` returned; None without ordered categories of text."""
    levels: dict[str, tuple[str, ...]] = X.attrs.get(ORDERED, {}) if is_data_frame(X) else {}
    if not levels:
        return None
    names = [str(name) for name in X.columns]
    return Codebook(tuple(Item(name, levels=tuple((float(i), text) for i, text in enumerate(levels.get(name, ()), 1))) for name in names))


def index_texts(index: pd.Index[Any]) -> NDArray[Any]:
    """Return the labels of an index as texts; those of several levels are joined by a slash."""
    if isinstance(index, pd.MultiIndex):
        return np.asarray(["/".join(map(str, each)) for each in index], dtype=object)
    return index.astype(str).to_numpy(dtype=object)


def _from_arrow(X: Any) -> pd.DataFrame:
    """Convert a frame of another library; columns of integers with missing values keep their type, as a nullable one."""
    import pyarrow as pa

    nullable: dict[Any, Any] = {getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")() for name in _NULLABLE}
    nullable[pa.bool_()] = pd.BooleanDtype()
    try:
        table = pa.table(X) if hasattr(X, "__arrow_c_stream__") else _interchanged(X)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"X is a {type(X).__name__} that cannot be read as a table ({error}); pass a frame of rows and columns") from error
    require_unique([str(name) for name in table.column_names])
    frame: pd.DataFrame = table.to_pandas(types_mapper=nullable.get)
    for name, field in zip(table.column_names, table.schema, strict=True):  # pandas keeps the order that a type alone declares
        if isinstance(frame[name].dtype, pd.CategoricalDtype) and is_enum(field):
            frame[name] = frame[name].cat.as_ordered()
    return frame


def _interchanged(X: Any) -> Any:
    """Return a frame that has the interchange of data frames alone as a table of Arrow."""
    from pyarrow.interchange import from_dataframe

    return from_dataframe(X)


def is_enum(field: Any) -> bool:
    """Return whether polars declares the categories of a column as fixed, in their order."""
    return any(key.startswith(b"_PL_ENUM") for key in field.metadata or {})


def frame_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with all its columns as numbers; the same one if they are."""
    if isinstance(frame.columns, pd.MultiIndex):
        raise DataError(
            f"X has columns of {frame.columns.nlevels} levels, expected a single name for each column; "
            "join them first: X.columns = ['_'.join(map(str, name)) for name in X.columns]"
        )
    require_unique([str(name) for name in frame.columns])
    converted: dict[Any, Any] = {}
    ordered: dict[str, tuple[str, ...]] = {}
    for name, kind in frame.dtypes.items():
        wide = kind.kind == "f" and getattr(kind, "itemsize", _DOUBLE) > _DOUBLE
        if pd.api.types.is_numeric_dtype(kind) and kind.kind != "c" and not wide:
            continue
        values = frame[name]
        if isinstance(kind, pd.CategoricalDtype):
            converted[name], levels = _levels(str(name), values)
            if levels:
                ordered[str(name)] = levels
        else:
            converted[name] = _parse(str(name), values)
    if not converted:
        return frame
    numbers = frame.copy(deep=False)
    for name, values in converted.items():
        numbers[name] = values
    numbers.attrs = {**frame.attrs, ORDERED: ordered}
    return numbers


def _levels(name: str, values: pd.Series[Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the numbers of categories, NaN where missing, and the texts that they stand for, if they are texts."""
    categories = values.cat.categories
    if pd.api.types.is_numeric_dtype(categories.dtype):
        return values.astype(np.float64), ()
    if not values.cat.ordered:
        raise DataError(
            f"column {name!r} of X holds {len(categories)} categories without an order, expected numbers or ordered categories; "
            "order them (ordered=True), or make an item of each with dfact.expand_categories"
        )
    codes = values.cat.codes.to_numpy()
    return pd.Series(np.where(codes < 0, np.nan, codes + 1.0).astype(np.float32), values.index), tuple(map(str, categories))


def _parse(name: str, values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of another type as numbers, if its values are numbers."""
    kind = values.dtype
    if kind.kind in "OTU" or isinstance(kind, pd.StringDtype):
        values = pd.Series(visible_objects(values.to_numpy()), values.index) if kind.kind == "O" and isinstance(kind, np.dtype) else values
        try:
            return pd.to_numeric(values).astype(np.float64)
        except (TypeError, ValueError):
            found = "text or values of several types"
    elif kind.kind == "f":
        return values.astype(np.float64)
    else:
        found = str(kind)
    remedy = "leave it out, encode it as numbers, or make its texts ordered categories"
    raise DataError(f"column {name!r} of X holds {found}, expected numbers, NaN where missing; {remedy}") from None


def require_unique(names: list[str], name_of_frame: str = "X") -> None:
    """Raise DataError if two columns have the same name."""
    known: set[str] = set()
    for name in names:
        if name in known:
            raise DataError(
                f"{name_of_frame} has {names.count(name)} columns of the name {name!r}, expected a name of its own for each; rename them"
            )
        known.add(name)


def frame_array(frame: Any) -> Any:
    """Return a Dask frame as an array of known shape."""
    for name, kind in frame.dtypes.items():
        if not pd.api.types.is_numeric_dtype(kind):
            raise DataError(f"column {str(name)!r} of X holds {kind}, expected numbers, NaN where missing; leave it out or encode it")
    dtype = np.result_type(*map(_column_type, frame.dtypes))
    return frame.astype(dtype).to_dask_array(lengths=True)


def _column_type(kind: Any) -> np.dtype[Any]:
    """Return the type of a column's numbers, with NaN for a nullable type, as its values are not known yet."""
    dtype = np.dtype(getattr(kind, "numpy_dtype", kind))
    return dtype if dtype == kind or dtype.kind == "f" else np.result_type(dtype, np.float32)


def refuse_containers(X: Any) -> None:
    """Raise DataError for a collection of several arrays, with the line that passes one."""
    xarray, zarr = sys.modules.get("xarray"), sys.modules.get("zarr")
    if xarray is not None and isinstance(X, xarray.Dataset):
        names = [str(name) for name in X.data_vars]
        found = f"X is an xarray Dataset with the variables {', '.join(names) or 'none'}"
    elif zarr is not None and isinstance(X, zarr.Group):
        names = sorted(X.array_keys())
        found = f"X is a Zarr group with the arrays {', '.join(names) or 'none'}"
    else:
        return
    raise DataError(f"{found}, expected a single array; pass one of them: X[{names[0] if names else 'name'!r}]")
