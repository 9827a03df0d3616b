"""The fits of one fold of bi-cross-validation, to the rows and columns outside of the held-out block."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.sparse import SparseSource, to_dense
from dfact.data.statistics import as_float
from dfact.engine.memory_plan import WorkerResources
from dfact.linalg.svd import Matrix
from dfact.models.bounded_nmf.nmf import NMF
from dfact.selection.cross_validation.fold_fits import EstimatorFits, FoldTask, GroupResult, Score
from dfact.selection.cross_validation.folds import Folds
from dfact.selection.cross_validation.squared_errors import sum_squared_errors
from dfact.selection.running.estimators import with_parameters

_POSITION_BYTES = 8  # of a stored entry


@dataclass(frozen=True, eq=False)
class DisjointFits(EstimatorFits):
    """Fits of an NMF to the rows and columns outside of each block. Sparse data stays sparse, as no entry of a fit is masked."""

    def fits_in_memory(self, count: int, workers: WorkerResources) -> bool:
        source = self.task.dataset.source
        if not isinstance(source, SparseSource) or source.implicit_value != 0:
            return super().fits_in_memory(count, workers)
        size = source.n_stored * (self.task.dtype.itemsize + _POSITION_BYTES)
        return workers.baseline + size * (1 + 2 * workers.threads) <= workers.limit

    def prepare_in_memory(self) -> Callable[[FoldTask], Iterator[GroupResult]]:
        """Load the values; return the function that fits to a part of them."""
        dataset = self.task.dataset
        weights = None if dataset.weights is None else dataset.weights.to_numpy()
        M: Matrix = as_float(dataset.source.to_memory().read_native(0, dataset.shape[0]), dataset.missing_code, self.task.dtype)
        if not isinstance(M, np.ndarray) and dataset.source.implicit_value != 0:
            M = to_dense(M, dataset.source.implicit_value)
        return partial(_fit_fold, M, weights, self.folds, self.model, self.configurations)


def _fit_fold(
    M: Matrix,
    weights: NDArray[Any] | None,
    folds: Sequence[Folds],
    model: NMF,
    configurations: tuple[Mapping[str, Any], ...],
    which: FoldTask,
) -> Iterator[GroupResult]:
    """Fit to the rows and columns outside of the fold's block. Columns without an entry there predict nothing."""
    of_repeat = folds[which.repeat]
    [(row_block, column_block)] = np.argwhere(of_repeat.fold_of_block == which.fold)
    rows, columns = of_repeat.rows == row_block, of_repeat.columns == column_block
    inside, training, beside = M[rows], M[~rows][:, ~columns], M[~rows][:, columns]
    kept = ~np.isnan(training).all(axis=0) if isinstance(training, np.ndarray) else np.ones(training.shape[1], bool)
    above = inside[:, ~columns][:, kept]
    for number in range(which.n_done, len(configurations)):
        began = time.perf_counter()
        fitted = with_parameters(model, **configurations[number], executor="inline", callbacks=())
        fitted.fit(_contiguous(training[:, kept]), sample_weight=None if weights is None else weights[~rows])
        Q = fitted.column_loadings(_contiguous(beside), sample_weight=None if weights is None else weights[~rows])
        W = np.asarray(fitted.transform(_contiguous(above)))
        squares, count = _squared_errors(inside[:, columns], W, Q, None if weights is None else weights[rows])
        yield number, [Score(squares, count, time.perf_counter() - began, fitted.n_iter_)], np.empty(0)


def _squared_errors(M: Matrix, W: NDArray[Any], Q: NDArray[Any], weights: NDArray[Any] | None) -> tuple[float, float]:
    """Return the squared errors of the model of the factors W (n, k) and the loadings Q (m, k), block by block, and their number."""
    parts, step = [], Layout.of((len(W), len(Q))).block_rows
    for start in range(0, len(W), step):
        part = slice(start, start + step)
        values = M[part] if isinstance(M, np.ndarray) else to_dense(M[part], 0.0)
        parts.append(sum_squared_errors(values, W[part] @ Q.T, -np.inf, np.inf, None if weights is None else weights[part]))
    return sum(squares for squares, _ in parts), sum(count for _, count in parts)


def _contiguous(M: Matrix) -> Matrix:
    return np.ascontiguousarray(M) if isinstance(M, np.ndarray) else M
