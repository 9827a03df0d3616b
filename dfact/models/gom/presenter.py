"""The presentation of a grade of membership."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dfact.export.tables import Lines, Texts, convergence_text
from dfact.models.gom.estimator import GradeOfMembership
from dfact.models.gom.number_of_classes import describe_choice
from dfact.models.gom.passes import MIXED, PURE
from dfact.models.gom.plots import classes_figure, item_heatmap, plot_memberships
from dfact.models.gom.tables import class_table, classes_text, distinctive_items, highest_items, respondents
from dfact.models.provenance import SelectionRecord
from dfact.report.document import Drawing, Section, make_table
from dfact.report.presenters.base import Presenter
from dfact.selection.result import RESAMPLED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_PLOTTED = 3  # classes, in a triangle


class GoMPresenter(Presenter[GradeOfMembership]):
    """The presentation of a grade of membership."""

    rows = "memberships of {n} subjects in {k} classes"
    factors = "memberships"

    def summary(self) -> Lines:
        model = self.model
        n, k = model.memberships_.shape
        size = f"{n} subjects × {len(model.column_labels_)} items"
        pure, mixed = f"{model.highly_pure_share_:.1%} of the subjects", f"{model.highly_mixed_share_:.1%}"
        method = f"{model.method}{f', {model.vertex_hunting}' if model.method == 'crsc' else ''}"
        lines = [
            ("model", f"{type(model).__name__}, {k} classes of {size}, responses 0 to {model.max_response_:g}"),
            ("fit", f"method {method}; modularity {model.modularity_:.4g}"),
            ("purity", f"{pure} are highly pure (a membership of {PURE} or more), {mixed} highly mixed (none above {MIXED})"),
        ]
        if model.likelihood != "none":
            refined = f"{model.likelihood}, {convergence_text(model, 'passes')}, log-likelihood {model.log_likelihood_:.3f}"
            lines.insert(2, ("likelihood", refined))
        if model.n_unobserved_:
            lines.append(("missing", f"{model.n_unobserved_} subjects without any response: their memberships are NaN"))
        return lines

    def selection_notes(self, record: SelectionRecord) -> list[str]:
        if record.criterion in ("excess", "deviance"):
            best = int(record.values[record.best][record.names.index("n_components")])
            return describe_choice(record.table.set_index("n_components"), best)
        notes = [
            "Modularity rates the separation of the classes. Where sizes differ, memberships are mixed or classes are alike, it is highest "
            "for fewer classes than there are: take its choice as a lower limit."
        ]
        if {*RESAMPLED, "chosen"} <= set(record.figure_names):
            share = record.figures[record.best, record.figure_names.index("chosen")]
            notes.append(
                f"The chosen number has the highest modularity in {share:.0%} of the resamples. {' and '.join(RESAMPLED)} are quantiles of "
                "their scores, not confidence limits."
            )
        return notes

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        return [classes_text(self.model, top, texts)]

    def items_plot(self) -> "Figure":
        return item_heatmap(self.model)

    def top_items(self, n: int) -> tuple[str, pd.DataFrame]:
        if len(self.model.components_) == 1:
            about, table = "The items with the highest expected responses.", highest_items(self.model, n)
        else:
            about = "The items whose expected response in a class differs most from that in the other classes."
            table = distinctive_items(self.model, n)
        return about, table.rename(columns={"class": "factor", "response": "loading"})

    def answer_label(self, item: str, value: float) -> str:
        known = None if self.model.codebook_ is None else self.model.codebook_.get(item)
        label = "" if known is None else known.level_near(value)
        return f"near “{label}”" if label else ""

    def scale_maximum(self) -> float | None:
        return float(self.model.max_response_)

    def component_section(self) -> Section | None:
        model = self.model
        table = class_table(model)
        table["moderate_share"] = _largest_share(table, model) - table["pure_share"] - table["mixed_share"]
        k = len(table)
        shares = "; ".join(f"{name}: {row['share']:.0%} of the memberships" for name, row in table.iterrows()) + "."
        if 1 < k <= _MAX_PLOTTED:
            layout = "on a line between two classes" if k == 2 else "in a triangle whose corners are the classes"
            drawing = Drawing(
                lambda: plot_memberships(model), f"The subjects {layout}. {shares}", f"Memberships of the subjects, {layout}."
            )
        else:
            caption = "The subjects by the class of their highest membership, and their purity."
            drawing = Drawing(lambda: classes_figure(table), shares, caption)
        columns = ["size", "share", "pure", "pure_share", "mixed", "mixed_share", "pure_subject"]
        formats = dict.fromkeys(("share", "pure share", "mixed share"), "{:.1%}")
        renamed = table[columns].rename(columns=lambda name: name.replace("_", " "))
        caption = "The classes: memberships, and subjects with their highest membership in the class"
        return Section("classes", "The classes", [drawing, make_table(renamed, caption, formats=formats)])


def _largest_share(table: pd.DataFrame, model: GradeOfMembership) -> "pd.Series[float]":
    """Return for each class the share of the subjects with a response whose highest membership it has."""
    counts = np.zeros(len(table))
    for Pi in respondents(model):
        counts += np.bincount(Pi.argmax(axis=1), minlength=len(table))
    return pd.Series(counts / max(1, counts.sum()), index=table.index)
