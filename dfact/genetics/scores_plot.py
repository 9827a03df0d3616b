"""Plots of the scores of individuals on two components, coloured by population, with Matplotlib (the optional extra ``plot``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfact.genetics.structure_plot import COLORS, UNKNOWN_LABEL, population_names
from dfact.report.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "os^Dv<>P*X"
_GREY = "0.7"
_LARGE = 2000  # points, above which they are smaller


def scores_figure(scores: NDArray[Any], names: Sequence[str], shares: Sequence[float], populations: Any = None) -> "Figure":
    """Plot scores (n, k) on the first two components, or on the only one over the rows' numbers.

    Axes state the ``shares`` of the variance. Populations have colours and markers of their own, in the order of their sizes; rows of
    unknown populations are grey, below the others.
    """
    figure = new_figure(6.5, 5)
    axes = figure.add_subplot()
    labels = [f"{name} ({share:.1%})" for name, share in zip(names, shares, strict=True)]
    x, y = (scores[:, 0], scores[:, 1]) if scores.shape[1] > 1 else (np.arange(len(scores)), scores[:, 0])
    of_rows = population_names(populations, len(scores))
    known, counts = np.unique(of_rows[of_rows != UNKNOWN_LABEL], return_counts=True)
    order = [UNKNOWN_LABEL, *known[np.argsort(-counts, kind="stable")]]
    size = 6 if len(scores) > _LARGE else 16
    for number, name in enumerate(order):
        rows = of_rows == name
        if not rows.any():
            continue
        style = max(number - 1, 0) // len(COLORS)
        color = _GREY if name == UNKNOWN_LABEL else COLORS[(number - 1) % len(COLORS)]
        axes.scatter(x[rows], y[rows], size, color=color, marker=_MARKERS[style % len(_MARKERS)], linewidths=0, label=name or None)
    axes.set_xlabel(labels[0] if len(labels) > 1 else "individual")
    axes.set_ylabel(labels[1] if len(labels) > 1 else labels[0])
    if populations is not None:
        handles, texts = axes.get_legend_handles_labels()
        if texts[0] == UNKNOWN_LABEL:
            handles, texts = [*handles[1:], handles[0]], [*texts[1:], texts[0]]
        figure.legend(handles, texts, loc="outside right upper", frameon=False, fontsize="small")
    return figure
