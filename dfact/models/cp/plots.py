"""Tables and plots of CP decompositions, with Matplotlib (the optional extra ``plot``): the factors of each mode and the solution path."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.models.cp.base import CPModel
from dfact.models.cp.path import SolutionPath
from dfact.report.plots import center_colors, heatmap, new_figure
from dfact.selection.result import Selection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_BARS = 12  # slices; a mode with as many or fewer is drawn as bars even if its labels are numbers
_MAX_SLICES = 5000  # larger modes are not drawn
_MAX_LABELS = 40
_TITLES = {"held_out": "error of held-out entries", "bic": "BIC", "split_half": "match of two halves"}


def axis_values(labels: Any) -> NDArray[np.float64] | None:
    """Return the labels of a mode as numbers if it is drawn as lines; None if it is drawn as bars.

    Lines are for modes with more than 12 slices and increasing numbers as labels. Unlabelled slices are numbered.
    """
    try:
        numbers = np.asarray([float(label) for label in labels])
    except ValueError:
        return None
    return numbers if len(numbers) > _MAX_BARS and (np.diff(numbers) > 0).all() else None


def mode_table(model: CPModel, mode: int) -> pd.DataFrame:
    """Return slices × components of a mode, counted from 0, with vectors scaled to length 1.

    ``weights_`` holds the product of the scales. Modes without labels have numbers.
    """
    A = np.asarray(model.factors_[mode], dtype=np.float64)  # squares of stored float32 may overflow
    labels = (model.row_labels_, model.column_labels_, *model.mode_labels_)[mode]
    lengths = np.linalg.norm(A, axis=0)
    index: pd.Index[Any] = pd.RangeIndex(len(A)) if labels is None else pd.Index(np.asarray(labels[:], dtype=object).astype(str))
    return pd.DataFrame(
        A / np.where(lengths > 0, lengths, 1), index=index.rename(f"mode {mode + 1}"), columns=model.get_feature_names_out()
    )


def modes_plot(model: CPModel) -> "Figure":
    """Plot the vectors of each mode scaled to length 1, in a panel for each mode with up to 5000 slices, as lines or bars.

    :func:`axis_values` decides between lines and bars. Save the figure with ``figure.savefig("modes.png")``.
    """
    sizes = [A.shape[0] for A in model.factors_]
    shown = [n for n, size in enumerate(sizes) if size <= _MAX_SLICES]
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


def _draw(axes: Any, table: pd.DataFrame) -> None:
    positions = axis_values(table.index)
    if positions is not None:
        for name, values in table.items():
            axes.plot(positions, values, label=name)
        return
    width = 0.8 / max(1, table.shape[1])
    for i, (name, values) in enumerate(table.items()):
        axes.bar(np.arange(len(values)) + (i + 0.5) * width - 0.4, values, width, label=name)
    if len(table) <= _MAX_LABELS:
        long = max(map(len, map(str, table.index)), default=0) > 4
        axes.set_xticks(range(len(table)), [str(label) for label in table.index], rotation=90 if long else 0)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(table)} slices")


def mode_heatmap(model: CPModel, mode: int) -> "Figure":
    """Plot the vectors of a mode, counted from 0 and scaled to length 1, as a heat map, white at 0: figures 5 to 7 of Shi et al. (2017)."""
    table = mode_table(model, mode).iloc[:, : model.rank_]
    figure = heatmap(table, f"slice of mode {mode + 1}", "entry of the vector")
    center_colors(figure, max(table.abs().to_numpy().max(initial=0.0), np.finfo(float).tiny))
    return figure


def leading_sums(model: CPModel, mode: int, leading: int) -> "pd.Series[float]":
    """Return the sums of a mode's vectors over the ``leading`` components, those of the largest weights, sorted by their absolute values.

    Vectors have length 1. Signs that modes may exchange are fixed so that the vectors of the other modes have sums of at least 0.
    """
    if leading < 1:
        raise ParameterError(f"leading is {leading}, expected a number of components of at least 1 (--leading)")
    shown = min(leading, model.rank_)
    others = [mode_table(model, n).iloc[:, :shown].sum().to_numpy() for n in range(len(model.factors_)) if n != mode]
    signs = np.prod([np.where(sums < 0, -1.0, 1.0) for sums in others], axis=0)
    sums = (mode_table(model, mode).iloc[:, :shown] * signs).sum(axis=1)
    return pd.Series(sums.iloc[np.argsort(-sums.abs().to_numpy(), kind="stable")])


def leading_plot(model: CPModel, mode: int, leading: int) -> "Figure":
    """Plot the largest 40 of :func:`leading_sums` as bars: figure 8 of Shi et al. (2017), whose sums are of 6 components."""
    sums = leading_sums(model, mode, leading).iloc[:_MAX_LABELS]
    figure = new_figure(7, 1 + 0.22 * len(sums))
    axes = figure.add_subplot()
    axes.barh(range(len(sums)), sums.to_numpy())
    axes.set_yticks(range(len(sums)), [str(label) for label in sums.index], parse_math=False)
    axes.invert_yaxis()
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel(f"sum of the entries in {min(leading, model.rank_)} components")
    axes.set_ylabel(f"slice of mode {mode + 1}")
    return figure


def selection_plot(selection: Selection) -> "Figure":
    """Plot a selection along a path with :func:`path_plot`, or one by replicability with :func:`replicability_plot`."""
    return replicability_plot(selection) if "replicability" in selection.table else path_plot(selection)


def replicability_plot(selection: Selection) -> "Figure":
    """Plot the weakest component's similarity, factor match scores and core consistency over the number of components.

    A line marks the chosen number, if there is one.
    """
    table = selection.table
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    axes.fill_between(table.index, table["fms_low"], table["fms"], alpha=0.2, label="factor match score, 5th percentile to median")
    axes.plot(table.index, table["fms"], "o-", markersize=5, label="factor match score, median")
    axes.plot(table.index, table["replicability"], "s-", markersize=5, label="weakest component, median")
    shares = table["core_consistency"].clip(lower=0) / 100
    axes.plot(table.index, shares, "^:", color="0.4", markersize=5, label="core consistency / 100, 0 where negative")
    if selection.best_params["n_components"] is not None:
        axes.axvline(selection.best_params["n_components"], color="black", linestyle="--", linewidth=1)
    axes.set_xticks(table.index)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("number of components")
    axes.set_ylabel("similarity of fits to different rows")
    axes.legend(loc="lower left")
    return figure


def path_plot(selection: Selection) -> "Figure":
    """Plot rank, zeros and errors over λ for a selection by :func:`dfact.selection.select_penalty`; a line marks the chosen λ.

    For several ℓ1 ratios, the path of the chosen one.

    Raises
    ------
    ParameterError
        The selection is not along a path.
    """
    table = selection.table
    if "l1_ratio" in table.index.names:
        table = table.loc[selection.best_params["l1_ratio"]]
    criterion = str(table.columns[-1])
    if table.index.name != "lam" or criterion not in _TITLES:
        raise ParameterError(f"the selection has {list(table)} of {table.index.name}, expected one of select_penalty")
    panels: list[list[tuple[str, str]]] = [[("rank", "rank")], [("zeros", "zeros")], [("relative_error", "relative error, refined")]]
    if criterion == "held_out":  # an error as well: in the panel of the relative error
        panels[-1].append((criterion, _TITLES[criterion]))
    else:
        panels.append([(criterion, _TITLES[criterion])])
    figure = _plot_along_lambda(table, panels)
    for axes in figure.axes:
        axes.axvline(selection.best_params["lam"], color="black", linestyle="--", linewidth=1)
    return figure


def solutions_plot(path: SolutionPath) -> "Figure":
    """Plot rank, zeros and errors over λ for the solutions of :meth:`dfact.ElasticCP.path`."""
    table = path.table.set_index("lambda")
    errors = [("relative_error", "shrunk")]
    if table["refined_error"].notna().any():
        errors.append(("refined_error", "refined"))
    return _plot_along_lambda(table, [[("rank", "rank")], [("zeros", "zeros")], errors])


def _plot_along_lambda(table: pd.DataFrame, panels: list[list[tuple[str, str]]]) -> "Figure":
    """Plot each list of columns with their labels in a panel, over the λ of the index."""
    figure = new_figure(7, 2 * len(panels) + 0.5)
    positive = table.index[table.index > 0]
    for axes, lines in zip(figure.subplots(len(panels), 1, sharex=True), panels, strict=True):
        for name, label in lines:
            axes.plot(table.index, table[name], "o-", markersize=4, label=label)
        if len(positive) == len(table):
            axes.set_xscale("log")
        else:  # a logarithmic axis cannot show λ = 0
            axes.set_xscale("symlog", linthresh=positive.min() if len(positive) else 1.0)
        axes.set_yscale("log" if lines[0][0] == "relative_error" and (table["relative_error"] > 0).all() else "linear")
        axes.set_ylabel(lines[0][1] if len(lines) == 1 else "relative error")
        if len(lines) > 1:
            axes.legend()
    axes.set_xlabel("λ")
    return figure
