"""The presentation of an admixture: its populations, their distances, and the ancestry proportions of the individuals."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.export.tables import Lines, Texts, convergence_text, distinctive_items, highest_items, row_chunks
from dfact.genetics.admixture import Admixture
from dfact.genetics.distances import Distances, population_distances
from dfact.genetics.structure_plot import population_names, structure_figure
from dfact.report.document import Block, Drawing, Section, Text, make_table
from dfact.report.figures import history_figure
from dfact.report.presenters.base import MAX_ITEMS, Presenter, counted_rows
from dfact.text import indented, table_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PURE = 0.9
"""Membership from which an individual counts as of one population."""
_FORMATS = {"share": "{:.1%}", "standard error": "{:.4f}"}


class AdmixturePresenter(Presenter[Admixture]):
    """The presentation of an admixture."""

    rows = "ancestry proportions of {n} individuals in {k} populations"
    factors = "ancestry proportions"

    def summary(self) -> Lines:
        model = self.model
        lines = [self.model_line(), ("fit", f"{convergence_text(model)}, log likelihood {model.log_likelihood_:.3f}")]
        if model.populations_:
            lines.append(("labelled", ", ".join(model.populations_)))
        if model.n_unobserved_:
            lines.append(("missing", f"{model.n_unobserved_} individuals without any genotype: their ancestry proportions are NaN"))
        return lines

    def model_line(self) -> tuple[str, str]:
        n, k = self.model.memberships_.shape
        return (
            "model",
            f"{type(self.model).__name__}, {k} populations of {counted_rows(n, 'individuals')} × {len(self.model.column_labels_)} SNPs",
        )

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        blocks = [table_text(_as_texts(size_table(self.model)).reset_index(), header=True)]
        if len(self.names) > 1:
            blocks.append("\n".join([table_text(self._distance_texts.reset_index(names="F_ST"), header=True), *self._uncorrected]))
        if not top:
            return blocks
        about, table = self.top_items(top)
        items = [f"{name}: {', '.join(map(_item_text, rows.to_dict('records')))}" for name, rows in table.groupby("factor", sort=False)]
        return [*blocks, "\n".join([about, indented("\n".join(items))])] if items else blocks

    def items_plot(self) -> "Figure":
        if not self.model.memberships_.shape[0]:
            return super().items_plot()
        return structure_figure([np.asarray(self.model.memberships_)], self.labels, names=self.names)

    def top_items(self, n: int) -> tuple[str, pd.DataFrame]:
        if len(self.names) == 1:
            return "The SNPs with the highest frequencies.", highest_items(self.all_loadings, n)
        about = "The SNPs whose frequency in a population differs most from the mean of the other populations, with the difference."
        return about, distinctive_items(self.all_loadings, n)

    @cached_property
    def shown(self) -> NDArray[np.intp]:
        """Positions of the SNPs in the report: all, or those whose frequencies differ most between two populations."""
        P = self.model.allele_frequencies_
        spread = P.max(axis=0) - P.min(axis=0)
        return np.sort(np.argsort(-spread, kind="stable")[:MAX_ITEMS])

    def scale_maximum(self) -> float | None:
        return 1.0

    @property
    def labels(self) -> Any:
        """Populations that the data states for the individuals; None without any."""
        stated = None if self.dataset is None else self.dataset.genotypes.population
        return self.model.row_populations_ if stated is None else stated

    @cached_property
    def distances(self) -> Distances:
        """F_ST between the populations, with standard errors."""
        return population_distances(self.model)

    @property
    def _distance_texts(self) -> pd.DataFrame:
        """F_ST of each pair of populations with its standard error, as texts."""
        found, k = self.distances, len(self.names)
        cells = [[f"{found.values[i, j]:.3f} ({found.errors[i, j]:.3f})" if i != j else "" for j in range(k)] for i in range(k)]
        return pd.DataFrame(cells, pd.Index(self.names, name="population"), self.names)

    @property
    def _uncorrected(self) -> list[str]:
        """Say that distances are too large, if the model has no sums for their correction."""
        if self.distances.corrected:
            return []
        return ["F_ST is too large, as sampling errors of the frequencies are not known; fit with a higher memory limit."]

    def component_section(self) -> Section:
        model, labels = self.model, self.labels
        sizes = size_table(model)
        shares = "; ".join(f"{name}: {row['share']:.1%} of the ancestry" for name, row in sizes.iterrows()) + "."
        memberships = np.asarray(model.memberships_)
        sorting = "by population, and within it " if labels is not None else ""
        about = f"A bar for each individual, or the mean of several; individuals are sorted {sorting}by their leading population."
        drawing = Drawing(lambda: structure_figure([memberships], labels, names=self.names), shares, about)
        blocks: list[Block] = [
            *([drawing] if len(memberships) else ()),
            make_table(
                sizes,
                f"The populations: ancestry, and individuals with a proportion of {PURE} or more",
                formats=_FORMATS,
            ),
        ]
        if labels is not None and len(memberships):
            caption = "Mean ancestry proportions of the individuals, by the population that the data states"
            blocks.append(make_table(mean_memberships(memberships, labels, self.names), caption, shaded=self.names))
        if len(self.names) > 1:
            text = "F_ST between the populations: Hudson's, of their frequencies; 0 for equal frequencies, 1 for SNPs that all differ."
            corrected = "Sampling errors of the frequencies are taken off. Standard errors are by a jackknife over blocks of SNPs."
            tables = [
                pd.DataFrame(numbers, pd.Index(self.names, name="population"), self.names)
                for numbers in (self.distances.values, self.distances.errors)
            ]
            blocks += [
                Text(" ".join([text, *(self._uncorrected or [corrected])])),
                make_table(tables[0], "F_ST between the populations", shaded=self.names, formats=dict.fromkeys(self.names, "{:.3f}")),
                make_table(tables[1], "Standard errors of F_ST", formats=dict.fromkeys(self.names, "{:.4f}")),
            ]
        return Section("populations", "The populations", blocks)

    def history_drawing(self) -> Drawing | None:
        history = np.asarray(self.model.log_likelihood_history_, np.float64)
        if len(history) < 2:
            return None
        alt = f"Line of the log likelihood over {len(history)} iterations, from {history[0]:.8g} to {history[-1]:.8g}."
        caption = "The log likelihood after each accepted iteration; it never falls."
        return Drawing(lambda: history_figure(history, None, "log likelihood"), alt, caption)


def size_table(model: Admixture) -> pd.DataFrame:
    """Return for each population its ``size`` (sum of proportions), its ``share``, and ``individuals`` with a proportion of 0.9 or more.

    With standard errors of the ancestry proportions also their mean, ``standard error``.
    """
    k = len(model.allele_frequencies_)
    sizes, pure = np.zeros(k), np.zeros(k, np.int64)
    for rows in row_chunks(model.memberships_):
        sizes += np.nansum(rows, axis=0, dtype=np.float64)
        pure += (rows >= PURE).sum(axis=0)
    columns = {"size": sizes, "share": sizes / (sizes.sum() or np.nan), "individuals": pure}
    if (errors := getattr(model, "memberships_se_", None)) is not None:
        known = errors.shape[0] - model.n_unobserved_
        columns["standard error"] = np.sum([np.nansum(rows, axis=0, dtype=np.float64) for rows in row_chunks(errors)], axis=0) / known
    return pd.DataFrame(columns, index=pd.Index([str(name) for name in model.get_feature_names_out()], name="population"))


def mean_memberships(memberships: NDArray[Any], labels: Any, names: Sequence[str]) -> pd.DataFrame:
    """Return the mean ancestry proportions of each population, with the number of ``individuals``; NaN is left out."""
    known = np.isfinite(memberships).all(axis=1)
    groups = pd.DataFrame(memberships[known].astype(np.float64), columns=list(names)).groupby(population_names(labels, len(known))[known])
    table = groups.mean().rename_axis("individuals of")
    table.insert(0, "individuals", groups.size())
    return table


def _as_texts(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: table[name].map(style.format) for name, style in _FORMATS.items() if name in table})


def _item_text(row: dict[Any, Any]) -> str:
    difference = f" ({row['difference']:+.2f})" if "difference" in row else ""
    return f"{row['item']} {row['loading']:.2f}{difference}"
