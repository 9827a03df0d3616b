"""Selected columns: a source whose columns are some of another one's, in any order, reflected, or missing."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.base import RowSource
from dfact.data.sources.dense import DenseSource


@dataclass(frozen=True, eq=False)
class SelectedColumns(DenseSource):
    """Columns of a source, some of them reflected: a value x becomes ``span`` − x."""

    source: RowSource
    columns: NDArray[np.intp]
    """Number of each column in the source (m,), −1 for one that the source lacks: its entries are missing."""
    missing_code: int | None
    """Stored value of missing entries; None for NaN."""
    span: NDArray[np.float64]
    """Sum of the least and the greatest value that a column may have (m,)."""
    reflected: NDArray[np.bool_]
    """Whether each column is reflected (m,)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape[0], len(self.columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def chunk_rows(self) -> int | None:
        return self.source.chunk_rows

    @property
    def offset(self) -> int:
        return self.source.offset

    @property
    def present_rows(self) -> int:
        return self.source.present_rows

    @property
    def segments(self) -> tuple[int, ...]:
        return self.source.segments

    @property
    def n_absent(self) -> int:
        """Number of columns that the source lacks."""
        return int((self.columns < 0).sum())

    def read(self, start: int, stop: int) -> NDArray[Any]:
        rows = self.source.read(start, stop)
        out = np.ascontiguousarray(rows[:, np.maximum(self.columns, 0)])
        missing = np.nan if self.missing_code is None else self.missing_code
        turned = out[:, self.reflected]
        known = ~np.isnan(turned) if self.missing_code is None else turned != missing
        span = self.span[self.reflected].astype(self.dtype)
        out[:, self.reflected] = np.where(known, span - turned, turned)
        out[:, self.columns < 0] = missing
        return out

    def slice(self, rows: slice) -> "SelectedColumns":
        return SelectedColumns(self.source.slice(rows), self.columns, self.missing_code, self.span, self.reflected)
