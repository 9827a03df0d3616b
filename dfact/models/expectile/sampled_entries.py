"""Entries of fitted models on a sample of rows: whether several expectiles are in order, and whether entries run away."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_SAMPLE = 1 << 22  # entries that are computed for each model
_CHUNK = 1 << 18  # of them at a time
_ROUNDING = 1e-6


class Fitted(Protocol):
    """A fitted model: the attributes that are read here, and the two that are set."""

    tau: float
    row_factors_: Any
    column_factors_: NDArray[Any]
    taus_: NDArray[np.float64]
    crossed_: NDArray[np.float64]


def sampled_entries(models: Sequence[Fitted]) -> Iterator[list[NDArray[Any]]]:
    """Yield the entries of evenly spaced rows for each model, chunk by chunk: all rows, or as many as have 4 million entries."""
    n, m = models[0].row_factors_.shape[0], len(models[0].column_factors_)
    rows = np.arange(0, n, max(1, -(-n * m // _SAMPLE)))
    step = max(1, _CHUNK // m)
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        yield [_take(model.row_factors_, chunk) @ model.column_factors_.T for model in models]


def record_crossings(models: Sequence[Fitted]) -> None:
    """Set ``taus_`` and ``crossed_`` of models of the same data with different τ; see :class:`dfact.ExpectileMF`."""
    taus = np.array([model.tau for model in models], np.float64)
    if len(models) < 2:
        return
    crossed, count = np.zeros((len(models), len(models))), 0
    for entries in sampled_entries(models):
        rounding = _ROUNDING * max(float(np.abs(part).max(initial=0)) for part in entries)
        count += entries[0].size
        for i, j in zip(*np.nonzero(taus[:, None] < taus), strict=True):
            crossed[i, j] += np.count_nonzero(entries[i] - entries[j] > rounding)
    shares = (crossed + crossed.T) / max(count, 1)
    for i, model in enumerate(models):
        model.taus_, model.crossed_ = np.delete(taus, i), np.delete(shares[i], i)


def root_mean_square(model: Fitted) -> float:
    """Return the root mean square of the sampled entries of a model."""
    squares, count = 0.0, 0
    for (entries,) in sampled_entries([model]):
        squares, count = squares + float(np.square(entries, dtype=np.float64).sum()), count + entries.size
    return float(np.sqrt(squares / max(count, 1)))


def _take(factors: Any, rows: NDArray[np.intp]) -> NDArray[Any]:
    """Return rows of an array in memory or in a store, each chunk of which is read once."""
    return np.asarray(factors.oindex[rows] if hasattr(factors, "oindex") else factors[rows])
