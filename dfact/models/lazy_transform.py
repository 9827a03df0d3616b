"""``transform`` of a Dask array: a Dask array whose chunks are the transforms of the chunks of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import Excerpt, as_dataset
from dfact.data.lazy_results import compute_chunks, map_rows
from dfact.data.sources.array import axis_labels
from dfact.data.sources.entrance import lazy_array
from dfact.lazy import pd
from dfact.models.estimator import Factorization
from dfact.models.row_factors import gather_rows
from dfact.models.scikit_learn import check_is_fitted

M = TypeVar("M", bound=Factorization)
P = ParamSpec("P")


def lazy_of_dask(transform: Callable[Concatenate[M, Any, P], Any]) -> Callable[Concatenate[M, Any, P], Any]:
    """Make a model's ``transform`` of a Dask array or frame return a Dask array, whose chunks are computed on demand.

    An invalid shape or name raises an error at once, an invalid value when its chunk is computed. With
    ``out`` the result is computed and written there.
    """

    @wraps(transform)
    def transformed(self: M, X: Any, *args: P.args, **inputs: P.kwargs) -> Any:
        array = lazy_array(X)
        if array is None:
            return transform(self, X, *args, **inputs)
        arguments = signature(transform).bind(self, X, *args, **inputs).kwargs  # refuses arguments that the model does not accept
        out = arguments.pop("out", None)
        result = _lazy(self, X, array, arguments)
        if out is None:
            return result
        return gather_rows(compute_chunks(result, self._client(X)), result.shape, result.dtype, stored=False, out=out)

    return cast("Callable[Concatenate[M, Any, P], Any]", transformed)


def _lazy(model: Factorization, X: Any, array: Any, arguments: dict[str, Any]) -> Any:
    check_is_fitted(model)
    no_rows = Excerpt(np.empty((0, *array.shape[1:]), array.dtype), axis_labels(X, 1), None)
    model._check_shape(as_dataset(no_rows))
    labels = axis_labels(X, 0)
    rows = {"row_labels": pd.RangeIndex(array.shape[0]) if labels is None else labels} | model._row_inputs(array.shape[0], **arguments)
    return map_rows(array, _transform, model._copy_for_transform(), rows, columns=model._n_features_out, dtype=model._working_dtype(array))


def _transform(
    model: Factorization, values: NDArray[Any], *, row_labels: Any, confounders: pd.DataFrame | None = None, **inputs: Any
) -> Any:
    # The chunk has no column labels of its own; those of the whole array have been compared with the model's.
    return model.transform(Excerpt(values, model.column_labels_, row_labels, confounders), **inputs)
