"""What is shown of each kind of model, for those who need not know which they have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dfact.errors import ParameterError
from dfact.models.bounded_nmf.icqf import ICQF
from dfact.models.bounded_nmf.l1nmf import L1NMF
from dfact.models.cp.als import CPALS
from dfact.models.cp.elastic import ElasticCP
from dfact.models.estimator import Factorization
from dfact.models.expectile.estimator import ExpectileMF
from dfact.models.factor_analysis.estimator import FactorAnalysis
from dfact.models.gom.estimator import GradeOfMembership
from dfact.report import factors
from dfact.report import text as tables
from dfact.report.plots import loadings_heatmap
from dfact.report.presenters import expectile as expectiles
from dfact.report.presenters.cp import tables as tensors
from dfact.report.presenters.cp.plots import modes_plot
from dfact.report.presenters.gom import tables as memberships
from dfact.report.presenters.gom.plots import item_heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Texts = Mapping[str, str] | None


@dataclass(frozen=True)
class Presenter:
    summary: Callable[[Any], list[tuple[str, str]]]
    """Size and figures of a model, each with its name."""
    sections: Callable[[Any, int, Texts], list[str]]
    """Of a model, the number of items to show of each component, and their texts."""
    rows: str
    """What ``transform`` gives."""
    items: "Callable[[Any], Figure]"
    """The items' part of a model as a plot."""


def _icqf_sections(model: Any, top: int, texts: Texts) -> list[str]:
    factors = tables.factors_text(model, top, texts)
    return [factors] if model.confounder_encoding_ is None else [factors, tables.confounders_text(model, texts=texts)]


def _gom_sections(model: Any, top: int, texts: Texts) -> list[str]:
    return [memberships.classes_text(model, top, texts)]


def _expectile_sections(model: Any, top: int, texts: Texts) -> list[str]:
    return [expectiles.components_text(model, top, texts)]


def _tensor_sections(model: Any, top: int, texts: Texts) -> list[str]:
    return [tensors.components_text(model, top, texts)]


def _nmf_sections(model: Any, top: int, texts: Texts) -> list[str]:
    return [factors.nmf_factors_text(model, top, texts)]


def _analysis_sections(model: Any, top: int, texts: Texts) -> list[str]:
    return [factors.analysis_factors_text(model, top, texts)]


def _plain_sections(model: Any, top: int, texts: Texts) -> list[str]:
    return [factors.plain_factors_text(model, top, texts)]


# A model that does not stand here is shown plainly.
_KINDS: dict[type[Any], Presenter] = {
    ICQF: Presenter(tables.summary_lines, _icqf_sections, "{k} factors of {n} participants", loadings_heatmap),
    GradeOfMembership: Presenter(memberships.summary_lines, _gom_sections, "memberships of {n} subjects in {k} classes", item_heatmap),
    ExpectileMF: Presenter(expectiles.summary_lines, _expectile_sections, "{k} components of {n} rows", factors.signed_heatmap),
    ElasticCP: Presenter(tensors.summary_lines, _tensor_sections, "weights of {n} slices in {k} components", modes_plot),
    CPALS: Presenter(tensors.summary_lines, _tensor_sections, "weights of {n} slices in {k} components", modes_plot),
    L1NMF: Presenter(factors.nmf_summary_lines, _nmf_sections, "{k} factors of {n} participants", loadings_heatmap),
    FactorAnalysis: Presenter(
        factors.analysis_summary_lines, _analysis_sections, "scores of {n} participants on {k} factors", factors.signed_heatmap
    ),
}


_PLAIN = Presenter(factors.plain_summary_lines, _plain_sections, "{k} factors of {n} rows", factors.signed_heatmap)


def model_text(model: Any, top: int = 5, texts: Texts = None, more: tuple[tuple[str, str], ...] = ()) -> str:
    """A fitted model for people: its summary with ``more`` lines (name, text), and the ``top`` items of each component."""
    kind = _kind(model)
    return "\n\n".join([tables.aligned([*kind.summary(model), *more]), *kind.sections(model, top, texts)])


def summary_lines(model: Any) -> list[tuple[str, str]]:
    """Size and figures of a model, each with its name."""
    return _kind(model).summary(model)


def rows_text(model: Any, n_rows: int) -> str:
    """What ``transform`` gives of this many rows."""
    return _kind(model).rows.format(k=len(model.components_), n=n_rows)


def items_plot(model: Any) -> "Figure":
    """A heat map of what the model says of the items."""
    return _kind(model).items(model)


def _kind(model: Any) -> Presenter:
    if not isinstance(model, Factorization):
        raise ParameterError(f"a {type(model).__name__} cannot be shown; expected a model, such as {', '.join(k.__name__ for k in _KINDS)}")
    return _KINDS.get(type(model), _PLAIN)
