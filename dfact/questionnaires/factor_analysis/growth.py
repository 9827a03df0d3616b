"""Sums of a factor analysis, to which those of new rows are added: the correlations then equal those of all rows."""

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.linalg.correlation import Moments, WeightedMoments
from dfact.models.fitted_schema import AtLeast, Shape
from dfact.questionnaires.polychoric import CountedTables, Levels, PairTables, answer_levels, count_dtype

KEPT_BYTES = 1 << 28
"""Size up to which a model keeps the tables of all pairs of items: some 2,300 items of five levels."""
_PAIRS = Annotated[NDArray[Any], Shape(("m", "m"))]


@dataclass(frozen=True, eq=False)
class MomentSums:
    """The :class:`~dfact.linalg.correlation.Moments` of all rows that a model has seen, about fixed shifts."""

    shift: Annotated[NDArray[Any], Shape(("m",))]
    """Value of each item (m) from which the sums are counted."""
    counts: _PAIRS
    sums: _PAIRS
    squares: _PAIRS
    cross: _PAIRS
    rows: Annotated[float, AtLeast(0)]
    weight_unit: Annotated[float, AtLeast(0)]
    """Weight that counts as 1 in the sums."""
    weights: _PAIRS | None = None
    squared_weights: _PAIRS | None = None
    row_weights: Annotated[NDArray[Any], Shape(("row_weights",), low=0)] | None = None

    @classmethod
    def of(cls, moments: Moments, shift: NDArray[np.float64], weight_unit: float) -> Self:
        """Return the moments about ``shift`` (m) to be stored."""
        values: dict[str, Any] = {name: np.asarray(value, np.float64) for name, value in vars(moments).items()}
        return cls(**values | {"shift": shift, "rows": float(moments.rows), "weight_unit": weight_unit})

    def moments(self) -> Moments:
        """Return the sums as those of a pass."""
        kind = Moments if self.weights is None else WeightedMoments
        given = asdict(self) | {"rows": np.asarray(self.rows)}
        return kind(**{field.name: np.array(given[field.name]) for field in fields(kind)})


@dataclass(frozen=True, eq=False)
class TableSums:
    """The :class:`~dfact.questionnaires.polychoric.PairTables` of all rows that a model has seen."""

    low: Annotated[NDArray[Any], Shape(("m",))]
    high: Annotated[NDArray[Any], Shape(("m",))]
    """Lowest and highest answer to each item (m)."""
    counts: Annotated[NDArray[Any], Shape((None,), "integers", low=0)]
    """Numbers of rows that gave two answers, as the lower triangle of a matrix of all answers to all items (S(S + 1)/2)."""
    rows: int
    """Number of rows that contributed."""

    @classmethod
    def of(cls, tables: PairTables | None, levels: Levels) -> Self | None:
        """Return the tables to be stored; None if a pass counted a part of them, if they are too large, or if they hold weights."""
        if not isinstance(tables, CountedTables) or tables.counts.nbytes > KEPT_BYTES:
            return None
        return cls(levels.low, levels.high, tables.counts, int(tables.rows))

    def check(self, labels: NDArray[Any]) -> None:
        """Refuse tables of items with these labels (m,) whose levels or number of entries contradict one another."""
        S = answer_levels(self.low, self.high, labels).n_slots
        if self.counts.size != S * (S + 1) // 2:
            raise DataError(f"sums_ has {self.counts.size} counts, expected {S * (S + 1) // 2} of {S} answers to the items")

    def levels(self) -> Levels:
        """Return the levels of the items."""
        return Levels.between(self.low, self.high)

    def tables(self, levels: Levels, n_rows: int) -> CountedTables:
        """Return the tables as those of a pass over ``n_rows`` rows, for levels that contain the stored ones."""
        counts = self.levels().spread(self.counts, levels, count_dtype(n_rows, weighted=False))
        return CountedTables.of(counts, levels, self.rows)
