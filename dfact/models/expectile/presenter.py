"""Texts of an expectile matrix factorization, and its errors by the size of the entries."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.export.tables import Lines, Texts, fit_line, largest_items, row_chunks, under_headings
from dfact.models.expectile.estimator import ExpectileMF
from dfact.models.expectile.held_out_errors import ErrorHistogram, ErrorMeasure
from dfact.models.provenance import SelectionRecord
from dfact.models.reconstruction import entries
from dfact.report.document import Drawing, Section, Text, make_table
from dfact.report.plots import new_figure
from dfact.report.presenters.base import Presenter, counted_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # of the sizes of the entries, where bins end


class ExpectilePresenter(Presenter[ExpectileMF]):
    """The presentation of an expectile matrix factorization."""

    rows = "{k} components of {n} rows"
    factors = "row factors"

    def summary(self) -> Lines:
        model = self.model
        n, k = model.factors_.shape
        return [
            ("model", f"{type(model).__name__}, {k} components of {counted_rows(n, 'rows')} × {len(model.column_labels_)} columns"),
            ("loss", f"expectiles at tau {model.tau:g}, ridge {model.ridge:g}"),
            *order_lines(model),
            *coverage_lines(model),
            fit_line(model, model.remaining_),
        ]

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        norms = component_norms(self.model)
        headings = [f"{name}: norm {norm:.4g}" for name, norm in norms.items()]
        return [under_headings(headings, list(norms.index), largest_items(self.model, self.model.loadings_, top, texts))]

    def selection_notes(self, record: SelectionRecord) -> list[str]:
        lines = coverage_lines(self.model)
        return [f"Of the held-out entries, {text}." for _, text in lines]

    def errors_section(self, dataset: Dataset) -> Section | None:
        table = BinErrors.of(self.model, dataset).table
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


def order_lines(model: ExpectileMF) -> Lines:
    """Describe the order of the model's entries and those of the other expectiles that were fitted with it."""
    taus, shares = getattr(model, "taus_", ()), getattr(model, "crossed_", ())
    parts = [
        f"{'above' if tau < model.tau else 'below'} tau {tau:g} except at {share:.1%} of entries"
        for tau, share in zip(taus, shares, strict=True)
    ]
    return [("order", ", ".join(parts))] if parts else []


def coverage_lines(model: ExpectileMF) -> Lines:
    """Describe the coverage of the held-out entries in the selection that chose the model, compared with the expectile's definition."""
    record = getattr(model, "selection_", None)
    if record is None or "deviation_below" not in record.figure_names:
        return []
    figures = dict(zip(record.figure_names, record.figures[record.best], strict=True))
    entries = f"{figures['below']:.1%} below the expectile, {figures['below_expected']:.1%} by its definition"
    distances = f"{figures['deviation_below']:.1%} of the distances, {model.tau:.1%} by definition"
    return [("held out", f"{entries}; {distances}")]


def component_norms(model: ExpectileMF) -> "pd.Series[Any]":
    """Return ‖x_a‖·‖y_a‖ of each component a, the Frobenius norm of its contribution. Row factors in a store are read by chunks."""
    squares = sum(np.square(rows, dtype=np.float64).sum(axis=0) for rows in row_chunks(model.factors_))
    norms = np.sqrt(squares * np.square(model.column_factors_, dtype=np.float64).sum(axis=0))
    return pd.Series(norms, index=pd.Index(model.get_feature_names_out(), name="component"))


def bins_figure(table: pd.DataFrame) -> "Figure":
    """Plot the median relative error of each bin with its quartiles, on a logarithmic scale if they differ by a factor above 30."""
    figure = new_figure(7, 3.2)
    axes = figure.add_subplot()
    finite = table[np.isfinite(table["upper quartile"])]
    positions = np.arange(len(finite))
    axes.vlines(positions, finite["lower quartile"], finite["upper quartile"], color="#999999", linewidth=3)
    axes.plot(positions, finite["median"], "o", markersize=7)
    lowest = float(finite["lower quartile"].min())
    if lowest > 0 and finite["upper quartile"].max() > 30 * lowest:
        axes.set_yscale("log")
    axes.set_xticks(positions, [str(label) for label in finite.index], rotation=30, ha="right")
    axes.set(xlabel="size of the entry", ylabel="relative error")
    return figure


@dataclass(frozen=True, eq=False)
class BinErrors:
    """Errors of the entries in bins by their size."""

    edges: tuple[float, ...]
    table: pd.DataFrame
    """Bins with their number of ``entries``, quartiles and ``median`` of |b̂ − b|/|b|, and ``absolute``, the median |b̂ − b|."""

    @classmethod
    def of(cls, model: ExpectileMF, dataset: Dataset) -> "BinErrors":
        """Compute bins that end at quantiles of |b|, then relative and absolute errors, in three reads. Quantiles are exact to 0.1%."""
        statistics, offset = dataset.statistics, dataset.offset
        observed = statistics.observed > 0
        largest = max(np.abs(limit + offset)[observed].max() for limit in (statistics.minimum, statistics.maximum))
        size = ErrorMeasure("absolute", unit=float(largest) or 1.0)
        sizes = _sum(size.count(b, np.zeros_like(b)) for b, _ in _sizes(model, dataset))
        inner = size.quantiles(sizes.counts.sum(axis=0), _QUANTILES)
        edges = (0.0, *_distinct(inner), np.inf)
        measures = ErrorMeasure("relative", edges), ErrorMeasure("absolute", edges, size.unit)
        totals = [_sum(measure.count(b, R) for b, R in _sizes(model, dataset)) for measure in measures]
        rows = []
        for i in range(len(edges) - 1):
            relative, absolute = (total.counts[i] for total in totals)
            median, low, high = measures[0].quantiles(relative, (0.5, 0.25, 0.75))
            (distance,) = measures[1].quantiles(absolute, (0.5,))
            rows.append(
                {"entries": int(absolute.sum()), "lower quartile": low, "median": median, "upper quartile": high, "absolute": distance}
            )
        names = [f"{low:.3g} to {high:.3g}" if high < np.inf else f"from {low:.3g}" for low, high in pairwise(edges)]
        return cls(edges, pd.DataFrame(rows, index=pd.Index(names, name="size of the entry")))


def _sizes(model: ExpectileMF, dataset: Dataset) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the sizes |b| of the observed entries, and their reconstruction with the same change of sign."""
    for M, R in entries(model, dataset, model.row_factors()):
        observed = ~np.isnan(M)
        b = M[observed]
        sign = np.where(b < 0, -1.0, 1.0)
        yield b * sign, R[observed] * sign


def _distinct(numbers: list[float]) -> Iterator[float]:
    """Yield the positive ones of increasing numbers that exceed their predecessor by more than 1%."""
    last = 0.0
    for number in numbers:
        if last * 1.01 < number < np.inf:
            last = number
            yield number


def _sum(parts: Iterator[ErrorHistogram]) -> ErrorHistogram:
    total = next(parts).accumulator()
    for part in parts:
        total.add(part)
    return total
