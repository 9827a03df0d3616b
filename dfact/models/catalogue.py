"""The one list of models: class, module, command and presenter of each.

The list imports no model, so that ``dfact --help`` need not wait for Numba and scikit-learn.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A model that comes with dfact."""

    name: str
    """Name of its class: public in ``dfact``, and the class by which a saved model is found."""
    module: str
    """Module that defines the class."""
    command: str | None
    """Name of its commands, as in ``dfact fit icqf``; None for a model without commands."""
    presenter: str | None = None
    """Module in ``dfact.report.presenters``, and class, of what a report shows of it; None for what any model has."""
    guide: str = "extending"
    """Name of its guide, as in ``dfact help questionnaires``."""

    @property
    def family(self) -> str:
        """Folder of its module, and name of the module of its commands in ``dfact.cli.models``."""
        return self.module.split(".")[2]

    def load(self) -> type[Any]:
        """Import the class, a Factorization."""
        model: type[Any] = getattr(import_module(self.module), self.name)
        return model


KIND = "model"
"""Kind of the group that holds a saved model."""
CATALOGUE = (
    Entry("ICQF", "dfact.models.bounded_nmf.icqf", "icqf", "bounded_nmf:ICQFPresenter", "questionnaires"),
    Entry("NMF", "dfact.models.bounded_nmf.nmf", "nmf", "bounded_nmf:NMFPresenter", "nmf"),
    Entry("FactorAnalysis", "dfact.models.factor_analysis.estimator", "fa", "factor_analysis:FactorAnalysisPresenter", "psychometrics"),
    Entry("PCA", "dfact.models.pca.estimator", "pca", "pca:PCAPresenter", "pca"),
    Entry("GradeOfMembership", "dfact.models.gom.estimator", "gom", "gom.presenter:GoMPresenter", "classes"),
    Entry("Admixture", "dfact.models.admixture.estimator", "admixture", "admixture:AdmixturePresenter", "admixture"),
    Entry("ExpectileMF", "dfact.models.expectile.estimator", "emf", "expectile:ExpectilePresenter", "expectiles"),
    Entry("ElasticCP", "dfact.models.cp.elastic", "cp", "cp.presenter:CPPresenter", "tensors"),
    Entry("CPALS", "dfact.models.cp.als", "cpals", "cp.presenter:CPPresenter", "tensors"),
)

BY_NAME = {entry.name: entry for entry in CATALOGUE}
BY_COMMAND = {entry.command: entry for entry in CATALOGUE if entry.command is not None}
