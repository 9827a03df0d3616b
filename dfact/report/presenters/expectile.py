"""What a fitted expectile matrix factorization says: its summary, and the columns of each component."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dfact.report.factors import largest_items, under_headings
from dfact.report.text import remaining_text, row_chunks

Texts = Mapping[str, str] | None


def summary_lines(model: Any) -> list[tuple[str, str]]:
    """Size and figures of the fit, each with its name."""
    n, k = model.factors_.shape
    stopped = "converged after" if model.converged_ else "stopped before it converged, after"
    return [
        ("model", f"{type(model).__name__}, {k} components of {n} rows × {len(model.column_labels_)} columns"),
        ("loss", f"expectiles at omega {model.omega:g}, ridge {model.ridge:g}"),
        ("fit", f"{stopped} {model.n_iter_} iterations, objective {model.objective_history_[-1]:.6g}{remaining_text(model.remaining_)}"),
    ]


def component_norms(model: Any) -> "pd.Series[Any]":
    """‖x_a‖·‖y_a‖ of each component a, the Frobenius norm of what it adds to the model. Row factors in a store are read by chunks."""
    squares = sum(np.square(rows, dtype=np.float64).sum(axis=0) for rows in row_chunks(model.factors_))
    norms = np.sqrt(squares * np.square(model.column_factors_, dtype=np.float64).sum(axis=0))
    return pd.Series(norms, index=pd.Index(model.get_feature_names_out(), name="component"))


def components_text(model: Any, n: int = 5, texts: Texts = None) -> str:
    """The columns with the largest factors of either sign under each component."""
    norms = component_norms(model)
    return under_headings([f"{name}: norm {norm:.4g}" for name, norm in norms.items()], list(norms.index), largest_items(model, n, texts))
