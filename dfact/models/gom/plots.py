"""Plots of a grade of membership, with Matplotlib (the optional extra ``plot``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.export.tables import item_texts
from dfact.models.gom.estimator import GradeOfMembership
from dfact.models.gom.passes import MIXED, PURE
from dfact.models.gom.tables import LEVELS, purity_level, respondents, subject_labels
from dfact.report.plots import heatmap, new_figure, with_item_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_POINTS = 2000  # more subjects would cover each other
_MAX_ROWS = 30  # as in the paper
_BINS, _CELLS = 50, 50  # along the line, and along each edge of the triangle
_RANGES = (f"≥ {PURE}", f"{MIXED} to {PURE}", f"≤ {MIXED}")
_COLORS, _MARKERS = (
    ("#0072B2", "#E69F00", "#009E73"),
    ("o", "s", "D"),
)  # colours of Okabe and Ito, which colour-blind readers can distinguish
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def plot_memberships(model: GradeOfMembership) -> "Figure":
    """Draw the subjects of a grade of membership between its 2 classes (on a line) or 3 classes (in a triangle).

    Up to 2000 subjects are drawn as points, more as a histogram or a density.

    Parameters
    ----------
    model : GradeOfMembership, fitted
        With 2 or 3 classes.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("memberships.png")``.

    Raises
    ------
    ParameterError
        The model has another number of classes.
    DfactError
        Matplotlib is not installed.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> memberships = np.vstack([np.eye(2)[rng.integers(0, 2, 300)], rng.dirichlet([1, 1], 100)])
    >>> answers = rng.binomial(4, memberships @ rng.random((2, 20)))
    >>> model = dfact.GradeOfMembership(n_components=2, random_state=0).fit(answers)
    >>> type(dfact.report.plot_memberships(model)).__name__
    'Figure'
    """
    k = len(model.components_)
    if k not in (2, 3):
        instead = "use memberships_heatmap of dfact.models.gom.plots or class_table of dfact.models.gom.tables"
        raise ParameterError(f"the model has {k} classes, expected 2 for a line or 3 for a triangle; {instead}")
    return _binary(model) if k == 2 else _ternary(model)


def item_heatmap(model: GradeOfMembership) -> "Figure":
    """Plot the item parameters Θ, items × classes, as a heat map on the scale of the responses."""
    table = with_item_labels(model.item_parameters_, item_texts(model))
    return heatmap(table, "item", "expected response", model.max_response_)


def memberships_heatmap(model: GradeOfMembership, rows: Sequence[int] | None = None) -> "Figure":
    """Plot the memberships of the subjects with these row numbers as a heat map; by default of the first 30.

    Subjects without any response are grey.
    """
    n = model.memberships_.shape[0]
    chosen = list(range(min(n, _MAX_ROWS)) if rows is None else rows)
    outside = [row for row in chosen if not 0 <= row < n]
    if outside or not chosen:
        raise ParameterError(f"rows are {outside or chosen}, expected row numbers from 0 to {n - 1}")
    values = np.vstack([np.asarray(model.memberships_[row]) for row in chosen])
    table = pd.DataFrame(values, pd.Index(subject_labels(model, chosen)), model.get_feature_names_out())
    return heatmap(table, "subject", "membership", 1.0)


def classes_figure(table: pd.DataFrame) -> "Figure":
    """Plot the share of subjects with their highest membership in each class, by purity."""
    figure = new_figure(7, 0.9 + 0.42 * len(table))
    axes = figure.add_subplot()
    left = np.zeros(len(table))
    for level, column in zip(LEVELS, ("pure_share", "moderate_share", "mixed_share"), strict=True):
        axes.barh(np.arange(len(table)), table[column], 0.65, left, label=level)
        left += table[column].to_numpy()
    axes.set_yticks(range(len(table)), [str(name) for name in table.index])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("share of the subjects")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def _binary(model: GradeOfMembership) -> "Figure":
    first, second = model.get_feature_names_out()
    as_points = model.memberships_.shape[0] <= _MAX_POINTS
    figure = new_figure(8, 4.5 if as_points else 3.5)
    bars, *strip = figure.subplots(2 if as_points else 1, sharex=True, squeeze=False, height_ratios=[2, 1] if as_points else [1])[:, 0]
    edges, counts = np.linspace(0, 1, _BINS + 1), np.zeros((len(LEVELS), _BINS), np.int64)
    for Pi in respondents(model):
        membership, level = Pi[:, 1], purity_level(Pi)
        counts += [np.histogram(membership[level == i], edges)[0] for i in range(len(LEVELS))]
        for axes in strip:
            # A fixed seed, so that equal models give equal figures.
            jitter = np.random.default_rng(0).random(len(membership))
            _draw_points(axes, np.column_stack([membership, jitter]), level)
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


def _ternary(model: GradeOfMembership) -> "Figure":
    figure = new_figure(8, 7)
    axes = figure.add_subplot(aspect="equal", frame_on=False, xticks=[], yticks=[])
    axes.plot(*_CORNERS[[0, 1, 2, 0]].T, color="black", linewidth=1, zorder=0)
    if model.memberships_.shape[0] <= _MAX_POINTS:
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


def _draw_density(figure: "Figure", axes: "Axes", model: GradeOfMembership) -> NDArray[np.int64]:
    """Draw small triangles coloured by their numbers of subjects; triangles tile the large one without cut cells at its edges.

    Returns the number of subjects of each purity level.
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
    vertices = np.concatenate([corners, _CELLS - corners.sum(axis=2, keepdims=True)], axis=2) / _CELLS @ _CORNERS
    cells = PolyCollection(vertices, array=counts[down, i, j], cmap="cividis", norm=LogNorm(vmin=1), edgecolors="face", linewidths=0.3)
    axes.add_collection(cells)
    figure.colorbar(cells, ax=axes, label=f"subjects in a cell of {1 / _CELLS:g} in membership", shrink=0.7)
    return levels


def _draw_thresholds(axes: "Axes") -> None:
    """Draw in each corner the lines where subjects become highly pure and where they stop being highly mixed."""
    for threshold, style in ((PURE, "-"), (MIXED, "--")):
        for corner in range(3):
            ends = np.delete(np.eye(3), corner, axis=0) * (1 - threshold) + np.eye(3)[corner] * threshold
            axes.plot(*(ends @ _CORNERS).T, style, color="0.7", linewidth=1.2)
        end = np.array([1 - threshold, 0, threshold]) @ _CORNERS
        axes.annotate(f"membership {threshold}", end, (-6, 0), textcoords="offset points", ha="right", va="center", color="0.3")


def _draw_legend(figure: "Figure", handles: list[Any], labels: list[str]) -> None:
    figure.legend(handles, labels, loc="outside upper center", ncols=len(LEVELS), fontsize="small", frameon=False)


def _labels(counts: NDArray[Any]) -> list[str]:
    return [f"{level} ({span}): {n / counts.sum():.1%}" for level, span, n in zip(LEVELS, _RANGES, counts, strict=True)]
