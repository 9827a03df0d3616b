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

_SHARES = tuple(float(share) for share in np.arange(1, 100) / 100)  # of the entries, at which a distribution of errors is drawn
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
        errors = BinErrors.of(self.model, dataset)
        table = errors.table
        about = "Relative errors |b̂ − b|/|b| of the fitted entries, in bins that end at quantiles of their size."
        medians = "; ".join(f"{name}: median {value:.0%}" for name, value in table["median"].items()) + "."
        drawing = Drawing(
            lambda: bins_figure(errors),
            f"Median relative error by size of the entry. {medians}",
            "Relative errors: medians, boxes from quartile to quartile, and lines from 5% to 95% of the entries.",
        )
        curves = Drawing(
            lambda: distributions_figure(errors),
            "Cumulative distributions of the relative errors by size of the entry.",
            "Share of the entries whose relative error is at most this. A curve further to the left has smaller errors.",
        )
        formats = dict.fromkeys(("lower quartile", "median", "upper quartile"), "{:.1%}")
        caption = "Errors by size of the entry; absolute is the median |b̂ − b|"
        return Section("bins", "Errors by size", [Text(about), drawing, curves, make_table(table, caption, formats=formats)])


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


def bins_figure(errors: "BinErrors") -> "Figure":
    """Plot box plots of the relative errors of each bin, on a logarithmic scale if quartiles differ by a factor above 30."""
    figure = new_figure(7, 3.2)
    axes = figure.add_subplot()
    table = errors.table
    finite = np.isfinite(table["upper quartile"].to_numpy())
    boxes = []
    for label, row in table[finite].iterrows():
        five, ninety_five = (np.interp(share, _SHARES, errors.distributions[str(label)]) for share in (0.05, 0.95))
        ends = {"q1": row["lower quartile"], "med": row["median"], "q3": row["upper quartile"]}
        whiskers = {"whislo": min(five, ends["q1"]), "whishi": max(ends["q3"], ninety_five if np.isfinite(ninety_five) else ends["q3"])}
        boxes.append({"label": str(label), "fliers": [], **ends, **whiskers})
    axes.bxp(boxes, showfliers=False)
    lowest = float(table["lower quartile"][finite].min())
    if lowest > 0 and table["upper quartile"][finite].max() > 30 * lowest:
        axes.set_yscale("log")
    axes.tick_params(axis="x", rotation=30)
    axes.set(xlabel="size of the entry", ylabel="relative error")
    return figure


def distributions_figure(errors: "BinErrors") -> "Figure":
    """Plot the cumulative distribution of the relative errors of each bin up to the largest 95% quantile that is finite."""
    figure = new_figure(7, 3.6)
    axes = figure.add_subplot()
    ends = []
    for name, quantiles in errors.distributions.items():
        known = np.isfinite(quantiles)
        axes.plot(quantiles[known], np.asarray(_SHARES)[known], label=name)
        ends += list(quantiles[known & (np.asarray(_SHARES) <= 0.95)][-1:])
    axes.set(xlabel="relative error", ylabel="share of the entries", xlim=(0, max(ends, default=1.0) or 1.0), ylim=(0, 1))
    axes.legend(title="size of the entry")
    return figure


@dataclass(frozen=True, eq=False)
class BinErrors:
    """Errors of the entries in bins by their size."""

    edges: tuple[float, ...]
    table: pd.DataFrame
    """Bins with their number of ``entries``, quartiles and ``median`` of |b̂ − b|/|b|, and ``absolute``, the median |b̂ − b|."""
    distributions: dict[str, NDArray[np.float64]]
    """Quantiles of |b̂ − b|/|b| of each bin at 1%, 2%, … 99% of its entries (99,); a bin without entries has none."""

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
        counts = [totals[0].counts[i] for i in range(len(names))]
        curves = {name: np.asarray(measures[0].quantiles(each, _SHARES)) for name, each in zip(names, counts, strict=True) if each.sum()}
        return cls(edges, pd.DataFrame(rows, index=pd.Index(names, name="size of the entry")), curves)


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
