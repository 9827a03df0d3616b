"""Conversion of any X that an estimator accepts into a Dataset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.confounders import as_frame
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.memory_limit import free_memory
from dfact.data.sources.array import LabelledArray, array_source, axis_labels
from dfact.data.sources.base import ArraySource, LazySource, RowSource
from dfact.data.sources.dask import dask_array, persist_rows
from dfact.data.sources.entrance import as_arrays
from dfact.data.sources.frames import frame_codebook, is_dask_frame
from dfact.data.sources.hidden import coded_source
from dfact.data.sources.sparse import SparseSource
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_dataset import open_dataset
from dfact.errors import DataError
from dfact.lazy import pd

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Some rows of a larger array, with their labels and confounders from there."""

    values: NDArray[Any]
    column_labels: NDArray[Any] | None
    row_labels: Any
    """Labels of the rows, or their numbers as a range."""
    confounders: pd.DataFrame | None = None
    """Confounders in a dataset's form, which depends on all rows of the larger array."""


@dataclass(frozen=True, eq=False)
class _UnreadSource(LazySource):
    """A lazy array whose shape and type alone count, with the chunks of its dataset."""

    @property
    def chunk_rows(self) -> int | None:
        return Layout.of(self.shape).chunk_rows


def as_dataset(X: Any, confounders: Any = None, client: Client | None = None, *, reads: bool = True) -> Dataset:
    """Convert X (array of any kind, path, Dataset) into a Dataset; ``confounders`` replace the confounders of a stored dataset.

    A dask array is computed into memory, or with a ``client`` on its cluster, where the chunks stay. Without ``reads`` a lazy array
    stays as it is, for a plan: its columns of floating numbers count as if each lacked an entry.
    """
    if isinstance(X, (str, PathLike)):
        X = open_dataset(X)
    dataset: Dataset = X if isinstance(X, Dataset) else _from_excerpt(X) if isinstance(X, Excerpt) else _from_array(X, client, reads=reads)
    return dataset if confounders is None else dataset.with_confounders(as_frame(confounders, dataset.shape[0]))


def _from_excerpt(rows: Excerpt) -> Dataset:
    dataset = replace(_from_array(rows.values), labels=rows.row_labels, confounder_source=rows.confounders)
    return dataset if rows.column_labels is None else replace(dataset, column_labels=rows.column_labels)


def _from_array(X: Any, client: Client | None = None, *, reads: bool = True) -> Dataset:
    given, X = X, as_arrays(X)
    source = coded_source(array_source(X), X.missing) if isinstance(X, LabelledArray) else array_source(X)
    if source.dtype.kind not in "iufb":
        raise DataError(f"X holds {source.dtype}, expected numbers, NaN where missing; encode text first or use dfact.import_table")
    if len(source.shape) < 2:
        raise DataError(f"X has shape {source.shape}, expected two modes or more: rows and columns")
    n_columns = source.shape[1]
    labels = axis_labels(given if is_dask_frame(given) else X, 1)
    if isinstance(source, LazySource) and not reads:
        source, statistics = _UnreadSource(source.array), _assumed_statistics(source)
    else:
        source, statistics = _with_statistics(X, source, client)
    observed = statistics.observed > 0
    limits = (statistics.minimum[observed].min(), statistics.maximum[observed].max()) if observed.any() else (0.0, 0.0)
    return Dataset(
        source=source,
        missing_code=None,
        column_labels=np.arange(n_columns).astype(str).astype(object) if labels is None else labels,
        valid_range=np.tile(np.asarray(limits, np.float64), (n_columns, 1)),
        offset=np.zeros(n_columns),
        statistics=statistics,
        path=source.location,
        codebook=frame_codebook(X),
        labels=axis_labels(X, 0),
        mode_labels=tuple(axis_labels(X, axis) for axis in range(2, len(source.shape))),
    )


def _with_statistics(X: Any, source: RowSource, client: Client | None) -> tuple[RowSource, ColumnStatistics]:
    """Return the source that passes read, which is not lazy, and its statistics."""
    lazy = dask_array(X)
    if client is not None and lazy is not None:
        return persist_rows(lazy, client)
    source = _load_lazy(source) if isinstance(source, LazySource) else source
    return source, ColumnStatistics.of_source(source)


def _assumed_statistics(source: RowSource) -> ColumnStatistics:
    """Return the statistics of an array that is not read."""
    n, m = source.shape[0], int(np.prod(source.shape[1:]))
    observed = max(n - 1, 0) if source.dtype.kind == "f" else n
    return ColumnStatistics(np.full(m, observed), np.zeros(m), np.ones(m), n)


def _load_lazy(source: LazySource) -> RowSource:
    """Compute a lazy array into memory, if it fits: read lazily, every pass would compute its graph again."""
    size = int(np.prod(source.shape)) * source.dtype.itemsize
    free = free_memory()
    if size > free.size / 2:
        raise DataError(
            f"X is a lazy array of {size / 2**30:.1f} GiB, expected at most half of the {free}; "
            "write it as a dataset first: dfact.import_array(X, path)"
        )
    return ArraySource(source.read(0, source.shape[0]))


def implicit_as_missing(dataset: Dataset) -> Dataset:
    """Return the dataset with the implicit entries of a sparse source as missing; a dataset without such entries is unchanged.

    The statistics are recomputed, which reads the data once. Declared valid ranges stay.
    """
    source = dataset.source
    if not isinstance(source, SparseSource) or np.isnan(source.implicit_value):
        return dataset
    source = replace(source, implicit_value=np.nan)
    statistics = ColumnStatistics.of_source(source, dataset.missing_code)
    return replace(dataset, source=source, statistics=statistics, stored_fingerprint=None)
