"""Parameters of an estimator: checks that need no data, seeds, and values as text."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dfact.data.validation import magnitude_limits
from dfact.engine.requests import Solver, memo
from dfact.errors import ParameterError


def is_count(value: Any) -> bool:
    """Return whether a value is an integer of at least 1."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1


def check_count(name: str, value: Any, least: int, most: int) -> None:
    """Raise ParameterError unless a number of repetitions is an integer from ``least`` to ``most``; each one takes time and memory."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= int(value) <= most:
        raise ParameterError(f"{name} is {value!r}, expected an integer from {least} to {most}")


def is_in_range(value: Any, low: float, high: float = np.inf) -> bool:
    """Return whether a value is a number with low ≤ value < high; without ``high`` infinity is one, too."""
    return (
        isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(low <= value < high or value == high == np.inf)
    )


def check(model: object, checks: Mapping[str, tuple[bool, str]]) -> None:
    """Raise ParameterError for the first parameter whose check (valid, expected value) fails."""
    for name, (valid, expected) in checks.items():
        if not valid:
            raise ParameterError(f"{name} is {getattr(model, name)!r}, expected {expected}")


def check_magnitudes(model: object, names: Iterable[str], dtype: np.dtype[Any]) -> None:
    """Raise ParameterError for a number, or an array of numbers, beyond the range of the working precision. Infinity is no bound."""
    _, highest = magnitude_limits(dtype)
    for name in names:
        value = getattr(model, name)
        if value is None:
            continue
        parts = value if isinstance(value, (list, tuple)) else [value]  # bounds may be arrays of a number for each item
        sizes = np.abs(np.concatenate([np.ravel(part) for part in parts]).astype(np.float64))
        if (largest := float(sizes[np.isfinite(sizes)].max(initial=0))) > highest:
            raise ParameterError(f"{name} holds {largest:g}, expected at most {highest:.0e}, as {dtype} overflows")


POSITIVE_INTEGER = "an integer of at least 1"
"""Text of the values that :func:`is_count` accepts."""


def random_generator(random_state: Any) -> np.random.RandomState:
    """Return the generator of what scikit-learn accepts as random state; raise ParameterError for anything else."""
    try:
        found: np.random.RandomState = check_random_state(random_state)
    except ValueError as error:
        expected = "an integer from 0 to 4294967295, a numpy.random.RandomState, or None"
        raise ParameterError(f"random_state is {random_state!r}, expected {expected} (--seed)") from error
    return found


def resolve_seed(random_state: Any) -> Solver[int]:
    """Return a seed drawn from the random state; a fit resumed from a checkpoint has the seed recorded there."""
    # Drawn in any case, so that a generator's next fit gets the same seed as without an interruption.
    seed = random_generator(random_state).randint(np.iinfo(np.int32).max)
    return int((yield from memo("seed", lambda: {"seed": np.asarray(seed)}))["seed"])


def describe_value(value: Any) -> str:
    """Describe a value as text that differs for different values: arrays by a digest, generators without their state."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=8).hexdigest()
        return f"{value.dtype.name} {'×'.join(map(str, value.shape))} {digest}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{describe_value(key)}: {describe_value(item)}' for key, item in value.items())}}}"
    if hasattr(value, "__array__") and not isinstance(value, (np.generic, type)):  # tables and object arrays, whose repr is elided
        array = np.asarray(value)
        return describe_value(array.tolist() if array.dtype == object else array)
    if isinstance(value, np.random.RandomState):
        return "a generator"
    return repr(value.item() if isinstance(value, np.generic) else value)
