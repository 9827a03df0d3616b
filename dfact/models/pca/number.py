"""The number of components of a fit, as scikit-learn's PCA takes it: an integer, a share of the variance, or None for all."""

from typing import Any

import numpy as np

from dfact.errors import ParameterError
from dfact.linalg.svd import uses_gram
from dfact.parameters import Values, is_count

COMPONENTS = Values(
    lambda value: value is None or is_count(value) or (isinstance(value, (float, np.floating)) and 0 < float(value) < 1),
    "an integer of at least 1, a share of the variance between 0 and 1, or None",
)


def check_number(value: Any, n: int, m: int, items: str, *, expects: bool) -> None:
    """Refuse a number that data with missing entries have no likelihood for, or that needs variances which are not computed.

    The data of n rows and m columns, called ``items``, ``expects`` missing entries if these are taken by expectation.
    """
    found = f"n_components is {value}"
    if is_count(value):
        if expects and value >= m:  # without noise there is no likelihood
            raise ParameterError(f"{found}, expected fewer than the {m} {items} of data with missing entries")
    elif expects:
        remedy = "as the variances depend on it; choose one by select_number_of_components, or use missing='mean' (--missing mean)"
        raise ParameterError(f"{found} for data with missing entries, expected an integer, {remedy}")
    elif not uses_gram(m, min(n, m)):
        raise ParameterError(f"{found} for {n} rows of {m} {items}, expected an integer; choose one by select_number_of_components")
