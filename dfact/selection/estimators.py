"""The estimators that selection accepts, and copies of them with other parameters."""

from inspect import signature
from typing import Any

from dfact.errors import ParameterError

_METHODS = ("fit", "inverse_transform", "get_params", "set_params")


def check_estimator(model: Any) -> None:
    """Raise ParameterError unless the model is an estimator that fits data and rebuilds it."""
    lacking = [name for name in _METHODS if isinstance(model, type) or not callable(getattr(model, name, None))]
    if lacking:
        found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ParameterError(f"model is {found} without {', '.join(lacking)}; expected an estimator that rebuilds its data, such as ICQF()")


def with_parameters(model: Any, **parameters: Any) -> Any:
    """Copy the unfitted estimator with other parameters, and without a checkpoint, which belongs to one fit.

    scikit-learn's ``clone`` would copy the Dask client among the parameters.
    """
    current = model.get_params(deep=False)
    return type(model)(**current | {name: None for name in ("checkpoint",) if name in current} | parameters)


def takes_confounders(model: Any) -> bool:
    """Whether the model's ``fit`` has the parameter ``confounders``."""
    return "confounders" in signature(model.fit).parameters


def takes_weights(model: Any) -> bool:
    """Whether the model's ``fit`` has the parameter ``sample_weight``."""
    return "sample_weight" in signature(model.fit).parameters
