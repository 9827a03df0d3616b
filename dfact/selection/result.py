"""What a selection finds."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from dfact.models.base import Factorization


@dataclass(frozen=True)
class Selection:
    """The candidates with their scores, and the model fitted with the best of them.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.binomial(4, np.eye(3)[rng.integers(0, 3, 300)] @ rng.random((3, 30)))
    >>> selection = dfact.selection.select_by_modularity(dfact.GradeOfMembership(random_state=0), answers, range(2, 5))
    >>> selection.best_params, selection.table.shape, selection.model.memberships_.shape
    ({'n_components': 3}, (3, 1), (300, 3))
    """

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
