"""Weights of rows, such as survey weights: their checks, and Kish's effective number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.lazy import pd


def weight_series(values: Any, n: int) -> pd.Series[float]:
    """Return one number for each of n rows as a series, named "sample_weight" unless the values have a name."""
    own = getattr(values, "name", None)
    name = "sample_weight" if own is None else str(own)
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        message = f"{name} holds a value that is not a number ({error}), expected finite weights of at least 0; correct it"
        raise DataError(message) from error
    if array.shape != (n,):
        raise DataError(f"{name} has shape {array.shape}, expected one for each of {n} rows")
    return pd.Series(array, name=name)


def check_weights(weights: pd.Series[float], position: Callable[[int], str] = "row {}".format) -> None:
    """Raise DataError if a weight is missing, infinite or negative, or none is above 0; ``position`` describes a row by its number."""
    array = weights.to_numpy()
    invalid = np.flatnonzero(~np.isfinite(array) | (array < 0))
    if invalid.size:
        more = f" ({invalid.size} such rows in all)" if invalid.size > 1 else ""
        value = array[invalid[0]]
        found = f"{weights.name} of {position(int(invalid[0]))} is {'missing' if np.isnan(value) else f'{value:g}'}{more}"
        raise DataError(f"{found}, expected finite weights of at least 0; correct it, or leave the row out")
    if not array.any():
        raise DataError(f"{weights.name} is zero for every row, expected some above zero")


def are_valid(weights: pd.Series[float]) -> bool:
    """Return whether all weights are finite and at least 0, and some above 0."""
    return bool((np.isfinite(weights) & (weights >= 0)).all() and (weights > 0).any())


def effective_number(weights: pd.Series[float] | NDArray[Any]) -> float:
    """Return Kish's effective number of rows, (Σw)²/Σw²: the number of equally weighted rows whose mean varies as much.

    It accounts for unequal weights alone, not for strata and clusters of the sample (Kish 1965, chapter 11).
    """
    w = np.asarray(weights, np.float64)
    w = w / w.max()  # of any magnitude, without overflow
    return float(w.sum() ** 2 / (w**2).sum())


def describe_weights(weights: pd.Series[float]) -> str:
    """Describe weights in a line: their column, the range, and Kish's effective number of rows, with what it leaves out."""
    effective = effective_number(weights)
    number = f"Kish's effective number of participants {effective:.1f} of {len(weights)}"
    return f"{weights.name}: {weights.min():g} to {weights.max():g}, {number}, without strata and clusters"
