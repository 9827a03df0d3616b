"""Confounders: stored unencoded in the dataset, encoded into [0, 1] when a model is fitted.

The encoding is the paper's: an indicator column for each level of a categorical confounder; a
continuous one rescaled to [0, 1] over the fitted data, as ``x`` and ``1 − x``; a column of ones.
A missing value is encoded as the mean of the encoded columns over the participants with a value, so it
neither favours a level nor drops a participant. New participants are encoded as the fitted ones
were: continuous values beyond the fitted range are clipped to it, unseen levels are missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.entrance import as_column
from dfact.data.sources.frames import as_pandas, require_unique
from dfact.data.statistics import exact_sums
from dfact.errors import DataError, ParameterError, warn
from dfact.lazy import is_data_frame, pd

Kind = Literal["categorical", "continuous"]
INTERCEPT = "intercept"
FEW_LEVELS = 10  # whole numbers with at most this many distinct values are levels, not a scale
_FAR = 10  # interquartile ranges beyond the quartiles; one value there squeezes all others into a tenth of [0, 1] or less


def is_categorical(values: pd.Series) -> bool:
    """Check for text, booleans, categories, and whole numbers with at most ten distinct values."""
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return True
    distinct = np.asarray(values.dropna().unique(), np.float64)
    return len(distinct) <= FEW_LEVELS and bool(np.all(np.isfinite(distinct) & (distinct == np.floor(distinct))))


def level_name(value: object) -> str:
    """Return the text of a level: 1.0, 1 and "1" are the same level."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def as_levels(values: pd.Series) -> pd.Series:
    """Convert the series to strings, None for missing."""
    if values.dtype == object:  # may hold 1 and True, which are equal
        return values.map(level_name, na_action="ignore").where(values.notna(), None)
    codes, distinct = pd.factorize(values)
    names = np.array([*map(level_name, distinct), None], np.object_)
    return pd.Series(names[codes], values.index, name=values.name)  # the code of a missing value is −1


def normalize(frame: pd.DataFrame, kinds: Mapping[str, Kind] | None = None) -> pd.DataFrame:
    """Convert confounders to their two forms: categorical columns of strings, continuous ones of floats.

    The kind of a column is that declared in ``kinds``, else inferred by :func:`is_categorical`.
    """
    declared = kinds or {}
    columns: dict[str, Any] = {}
    for name in frame.columns:
        values = frame[name]
        kind = declared.get(str(name))
        if kind == "categorical" or (kind is None and is_categorical(values)):
            columns[str(name)] = pd.Categorical(as_levels(values))
            continue
        try:
            numbers = values.astype("float64").to_numpy()
        except (TypeError, ValueError) as error:
            raise DataError(f"confounder {str(name)!r} is continuous and holds text ({error}), expected numbers; correct it") from error
        if np.isinf(numbers).any():
            row = int(np.flatnonzero(np.isinf(numbers))[0])
            raise DataError(f"confounder {str(name)!r} is infinite in row {row}; expected a finite number or NaN")
        columns[str(name)] = numbers
    return pd.DataFrame(columns, index=frame.index)


RANGE_REMEDY = "declare its range with confounder_ranges={{{name!r}: (LOW, HIGH)}} (--confounder-range {name} LOW HIGH)"
"""Remedy of an import for implausible values."""


@dataclass(frozen=True)
class PlausibleRange:
    """The declared range of a continuous confounder, and the number of values outside, which are missing."""

    low: float
    high: float
    n_outside: int = 0

    def apply(self, values: pd.Series[Any]) -> tuple[pd.Series[Any], PlausibleRange]:
        """Return the values with NaN for those outside, and the range with their number."""
        outside = (values < self.low) | (values > self.high)
        return values.mask(outside), PlausibleRange(self.low, self.high, int(outside.sum()))


def check_ranges(ranges: Mapping[str, tuple[float, float]], kinds: Mapping[str, Kind | None]) -> dict[str, PlausibleRange]:
    """Return the declared ranges of confounders; raise ParameterError for invalid ones, and for confounders that are not continuous.

    ``kinds`` are the declared kinds of all confounders.
    """
    checked = {}
    for name, limits in ranges.items():
        if name not in kinds:
            raise ParameterError(
                f"confounder_ranges names {name!r}, expected one of the confounders, {', '.join(map(repr, kinds)) or 'none'}"
            )
        if kinds[name] == "categorical":
            raise ParameterError(f"confounder {name!r} is declared categorical and has a range, expected a continuous one; remove either")
        low, high = map(float, limits)
        if not (np.isfinite([low, high]).all() and low <= high):
            raise ParameterError(f"the range of confounder {name!r} is {low:g} to {high:g}, expected two ascending finite numbers")
        checked[name] = PlausibleRange(low, high)
    return checked


def apply_ranges(frame: pd.DataFrame, ranges: Mapping[str, PlausibleRange]) -> tuple[pd.DataFrame, dict[str, PlausibleRange]]:
    """Return the confounders with NaN for values outside their ranges, and the ranges with the numbers of these values."""
    applied = {name: limits.apply(frame[name]) for name, limits in ranges.items()}
    empty = next((name for name, (values, _) in applied.items() if values.isna().all()), None)
    if empty is not None:
        low, high = ranges[empty].low, ranges[empty].high
        raise DataError(f"confounder {empty!r} has no value from {low:g} to {high:g}, expected at least one; correct confounder_ranges")
    masked = frame.assign(**{name: values for name, (values, _) in applied.items()})
    return masked, {name: limits for name, (_, limits) in applied.items()}


def warn_implausible(frame: pd.DataFrame, declared: Collection[str], remedy: str) -> None:
    """Warn of continuous confounders with values far from the others, except those with a declared range.

    A value is far if it is more than ten interquartile ranges beyond the quartiles: on [0, 1], it leaves the others hardly any
    of the range, and the confounder becomes an intercept. Nothing is far in a column whose quartiles are equal. ``remedy`` is
    a format with the field ``name``.
    """
    for name, values in frame.items():
        numbers = values.dropna()
        if name in declared or isinstance(values.dtype, pd.CategoricalDtype) or numbers.empty:
            continue
        low, high = numbers.quantile([0.25, 0.75])
        far = numbers[(numbers < low - _FAR * (high - low)) | (numbers > high + _FAR * (high - low))]
        if len(far) and high > low:
            text = f"confounder {name!r} has {len(far)} value(s) from {far.min():g} to {far.max():g} and quartiles of {low:g} and {high:g}"
            expected = f"expected values within {_FAR} interquartile ranges of the quartiles"
            warn(f"{text}, {expected}; {remedy.format(name=name)}")


@dataclass(frozen=True)
class ConfounderSummary:
    """The summary of a confounder's values that its encoding needs. Summaries of parts of the rows merge exactly into that of all."""

    name: str
    n_rows: int
    n_missing: int
    levels: Mapping[str, int]
    """Number of rows of each level; empty for a continuous confounder."""
    minimum: float
    maximum: float
    sums: tuple[float, ...]
    """Numbers whose exact sum is that of the values."""

    @classmethod
    def of(cls, values: pd.Series) -> ConfounderSummary:
        """Summarize the values of some rows."""
        present = values.dropna()
        common = str(values.name), len(values), len(values) - len(present)
        if isinstance(values.dtype, pd.CategoricalDtype):
            counts = present.value_counts()
            return cls(*common, {str(level): int(count) for level, count in counts.items() if count}, 0.0, 0.0, ())
        low, high = (float(present.min()), float(present.max())) if len(present) else (np.inf, -np.inf)
        return cls(*common, {}, low, high, exact_sums(present.to_numpy(np.float64)))

    def merge(self, other: ConfounderSummary) -> ConfounderSummary:
        """Return the summary of the rows of both."""
        levels = {level: self.levels.get(level, 0) + other.levels.get(level, 0) for level in {**self.levels, **other.levels}}
        limits = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        counts = self.n_rows + other.n_rows, self.n_missing + other.n_missing
        return ConfounderSummary(self.name, *counts, levels, *limits, exact_sums(np.array([*self.sums, *other.sums])))


@dataclass(frozen=True)
class Confounder:
    """The encoding of one confounder. Two are equal if they encode values alike."""

    name: str
    levels: tuple[str, ...]  # empty for a continuous confounder
    minimum: float
    maximum: float
    means: tuple[float, ...]  # means of the encoded columns, which replace missing values
    n_missing: int
    counts: tuple[int, ...] = field(default=(), compare=False)
    """Number of fitted participants of each level; empty for a continuous confounder, and in models of earlier versions."""
    reference: int = field(default=0, compare=False)
    """Number of the level with which the others are compared: the commonest one, the first in models of earlier versions."""

    @classmethod
    def fit(cls, values: pd.Series) -> Confounder:
        """Determine the encoding from the values of the fitted participants."""
        return cls.of(ConfounderSummary.of(values))

    @classmethod
    def of(cls, summary: ConfounderSummary) -> Confounder:
        """Determine the encoding from the summary of the fitted participants."""
        name, n, missing = summary.name, summary.n_rows - summary.n_missing, summary.n_missing
        if not n:
            raise DataError(f"confounder {name!r} has no value, expected at least one; leave it out")
        if summary.levels:
            levels = tuple(sorted(summary.levels, key=_natural))
            counts = tuple(summary.levels[level] for level in levels)
            return cls(name, levels, 0.0, 0.0, tuple(count / n for count in counts), missing, counts, counts.index(max(counts)))
        low, high = summary.minimum, summary.maximum
        mean = float((math.fsum(summary.sums) / n - low) / (high - low)) if high > low else 0.0
        return cls(name, (), low, high, (mean, 1 - mean), missing)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return tuple(f"{self.name}={level}" for level in self.levels) or (self.name, f"1-{self.name}")

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Columns whose differences are taken, as minuend and subtrahend: each other level and the reference, or x and 1 − x."""
        return tuple((i, self.reference) for i in range(len(self.levels)) if i != self.reference) if self.levels else ((0, 1),)

    def encode(self, values: pd.Series) -> NDArray[np.float64]:
        """Encode values as columns (n, 2) or (n, levels)."""
        if self.levels:
            levels = as_levels(values.astype(object)).to_numpy()
            encoded = np.stack([levels == level for level in self.levels], axis=1).astype(np.float64)
            missing = encoded.sum(axis=1) == 0
        else:
            numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64)
            width = self.maximum - self.minimum
            x = np.clip((numbers - self.minimum) / width, 0, 1) if width > 0 else np.where(np.isnan(numbers), np.nan, 0.0)
            missing = np.isnan(x)
            encoded = np.stack([x, 1 - x], axis=1)
        encoded[missing] = self.means
        return encoded


def _natural(level: str) -> tuple[int, float, str]:
    try:
        return (0, float(level), level)
    except ValueError:
        return (1, 0.0, level)


@dataclass(frozen=True)
class ConfounderEncoding:
    """The encoding of all confounders of a fitted model, with the intercept as the last column."""

    confounders: tuple[Confounder, ...]

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> ConfounderEncoding:
        """Determine the encoding from the confounders of the fitted participants."""
        return cls.of([ConfounderSummary.of(frame[name]) for name in frame.columns])

    @classmethod
    def of(cls, summaries: Sequence[ConfounderSummary]) -> ConfounderEncoding:
        """Determine the encoding from summaries of the confounders of the fitted participants."""
        return cls(tuple(Confounder.of(summary) for summary in summaries))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of C."""
        return (*(column for c in self.confounders for column in c.columns), INTERCEPT)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the confounders."""
        return tuple(c.name for c in self.confounders)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Encode confounders as C (n, c), every entry in [0, 1]."""
        lacking = [name for name in self.names if name not in frame.columns]
        if lacking:
            raise DataError(
                f"the confounders are {list(frame.columns)}, expected those of the fitted model, {list(self.names)}; pass also {lacking}"
            )
        parts = [c.encode(frame[c.name]) for c in self.confounders]
        return np.hstack([*parts, np.ones((len(frame), 1))])

    def differences(self) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Return the names of the q differences between encoded columns, and the matrix (q, c) that takes them.

        They are each level minus the reference of its confounder, and x minus (1 − x) of a continuous confounder.
        """
        names: list[str] = []
        pairs: list[tuple[int, int]] = []
        start = 0
        for c in self.confounders:
            names += [f"{c.columns[plus]} − {c.columns[minus]}" for plus, minus in c.pairs] if c.levels else [c.name]
            pairs += [(start + plus, start + minus) for plus, minus in c.pairs]
            start += len(c.columns)
        matrix = np.zeros((len(pairs), len(self.columns)))
        for row, (plus, minus) in zip(matrix, pairs, strict=True):
            row[plus], row[minus] = 1, -1
        return tuple(names), matrix

    def difference_sizes(self) -> list[tuple[int, int] | None]:
        """Return the numbers of fitted participants of the two levels of each difference; None where they are not known."""
        return [(c.counts[plus], c.counts[minus]) if c.counts else None for c in self.confounders for plus, minus in c.pairs]

    def with_commonest(self) -> ConfounderEncoding:
        """Return an equal encoding whose references are the commonest levels, also of a model of an earlier version."""
        references = (c.means.index(max(c.means)) if c.levels else 0 for c in self.confounders)
        return ConfounderEncoding(tuple(replace(c, reference=each) for c, each in zip(self.confounders, references, strict=True)))

    def of_differences(self, other: ConfounderEncoding, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the differences (q, …) between the references of this encoding for those of ``other``, an equal encoding."""
        _, matrix = self.differences()
        matrix = matrix[:, list(other.contrast_columns()[:-1])]  # the references of the other have the coefficient 0
        parts = matrix.reshape(matrix.shape + (1,) * (values.ndim - 1))
        products = np.where(parts == 0, 0.0, parts * values[None])  # a NaN stays in its own differences
        total: NDArray[np.float64] = products.sum(axis=1)
        return total

    def contrast_columns(self) -> tuple[int, ...]:
        """Return the columns of C whose coefficients in a regression are the differences, and the last one, of ones."""
        _, matrix = self.differences()
        return (*(int(row.argmax()) for row in matrix), len(self.columns) - 1)

    def missing_counts(self) -> dict[str, int]:
        """Count the fitted participants without a value, for each confounder that has such participants."""
        return {c.name: c.n_missing for c in self.confounders if c.n_missing}


def as_frame(confounders: Any, n_rows: int, continuous: Collection[str] = ()) -> pd.DataFrame:
    """Convert confounders (data frame of any library, Series, dict of columns, array n or n×p) to a normalized table of n rows.

    The confounders that ``continuous`` names are so, the kinds of the others are inferred.
    """
    confounders = as_pandas(confounders.compute() if hasattr(confounders, "to_dask_array") else confounders)
    if isinstance(confounders, pd.Series):
        confounders = as_column(confounders).to_frame(confounders.name or "confounder_0")
    elif isinstance(confounders, dict):
        confounders = pd.DataFrame({name: as_column(values, f"confounder {str(name)!r}") for name, values in confounders.items()})
    elif is_data_frame(confounders):
        objects: dict[Any, Any] = {name: as_column(values) for name, values in confounders.items() if values.dtype == object}
        confounders = confounders.assign(**objects) if objects else confounders
    else:
        array = as_column(confounders, "the table of confounders")
        array = array[:, None] if array.ndim == 1 else array
        confounders = pd.DataFrame(array, columns=[f"confounder_{j}" for j in range(array.shape[1])])
    confounders = confounders.infer_objects()  # numbers among objects are numbers, not levels
    require_unique([str(name) for name in confounders.columns], "the table of confounders")
    if len(confounders) != n_rows:
        raise DataError(f"confounders have {len(confounders)} rows, expected {n_rows} as in the data; pass one row for each row of X")
    return normalize(confounders.reset_index(drop=True), dict.fromkeys(continuous, "continuous"))
