"""Texts of ICQF and ℓ1-NMF: summaries, the items of each factor, the effects of confounders."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from dfact.models.bounded_nmf.icqf import ICQF
from dfact.models.bounded_nmf.l1nmf import L1NMF
from dfact.report.document import Block, Section, Text, make_table, number_format
from dfact.report.plots import loadings_heatmap
from dfact.report.presenters.base import TOP, Presenter
from dfact.report.tables import Lines, Texts, fit_line, row_chunks, under_headings, with_texts
from dfact.text import align_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STRONG = 0.5  # of w_max
B = TypeVar("B", ICQF, L1NMF)


class BoundedNMFPresenter(Presenter[B]):
    """The presentation of non-negative factors and loadings."""

    rows = "{k} factors of {n} participants"

    def summary(self) -> Lines:
        model = self.model
        return [
            self.model_line(),
            fit_line(model, model.remaining_),
            ("explained", f"{model.explained_share_:.1%} of the variance of the answers"),
            ("sparsity", f"{(model.components_ == 0).mean():.1%} of the loadings are zero"),
        ]

    def items_plot(self) -> "Figure":
        return loadings_heatmap(self.model)

    def top_items(self, n: int) -> tuple[str, pd.DataFrame]:
        return "The items with the largest loadings.", top_items(self.model, n)


class L1NMFPresenter(BoundedNMFPresenter[L1NMF]):
    """The presentation of an ℓ1-NMF."""

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        shares = answer_shares(self.model)
        headings = [
            f"{row.Index}: {row.share:.0%} of the answers, zero for {row.zero:.0%} of the participants" for row in shares.itertuples()
        ]
        return [under_headings(headings, list(shares.index), top_items(self.model, top, texts))]


class ICQFPresenter(BoundedNMFPresenter[ICQF]):
    """The presentation of an ICQF."""

    def model_line(self) -> tuple[str, str]:
        name, text = super().model_line()
        n_confounders = len(self.model.confounder_components_)
        return name, text + (f", {n_confounders} confounder columns" if n_confounders else "")

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        factors = factors_text(self.model, top, texts)
        return [factors] if self.model.confounder_encoding_ is None else [factors, confounders_text(self.model, texts=texts)]

    def component_section(self) -> Section | None:
        """Show the effect of the confounders on each item."""
        model, encoding = self.model, self.model.confounder_encoding_
        if encoding is None:
            return None
        table = model.confounder_loadings_
        table.index = table.index.astype(str)
        shown = table.iloc[self.shown].iloc[self.order[0]]
        about = (
            "The part of an answer due to each level of a confounder, or to its range from the lowest value (1-name) to the highest (name)."
        )
        for name, count in encoding.missing_counts().items():
            missing = f"{name} is missing for {count} participants, who count as average."
            about += f" {missing[0].upper()}{missing[1:]}"
        blocks: list[Block] = [Text(about)]
        effects = confounder_effects(model, TOP).rename(columns={"confounder": "factor"})
        blocks.append(self.item_cards([str(name) for name in table], effects, number_format(table.to_numpy(np.float64))))
        blocks.append(make_table(self.with_texts(shown), "Loadings of the items on the confounders", shaded=list(table)))
        return Section("confounders", "Confounders", blocks)


def summary_text(model: ICQF) -> str:
    """Describe the size and the fit of an ICQF."""
    return align_columns(ICQFPresenter(model).summary())


def factors_text(model: ICQF, n: int = 5, texts: Texts = None) -> str:
    """List the items with the highest loadings under each factor of an ICQF."""
    shares = strength_shares(model)
    headings = [f"{row.Index}: strong for {row.strong:.0%} of the participants, zero for {row.zero:.0%}" for row in shares.itertuples()]
    return under_headings(headings, list(shares.index), top_items(model, n, texts))


def confounders_text(model: ICQF, n: int = 3, texts: Texts = None) -> str:
    """List the largest effects under each encoded confounder column, and count the participants with missing values."""
    encoding, columns = model.confounder_encoding_, [str(column) for column in model.confounder_loadings_]
    effects = under_headings([f"{column}:" for column in columns], columns, confounder_effects(model, n, texts), "confounder")
    missing = {} if encoding is None else encoding.missing_counts()
    return effects + "".join(f"\n{name} is missing for {count} participants: taken as the average" for name, count in missing.items())


def top_items(model: ICQF | L1NMF, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items with the highest loadings of each factor: columns ``factor``, ``item``, ``loading``, and ``text`` if known."""
    return with_texts(_largest(model.loadings_, n, "factor"), model, texts)


def confounder_effects(model: ICQF, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items on which each encoded confounder column has the largest effect, in units of the answers."""
    return with_texts(_largest(model.confounder_loadings_, n, "confounder"), model, texts)


def _largest(loadings: pd.DataFrame, n: int, column: str) -> pd.DataFrame:
    """Return the n largest positive entries of each column."""
    rows: list[dict[str, Any]] = []
    for name, values in loadings.items():
        largest = values[values > 0].nlargest(n)
        rows += [{column: name, "item": str(item), "loading": float(value)} for item, value in largest.items()]
    return pd.DataFrame(rows, columns=[column, "item", "loading"])


def strength_shares(model: ICQF) -> pd.DataFrame:
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


def answer_shares(model: L1NMF) -> pd.DataFrame:
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
