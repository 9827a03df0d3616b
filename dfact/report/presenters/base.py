"""The presentation of any model, and the presenter of each class of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.catalogue import BY_NAME, load
from dfact.data.dataset import Dataset
from dfact.engine.environment import describe_environments
from dfact.errors import ParameterError
from dfact.export.growth import growth_lines
from dfact.export.stability import stability_lines
from dfact.export.tables import Lines, Texts, item_texts, largest_items, require_own_items, under_headings
from dfact.models.cp.path import SolutionPath
from dfact.models.estimator import Factorization
from dfact.models.provenance import SelectionRecord
from dfact.models.traits import Vocabulary
from dfact.report.document import Block, Card, Cards, Drawing, Section
from dfact.report.figures import Groups, history_figure, items_heatmap, order_by_similarity
from dfact.report.plots import signed_heatmap, with_item_labels
from dfact.report.selection import ERROR_LABEL, OF_GENOTYPES, score_plot
from dfact.selection.result import RESAMPLED
from dfact.text import align_columns, escape_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 8  # items of each component in a report
MAX_ITEMS = 2000  # in tables and heat maps; clustering takes memory quadratic in their number
M = TypeVar("M", bound=Factorization)


@dataclass(frozen=True, eq=False)
class Presenter(Generic[M]):
    """The plain presentation of a fitted model; each family of models overrides what it shows differently.

    Texts need the model alone. A report also shows its data, if given, and the texts and groups of its items; derived tables
    are computed once.
    """

    model: M
    dataset: Dataset | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    rows: ClassVar[str] = "{k} factors of {n} rows"
    """Description of the output of ``transform``."""
    factors: ClassVar[str] = "factors"
    """Word for the row factors."""

    def __post_init__(self) -> None:
        require_own_items(self.model, texts=self.texts, groups=self.groups)

    @property
    def words(self) -> Vocabulary:
        """Words for the parts of the model."""
        return self.model.vocabulary

    @property
    def item(self) -> str:
        """Words for one item."""
        return self.words.item

    @cached_property
    def names(self) -> list[str]:
        """Names of the components."""
        return [str(name) for name in self.model.get_feature_names_out()]

    @cached_property
    def all_loadings(self) -> pd.DataFrame:
        """Loadings of all items."""
        return self.model.loadings_

    @cached_property
    def shown(self) -> NDArray[np.intp]:
        """Positions of the items in the report: all, or those with the largest loadings."""
        sizes = self.all_loadings.abs().max(axis=1).to_numpy()
        return np.sort(np.argsort(-sizes, kind="stable")[:MAX_ITEMS])

    @property
    def loadings(self) -> pd.DataFrame:
        """Loadings of the items in the report."""
        return self.all_loadings.iloc[self.shown]

    @cached_property
    def order(self) -> tuple[NDArray[np.intp], Groups]:
        """Order of the items in the report, similar ones together, and their groups."""
        return order_by_similarity(self.loadings, dict(self.groups))

    @cached_property
    def item_texts(self) -> Mapping[str, str]:
        """Texts of the items: those given, else those of the codebook of the fitted data."""
        return item_texts(self.model, self.texts)

    def with_texts(self, table: pd.DataFrame) -> pd.DataFrame:
        """Insert the texts and groups of the items as first columns, if there are any."""
        out = table.copy()
        for name, labels in (("group", self.groups), ("text", self.item_texts)):
            if labels:
                out.insert(0, name, [labels.get(str(item), "") for item in table.index])
        return out

    def item_cards(self, names: Sequence[str], table: pd.DataFrame, style: str) -> Cards:
        """Return a card of the items, loadings and any differences of each name in the column ``factor`` of a table."""
        cards = []
        for name in names:
            rows = table[table["factor"] == name]
            texts = [self.item_texts.get(item, "") for item in rows["item"]]
            answers = [self.answer_label(item, value) for item, value in zip(rows["item"], rows["loading"], strict=True)]
            texts = [": ".join(filter(None, parts)) for parts in zip(texts, answers, strict=True)]
            if "difference" in rows:
                notes = [f"({abs(value):.2f} {'above' if value > 0 else 'below'} the others)" for value in rows["difference"]]
                texts = [f"{text} {note}" if text else note for text, note in zip(texts, notes, strict=True)]
            numbers = [style.format(value) for value in rows["loading"]]
            cards.append(Card(name, list(zip(numbers, rows["item"], texts, strict=True))))
        return Cards(cards)

    def answer_label(self, item: str, value: float) -> str:
        """Describe a value of an item by its levels, for models whose values are answers."""
        return ""

    def summary(self) -> Lines:
        """Describe the size and the fit."""
        lines = [self.model_line()]
        if hasattr(self.model, "objective_history_"):
            lines.append(("fit", f"{self.model.n_iter_} iterations, objective {self.model.objective_history_[-1]:.6g}"))
        return lines

    def model_line(self) -> tuple[str, str]:
        """Describe the class and the size of the model."""
        n, k = self.model.factors_.shape
        weighted = ""
        if getattr(self.model, "weighted_", False):
            weighted = f", weighted (Kish's effective n {self.model.n_effective_:.1f}, without strata and clusters)"
        size = f"{counted_rows(n, self.words.rows)} × {len(self.model.column_labels_)} {self.words.items}"
        return "model", f"{type(self.model).__name__}, {k} factors of {size}{weighted}"

    def size_text(self) -> str:
        """Describe the size of the data."""
        rows = counted_rows(self.model.row_factors().shape[0], self.words.rows)
        return f"{rows} × {len(self.model.column_labels_)} {self.words.items}"

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        """List the ``top`` items of each component."""
        return [under_headings(self.names, self.names, largest_items(self.model, self.model.loadings_, top, texts))]

    def mode_plot(self, mode: int, leading: int | None) -> "Figure":
        """Plot the vectors of a mode of a tensor, counted from 1, or the sums of the leading ones."""
        found = f"the model is a {type(self.model).__name__}, whose data have two modes, expected one of a tensor"
        raise ParameterError(f"{found}; leave out --mode and --leading (mode {mode})")

    def items_plot(self) -> "Figure":
        """Plot the loadings of the items."""
        return signed_heatmap(self.model)

    def top_items(self, n: int) -> tuple[str, pd.DataFrame]:
        """Describe and list the items that characterize each component: columns ``factor``, ``item``, ``loading``.

        A column ``difference`` may follow.
        """
        about = f"The {self.words.items} with the largest {self.words.loading} of either sign."
        return about, largest_items(self.model, self.all_loadings, n)

    def scale_maximum(self) -> float | None:
        """Return the end of the color scale of loadings; None for the largest of them."""
        return None

    def loadings_drawing(self) -> Drawing:
        """Draw the loadings of the items in the report."""
        words, (order, groups) = self.words, self.order
        table, maximum = self.loadings.iloc[order], self.scale_maximum()
        similar = "in their groups, similar ones together" if groups else "similar ones together"
        alt = f"Heat map of {len(table)} {words.items} and {table.shape[1]} {words.components}; the table below has the same numbers."
        caption = f"{words.loadings}; {words.items} {similar}."
        drawn = with_item_labels(table, self.item_texts)
        return Drawing(lambda: items_heatmap(drawn, groups, words.loading, maximum), alt, caption)

    def selection_drawing(self, record: SelectionRecord, best: Mapping[str, Any], alt: str) -> Drawing:
        """Draw the scores of the candidates of a selection that chose the parameters ``best``."""
        table = record.table.set_index(record.names)
        error = next((name for name in ("se_difference", "standard error") if name in table), None)
        label = ERROR_LABEL if record.criterion == "error" else record.criterion.replace("_", " ")
        label = OF_GENOTYPES.get(label, label) if self.words.of_snps else label
        of = " of the difference from the lowest" if error == "se_difference" else ""
        bars = f" Bars show one standard error{of}." if error else ""
        bars = " Bars show the range of 95% of the resamples." if set(RESAMPLED) <= set(table) else bars
        return Drawing(lambda: score_plot(table, best, record.criterion, error, label), alt, f"Score of each candidate.{bars}")

    def selection_notes(self, record: SelectionRecord) -> list[str]:
        """Return sentences that help to read the scores of a selection."""
        return []

    def history_drawing(self) -> Drawing | None:
        """Draw the history of the objective; None for a model without one."""
        history = getattr(self.model, "objective_history_", None)
        if history is None or len(history) < 2:
            return None
        history = np.asarray(history, np.float64)
        lagrangians = getattr(self.model, "lagrangian_history_", None)
        alt = f"Line of the objective over {len(history)} steps, from {history[0]:.4g} to {history[-1]:.4g}."
        caption = "The objective at the start and after each step. The last point belongs to the model, with every row at its optimum."
        return Drawing(lambda: history_figure(history, lagrangians), alt, caption)

    def item_axis(self, labels: "pd.Index[Any]") -> NDArray[np.float64] | None:
        """Return numbers along which values of the items are drawn as a line; None for items without an order."""
        return None

    def component_section(self) -> Section | None:
        """Return a section on the components that only this family has."""
        return None

    def row_tables(self) -> list[Block]:
        """Return tables on the rows that only this family has."""
        return []

    def stability_section(self) -> Section | None:
        """Return the section on refits to resampled rows that only this family has; None for the one that others share."""
        return None

    def solutions_section(self, solutions: SolutionPath) -> Section:
        """Return a section on solutions along increasing penalties, which decompositions of tensors have."""
        raise ParameterError(f"solutions are given with a {type(self.model).__name__}, expected an ElasticCP; leave them out")

    def errors_section(self, dataset: Dataset) -> Section | None:
        """Return a section on errors that only this family has."""
        return None


def find_presenter(model: Factorization) -> type[Presenter[Factorization]]:
    """Return the class of presenters of a model; models that are not part of dfact get the plain one."""
    if not isinstance(model, Factorization):
        raise ParameterError(f"a {type(model).__name__} cannot be presented, expected a fitted model, such as {', '.join(BY_NAME)}")
    entry = BY_NAME.get(type(model).__name__)
    if entry is None or entry.presenter is None:
        return Presenter
    presenter: type[Presenter[Factorization]] = load(entry.presenter)
    return presenter


def model_text(model: Factorization, top: int | None = None, texts: Texts = None, extra: tuple[tuple[str, str], ...] = ()) -> str:
    """Return the summary of a fitted model with ``extra`` lines (name, text), and the ``top`` items of each component.

    By default these are 5 items, and no SNPs, whose names say nothing on a component.
    """
    presenter = find_presenter(model)(model)
    top = (0 if model.vocabulary.of_snps else 5) if top is None else top
    lines = [*presenter.summary(), *stability_lines(model), *growth_lines(model), *sites_lines(model), *extra]
    return escape_lines("\n\n".join([align_columns(lines), *presenter.component_texts(top, texts)]))


def environments_text(model: Factorization) -> str:
    """Describe the processors that computed the model, and whether its bits may depend on which part each computed."""
    return describe_environments(getattr(model, "environments_", ()))


def rows_text(model: Factorization, n_rows: int) -> str:
    """Describe the output of ``transform`` for this number of rows."""
    return find_presenter(model).rows.format(k=len(model.components_), n=n_rows, rows=model.vocabulary.rows)


def sites_lines(model: Factorization) -> list[tuple[str, str]]:
    """Describe the sites of a fit across sites in a line; none for another fit."""
    sites = getattr(model, "sites_", None)
    return [] if sites is None else [("sites", sites.describe())]


def counted_rows(n: int, words: str) -> str:
    """Return the number of the rows of a model, which has none where a fit across sites was coordinated."""
    return f"{n} {words}" if n else f"{words} at other sites"


def items_plot(model: Factorization) -> "Figure":
    """Plot the loadings of the items."""
    return find_presenter(model)(model).items_plot()


def mode_plot(model: Factorization, mode: int, leading: int | None = None) -> "Figure":
    """Plot the vectors of a mode of a tensor, counted from 1, or the sums of the leading ones."""
    return find_presenter(model)(model).mode_plot(mode, leading)
