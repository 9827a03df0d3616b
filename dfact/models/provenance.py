"""What a model tells beside its fit: how its parameters were chosen, and how it varies from refit to refit."""

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
    """How the parameters of a model were chosen: a fitted model has it as ``selection_``, set by the selection that returned it."""

    names: Annotated[list[str], Length(("parameters",))]
    """Of the parameters that were tried."""
    values: Annotated[list[list[float | str]], Length(("candidates", "parameters")), UniformColumns()]
    """Their values, a list for each candidate in the order of ``names``: of a parameter all are numbers, or texts."""
    criterion: str
    """Name of the score, as the column of the selection's table: "error", "median", "modularity", "held_out", …."""
    scores: Annotated[NDArray[np.float64], Shape(("candidates",), finite=False)]
    """(candidates,); NaN where a candidate has none."""
    errors: Annotated[NDArray[np.float64], Shape(("candidates",), finite=False, low=0)]
    """Standard error of each score; NaN where it is not known."""
    rule: str
    """How the best was taken of the scores: "lowest", "highest", "1se", "knee" or "stable"."""
    best: Annotated[int, LessThan("candidates")]
    """The number of the candidate that was chosen."""
    figure_names: Annotated[list[str], Length(("figures",))]
    """Of what else the selection's table tells of each candidate."""
    figures: Annotated[NDArray[np.float64], Shape(("candidates", "figures"), finite=False)]
    """(candidates, figures)."""

    @classmethod
    def from_table(cls, table: pd.DataFrame, best: int, criterion: str, rule: str, error: str | None = None) -> Self:
        """Of a selection's table: a row for each candidate, parameters as index, scores in the columns ``criterion`` and ``error``."""
        index = table.index.to_frame(index=False)
        names = [str(name) for name in index]
        left_out = (criterion, error, "seconds")  # the time it took is no part of a result
        others = [name for name in table if name not in left_out and table[name].dtype.kind in "iufb"]
        return cls(
            names,
            [list(row) for row in zip(*(_plain(index[name]) for name in names), strict=True)],
            criterion,
            table[criterion].to_numpy(np.float64),
            np.full(len(table), np.nan) if error is None else table[error].to_numpy(np.float64),
            rule,
            int(best),
            [str(name) for name in others],
            table[others].to_numpy(np.float64),
        )

    @property
    def table(self) -> pd.DataFrame:
        """The candidates with their parameters, score, standard error (if any is known) and further figures."""
        table = pd.DataFrame(self.values, columns=self.names).assign(**{self.criterion: self.scores})
        if np.isfinite(self.errors).any():
            table["standard error"] = self.errors
        return table.assign(**{name: self.figures[:, i] for i, name in enumerate(self.figure_names)})


@dataclass(frozen=True, eq=False)
class Stability:
    """How a model varies over refits on resampled rows: a fitted model has it as ``stability_``.

    The factors of each refit are matched with those of the model, k of them; what is low and high holds the
    share ``level`` of the refits' loadings, matched and with the model's sign, in the units of ``loadings_``.
    """

    similarity: Annotated[NDArray[np.float64], Shape(("refits", "k"), finite=False)]
    """(B, k): of each of B refits the similarity of its loadings on each factor to the model's, 1 being the same
    direction; NaN of a resample that the model could not be fitted to."""
    mean: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): mean loadings over the refits; m is the number of rows of ``loadings_``."""
    low: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): lower ends of the intervals."""
    high: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): upper ends of the intervals."""
    level: float
    """Of the intervals, such as 0.95."""
    selected: Annotated[NDArray[np.float64], Shape(("k", "m"))]
    """(k, m): share of the refits in which the loading is not 0."""

    @property
    def n_refits(self) -> int:
        """B."""
        return len(self.similarity)

    def summary(self, names: Sequence[str]) -> pd.DataFrame:
        """Of each factor the ``median`` and the 5th percentile of its similarities, and of how many loadings the interval is off 0."""
        median, low = np.nanquantile(self.similarity, [0.5, 0.05], axis=0)
        off = ((self.low > 0) | (self.high < 0)).sum(axis=1)
        return pd.DataFrame({"median": median, "5 %": low, "loadings": off}, index=pd.Index(list(names), name="factor"))


def _plain(values: "pd.Series[Any]") -> list[float] | list[str]:
    """Values of a parameter as numbers, or if they are not all that, as texts."""
    if values.dtype.kind in "iuf" and np.isfinite(values).all():
        numbers: list[float] = values.tolist()
        return numbers
    return [str(value) for value in values]


SAVED_TYPES.update({part.__name__: part for part in (SelectionRecord, Stability)})  # any model may have them
