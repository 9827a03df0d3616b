"""In which order and with which signs the components of a model are written, so that equal models give equal tables.

The order is the model's own where it has one: classes by size (grade of membership), components by singular value
(expectile factorization) or weight (CP), factors by the variance they explain (factor analysis). Factors of other models
come by ‖w_a‖‖h_a‖, the Frobenius norm of what each adds to the model, largest first. They keep their names.

The signs are the model's own where it has a rule (expectile factorization: the largest loading is positive; factor
analysis: the sum of loadings is positive), or where nothing is negative. Of others, CP above all, the largest entry of
each column of loadings, in each mode from the second on, is positive; the factors of the rows, mode 1, have the sign
that leaves the model as it is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.report.text import row_chunks


@dataclass(frozen=True, eq=False)
class ComponentOrder:
    """Of the components of a model."""

    order: NDArray[np.intp]
    """(k,)."""
    row_signs: NDArray[np.float64]
    """(k,), in the model's order: of the row factors."""
    signs: list[NDArray[np.float64]]
    """(k,) each, in the model's order: of the loadings, of CP for each mode from the second on."""

    @classmethod
    def of(cls, model: Any) -> "ComponentOrder":
        """By the rule above; row factors in a store are read by chunks."""
        k = len(model.get_feature_names_out())
        if model.traits.ordered:
            return cls(np.arange(k), np.ones(k), [np.ones(k)])
        if model.traits.tensor:
            signs = [_signs_of(np.asarray(A)) for A in model.factors_[1:]]
            return cls(np.arange(k), np.prod(signs, axis=0), signs)
        squares = sum(np.square(rows, dtype=np.float64).sum(axis=0) for rows in row_chunks(model.factors_))
        norms = squares * np.square(model.components_, dtype=np.float64).sum(axis=1)
        sign = _signs_of(model.components_.T)
        return cls(np.argsort(-norms, kind="stable"), sign, [sign])

    def names(self, model: Any) -> list[str]:
        """Of the components."""
        return [str(model.get_feature_names_out()[a]) for a in self.order]

    def loadings(self, model: Any) -> pd.DataFrame:
        """The model's ``loadings_``."""
        sizes = [A.shape[0] for A in model.factors_[1:]] if model.traits.tensor else [len(model.loadings_)]
        signs = np.repeat(np.asarray(self.signs), sizes, axis=0)
        table: pd.DataFrame = model.loadings_
        return (table * signs).iloc[:, self.order]

    def rows(self, factors: NDArray[Any]) -> NDArray[Any]:
        """Some of the row factors (rows, k)."""
        arranged: NDArray[Any] = (factors * self.row_signs.astype(factors.dtype))[:, self.order]
        return arranged


def _signs_of(columns: NDArray[Any]) -> NDArray[np.float64]:
    """Of each column that of its largest entry; 1 of a column of zeros."""
    largest = np.take_along_axis(columns, np.abs(columns).argmax(axis=0)[None], axis=0)[0]
    return np.where(largest < 0, -1.0, 1.0)
