"""Parameters of an estimator: the values that each accepts, declared in the signature; seeds, and values as text.

A signature declares the values of a parameter next to its type, ``n_components: Annotated[int, COUNT] = 8``, and
:func:`check_parameters` refuses others.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from dfact.data.validation import magnitude_limits
from dfact.engine.requests import Solver, memo
from dfact.errors import ParameterError


class TooManyComponentsError(ParameterError):
    """More components than the data has rows or columns."""

    def __init__(self, n_components: int, n_rows: int, n_columns: int) -> None:
        self.n_components, self.n_rows, self.n_columns = n_components, n_rows, n_columns
        found = f"n_components={n_components} is larger than the data allows: n_samples={n_rows}, n_features={n_columns}"
        super().__init__(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.n_components, self.n_rows, self.n_columns)


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


@dataclass(frozen=True)
class Values:
    """The values that a parameter accepts."""

    accepts: Callable[[Any], bool]
    expected: str
    """The same in words, for messages."""

    def check(self, name: str, value: Any) -> None:
        """Raise ParameterError if the parameter with this name has a value that is not accepted."""
        if not self.accepts(value):
            raise ParameterError(f"{name} is {value!r}, expected {self.expected}")

    def or_none(self) -> "Values":
        """Return these values and None."""
        return Values(lambda value: value is None or self.accepts(value), f"{self.expected}, or None")


def one_of(*names: str | None) -> Values:
    """Return the values of a parameter that is one of some names."""
    *others, last = map(repr, names)
    return Values(lambda value: (value is None and None in names) or (isinstance(value, str) and value in names), _either(others, last))


def _either(others: Sequence[str], last: str) -> str:
    return f"{', '.join(others)} or {last}" if others else last


def at_least(low: float) -> Values:
    """Return the numbers from ``low`` on, infinity included."""
    return Values(lambda value: is_in_range(value, low), f"a number of at least {low:g}")


COUNT = Values(is_count, "an integer of at least 1")
NOT_NEGATIVE = at_least(0)
FINITE = Values(lambda value: is_in_range(value, 0) and value < np.inf, "a finite number of at least 0")
YES_OR_NO = Values(lambda value: isinstance(value, (bool, np.bool_)), "True or False")


def declared_values(kind: type[Any]) -> Mapping[str, Values]:
    """Return the values that the parameters of a class of estimators accept, by name, for those whose annotation declares them."""
    parameters = signature(kind, eval_str=True).parameters.values()
    return {each.name: values for each in parameters if (values := _values_of(each.annotation)) is not None}


def _values_of(hint: Any) -> Values | None:
    """Return the values that an annotation declares: ``Literal`` names, or what ``Annotated`` adds to a type."""
    parts = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    names = [name for part in parts if get_origin(part) is Literal for name in get_args(part)]
    if names:
        return one_of(*names, *([None] if NoneType in parts else []))
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Values)), None)


def check_parameters(model: Any) -> None:
    """Raise ParameterError for the first parameter with a value that the signature of its class does not declare."""
    for name, values in declared_values(type(model)).items():
        values.check(name, getattr(model, name))


def check_magnitudes(model: object, names: Iterable[str], dtype: np.dtype[Any]) -> None:
    """Raise ParameterError for a number, or an array of numbers, beyond the range of the working precision. Infinity is not a bound."""
    _, highest = magnitude_limits(dtype)
    for name in names:
        value = getattr(model, name)
        if value is None:
            continue
        parts = value if isinstance(value, (list, tuple)) else [value]  # bounds may be arrays of a number for each item
        sizes = np.abs(np.concatenate([np.ravel(part) for part in parts]).astype(np.float64))
        if (largest := float(sizes[np.isfinite(sizes)].max(initial=0))) > highest:
            raise ParameterError(f"{name} holds {largest:g}, expected at most {highest:.0e}, as {dtype} overflows")


def random_generator(random_state: Any) -> np.random.RandomState:
    """Return the generator of what scikit-learn accepts as random state; raise ParameterError for anything else."""
    if isinstance(random_state, np.random.RandomState):
        return random_state
    if isinstance(random_state, (int, np.integer)) and 0 <= random_state <= np.iinfo(np.uint32).max:
        return np.random.RandomState(int(random_state))
    if random_state is None or random_state is np.random:
        generator: np.random.RandomState = np.random.mtrand._rand  # NumPy's global one, which np.random.seed sets
        return generator
    expected = "an integer from 0 to 4294967295, a numpy.random.RandomState, or None"
    raise ParameterError(f"random_state is {random_state!r}, expected {expected} (--seed)")


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
