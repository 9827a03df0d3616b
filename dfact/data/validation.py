"""What every import checks, and in which words it refuses."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.statistics import as_float
from dfact.errors import DataError, ParameterError

if TYPE_CHECKING:
    pass


def locate(dataset: Dataset, find: Callable[[Any], tuple[tuple[int, ...], float] | None], *, shifted: bool = False) -> str:
    """Where the first entry is that ``find`` finds, in words; its value as it was given if ``shifted``, else as it is stored."""
    dtype = np.result_type(dataset.dtype, np.float32)
    for rows in dataset.source.read_ranges(Layout.of(dataset.shape)):
        found = find(as_float(dataset.source.read_native(rows.start, rows.stop), dataset.missing_code, dtype))
        if found is not None:
            (i, j, *_), value = found
            value += float(dataset.offset[j]) if shifted else 0.0
            return f"row {dataset.row_labels[rows.start + i]!r}, column {str(dataset.column_labels[j])!r} holds {value:g}"
    return "no entry"


def locate_outside(dataset: Dataset, lowest: Any, highest: Any, *, shifted: bool = False) -> str:
    """Where the first observed entry outside [lowest, highest] is, one number or one for each column."""
    return locate(dataset, lambda values: first_outside(values, lowest, highest, dataset.source.implicit_value), shifted=shifted)


def locate_noninteger(dataset: Dataset) -> str:
    """Where the first entry that is not a whole number is."""
    return locate(dataset, first_noninteger)


def require_no_empty_columns(dataset: Dataset) -> None:
    """Refuse columns without any observed entry."""
    empty = np.flatnonzero(dataset.statistics.observed == 0)
    if empty.size:
        raise DataError(f"column {str(dataset.column_labels[empty[0]])!r} has no observed entry ({empty.size} in all); leave it out")


def warn_unobserved_rows(dataset: Dataset) -> None:
    """Warn of rows without any observed entry, whose factors are at the penalty's minimum."""
    statistics = dataset.statistics
    if statistics.n_empty_rows:
        first = dataset.row_labels[statistics.empty_rows[0]]
        text = f"row {first!r} has no observed entry ({statistics.n_empty_rows} in all): its factors are 0"
        warnings.warn(text, UserWarning, stacklevel=5)


def warn_unobserved_columns(dataset: Dataset) -> None:
    """Warn of columns without any observed entry, where a model can have them: their factors are at the penalty's minimum."""
    empty = np.flatnonzero(dataset.statistics.observed == 0)
    if empty.size:
        first = str(dataset.column_labels[empty[0]])
        text = f"column {first!r} has no observed entry ({empty.size} in all): its factors are 0"
        warnings.warn(text, UserWarning, stacklevel=5)


def require_finite(dataset: Dataset) -> None:
    """Refuse infinite entries."""
    statistics = dataset.statistics
    seen = statistics.observed > 0
    if np.isinf(statistics.minimum[seen]).any() or np.isinf(statistics.maximum[seen]).any():
        raise DataError(f"X holds infinity: {locate_outside(dataset, -1e300, 1e300)}; expected finite entries, NaN where missing")


def require_magnitude(dataset: Dataset, dtype: np.dtype[Any]) -> None:
    """Refuse entries whose squares are beyond the working precision once some thousands of them are added up."""
    limit = 1e-3 * np.sqrt(float(np.finfo(dtype).max))
    statistics = dataset.statistics
    if max(-statistics.minimum.min(), statistics.maximum.max()) > limit:
        where = locate_outside(dataset, -limit, limit)
        raise DataError(f"X holds entries beyond {limit:.0e}, whose squares {dtype} does not hold: {where}; divide X by a number")


EmptyRows = Literal["error", "drop"]


def check_empty_rows(empty_rows: str) -> None:
    if empty_rows not in get_args(EmptyRows):
        raise ParameterError(f"empty_rows is {empty_rows!r}, expected 'error' or 'drop'")


def column_limits(valid_range: Any, n_columns: int) -> NDArray[np.float64]:
    """(lowest, highest) valid value of every column (m, 2), from one pair or one for each column."""
    limits = np.asarray(valid_range, np.float64)
    if limits.shape not in ((2,), (n_columns, 2)):
        raise DataError(f"valid_range has shape {limits.shape}, expected (2,) or ({n_columns}, 2)")
    limits = np.broadcast_to(limits, (n_columns, 2))
    if not np.isfinite(limits).all():
        raise DataError("valid_range: the lowest and the highest valid value must be finite")
    if not (limits[:, 0] <= limits[:, 1]).all():
        raise DataError("valid_range: the lowest valid value must not exceed the highest")
    return limits


def stored_limits(limits: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Limits rounded as the stored values are: 0.1 in single precision lies above 0.1."""
    return limits.astype(dtype).astype(np.float64) if dtype.kind == "f" else limits


def first_outside(
    values: NDArray[Any] | sp.csr_array, low: Any, high: Any, implicit_value: float = 0.0
) -> tuple[tuple[int, ...], float] | None:
    """Where the first entry is that is not within ``low`` to ``high``, one number or one for each column, and what it is.

    NaN is missing and nowhere outside. In a row-compressed matrix stored entries come first, then the zeros it does not store,
    unless these are ``implicit_value``: NaN.
    """
    if isinstance(values, np.ndarray):
        low, high = (np.reshape(limit, (-1, *(1,) * (values.ndim - 2))) for limit in (low, high))
        outside = np.argwhere((values < low) | (values > high))
        return (tuple(outside[0].tolist()), values[tuple(outside[0])]) if outside.size else None
    low, high = (np.broadcast_to(limit, values.shape[1]) for limit in (low, high))
    columns = values.indices
    wrong = np.flatnonzero((values.data < low[columns]) | (values.data > high[columns]))
    if wrong.size:
        first = int(wrong[0])
        row = int(np.searchsorted(values.indptr, first, side="right")) - 1
        return (row, int(columns[first])), values.data[first]
    if np.isnan(implicit_value):
        return None
    stored = np.bincount(columns, minlength=values.shape[1])
    no_zeros = np.flatnonzero(((low > 0) | (high < 0)) & (stored < values.shape[0]))
    if no_zeros.size:
        rows = np.arange(values.shape[0])
        with_entry = np.repeat(rows, np.diff(values.indptr))[columns == no_zeros[0]]
        return (int(np.setdiff1d(rows, with_entry)[0]), int(no_zeros[0])), 0.0
    return None


def first_noninteger(values: NDArray[Any] | sp.csr_array) -> tuple[tuple[int, ...], float] | None:
    """Where the first entry is that is not a whole number, and what it is."""
    entries = values if isinstance(values, np.ndarray) else values.tocoo()
    data = values if isinstance(values, np.ndarray) else values.data
    found = np.argwhere((data != np.rint(data)) & ~np.isnan(data))
    if not found.size:
        return None
    place = tuple(found[0].tolist())
    return (place if isinstance(entries, np.ndarray) else (int(entries.row[place]), int(entries.col[place]))), data[place]


def invalid_value(entry: str, value: float, low: float, high: float) -> DataError:
    """The error for a value that cannot be an answer."""
    if np.isinf(value):
        return DataError(f"{entry} is infinite; expected finite numbers, NaN or an empty cell where missing")
    remedy = "correct it, declare its code in missing=, or widen valid_range="
    return DataError(f"{entry} holds {value:g}, outside the valid range {low:g} to {high:g}; {remedy}")


def empty_row(name: str, place: str) -> DataError:
    return DataError(f"{name}: {place} has no answer at all; remove it, or pass empty_rows='drop'")


def require_observed_columns(name: str, labels: Any, observed: NDArray[np.int64]) -> None:
    empty = np.flatnonzero(observed == 0)
    if empty.size:
        names = ", ".join(repr(str(labels[j])) for j in empty[:5])
        more = f" and {empty.size - 5} more" if empty.size > 5 else ""
        have = "column {} has" if empty.size == 1 else "columns {} have"
        raise DataError(f"{name}: {have.format(names + more)} no answer at all; leave out what has none")
