"""The order and signs in which the components of a model are written, so that equal models give equal tables.

A model with ``traits.ordered`` keeps its own order and signs: classes by size (grade of membership), components by singular
value (expectile factorization), factors by explained variance (factor analysis). CP models keep their own order, by weight.
The factors of other models are sorted by ‖w_a‖‖h_a‖, the Frobenius norm of the contribution w_a h_aᵀ of row factor w_a and
component h_a, largest first. All components keep their names.

In all models without ``traits.ordered``, signs are chosen so that the entry of largest magnitude in each column of loadings is
positive; in CP models, in each mode from the second on. The row factors (mode 1) take the sign that leaves the model unchanged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.export.tables import row_chunks
from dfact.models.estimator import Factorization


@dataclass(frozen=True, eq=False)
class ComponentOrder:
    """The order and signs of the components of a model."""

    order: NDArray[np.intp]
    """Positions of the components in the model, in the order in which they are written (k,)."""
    row_signs: NDArray[np.float64]
    """Signs of the row factors (k,), in the model's order."""
    signs: list[NDArray[np.float64]]
    """Signs of the loadings (k,), in the model's order; one array for each mode from the second on."""

    @classmethod
    def of(cls, model: Factorization) -> "ComponentOrder":
        """Determine the order and signs of a model; row factors in a store are read in chunks."""
        k = len(model.get_feature_names_out())
        if model.traits.ordered:
            return cls(np.arange(k), np.ones(k), [np.ones(k)])
        if model.traits.tensor:
            signs = [_column_signs(np.asarray(A)) for A in model.factors_[1:]]
            return cls(np.arange(k), np.prod(signs, axis=0), signs)
        sums_of_squares = sum(np.square(rows, dtype=np.float64).sum(axis=0) for rows in row_chunks(model.factors_))
        squared_norms = sums_of_squares * np.square(model.components_, dtype=np.float64).sum(axis=1)
        sign = _column_signs(model.components_.T)
        return cls(np.argsort(-squared_norms, kind="stable"), sign, [sign])

    def names(self, model: Factorization) -> list[str]:
        """Return the names of the components in this order."""
        return [str(model.get_feature_names_out()[a]) for a in self.order]

    def loadings(self, model: Factorization) -> pd.DataFrame:
        """Return ``loadings_`` with this order and these signs."""
        table: pd.DataFrame = model.loadings_
        signs = np.repeat(np.asarray(self.signs), getattr(model, "slice_shape_", [len(table)]), axis=0)
        return (table * signs).iloc[:, self.order]

    def rows(self, factors: NDArray[Any]) -> NDArray[Any]:
        """Return row factors (rows, k) with this order and these signs."""
        ordered: NDArray[Any] = (factors * self.row_signs.astype(factors.dtype))[:, self.order]
        return ordered


def _column_signs(columns: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sign of the entry of largest magnitude in each column; 1 for a column of zeros."""
    largest = np.take_along_axis(columns, np.abs(columns).argmax(axis=0)[None], axis=0)[0]
    return np.where(largest < 0, -1.0, 1.0)
