"""A data set of which single entries are hidden, or of these alone, as one that any model fits."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.data.sources.dense import DenseSource
from dfact.data.statistics import ColumnStatistics, as_float
from dfact.engine.passes import Block
from dfact.selection.folds import Folds


@dataclass(frozen=True)
class FoldMask:
    """A block without what a fold hides, or with that alone."""

    folds: Folds
    fold: int
    hidden: bool
    """Whether what the fold hides is seen, and only that."""

    def __call__(self, block: Block) -> Block:
        M = block.values
        # NaN where nothing is seen, else 0: to add it is cheaper than to choose.
        veil = np.where(self.folds.hidden(self.fold) == self.hidden, 0, np.nan).astype(M.dtype)
        values = block.work.array("veiled", M.shape, M.dtype)
        np.take(veil, self.folds.rows[block.start : block.start + len(M)], axis=0, out=values, mode="clip")
        values += M
        return block.with_matrix(values)


@dataclass(frozen=True)
class EntryMask:
    """A block without the entries that are hidden, or with these alone.

    Each observed entry is hidden with the same chance, the ``holdout_fraction``. Which ones follows from the seed, the repeat
    and the block, as entries are counted in its rows: dense or row-compressed, wherever and by whom it is read.
    """

    holdout_fraction: float
    seed: int
    repeat: int
    hidden: bool
    """Whether what is hidden is seen, and only that."""

    def __call__(self, block: Block) -> Block:
        M = block.matrix
        if isinstance(M, np.ndarray):
            flat = M.reshape(-1)
            places = self._chosen(block, flat)
            seen = block.work.array("veiled", flat.shape, flat.dtype)
            seen[:] = np.nan if self.hidden else flat
            seen[places] = flat[places] if self.hidden else np.nan
            return block.with_matrix(seen.reshape(M.shape))
        # What is not stored is missing.
        kept = np.full(M.nnz, not self.hidden)
        kept[self._chosen(block, M.data)] = self.hidden
        indptr = np.concatenate([[0], np.cumsum(kept)])[M.indptr].astype(M.indptr.dtype)
        return block.with_matrix(sp.csr_array((M.data[kept], M.indices[kept], indptr), shape=M.shape))

    def _chosen(self, block: Block, entries: NDArray[Any]) -> NDArray[np.intp]:
        """Where among all entries, of which NaN are missing, the hidden ones are."""
        observed = np.flatnonzero(~np.isnan(entries))
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.repeat, block.index)))
        places: NDArray[np.intp] = observed[generator.random(len(observed)) < self.holdout_fraction]
        return places


@dataclass(frozen=True, eq=False)
class MaskedSource(DenseSource):
    """The rows of a source as a veil leaves them, floating, NaN where missing."""

    source: RowSource
    missing_code: int | None
    veil: EntryMask
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
        values = as_float(self.source.read(start, stop), self.missing_code, self.dtype)
        index = (self.first + start) // self.block_rows
        return self.veil(Block(values, None, index, self.first + start)).values

    def slice(self, rows: slice) -> "MaskedSource":
        """Rows from the beginning of a block on."""
        return replace(self, source=self.source.slice(rows), first=self.first + rows.start)


def masked(dataset: Dataset, veil: EntryMask) -> Dataset:
    """The data set as the veil leaves it; columns are counted anew, which reads it once."""
    source = MaskedSource(dataset.source, dataset.missing_code, veil, Layout.of(dataset.shape).block_rows)
    return replace(dataset, source=source, missing_code=None, statistics=ColumnStatistics.of_source(source), stored_fingerprint=None)
