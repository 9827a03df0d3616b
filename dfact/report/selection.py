"""Scores of a selection, as text and as plots with Matplotlib (the optional extra ``plot``)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from dfact.errors import ParameterError
from dfact.export.files import check_destination
from dfact.report.plots import FORMATS, new_figure
from dfact.selection.result import RESAMPLED
from dfact.storage.location import Location
from dfact.text import indented, table_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dfact.selection.result import Selection
    from dfact.stability.shares import ShareCorrelations

ERROR_LABEL = "mean squared error of held-out answers"
_EIGENVALUES = [f"{of}{name}" for of in ("", "factor_") for name in ("eigenvalue", "random", "excess")]
_FORMATS = dict.fromkeys(_EIGENVALUES, "{:.3f}") | dict.fromkeys(("passes", "reads", "n", "zeros", "rank"), "{:d}")
_FORMATS |= {"core_consistency": "{:.4g}"}
OF_GENOTYPES = {"deviance": "CV error", "passes": "iterations"}
"""Words of ADMIXTURE for the scores of a selection."""
_MARKERS = "osD^vP*X"


def selection_text(selection: "Selection") -> str:
    """List the candidates with their scores, mark the best with the rule that chose it, and name what was not tried.

    Steps of a solution path that look the same share a line. Seconds are left out: those of a first fit are the kernels' compilation.
    """
    table = selection.table.drop(columns="seconds", errors="ignore").copy()
    for name in table:
        table[name] = table[name].map(_FORMATS.get(str(name), "{:.6f}").format)
    table = table.reset_index()
    best = (table[list(selection.best_params)] == pd.Series(selection.best_params)).all(axis=1)
    for name in selection.best_params:
        table[name] = table[name].map("{:g}".format) if table[name].dtype.kind == "f" else table[name]
    if selection.model is not None and selection.model.vocabulary.of_snps:
        table = table.rename(columns=OF_GENOTYPES)
    record = getattr(selection.model, "selection_", None)
    mark = "best" if record is None else f"best ({record.rule})"
    table[""] = best.map({True: mark, False: ""})
    text = indented(table_text(_merged_steps(table) if "lam" in table else table, header=True))
    skipped = ", ".join(map(str, selection.skipped_ranks))
    largest = selection.largest_chosen
    notes = [
        selection.rule,
        f"No step of the path has a rank of {skipped}: not scored. Try closer lambdas." if skipped else "",
        "" if largest is None else f"The choice, {largest}, is the largest number of components that was tried: try larger ones.",
    ]
    return "\n\n".join([text, *filter(None, notes)])


def _merged_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with one row for neighbouring steps of a path that differ in λ and the mark alone."""
    same = table.drop(columns=["lam", ""])
    runs = (same != same.shift()).any(axis=1).cumsum()
    first, last = (getattr(table["lam"].groupby(runs), end)() for end in ("first", "last"))
    joined = first.where(first == last, first + " to " + last)
    merged = table.groupby(runs).first().assign(lam=joined)
    return merged.assign(**{"": table[""].groupby(runs).max()})


def error_plot(selection: "Selection") -> "Figure":
    """Plot the cross-validated error, or deviance, over the number of components, with a line for each combination of other parameters.

    Bars show one standard error of the difference from the lowest error, so that the rule ``1se`` considers the candidates whose
    bars reach down to it; a ring marks the chosen candidate. Save the figure with ``figure.savefig("errors.png")``.

    Raises
    ------
    ParameterError
        The selection has no errors or does not vary the number of components.
    """
    table = selection.table
    names = [str(name) for name in table.index.names]
    if "deviance" in table and "n_components" in names:
        return deviance_plot(selection)
    if "error" not in table or "n_components" not in names:
        raise ParameterError(f"the selection has {list(table)} of {names}, expected the errors of numbers of components")
    return score_plot(table, selection.best_params, "error", "se_difference", ERROR_LABEL)


def deviance_plot(selection: "Selection") -> "Figure":
    """Plot the deviance of held-out entries over the number of components or populations.

    Bars show one standard error of the difference from the lowest.
    """
    label = "cross-validation error" if selection.model.vocabulary.of_snps else "mean deviance of held-out entries"
    return score_plot(selection.table, selection.best_params, "deviance", "se_difference", label)


def modularity_plot(selection: "Selection") -> "Figure":
    """Plot the fuzzy modularity over the number of classes; bars show the range of 95% of the resamples, if there are any."""
    return score_plot(selection.table, selection.best_params, "modularity", None, "fuzzy modularity")


def classes_plot(selection: "Selection") -> "Figure":
    """Plot what chose the number of classes: eigenvalues, the deviance of held-out answers, or the fuzzy modularity."""
    if "random" in selection.table:
        return eigenvalue_plot(selection.table, selection.best_params["n_components"], "number of classes")
    return deviance_plot(selection) if "deviance" in selection.table else modularity_plot(selection)


def scree_plot(selection: "Selection") -> "Figure":
    """Plot the eigenvalues of a factor analysis and the random ones of its parallel analyses: a scree plot (Cattell 1966).

    Raises
    ------
    ParameterError
        The selection has no eigenvalues.
    """
    return eigenvalue_plot(selection.table, selection.best_params["n_components"])


def components_plot(selection: "Selection") -> "Figure":
    """Plot the variances of principal components and the random ones of a parallel analysis, or the errors of held-out entries."""
    if "random" in selection.table:
        return eigenvalue_plot(selection.table, selection.best_params["n_components"])
    return score_plot(selection.table, selection.best_params, "error", "se_difference", "mean squared error of held-out entries")


def eigenvalue_plot(table: pd.DataFrame, chosen: float, across: str = "") -> "Figure":
    """Plot the eigenvalues in the table of a selection of ``chosen`` factors or components.

    Solid lines are the eigenvalues of components and of common factors, and dashed lines those of unrelated answers. A ring marks the
    chosen number.
    """
    if "random" not in table:
        raise ParameterError(f"the selection has {list(table)}, expected the eigenvalues of a factor analysis or of principal components")
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    of_factors = [("factor_", "common factors", "C1")] if "factor_random" in table else []
    for prefix, kind, color in [("", "components", "C0"), *of_factors]:
        axes.plot(table.index, table[f"{prefix}eigenvalue"], "o-", color=color, markersize=5, label=kind)
        axes.plot(table.index, table[f"{prefix}random"], "--", color=color, label=f"{kind} of unrelated answers")
    last = table["eigenvalue"][table.index == chosen]
    axes.plot(last.index, last, "o", markersize=14, markerfacecolor="none", markeredgecolor="black", label="chosen")
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xticks(list(table.index))
    axes.set_xlabel(across or ("number of factors" if of_factors else "number of components"))
    axes.set_ylabel("eigenvalue")
    axes.legend()
    return figure


def score_plot(table: pd.DataFrame, best: Mapping[str, Any], score: str, error: str | None, label: str) -> "Figure":
    """Plot a score over the number of components, or over the first parameter; draw a line for each combination of the others.

    ``table`` is the table of a selection. Bars show the column ``error``, if any, or 95% of the resamples' scores; a ring
    marks the ``best`` candidate.
    """
    names = [str(name) for name in table.index.names]
    across = "n_components" if "n_components" in names else names[0]
    frame = table.reset_index()
    others = [name for name in names if name != across]
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    lines: Any = frame.groupby(others, sort=True) if others else [((), frame)]
    for i, (values, rows) in enumerate(lines):
        line = rows.sort_values(across)
        parameters = ", ".join(f"{name} = {value}" for name, value in zip(others, values, strict=True))
        style = f"{_MARKERS[i % len(_MARKERS)]}-"
        spread = None if error is None else line[error].fillna(0)
        axes.errorbar(line[across], line[score], spread, fmt=style, capsize=3, markersize=5, label=parameters)
        if set(RESAMPLED) <= set(line):
            axes.vlines(line[across], *(line[name] for name in RESAMPLED), color="0.6", linewidth=3, zorder=0, label="95% of the resamples")
    chosen = frame[(frame[names] == pd.Series(best)).all(axis=1)]
    axes.plot(chosen[across], chosen[score], "o", markersize=14, markerfacecolor="none", markeredgecolor="black", label="chosen")
    axes.set_xticks(sorted(frame[across].unique()))
    axes.set_xlabel("number of components" if across == "n_components" else across)
    axes.set_ylabel(label)
    axes.legend()
    return figure


def check_plot(path: Location, *, overwrite: bool) -> None:
    """Raise an error before the work if the plot cannot be written: its path, its format, or Matplotlib missing."""
    check_destination(path, overwrite=overwrite, formats=FORMATS)
    new_figure(1, 1)


def shares_plot(shares: "ShareCorrelations") -> "Figure":
    """Plot the mean correlation of each model's loadings over the share of the rows, with bands of 95% over the repeats."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    positions = [100 * share for share in shares.shares]
    for marker, name in zip(_MARKERS * len(shares.correlations), shares.correlations, strict=False):
        mean, low, high = shares.bands(name)
        (line,) = axes.plot(positions, mean, marker=marker, label=name)
        axes.fill_between(positions, low, high, alpha=0.2, color=line.get_color())
    axes.set(xlabel="share of the rows, %", ylabel="correlation with the loadings of all rows", ylim=(None, 1.005))
    axes.legend()
    return figure
