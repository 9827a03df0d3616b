"""Sums of a factor analysis, to which those of new rows are added: Pearson correlations then equal those of all rows."""

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.models.fitted_schema import AtLeast, Shape
from dfact.psychometrics.correlation import Moments, WeightedMoments

_PAIRS = Annotated[NDArray[Any], Shape(("m", "m"))]


@dataclass(frozen=True, eq=False)
class MomentSums:
    """The :class:`~dfact.psychometrics.correlation.Moments` of all rows that a model has seen, about fixed shifts."""

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
