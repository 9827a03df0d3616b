"""The entries of data next to a model's entries for given factors of the rows, block by block, and the share that the model explains."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import implicit_as_missing
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.entrance import as_arrays
from dfact.data.sources.frames import is_dask_frame
from dfact.data.sources.sparse import to_dense
from dfact.data.statistics import as_float
from dfact.engine.threads import single_threaded
from dfact.errors import DataError
from dfact.models.scikit_learn import check_is_fitted
from dfact.models.traits import ModelTraits


class ScoreInterface:
    """The method ``score`` of estimators."""

    traits: ClassVar[ModelTraits]
    _dataset: Callable[..., Dataset]
    transform: Callable[..., Any]

    def score(self, X: Any, y: None = None, **transform_inputs: Any) -> float:
        """Return the share of the variation of X that the model explains with its fitted loadings; higher is better.

            1 − Σ (z_ij − ẑ_ij)² / Σ (z_ij − c_j)²   over the observed entries z_ij

        ẑ = ``inverse_transform(transform(X))``, and c_j is the mean of column j of X, or 0 for tensors. The factors of the rows are
        estimated from these entries, so the score of new rows measures the loadings alone, and tends to rise with every
        component: choose their number with :mod:`dfact.selection`, which holds out entries. Rows count equally, whatever their weights.

        Parameters
        ----------
        X : array of any kind, path or Dataset (n, m)
            Rows, new or fitted.
        y : None
            Ignored.
        **transform_inputs
            Further arguments of ``transform``, such as ``confounders``.

        Returns
        -------
        float
            At most 1, negative if the column means are closer; NaN if no column varies.
        """
        del y
        check_is_fitted(self)
        X = X if is_dask_frame(X) else as_arrays(X)
        dataset = self._dataset(X, transform_inputs.get("confounders"), reset=False)
        factors = self.transform(X, **transform_inputs)
        dataset = implicit_as_missing(dataset) if self.traits.implicit == "missing" else dataset
        return explained_by(self, dataset, factors.to_numpy() if hasattr(factors, "to_numpy") else factors)


def entries(model: Any, dataset: Dataset, factors: Any) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield blocks of the data (rows, …), NaN where missing, and their reconstruction; both in the units of the answers.

    ``factors`` (n, k) of the rows are an array of any kind that is read by rows. Rows without factors are missing.
    """
    layout, offset = Layout.of(dataset.shape), dataset.offset.reshape(-1, *[1] * (len(dataset.shape) - 2))
    with single_threaded():  # products of blocks are too small to gain from more threads
        for rows in dataset.source.read_ranges(layout):
            chunk = dataset.source.read_native(rows.start, rows.stop)
            of_chunk = np.asarray(factors[rows])
            for start in range(0, chunk.shape[0], layout.block_rows):
                block = slice(start, min(start + layout.block_rows, chunk.shape[0]))
                part: Any = as_float(chunk[block], dataset.missing_code, np.dtype(np.float64))
                M = (part if isinstance(part, np.ndarray) else to_dense(part, dataset.source.implicit_value)) + offset
                R = _reconstruct(model, of_chunk[block], dataset, slice(rows.start + block.start, rows.start + block.stop))
                M[np.isnan(of_chunk[block]).any(axis=1)] = np.nan
                yield M, R if model.traits.original_units else R + offset


def _reconstruct(model: Any, factors: NDArray[Any], dataset: Dataset, rows: slice) -> NDArray[np.float64]:
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


def explained_by(model: Any, dataset: Dataset, factors: Any) -> float:
    """Return 1 − Σ (z − ẑ)² / Σ (z − c)² over the observed entries z, with the model's entries ẑ for these factors of the rows.

    The centre c is the mean of the entry's column, or 0 for a model of sums of squares (``traits.tensor``). NaN if nothing varies.
    """
    m = int(np.prod(dataset.shape[1:]))
    errors, count, total, squares = 0.0, np.zeros(m), np.zeros(m), np.zeros(m)
    shift = np.zeros(m)
    for number, blocks in enumerate(entries(model, dataset, factors)):
        M, R = (values.reshape(len(values), m) for values in blocks)
        observed = ~np.isnan(M)
        if not number and not model.traits.tensor:  # near the mean, for the accuracy of the sums of squares
            shift = np.where(observed, M, 0).sum(axis=0) / np.maximum(observed.sum(axis=0), 1)
        errors += float(np.where(observed, (M - R) ** 2, 0).sum())
        centred = np.where(observed, M - shift, 0)
        count += observed.sum(axis=0)
        total += centred.sum(axis=0)
        squares += (centred**2).sum(axis=0)
    varying = squares if model.traits.tensor else np.maximum(squares - total**2 / np.maximum(count, 1), 0)
    variation = float(varying.sum())
    return 1 - errors / variation if variation > 0 else float("nan")
