"""Figures of an HTML report that no other part of dfact draws."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage

from dfact.models.provenance import Stability
from dfact.report.plots import heatmap, new_figure
from dfact.report.row_statistics import RowStatistics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups = list[tuple[str, int]]
"""Names and sizes of runs of items."""
_MOST_ORDERED = 400  # items up to which the leaves of the tree are turned to their neighbours, which takes time with the cube of them
_ACROSS = 4  # panels in a line
_WIDTH = 7.0  # inches
_MOST_LINES = 60  # of items in a picture with a line for each


def clustered(loadings: pd.DataFrame, groups: dict[str, str]) -> tuple[NDArray[np.intp], Groups]:
    """An order of the items in which those with like loadings stand together, within their groups where there are any.

    Average linkage of the rows scaled to length 1; groups come as they do in the loadings, items without one last.
    """
    of = np.array([groups.get(str(item), "") for item in loadings.index], dtype=object)
    names = sorted(dict.fromkeys(of), key=lambda name: name == "")
    order = []
    for name in names:
        inside = np.flatnonzero(of == name)
        order.append(inside[_like(loadings.to_numpy(np.float64)[inside])])
    return np.concatenate(order), [(name, len(part)) for name, part in zip(names, order, strict=True)] if groups else []


def _like(rows: NDArray[np.float64]) -> NDArray[np.intp]:
    if len(rows) < 3:
        return np.arange(len(rows))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    leaves = leaves_list(linkage(units, "average", optimal_ordering=len(rows) <= _MOST_ORDERED)).astype(np.intp)
    # From either end it is the same order: begin with the first factor.
    strong = np.abs(units[leaves]).argmax(axis=1)
    return leaves if strong[: len(leaves) // 2].mean() <= strong[len(leaves) // 2 :].mean() else leaves[::-1]


def items_heatmap(loadings: pd.DataFrame, groups: Groups, value: str, highest: float | None) -> "Figure":
    """A heat map of loadings in their order, with lines between groups; white at 0 where there are negative ones."""
    figure = heatmap(loadings, str(loadings.index.name or "item"), value, highest)
    width, height = figure.get_size_inches()
    figure.set_size_inches(max(width, _WIDTH), height)
    axes = figure.axes[0]
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if (loadings < 0).any(axis=None):
        (image,) = axes.images
        largest = float(np.abs(loadings.to_numpy()).max())
        image.set_cmap("RdBu_r")
        image.set_clim(-largest, largest)
    if groups:
        ends = np.cumsum([size for _, size in groups])
        for end in ends[:-1]:
            axes.axhline(end - 0.5, color="#999999", linewidth=1.5)
        beside = axes.secondary_yaxis("right")
        beside.spines[:].set_visible(False)
        beside.set_yticks([end - size / 2 - 0.5 for end, (_, size) in zip(ends, groups, strict=True)], [name for name, _ in groups])
        beside.tick_params(length=0)
    return figure


def history_figure(objectives: NDArray[Any], lagrangians: NDArray[Any] | None) -> "Figure":
    """The objective over the iterations; on a logarithmic scale where it falls to less than a tenth."""
    figure = new_figure(7, 3)
    axes = figure.add_subplot()
    axes.plot(np.arange(len(objectives)), objectives, marker="o" if len(objectives) <= 40 else None, markersize=3, label="objective")
    if lagrangians is not None and len(lagrangians):
        axes.plot(np.arange(1, len(lagrangians) + 1), lagrangians, linestyle="--", label="augmented Lagrangian")
        axes.legend()
    if objectives.min() > 0 and objectives.max() > 10 * objectives.min():
        axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="objective")
    return figure


def distributions_figure(statistics: RowStatistics, names: list[str], rows: str) -> "Figure":
    """A histogram of each factor."""
    k = len(names)
    across = min(k, _ACROSS)
    down = -(-k // across)
    figure = new_figure(2.4 * across + 0.4, 1.7 * down + 0.3)
    for i, axes in enumerate(figure.subplots(down, across, squeeze=False).ravel()):
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
    """A figure of each item: the largest on top, or in a line; where items are such as wavelengths, ``along`` these."""
    ordered = values.dropna().sort_values()
    labelled = len(ordered) <= _MOST_LINES and along is None
    figure = new_figure(7, 1 + (0.2 * len(ordered) if labelled else 2.5))
    axes = figure.add_subplot()
    places = np.arange(len(ordered))
    if labelled:
        axes.hlines(places, min(0.0, ordered.min()), ordered, color="#999999", linewidth=1)
        axes.plot(ordered, places, "o", markersize=5)
        axes.set_yticks(places, [str(name) for name in ordered.index])
        axes.set_ylim(-0.7, len(ordered) - 0.3)
        axes.set_xlabel(label)
        return figure
    axes.plot(places + 1 if along is None else along, ordered[::-1] if along is None else values)
    axes.set_ylabel(label)
    axes.set_xlabel(f"{len(ordered)} {values.index.name}s, best first" if along is None else f"{values.index.name} of mode 2")
    return figure


def bins_figure(table: pd.DataFrame) -> "Figure":
    """The median relative error of each bin, with the quartiles; on a logarithmic scale where they differ much."""
    figure = new_figure(7, 3.2)
    axes = figure.add_subplot()
    known = table[np.isfinite(table["upper quartile"])]
    places = np.arange(len(known))
    axes.vlines(places, known["lower quartile"], known["upper quartile"], color="#999999", linewidth=3)
    axes.plot(places, known["median"], "o", markersize=7)
    lowest = float(known["lower quartile"].min())
    if lowest > 0 and known["upper quartile"].max() > 30 * lowest:
        axes.set_yscale("log")
    axes.set_xticks(places, [str(label) for label in known.index], rotation=30, ha="right")
    axes.set(xlabel="size of the entry", ylabel="relative error")
    return figure


def stability_figure(stability: Stability, names: list[str]) -> "Figure":
    """How like the model's each refit's factors are: a point for each refit, a bar at the median."""
    k = len(names)
    figure = new_figure(7, 0.9 + 0.38 * k)
    axes = figure.add_subplot()
    spread = np.random.default_rng(0).uniform(-0.22, 0.22, stability.n_refits)  # in height alone, and the same at every call
    for i in range(k):
        found = stability.similarity[:, i]
        axes.plot(found, i + spread, "o", markersize=3, alpha=0.5, color=f"C{i % 8}")
        axes.vlines(np.nanmedian(found), i - 0.35, i + 0.35, color="black", linewidth=2)
    axes.set_yticks(range(k), names)
    axes.set_ylim(k - 0.5, -0.5)
    axes.set_xlabel(f"similarity of {stability.n_refits} refits")
    axes.set_xlim(min(0.0, float(np.nanmin(stability.similarity, initial=1))), 1.02)
    return figure


def classes_figure(table: pd.DataFrame, levels: tuple[str, str, str]) -> "Figure":
    """Of each class the subjects whose highest membership is in it, by how pure they are."""
    figure = new_figure(7, 0.9 + 0.42 * len(table))
    axes = figure.add_subplot()
    left = np.zeros(len(table))
    for level, column in zip(levels, ("pure_share", "moderate_share", "mixed_share"), strict=True):
        axes.barh(np.arange(len(table)), table[column], 0.65, left, label=level)
        left += table[column].to_numpy()
    axes.set_yticks(range(len(table)), [str(name) for name in table.index])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("share of the subjects")
    figure.legend(loc="outside upper center", ncols=3)
    return figure
