"""Reconstruction errors of a model on the data it was fitted to, by item."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.sparse import to_dense
from dfact.data.statistics import as_float
from dfact.engine.threads import single_threaded
from dfact.errors import DataError
from dfact.models.estimator import Factorization


def item_errors(model: Factorization, dataset: Dataset) -> pd.DataFrame:
    """Return for each item the number ``observed``, the share ``missing``, ``mean``, ``deviation``, ``rmse`` and ``explained``.

    ``mean`` and ``deviation`` are those of the answers, ``rmse`` is the root mean squared error of the model's answers, and
    ``explained`` the share of the variance about the item's mean that the model explains. The items of a tensor are the slices
    of mode 2. For a model without ``inverse_transform`` the last two are left out.
    """
    m = len(model.column_labels_)
    count, total, squares, errors = np.zeros(m, np.int64), np.zeros(m), np.zeros(m), np.zeros(m)
    statistics = dataset.statistics
    observed = statistics.observed.reshape(m, -1) > 0
    low, high = (limit.reshape(m, -1) for limit in (statistics.minimum, statistics.maximum))
    middle = (np.where(observed, low, np.inf).min(axis=1) + np.where(observed, high, -np.inf).max(axis=1)) / 2
    shift = np.where(observed.any(axis=1), middle, 0) + dataset.offset
    for blocks in entries(model, dataset):
        M, R = (values.reshape(len(values), m, -1) - shift[:, None] for values in blocks)
        seen = ~np.isnan(M)
        count += seen.sum(axis=(0, 2))
        total += np.where(seen, M, 0).sum(axis=(0, 2))
        squares += np.where(seen, M * M, 0).sum(axis=(0, 2))
        errors += np.where(seen, (M - R) ** 2, 0).sum(axis=(0, 2))
    n = np.maximum(count, 1)
    variance = np.maximum(squares / n - (total / n) ** 2, 0)
    entries_of_item = np.prod(dataset.shape) // m
    table = pd.DataFrame({"observed": count, "missing": 1 - count / entries_of_item}, index=model.column_labels_.astype(str))
    table = table.rename_axis("item").assign(mean=total / n + shift, deviation=np.sqrt(variance))
    if hasattr(model, "inverse_transform"):
        share = np.divide(errors / n, variance, out=np.full(m, np.nan), where=variance > 1e-12 * (1 + (total / n) ** 2))
        table = table.assign(rmse=np.sqrt(errors / n), explained=1 - share)
    table.loc[count == 0, table.columns[2:]] = np.nan
    return table


def entries(model: Factorization, dataset: Dataset) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield blocks of the data (rows, …), NaN where missing, and their reconstruction; both in the units of the answers.

    Rows without factors are missing.
    """
    layout, offset = Layout.of(dataset.shape), dataset.offset.reshape(-1, *[1] * (len(dataset.shape) - 2))
    with single_threaded():  # products of blocks are too small to gain from more threads
        for rows in dataset.source.read_ranges(layout):
            chunk = dataset.source.read_native(rows.start, rows.stop)
            factors = np.asarray(model.row_factors()[rows])
            for start in range(0, chunk.shape[0], layout.block_rows):
                block = slice(start, min(start + layout.block_rows, chunk.shape[0]))
                part: Any = as_float(chunk[block], dataset.missing_code, np.dtype(np.float64))
                M = (part if isinstance(part, np.ndarray) else to_dense(part, dataset.source.implicit_value)) + offset
                R = _reconstruct(model, factors[block], dataset, slice(rows.start + block.start, rows.start + block.stop))
                M[np.isnan(factors[block]).any(axis=1)] = np.nan
                yield M, R if model.traits.original_units else R + offset


def _reconstruct(model: Factorization, factors: NDArray[Any], dataset: Dataset, rows: slice) -> NDArray[np.float64]:
    """Return the model's entries of a range of rows; zeros for a model without ``inverse_transform``."""
    if not hasattr(model, "inverse_transform"):
        return np.zeros((len(factors), *dataset.shape[1:]))
    factors = np.nan_to_num(factors.astype(np.float64))
    if getattr(model, "confounder_encoding_", None) is None:
        return np.asarray(model.inverse_transform(factors))
    if dataset.confounders is None:
        raise DataError(
            f"the data has no confounders, expected {list(model.confounder_encoding_.names)}; the model was fitted with confounders"
        )
    return np.asarray(model.inverse_transform(factors, confounders=dataset.confounders.iloc[rows]))
