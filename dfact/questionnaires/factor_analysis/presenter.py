"""Texts of a factor analysis: its summary, the items and the correlations of the factors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dfact.export.statistics import communalities, factor_correlations
from dfact.export.tables import Lines, Texts, convergence_text, elided, largest_items, under_headings
from dfact.models.provenance import SelectionRecord
from dfact.questionnaires.factor_analysis.estimator import FactorAnalysis
from dfact.report.document import Block, Drawing, Section, Text, make_table
from dfact.report.presenters.base import Presenter
from dfact.report.selection import eigenvalue_plot
from dfact.text import indented, table_text


class FactorAnalysisPresenter(Presenter[FactorAnalysis]):
    """The presentation of a factor analysis."""

    rows = "scores of {n} {rows} on {k} factors"

    def summary(self) -> Lines:
        model = self.model
        kind = "polychoric, " if model.correlation == "polychoric" else ""
        smoothed = ", smoothed" if model.smoothed_ else ""
        return [
            self.model_line(),
            ("fit", f"minimum residuals, {convergence_text(model)}; {rotation_text(model)}"),
            ("correlations", f"{kind}of {model.n_observations_} {self.words.rows} ({model.missing}){smoothed}"),
            ("explained", f"{model.explained_share_:.1%} of the variance of the {self.words.items}"),
            ("omega", omega_text(model)),
            ("residuals", f"{model.rmsr_:.3f} root mean square of the correlations"),
            ("fit indices", fit_text(model)),
        ]

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        table = self.model.explained_
        headings = [f"{row.Index}: explains {row.share:.1%} of the variance" for row in table.itertuples()]
        text = under_headings(headings, list(table.index), largest_items(self.model, self.model.loadings_, top, texts))
        if not self._correlated:
            return [text]
        correlations = table_text(factor_correlations(self.model).reset_index(), header=True)
        return [f"{text}\ncorrelations of the factors:\n{indented(correlations)}"]

    def selection_drawing(self, record: SelectionRecord, best: Mapping[str, Any], alt: str) -> Drawing:
        table = record.table.set_index(record.names)
        if "factor_random" not in table:
            return super().selection_drawing(record, best, alt)
        caption = f"Eigenvalues of the correlations, compared with eigenvalues of unrelated {self.words.entries} (dashed)."
        return Drawing(lambda: eigenvalue_plot(table, best["n_components"]), f"Scree plot. {alt}", caption)

    def component_section(self) -> Section:
        table = self.with_texts(communalities(self.model).iloc[self.shown[self.order[0]]])
        caption = f"Communality h² and uniqueness of each {self.words.item}: the shares of its variance that the factors explain, and not"
        fitted = f"the scores of a {self.words.row} are fitted to these {self.words.entries}"
        note = f"The explained shares of a report with data are larger, since {fitted}."
        shares = make_table(table, caption, formats={"h2": "{:.3f}", "uniqueness": "{:.3f}"})
        return Section("communalities", "Communalities", [shares, Text(note)])

    def row_tables(self) -> list[Block]:
        tables: list[Block] = [make_table(*fit_table(self.model))]
        if self._correlated:
            caption = "Correlations of the factors as estimated by the rotation (of the factors, not the scores)"
            tables.append(make_table(factor_correlations(self.model), caption, shaded=self.names))
        reliability = self.model.score_reliability_.to_frame().T
        tables.append(make_table(reliability, "Reliability of the scores: their squared correlations with the factors"))
        return tables

    @property
    def _correlated(self) -> bool:
        return self.model.rotation not in ("varimax", None) and len(self.names) > 1


def rotation_text(model: FactorAnalysis) -> str:
    """Name the rotation, and for promax the program that computes the same."""
    if model.rotation == "promax-spss":
        return "promax rotation (as in SPSS)"
    if model.rotation == "promax" and model.kaiser is not False:
        return "promax rotation (as in psych)"
    return "no rotation" if model.rotation is None else f"{model.rotation} rotation"


def omega_text(model: FactorAnalysis) -> str:
    """Describe the sum of the items in one line."""
    omega, turned = model.omega_, model.reversed_items_
    items = f"all {model.vocabulary.items}" + (f" ({elided(turned)} reversed)" if turned else "")
    return f"ω total {omega.omega_total:.2f} of the sum of {items} by these factors; ω {omega.omega:.2f} by one factor"


NORMAL = "χ², p and the interval of RMSEA assume complete, normal {entries}"
"""Assumptions of the indices with a distribution; the guide ``evidence`` has the rates with other answers."""


def fit_text(model: FactorAnalysis) -> str:
    """Describe the fit in one line."""
    fit = model.fit_
    if np.isnan(fit.chi_square):
        reason = "were smoothed" if model.smoothed_ else "are singular" if fit.df >= 0 else "are fewer than the parameters"
        return f"SRMR {fit.srmr:.3f}; others are undefined, as the correlations {reason}"
    test = f"χ²({fit.df:.0f}) = {fit.chi_square:.1f}, p {_p_text(fit.p)}, RMSEA {fit.rmsea:.3f} [{fit.rmsea_low:.3f}, {fit.rmsea_high:.3f}]"
    note = "; " + ("all but SRMR are descriptive" if model.correlation == "polychoric" else NORMAL.format(entries=model.vocabulary.entries))
    return f"{test}, CFI {fit.cfi:.3f}, TLI {fit.tli:.3f}, SRMR {fit.srmr:.3f}, BIC {fit.bic:.1f}{note}"


def _p_text(p: float) -> str:
    return "< .001" if p < 0.001 else f"= {p:.3f}"


def fit_table(model: FactorAnalysis) -> tuple[pd.DataFrame, str]:
    """Return the indices of fit as a table of one row, and its caption."""
    caption = (
        f"Fit of the model to the correlations; the interval of RMSEA is a 90% interval; {NORMAL.format(entries=model.vocabulary.entries)}"
    )
    if model.correlation == "polychoric":
        caption += ". With polychoric correlations, all indices but SRMR are descriptive"
    if model.smoothed_:
        caption += ". The correlations were smoothed, so that only df and SRMR are defined"
    return model.fit_.to_frame().T, caption
