"""What a selection finds."""

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
    """A row for each candidate: its parameters as index, its scores as columns."""
    best_params: dict[str, Any]
    model: Factorization
    """Fitted with ``best_params`` on all the data."""
    folds: pd.DataFrame | None = None
    """Of a cross-validation the error of each fold: a row for each candidate, a column for each (repeat, fold)."""

    def __str__(self) -> str:
        best = ", ".join(f"{name}={value}" for name, value in self.best_params.items())
        return f"{self.table}\nbest: {best}"


def choose(table: pd.DataFrame, rule: str) -> dict[str, Any]:
    """The parameters of the configuration that the rule takes of a table with a row for each, columns ``error`` and ``se``.

    ``lowest`` takes the lowest error. ``1se`` takes, of those within one standard error (that of the
    lowest) of the lowest, the fewest components, then the largest β, then the lowest error. ``knee``
    takes, with the other parameters of the lowest error, the number of components where the
    curve of the error lies furthest below the straight line from the fewest components to those with
    the lowest error; the lowest where it lies below it nowhere.
    """
    if rule not in RULES:
        raise ParameterError(f"rule is {rule!r}, expected one of {', '.join(map(repr, RULES))}")
    frame = table.reset_index()
    taken = RULES[rule](frame)
    return {str(name): _plain(frame.at[taken, name]) for name in table.index.names}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _lowest(frame: pd.DataFrame) -> Any:
    return frame["error"].idxmin()


def _one_standard_error(frame: pd.DataFrame) -> Any:
    lowest = frame.loc[_lowest(frame)]
    spread = lowest["se"] if np.isfinite(lowest["se"]) else 0.0
    near = frame[frame["error"] <= lowest["error"] + spread]
    order = {name: rising for name, rising in (("n_components", True), ("beta", False), ("error", True)) if name in near}
    return near.sort_values(list(order), ascending=list(order.values()), kind="stable").index[0]


def _knee(frame: pd.DataFrame) -> Any:
    lowest = _lowest(frame)
    if "n_components" not in frame:
        return lowest
    others = [name for name in frame.columns[: frame.columns.get_loc("error")] if name != "n_components"]
    same = (frame[others] == frame.loc[lowest, others]).all(axis=1) & (frame["n_components"] <= frame.loc[lowest, "n_components"])
    curve = frame[same].sort_values("n_components")
    k, error = curve["n_components"].to_numpy(float), curve["error"].to_numpy()
    if len(curve) < 3:
        return lowest
    below = error[0] + (error[-1] - error[0]) * (k - k[0]) / (k[-1] - k[0]) - error
    return curve.index[int(below.argmax())] if below.max() > 1e-12 * abs(error[0]) else lowest


RULES: dict[str, Callable[[pd.DataFrame], Any]] = {"lowest": _lowest, "1se": _one_standard_error, "knee": _knee}
