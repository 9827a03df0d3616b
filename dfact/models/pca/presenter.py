"""The presentation of principal components: the variance that each explains, and its items."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfact.catalogue import find_part
from dfact.export.tables import Lines, Texts, convergence_text, largest_items, under_headings
from dfact.models.pca.estimator import PCA
from dfact.models.provenance import SelectionRecord
from dfact.report.document import Block, Drawing, Section, Text, make_table
from dfact.report.plots import new_figure
from dfact.report.presenters.base import Presenter, counted_rows
from dfact.report.selection import eigenvalue_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCALES = {None: "centred", "standard": "centred, divided by their standard deviations", "binomial": "centred, divided by √(2p(1 − p))"}


class PCAPresenter(Presenter[PCA]):
    """The presentation of principal components."""

    rows = "scores of {n} {rows} on {k} components"
    factors = "scores"

    def model_line(self) -> tuple[str, str]:
        model = self.model
        rows = counted_rows(model.factors_.shape[0], self.words.rows)
        return "model", f"PCA, {len(model.components_)} components of {rows} × {len(model.mean_)} {self.words.items}"

    def summary(self) -> Lines:
        model = self.model
        kind = "probabilistic, " if hasattr(model, "log_likelihood_history_") else ""
        words = self.words
        missing = [("missing", "by expectation" if kind else f"as the mean of their {words.items.removesuffix('s')}")]
        return [
            self.model_line(),
            ("fit", f"{kind}{convergence_text(model)}"),
            (words.items, _SCALES[model.scale]),
            *(missing if kind or model.missing == "mean" else []),
            ("explained", f"{model.explained_share_:.1%} of the variance of the {words.items}"),
            ("shrinkage", f"scores of new {words.rows} are {_range(model.shrinkage_)} of those of the fitted {words.rows}"),
            ("noise", f"{model.noise_variance_:.4g} is the mean variance of the other directions"),
        ]

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        table = self.model.explained_
        headings = [f"{row.Index}: explains {row.share:.1%} of the variance" for row in table.itertuples()]
        if not top:
            return ["\n".join(headings)]
        return [under_headings(headings, list(table.index), largest_items(self.model, self.model.loadings_, top, texts))]

    def component_section(self) -> Section:
        table = self.model.explained_.assign(shrinkage=self.model.shrinkage_)
        caption = (
            f"Variance of each component, its share of the total variance of the {self.words.items}, the sum of the shares so far, and the "
            f"estimated ratio of the scores of new {self.words.rows} to those of the fitted ones"
        )
        shares = make_table(table, caption, formats={"share": "{:.1%}", "cumulative": "{:.1%}", "shrinkage": "{:.2f}"})
        alt = f"Line of the variances of {len(table)} components, from {table['variance'].iloc[0]:.4g} to {table['variance'].iloc[-1]:.4g}."
        about = "Scores of components are uncorrelated, if no entry is missing. The sign of a component is that of its largest loading."
        drawing = Drawing(lambda: variance_plot(self.model), alt, "Variance of the components; dashed: the mean of the other directions.")
        return Section("variance", "Explained variance", [shares, drawing, Text(about)])

    def items_plot(self) -> "Figure":
        return self.scores_plot() if self.words.of_snps and self.model.factors_.shape[0] else super().items_plot()

    def scores_plot(self) -> "Figure":
        """Plot the scores on the first two components, coloured by the population that the data states."""
        model = self.model
        shares = model.explained_variance_ratio_.tolist()
        figure: Figure = find_part("scores_plot", "the plot of scores").scores_figure(
            np.asarray(model.factors_), self.names, shares, model.row_populations_
        )
        return figure

    def row_tables(self) -> list[Block]:
        if not self.words.of_snps or not self.model.factors_.shape[0]:
            return []
        colored = "" if self.model.row_populations_ is None else ", coloured by the population that the data states"
        names = " and ".join(self.names[:2])
        return [Drawing(self.scores_plot, f"Points of the {self.words.rows} on {names}.", f"Scores on {names}{colored}.")]

    def history_drawing(self) -> Drawing | None:
        return None

    def selection_drawing(self, record: SelectionRecord, best: Mapping[str, Any], alt: str) -> Drawing:
        table = record.table.set_index(record.names)
        if "random" not in table:
            return super().selection_drawing(record, best, alt)
        caption = f"Variances of the components, next to those of unrelated {self.words.items} (dashed)."
        return Drawing(lambda: eigenvalue_plot(table, best["n_components"]), f"Scree plot. {alt}", caption)


def _range(shares: NDArray[np.float64]) -> str:
    """Return the least and the greatest of shares."""
    low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{low}%" if low == high else f"{low} to {high}%"


def variance_plot(model: PCA) -> "Figure":
    """Plot the variances of the components, and the noise variance."""
    figure = new_figure(7, 3)
    axes = figure.add_subplot()
    numbers = np.arange(1, len(model.explained_variance_) + 1)
    axes.plot(numbers, model.explained_variance_, "o-", markersize=4)
    axes.axhline(model.noise_variance_, linestyle="--", color="0.5")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("component")
    axes.set_ylabel("variance")
    if len(numbers) <= 20:
        axes.set_xticks(numbers)
    return figure
