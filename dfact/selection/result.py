"""The result of a selection, and the rules that choose among its candidates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dfact.errors import ParameterError
from dfact.models.estimator import Factorization


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
    model: Factorization
    """The model fitted with ``best_params`` to the complete data."""
    folds: pd.DataFrame | None = None
    """Errors of the folds of a cross-validation: one row for each candidate, one column for each (repeat, fold)."""

    @property
    def skipped_ranks(self) -> list[int]:
        """Numbers of components from 1 to the largest that no step of a solution path has; none for selections of another kind."""
        ranks = set(self.table["rank"]) if "rank" in self.table else set()
        return [rank for rank in range(1, max(ranks, default=0)) if rank not in ranks]

    def __str__(self) -> str:
        best = ", ".join(f"{name}={value}" for name, value in self.best_params.items())
        return f"{self.table}\nbest: {best}"


def choose(table: pd.DataFrame, rule: str) -> dict[str, Any]:
    """Return the parameters that the rule chooses from a table with one row per configuration and the columns ``error`` and ``se``.

    ``lowest`` chooses the lowest error. ``1se`` considers the configurations within one standard error (that of the
    lowest) of the lowest error, and chooses among them the fewest components, then the largest β, then the lowest error.
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
    lowest = frame.loc[_lowest(frame)]
    spread = lowest["se"] if np.isfinite(lowest["se"]) else 0.0
    near = frame[frame["error"] <= lowest["error"] + spread]
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


RULES: dict[str, Callable[[pd.DataFrame], Any]] = {"lowest": _lowest, "1se": _one_standard_error, "knee": _knee}
