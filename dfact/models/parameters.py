"""Parameters of an estimator: those that cannot be, whatever the data; seeds; and as text."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dfact.engine.session import Session
from dfact.errors import ParameterError


def is_count(value: Any) -> bool:
    """Whether it is an integer of at least 1."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1


def is_in_range(value: Any, low: float, high: float = np.inf) -> bool:
    """Whether it is a number, low ≤ value < high; without ``high`` infinity is one, too."""
    return (
        isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(low <= value < high or value == high == np.inf)
    )


def check(model: Any, checks: Mapping[str, tuple[bool, str]]) -> None:
    """Refuse the first parameter whose check (whether it is good, what is expected) fails."""
    for name, (good, expected) in checks.items():
        if not good:
            raise ParameterError(f"{name} is {getattr(model, name)!r}, expected {expected}")


POSITIVE_INTEGER = "an integer of at least 1"
"""What :func:`is_count` expects."""


def resolve_seed(random_state: Any, session: Session) -> int:
    """A seed out of the random state, or by chance; a fit that goes on from a checkpoint has that with which it began."""
    # Drawn in any case: of a generator it is the next fit's turn then, as it was before an interruption.
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
    return int(session.memo("seed", lambda: {"seed": np.asarray(seed)})["seed"])


def describe_value(value: Any) -> str:
    """The value for people, which differs where the values do: arrays by a digest, generators as such."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        digest = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=8).hexdigest()
        return f"{value.dtype.name} {'×'.join(map(str, value.shape))} {digest}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{describe_value(key)}: {describe_value(found)}' for key, found in value.items())}}}"
    if hasattr(value, "__array__") and not isinstance(value, (np.generic, type)):  # a table; and objects, whose repr leaves most out
        found = np.asarray(value)
        return describe_value(found.tolist() if found.dtype == object else found)
    if isinstance(value, np.random.RandomState):
        return "a generator"
    return repr(value.item() if isinstance(value, np.generic) else value)
