"""Texts of an admixture: its summary, and the populations by size."""

import numpy as np

from dfact.models.admixture.estimator import Admixture
from dfact.report.presenters.base import Presenter
from dfact.report.tables import Lines, Texts, indented, row_chunks


class AdmixturePresenter(Presenter[Admixture]):
    """The presentation of an admixture."""

    rows = "memberships of {n} people in {k} populations"
    factors = "memberships"
    item = "SNP"

    def summary(self) -> Lines:
        model = self.model
        n, k = model.memberships_.shape
        end = "converged" if model.converged_ else "not converged"
        lines = [
            ("model", f"{type(model).__name__}, {k} populations of {n} people × {len(model.column_labels_)} SNPs"),
            ("fit", f"log-likelihood {model.log_likelihood_:.3f} after {model.n_iter_} reads, {end}"),
        ]
        if model.populations_:
            lines.append(("labelled", ", ".join(model.populations_)))
        if model.n_unobserved_:
            lines.append(("missing", f"{model.n_unobserved_} people without any genotype: their memberships are NaN"))
        return lines

    def component_texts(self, top: int, texts: Texts) -> list[str]:
        sizes = np.nansum([np.nansum(rows, axis=0, dtype=np.float64) for rows in row_chunks(self.model.memberships_)], axis=0)
        shares = sizes / sizes.sum()
        width = max(map(len, self.names))
        return [indented("\n".join(f"{name:<{width}}  {share:6.1%}" for name, share in zip(self.names, shares, strict=True)))]

    def scale_maximum(self) -> float | None:
        return 1.0
