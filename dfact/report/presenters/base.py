"""The presentation of any model, and the presenter of each class of models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from dfact.errors import ParameterError
from dfact.models.estimator import Factorization
from dfact.report.document import Section
from dfact.report.plots import signed_heatmap
from dfact.report.tables import Lines, Texts, align_columns, largest_items, under_headings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dfact.data.dataset import Dataset

_PRESENTERS = {
    "ICQF": ("bounded_nmf", "ICQFPresenter"),
    "L1NMF": ("bounded_nmf", "L1NMFPresenter"),
    "GradeOfMembership": ("gom.presenter", "GoMPresenter"),
    "ExpectileMF": ("expectile", "ExpectilePresenter"),
    "ElasticCP": ("cp.presenter", "CPPresenter"),
    "CPALS": ("cp.presenter", "CPPresenter"),
    "FactorAnalysis": ("factor_analysis", "FactorAnalysisPresenter"),
}
"""Module and class of the presenter, by the name of the model's class; imported when needed."""


class Presenter:
    """The plain presentation of a model; each family of models overrides what it shows differently."""

    rows: ClassVar[str] = "{k} factors of {n} rows"
    """Description of the output of ``transform``."""

    def summary(self, model: Any) -> Lines:
        """Describe the size and the fit."""
        lines = [model_line(model)]
        if hasattr(model, "objective_history_"):
            lines.append(("fit", f"{model.n_iter_} iterations, objective {model.objective_history_[-1]:.6g}"))
        return lines

    def sections(self, model: Any, top: int, texts: Texts) -> list[str]:
        """List the ``top`` items of each component."""
        names = [str(name) for name in model.get_feature_names_out()]
        return [under_headings(names, names, largest_items(model, top, texts))]

    def items_plot(self, model: Any) -> "Figure":
        """Plot the loadings of the items."""
        return signed_heatmap(model)

    def top_items(self, model: Any, loadings: pd.DataFrame, n: int) -> tuple[str, pd.DataFrame]:
        """Describe and list the items that characterize each component: columns ``factor``, ``item``, ``loading``.

        ``loadings`` (items, components) have the signs of the exported tables. A column ``difference`` may follow.
        """
        rows = [(name, str(item), float(values[item])) for name, values in loadings.items() for item in values.abs().nlargest(n).index]
        words = model.traits.vocabulary
        about = f"The {words.items} with the largest {words.loading} of either sign."
        return about, pd.DataFrame(rows, columns=["factor", "item", "loading"])

    def scale_maximum(self, model: Any) -> float | None:
        """Return the end of the color scale of loadings; None for the largest of them."""
        return None

    def rows_section(self, model: Any) -> Section | None:
        """Return a section on the rows that only this family has."""
        return None

    def errors_section(self, model: Any, dataset: "Dataset") -> Section | None:
        """Return a section on errors that only this family has."""
        return None


def find_presenter(model: Any) -> Presenter:
    """Return the presenter of a model; models that are not part of dfact get the plain one."""
    if not isinstance(model, Factorization):
        names = ", ".join(_PRESENTERS)
        raise ParameterError(f"a {type(model).__name__} cannot be presented, expected a fitted model, such as {names}")
    if (name := type(model).__name__) not in _PRESENTERS:
        return Presenter()
    module, class_name = _PRESENTERS[name]
    presenter: Presenter = getattr(import_module(f"dfact.report.presenters.{module}"), class_name)()
    return presenter


def model_text(model: Any, top: int = 5, texts: Texts = None, extra: tuple[tuple[str, str], ...] = ()) -> str:
    """Return the summary of a fitted model with ``extra`` lines (name, text), and the ``top`` items of each component."""
    presenter = find_presenter(model)
    return "\n\n".join([align_columns([*presenter.summary(model), *extra]), *presenter.sections(model, top, texts)])


def summary_lines(model: Any) -> Lines:
    """Describe the size and the fit of a model."""
    return find_presenter(model).summary(model)


def rows_text(model: Any, n_rows: int) -> str:
    """Describe the output of ``transform`` for this number of rows."""
    return find_presenter(model).rows.format(k=len(model.components_), n=n_rows)


def items_plot(model: Any) -> "Figure":
    """Plot the loadings of the items."""
    return find_presenter(model).items_plot(model)


def model_line(model: Any) -> tuple[str, str]:
    """Describe the class and the size of a model."""
    n, k = model.factors_.shape
    return "model", f"{type(model).__name__}, {k} factors of {n} participants × {len(model.column_labels_)} items"
