"""Reconstruction errors of a model on the data it was fitted to, by item."""

import numpy as np
import pandas as pd

from dfact.data.dataset import Dataset
from dfact.models.estimator import Factorization
from dfact.models.reconstruction import entries


def item_errors(model: Factorization, dataset: Dataset) -> pd.DataFrame:
    """Return for each item the number ``observed``, the share ``missing``, ``mean``, ``deviation``, ``rmse`` and ``explained``.

    ``mean`` and ``deviation`` describe the answers, ``rmse`` is the root mean squared error of the model's answers, and
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
    for blocks in entries(model, dataset, model.row_factors()):
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
