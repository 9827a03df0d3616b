"""Records that accompany a model: the selection of its parameters, and its variation between refits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.models.estimator import SAVED_TYPES
from dfact.models.fitted_schema import Length, LessThan, Shape, UniformColumns


@dataclass(frozen=True, eq=False)
class SelectionRecord:
    """Selection that chose the parameters of a model: the attribute ``selection_`` of the fitted model that a selection returns."""

    names: Annotated[list[str], Length(("parameters",))]
    """Names of the parameters that were varied."""
    values: Annotated[list[list[float | str]], Length(("candidates", "parameters")), UniformColumns()]
    """Values of the parameters, a list for each candidate in the order of ``names``. A parameter's values are all numbers or all texts."""
    criterion: str
    """Name of the score, as the column of the selection's table: "error", "median", "modularity", "held_out", …."""
    scores: Annotated[NDArray[np.float64], Shape(("candidates",), finite=False)]
    """Score of each candidate (candidates,); NaN where it has none."""
    errors: Annotated[NDArray[np.float64], Shape(("candidates",), finite=False, low=0)]
    """Standard error of each score; NaN where it is unknown."""
    rule: str
    """Rule that chose the best score: "lowest", "highest", "1se", "knee" or "stable"."""
    best: Annotated[int, LessThan("candidates")]
    """Index of the chosen candidate."""
    figure_names: Annotated[list[str], Length(("figures",))]
    """Names of the other columns of the selection's table."""
    figures: Annotated[NDArray[np.float64], Shape(("candidates", "figures"), finite=False)]
    """Values of the other columns (candidates, figures)."""

    @classmethod
    def from_table(cls, table: pd.DataFrame, best: int, criterion: str, rule: str, error: str | None = None) -> Self:
        """Record a selection's table: a row for each candidate, parameters as index, scores in the columns ``criterion`` and ``error``."""
        index = table.index.to_frame(index=False)
        names = [str(name) for name in index]
        omitted = (criterion, error, "seconds")  # times differ between runs of the same selection
        figures = [name for name in table if name not in omitted and table[name].dtype.kind in "iufb"]
        return cls(
            names,
            [list(row) for row in zip(*(_numbers_or_texts(index[name]) for name in names), strict=True)],
            criterion,
            table[criterion].to_numpy(np.float64),
            np.full(len(table), np.nan) if error is None else table[error].to_numpy(np.float64),
            rule,
            int(best),
            [str(name) for name in figures],
            table[figures].to_numpy(np.float64),
        )

    @property
    def table(self) -> pd.DataFrame:
        """Candidates with their parameters, score, standard error (if any is known) and other figures."""
        table = pd.DataFrame(self.values, columns=self.names).assign(**{self.criterion: self.scores})
        if np.isfinite(self.errors).any():
            table["standard error"] = self.errors
        return table.assign(**{name: self.figures[:, i] for i, name in enumerate(self.figure_names)})


@dataclass(frozen=True, eq=False)
class Stability:
    """Variation of a model over refits on resampled rows: the attribute ``stability_`` of a fitted model.

    The factors of each refit are matched with the k factors of the model. The interval from ``low`` to ``high`` holds the
    share ``level`` of the refits' loadings, matched and with the model's sign, in the units of ``loadings_``.
    """

    similarity: Annotated[NDArray[np.float64], Shape(("refits", "k"), finite=False)]
    """(B, k): similarity of each refit's loadings on each factor to the model's, for B refits; 1 is the same
    direction. NaN for a resample that the model could not be fitted to."""
    mean: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): mean loadings over the refits; m is the number of rows of ``loadings_``."""
    low: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): lower ends of the intervals."""
    high: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): upper ends of the intervals."""
    level: float
    """Level of the intervals, such as 0.95."""
    selected: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): share of the refits in which the loading is not 0."""
    confounder_mean: Annotated[NDArray[np.float64], Shape(("q", "m"))] | None = None
    """(q, m): mean effects of the confounders over the refits, the q columns of the model's ``confounder_effects_``; None without any."""
    confounder_low: Annotated[NDArray[np.float64], Shape(("q", "m"))] | None = None
    """(q, m): lower ends of the effects' intervals."""
    confounder_high: Annotated[NDArray[np.float64], Shape(("q", "m"))] | None = None
    """(q, m): upper ends of the effects' intervals."""
    confounder_se: Annotated[NDArray[np.float64], Shape(("q", "m"), low=0)] | None = None
    """(q, m): standard errors of the effects: their standard deviations over the refits."""

    @property
    def n_refits(self) -> int:
        """Number of refits, B."""
        return len(self.similarity)

    def summary(self, names: Sequence[str]) -> pd.DataFrame:
        """Summarize each factor: ``median`` and 5th percentile of its similarities, number of loadings whose interval excludes 0."""
        median, low = np.nanquantile(self.similarity, [0.5, 0.05], axis=0)
        off = ((self.low > 0) | (self.high < 0)).sum(axis=1)
        return pd.DataFrame({"median": median, "5 %": low, "loadings": off}, index=pd.Index(list(names), name="factor"))


def _numbers_or_texts(values: "pd.Series[Any]") -> list[float] | list[str]:
    """Return a parameter's values as numbers if all of them are finite numbers, else as texts."""
    if values.dtype.kind in "iuf" and np.isfinite(values).all():
        numbers: list[float] = values.tolist()
        return numbers
    return [str(value) for value in values]


SAVED_TYPES.update({kind.__name__: kind for kind in (SelectionRecord, Stability)})  # any model may have them
