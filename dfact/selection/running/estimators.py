"""The estimators that selection accepts, and copies of them with other parameters."""

from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset, implicit_as_missing
from dfact.data.dataset import Dataset
from dfact.data.sources.entrance import as_numbers
from dfact.errors import DataError, ParameterError

_METHODS = ("fit", "inverse_transform", "get_params", "set_params")


def check_estimator(model: Any) -> None:
    """Raise ParameterError unless the model is an estimator that fits data and rebuilds it."""
    lacking = [name for name in _METHODS if isinstance(model, type) or not callable(getattr(model, name, None))]
    if lacking:
        found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ParameterError(f"model is {found} without {', '.join(lacking)}; expected an estimator that rebuilds its data, such as ICQF()")


def require_method(model: Any, method: str, expected: str) -> None:
    """Raise ParameterError unless the model has the method that a selection needs; ``expected`` names the models that have it."""
    if isinstance(model, type) or not callable(getattr(model, method, None)):
        raise ParameterError(f"model is a {type(model).__name__}, expected {expected}")


def is_tensor_model(model: Any) -> bool:
    """Return whether the model is one of tensors; estimators of other packages are not."""
    return not isinstance(model, type) and bool(getattr(getattr(model, "traits", None), "tensor", False))


def with_parameters(model: Any, **parameters: Any) -> Any:
    """Copy the unfitted estimator with other parameters, and without a checkpoint, which belongs to one fit.

    scikit-learn's ``clone`` would copy the Dask client among the parameters.
    """
    current = model.get_params(deep=False)
    return type(model)(**current | {name: None for name in ("checkpoint",) if name in current} | parameters)


def takes_confounders(model: Any) -> bool:
    """Whether the model's ``fit`` has the parameter ``confounders``."""
    return "confounders" in signature(model.fit).parameters


def weighted_dataset(model: Any, dataset: Dataset, sample_weight: Any) -> Dataset:
    """Return the dataset with the weights for the model's fits: those given, else its own, and none if the model takes none."""
    if takes_weights(model):
        return dataset if sample_weight is None else dataset.with_weights(sample_weight)
    if sample_weight is not None:
        raise ParameterError(f"sample_weight is given, and a {type(model).__name__} takes no weights; leave it out")
    return dataset.with_weights(None)


def takes_weights(model: Any) -> bool:
    """Whether the model's ``fit`` has the parameter ``sample_weight``."""
    return "sample_weight" in signature(model.fit).parameters


def restrict_to_rows(model: Any, rows: NDArray[np.intp]) -> Any:
    """Return a CP model with its given variances and starts of mode 1 for these rows alone."""
    given = {
        name: value
        for name, value in model.get_params(deep=False).items()
        if name in ("slice_variances", "init") and not isinstance(value, str)
    }
    arrays = {name: value for name, value in given.items() if value is not None}
    return with_parameters(model, **{name: [as_numbers(name, value[0])[rows], *value[1:]] for name, value in arrays.items()})


def fitted_dataset(model: Any, data: Any) -> Dataset:
    """Return the data as a dataset; raise DataError if its shape, labels or fingerprint differ from those of the fitted data."""
    dataset = as_dataset(data)
    if model.traits.implicit == "missing":
        dataset = implicit_as_missing(dataset)
    n, items = model.row_factors().shape[0], [str(label) for label in model.column_labels_]
    slices = (len(items), *getattr(model, "slice_shape_", [0])[1:])
    if dataset.shape != (n, *slices):
        found, expected = ("×".join(map(str, shape)) for shape in (dataset.shape, (n, *slices)))
        raise DataError(f"the data is {found}, the model was fitted to {expected}; pass the data it was fitted to")
    labels = [str(label) for label in dataset.column_labels]
    if labels != items and [str(j) for j in range(len(items))] not in (labels, items):
        j = next(j for j, label in enumerate(labels) if label != items[j])
        raise DataError(f"column {j} of the data is {labels[j]!r}, of the fitted data {items[j]!r}; pass the data the model was fitted to")
    expected_fingerprint, fingerprint = model.fingerprint_, dataset.stored_fingerprint
    if expected_fingerprint is not None and fingerprint is not None and expected_fingerprint != fingerprint:
        raise DataError(
            f"the data has the fingerprint {fingerprint}, the model was fitted to {expected_fingerprint}; pass the data it was fitted to"
        )
    return dataset
