"""Reports: a fitted model as text, tables, plots and one HTML page.

Imports export and everything below it; draws with Matplotlib and writes HTML. What a report shows of a family of models
is that family's presenter. Everything else reads the model's traits and works for any model.

    presenters    the document of a model: sections for all, and tables, plots and sections of each family
    html          one page of a document; knows nothing of models
    structure_plot   memberships of several runs as stacked bars, with their components aligned
    plots         the canvas: figures in inches, saved completely or not at all
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dfact.export.admixture_files import read_frequencies, read_memberships

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dfact.models.estimator import Factorization
    from dfact.models.gom.estimator import GradeOfMembership

__all__ = ["plot_memberships", "plot_structure", "read_frequencies", "read_memberships", "text"]


def text(model: "Factorization", top: int | None = None, texts: Mapping[str, str] | None = None) -> str:
    """Describe a fitted model: its size, the figures of its fit, and the leading items of each component.

    Parameters
    ----------
    model : fitted estimator
        Any of dfact's, or a subclass of its base.
    top : int, optional
        Number of items listed for each component; by default 5, and none of genotypes, as names of SNPs say nothing on a component.
    texts : dict from item to text, optional
        Wording of the items, printed next to their names, in place of the wording in the codebook of the fitted data.

    Returns
    -------
    str
        The text that ``dfact info`` prints, without what it reads from the store.

    Raises
    ------
    ParameterError
        ``model`` is not a factorization.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> print(dfact.report.text(dfact.ICQF(n_components=3).fit(answers)).splitlines()[0])
    model      ICQF, 3 factors of 200 participants × 12 items
    """
    from dfact.report.presenters.base import model_text

    return model_text(model, top, texts)


def plot_memberships(model: "GradeOfMembership") -> "Figure":
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
    from dfact.report.presenters.gom.plots import membership_plot

    return membership_plot(model)


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
    from dfact.report.structure_plot import own_names, run_memberships, stated_populations, structure_figure

    given = list(runs) if isinstance(runs, (list, tuple)) else [runs]
    memberships = [run_memberships(run) for run in given]
    populations = stated_populations(given) if populations is None else populations
    return structure_figure(memberships, populations, population_order=population_order, means=means, names=names or own_names(given))


def __dir__() -> list[str]:
    return __all__
