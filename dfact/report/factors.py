"""What the fitted baselines say, ℓ1-NMF and factor analysis: summaries, the items of each factor, a plot of signed loadings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dfact.report.plots import heatmap
from dfact.report.text import indented, remaining_text, row_chunks, table_text, top_items

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Texts = Mapping[str, str] | None


def nmf_summary_lines(model: Any) -> list[tuple[str, str]]:
    """Size and figures of an ℓ1-NMF, each with its name."""
    stopped = "converged after" if model.converged_ else "stopped before it converged, after"
    return [
        _size(model),
        ("fit", f"{stopped} {model.n_iter_} iterations, objective {model.objective_history_[-1]:.6g}{remaining_text(model.remaining_)}"),
        ("explained", f"{model.explained_share_:.1%} of the variance of the answers"),
        ("sparsity", f"{(model.components_ == 0).mean():.1%} of the loadings are zero"),
    ]


def nmf_factor_table(model: Any) -> pd.DataFrame:
    """Of each factor its ``share`` of the sum of all the model's answers, and the share of participants for whom it is ``absent``.

    Row factors in a store are read by chunks.
    """
    n, k = model.factors_.shape
    sums = np.zeros((2, k))
    for rows in row_chunks(model.factors_):
        sums += [rows.sum(axis=0, dtype=np.float64), (rows == 0).sum(axis=0)]
    answers = sums[0] * model.components_.sum(axis=1, dtype=np.float64)
    columns = {"share": answers / (answers.sum() or 1.0), "absent": sums[1] / n}
    return pd.DataFrame(columns, index=pd.Index(model.get_feature_names_out(), name="factor"))


def nmf_factors_text(model: Any, n: int = 5, texts: Texts = None) -> str:
    """The items with the highest loadings under each factor."""
    table = nmf_factor_table(model)
    headings = [
        f"{row.Index}: {row.share:.0%} of the answers, absent for {row.absent:.0%} of the participants" for row in table.itertuples()
    ]
    return under_headings(headings, list(table.index), top_items(model, n, texts))


def analysis_summary_lines(model: Any) -> list[tuple[str, str]]:
    """Size and figures of a factor analysis, each with its name."""
    stopped = "converged after" if model.converged_ else "stopped before it converged, after"
    rotation = "no rotation" if model.rotation is None else f"{model.rotation} rotation"
    smoothed = ", smoothed" if model.smoothed_ else ""
    return [
        _size(model),
        ("fit", f"minimum residuals, {stopped} {model.n_iter_} iterations; {rotation}"),
        ("correlations", f"of {model.n_observations_} participants ({model.missing}){smoothed}"),
        ("explained", f"{model.explained_share_:.1%} of the variance of the items"),
        ("residuals", f"{model.rmsr_:.3f} root mean square of the correlations"),
    ]


def analysis_factors_text(model: Any, n: int = 5, texts: Texts = None) -> str:
    """The items with the largest loadings of either sign under each factor, and the factors' correlations."""
    table = model.explained_
    headings = [f"{row.Index}: explains {row.share:.1%} of the variance" for row in table.itertuples()]
    names = list(table.index)
    text = under_headings(headings, names, largest_items(model, n, texts))
    if model.rotation != "promax" or len(names) == 1:
        return text
    return f"{text}\ncorrelations of the factors:\n{indented(table_text(factor_correlations(model).reset_index(), header=True))}"


def largest_items(model: Any, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """The items with the largest loadings of each factor, of either sign: columns ``factor``, ``item``, ``loading``, ``text`` if given."""
    rows = [(name, str(item), float(values[item])) for name, values in model.loadings_.items() for item in values.abs().nlargest(n).index]
    table = pd.DataFrame(rows, columns=["factor", "item", "loading"])
    if texts is not None:
        table["text"] = [texts.get(item, "") for item in table["item"]]
    return table


def factor_correlations(model: Any) -> pd.DataFrame:
    """Φ with the factors' names."""
    names = model.get_feature_names_out()
    return pd.DataFrame(model.factor_correlations_, index=pd.Index(names, name="factor"), columns=names)


def signed_heatmap(model: Any) -> "Figure":
    """A heat map of loadings of either sign, items × factors, white at 0; items stand with the factor on which they load most."""
    sizes = model.loadings_.abs().to_numpy()
    order = np.lexsort((-sizes.max(axis=1), sizes.argmax(axis=1)))
    figure = heatmap(model.loadings_.iloc[order], "item", "loading")
    (image,) = figure.axes[0].images
    image.set_cmap("RdBu_r")
    image.set_clim(-sizes.max(), sizes.max())
    return figure


def plain_summary_lines(model: Any) -> list[tuple[str, str]]:
    """Of a model of any class its size, and what it says of its fit."""
    lines = [_size(model)]
    if hasattr(model, "objective_history_"):
        lines.append(("fit", f"{model.n_iter_} iterations, objective {model.objective_history_[-1]:.6g}"))
    return lines


def plain_factors_text(model: Any, n: int = 5, texts: Texts = None) -> str:
    """Of a model of any class the items with the largest loadings of either sign under each factor."""
    names = [str(name) for name in model.get_feature_names_out()]
    return under_headings(names, names, largest_items(model, n, texts))


def _size(model: Any) -> tuple[str, str]:
    n, k = model.factors_.shape
    return "model", f"{type(model).__name__}, {k} factors of {n} participants × {len(model.column_labels_)} items"


def under_headings(headings: list[str], names: list[str], items: pd.DataFrame) -> str:
    """The items of each factor under its heading."""
    parts = []
    for heading, name in zip(headings, names, strict=True):
        rows = items[items["factor"] == name].drop(columns="factor")
        parts.append(f"{heading}\n{indented(table_text(rows)) if len(rows) else '  no item'}")
    return "\n".join(parts)
