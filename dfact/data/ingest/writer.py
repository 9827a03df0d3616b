"""DatasetWriter: write a dataset row by row, with at most one chunk in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from dfact.data.codebook import Codebook
from dfact.data.confounders import PlausibleRange
from dfact.data.dataset import KIND, Dataset, Fingerprint
from dfact.data.replicate_weights import ReplicateWeights
from dfact.data.sources.dense import ArraySource
from dfact.data.statistics import ColumnStatistics, as_float
from dfact.data.stored_dataset import confounder_arrays, write_metadata
from dfact.data.stored_values import CSRWriter, DenseWriter, ValuesWriter
from dfact.data.validation import EmptyRows, empty_row, first_outside, invalid_value, require_observed_columns
from dfact.data.variants import write_variants
from dfact.data.weights import check_weights
from dfact.errors import DataError
from dfact.storage.groups import create_group, update_attributes
from dfact.storage.location import Location

_LARGEST = np.finfo(np.float64).max


def missing_code_for(dtype: np.dtype[Any]) -> int | None:
    """Return the code that is stored for a missing integer; None for floats, for which it is NaN."""
    if dtype.kind not in "iu":
        return None
    return int(np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min)


def smallest_integer(low: float, high: float) -> np.dtype[Any] | None:
    """Return the smallest of uint8, int16 and int32 that holds low to high and a missing code; None if none does."""
    for dtype in (np.dtype(np.uint8), np.dtype(np.int16), np.dtype(np.int32)):
        limits = np.iinfo(dtype)
        lowest, highest = (0, limits.max - 1) if dtype.kind == "u" else (limits.min + 1, limits.max)
        if lowest <= low and high <= highest:
            return dtype
    return None


def storage_type(low: float, high: float, *, integers: bool) -> np.dtype[Any]:
    """Choose the type of stored values from low to high: the smallest integer for integers, else single, if necessary double precision."""
    if integers:
        return smallest_integer(low, high) or np.dtype(np.float64)
    return np.dtype(np.float32 if max(-low, high) <= np.finfo(np.float32).max else np.float64)


class DatasetWriter:
    """A writer of the rows of a dataset, in order; see :func:`dataset_writer`."""

    def __init__(
        self,
        group: zarr.Group,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        missing_code: int | None,
        column_labels: NDArray[Any],
        name: str,
        empty: EmptyRows | Literal["keep"],
        sparse: bool,
        implicit_value: float,
    ) -> None:
        self._group, self._shape, self._dtype, self._missing_code = group, shape, dtype, missing_code
        self._labels, self._name, self._empty, self._implicit_value = column_labels, name, empty, implicit_value
        self._values: ValuesWriter
        if sparse:
            self._values = CSRWriter(group, shape, dtype, missing_code, implicit_value)
        else:
            self._values = DenseWriter(group, shape, dtype, missing_code)
        self._written = self._received = 0
        self._kept: list[NDArray[np.intp]] = []
        self._fingerprint = Fingerprint(shape[1:], dtype, implicit_value)
        self.statistics = ColumnStatistics.of_columns(int(np.prod(shape[1:])))

    def append(self, rows: NDArray[Any] | sp.csr_array, limits: NDArray[np.float64] | None = None) -> None:
        """Add rows in stored units (missing entries as the missing code or NaN), each column within its ``limits`` (m, 2)."""
        values = as_float(rows, self._missing_code, np.result_type(self._dtype, np.float32))
        if limits is not None or self._dtype.kind == "f":
            low, high = (-_LARGEST, _LARGEST) if limits is None else limits.T
            outside = first_outside(values, low, high, self._implicit_value)
            if outside is not None:
                index, value = outside
                raise invalid_value(self._describe_entry(index), value, *((np.nan, np.nan) if limits is None else limits[index[1]]))
        keep = (self.statistics.update(values, self._implicit_value) > 0) | (self._empty == "keep")
        self._kept.append(self._received + np.flatnonzero(keep))
        self._received += values.shape[0]
        if not keep.all():
            if self._empty == "error":
                raise empty_row(self._name, f"row {self.statistics.empty_rows[0]}")
            rows = rows[keep]
        rows = rows.astype(self._dtype, copy=False)
        self._fingerprint.update(rows)
        self._values.append(rows)
        self._written += rows.shape[0]

    @property
    def store(self) -> Store:
        """Store of the dataset."""
        return self._group.store

    def create_values(self, sample: NDArray[Any], chunk_columns: int | None = None) -> zarr.Array[Any]:
        """Create the array of dense values for tasks that write its chunks, compressed as rows like ``sample`` need it.

        Their rows are then counted by :meth:`add_written`.
        """
        if not isinstance(self._values, DenseWriter):
            raise TypeError("the tasks that write values share no chunk, expected a dense dataset")
        return self._values.create(sample, chunk_columns)

    def add_written(self, n_rows: int, digests: bytes) -> None:
        """Add the next rows, which a task wrote, by the digests of their runs."""
        self._fingerprint.add_runs(n_rows, digests)
        self._written += n_rows

    def set_received(self, kept: NDArray[np.intp], n_rows: int, statistics: ColumnStatistics) -> None:
        """State which of ``n_rows`` received rows the tasks wrote, and the statistics of the stored values."""
        self._kept, self._received, self.statistics = [kept], n_rows, statistics

    def _describe_entry(self, index: tuple[int, ...]) -> str:
        modes = "".join(f", index {i}" for i in index[2:])
        return f"{self._name}: row {self._received + index[0]}, column {str(self._labels[index[1]])!r}{modes}"

    def finish(
        self,
        *,
        valid_range: NDArray[np.float64] | None = None,
        offset: NDArray[np.float64] | None = None,
        confounders: pd.DataFrame | None = None,
        row_labels: NDArray[Any] | None = None,
        mode_labels: tuple[NDArray[Any] | None, ...] = (),
        dropped_before: int = 0,
        codebook: Codebook | None = None,
        confounder_ranges: Mapping[str, PlausibleRange] | None = None,
        variants: pd.DataFrame | None = None,
        population: pd.Categorical | None = None,
        dropped_columns: int = 0,
        weights: "pd.Series[float] | None" = None,
        replicate_weights: ReplicateWeights | None = None,
    ) -> None:
        """Write the last rows and the metadata. Row labels, confounders, population and weights are those of all received rows.

        ``dropped_before`` counts the rows without any answer that were dropped before, ``dropped_columns`` the columns. The codebook
        describes some or all of the columns, the table of variants describes all.
        """
        if self._written == 0:
            raise DataError(f"{self._name} has no rows with answers, expected at least one")
        self._values.finish(self._written)
        kept = np.concatenate(self._kept)
        numbered = row_labels is None and len(kept) < self._received
        if numbered:
            row_labels = np.arange(self._received).astype(str).astype(object)
        statistics = self.statistics
        if self._empty != "keep":
            statistics.n_rows, statistics.n_empty_rows, statistics.empty_rows = self._written, 0, []
            if len(self._shape) == 2:
                require_observed_columns(self._name, self._labels, statistics.observed)
        n_columns = self._shape[1]
        if valid_range is None:
            valid_range = np.tile([statistics.minimum.min(), statistics.maximum.max()], (n_columns, 1))
        dataset = Dataset(
            ArraySource(np.empty((0, *self._shape[1:]), self._dtype)),
            self._missing_code,
            self._labels,
            valid_range,
            np.zeros(n_columns) if offset is None else offset,
            statistics,
            None if confounders is None else confounders.iloc[kept].reset_index(drop=True),
            labels=None if row_labels is None else np.asarray(row_labels, dtype=object)[kept],
            codebook=None if codebook is None else codebook.for_columns(self._labels),
            mode_labels=mode_labels,
            population=None if population is None else population.take(kept),
            weights=None if weights is None else _kept_weights(weights, kept),
            replicate_weights=None if replicate_weights is None else replicate_weights.take(kept),
        )
        write_metadata(self._group, dataset)
        if variants is not None:
            write_variants(self._group, variants)
        update_attributes(
            self._group,
            shape=[self._written, *self._shape[1:]],
            dtype=self._dtype.str,
            missing_code=self._missing_code,
            confounders=[] if confounders is None else [str(name) for name in confounders],
            confounder_arrays=[] if confounders is None else confounder_arrays(confounders),
            confounder_ranges={name: astuple(limits) for name, limits in (confounder_ranges or {}).items()},
            row_labels=row_labels is not None,
            codebook=codebook is not None,
            weights=None if weights is None else str(weights.name),
            replicate_weights=_describe_replicates(replicate_weights),
            dropped_rows=dropped_before + self._received - self._written,
            dropped_columns=dropped_columns,
            empty_rows=statistics.empty_rows,
            n_empty_rows=statistics.n_empty_rows,
            numbered_rows=numbered,  # these labels do not identify participants: join_datasets rejects them
            fingerprint=self._fingerprint.finish(dataset),
        )


def _describe_replicates(weights: ReplicateWeights | None) -> dict[str, Any] | None:
    """Return the attributes of replicate weights."""
    return None if weights is None else {"names": list(weights.names), "method": weights.method, "scales": weights.scales.tolist()}


def _kept_weights(weights: "pd.Series[float]", kept: NDArray[np.intp]) -> "pd.Series[float]":
    """Return the weights of the kept rows; a row that was dropped needs none."""
    remaining = weights.iloc[kept].reset_index(drop=True)
    check_weights(remaining, lambda i: f"row {kept[i]}")
    return remaining


@contextmanager
def _unicode_errors(name: str) -> Iterator[None]:
    """Translate the error that Python raises when it encodes a lone surrogate of UTF-16 in a label."""
    try:
        yield
    except UnicodeEncodeError as error:
        text = error.object[max(0, error.start - 40) : error.end]
        raise DataError(f"{name}: the label or name is {text!r}, expected valid Unicode; rename it") from error


@contextmanager
def dataset_writer(
    path: Location,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    missing_code: int | None,
    column_labels: NDArray[Any],
    name: str,
    empty: EmptyRows | Literal["keep"] = "error",
    sparse: bool = False,
    implicit_value: float = 0.0,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Yield a writer of the dataset at ``path``; the block must end with ``writer.finish()``.

    ``name`` is the name of the data in messages (the file, or "X"). A ``sparse`` dataset takes
    SciPy's CSR arrays in canonical form, with implicit entries of ``implicit_value``; a dense one takes NumPy arrays.
    ``empty`` states whether rows without any observed entry raise an error, are dropped or kept; "keep" also keeps
    such columns. The dataset exists at ``path`` once the block has succeeded; otherwise no part of it is left.
    """
    with create_group(path, KIND, overwrite=overwrite) as group, _unicode_errors(name):
        yield DatasetWriter(group, shape, dtype, missing_code, column_labels, name, empty, sparse, implicit_value)
