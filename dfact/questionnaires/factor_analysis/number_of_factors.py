"""Number of factors of a factor analysis by parallel analysis, MAP and BIC, from one pass over the data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dfact.engine.threads import single_threaded
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.parallel_analysis import FactorCount, parallel_analysis
from dfact.models.provenance import SelectionRecord
from dfact.parameters import is_count
from dfact.questionnaires.factor_analysis.estimator import FactorAnalysis
from dfact.questionnaires.polychoric import grouping_information
from dfact.questionnaires.retention import bic, common_eigenvalues, minimum_average_partial
from dfact.selection.result import Selection
from dfact.selection.running.estimators import require_method, with_parameters

CRITERIA = {
    "PA": ("excess", "above chance"),
    "PA-factors": ("factor_excess", "above chance"),
    "MAP": ("MAP", "min"),
    "BIC": ("BIC", "min"),
}
"""Column of the selection's table with the scores of each criterion, and the rule that chooses among them."""


@dataclass(frozen=True)
class FactorCounts:
    """The numbers of factors by four criteria."""

    parallel_analysis: FactorCount
    """Horn's, which counts principal components."""
    parallel_analysis_of_factors: FactorCount
    minimum_average_partial: FactorCount
    bic: FactorCount | None
    """None if the correlation matrix is singular."""

    def table(self) -> "pd.Series[int]":
        """Return the numbers of factors by criterion: ``PA``, ``PA-factors``, ``MAP``, ``BIC``."""
        return pd.Series({name: number.n_factors for name, number in self.criteria().items() if number is not None}, name="factors")

    def criteria(self) -> dict[str, FactorCount | None]:
        """Return the numbers with their scores by criterion."""
        return {
            "PA": self.parallel_analysis,
            "PA-factors": self.parallel_analysis_of_factors,
            "MAP": self.minimum_average_partial,
            "BIC": self.bic,
        }


def number_of_factors(
    model: FactorAnalysis,
    X: Any,
    n_components: Sequence[int] = range(1, 11),
    *,
    sample_weight: Any = None,
    quantile: float | None = 0.95,
    random_state: int = 0,
) -> FactorCounts:
    """Estimate the number of factors of the answers X (n, m) from one pass over them.

    The criteria are Horn's parallel analysis of components, parallel analysis of common factors (``quantile`` and ``random_state`` as in
    :func:`dfact.linalg.parallel_analysis.parallel_analysis`), Velicer's MAP, and the lowest BIC of the factor models with
    ``n_components``. ``model`` determines the kind of correlations, the treatment of missing answers and the executor.
    For polychoric correlations, the random eigenvalues of the parallel analysis come from unrelated answers in these categories,
    and with ``missing="pairwise"`` from as many answers to each pair of items.
    ``sample_weight`` and its default are those of ``fit``; with weights, n is Kish's effective number of rows.
    """
    copied = with_parameters(model)  # the model is not changed
    if not is_count(random_state) and random_state != 0:
        raise ParameterError(f"random_state is {random_state!r}, expected an integer of at least 0")
    correlation = copied.correlate(X, sample_weight=sample_weight)
    n = round(correlation.n_effective)
    with single_threaded():
        try:
            best = bic(correlation.R, n, n_components)
        except DataError:
            best = None
        information = None if correlation.thresholds is None else grouping_information(correlation.thresholds)
        components, factors = (
            parallel_analysis(
                correlation.R,
                n,
                eigenvalues=eigenvalues,
                quantile=quantile,
                seed=random_state,
                information=information,
                shares=correlation.counts / correlation.n,
            )
            for eigenvalues in (None, common_eigenvalues)
        )
        return FactorCounts(components, factors, minimum_average_partial(correlation.R), best)


def select_number_of_factors(
    model: FactorAnalysis,
    X: Any,
    n_components: Sequence[int] = range(1, 11),
    *,
    criterion: str = "PA",
    sample_weight: Any = None,
    quantile: float = 0.95,
    random_state: int = 0,
) -> Selection:
    """Choose the number of factors by one of four criteria, and return the factor analysis fitted with it.

    Parameters
    ----------
    model : FactorAnalysis
        The fit uses all of its parameters but ``n_components``. It is not changed.
    X : array (n, m) of any kind, path or Dataset
        Answers.
    n_components : numbers
        Candidates.
    criterion : "PA", "PA-factors", "MAP" or "BIC"
        Criterion that chooses: parallel analysis of components (Horn's), parallel analysis of common factors (psych's), minimum average
        partial, or the lowest BIC; see :func:`dfact.questionnaires.factor_analysis.number_of_factors.number_of_factors`.
    sample_weight : numbers (n,), optional
        The weights passed to ``model.fit``; a Dataset or path brings its own.
    quantile, random_state
        Quantile and seed of the parallel analyses.

    Returns
    -------
    Selection
        ``table`` with the scores of all criteria for each ``n_components``. Parallel analysis has the ``eigenvalue`` of the last
        component, the ``random`` one of unrelated answers, and the ``excess`` over it; ``factor_eigenvalue``, ``factor_random`` and
        ``factor_excess`` are those of common factors. ``MAP`` is the average squared partial correlation, and ``BIC`` is there if it
        is defined for the data.

    Raises
    ------
    DataError, ParameterError, MemoryPlanError
        The same conditions as for ``model.fit``; or BIC chooses and the correlations are singular.

    Warns
    -----
    UserWarning
        The number of factors by the criterion is none of the candidates; the nearest of them is chosen.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.normal(size=(500, 2)) @ np.kron(np.eye(2), np.ones(6)) + rng.normal(size=(500, 12))
    >>> dfact.selection.select_number_of_factors(dfact.FactorAnalysis(), answers, range(1, 6)).best_params
    {'n_components': 2}
    """
    require_method(model, "correlate", "a FactorAnalysis, as the criteria rate common factors")
    candidates = sorted(set(n_components))
    if criterion not in CRITERIA:
        raise ParameterError(f"criterion is {criterion!r}, expected one of {', '.join(map(repr, CRITERIA))}")
    if not candidates or candidates[0] < 1:
        raise ParameterError(f"n_components is {list(n_components)}, expected numbers of factors of at least 1")
    counts = number_of_factors(model, X, candidates, sample_weight=sample_weight, quantile=quantile, random_state=random_state)
    chosen = counts.criteria()[criterion]
    if chosen is None:
        remedy = "use criterion='PA' (--criterion PA), or import without some items"
        raise DataError(f"the correlation matrix is singular, so that BIC is not defined; {remedy}")
    best = min(candidates, key=lambda k: abs(k - chosen.n_factors))
    if best != chosen.n_factors:
        message = f"{criterion} finds {chosen.n_factors} factors, expected one of the candidates {candidates[0]} to {candidates[-1]}"
        warn(f"{message}; {best} was chosen; try more candidates: n_components= (--components)")
    table = _scores(counts, candidates)
    fitted = with_parameters(model, n_components=best).fit(X, sample_weight=sample_weight)
    score, rule = CRITERIA[criterion]
    fitted.selection_ = SelectionRecord.from_table(table, candidates.index(best), score, rule)
    return Selection(table, {"n_components": best}, fitted)


def _scores(counts: FactorCounts, candidates: Sequence[int]) -> pd.DataFrame:
    """Return the criteria for each candidate, NaN where one is not defined."""
    columns: dict[str, dict[Any, Any]] = {}
    for prefix, number in (("", counts.parallel_analysis), ("factor_", counts.parallel_analysis_of_factors)):
        assert number.reference is not None, "parallel analysis has one"
        figures = {"eigenvalue": number.values, "random": number.reference, "excess": number.values - number.reference}
        columns |= {prefix + name: dict(zip(number.candidates, values, strict=True)) for name, values in figures.items()}
    partials = counts.minimum_average_partial
    columns["MAP"] = dict(zip(partials.candidates, partials.values, strict=True))
    if counts.bic is not None:
        columns["BIC"] = dict(zip(counts.bic.candidates, counts.bic.values, strict=True))
    rows = {name: [float(scores.get(float(k), np.nan)) for k in candidates] for name, scores in columns.items()}
    return pd.DataFrame(rows, index=pd.Index(candidates, name="n_components"))
