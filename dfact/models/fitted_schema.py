"""Schema of fitted attributes: a class declares their types and shapes, and a loaded model is checked against them.

An attribute whose type is ``Any`` is not checked. Sizes have names, each of which stands for one number throughout a model:
n rows, m columns, k components, c encoded confounder columns, q differences that confounders make.
"""

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.errors import DataError

OPTIONAL = "optional"
"""Mark of an attribute that a fitted model need not have."""
_MAY_BE_ZERO = ("c", "q", "figures", "n")  # a fit across sites leaves a coordinator no rows
"""Sizes that may be 0."""
_LARGEST = 2**53
_LARGEST_FLOAT = np.float64(1e150)
"""Fits refuse data that would lead to larger numbers, and squares of numbers up to this can be summed."""

_Sizes = dict[str, int]


class _Check:
    """Condition that a declaration adds to a type."""

    def __call__(self, value: Any, sizes: _Sizes) -> None:
        raise NotImplementedError  # each check's own


@dataclass(frozen=True)
class Shape(_Check):
    """Array of numbers or texts with these sizes; None stands for any size."""

    sizes: tuple[str | None, ...]
    of: Literal["floats", "integers", "texts"] = "floats"
    finite: bool = True
    low: float = -np.inf
    """Least number allowed."""
    high: float = np.inf
    """Greatest number allowed."""
    rows: bool = False
    """Whether the array has a value for each row of the data. It may then be a Zarr array, and hold NaN but no infinity."""

    def __call__(self, value: Any, sizes: _Sizes) -> None:
        _expect(isinstance(value, (np.ndarray, zarr.Array) if self.rows else np.ndarray), "an array", value)
        names = ", ".join("any" if size is None else f"{size}={sizes.get(size, 'any')}" for size in self.sizes)
        _expect(len(value.shape) == len(self.sizes), f"an array ({names})", value)
        for mode, (name, size) in enumerate(zip(self.sizes, value.shape, strict=True)):
            no_rows = self.rows and mode == 0 and name is None and size == 0  # of the coordinator of a fit across sites
            _expect(no_rows or _matches_size(name, size, sizes), f"an array ({names})", value)
        _expect(_has_kind(value, self.of), f"an array of {self.of}", value)
        if self.of == "floats" and self.rows:
            step = Layout.of(value.shape).chunk_rows
            chunks = (np.asarray(value[start : start + step]) for start in range(0, value.shape[0], step))
            _expect(
                not any((np.abs(chunk) > _LARGEST_FLOAT).any() for chunk in chunks), f"an array of numbers to {_LARGEST_FLOAT:g}", value
            )
        elif self.of == "floats" and self.finite:
            _expect(bool((np.abs(value) <= _LARGEST_FLOAT).all()), f"an array of finite numbers to {_LARGEST_FLOAT:g}", value)
        if self.low > -np.inf:
            _expect(not (value < np.float64(self.low)).any(), f"an array of numbers from {self.low:g}", value)
        if self.high < np.inf:
            _expect(not (value > np.float64(self.high)).any(), f"an array of numbers to {self.high:g}", value)


@dataclass(frozen=True)
class Length(_Check):
    """List, or lists within lists, of these lengths."""

    sizes: tuple[str, ...]

    def __call__(self, value: Any, sizes: _Sizes) -> None:
        name, *inner = self.sizes
        _expect(
            isinstance(value, (list, tuple)) and _matches_size(name, len(value), sizes), f"a list of {name}={sizes.get(name, 'any')}", value
        )
        for item in value if inner else ():
            Length(tuple(inner))(item, sizes)


@dataclass(frozen=True)
class UniformColumns(_Check):
    """Lists of equal length whose entries at each index are all numbers, or all texts. Numbers above 1e300 cannot be drawn."""

    def __call__(self, value: Any, sizes: _Sizes) -> None:
        for entries in zip(*value, strict=True):
            texts = all(isinstance(entry, str) for entry in entries)
            numbers = not any(isinstance(entry, str) for entry in entries) and bool((np.abs(entries) <= 1e300).all())
            _expect(texts or numbers, "either numbers from -1e300 to 1e300 or texts", list(entries))


@dataclass(frozen=True)
class Size(_Check):
    """Number that is a size."""

    name: str

    def __call__(self, value: Any, sizes: _Sizes) -> None:
        _expect(_matches_size(self.name, value, sizes), f"{self.name}={sizes.get(self.name, 'at least 1')}", value)


@dataclass(frozen=True)
class LessThan(_Check):
    """Number less than a size."""

    name: str

    def __call__(self, value: Any, sizes: _Sizes) -> None:
        _expect(value < sizes.get(self.name, _LARGEST), f"a number below {self.name}={sizes.get(self.name)}", value)


@dataclass(frozen=True)
class AtLeast(_Check):
    """Number, or array of numbers, from ``low`` on."""

    low: float
    finite: bool = False

    def __call__(self, value: Any, sizes: _Sizes) -> None:
        numbers = np.asarray(value)
        _expect(bool((numbers >= self.low).all()), f"numbers from {self.low:g}", value)
        _expect(not self.finite or bool((numbers <= _LARGEST_FLOAT).all()), f"finite numbers to {_LARGEST_FLOAT:g}", value)


def check_fitted(model: object, annotations: dict[str, Any]) -> None:
    """Raise DataError for fitted attributes that differ from the declarations of the model's class.

    ``annotations`` are the types of attributes that any model may have besides.
    """
    declared = _declared(type(model))
    fitted = {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}
    hints = get_type_hints(type(model), include_extras=True)
    sizes: _Sizes = {}
    for name, kind in declared.items():
        if name in fitted:
            _check_attribute(name, fitted[name], kind, sizes)
        elif OPTIONAL not in getattr(kind, "__metadata__", ()):
            raise DataError(f"{name} is missing, expected in a fitted {type(model).__name__}")
    for name, value in fitted.items():
        if name in annotations:
            _check_attribute(name, value, annotations[name], sizes)
        elif name not in hints:
            raise DataError(f"{name} is not an attribute of a fitted {type(model).__name__}, expected {', '.join(declared)}")


def row_attributes(kind: type[Any]) -> set[str]:
    """Return the names of the attributes that have a value for each row of the data."""
    return {name for name, hint in _declared(kind).items() if any(isinstance(mark, Shape) and mark.rows for mark in _annotations(hint))}


def _annotations(kind: Any) -> Iterator[Any]:
    """Yield the annotations of a type and of its type arguments."""
    yield from getattr(kind, "__metadata__", ())
    for argument in get_args(kind):
        yield from _annotations(argument)


def _declared(kind: type[Any]) -> dict[str, Any]:
    """Return the types of all fitted attributes; properties are derived and have none."""
    return {
        name: hint
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if name.endswith("_") and not name.startswith("_") and hint is not Any and not isinstance(getattr(kind, name, None), property)
    }


def _check_attribute(name: str, value: Any, kind: Any, sizes: _Sizes) -> None:
    try:
        _check_value(value, kind, sizes)
    except DataError as error:
        raise DataError(f"{name} is {error}") from error


def _check_value(value: Any, kind: Any, sizes: _Sizes) -> None:
    """Refuse a value that is not of this type, or breaks one of its conditions."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin is Annotated:
        _check_value(value, args[0], sizes)
        for check in args[1:]:
            if isinstance(check, _Check):
                check(value, sizes)
    elif origin in (Union, types.UnionType) and value is None and type(None) in args:
        return
    elif origin in (Union, types.UnionType):
        _check_value(value, next((arg for arg in args if _is_instance(value, arg)), args[0]), sizes)
    elif is_dataclass(kind):
        _expect(type(value) is kind, f"a {getattr(kind, '__name__', kind)}", value)
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            _check_attribute(f"{field.name} of it", getattr(value, field.name), hints[field.name], sizes)
    else:
        _expect(_is_instance(value, kind), _describe(kind), value)
        for i, item in enumerate(value if origin in (list, tuple) else ()):
            _check_value(item, args[i] if origin is tuple and args[-1] is not Ellipsis else args[0], sizes)


_PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("an integer of at least 0", lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST),
    float: ("a number", lambda value: isinstance(value, float) or (type(value) is int and abs(value) < _LARGEST)),
    str: ("a text", lambda value: isinstance(value, str)),
    type(None): ("None", lambda value: value is None),
    get_origin(NDArray[Any]): ("an array", lambda value: isinstance(value, (np.ndarray, zarr.Array))),
}
"""Description of each plain type, and its test. Every integer of a model is a count, so none is negative.

``NDArray`` is an alias for ``np.ndarray`` before NumPy 2.5, and a type of its own from then on.
"""


def _is_instance(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type; items of lists and tuples are not checked."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return _is_instance(value, args[0])
    if origin is Literal:
        return (isinstance(value, str) or type(value) is int) and value in args
    if origin is tuple:
        return isinstance(value, tuple) and (args[-1] is Ellipsis or len(value) == len(args))
    if origin is list:
        return isinstance(value, list)
    if is_dataclass(kind):
        return type(value) is kind
    return _PLAIN[origin or kind][1](value)


def _describe(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return f"one of {get_args(kind)}"
    return f"a {origin.__name__}" if origin in (list, tuple) else _PLAIN[origin or kind][0]


def _matches_size(name: str | None, size: int, sizes: _Sizes) -> bool:
    """Return whether a size equals the number that its name stands for; the first use of a name sets that number."""
    if size < 1 and name not in _MAY_BE_ZERO:
        return False
    return name is None or sizes.setdefault(name, size) == size


def _has_kind(value: Any, of: str) -> bool:
    if of == "floats":
        return value.dtype in (np.float32, np.float64)
    return value.dtype.kind == "i" if of == "integers" else value.dtype.kind in "OTU"


def _expect(valid: bool, expected: str, value: Any) -> None:
    if not valid:
        found = f"an array {value.shape} of {value.dtype}" if isinstance(value, (np.ndarray, zarr.Array)) else repr(value)[:80]
        raise DataError(f"{found}, expected {expected}")
