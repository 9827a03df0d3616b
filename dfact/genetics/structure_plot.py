"""Structure plots: the memberships of rows as stacked bars, with Matplotlib (the optional extra ``plot``)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import UNKNOWN, Dataset
from dfact.errors import DataError, ParameterError
from dfact.genetics.alignment import RunGroup, align_runs
from dfact.models.estimator import Factorization
from dfact.report.plots import new_figure
from dfact.storage.input_files import open_input_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNKNOWN_LABEL = "unknown"
_LEGEND_COLUMNS, _LEGEND_ROW = 7, 0.22  # inches
_MAX_BARS = 2000  # more would be narrower than a pixel
_WIDTH, _PANEL_HEIGHT = 10.0, 1.1  # inches
_INCHES_PER_CHARACTER = 0.075
# Okabe and Ito's colours, which colour-blind readers can distinguish, then darker and lighter ones.
COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#332288", "#882255", "#117733", "#999933", "#44AA99", "#AA4499", "#661100"),
    *("#6699CC", "#DDCC77", "#888888", "#A6D854", "#FBB4AE", "#000000"),
)


@dataclass(frozen=True, eq=False)
class Bars:
    """The bars of a structure plot from left to right, each of one or more rows."""

    order: NDArray[np.intp]
    """Row numbers, sorted (n,)."""
    edges: NDArray[np.intp]
    """Position of the first row of each bar in ``order``, and the number of rows (number of bars + 1,)."""
    widths: NDArray[np.float64]
    """Widths of the bars."""
    populations: list[tuple[str, int]]
    """Names of the populations, and numbers of their bars; none if the rows have no populations."""

    def shares(self) -> list[tuple[str, float]]:
        """Return the names of the populations and their shares of the width."""
        ends = np.cumsum([0, *(count for _, count in self.populations)])
        total = self.widths.sum()
        widths = [float(self.widths[start:end].sum() / total) for start, end in pairwise(ends)]
        return [(name, width) for (name, _), width in zip(self.populations, widths, strict=True)]

    def means(self, memberships: NDArray[Any]) -> NDArray[np.float64]:
        """Return the mean memberships of each bar (number of bars, K)."""
        sums = np.add.reduceat(memberships[self.order].astype(np.float64), self.edges[:-1], axis=0)
        means: NDArray[np.float64] = sums / np.diff(self.edges)[:, None]
        return means


def plot_structure(
    runs: Any,
    populations: Any = None,
    *,
    population_order: Sequence[str] = (),
    means: bool = False,
    names: Sequence[str] = (),
) -> "Figure":
    """Draw the memberships of each row as a stacked bar: a structure plot, for one or several runs.

    Rows are sorted by population, and within it by their leading component in the run with the most components. Above 2000
    rows a bar is the mean of several. Rows that are NaN in a run are left out.

    Runs with different numbers of components are stacked, fewest first. A component has the colour of the one that it matches
    in the run above; the components match whose memberships differ least. Runs with the same number of components are drawn
    once if they agree, as the one that agrees most with the others.

    Parameters
    ----------
    runs : run, or sequence of them
        Fitted models with ``memberships_`` (:class:`dfact.Admixture`, :class:`dfact.GradeOfMembership`), or memberships (n, K),
        such as those that :func:`read_memberships` reads. All are of the same rows.
    populations : array (n,), optional
        Name of the population of each row; None, NaN, "" or "-" where it is unknown. By default those that a model has kept
        (``row_populations_``).
    population_order : sequence of str
        Populations that come first, in this order. The others are sorted by their leading component.
    means : bool
        Whether to draw the mean of each population, all with the same width, instead of the rows.
    names : sequence of str
        Names of the components of the run with the most of them, for the legend. By default those of the model, if it is the only
        such run, else numbers in the order of the colours.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("structure.png")``.

    Raises
    ------
    ParameterError
        There is no run, runs have different numbers of rows, or there is not one name for each component.
    DataError
        There is not one population for each row, a population of the order has no row, or all rows are NaN.
    DfactError
        Matplotlib is not installed.

    References
    ----------
    Behr et al. (2016).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> memberships = rng.dirichlet([1, 1, 1], 100)
    >>> figure = dfact.report.plot_structure([memberships, memberships[:, [2, 0, 1]]], np.repeat(["north", "south"], 50))
    >>> len(figure.axes)  # the runs differ by the order of their components alone
    1
    """
    given = list(runs) if isinstance(runs, (list, tuple)) else [runs]
    memberships = [run_memberships(run) for run in given]
    populations = stated_populations(given) if populations is None else populations
    return structure_figure(memberships, populations, population_order=population_order, means=means, names=names or own_names(given))


def structure_figure(
    runs: Sequence[NDArray[Any]],
    populations: Any = None,
    *,
    population_order: Sequence[str] = (),
    means: bool = False,
    names: Sequence[str] = (),
) -> "Figure":
    """Plot the memberships (n, K) of one or several runs, a panel for each group of :func:`dfact.genetics.alignment.align_runs`.

    A legend has the ``names`` of the components of the run with the most of them, by default numbers in the order of their colours.
    """
    groups = align_runs(runs)
    widest = max(groups, key=lambda group: len(group.colors))  # of several, the first: that with the most runs
    legend = legend_names(widest, names)
    bars = arrange_bars(widest.memberships, runs, populations, population_order=population_order, means=means)
    longest = max((len(name) for name, _ in bars.populations), default=0)
    upright = any(_INCHES_PER_CHARACTER * (len(name) + 2) > share * (_WIDTH - 1) for name, share in bars.shares())
    labels_height = 0.3 + (_INCHES_PER_CHARACTER * longest if upright else 0.2)
    legend_height = 0.1 + _LEGEND_ROW * -(-len(legend) // _LEGEND_COLUMNS)
    figure = new_figure(_WIDTH, _PANEL_HEIGHT * len(groups) + labels_height + legend_height)
    panels = figure.subplots(len(groups), sharex=True, squeeze=False)[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        handles = _draw_bars(axes, group, bars)
        axes.set_ylabel(_panel_label(group, len(runs)), rotation=0, ha="right", va="center")
        if group is widest:
            patches = {int(color): handle for color, handle in zip(group.colors, handles, strict=True)}
    _label_populations(panels, bars, upright)
    shown = [patches[color] for color in legend]
    style: dict[str, Any] = {"ncols": min(len(legend), _LEGEND_COLUMNS), "frameon": False, "fontsize": "small"}
    figure.legend(shown, [*legend.values()], loc="outside upper center", **style)
    return figure


def legend_names(widest: RunGroup, names: Sequence[str]) -> dict[int, str]:
    """Return the name of each colour, in their order; ``names`` are those of the components of the drawn run with the most of them.

    Raises
    ------
    ParameterError
        The number of names is not that of the components.
    """
    k = len(widest.colors)
    if names and len(names) != k:
        raise ParameterError(f"{len(names)} names are given ({', '.join(names)}), expected {k}, one for each component of the largest run")
    by_color = {int(color): name for color, name in zip(widest.colors, names, strict=False)}
    return {color: by_color.get(color, f"component {color + 1}") for color in sorted(map(int, widest.colors))}


def own_names(runs: Sequence[Any]) -> list[str]:
    """Return the names of the components of the run with the most of them, if it is the only such run and a model; else none."""
    sizes = [run_memberships(run).shape[1] for run in runs]
    largest = [run for run, size in zip(runs, sizes, strict=True) if size == max(sizes)]
    return [str(name) for name in largest[0].get_feature_names_out()] if len(largest) == 1 and hasattr(largest[0], "memberships_") else []


def largest_populations(runs: Sequence[NDArray[Any]], populations: Any, names: Sequence[str]) -> str:
    """Describe in which population each named component of the drawn run with the most of them has the largest mean."""
    widest = max(align_runs(runs), key=lambda group: len(group.colors)).memberships
    known = np.isfinite(widest).all(axis=1)
    means = pd.DataFrame(widest[known]).groupby(population_names(populations, len(known))[known]).mean()
    largest = [(name, str(means[k].idxmax()), means[k].max()) for k, name in enumerate(names)]
    return "names: " + ", ".join(f"{name} is largest in {population} ({mean:.2f})" for name, population, mean in largest)


def run_memberships(run: Any) -> NDArray[Any]:
    """Return the memberships (n, K) of a run: of a fitted model, or an array."""
    memberships = run.memberships_ if hasattr(run, "memberships_") else run
    if isinstance(run, Factorization) and memberships is run:
        raise ParameterError(f"a run is a {type(run).__name__}, expected a model with memberships, or memberships (n, K)")
    return np.asarray(memberships)


def stated_populations(runs: Sequence[Any]) -> Any:
    """Return the populations of the people that the first model with any has kept; None without one."""
    return next((kept for run in runs if (kept := getattr(run, "row_populations_", None)) is not None), None)


def arrange_bars(
    memberships: NDArray[Any],
    runs: Sequence[NDArray[Any]],
    populations: Any = None,
    *,
    population_order: Sequence[str] = (),
    means: bool = False,
) -> Bars:
    """Sort rows by population, and within it by their leading component and their membership in it; combine them to bars.

    Populations follow ``population_order``; others are sorted by their leading component, and the group of unknown rows is last.
    Rows that are NaN in one of the ``runs`` are left out. Above 2000 rows a bar is the mean of several; with ``means``, of a
    population.

    Raises
    ------
    DataError
        There is not one population for each row, a population of the order has no row, or all rows are NaN.
    """
    known = np.logical_and.reduce([np.isfinite(run).all(axis=1) for run in runs])
    if not known.any():
        raise DataError(f"all {len(known)} rows of the memberships are NaN, expected some that are known")
    names = population_names(populations, len(known))
    rows = np.flatnonzero(known)
    parts = {name: rows[names[rows] == name] for name in dict.fromkeys(names[rows])}
    absent = [name for name in population_order if name not in parts]
    if absent:
        raise DataError(f"no row is of the population {absent[0]!r}, expected some of {', '.join(list(parts)[:5])}")
    means_of_parts = {name: memberships[part].mean(axis=0, dtype=np.float64) for name, part in parts.items()}
    sizes = memberships[rows].sum(axis=0, dtype=np.float64)

    def position(name: str) -> tuple[Any, ...]:
        leading = int(means_of_parts[name].argmax())
        listed = population_order.index(name) if name in population_order else len(population_order)
        return listed, name == UNKNOWN_LABEL, -sizes[leading], leading, -means_of_parts[name][leading], name

    order, counts, chosen = [], [], sorted(parts, key=position)
    for name in chosen:
        part = parts[name]
        order.append(part[_leading_order(memberships[part], means_of_parts[name])])
        n_bars = len(part) if len(rows) <= _MAX_BARS else max(1, round(_MAX_BARS * len(part) / len(rows)))
        counts.append(1 if means else min(n_bars, len(part)))
    starts = np.cumsum([0, *map(len, order)])
    edges = [start + np.arange(count) * len(part) // count for start, count, part in zip(starts[:-1], counts, order, strict=True)]
    all_edges = np.concatenate([*edges, [len(rows)]]).astype(np.intp)
    widths = np.ones(len(all_edges) - 1) if means else np.diff(all_edges).astype(np.float64)
    return Bars(np.concatenate(order), all_edges, widths, [] if populations is None else list(zip(chosen, counts, strict=True)))


def population_names(populations: Any, n: int) -> NDArray[np.object_]:
    """Return the name of the population of each of n rows, the same for all if there are none."""
    if populations is None:
        return np.full(n, "", dtype=object)
    values = np.asarray(populations, dtype=object).ravel()
    if len(values) != n:
        raise DataError(f"populations has {len(values)} names, expected one for each of {n} rows")
    texts = ["" if pd.isna(value) else str(value).strip() for value in values]
    return np.array([UNKNOWN_LABEL if text in UNKNOWN else text for text in texts], dtype=object)


def read_populations(path: str | PathLike[str]) -> list[str]:
    """Read the populations of a text file with a line for each row, such as a .pop file."""
    file = open_input_file(path)
    try:
        with file.open() as stream:
            lines = stream.read().decode().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{file.name} is not UTF-8 ({error}), expected a line with the population of each row") from error
    if file.name.lower().endswith((".fam", ".psam", ".ind", ".csv", ".tsv")) or any("\t" in line for line in lines):
        found = f"{file.name} is a table, expected a text file with the population of each individual in a line"
        raise DataError(f"{found}; import the genotypes with --population {file.name}, and pass the dataset (--data)")
    return lines


def dataset_populations(dataset: Dataset) -> pd.Categorical:
    """Return the populations of the rows of a dataset; raise DataError if it has none."""
    if dataset.genotypes.population is None:
        raise DataError(f"{dataset.path} has no populations, expected a dataset imported with them")
    return dataset.genotypes.population


def _leading_order(memberships: NDArray[Any], means: NDArray[np.float64]) -> NDArray[np.intp]:
    """Sort rows by their leading component, that with the largest mean first, then by their membership in it, largest first."""
    leading = memberships.argmax(axis=1)
    rank = np.argsort(np.argsort(-means, kind="stable"))
    return np.lexsort((-memberships.max(axis=1), rank[leading]))


def _draw_bars(axes: "Axes", group: RunGroup, bars: Bars) -> list[Any]:
    """Draw the stacked bars of a run; return the patch of each component, in the order of the run."""
    means = bars.means(group.memberships)
    edges = np.concatenate([[0], np.cumsum(bars.widths)])
    bottom, patches = np.zeros(len(means)), {}
    for component in np.argsort(group.colors):
        top = bottom + means[:, component]
        color = COLORS[group.colors[component] % len(COLORS)]
        patches[component] = axes.stairs(top, edges, baseline=bottom, fill=True, color=color, linewidth=0)
        bottom = top
    axes.set(xlim=(0, edges[-1]), ylim=(0, 1), yticks=[0, 0.5, 1], yticklabels=["0", "", "1"])
    axes.spines[:].set_visible(False)
    return [patches[component] for component in range(len(group.colors))]


def _panel_label(group: RunGroup, n_runs: int) -> str:
    """Describe the number of components and the share of the runs that agree, if there are several runs."""
    label = f"K = {len(group.colors)}"
    return label if group.n_runs == 1 or n_runs == 1 else f"{label}\n{len(group.runs)} of {group.n_runs} runs"


def _label_populations(panels: NDArray[Any], bars: Bars, upright: bool) -> None:
    """Name the populations below the last panel and separate them by lines."""
    edges = np.concatenate([[0], np.cumsum(bars.widths)])
    ends = edges[np.cumsum([count for _, count in bars.populations], dtype=np.intp)]
    for axes in panels:
        axes.tick_params(axis="x", length=0)
        axes.tick_params(axis="y", length=2, labelsize="x-small")
        axes.vlines(ends[:-1], 0, 1, color="white", linewidth=2)
        axes.vlines(ends[:-1], 0, 1, color="black", linewidth=0.6)
    starts = np.concatenate([[0], ends[:-1]])
    texts = [name for name, _ in bars.populations]
    panels[-1].set_xticks((starts + ends) / 2 if texts else [], texts, rotation=90 if upright else 0, fontsize="small", parse_math=False)
