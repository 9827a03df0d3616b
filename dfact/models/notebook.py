"""A fitted model in a notebook: a few figures, and the leading items of each component."""

from __future__ import annotations

from typing import Any

import numpy as np

from dfact.lazy import pd
from dfact.text import html_view

_LEADING = 5
_MOST_COMPONENTS = 20
_MOST_ITEMS = 100_000  # to sort more would delay the cell


def model_html(model: Any) -> str:
    """Return the HTML that a notebook shows below a fitted model. Labels are escaped."""
    words, k = model.vocabulary, len(model.get_feature_names_out())
    title = f"{k} {words.components} of {model.n_features_in_} {words.items}"
    lines = []
    if (share := getattr(model, "explained_share_", None)) is not None:
        lines.append(("explained", f"{share:.1%}"))
    if (iterations := getattr(model, "n_iter_", None)) is not None:
        lines.append(("iterations", f"{iterations}{'' if getattr(model, 'converged_', True) else ', stopped before it converged'}"))
    if model.n_features_in_ > _MOST_ITEMS:
        return html_view(title, lines)
    leading = leading_items(model.loadings_).head(_MOST_COMPONENTS).rename_axis(words.component).to_frame(f"leading {words.items}")
    return html_view(title, lines, {f"{words.loadings} of the largest size": leading})


def leading_items(loadings: pd.DataFrame, count: int = _LEADING) -> pd.Series[Any]:
    """Return for each component the items with its largest loadings by size, as a text, with the loadings; those of 0 are left out."""
    texts = {}
    for name, values in loadings.items():
        numbers = values.to_numpy()
        sizes = np.nan_to_num(np.abs(numbers))
        largest = np.argsort(-sizes, kind="stable")[:count]
        texts[str(name)] = ", ".join(f"{_label(loadings.index[j])} {numbers[j]:.2f}" for j in largest if sizes[j] > 0) or "none"
    return pd.Series(texts)


def _label(label: Any) -> str:
    return " ".join(map(str, label)) if isinstance(label, tuple) else str(label)
