"""Any X a user may hand to an estimator, as a Dataset."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import psutil
from numpy.typing import NDArray

from dfact.data.checks import first_fraction, first_outside
from dfact.data.confounders import as_frame
from dfact.data.dask_rows import dask_array, on_cluster
from dfact.data.dataset import Dataset, open_dataset
from dfact.data.import_array import LazySource, array_source, axis_labels
from dfact.data.source import ArraySource, Layout, RowSource, SparseRows, absent_of, path_of, read_rows, reads
from dfact.data.statistics import ColumnStatistics, as_floating
from dfact.errors import DataError

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Some rows of a larger array, with what is known of them there."""

    values: NDArray[Any]
    column_labels: NDArray[Any] | None
    row_labels: Any
    """Their labels, or their numbers as a range."""
    confounders: pd.DataFrame | None = None
    """In the form that a dataset has them, which follows from all rows."""


def as_dataset(X: Any, confounders: Any = None, client: "Client | None" = None) -> Dataset:
    """X (array of any kind, path, Dataset) with its statistics; ``confounders`` replace those of a stored dataset.

    A dask array is computed into memory or, with a ``client``, on its cluster, where it stays.
    """
    if isinstance(X, (str, PathLike)):
        X = open_dataset(X)
    dataset: Dataset = X if isinstance(X, Dataset) else _excerpt(X) if isinstance(X, Excerpt) else _wrap(X, client)
    return dataset if confounders is None else dataset.with_confounders(as_frame(confounders, dataset.shape[0]))


def _excerpt(rows: Excerpt) -> Dataset:
    dataset = replace(_wrap(rows.values), labels=rows.row_labels, confounders=rows.confounders)
    return dataset if rows.column_labels is None else replace(dataset, column_labels=rows.column_labels)


def _wrap(X: Any, client: "Client | None" = None) -> Dataset:
    found = array_source(X)
    if found.dtype.kind not in "iufb":
        raise DataError(f"X holds {found.dtype}, expected numbers, NaN where missing; encode text first or use dfact.import_table")
    if len(found.shape) < 2:
        raise DataError(f"X has shape {found.shape}, expected rows (participants) and columns (items)")
    n_columns = found.shape[1]
    labels = axis_labels(X, 1)
    source, statistics = _surveyed(X, found, client)
    seen = statistics.observed > 0
    limits = (statistics.minimum[seen].min(), statistics.maximum[seen].max()) if seen.any() else (0.0, 0.0)
    return Dataset(
        source=source,
        missing_code=None,
        column_labels=np.arange(n_columns).astype(str).astype(object) if labels is None else labels,
        valid_range=np.tile(np.asarray(limits, np.float64), (n_columns, 1)),
        offset=np.zeros(n_columns),
        statistics=statistics,
        path=path_of(source),
        labels=axis_labels(X, 0),
    )


def _surveyed(X: Any, found: RowSource | LazySource, client: "Client | None") -> tuple[RowSource, ColumnStatistics]:
    """How the passes read X, and its statistics."""
    lazy = dask_array(X)
    if client is not None and lazy is not None:
        return on_cluster(lazy, client)
    source = _computed(found) if isinstance(found, LazySource) else found
    return source, ColumnStatistics.of_source(source)


def _computed(source: Any) -> RowSource:
    """A dask array in memory, if it fits; reading it lazily would compute its graph anew in every pass."""
    size = int(np.prod(source.shape)) * source.dtype.itemsize
    free = psutil.virtual_memory().available
    if size > free / 2:
        raise DataError(
            f"X is a lazy array of {size / 2**30:.1f} GiB, half of the {free / 2**30:.1f} GiB free is the most that is read into memory; "
            "write it as a dataset first: dfact.import_array(X, path)"
        )
    return ArraySource(source.read(0, source.shape[0]))


def stored_as_observed(dataset: Dataset) -> Dataset:
    """The dataset with every entry missing that a row-compressed source does not store; any other, and one that is so, as it is.

    Columns and rows are counted anew, which reads the data once. Declared valid ranges stay.
    """
    source = dataset.source
    if not isinstance(source, SparseRows) or np.isnan(source.absent):
        return dataset
    source = replace(source, absent=np.nan)
    statistics = ColumnStatistics.of_source(source, dataset.missing_code)
    return replace(dataset, source=source, statistics=statistics, stored_fingerprint=None)


def locate(dataset: Dataset, find: Callable[[Any], tuple[tuple[int, ...], float] | None], *, shifted: bool = False) -> str:
    """Where the first entry is that ``find`` finds, in words; its value as it was given if ``shifted``, else as it is stored."""
    dtype = np.result_type(dataset.dtype, np.float32)
    for rows in reads(dataset.source, Layout.of(dataset.shape)):
        found = find(as_floating(read_rows(dataset.source, rows.start, rows.stop), dataset.missing_code, dtype))
        if found is not None:
            (i, j, *_), value = found
            value += float(dataset.offset[j]) if shifted else 0.0
            return f"row {dataset.row_labels[rows.start + i]!r}, column {str(dataset.column_labels[j])!r} holds {value:g}"
    return "no entry"


def locate_outside(dataset: Dataset, lowest: Any, highest: Any, *, shifted: bool = False) -> str:
    """Where the first observed entry outside [lowest, highest] is, one number or one for each column."""
    return locate(dataset, lambda values: first_outside(values, lowest, highest, absent_of(dataset.source)), shifted=shifted)


def locate_fraction(dataset: Dataset) -> str:
    """Where the first entry that is not a whole number is."""
    return locate(dataset, first_fraction)


def refuse_unobserved_columns(dataset: Dataset) -> None:
    """Refuse columns without any observed entry."""
    empty = np.flatnonzero(dataset.statistics.observed == 0)
    if empty.size:
        raise DataError(f"column {str(dataset.column_labels[empty[0]])!r} has no observed entry ({empty.size} in all); leave it out")


def warn_of_unobserved_rows(dataset: Dataset) -> None:
    """Warn of rows without any observed entry, whose factors are at the penalty's minimum."""
    statistics = dataset.statistics
    if statistics.n_empty_rows:
        first = dataset.row_labels[statistics.empty_rows[0]]
        text = f"row {first!r} has no observed entry ({statistics.n_empty_rows} in all): its factors are 0"
        warnings.warn(text, UserWarning, stacklevel=5)


def warn_of_unobserved_columns(dataset: Dataset) -> None:
    """Warn of columns without any observed entry, where a model can have them: their factors are at the penalty's minimum."""
    empty = np.flatnonzero(dataset.statistics.observed == 0)
    if empty.size:
        first = str(dataset.column_labels[empty[0]])
        text = f"column {first!r} has no observed entry ({empty.size} in all): its factors are 0"
        warnings.warn(text, UserWarning, stacklevel=5)


def refuse_infinite(dataset: Dataset) -> None:
    """Refuse infinite entries."""
    statistics = dataset.statistics
    seen = statistics.observed > 0
    if np.isinf(statistics.minimum[seen]).any() or np.isinf(statistics.maximum[seen]).any():
        raise DataError(f"X holds infinity: {locate_outside(dataset, -1e300, 1e300)}; expected finite entries, NaN where missing")


def refuse_huge(dataset: Dataset, dtype: np.dtype[Any]) -> None:
    """Refuse entries whose squares are beyond the working precision once some thousands of them are added up."""
    limit = 1e-3 * np.sqrt(float(np.finfo(dtype).max))
    statistics = dataset.statistics
    if max(-statistics.minimum.min(), statistics.maximum.max()) > limit:
        where = locate_outside(dataset, -limit, limit)
        raise DataError(f"X holds entries beyond {limit:.0e}, whose squares {dtype} does not hold: {where}; divide X by a number")
