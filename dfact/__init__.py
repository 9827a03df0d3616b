"""dfact: distributed out-of-core factorization of questionnaires, matrices and tensors."""

from dfact.data.dataset import Dataset, open_dataset
from dfact.data.import_array import import_array
from dfact.data.import_table import import_table
from dfact.engine.progress import Progress
from dfact.errors import DataError, DfactError, MemoryPlanError, ParameterError, StoreError
from dfact.models.base import plan
from dfact.models.icqf import ICQF

__version__ = "0.1.0"
__all__ = ["ICQF", "DataError", "Dataset", "DfactError", "MemoryPlanError", "ParameterError", "Progress", "StoreError", "import_array", "import_table", "open_dataset", "plan"]
