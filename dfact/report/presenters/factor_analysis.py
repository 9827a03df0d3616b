"""Texts of a factor analysis: its summary, the items and the correlations of the factors."""

from typing import Any

import pandas as pd

from dfact.report.presenters.base import Presenter, model_line
from dfact.report.tables import Lines, Texts, convergence_text, indented, largest_items, table_text, under_headings


class FactorAnalysisPresenter(Presenter):
    """The presentation of a factor analysis."""

    rows = "scores of {n} participants on {k} factors"

    def summary(self, model: Any) -> Lines:
        rotation = "no rotation" if model.rotation is None else f"{model.rotation} rotation"
        smoothed = ", smoothed" if model.smoothed_ else ""
        return [
            model_line(model),
            ("fit", f"minimum residuals, {convergence_text(model)}; {rotation}"),
            ("correlations", f"of {model.n_observations_} participants ({model.missing}){smoothed}"),
            ("explained", f"{model.explained_share_:.1%} of the variance of the items"),
            ("residuals", f"{model.rmsr_:.3f} root mean square of the correlations"),
        ]

    def sections(self, model: Any, top: int, texts: Texts) -> list[str]:
        table = model.explained_
        headings = [f"{row.Index}: explains {row.share:.1%} of the variance" for row in table.itertuples()]
        names = list(table.index)
        text = under_headings(headings, names, largest_items(model, top, texts))
        if model.rotation != "promax" or len(names) == 1:
            return [text]
        correlations = table_text(factor_correlations(model).reset_index(), header=True)
        return [f"{text}\ncorrelations of the factors:\n{indented(correlations)}"]


def factor_correlations(model: Any) -> pd.DataFrame:
    """Return the factor correlations Φ (k, k) with the names of the factors."""
    names = model.get_feature_names_out()
    return pd.DataFrame(model.factor_correlations_, index=pd.Index(names, name="factor"), columns=names)
