"""Weights of rows, such as survey weights: their checks, their summary, and Kish's effective number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.entrance import as_numbers, name_of
from dfact.data.statistics import exact_sums
from dfact.errors import DataError
from dfact.lazy import pd

MAX_EXPONENT = 1023  # of the largest power of two among doubles
_COPIES = 2.0**53  # larger weights are not numbers of copies: all doubles above are whole


def weight_series(values: Any, n: int) -> pd.Series[float]:
    """Return one number for each of n rows as a series, named "sample_weight" unless the values have a name."""
    name = name_of(values) or "sample_weight"
    array = as_numbers(name, values, "finite weights of at least 0")
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


@dataclass(frozen=True)
class WeightSummary:
    """The summary of weights that fits need. Summaries of parts of the rows merge exactly into that of all."""

    n_rows: int
    n_positive: int
    """Number of rows with a weight above 0."""
    common: float | None
    """The weight of all rows with one above 0, if it is the same."""
    whole: bool
    """Whether all weights are whole numbers, as of copies."""
    exponent: int
    """The least one, up to 1023, for which weights times 2^−exponent are at most 1; of larger weights, they are less than 2."""
    sums: tuple[float, ...]
    """Numbers whose exact sum is that of the weights times 2^−exponent."""
    squares: tuple[float, ...]
    """The same of the squares of these."""

    @classmethod
    def of(cls, weights: pd.Series[float] | NDArray[Any]) -> WeightSummary:
        """Summarize the weights of some rows."""
        w = np.asarray(weights, np.float64)
        largest = float(w.max()) if w.size else 0.0
        positive = w[w > 0]
        common = largest if largest and (positive == largest).all() else None
        mantissa, exponent = math.frexp(largest)
        exponent = min(exponent - (mantissa == 0.5), MAX_EXPONENT)
        scaled = np.ldexp(w, -exponent)
        whole = largest <= _COPIES and bool((w == np.rint(w)).all())
        return cls(w.size, positive.size, common, whole, exponent, exact_sums(scaled), exact_sums(scaled**2))

    def merge(self, other: WeightSummary) -> WeightSummary:
        """Return the summary of the rows of both."""
        exponent = max(self.exponent, other.exponent)
        parts = [(each, each.exponent - exponent) for each in (self, other)]
        return WeightSummary(
            self.n_rows + other.n_rows,
            self.n_positive + other.n_positive,
            self.common if self.common == other.common else None,
            self.whole and other.whole,
            exponent,
            exact_sums(np.array([math.ldexp(value, down) for each, down in parts for value in each.sums])),
            exact_sums(np.array([math.ldexp(value, 2 * down) for each, down in parts for value in each.squares])),
        )

    @property
    def scale(self) -> float:
        """The common weight, by which equal weights count as none, or the least power of two that no weight exceeds.

        Weights divided by it are exact, and their sums do not overflow.
        """
        return self.common or math.ldexp(1.0, self.exponent)

    @property
    def total(self) -> float:
        """The sum of the weights."""
        with np.errstate(over="ignore"):  # infinite if no double holds it
            return float(np.ldexp(math.fsum(self.sums), self.exponent))

    @property
    def mean(self) -> float:
        """The mean of the weights above 0."""
        return float(np.ldexp(math.fsum(self.sums) / self.n_positive, self.exponent))

    @property
    def unit(self) -> float:
        """The weight that counts as one row where a fit starts: 1 if all are whole numbers, as of copies, else the mean of those above 0.

        The balance of the start between factors and loadings depends on the sum of the weights. Far from the number of rows, as of
        survey weights that sum to 1, it is so uneven that a fit ends early or at another optimum.
        """
        return 1.0 if self.whole else self.mean

    @property
    def effective(self) -> float:
        """Kish's effective number of rows, (Σw)²/Σw²: the number of equally weighted rows whose mean varies as much.

        It accounts for unequal weights alone, not for strata and clusters of the sample (Kish 1965, chapter 11).
        """
        return math.fsum(self.sums) ** 2 / math.fsum(self.squares)


def describe_weights(weights: pd.Series[float]) -> str:
    """Describe weights in a line: their column, the range, and Kish's effective number of rows, with what it leaves out."""
    effective = WeightSummary.of(weights).effective
    number = f"Kish's effective number of participants {effective:.1f} of {len(weights)}"
    return f"{weights.name}: {weights.min():g} to {weights.max():g}, {number}, without strata and clusters"
