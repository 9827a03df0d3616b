"""Checks of values in imports and fits, and their messages: row and column, found, expected, remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.entrance import as_numbers
from dfact.data.statistics import ColumnStatistics, as_float
from dfact.errors import DataError, ParameterError, warn
from dfact.lazy import sp


def locate(dataset: Dataset, find: Callable[[Any], tuple[tuple[int, ...], float] | None], *, original_units: bool = False) -> str:
    """Describe the first entry that ``find`` returns: row, column and value, in the file's units or as stored."""
    dtype = np.result_type(dataset.dtype, np.float32)
    for rows in dataset.source.read_ranges(Layout.of(dataset.shape)):
        entry = find(as_float(dataset.source.read_native(rows.start, rows.stop), dataset.missing_code, dtype))
        if entry is not None:
            (i, j, *_), value = entry
            value += float(dataset.offset[j]) if original_units else 0.0
            return f"row {dataset.row_labels[rows.start + i]!r}, column {str(dataset.column_labels[j])!r} holds {value:g}"
    return "no entry"


def locate_outside(dataset: Dataset, lowest: Any, highest: Any, *, original_units: bool = False) -> str:
    """Describe the first observed entry outside [lowest, highest]; the limits are numbers or one for each column."""

    def find(values: Any) -> tuple[tuple[int, ...], float] | None:
        return first_outside(values, lowest, highest, dataset.source.implicit_value)

    return locate(dataset, find, original_units=original_units)


def locate_noninteger(dataset: Dataset) -> str:
    """Describe the first entry that is not a whole number."""
    return locate(dataset, first_noninteger)


def require_observed(dataset: Dataset) -> None:
    """Raise DataError on data whose entries are all missing; an empty array is refused by its shape."""
    if all(dataset.shape) and not dataset.statistics.observed.any():
        raise DataError(
            f"X ({'×'.join(map(str, dataset.shape))}) has no observed entry, expected at least one; "
            "check what hides them: NaN, a mask, or declared codes of missing entries"
        )


def require_variation(dataset: Dataset) -> None:
    """Raise DataError on rows in which no item varies, as every observed entry of an item is the same."""
    statistics = dataset.statistics
    if statistics.n_rows > 1 and len(dataset.shape) == 2 and bool(np.all(statistics.minimum == statistics.maximum)):
        labels, values = dataset.column_labels, statistics.minimum + dataset.offset
        listed = ", ".join(f"{str(label)!r} is {value:g}" for label, value in zip(labels[:3], values[:3], strict=False))
        boxes = "; boxes of which only those that are ticked have an answer are imported with empty_cells= (--empty-cells 0)"
        found = f"no item varies: {listed}{', …' if len(labels) > 3 else ''} in every row"
        raise DataError(f"{found}, expected different answers{boxes if statistics.missing_rate else ''}")


def require_no_empty_columns(dataset: Dataset) -> None:
    """Raise DataError on columns without any observed entry."""
    empty = np.flatnonzero(dataset.statistics.observed == 0)
    if empty.size:
        raise DataError(
            f"column {str(dataset.column_labels[empty[0]])!r} has no observed entry ({empty.size} in total), "
            "expected at least one; leave it out"
        )


def warn_unobserved_rows(dataset: Dataset) -> None:
    """Warn of rows without any observed entry, whose factors are the penalty's minimum."""
    statistics = dataset.statistics
    if statistics.n_empty_rows:
        if statistics.empty_rows:
            first = dataset.row_labels[statistics.empty_rows[0]]
            text = f"row {first!r} has no observed entry ({statistics.n_empty_rows} in total): its factors are 0"
        else:  # they are at other sites
            text = f"{statistics.n_empty_rows} rows have no observed entry: their factors are 0"
        warn(text)


def warn_unobserved_columns(dataset: Dataset) -> None:
    """Warn of columns without any observed entry, for models that accept them: their factors are the penalty's minimum."""
    empty = np.flatnonzero(dataset.statistics.observed == 0)
    if empty.size:
        first = str(dataset.column_labels[empty[0]])
        text = f"column {first!r} has no observed entry ({empty.size} in total): its factors are 0"
        warn(text)


def require_finite(dataset: Dataset) -> None:
    """Raise DataError on infinite entries."""
    statistics = dataset.statistics
    observed = statistics.observed > 0
    if np.isinf(statistics.minimum[observed]).any() or np.isinf(statistics.maximum[observed]).any():
        raise DataError(f"X holds infinity: {locate_outside(dataset, -1e300, 1e300)}; expected finite entries, NaN where missing")


def magnitude_limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the lowest and the highest size of entries whose squares can be summed in this precision.

    The limits leave a factor of a million for the number of entries. Products of such sums are always in double precision.
    """
    numbers, doubles = np.finfo(dtype), np.finfo(np.float64)
    highest = 1e-3 * min(float(numbers.max) ** 0.5, float(doubles.max) ** 0.25)
    return 1e3 * max(float(numbers.tiny) ** 0.5, float(doubles.tiny) ** 0.25), highest


def largest_magnitude(dataset: Dataset) -> float:
    """Return the size of the largest observed entry, 0 without any."""
    statistics = dataset.statistics
    return float(np.maximum(-statistics.minimum, statistics.maximum).max(initial=0))


def require_magnitude(dataset: Dataset, dtype: np.dtype[Any], *, fitted: bool) -> None:
    """Raise DataError on entries whose size leaves the range of the working precision, in which their squares are summed.

    The lower limit, on the largest entry, applies to data that a model is fitted to: rows near 0 may be transformed.
    """
    lowest, highest = magnitude_limits(dtype)
    largest = largest_magnitude(dataset)
    wider = ", or pass dtype='float64'" if dtype == np.float32 else ""
    if largest > highest:
        where = locate_outside(dataset, -highest, highest)
        raise DataError(
            f"X holds large entries: {where}; expected at most {highest:.0e}, as {dtype} overflows; divide X by a number{wider}"
        )
    if fitted and 0 < largest < lowest:
        found = f"X holds small entries alone: the largest has the size {largest:g}"
        raise DataError(f"{found}, expected at least {lowest:.0e}, as {dtype} underflows; multiply X by a number{wider}")


EmptyRows = Literal["error", "drop"]


def check_empty_rows(empty_rows: str) -> None:
    """Raise ParameterError on an invalid ``empty_rows``."""
    if empty_rows not in get_args(EmptyRows):
        raise ParameterError(f"empty_rows is {empty_rows!r}, expected 'error' or 'drop'")


def column_limits(valid_range: Any, n_columns: int) -> NDArray[np.float64]:
    """Return the lowest and highest valid value of every column (m, 2), from one pair or one for each column."""
    limits = as_numbers("valid_range", valid_range, "the lowest and the highest valid value")
    if limits.shape not in ((2,), (n_columns, 2)):
        raise DataError(f"valid_range has shape {limits.shape}, expected (2,) or ({n_columns}, 2)")
    limits = np.broadcast_to(limits, (n_columns, 2))
    if not np.isfinite(limits).all():
        raise DataError("valid_range: the lowest and the highest valid value must be finite")
    if not (limits[:, 0] <= limits[:, 1]).all():
        raise DataError("valid_range: the lowest valid value must not exceed the highest one")
    return limits


def fill_limits(declared: NDArray[np.float64], statistics: ColumnStatistics) -> NDArray[np.float64]:
    """Return the declared limits, and the common range of their answers for all columns without declared limits."""
    limits = declared.copy()
    undeclared = np.isinf(declared[:, 0])
    if undeclared.any():
        limits[undeclared] = statistics.minimum[undeclared].min(), statistics.maximum[undeclared].max()
    return limits


def stored_limits(limits: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Round limits as stored values are rounded: 0.1 in single precision exceeds 0.1."""
    return limits.astype(dtype).astype(np.float64) if dtype.kind == "f" else limits


def first_outside(
    values: NDArray[Any] | sp.csr_array, low: Any, high: Any, implicit_value: float = 0.0
) -> tuple[tuple[int, ...], float] | None:
    """Find the first entry outside [``low``, ``high``], numbers or one for each column; return its index and its value.

    NaN is missing, never outside. In a CSR matrix stored entries are searched first, then implicit zeros; implicit entries
    that are missing (``implicit_value`` NaN) are not searched.
    """
    if isinstance(values, np.ndarray):
        low, high = (np.reshape(limit, (-1, *(1,) * (values.ndim - 2))) for limit in (low, high))
        outside = np.argwhere((values < low) | (values > high))
        return (tuple(outside[0].tolist()), values[tuple(outside[0])]) if outside.size else None
    low, high = (np.broadcast_to(limit, values.shape[1]) for limit in (low, high))
    columns = values.indices
    invalid = np.flatnonzero((values.data < low[columns]) | (values.data > high[columns]))
    if invalid.size:
        first = int(invalid[0])
        row = int(np.searchsorted(values.indptr, first, side="right")) - 1
        return (row, int(columns[first])), values.data[first]
    if np.isnan(implicit_value):
        return None
    stored = np.bincount(columns, minlength=values.shape[1])
    invalid_zeros = np.flatnonzero(((low > 0) | (high < 0)) & (stored < values.shape[0]))
    if invalid_zeros.size:
        rows = np.arange(values.shape[0])
        with_entry = np.repeat(rows, np.diff(values.indptr))[columns == invalid_zeros[0]]
        return (int(np.setdiff1d(rows, with_entry)[0]), int(invalid_zeros[0])), 0.0
    return None


def first_noninteger(values: NDArray[Any] | sp.csr_array) -> tuple[tuple[int, ...], float] | None:
    """Find the first entry that is not a whole number; return its index and its value."""
    entries = values if isinstance(values, np.ndarray) else values.tocoo()
    data = values if isinstance(values, np.ndarray) else values.data
    fractional = np.argwhere((data != np.rint(data)) & ~np.isnan(data))
    if not fractional.size:
        return None
    index = tuple(fractional[0].tolist())
    return (index if isinstance(entries, np.ndarray) else (int(entries.row[index]), int(entries.col[index]))), data[index]


def invalid_value(entry: str, value: float, low: float, high: float) -> DataError:
    """Return the error for an infinite value or one outside the valid range."""
    if np.isinf(value):
        return DataError(f"{entry} is infinite, expected a finite number, or NaN or an empty cell where missing; correct it")
    remedy = "correct it, declare its code in missing= (--missing), or widen valid_range= (--valid-range)"
    return DataError(f"{entry} holds {value:g}, expected the valid range {low:g} to {high:g}; {remedy}")


def empty_row(name: str, position: str) -> DataError:
    """Return the error for a row without any answer."""
    return DataError(
        f"{name}: {position} has no answer, expected at least one; remove the row, or drop such rows: empty_rows='drop' (--empty-rows drop)"
    )


def require_observed_columns(name: str, labels: Any, observed: NDArray[np.int64]) -> None:
    """Raise DataError on columns without any answer."""
    empty = np.flatnonzero(observed == 0)
    if empty.size:
        names = ", ".join(repr(str(labels[j])) for j in empty[:5])
        rest = f" and {empty.size - 5} more" if empty.size > 5 else ""
        subject = "column {} has" if empty.size == 1 else "columns {} have"
        raise DataError(f"{name}: {subject.format(names + rest)} no answer, expected at least one; leave out such columns")
