"""A data set of which single entries are hidden, or of these alone, as one that any model fits."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.source import Layout, RowSource
from dfact.data.statistics import ColumnStatistics, as_floating
from dfact.engine.passes import Block
from dfact.selection.hidden_entries import EntryVeil


@dataclass(frozen=True, eq=False)
class VeiledSource:
    """The rows of a source as a veil leaves them, floating, NaN where missing."""

    source: RowSource
    missing_code: int | None
    veil: EntryVeil
    block_rows: int
    """Of the whole data set, whose blocks say what is hidden."""
    first: int = 0
    """Number of the first row in the data set, where a block begins."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(self.source.dtype, np.float32)

    @property
    def chunk_rows(self) -> int | None:
        return self.source.chunk_rows

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop, of whole blocks: what is hidden of a row follows from its block."""
        step, n = self.block_rows, self.shape[0]
        first = start // step * step
        blocks = [self._block(begin, min(begin + step, n)) for begin in range(first, stop, step)]
        return np.ascontiguousarray(np.concatenate(blocks)[start - first : stop - first])

    def _block(self, start: int, stop: int) -> NDArray[Any]:
        values = as_floating(self.source.read(start, stop), self.missing_code, self.dtype)
        index = (self.first + start) // self.block_rows
        return self.veil(Block(values, None, index, self.first + start)).values

    def slice(self, rows: slice) -> "VeiledSource":
        """Rows from the beginning of a block on."""
        return replace(self, source=self.source.slice(rows), first=self.first + rows.start)


def veiled(dataset: Dataset, veil: EntryVeil) -> Dataset:
    """The data set as the veil leaves it; columns are counted anew, which reads it once."""
    source = VeiledSource(dataset.source, dataset.missing_code, veil, Layout.of(dataset.shape).block_rows)
    return replace(dataset, source=source, missing_code=None, statistics=ColumnStatistics.of_source(source), stored_fingerprint=None)
