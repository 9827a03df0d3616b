"""Figures of the HTML report."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.lazy import hierarchy
from dfact.models.provenance import Comparison, Stability, TensorStability
from dfact.report.plots import center_colors, heatmap, new_figure
from dfact.report.row_statistics import RowStatistics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups = list[tuple[str, int]]
"""Names and sizes of consecutive groups of items."""
_MAX_ORDERED = 400  # items up to which leaves are ordered optimally, which takes cubic time
_PANELS_PER_ROW = 4
_WIDTH = 7.0  # inches
_MAX_LINES = 60  # items up to which each has a labelled line


def order_by_similarity(loadings: pd.DataFrame, groups: dict[str, str]) -> tuple[NDArray[np.intp], Groups]:
    """Order items so that similar loadings are adjacent, within their groups if there are any.

    Uses average linkage of the rows scaled to length 1. Groups keep their order in the loadings; items without a group are last.
    """
    group_names = np.array([groups.get(str(item), "") for item in loadings.index], dtype=object)
    names = sorted(dict.fromkeys(group_names), key=lambda name: name == "")
    order = []
    for name in names:
        members = np.flatnonzero(group_names == name)
        order.append(members[_leaf_order(loadings.to_numpy(np.float64)[members])])
    return np.concatenate(order), [(name, len(part)) for name, part in zip(names, order, strict=True)] if groups else []


def _leaf_order(rows: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the order of the leaves of a hierarchical clustering."""
    if len(rows) < 3:
        return np.arange(len(rows))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    leaves = hierarchy.leaves_list(hierarchy.linkage(units, "average", optimal_ordering=len(rows) <= _MAX_ORDERED)).astype(np.intp)
    # Either direction is a valid order: choose the one that starts with the first factor.
    strong = np.abs(units[leaves]).argmax(axis=1)
    return leaves if strong[: len(leaves) // 2].mean() <= strong[len(leaves) // 2 :].mean() else leaves[::-1]


def items_heatmap(loadings: pd.DataFrame, groups: Groups, value: str, maximum: float | None) -> "Figure":
    """Plot loadings as a heat map in their order, with lines between groups, and white at 0 if any is negative."""
    figure = heatmap(loadings, str(loadings.index.name or "item"), value, maximum)
    width, height = figure.get_size_inches()
    figure.set_size_inches(max(width, _WIDTH), height)
    axes = figure.axes[0]
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if (loadings < 0).any(axis=None):
        center_colors(figure, float(np.abs(loadings.to_numpy()).max()))
    if groups:
        ends = np.cumsum([size for _, size in groups])
        for end in ends[:-1]:
            axes.axhline(end - 0.5, color="#999999", linewidth=1.5)
        group_axis = axes.secondary_yaxis("right")
        group_axis.spines[:].set_visible(False)
        group_axis.set_yticks([end - size / 2 - 0.5 for end, (_, size) in zip(ends, groups, strict=True)], [name for name, _ in groups])
        group_axis.tick_params(length=0)
    return figure


def history_figure(objectives: NDArray[Any], lagrangians: NDArray[Any] | None, label: str = "objective") -> "Figure":
    """Plot the objective, or what ``label`` says, over the iterations, on a logarithmic scale if it falls below a tenth."""
    figure = new_figure(7, 3)
    axes = figure.add_subplot()
    axes.plot(np.arange(len(objectives)), objectives, marker="o" if len(objectives) <= 40 else None, markersize=3, label=label)
    if lagrangians is not None and len(lagrangians):
        axes.plot(np.arange(1, len(lagrangians) + 1), lagrangians, linestyle="--", label="augmented Lagrangian")
        axes.legend()
    if objectives.min() > 0 and objectives.max() > 10 * objectives.min():
        axes.set_yscale("log")
    axes.set(xlabel="step", ylabel=label)
    return figure


def distributions_figure(statistics: RowStatistics, names: list[str], rows: str) -> "Figure":
    """Plot a histogram of each factor."""
    k = len(names)
    n_columns = min(k, _PANELS_PER_ROW)
    n_rows = -(-k // n_columns)
    figure = new_figure(2.4 * n_columns + 0.4, 1.7 * n_rows + 0.3)
    for i, axes in enumerate(figure.subplots(n_rows, n_columns, squeeze=False).ravel()):
        if i >= k:
            axes.set_visible(False)
            continue
        shares = statistics.counts[i] / max(1, statistics.n)
        axes.stairs(shares, statistics.edges[i], fill=True, color=f"C{i % 8}")
        axes.set_title(names[i])
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.locator_params(nbins=4)
    figure.supylabel(f"share of the {rows}", fontsize="medium")
    return figure


def errors_figure(values: "pd.Series[Any]", label: str, along: NDArray[Any] | None) -> "Figure":
    """Plot a value of each item: few items as labelled lines, largest on top; many as one line, or over the axis values ``along``."""
    ordered = values.dropna().sort_values()
    labelled = len(ordered) <= _MAX_LINES and along is None
    figure = new_figure(7, 1 + (0.2 * len(ordered) if labelled else 2.5))
    axes = figure.add_subplot()
    positions = np.arange(len(ordered))
    if labelled:
        axes.hlines(positions, min(0.0, ordered.min()), ordered, color="#999999", linewidth=1)
        axes.plot(ordered, positions, "o", markersize=5)
        axes.set_yticks(positions, [str(name) for name in ordered.index])
        axes.set_ylim(-0.7, len(ordered) - 0.3)
        axes.set_xlabel(label)
        return figure
    axes.plot(positions + 1 if along is None else along, ordered[::-1] if along is None else values)
    axes.set_ylabel(label)
    axes.set_xlabel(f"{len(ordered)} {values.index.name}s, best first" if along is None else f"{values.index.name} of mode 2")
    return figure


def stability_figure(stability: Stability | TensorStability, names: list[str]) -> "Figure":
    """Plot the similarity of each refit's factors to the model's, with bars at the medians."""
    k = len(names)
    figure = new_figure(7, 0.9 + 0.38 * k)
    axes = figure.add_subplot()
    # Vertical jitter, with a fixed seed so that equal models give equal figures.
    spread = np.random.default_rng(0).uniform(-0.22, 0.22, stability.n_refits)
    for i in range(k):
        similarity = stability.similarity[:, i]
        axes.plot(similarity, i + spread, "o", markersize=3, alpha=0.5, color=f"C{i % 8}")
        axes.vlines(np.nanmedian(similarity), i - 0.35, i + 0.35, color="black", linewidth=2)
    axes.set_yticks(range(k), names)
    axes.set_ylim(k - 0.5, -0.5)
    axes.set_xlabel(f"similarity of {stability.n_refits} refits")
    axes.set_xlim(min(0.0, float(np.nanmin(stability.similarity, initial=1))), 1.02)
    return figure


def comparison_figure(comparison: Comparison, names: list[str]) -> "Figure":
    """Plot the congruence of each factor between groups with the interval of the populations'.

    The lines at 0.85 and 0.95 are for loadings with signs.
    """
    k, groups = len(names), comparison.levels[1:]
    figure = new_figure(7, 0.9 + 0.38 * k * max(1, 0.6 * len(groups)))
    axes = figure.add_subplot()
    for mark in (0.85, 0.95) if comparison.centred is None else ():
        axes.axvline(mark, color="gray", linewidth=0.8, linestyle="--")
    shown = comparison.congruence if comparison.rotated is None else comparison.rotated
    offsets = np.linspace(-0.25, 0.25, len(groups) + 2)[1:-1]
    for i, (group, offset) in enumerate(zip(groups, offsets, strict=True)):
        places, values = np.arange(k) + offset, shown[i]
        axes.hlines(places, comparison.low[i], comparison.high[i], color=f"C{i % 8}", linewidth=1.5)
        axes.plot(values, places, "o", markersize=4, color=f"C{i % 8}", label=f"{group} and {comparison.levels[0]}")
    axes.set_yticks(range(k), names)
    axes.set_ylim(k - 0.5, -0.5)
    axes.set_xlim(min(0.8, float(min(np.nanmin(comparison.low, initial=1), shown.min())) - 0.02), 1.005)
    axes.set_xlabel(f"congruence with {comparison.by}={comparison.levels[0]}")
    if len(groups) > 1:
        axes.legend(fontsize="small", loc="lower left")
    return figure
