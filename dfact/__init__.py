"""dfact: distributed out-of-core factorization of questionnaires, matrices and tensors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dfact.errors import DataError, DfactError, MemoryPlanError, ParameterError, StoreError

if TYPE_CHECKING:
    from dfact import report, selection
    from dfact.data.dataset import Dataset, open_dataset
    from dfact.data.import_array import import_array
    from dfact.data.import_table import import_table
    from dfact.data.import_triplets import import_triplets
    from dfact.data.join import join_datasets
    from dfact.engine.progress import Progress
    from dfact.models.base import plan
    from dfact.models.cp_als import CPALS
    from dfact.models.elastic_cp import ElasticCP
    from dfact.models.emf import ExpectileMF
    from dfact.models.factor_analysis import FactorAnalysis
    from dfact.models.gom import GradeOfMembership
    from dfact.models.icqf import ICQF
    from dfact.models.l1nmf import L1NMF
    from dfact.models.persistence import load_model, save_model
    from dfact.report.html import write_report

__version__ = "0.1.0"
__all__ = [
    "CPALS",
    "ICQF",
    "L1NMF",
    "DataError",
    "Dataset",
    "DfactError",
    "ElasticCP",
    "ExpectileMF",
    "FactorAnalysis",
    "GradeOfMembership",
    "MemoryPlanError",
    "ParameterError",
    "Progress",
    "StoreError",
    "import_array",
    "import_table",
    "import_triplets",
    "join_datasets",
    "load_model",
    "open_dataset",
    "plan",
    "report",
    "save_model",
    "selection",
    "write_report",
]

# Imported when first asked for: numba and scikit-learn take seconds, which `dfact --help` need not wait for.
_HOMES = {
    "CPALS": "dfact.models.cp_als",
    "ICQF": "dfact.models.icqf",
    "L1NMF": "dfact.models.l1nmf",
    "Dataset": "dfact.data.dataset",
    "ElasticCP": "dfact.models.elastic_cp",
    "ExpectileMF": "dfact.models.emf",
    "FactorAnalysis": "dfact.models.factor_analysis",
    "GradeOfMembership": "dfact.models.gom",
    "Progress": "dfact.engine.progress",
    "import_array": "dfact.data.import_array",
    "import_table": "dfact.data.import_table",
    "import_triplets": "dfact.data.import_triplets",
    "join_datasets": "dfact.data.join",
    "load_model": "dfact.models.persistence",
    "open_dataset": "dfact.data.dataset",
    "plan": "dfact.models.base",
    "save_model": "dfact.models.persistence",
    "write_report": "dfact.report.html",
}


def __getattr__(name: str) -> Any:
    if name in ("report", "selection"):
        return import_module(f"dfact.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dfact' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
