"""Texts of an expectile matrix factorization, and its errors by the size of the entries."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dfact.report.document import Drawing, Section, Text, make_table
from dfact.report.figures import bins_figure
from dfact.report.presenters.base import Presenter
from dfact.report.reconstruction import BinErrors
from dfact.report.tables import Lines, Texts, convergence_text, largest_items, remaining_text, row_chunks, under_headings

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset


class ExpectilePresenter(Presenter):
    """The presentation of an expectile matrix factorization."""

    rows = "{k} components of {n} rows"

    def summary(self, model: Any) -> Lines:
        n, k = model.factors_.shape
        objective = f"objective {model.objective_history_[-1]:.6g}{remaining_text(model.remaining_)}"
        return [
            ("model", f"{type(model).__name__}, {k} components of {n} rows × {len(model.column_labels_)} columns"),
            ("loss", f"expectiles at omega {model.omega:g}, ridge {model.ridge:g}"),
            ("fit", f"{convergence_text(model)}, {objective}"),
        ]

    def sections(self, model: Any, top: int, texts: Texts) -> list[str]:
        norms = component_norms(model)
        headings = [f"{name}: norm {norm:.4g}" for name, norm in norms.items()]
        return [under_headings(headings, list(norms.index), largest_items(model, top, texts))]

    def errors_section(self, model: Any, dataset: "Dataset") -> Section | None:
        table = BinErrors.of(model, dataset).table
        about = "Relative errors |b̂ − b|/|b| of the fitted entries, in bins that end at quantiles of their size."
        medians = "; ".join(f"{name}: median {value:.0%}" for name, value in table["median"].items()) + "."
        drawing = Drawing(
            lambda: bins_figure(table),
            f"Median relative error by size of the entry. {medians}",
            "Median relative error; lines show the quartiles.",
        )
        formats = dict.fromkeys(("lower quartile", "median", "upper quartile"), "{:.1%}")
        caption = "Errors by size of the entry; absolute is the median |b̂ − b|"
        return Section("bins", "Errors by size", [Text(about), drawing, make_table(table, caption, formats=formats)])


def component_norms(model: Any) -> "pd.Series[Any]":
    """Return ‖x_a‖·‖y_a‖ of each component a, the Frobenius norm of its contribution. Row factors in a store are read by chunks."""
    squares = sum(np.square(rows, dtype=np.float64).sum(axis=0) for rows in row_chunks(model.factors_))
    norms = np.sqrt(squares * np.square(model.column_factors_, dtype=np.float64).sum(axis=0))
    return pd.Series(norms, index=pd.Index(model.get_feature_names_out(), name="component"))
