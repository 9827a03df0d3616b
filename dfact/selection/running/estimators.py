"""The estimators that selection accepts, and copies of them with other parameters."""

from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.errors import ParameterError

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
    """Return a CP model with its given priors and starts of mode 1 for these rows alone."""
    given = {
        name: value for name, value in model.get_params(deep=False).items() if name in ("prior", "init") and not isinstance(value, str)
    }
    arrays = {name: value for name, value in given.items() if value is not None}
    return with_parameters(model, **{name: [np.asarray(value[0])[rows], *value[1:]] for name, value in arrays.items()})
