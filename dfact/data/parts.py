"""Some rows of a data set as a data set of their own."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.source import RowSource
from dfact.data.statistics import ColumnStatistics


@dataclass(frozen=True, eq=False)
class SomeRows:
    """Some rows of a source, with all their entries; a read passes over those in between."""

    source: RowSource
    numbers: NDArray[np.intp]
    """Rising."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.numbers), *self.source.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def chunk_rows(self) -> int | None:
        """As many as a chunk of the source holds on average."""
        step = self.source.chunk_rows
        return None if step is None else max(1, step * len(self.numbers) // self.source.shape[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        chosen = self.numbers[start:stop]
        first = int(chosen[0])
        return np.ascontiguousarray(self.source.read(first, int(chosen[-1]) + 1)[chosen - first])

    def slice(self, rows: slice) -> "SomeRows":
        chosen = self.numbers[rows]
        first = int(chosen[0])
        return SomeRows(self.source.slice(slice(first, int(chosen[-1]) + 1)), chosen - first)


def rows_of(dataset: Dataset, numbers: NDArray[np.intp]) -> Dataset:
    """The rows of these numbers, rising, which are their labels; columns are counted anew, which reads the rows once."""
    source = SomeRows(dataset.source, numbers)
    statistics = ColumnStatistics.of_source(source, dataset.missing_code)
    return replace(dataset, source=source, statistics=statistics, confounders=None, labels=numbers, stored_fingerprint=None)
