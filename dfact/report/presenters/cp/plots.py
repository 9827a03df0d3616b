"""Plots of CP decompositions, with Matplotlib (the optional extra ``plot``): the factors of each mode, and the solution path."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.models.cp.path import SolutionPath
from dfact.report.plots import new_figure
from dfact.report.presenters.cp.tables import mode_table
from dfact.selection.result import Selection

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_FEW = 12  # slices up to which a mode is drawn as bars, whatever its labels
_MOST_SLICES = 5000  # of a mode that is drawn
_MOST_LABELS = 40
_TITLES = {"held_out": "error of hidden entries", "bic": "BIC", "split_half": "match of two halves"}


def ordered(labels: Any) -> NDArray[np.float64] | None:
    """The numbers that a mode's labels are, where it is one to draw as lines; None where it is one for bars.

    The rule: more than 12 slices, whose labels are numbers that rise. So are the numbers of slices that have no labels.
    """
    try:
        numbers = np.asarray([float(label) for label in labels])
    except ValueError:
        return None
    return numbers if len(numbers) > _FEW and (np.diff(numbers) > 0).all() else None


def modes_plot(model: Any) -> "Figure":
    """The vectors of each mode scaled to length 1, a panel for each mode with up to 5000 slices: of wavelengths and such, lines; else bars.

    See :func:`ordered` for the rule. Save it with ``figure.savefig("modes.png")``.
    """
    sizes = [A.shape[0] for A in model.factors_]
    shown = [n for n, size in enumerate(sizes) if size <= _MOST_SLICES]
    figure = new_figure(8, 0.5 + 2.6 * max(1, len(shown)))
    panels = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for axes, n in zip(panels, shown, strict=False):
        _draw(axes, mode_table(model, n).iloc[:, : model.rank_])
        axes.set_title(f"mode {n + 1}")
        axes.axhline(0, color="0.6", linewidth=0.8)
    handles, names = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside right upper")
    return figure


def _draw(axes: Any, table: "pd.DataFrame") -> None:
    places = ordered(table.index)
    if places is not None:
        for name, values in table.items():
            axes.plot(places, values, label=name)
        return
    width = 0.8 / max(1, table.shape[1])
    for i, (name, values) in enumerate(table.items()):
        axes.bar(np.arange(len(values)) + (i + 0.5) * width - 0.4, values, width, label=name)
    if len(table) <= _MOST_LABELS:
        long = max(map(len, map(str, table.index)), default=0) > 4
        axes.set_xticks(range(len(table)), [str(label) for label in table.index], rotation=90 if long else 0)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(table)} slices")


def path_plot(selection: Selection) -> "Figure":
    """Rank, zeros, and errors over λ, of :func:`dfact.selection.select_on_path`; a line stands at what was chosen.

    Raises
    ------
    ParameterError
        A selection that is not one along a path.
    """
    table = selection.table
    criterion = str(table.columns[-1])
    if table.index.name != "lam" or criterion not in _TITLES:
        raise ParameterError(f"the selection has {list(table)} of {table.index.name}, expected one of select_on_path")
    panels: list[list[tuple[str, str]]] = [[("rank", "rank")], [("zeros", "zeros")], [("relative_error", "relative error, refined")]]
    together = panels[-1] if criterion == "held_out" else []
    together.append((criterion, _TITLES[criterion]))
    panels += [together] if together is not panels[-1] else []
    figure = _along_lambda(table, panels)
    for axes in figure.axes:
        axes.axvline(selection.best_params["lam"], color="black", linestyle="--", linewidth=1)
    return figure


def solutions_plot(path: SolutionPath) -> "Figure":
    """Rank, zeros, and errors over λ, of :meth:`dfact.ElasticCP.path`."""
    table = path.table.set_index("lambda")
    together = [("relative_error", "shrunk")]
    if table["refined_error"].notna().any():
        together.append(("refined_error", "refined"))
    return _along_lambda(table, [[("rank", "rank")], [("zeros", "zeros")], together])


def _along_lambda(table: "pd.DataFrame", panels: list[list[tuple[str, str]]]) -> "Figure":
    """A panel for each list of columns and what they are called, over the λ of the index."""
    figure = new_figure(7, 2 * len(panels) + 0.5)
    positive = table.index[table.index > 0]
    for axes, lines in zip(figure.subplots(len(panels), 1, sharex=True), panels, strict=True):
        for name, label in lines:
            axes.plot(table.index, table[name], "o-", markersize=4, label=label)
        if len(positive) == len(table):
            axes.set_xscale("log")
        else:  # λ = 0 has no place on a logarithmic axis
            axes.set_xscale("symlog", linthresh=positive.min() if len(positive) else 1.0)
        axes.set_yscale("log" if lines[0][0] == "relative_error" and (table["relative_error"] > 0).all() else "linear")
        axes.set_ylabel(lines[0][1] if len(lines) == 1 else "relative error")
        if len(lines) > 1:
            axes.legend()
    axes.set_xlabel("λ")
    return figure
