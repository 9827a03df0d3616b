"""The presentation of CP decompositions."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.errors import ParameterError
from dfact.export.stability import written_stability
from dfact.export.tables import Lines, Texts, elided, fit_line, largest_items, under_headings
from dfact.models.cp.base import CPModel
from dfact.models.cp.core_consistency import core_consistency
from dfact.models.cp.path import SolutionPath
from dfact.models.cp.plots import (
    axis_values,
    leading_plot,
    mode_heatmap,
    modes_plot,
    path_plot,
    replicability_plot,
    solutions_plot,
)
from dfact.models.provenance import SelectionRecord
from dfact.report.document import Block, Drawing, Section, Text, make_table, number_format, with_intervals
from dfact.report.figures import Groups, stability_figure
from dfact.report.presenters.base import Presenter
from dfact.selection.result import Selection

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CPPresenter(Presenter[CPModel]):
    """The presentation of ElasticCP and CPALS."""

    rows = "weights of {n} slices in {k} components"
    factors = "row factors"

    @cached_property
    def order(self) -> tuple[NDArray[np.intp], Groups]:
        """Slices in their own order, mode by mode."""
        return np.arange(len(self.shown)), []

    def size_text(self) -> str:
        return f"a tensor {' × '.join(map(str, (self.model.factors_[0].shape[0], *self.model.slice_shape_)))}"

    @property
    def item(self) -> str:
        return "slice of mode 2"

    def summary(self) -> Lines:
        model = self.model
        sizes = "×".join(str(A.shape[0]) for A in model.factors_)
        columns = model.factors_[1:]
        zeros = sum(int((A[:, : model.rank_] == 0).sum()) for A in columns) / max(1, sum(len(A) * model.rank_ for A in columns))
        lines = [
            ("model", f"{type(model).__name__}, {model.rank_} of {len(model.weights_)} components left, of a tensor {sizes}"),
            fit_line(model, model.remaining_),
            ("explained", f"{model.explained_share_:.2%} of the sum of squares"),
            ("sparsity", f"{zeros:.1%} of the entries of the vectors of modes 2 to {len(model.factors_)} are zero"),
        ]
        lines += [(f"mode {n}", elided(model.slice_names(n))) for n, labels in enumerate(model.mode_labels_, start=3) if labels is not None]
        if hasattr(model, "n_epochs_"):
            lines.insert(2, ("read", f"{model.n_epochs_:.2f} times the data during the iterations"))
        if hasattr(model, "lam"):
            net = model.elastic_net()
            chosen = _chosen_lambda(model)
            again = "" if chosen in (None, net.lam) else f"; fitted again without the shrinkage of the chosen lambda {chosen:g}"
            lines.insert(1, ("penalty", f"lambda {net.lam:g}, share of l1 {net.l1_ratio:g}{again}"))
        if hasattr(model, "stability_"):
            result = model.stability_
            score = f"median factor match score {np.median(result.factor_match_scores):.3f}"
            lines.append(("stability", f"{result.n_refits} refits to resampled slices of mode 1, {score}"))
        return lines

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        model = self.model
        names = list(model.get_feature_names_out()[: model.rank_])
        headings = [f"{name}: weight {weight:.4g}" for name, weight in zip(names, model.weights_, strict=False)]
        largest = self._largest(top, texts)
        own = ~largest["item"].str.startswith("mode ")  # those of mode 2
        return [under_headings(headings, names, largest.assign(item=largest["item"].mask(own, "mode 2: " + largest["item"])))]

    def _largest(self, n: int, texts: Texts) -> pd.DataFrame:
        """Return n slices of each component, as many of each mode from the second on: vectors of few slices have the larger entries."""
        model, loadings = self.model, self.all_loadings
        count, parts, start = -(-n // len(model.slice_shape_)), [], 0
        for size in model.slice_shape_:
            parts.append(largest_items(model, loadings.iloc[start : start + size], count, texts))
            start += size
        return pd.concat(parts).sort_values("factor", kind="stable", key=lambda names: names.map(list(loadings).index))

    def top_items(self, n: int) -> tuple[str, pd.DataFrame]:
        about, _ = super().top_items(n)
        return about, self._largest(n, None)

    def mode_plot(self, mode: int, leading: int | None) -> "Figure":
        """Plot the vectors of a mode, counted from 1, as a heat map, or the sums of the leading ones as bars."""
        modes = len(self.model.factors_)
        if not 1 <= mode <= modes:
            raise ParameterError(f"mode is {mode}, expected a mode of the tensor, from 1 to {modes} (--mode)")
        return mode_heatmap(self.model, mode - 1) if leading is None else leading_plot(self.model, mode - 1, leading)

    def items_plot(self) -> "Figure":
        return modes_plot(self.model)

    def loadings_drawing(self) -> Drawing:
        model = self.model
        sizes = " × ".join(str(A.shape[0]) for A in model.factors_)
        alt = f"Vectors of {model.rank_} components in each mode of a tensor {sizes}."
        return Drawing(lambda: modes_plot(model), alt, "Vectors of each mode, scaled to length 1.")

    def selection_drawing(self, record: SelectionRecord, best: Mapping[str, Any], alt: str) -> Drawing:
        if record.criterion == "replicability":
            scores = Selection(record.table.set_index("n_components"), dict(best), self.model)
            caption = "Similarity of the components of fits to different rows; the line marks the chosen number."
            return Drawing(lambda: replicability_plot(scores), alt, caption)
        if record.names[-1] != "lam":
            return super().selection_drawing(record, best, alt)
        table = record.table.set_index(record.names)[["rank", "zeros", "relative_error", record.criterion]]
        path = Selection(table, dict(best), self.model)
        return Drawing(lambda: path_plot(path), alt, "Rank, zeros and error over λ; the line marks the chosen λ.")

    def errors_section(self, dataset: Dataset) -> Section | None:
        if self.model.rank_ == 0:
            return None
        consistency = core_consistency(self.model, dataset)
        about = (
            f"Core consistency {consistency:.1f}%: near 100 if the {self.model.rank_} components suit the structure of the model, far "
            "below, or negative, if there are too many. A component that follows noise alone is not detected."
        )
        return Section("core", "Are there too many components?", [Text(about)])

    def item_axis(self, labels: "pd.Index[Any]") -> NDArray[np.float64] | None:
        return axis_values(labels)

    def stability_section(self) -> Section:
        """Show how the components vary over refits to resampled slices of mode 1."""
        result = written_stability(self.model)
        names, level = self.names[: len(result.weight)], f"{result.level:.0%}"
        scores = result.factor_match_scores
        about = (
            f"{result.n_refits} refits on resampled slices of mode 1, with their components matched to the model's by the vectors of the "
            f"other modes. Factor match score: median {np.median(scores):.3f}, 5th percentile {np.quantile(scores, 0.05):.3f}."
        )
        if hasattr(self.model, "selection_"):
            about += " The number of components and the penalty were chosen on the same data; the refits do not repeat that choice."
        medians = np.median(result.similarity, axis=0)
        texts = ", ".join(f"{name} has the median {value:.2f}" for name, value in zip(names, medians, strict=True))
        caption = "Similarity of each refit's components to the model's: 1 is the same; bars show medians."
        drawing = Drawing(lambda: stability_figure(result, names), f"Points of each refit: {texts}.", caption)
        caption = (
            f"Median and 5th percentile of the similarities, weight with the ends of its {level} interval, and the number of entries whose "
            f"{level} interval excludes 0"
        )
        formats = {"median": "{:.3f}", "5%": "{:.3f}", "loadings": "{:.0f}"}
        summary = make_table(result.summary(names), caption, formats=formats)
        index = self.all_loadings.index[self.shown]
        parts = (result.estimate, result.low, result.high, result.selected)
        estimate, low, high, selected = (pd.DataFrame(part[:, self.shown].T, index, names) for part in parts)
        caption = f"Vectors of modes 2 to N at length 1, without penalties, with their {level} intervals"
        table = with_intervals(make_table(self.with_texts(estimate), caption, shaded=names), low, high, number_format(result.estimate))
        blocks: list[Block] = [Text(about), drawing, summary, table]
        if result.sparse:
            caption = "Selection frequency of each entry: the share of the penalized refits in which it is not 0"
            blocks.append(make_table(self.with_texts(selected), caption, formats=dict.fromkeys(names, "{:.0%}")))
        return Section("stability", "Stability", blocks)

    def solutions_section(self, solutions: SolutionPath) -> Section:
        """Show a solution path."""
        table = solutions.table.set_index("lambda")
        alt = f"Rank, zeros and relative error of {len(table)} solutions along increasing λ."
        caption = "Solutions along increasing λ: the number of remaining components, their zeros, and the error."
        drawing = Drawing(lambda: solutions_plot(solutions), alt, caption)
        return Section("path", "Solution path", [drawing, make_table(table, "The steps of the path", formats={"rank": "{:.0f}"})])


def _chosen_lambda(model: CPModel) -> float | None:
    """Return the λ of the solution path that a selection chose; None for other models."""
    record = getattr(model, "selection_", None)
    if record is None or record.names[-1] != "lam":
        return None
    return float(record.values[record.best][-1])
