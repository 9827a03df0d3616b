"""dfact: distributed out-of-core factorization of questionnaires, matrices and tensors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dfact.catalogue import CATALOGUE, INSTALLED, MISSING, absent
from dfact.errors import (
    ClusterError,
    ConvergenceWarning,
    DataError,
    DfactError,
    FederationError,
    MemoryPlanError,
    ParameterError,
    StoreError,
)

if TYPE_CHECKING:
    from dfact import report, selection
    from dfact.data import examples
    from dfact.data.codebook import Codebook, Item, MissingCount
    from dfact.data.dataset import Dataset
    from dfact.data.stored_dataset import open_dataset
    from dfact.engine.cluster.certificate_names import ClusterSecurity
    from dfact.engine.cluster.connection import connect
    from dfact.genetics.admixture import Admixture
    from dfact.genetics.importer import import_genotypes
    from dfact.imports.arrays.array import import_array
    from dfact.imports.arrays.triplets import import_triplets
    from dfact.imports.joins.group_tensor import stack_groups
    from dfact.imports.joins.indicators import expand_categories
    from dfact.imports.joins.join import join_datasets
    from dfact.imports.tables.table import import_table
    from dfact.models.bounded_nmf.icqf import ICQF
    from dfact.models.bounded_nmf.nmf import NMF
    from dfact.models.cp.als import CPALS
    from dfact.models.cp.elastic import ElasticCP
    from dfact.models.estimator import plan
    from dfact.models.expectile.estimator import ExpectileMF
    from dfact.models.gom.estimator import GradeOfMembership
    from dfact.models.pca.estimator import PCA
    from dfact.models.persistence import load_model, save_model
    from dfact.monitoring.metrics import serve_metrics
    from dfact.progress import Progress
    from dfact.questionnaires.description import Description, describe
    from dfact.questionnaires.factor_analysis.estimator import FactorAnalysis
    from dfact.report.write import write_report
    from dfact.sites.transport import Sites

__version__ = "0.1.0"
__all__ = [
    "CPALS",
    "ICQF",
    "NMF",
    "PCA",
    "Admixture",
    "ClusterError",
    "ClusterSecurity",
    "Codebook",
    "ConvergenceWarning",
    "DataError",
    "Dataset",
    "Description",
    "DfactError",
    "ElasticCP",
    "ExpectileMF",
    "FactorAnalysis",
    "FederationError",
    "GradeOfMembership",
    "Item",
    "MemoryPlanError",
    "MissingCount",
    "ParameterError",
    "Progress",
    "Sites",
    "StoreError",
    "concatenate",
    "connect",
    "describe",
    "examples",
    "expand_categories",
    "import_array",
    "import_genotypes",
    "import_table",
    "import_triplets",
    "join_datasets",
    "load_model",
    "open_dataset",
    "plan",
    "report",
    "save_model",
    "selection",
    "serve_metrics",
    "stack_groups",
    "write_report",
]
for _name in absent():
    __all__.remove(_name)  # noqa: PYI056  (type checkers see a complete installation)

# Imported on first use: Numba and scikit-learn take seconds, which `dfact --help` need not wait for.
_MODULES = {entry.name: entry.module for entry in CATALOGUE}
_MODULES |= {name: module for each in INSTALLED for name, module in each.names.items()}
_MODULES |= {
    "ClusterSecurity": "dfact.engine.cluster.certificate_names",
    "Codebook": "dfact.data.codebook",
    "Dataset": "dfact.data.dataset",
    "Item": "dfact.data.codebook",
    "MissingCount": "dfact.data.codebook",
    "Progress": "dfact.progress",
    "concatenate": "dfact.data.concatenate",
    "connect": "dfact.engine.cluster.connection",
    "expand_categories": "dfact.imports.joins.indicators",
    "import_array": "dfact.imports.arrays.array",
    "import_table": "dfact.imports.tables.table",
    "import_triplets": "dfact.imports.arrays.triplets",
    "join_datasets": "dfact.imports.joins.join",
    "load_model": "dfact.models.persistence",
    "open_dataset": "dfact.data.stored_dataset",
    "plan": "dfact.models.estimator",
    "save_model": "dfact.models.persistence",
    "serve_metrics": "dfact.monitoring.metrics",
    "stack_groups": "dfact.imports.joins.group_tensor",
    "write_report": "dfact.report.write",
}

_PACKAGES = {"examples": "dfact.data.examples", "report": "dfact.report", "selection": "dfact.selection"}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(_PACKAGES[name])
    if name not in _MODULES:
        for each in MISSING:
            if name in each.names or any(name == entry.name for entry in each.models):
                raise AttributeError(each.missing(f"dfact.{name}"))
        raise AttributeError(f"module 'dfact' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
