"""The contract of a table: columns read in batches, as numbers or as text, and the position of a row in the file.

A format is a class that implements :class:`Table` in a module of this folder; ``formats`` chooses it by the suffix.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dfact.errors import DataError


def is_number(cell: str) -> bool:
    """Check whether Arrow parses the cell as a number; Python also accepts 1_000."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


Batch = tuple[NDArray[np.float64], pa.RecordBatch]


class Table(Protocol):
    """A file of rows under named columns."""

    name: str
    columns: list[str]

    def batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[Batch]:
        """Yield the rows in order: the columns ``numbers`` as a matrix, and the columns ``texts`` as strings.

        Empty cells and the texts ``missing`` become NaN in columns of numbers; other text raises DataError with its position.
        """
        ...

    def row_position(self, row: int) -> str:
        """Describe the position in the file of a row (counted from 0)."""
        ...


def not_a_number(position: str, column: str, cell: str) -> DataError:
    """Return the error for text in a column of numbers."""
    remedy = "declare it in missing=, or name other columns (items=, or row=, column=, value= of triplets)"
    return DataError(f"{position}, column {column!r} holds the text {cell!r}, expected a number; {remedy}")


def to_matrix(batch: pa.RecordBatch) -> NDArray[np.float64]:
    """Convert columns of numbers to a matrix, null to NaN."""
    return np.asarray(batch.to_tensor(null_to_nan=True, row_major=True).to_numpy(), np.float64)
