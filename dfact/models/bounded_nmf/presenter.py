"""Texts of ICQF and NMF: summaries, the items of each factor, the effects of confounders."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from dfact.export.effects import (
    ADJUSTED,
    anchor_lines,
    anchor_rule,
    difference_names,
    headings,
    largest_effects,
)
from dfact.export.tables import Lines, Texts, fit_line, row_chunks, under_headings, with_texts
from dfact.models.bounded_nmf.effects import group_effects
from dfact.models.bounded_nmf.icqf import ICQF
from dfact.models.bounded_nmf.nmf import NMF
from dfact.report.document import Block, Section, Text, make_table, number_format
from dfact.report.plots import loadings_heatmap
from dfact.report.presenters.base import TOP, Presenter
from dfact.text import align_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STRONG = 0.5  # of w_max
B = TypeVar("B", ICQF, NMF)


class BoundedNMFPresenter(Presenter[B]):
    """The presentation of non-negative factors and loadings."""

    rows = "{k} factors of {n} {rows}"

    @property
    def explained(self) -> str:
        """The measure of variation that the model explains a share of."""
        return "deviance" if self.model.problem_.divergence else "variance"

    def summary(self) -> Lines:
        model = self.model
        weight = f" with beta={model.beta:g}, on which the shares of {self.words.rows} below depend, too" if isinstance(model, ICQF) else ""
        return [
            self.model_line(),
            fit_line(model, model.remaining_),
            ("explained", f"{model.explained_share_:.1%} of the {self.explained} of the answers"),
            ("sparsity", f"{(model.components_ == 0).mean():.1%} of the loadings are zero{weight}"),
        ]

    def items_plot(self) -> "Figure":
        return loadings_heatmap(self.model)

    def top_items(self, n: int) -> tuple[str, pd.DataFrame]:
        return f"The {self.words.items} with the largest loadings.", top_items(self.model, n)


class NMFPresenter(BoundedNMFPresenter[NMF]):
    """The presentation of an NMF."""

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        shares, words = answer_shares(self.model), self.words
        headings = [
            f"{row.Index}: {row.share:.0%} of the {words.entries}, zero for {row.zero:.0%} of the {words.rows}"
            for row in shares.itertuples()
        ]
        if not self.model.factors_.shape[0]:
            headings = [f"{name}:" for name in shares.index]
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
        """Show the differences that the confounders make: their impact on the factors, and their effects on items."""
        model, encoding = self.model, self.model.confounder_encoding_
        if encoding is None:
            return None
        names, words = difference_names(model), self.words
        about = (
            "Each level of a confounder minus the commonest one, its reference, and the highest value of a continuous one minus the "
            "lowest, adjusted for the other confounders. Impact is the difference of the factors; an effect is the difference of the "
            f"{words.entries} of one {words.item}, in points, between {words.rows} with equal factors. The anchor separates the two: most "
            f"{words.items} have no effect (least absolute deviations). {anchor_rule()} {ADJUSTED}"
        )
        for name, count in encoding.missing_counts().items():
            missing = f"{name} is missing for {count} {words.rows}, which count as average."
            about += f" {missing[0].upper()}{missing[1:]}"
        blocks: list[Block] = [Text(about)]
        blocks += [Text(f"{name}: {text}.") for name, text in anchor_lines(model)]
        if names:
            impact = pd.DataFrame(group_effects(model).impact.T, pd.Index(self.names, name="factor"), names)
            blocks.append(make_table(impact, "Impact: differences of the factors", shaded=names))
        table = model.confounder_effects_
        table.index = table.index.astype(str)
        shown = table.iloc[self.shown].iloc[self.order[0]]
        largest = largest_effects(model, TOP).rename(columns={"confounder": "factor", "effect": "loading"})
        blocks.append(self.item_cards(names, largest, number_format(table.to_numpy(np.float64))))
        caption = f"Effects on the {words.items} at equal factors, in points"
        blocks.append(make_table(self.with_texts(shown), caption, shaded=names))
        errors = model.confounder_errors_.set_axis(table.index).loc[shown.index]
        blocks.append(make_table(self.with_texts(errors), f"Standard errors of the effects on the {words.items}, in points"))
        return Section("confounders", "Confounders", blocks)


def summary_text(model: ICQF) -> str:
    """Describe the size and the fit of an ICQF."""
    return align_columns(ICQFPresenter(model).summary())


def factors_text(model: ICQF, n: int = 5, texts: Texts = None) -> str:
    """List the items with the highest loadings under each factor of an ICQF."""
    shares = strength_shares(model)
    headings = [
        f"{row.Index}: strong for {row.strong:.0%} of the {model.vocabulary.rows}, zero for {row.zero:.0%}" for row in shares.itertuples()
    ]
    if not model.factors_.shape[0]:
        headings = [f"{name}:" for name in shares.index]
    return under_headings(headings, list(shares.index), top_items(model, n, texts))


def confounders_text(model: ICQF, n: int = 3, texts: Texts = None) -> str:
    """List for each difference of the confounders its impact, the items that carry its anchor, and the items with the largest effects.

    Participants with missing values are counted.
    """
    encoding = model.confounder_encoding_
    names = [] if encoding is None else difference_names(model)
    largest = confounder_effects(model, n, texts)
    if "se" in largest:
        largest["se"] = [f"(se {error:.2f})" for error in largest["se"]]
    effects = under_headings(headings(model), names, largest, "confounder") if names else "no differences"
    missing = {} if encoding is None else encoding.missing_counts()
    return effects + "".join(
        f"\n{name} is missing for {count} {model.vocabulary.rows}: taken as the average" for name, count in missing.items()
    )


def top_items(model: ICQF | NMF, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items with the highest loadings of each factor: columns ``factor``, ``item``, ``loading``, and ``text`` if known."""
    return with_texts(_largest(model.loadings_, n, "factor"), model, texts)


def confounder_effects(model: ICQF, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items on which each difference has the largest effects at equal factors, in points, with their signs."""
    return with_texts(largest_effects(model, n), model, texts)


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
    return pd.DataFrame(
        (sums / (n or np.nan)).T, index=pd.Index(model.get_feature_names_out(), name="factor"), columns=["strong", "zero", "mean"]
    )


def answer_shares(model: NMF) -> pd.DataFrame:
    """Return for each factor its ``share`` of the sum of the model's answers, and the share of participants with ``zero``.

    Row factors in a store are read by chunks.
    """
    n, k = model.factors_.shape
    sums = np.zeros((2, k))
    for rows in row_chunks(model.factors_):
        sums += [rows.sum(axis=0, dtype=np.float64), (rows == 0).sum(axis=0)]
    answers = sums[0] * model.components_.sum(axis=1, dtype=np.float64)
    columns = {"share": answers / (answers.sum() or 1.0), "zero": sums[1] / (n or np.nan)}
    return pd.DataFrame(columns, index=pd.Index(model.get_feature_names_out(), name="factor"))
