"""The result of a selection, and the rules that choose among its candidates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.text import html_view

RESAMPLED = {"resampled_2.5%": 0.025, "resampled_97.5%": 0.975}
"""Columns of a table with quantiles of the scores of resamples. They are not confidence limits."""


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
    """One row for each candidate, with parameters as index and scores as columns."""
    best_params: dict[str, Any]
    """Parameters of the chosen candidate, by name."""
    model: Any
    """The model fitted with ``best_params`` to the complete data; None if the rule chooses no candidate, whose parameters are None."""
    folds: pd.DataFrame | None = None
    """Errors of the folds of a cross-validation: one row for each candidate, one column for each (repeat, fold)."""
    rule: str = ""
    """The rule in words, where it looks at several scores."""

    @property
    def skipped_ranks(self) -> list[int]:
        """Numbers of components from 1 to the largest that no step of a solution path has; none for selections of another kind."""
        ranks = set(self.table["rank"]) if "rank" in self.table else set()
        return [rank for rank in range(1, max(ranks, default=0)) if rank not in ranks]

    @property
    def largest_chosen(self) -> int | None:
        """The chosen number of components if it is the largest of several that were tried: a larger one may be better. Else None."""
        chosen = self._chosen()
        table = self.table.reset_index()
        name = next((name for name in ("rank", "n_components") if name in table), None)
        if chosen is None or not chosen.any() or name is None or table[name].nunique() < 2:
            return None
        largest = int(table[name].max())
        return largest if (table[name][chosen] == largest).all() else None

    def _chosen(self) -> "pd.Series[bool] | None":
        """Return which rows of the table are the chosen candidate; None if its parameters are not in the table."""
        index = self.table.index.to_frame(index=False)
        names = list(self.best_params)
        return (index[names] == pd.Series(self.best_params)).all(axis=1) if set(names) <= set(index) else None

    def _repr_html_(self) -> str:
        """Return the candidates for a notebook, the chosen one marked."""
        chosen = self._chosen()
        table = self.table if chosen is None else self.table.assign(chosen=["✓" if each else "" for each in chosen])
        best = ", ".join(f"{name}={value}" for name, value in self.best_params.items())
        kind = "none" if self.model is None else type(self.model).__name__
        return html_view(f"Selection: {best}", [("model", kind)], {"": table})

    def __str__(self) -> str:
        best = ", ".join(f"{name}={value}" for name, value in self.best_params.items())
        return f"{self.table}\nbest: {best}"


def fold_errors(totals: NDArray[Any], counts: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Return the error of each candidate with its standard error, and the standard error of its difference from the lowest.

    ``totals`` (candidates, repeats, folds) are the summed errors of each fold, and ``counts`` of the same shape the numbers of
    its entries, equal for all candidates. ``error`` is Σ totals / Σ counts. With the error e_r of a repeat r, the N_r entries
    and the F folds of the repeat,

        se² = mean over r of F/(F − 1) Σ_f (total_rf − e_r count_rf)² / N_r²,

    which is s²/F for folds of equal size whose errors have the variance s². ``se_difference`` is the same for the differences
    of the totals from those of the candidate with the lowest error, fold by fold: the folds' own difficulty cancels.
    All repeats divide the same data, so that they reduce the part of the error that the division causes, not that of the
    sample. Therefore the variances are averaged over the repeats, not divided by their number. NaN for fewer than two folds.

    References
    ----------
    Breiman et al. (1984), section 3.4.3: the rule of one standard error; Nadeau & Bengio (2003): repeats are not independent.

    Examples
    --------
    >>> import numpy as np
    >>> totals = np.array([[[10.0, 20, 30]], [[12, 22, 32]]])
    >>> from dfact.selection.result import fold_errors
    >>> errors = fold_errors(totals, np.full(totals.shape, 10.0))
    >>> errors["error"].tolist(), errors["se"].round(3).tolist(), errors["se_difference"].tolist()
    ([2.0, 2.2], [0.577, 0.577], [0.0, 0.0])
    """
    error = totals.sum(axis=(1, 2)) / counts.sum(axis=(1, 2))
    difference = totals - totals[error.argmin()]
    return {"error": error, "se": _standard_error(totals, counts), "se_difference": _standard_error(difference, counts)}


def _standard_error(totals: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64]:
    size, n = counts.sum(axis=2), (counts > 0).sum(axis=2)
    if n.min() < 2:
        return np.full(len(totals), np.nan)
    residuals = totals - (totals.sum(axis=2) / size)[:, :, None] * counts
    variances = n / (n - 1) * np.square(residuals).sum(axis=2) / np.square(size)
    return np.asarray(np.sqrt(variances.mean(axis=1)), np.float64)


def choose(table: pd.DataFrame, rule: str) -> dict[str, Any]:
    """Return the parameters that the rule chooses from a table with one row per configuration.

    Its columns are ``error`` and, for ``1se``, ``se_difference`` (see :func:`fold_errors`).
    ``min`` chooses the lowest error. ``1se`` considers the configurations whose error exceeds the lowest by at most one
    standard error of that difference, and chooses among them the fewest components, then the largest β, then the lowest error.
    ``knee`` keeps the other parameters of the lowest error. It chooses the number of components at which the
    curve of the error lies furthest below the straight line from the fewest components to those with
    the lowest error; if the curve is nowhere below the line, it chooses the lowest error.
    """
    if rule not in RULES:
        raise ParameterError(f"rule is {rule!r}, expected one of {', '.join(map(repr, RULES))}")
    frame = table.reset_index()
    row = RULES[rule](frame)
    values = {str(name): frame.at[row, name] for name in table.index.names}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def _lowest(frame: pd.DataFrame) -> Any:
    return frame["error"].idxmin()


def _one_standard_error(frame: pd.DataFrame) -> Any:
    near = frame[frame["error"] <= frame["error"].min() + frame["se_difference"].fillna(0)]
    order = {name: ascending for name, ascending in (("n_components", True), ("beta", False), ("error", True)) if name in near}
    return near.sort_values(list(order), ascending=list(order.values()), kind="stable").index[0]


def _knee(frame: pd.DataFrame) -> Any:
    lowest = _lowest(frame)
    if "n_components" not in frame:
        return lowest
    fixed = [name for name in frame.columns[: frame.columns.get_loc("error")] if name != "n_components"]
    same = (frame[fixed] == frame.loc[lowest, fixed]).all(axis=1) & (frame["n_components"] <= frame.loc[lowest, "n_components"])
    curve = frame[same].sort_values("n_components")
    k, error = curve["n_components"].to_numpy(float), curve["error"].to_numpy()
    if len(curve) < 3:
        return lowest
    below = error[0] + (error[-1] - error[0]) * (k - k[0]) / (k[-1] - k[0]) - error
    return curve.index[int(below.argmax())] if below.max() > 1e-12 * abs(error[0]) else lowest


RULES: dict[str, Callable[[pd.DataFrame], Any]] = {"min": _lowest, "1se": _one_standard_error, "knee": _knee}
