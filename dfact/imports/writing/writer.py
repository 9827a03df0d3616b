"""DatasetWriter: the one way to write a dataset, from rows in order or by tasks side by side, with at most one chunk in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

import numpy as np
import pandas as pd
import zarr
from numpy.typing import NDArray

from dfact.data.codebook import Codebook
from dfact.data.confounders import PlausibleRange
from dfact.data.dataset import KIND, Dataset, Genotypes, fingerprint
from dfact.data.replicate_weights import ReplicateWeights
from dfact.data.run_digests import RunDigests
from dfact.data.sources.base import ArraySource
from dfact.data.statistics import ColumnStatistics, as_float
from dfact.data.stored_dataset import CSRWriter, DenseWriter, write_metadata
from dfact.data.validation import EmptyRows, empty_row, first_outside, invalid_value, require_observed_columns
from dfact.data.weights import check_weights
from dfact.errors import DataError
from dfact.lazy import sp
from dfact.storage.groups import create_group, update_attributes
from dfact.storage.location import Location
from dfact.storage.seals import seal

Progress = Callable[[int, int], None]
"""Function of the rows that are written, and of all rows."""
_NO_GENOTYPES = Genotypes()
_LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Facts about the rows of a dataset, known once its values are stored."""

    n_received: int
    """Number of rows with those that were dropped."""
    kept: NDArray[np.intp]
    """Numbers of the stored rows among the received ones, ascending."""
    statistics: ColumnStatistics
    """Statistics of the received rows, in stored units."""
    digests: bytes
    """Digests of the runs of the stored rows."""


@dataclass(frozen=True, eq=False)
class Participants:
    """Facts about the received rows: each field has a value for each of them, in their order, or is None."""

    labels: NDArray[Any] | None = None
    confounders: pd.DataFrame | None = None
    confounder_ranges: Mapping[str, PlausibleRange] = field(default_factory=dict)
    """Declared ranges of confounders."""
    weights: pd.Series[float] | None = None
    replicate_weights: ReplicateWeights | None = None
    genotypes: Genotypes = _NO_GENOTYPES

    def take(self, kept: NDArray[np.intp]) -> Participants:
        """Return the facts about the rows of these numbers; raise DataError if one of them has an invalid weight."""
        population = self.genotypes.population
        weights = None if self.weights is None else self.weights.iloc[kept].reset_index(drop=True)
        if weights is not None:  # a row that was dropped needs none
            check_weights(weights, lambda i: f"row {kept[i]}")
        return replace(
            self,
            labels=None if self.labels is None else np.asarray(self.labels, dtype=object)[kept],
            confounders=None if self.confounders is None else self.confounders.iloc[kept].reset_index(drop=True),
            weights=weights,
            replicate_weights=None if self.replicate_weights is None else self.replicate_weights.take(kept),
            genotypes=self.genotypes if population is None else replace(self.genotypes, population=population.take(kept)),
        )


class DatasetWriter:
    """A writer of the values of a dataset, then of its metadata; see :func:`dataset_writer`.

    :meth:`write` stores rows that come in order. Tasks may instead store chunks of :meth:`create_values` side by side. In both cases
    :meth:`finish` takes what is known of the stored rows.
    """

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
        self.group = group
        self._shape, self._dtype, self._missing_code = shape, dtype, missing_code
        self._labels, self._name, self._empty, self._implicit_value = column_labels, name, empty, implicit_value
        self._values: DenseWriter | CSRWriter = (
            CSRWriter(group, shape, dtype, missing_code, implicit_value) if sparse else DenseWriter(group, shape, dtype, missing_code)
        )

    def write(
        self, batches: Iterable[NDArray[Any] | sp.csr_array], *, limits: NDArray[np.float64] | None = None, progress: Progress | None = None
    ) -> StoredRows:
        """Store all rows, which come in order, in stored units (missing entries as the missing code or NaN).

        Each column must lie within its ``limits`` (m, 2). ``progress`` is called with the rows done and their number.
        """
        statistics, digests = ColumnStatistics.of_columns(prod(self._shape[1:])), RunDigests(self._shape[1:])
        kept, n_received, n_written = [np.empty(0, np.intp)], 0, 0
        for batch in batches:
            values = as_float(batch, self._missing_code, np.result_type(self._dtype, np.float32))
            self._check_values(values, limits, n_received)
            keep = (statistics.update(values, self._implicit_value) > 0) | (self._empty == "keep")
            if self._empty == "error" and not keep.all():
                raise empty_row(self._name, f"row {statistics.empty_rows[0]}")
            rows: Any = (batch if keep.all() else batch[keep]).astype(self._dtype, copy=False)
            digests.update(rows)
            self._values.append(rows)
            kept.append(n_received + np.flatnonzero(keep))
            n_received += batch.shape[0]
            n_written += rows.shape[0]
            del batch, values, rows  # their memory is free while the next batch is read
            if progress is not None:
                progress(n_received, self._shape[0])
        if n_written:
            self._values.finish(n_written)
        return StoredRows(n_received, np.concatenate(kept), statistics, digests.finish())

    def _check_values(self, values: Any, limits: NDArray[np.float64] | None, first_row: int) -> None:
        """Raise DataError on an infinite value, or one outside the limits."""
        if limits is None and self._dtype.kind != "f":
            return
        low, high = (-_LARGEST, _LARGEST) if limits is None else limits.T
        outside = first_outside(values, low, high, self._implicit_value)
        if outside is not None:
            (row, column, *modes), value = outside
            slices = "".join(f", index {i}" for i in modes)
            entry = f"{self._name}: row {first_row + row}, column {str(self._labels[column])!r}{slices}"
            raise invalid_value(entry, value, *((np.nan, np.nan) if limits is None else limits[column]))

    def create_values(self, sample: NDArray[Any], chunk_columns: int | None = None) -> zarr.Array[Any]:
        """Create the array of dense values for tasks that write its chunks, compressed as rows like ``sample`` need it."""
        assert isinstance(self._values, DenseWriter)  # chunks of sparse values are ranges of entries, not of rows
        return self._values.create(sample, chunk_columns)

    def finish(
        self,
        rows: StoredRows,
        participants: Participants | None = None,
        *,
        valid_range: NDArray[np.float64] | None = None,
        offset: NDArray[np.float64] | None = None,
        mode_labels: tuple[NDArray[Any] | None, ...] = (),
        codebook: Codebook | None = None,
        dropped_rows: int = 0,
    ) -> None:
        """Write the metadata: of the columns, and of the participants, the received rows.

        ``dropped_rows`` counts the rows without any answer that were dropped before. The codebook describes some or all of the
        columns.
        """
        kept, n_columns = rows.kept, self._shape[1]
        if not len(kept):
            raise DataError(f"{self._name} has no rows with answers, expected at least one")
        people = (participants or Participants()).take(kept)
        numbered = people.labels is None and len(kept) < rows.n_received  # join_datasets rejects such labels
        statistics = self._stored_statistics(rows)
        if valid_range is None:
            valid_range = np.tile([statistics.minimum.min(), statistics.maximum.max()], (n_columns, 1))
        dataset = Dataset(
            # The shape and the type of the stored values, without their memory.
            ArraySource(np.broadcast_to(np.zeros((), self._dtype), (len(kept), *self._shape[1:]))),
            self._missing_code,
            self._labels,
            valid_range,
            np.zeros(n_columns) if offset is None else offset,
            statistics,
            people.confounders,
            dropped_rows=dropped_rows + rows.n_received - len(kept),
            codebook=None if codebook is None else codebook.for_columns(self._labels),
            confounder_ranges=people.confounder_ranges,
            weights=people.weights,
            replicate_weights=people.replicate_weights,
            labels=kept.astype(str).astype(object) if numbered else people.labels,
            mode_labels=mode_labels,
            genotypes=people.genotypes,
        )
        dataset = replace(dataset, stored_fingerprint=fingerprint(dataset, rows.digests, self._implicit_value))
        write_metadata(self.group, dataset, numbered_rows=numbered)

    def _stored_statistics(self, rows: StoredRows) -> ColumnStatistics:
        """Return the statistics of the stored rows; raise DataError on columns without any answer."""
        if self._empty == "keep":
            return rows.statistics
        if len(self._shape) == 2:
            require_observed_columns(self._name, self._labels, rows.statistics.observed)
        return replace(rows.statistics, n_rows=len(rows.kept), n_empty_rows=0, empty_rows=[])


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
    """Yield a writer of the dataset at ``path``; the block must end with :meth:`DatasetWriter.finish`.

    ``name`` is the name of the data in messages (the file, or "X"). A ``sparse`` dataset takes
    SciPy's CSR arrays in canonical form, with implicit entries of ``implicit_value``; a dense one takes NumPy arrays.
    ``empty`` states whether rows without any observed entry raise an error, are dropped or kept; "keep" also keeps
    such columns. The dataset exists at ``path`` once the block has succeeded; otherwise no part of it is left.
    """
    with create_group(path, KIND, overwrite=overwrite) as group, _unicode_errors(name):
        yield DatasetWriter(group, shape, dtype, missing_code, column_labels, name, empty, sparse, implicit_value)
        update_attributes(group, seal=seal(group))
