"""Readers under test, and what their checks share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dfact
from benchmarks.fuzz.mutations import Mutation

N, M = 40, 6


class WrongError(Exception):
    """A result that is neither the original nor what the mutated bytes contain."""


def expect(good: Any, what: str) -> None:
    if not good:
        raise WrongError(what)


@dataclass
class Target:
    """A reader under test: functions that make its input, mutate it, and read it; reading raises WrongError for a wrong result."""

    make: Callable[[Path], None]
    mutate: Mutation
    read: Callable[[Path, Path, bool], None]
    """Takes the folder of the input, a folder for the result, and whether the input must have its original contents."""


def answers() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(0, 5, (N, M)), columns=[f"Q{j}" for j in range(M)]).astype(object)
    table = table.mask(pd.DataFrame(rng.random((N, M)) < 0.1, columns=table.columns), -9)
    table.insert(0, "id", [f"p{i}" for i in range(N)])
    table["age"], table["sex"] = rng.integers(18, 80, N) + 0.5, rng.choice(["f", "m"], N)
    return table


def read_values(dataset: dfact.Dataset) -> Any:
    """Return all values in original units, NaN where missing."""
    from dfact.data.layout import Layout
    from dfact.data.statistics import as_float

    parts = [dataset.source.read(rows.start, rows.stop) for rows in dataset.source.read_ranges(Layout.of(dataset.shape))]
    values = as_float(np.concatenate(parts), dataset.missing_code, np.dtype(np.float64))
    with np.errstate(invalid="ignore"):  # NaN with any payload
        return values + dataset.offset.reshape(-1, *(1,) * (values.ndim - 2))
