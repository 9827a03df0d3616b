"""Figures of the rows of a fit, with which those of new rows are compared: residuals of the items, moments of the factors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import PartialSums, Withheld
from dfact.kernels.entries import residual_sums
from dfact.models.fitted_schema import Shape

ITEM_SUMS = 5
"""Sums of the residuals of each item."""


@dataclass
class Baseline(PartialSums, name="baseline", disclosure=Withheld("leaves within the sums of a fit alone")):
    """Sums over rows with weights s, 1 without; a pass over rows inherits them. Rows whose factors are NaN do not count."""

    rows: Annotated[NDArray[Any], Shape(("baseline_rows",), low=0)]
    """Σ s and Σ s² (2,)."""
    items: Annotated[NDArray[Any], Shape(("baseline_items", "m"))]
    """Σ s, Σ s², Σ s r, Σ s r² and Σ s r³ over the rows that answered each item, with residuals r (5, m)."""
    factors: Annotated[NDArray[Any], Shape(("baseline_factors", "k"))]
    """Σ s f, Σ s f², Σ s f³ and Σ s f⁴ of each factor (4, k)."""

    @classmethod
    def of(cls, sums: Baseline) -> Self:
        """Return the baseline alone of the sums of a pass that inherits it."""
        return cls(**{field.name: np.asarray(getattr(sums, field.name), np.float64) for field in fields(cls)})

    def figures(self) -> dict[str, NDArray[Any]]:
        """Return the sums by name, for the sums of a pass that inherits them."""
        return {name: getattr(self, name) for name in ("rows", "items", "factors")}

    def arranged(self, order: NDArray[np.intp], scales: NDArray[np.float64]) -> Baseline:
        """Return the sums after factor ``order[i]``, times ``scales[i]``, becomes factor i."""
        factors = self.factors[:, order] * np.stack([scales, scales**2, scales**3, scales**4])
        return Baseline(self.rows, self.items, factors)

    def merged(self, other: Baseline, order: NDArray[np.intp], scales: NDArray[np.float64]) -> Baseline:
        """Return the sums of both. Factor i of ``other`` is factor ``order[i]`` of this one, times ``scales[i]``."""
        earlier = self.arranged(order, scales)
        return Baseline(earlier.rows + other.rows, earlier.items + other.items, earlier.factors + other.factors)


def compute_baseline(
    M: NDArray[Any], R: NDArray[Any], F: NDArray[Any], sample_weight: NDArray[Any] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the sums of a :class:`Baseline` by name, for rows M (n, m; NaN = missing) with their model R (n, m) and factors F (n, k)."""
    s = np.ones(len(M)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    known = ~np.isnan(F).any(axis=1)
    if not known.all():
        M, R, F, s = M[known], R[known], F[known], s[known]
    items = np.zeros((ITEM_SUMS, M.shape[1]))
    residual_sums(M, R, s, items)
    return {"items": items, **factor_sums(F, s)}


def factor_sums(F: NDArray[Any], s: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the sums of a :class:`Baseline` that need no residuals, for factors F (n, k) of rows with weights s (n,)."""
    wide = F.astype(np.float64)
    powers = [wide]
    for _ in range(3):
        powers.append(powers[-1] * wide)
    return {"rows": np.array([s.sum(), s @ s]), "factors": np.stack([s @ power for power in powers])}
