"""``transform`` of a dask array: another one, each chunk of which is the transform of a chunk of rows."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dfact.data.coerce import Excerpt, as_dataset
from dfact.data.ingest.array import axis_labels
from dfact.data.lazy_results import map_rows
from dfact.data.sources.dask import dask_array

M = TypeVar("M", bound=Any)
P = ParamSpec("P")


def lazy_of_dask(transform: Callable[Concatenate[M, Any, P], Any]) -> Callable[Concatenate[M, Any, P], Any]:
    """Let a model's ``transform`` of a dask array give a dask array, whose chunks are computed when they are asked for.

    What the array's shape and names say is refused at once, what its values say when they are computed. With
    ``out`` it is computed, and written there.
    """

    @wraps(transform)
    def transformed(self: M, X: Any, *args: P.args, **known: P.kwargs) -> Any:
        array = dask_array(X)
        if array is None:
            return transform(self, X, *args, **known)
        told = signature(transform).bind(self, X, *args, **known).kwargs  # refuses what the model does not take
        out = told.pop("out", None)
        result = _lazy(self, X, array, told)
        return result if out is None else self._computed(result, X, out)

    return cast("Callable[Concatenate[M, Any, P], Any]", transformed)


def _lazy(model: Any, X: Any, array: Any, known: dict[str, Any]) -> Any:
    check_is_fitted(model)
    nobody = Excerpt(np.empty((0, *array.shape[1:]), array.dtype), axis_labels(X, 1), None)
    model._check_shape(as_dataset(nobody))
    labels = axis_labels(X, 0)
    rows = {"row_labels": pd.RangeIndex(array.shape[0]) if labels is None else labels} | model._known_of_rows(array.shape[0], **known)
    return map_rows(array, _transform, model._for_new_rows(), rows, columns=model._n_features_out, dtype=model._working_dtype(array))


def _transform(model: Any, values: NDArray[Any], *, row_labels: Any, confounders: pd.DataFrame | None = None, **known: Any) -> Any:
    # The names have been compared.
    return model.transform(Excerpt(values, model.column_labels_, row_labels, confounders), **known)
