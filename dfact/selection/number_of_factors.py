"""Number of factors of a factor analysis by parallel analysis, MAP and BIC, from one pass over the data."""

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
    """The numbers of factors by three criteria."""

    parallel_analysis: FactorCount
    minimum_average_partial: FactorCount
    bic: FactorCount | None
    """None if the correlation matrix is singular."""

    def table(self) -> "pd.Series[int]":
        """Return the numbers of factors by criterion: ``PA``, ``MAP``, ``BIC``."""
        criteria = {"PA": self.parallel_analysis, "MAP": self.minimum_average_partial, "BIC": self.bic}
        return pd.Series({name: number.n_factors for name, number in criteria.items() if number is not None}, name="factors")


def number_of_factors(
    model: FactorAnalysis,
    X: Any,
    n_components: Sequence[int] = range(1, 11),
    *,
    sample_weight: Any = None,
    quantile: float | None = 0.95,
    seed: int = 0,
) -> FactorCounts:
    """Estimate the number of factors of the answers X (n, m) from one pass over them.

    The criteria are Horn's parallel analysis (``quantile`` and ``seed`` as in
    :func:`dfact.linalg.factor_retention.parallel_analysis`), Velicer's MAP, and the lowest BIC of the factor
    models with ``n_components``. ``model`` determines the treatment of missing answers and the executor. ``sample_weight`` and
    its default are those of ``fit``; with weights, n is Kish's effective number of rows.
    """
    correlation = FactorAnalysis(**model.get_params(deep=False)).correlate(
        X, sample_weight=sample_weight
    )  # a copy: the model is not changed
    n = round(correlation.n_effective)
    with single_threaded():
        try:
            best = bic(correlation.R, n, n_components)
        except DataError:
            best = None
        random = parallel_analysis(correlation.R, n, quantile=quantile, seed=seed)
        return FactorCounts(random, minimum_average_partial(correlation.R), best)
