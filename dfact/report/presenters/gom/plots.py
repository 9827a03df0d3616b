"""Plots of a grade of membership, with Matplotlib (the optional extra ``plot``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.models.gom.passes import MIXED, PURE
from dfact.report.plots import heatmap, new_figure
from dfact.report.presenters.gom.tables import LEVELS, purity_level, respondents, subject_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 2000  # more subjects would hide one another
_MOST_ROWS = 30  # as the paper shows them
_BINS, _CELLS = 50, 50  # along a line, and along each edge of a triangle
_RANGES = (f"≥ {PURE}", f"{MIXED} to {PURE}", f"≤ {MIXED}")
_COLORS, _MARKERS = ("#0072B2", "#E69F00", "#009E73"), ("o", "s", "D")  # colours of Okabe and Ito: the colour-blind tell them apart
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def membership_plot(model: Any) -> "Figure":
    """Where the subjects stand between 2 classes (on a line) or 3 (in a triangle), by how pure they are.

    Up to 2000 subjects are drawn one by one, more as a histogram or as a density. Save it with
    ``figure.savefig("memberships.png")``.

    Raises
    ------
    ParameterError
        Another number of classes.
    """
    k = len(model.components_)
    if k not in (2, 3):
        instead = "use dfact.report.presenters.gom.plots.memberships_heatmap or dfact.report.presenters.gom.tables.class_table"
        raise ParameterError(f"the model has {k} classes, expected 2 or 3: more cannot be drawn on a line or in a triangle; {instead}")
    return _binary(model) if k == 2 else _ternary(model)


def item_heatmap(model: Any) -> "Figure":
    """A heat map of the item parameters Θ, items × classes, on the scale of the responses."""
    return heatmap(model.item_parameters_, "item", "expected response", model.n_levels_)


def memberships_heatmap(model: Any, rows: Sequence[int] | None = None) -> "Figure":
    """A heat map of the memberships of the subjects with these row numbers; by default the first 30.

    Those without any response are grey.
    """
    n = model.memberships_.shape[0]
    chosen = list(range(min(n, _MOST_ROWS)) if rows is None else rows)
    outside = [row for row in chosen if not 0 <= row < n]
    if outside or not chosen:
        raise ParameterError(f"rows are {outside or chosen}, expected row numbers from 0 to {n - 1}")
    values = np.vstack([np.asarray(model.memberships_[row]) for row in chosen])
    table = pd.DataFrame(values, pd.Index(subject_labels(model, chosen)), model.get_feature_names_out())
    return heatmap(table, "subject", "membership", 1.0)


def _binary(model: Any) -> "Figure":
    first, second = model.get_feature_names_out()
    few = model.memberships_.shape[0] <= _MOST_POINTS
    figure = new_figure(8, 4.5 if few else 3.5)
    bars, *strip = figure.subplots(2 if few else 1, sharex=True, squeeze=False, height_ratios=[2, 1] if few else [1])[:, 0]
    edges, counts = np.linspace(0, 1, _BINS + 1), np.zeros((len(LEVELS), _BINS), np.int64)
    for Pi in respondents(model):
        place, level = Pi[:, 1], purity_level(Pi)
        counts += [np.histogram(place[level == i], edges)[0] for i in range(len(LEVELS))]
        for axes in strip:
            # Spread in height alone, and the same at every call.
            _draw_points(axes, np.column_stack([place, np.random.default_rng(0).random(len(place))]), level)
    bottom = np.zeros(_BINS, np.int64)
    for label, color, level_counts in zip(_labels(counts.sum(axis=1)), _COLORS, counts, strict=True):
        bars.bar(edges[:-1], level_counts, 1 / _BINS, bottom, align="edge", color=color, label=label, edgecolor="white", linewidth=0.3)
        bottom += level_counts
    bars.set(ylabel="subjects", xlim=(-0.02, 1.02), ylim=(0, 1.05 * bottom.max()))
    bars.set_title(first, loc="left", fontweight="bold", fontsize="medium")
    bars.set_title(second, loc="right", fontweight="bold", fontsize="medium")
    for axes in strip:
        axes.set(yticks=[], ylabel="each subject")
    figure.axes[-1].set(xlabel=f"membership in {second}")
    _draw_legend(figure, *bars.get_legend_handles_labels())
    return figure


def _ternary(model: Any) -> "Figure":
    figure = new_figure(8, 7)
    axes = figure.add_subplot(aspect="equal", frame_on=False, xticks=[], yticks=[])
    axes.plot(*_CORNERS[[0, 1, 2, 0]].T, color="black", linewidth=1, zorder=0)
    if model.memberships_.shape[0] <= _MOST_POINTS:
        Pi = np.vstack(list(respondents(model)))
        level = purity_level(Pi)
        handles = _draw_points(axes, Pi @ _CORNERS, level)
        _draw_legend(figure, handles, _labels(np.bincount(level, minlength=len(LEVELS))))
    else:
        figure.suptitle(", ".join(_labels(_draw_density(figure, axes, model))), fontsize="small")
    _draw_thresholds(axes)
    names = model.get_feature_names_out()
    for corner, name, align, shift in zip(_CORNERS, names, ("left", "right", "center"), (-0.05, -0.05, 0.03), strict=True):
        axes.text(corner[0], corner[1] + shift, name, ha=align, va="center", fontweight="bold")
    return figure


def _draw_points(axes: "Axes", points: NDArray[Any], level: NDArray[np.int64]) -> list[Any]:
    x, y = points.T
    return [
        axes.scatter(x[level == i], y[level == i], s=14, c=color, marker=marker, alpha=0.7, linewidths=0)
        for i, (color, marker) in enumerate(zip(_COLORS, _MARKERS, strict=True))
    ]


def _draw_density(figure: "Figure", axes: "Axes", model: Any) -> NDArray[np.int64]:
    """Small triangles, which tile a large one without cut cells at its edges, coloured by how many subjects lie in them.

    Returns how many there are of each level.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LogNorm

    counts, levels = np.zeros((2, _CELLS, _CELLS), np.int64), np.zeros(len(LEVELS), np.int64)
    for Pi in respondents(model):
        a, b = Pi[:, 0] * _CELLS, Pi[:, 1] * _CELLS
        i = np.minimum(a.astype(int), _CELLS - 1)
        j = np.minimum(b.astype(int), _CELLS - 1 - i)
        down = ((a - i) + (b - j) > 1) & (i + j < _CELLS - 1)
        np.add.at(counts, (down.astype(int), i, j), 1)
        levels += np.bincount(purity_level(Pi), minlength=len(LEVELS))
    down, i, j = np.nonzero(counts)
    corners = np.array([[[1, 0], [0, 1], [0, 0]], [[1, 0], [0, 1], [1, 1]]])[down] + np.stack([i, j], axis=1)[:, None]
    places = np.concatenate([corners, _CELLS - corners.sum(axis=2, keepdims=True)], axis=2) / _CELLS @ _CORNERS
    cells = PolyCollection(places, array=counts[down, i, j], cmap="cividis", norm=LogNorm(vmin=1), edgecolors="face", linewidths=0.3)
    axes.add_collection(cells)
    figure.colorbar(cells, ax=axes, label=f"subjects in a cell of {1 / _CELLS:g} in membership", shrink=0.7)
    return levels


def _draw_thresholds(axes: "Axes") -> None:
    """Where in each corner subjects begin to be highly pure, and cease to be highly mixed."""
    for threshold, style in ((PURE, "-"), (MIXED, "--")):
        for corner in range(3):
            ends = np.delete(np.eye(3), corner, axis=0) * (1 - threshold) + np.eye(3)[corner] * threshold
            axes.plot(*(ends @ _CORNERS).T, style, color="0.7", linewidth=1.2)
        place = np.array([1 - threshold, 0, threshold]) @ _CORNERS
        axes.annotate(f"membership {threshold}", place, (-6, 0), textcoords="offset points", ha="right", va="center", color="0.3")


def _draw_legend(figure: "Figure", handles: list[Any], labels: list[str]) -> None:
    figure.legend(handles, labels, loc="outside upper center", ncols=len(LEVELS), fontsize="small", frameon=False)


def _labels(counts: NDArray[Any]) -> list[str]:
    return [f"{level} ({span}): {n / counts.sum():.1%}" for level, span, n in zip(LEVELS, _RANGES, counts, strict=True)]
