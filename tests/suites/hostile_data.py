"""Data that break numerical code: constant, duplicate, nearly empty, of extreme sizes, or smaller than a model."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact import DfactError

Array = NDArray[Any]
N, M = 12, 5
NARROW = {"one row", "one column", "one number"}


def answers(seed: int, n: int = N, m: int = M) -> Array:
    return np.random.default_rng(seed).integers(0, 4, (n, m)).astype(float)


def with_constant_columns(seed: int) -> Array:
    X = answers(seed)
    X[:, 1], X[:, 3] = 2, 0
    return X


def with_one_entry(seed: int) -> Array:
    X = np.full((N, M), np.nan)
    X[seed % N, 2] = 2
    return X


def with_an_entry_per_column(seed: int) -> Array:
    X = np.full((N, M), np.nan)
    X[np.arange(M), np.arange(M)] = 1 + answers(seed, 1)[0] % 3
    return X


def with_an_outlier(seed: int) -> Array:
    X = answers(seed)
    X[4, 2] = 1e30
    return X


SIZES = np.array([30, -30, 0, 30, -30])
DATA: dict[str, Callable[[int], Array]] = {
    "plain": answers,
    "constant columns": with_constant_columns,
    "equal entries": lambda seed: np.full((N, M), 1.0 + seed % 3),
    "zeros": lambda _: np.zeros((N, M)),
    "duplicate columns": lambda seed: answers(seed)[:, [0, 0, 0, 3, 4]],
    "duplicate rows": lambda seed: np.repeat([answers(seed)[0], 3 - answers(seed)[0]], N // 2, axis=0),
    "one row": lambda seed: 1 + answers(seed, n=1),
    "one column": lambda seed: answers(seed, m=1),
    "one number": lambda _: np.full((1, 1), 2.0),
    "one entry": with_one_entry,
    "an entry per column": with_an_entry_per_column,
    "large": lambda seed: answers(seed) * 1e30,
    "small": lambda seed: answers(seed) * 1e-30,
    "columns of all sizes": lambda seed: answers(seed) * 10.0**SIZES,
    "rows of all sizes": lambda seed: answers(seed) * 10.0 ** np.resize(SIZES, (N, 1)),
    "outlier": with_an_outlier,
}


def refusal(call: Callable[[], Any]) -> str:
    """Return the message with which dfact refuses the call, empty if it returns."""
    try:
        call()
    except DfactError as error:
        return str(error)
    return ""
