"""dfact: distributed out-of-core factorization of questionnaires, matrices and tensors."""

from dfact.data.dataset import Dataset, open_dataset
from dfact.data.import_array import import_array
from dfact.errors import DataError, DfactError, MemoryPlanError, ParameterError, StoreError

__version__ = "0.1.0"
__all__ = ["DataError", "Dataset", "DfactError", "MemoryPlanError", "ParameterError", "StoreError", "import_array", "open_dataset"]
