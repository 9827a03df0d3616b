"""What a selection finds."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from dfact.models.base import Factorization


@dataclass(frozen=True)
class Selection:
    """The candidates with their scores, and the model fitted with the best of them."""

    table: pd.DataFrame
    """A row for each candidate: its parameters as index, its scores as columns."""
    best_params: dict[str, Any]
    model: Factorization
    """Fitted with ``best_params`` on all the data."""
    folds: pd.DataFrame | None = None
    """Of a cross-validation the error of each fold: a row for each candidate, a column for each (repeat, fold)."""

    def __str__(self) -> str:
        best = ", ".join(f"{name}={value}" for name, value in self.best_params.items())
        return f"{self.table}\nbest: {best}"
