"""What a fitted CP decomposition says: its summary, and the slices of each component."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dfact.report.factors import largest_items, under_headings
from dfact.report.text import remaining_text

Texts = Mapping[str, str] | None


def summary_lines(model: Any) -> list[tuple[str, str]]:
    """Size and figures of the fit, each with its name."""
    sizes = "×".join(str(A.shape[0]) for A in model.factors_)
    stopped = "converged after" if model.converged_ else "stopped before it converged, after"
    others = model.factors_[1:]
    zeros = sum(int((A[:, : model.rank_] == 0).sum()) for A in others) / max(1, sum(len(A) * model.rank_ for A in others))
    lines = [
        ("model", f"{type(model).__name__}, {model.rank_} of {len(model.weights_)} components left, of a tensor {sizes}"),
        ("fit", f"{stopped} {model.n_iter_} iterations, objective {model.objective_history_[-1]:.6g}{remaining_text(model.remaining_)}"),
        ("explained", f"{model.explained_share_:.2%} of the squares"),
        ("sparsity", f"{zeros:.1%} of the entries of the other modes' vectors are zero"),
    ]
    if hasattr(model, "read_share_"):
        lines.insert(2, ("read", f"{model.read_share_:.2f} times the data, by the iterations"))
    if hasattr(model, "lam"):
        lines.insert(1, ("penalty", f"lambda {model.lam:g}, share of l1 {model.l1_ratio:g}"))
    return lines


def components_text(model: Any, n: int = 5, texts: Texts = None) -> str:
    """The slices of modes 2 to N with the largest entries of either sign under each component that is left."""
    names = list(model.get_feature_names_out()[: model.rank_])
    headings = [f"{name}: weight {weight:.4g}" for name, weight in zip(names, model.weights_, strict=False)]
    return under_headings(headings, names, largest_items(model, n, texts))


def mode_table(model: Any, mode: int) -> pd.DataFrame:
    """Slices × components of a mode, counted from 0: its vectors scaled to length 1, with the labels of modes 1 and 2, else numbers.

    ``weights_`` is what the scales of all modes come to.
    """
    A = np.asarray(model.factors_[mode])
    labels = {0: model.row_labels_, 1: model.column_labels_}.get(mode)
    lengths = np.linalg.norm(A, axis=0)
    index: pd.Index[Any] = pd.RangeIndex(len(A)) if labels is None else pd.Index(np.asarray(labels[:], dtype=object).astype(str))
    return pd.DataFrame(
        A / np.where(lengths > 0, lengths, 1), index=index.rename(f"mode {mode + 1}"), columns=model.get_feature_names_out()
    )
