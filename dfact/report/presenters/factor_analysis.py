"""Texts of a factor analysis: its summary, the items and the correlations of the factors."""

import pandas as pd

from dfact.models.factor_analysis.estimator import FactorAnalysis
from dfact.report.document import Block, make_table
from dfact.report.presenters.base import Presenter
from dfact.report.tables import Lines, Texts, convergence_text, indented, largest_items, table_text, under_headings


class FactorAnalysisPresenter(Presenter[FactorAnalysis]):
    """The presentation of a factor analysis."""

    rows = "scores of {n} participants on {k} factors"

    def summary(self) -> Lines:
        model = self.model
        rotation = "no rotation" if model.rotation is None else f"{model.rotation} rotation"
        smoothed = ", smoothed" if model.smoothed_ else ""
        return [
            self.model_line(),
            ("fit", f"minimum residuals, {convergence_text(model)}; {rotation}"),
            ("correlations", f"of {model.n_observations_} participants ({model.missing}){smoothed}"),
            ("explained", f"{model.explained_share_:.1%} of the variance of the items"),
            ("residuals", f"{model.rmsr_:.3f} root mean square of the correlations"),
        ]

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        table = self.model.explained_
        headings = [f"{row.Index}: explains {row.share:.1%} of the variance" for row in table.itertuples()]
        text = under_headings(headings, list(table.index), largest_items(self.model, self.model.loadings_, top, texts))
        if not self._correlated:
            return [text]
        correlations = table_text(factor_correlations(self.model).reset_index(), header=True)
        return [f"{text}\ncorrelations of the factors:\n{indented(correlations)}"]

    def row_tables(self) -> list[Block]:
        if not self._correlated:
            return []
        caption = "Correlations of the factors as estimated by the rotation (of the factors, not the scores)"
        return [make_table(factor_correlations(self.model), caption, shaded=self.names)]

    @property
    def _correlated(self) -> bool:
        return self.model.rotation == "promax" and len(self.names) > 1


def factor_correlations(model: FactorAnalysis) -> pd.DataFrame:
    """Return the factor correlations Φ (k, k) with the names of the factors."""
    names = model.get_feature_names_out()
    return pd.DataFrame(model.factor_correlations_, index=pd.Index(names, name="factor"), columns=names)
