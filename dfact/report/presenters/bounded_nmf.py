"""Texts of ICQF and ℓ1-NMF: summaries, the items of each factor, the effects of confounders."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dfact.report.plots import loadings_heatmap
from dfact.report.presenters.base import Presenter, model_line
from dfact.report.tables import (
    Lines,
    Texts,
    align_columns,
    convergence_text,
    remaining_text,
    row_chunks,
    under_headings,
    with_texts,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STRONG = 0.5  # of w_max


class L1NMFPresenter(Presenter):
    """The presentation of an ℓ1-NMF."""

    rows = "{k} factors of {n} participants"

    def summary(self, model: Any) -> Lines:
        return [model_line(model), *_fit_lines(model)]

    def sections(self, model: Any, top: int, texts: Texts) -> list[str]:
        shares = answer_shares(model)
        headings = [
            f"{row.Index}: {row.share:.0%} of the answers, zero for {row.zero:.0%} of the participants" for row in shares.itertuples()
        ]
        return [under_headings(headings, list(shares.index), top_items(model, top, texts))]

    def items_plot(self, model: Any) -> "Figure":
        return loadings_heatmap(model)

    def top_items(self, model: Any, loadings: pd.DataFrame, n: int) -> tuple[str, pd.DataFrame]:
        return "The items with the largest loadings.", top_items(model, n)


class ICQFPresenter(L1NMFPresenter):
    """The presentation of an ICQF."""

    def summary(self, model: Any) -> Lines:
        name, text = model_line(model)
        n_confounders = len(model.confounder_components_)
        confounders = f", {n_confounders} confounder columns" if n_confounders else ""
        return [(name, text + confounders), *_fit_lines(model)]

    def sections(self, model: Any, top: int, texts: Texts) -> list[str]:
        factors = factors_text(model, top, texts)
        return [factors] if model.confounder_encoding_ is None else [factors, confounders_text(model, texts=texts)]


def _fit_lines(model: Any) -> Lines:
    objective = f"objective {model.objective_history_[-1]:.6g}{remaining_text(model.remaining_)}"
    return [
        ("fit", f"{convergence_text(model)}, {objective}"),
        ("explained", f"{model.explained_share_:.1%} of the variance of the answers"),
        ("sparsity", f"{(model.components_ == 0).mean():.1%} of the loadings are zero"),
    ]


def summary_text(model: Any) -> str:
    """Describe the size and the fit of an ICQF."""
    return align_columns(ICQFPresenter().summary(model))


def factors_text(model: Any, n: int = 5, texts: Texts = None) -> str:
    """List the items with the highest loadings under each factor of an ICQF."""
    shares = strength_shares(model)
    headings = [f"{row.Index}: strong for {row.strong:.0%} of the participants, zero for {row.zero:.0%}" for row in shares.itertuples()]
    return under_headings(headings, list(shares.index), top_items(model, n, texts))


def confounders_text(model: Any, n: int = 3, texts: Texts = None) -> str:
    """List the largest effects under each encoded confounder column, and count the participants with missing values."""
    columns = list(model.confounder_loadings_)
    effects = under_headings([f"{column}:" for column in columns], columns, confounder_effects(model, n, texts), "confounder")
    missing = model.confounder_encoding_.missing_counts()
    return effects + "".join(f"\n{name} is missing for {count} participants: taken as the average" for name, count in missing.items())


def top_items(model: Any, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items with the highest loadings of each factor: columns ``factor``, ``item``, ``loading``, and ``text`` if given."""
    return _largest(model.loadings_, n, "factor", texts)


def confounder_effects(model: Any, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items on which each encoded confounder column has the largest effect, in units of the answers."""
    return _largest(model.confounder_loadings_, n, "confounder", texts)


def _largest(loadings: pd.DataFrame, n: int, column: str, texts: Texts) -> pd.DataFrame:
    """Return the n largest positive entries of each column."""
    rows: list[dict[str, Any]] = []
    for name, values in loadings.items():
        largest = values[values > 0].nlargest(n)
        rows += [{column: name, "item": str(item), "loading": float(value)} for item, value in largest.items()]
    return with_texts(pd.DataFrame(rows, columns=[column, "item", "loading"]), texts)


def strength_shares(model: Any) -> pd.DataFrame:
    """Return for each factor the shares of participants with at least half of w_max (``strong``) and with 0 (``zero``), and its ``mean``.

    Row factors in a store are read by chunks.
    """
    factors = model.factors_
    n, k = factors.shape
    sums = np.zeros((3, k))
    for rows in row_chunks(factors):
        W = rows.astype(np.float64)
        sums += [(_STRONG * model.w_max <= W).sum(axis=0), (W == 0).sum(axis=0), W.sum(axis=0)]
    return pd.DataFrame((sums / n).T, index=pd.Index(model.get_feature_names_out(), name="factor"), columns=["strong", "zero", "mean"])


def answer_shares(model: Any) -> pd.DataFrame:
    """Return for each factor its ``share`` of the sum of the model's answers, and the share of participants with ``zero``.

    Row factors in a store are read by chunks.
    """
    n, k = model.factors_.shape
    sums = np.zeros((2, k))
    for rows in row_chunks(model.factors_):
        sums += [rows.sum(axis=0, dtype=np.float64), (rows == 0).sum(axis=0)]
    answers = sums[0] * model.components_.sum(axis=1, dtype=np.float64)
    columns = {"share": answers / (answers.sum() or 1.0), "zero": sums[1] / n}
    return pd.DataFrame(columns, index=pd.Index(model.get_feature_names_out(), name="factor"))
