"""How many factors answers have: parallel analysis, MAP and BIC of any data, by one pass over it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dfact.engine.threads import single_threaded
from dfact.errors import DataError
from dfact.linalg.factor_retention import FactorCount, bic, minimum_average_partial, parallel_analysis
from dfact.models.factor_analysis.estimator import FactorAnalysis


@dataclass(frozen=True)
class FactorCounts:
    """How many factors three criteria find."""

    parallel_analysis: FactorCount
    minimum_average_partial: FactorCount
    bic: FactorCount | None
    """None where the correlation matrix is singular."""

    def table(self) -> "pd.Series[int]":
        """The numbers of factors by name: ``PA``, ``MAP``, ``BIC``."""
        found = {"PA": self.parallel_analysis, "MAP": self.minimum_average_partial, "BIC": self.bic}
        return pd.Series({name: number.n_factors for name, number in found.items() if number is not None}, name="factors")


def number_of_factors(
    model: FactorAnalysis, X: Any, n_components: Sequence[int] = range(1, 11), *, quantile: float | None = 0.95, seed: int = 0
) -> FactorCounts:
    """How many factors the answers X (n, m) have, by one pass over them.

    By Horn's parallel analysis (``quantile`` and ``seed`` as in
    :func:`dfact.linalg.factor_retention.parallel_analysis`), Velicer's MAP, and the lowest BIC of the factor
    models with ``n_components``. ``model`` says how missing answers are taken and where the pass runs.
    """
    found = FactorAnalysis(**model.get_params(deep=False)).correlate(X)  # the model itself stays as it is
    with single_threaded():
        try:
            best = bic(found.R, found.n, n_components)
        except DataError:
            best = None
        random = parallel_analysis(found.R, found.n, quantile=quantile, seed=seed)
        return FactorCounts(random, minimum_average_partial(found.R), best)
