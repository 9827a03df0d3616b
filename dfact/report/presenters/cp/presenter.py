"""The presentation of CP decompositions."""

from typing import TYPE_CHECKING, Any

from dfact.report.presenters.base import Presenter
from dfact.report.presenters.cp.plots import modes_plot
from dfact.report.tables import Lines, Texts, convergence_text, largest_items, remaining_text, under_headings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CPPresenter(Presenter):
    """The presentation of ElasticCP and CPALS."""

    rows = "weights of {n} slices in {k} components"

    def summary(self, model: Any) -> Lines:
        sizes = "×".join(str(A.shape[0]) for A in model.factors_)
        columns = model.factors_[1:]
        zeros = sum(int((A[:, : model.rank_] == 0).sum()) for A in columns) / max(1, sum(len(A) * model.rank_ for A in columns))
        objective = f"objective {model.objective_history_[-1]:.6g}{remaining_text(model.remaining_)}"
        lines = [
            ("model", f"{type(model).__name__}, {model.rank_} of {len(model.weights_)} components left, of a tensor {sizes}"),
            ("fit", f"{convergence_text(model)}, {objective}"),
            ("explained", f"{model.explained_share_:.2%} of the sum of squares"),
            ("sparsity", f"{zeros:.1%} of the entries of the vectors of modes 2 to {len(model.factors_)} are zero"),
        ]
        if hasattr(model, "read_share_"):
            lines.insert(2, ("read", f"{model.read_share_:.2f} times the data during the iterations"))
        if hasattr(model, "lam"):
            lines.insert(1, ("penalty", f"lambda {model.lam:g}, share of l1 {model.l1_ratio:g}"))
        return lines

    def sections(self, model: Any, top: int, texts: Texts) -> list[str]:
        names = list(model.get_feature_names_out()[: model.rank_])
        headings = [f"{name}: weight {weight:.4g}" for name, weight in zip(names, model.weights_, strict=False)]
        return [under_headings(headings, names, largest_items(model, top, texts))]

    def items_plot(self, model: Any) -> "Figure":
        return modes_plot(model)
