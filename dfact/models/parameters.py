"""Parameters of an estimator that cannot be, whatever the data."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dfact.errors import ParameterError


def is_count(value: Any) -> bool:
    """Whether it is an integer of at least 1."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1


def is_within(value: Any, low: float, high: float = np.inf) -> bool:
    """Whether it is a number, low ≤ value < high; without ``high`` infinity is one, too."""
    return (
        isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(low <= value < high or value == high == np.inf)
    )


def check(model: Any, checks: Mapping[str, tuple[bool, str]]) -> None:
    """Refuse the first parameter whose check (whether it is good, what is expected) fails."""
    for name, (good, expected) in checks.items():
        if not good:
            raise ParameterError(f"{name} is {getattr(model, name)!r}, expected {expected}")


COUNT = "an integer of at least 1"
"""What :func:`is_count` expects."""
