"""Tables of fitted models, shared by all presenters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.errors import ParameterError
from dfact.lazy import pd
from dfact.text import escape_control, indented, table_text

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization

Texts = Mapping[str, str] | None
"""Texts of items by their labels."""
Lines = list[tuple[str, str]]
"""Named lines of a summary."""


def row_chunks(rows: Any) -> Iterator[NDArray[Any]]:
    """Yield an array (n, k) in memory or in a store chunk by chunk."""
    step = Layout.of(rows.shape).chunk_rows
    for start in range(0, rows.shape[0], step):
        yield np.asarray(rows[start : start + step])


def largest_items(model: Factorization, loadings: pd.DataFrame, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items with the largest loadings of either sign: columns ``factor``, ``item``, ``loading``, and ``text`` if known."""
    # By position: the labels of a mode may repeat.
    largest = {name: np.argsort(-values.abs().to_numpy(), kind="stable")[:n] for name, values in loadings.items()}
    rows = [(name, str(loadings.index[i]), float(loadings[name].iloc[i])) for name, positions in largest.items() for i in positions]
    return with_texts(pd.DataFrame(rows, columns=["factor", "item", "loading"]), model, texts)


def highest_items(loadings: pd.DataFrame, n: int) -> pd.DataFrame:
    """Return the items with the highest loadings on each component: columns ``factor``, ``item``, ``loading``."""
    rows = [
        (name, str(loadings.index[j]), float(values[j]))
        for name, values in zip(loadings, loadings.to_numpy().T, strict=True)
        for j in np.argsort(-values, kind="stable")[:n]
    ]
    return pd.DataFrame(rows, columns=["factor", "item", "loading"])


def distinctive_items(loadings: pd.DataFrame, n: int) -> pd.DataFrame:
    """Return the items that separate each component most from the others: the columns of :func:`highest_items`, and ``difference``.

    ``difference`` is the loading on the component minus the mean of those on the other components. A single component has no
    such items.
    """
    k = loadings.shape[1]
    values = loadings.to_numpy(np.float64)
    differences = (values - values.mean(axis=1, keepdims=True)) * (k / max(k - 1, 1))
    rows = [
        (name, str(loadings.index[j]), values[j, c], differences[j, c])
        for c, name in enumerate(loadings if k > 1 else ())
        for j in np.argsort(-np.abs(differences[:, c]), kind="stable")[:n]
    ]
    return pd.DataFrame(rows, columns=["factor", "item", "loading", "difference"])


def item_texts(model: Factorization, texts: Texts = None) -> Mapping[str, str]:
    """Return the texts of the items by their labels: those given, else those of the codebook of the fitted data."""
    codebook = getattr(model, "codebook_", None)
    return {**({} if codebook is None else codebook.texts), **(texts or {})}


def item_scales(model: Factorization, scales: Texts = None) -> Mapping[str, str]:
    """Return the scales of the items by their labels: those given, else those of the codebook of the fitted data."""
    codebook = getattr(model, "codebook_", None)
    return {**({} if codebook is None else codebook.scales), **(scales or {})}


def require_own_items(model: Factorization, **given: Texts) -> None:
    """Raise ParameterError for texts, scales or groups by item that contain none of the model's items."""
    items = model.loadings_.index.astype(str)
    for name, labels in given.items():
        if labels and not set(items) & set(labels):
            found, expected = (", ".join(list(some)[:5]) for some in (labels, items))
            raise ParameterError(f"{name} are for {found}, …, which are not items of the model; expected some of {expected}, …")


def with_texts(table: pd.DataFrame, model: Factorization, texts: Texts) -> pd.DataFrame:
    """Add the texts of the items as a column ``text``, if there are texts."""
    known = item_texts(model, texts)
    return table.assign(text=[known.get(item, "") for item in table["item"]]) if known else table


def convergence_text(model: Factorization, steps: str = "iterations") -> str:
    """Describe the iterations, or passes, of a fit."""
    return f"{'converged' if model.converged_ else 'stopped before it converged,'} after {model.n_iter_} {steps}"


def fit_line(model: Factorization, remaining: float) -> tuple[str, str]:
    """Describe the iterations, the objective, and its estimated distance from its limit (NaN without an estimate)."""
    distance = "" if isnan(remaining) else f", estimated within {100 * remaining:.1g}% of its limit"
    return "fit", f"{convergence_text(model)}, objective {model.objective_history_[-1]:.6g}{distance}"


def under_headings(headings: list[str], names: list[str], items: pd.DataFrame, column: str = "factor") -> str:
    """List the items of each component under its heading; ``column`` holds the names of the components."""
    parts = []
    for heading, name in zip(headings, names, strict=True):
        rows = items[items[column] == name].drop(columns=column)
        parts.append(f"{escape_control(heading)}\n{indented(table_text(rows)) if len(rows) else '  no item'}")
    return "\n".join(parts)


def elided(labels: Sequence[str]) -> str:
    """List labels, without most of them if they are more than eight."""
    return ", ".join(labels if len(labels) <= 8 else [*labels[:4], "…", *labels[-2:]])
