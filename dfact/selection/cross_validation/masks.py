"""Masks of held-out entries, and a dataset seen through one, which any model fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.base import DenseSource, RowSource
from dfact.data.statistics import ColumnStatistics, as_float
from dfact.engine.passes import Block
from dfact.kernels.binomial import mask_codes_by_fold
from dfact.lazy import sp
from dfact.models.binomial.codes import MISSING, Codes
from dfact.selection.cross_validation.folds import Folds


@dataclass(frozen=True)
class FoldMask:
    """A view of blocks with the entries that a fold holds out set to NaN, or all others."""

    folds: Folds
    fold: int
    held_out: bool
    """Whether the held-out entries are kept rather than removed."""

    def apply(self, M: NDArray[Any], start: int = 0, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a masked copy of the rows M (rows, m), of which the first has the number ``start``."""
        # NaN where entries are removed, else 0: adding the mask is faster than selecting by it.
        mask = np.where(self.folds.held_out(self.fold) == self.held_out, 0, np.nan).astype(M.dtype)
        # mode="clip" writes to out directly; "raise" would make NumPy buffer it.
        values: NDArray[Any] = np.take(mask, self.folds.rows[start : start + len(M)], axis=0, out=out, mode="clip")
        values += M
        return values

    def __call__(self, block: Block) -> Block:
        M = block.values
        return block.with_matrix(self.apply(M, block.start, block.work.array("masked", M.shape, M.dtype)))


@dataclass(frozen=True)
class EntryMask:
    """A view of blocks without the entries that are held out, or with these alone.

    Each observed entry is held out with probability ``holdout_fraction``. The draw follows from the seed, the repeat,
    the number of the block and the order of the entries in its rows. It is the same for dense and CSR data, on any worker.
    """

    holdout_fraction: float
    seed: int
    repeat: int
    held_out: bool
    """Whether the held-out entries are kept rather than removed."""

    def __call__(self, block: Block) -> Block:
        M = block.matrix
        if isinstance(M, np.ndarray):
            flat = M.reshape(-1)
            positions = self._draw(block, flat)
            values = block.work.array("masked", flat.shape, flat.dtype)
            values[:] = np.nan if self.held_out else flat
            values[positions] = flat[positions] if self.held_out else np.nan
            return block.with_matrix(values.reshape(M.shape))
        # Implicit entries are missing.
        remaining = np.full(M.nnz, not self.held_out)
        remaining[self._draw(block, M.data)] = self.held_out
        indptr = np.concatenate([[0], np.cumsum(remaining)])[M.indptr].astype(M.indptr.dtype)
        return block.with_matrix(sp.csr_array((M.data[remaining], M.indices[remaining], indptr), shape=M.shape))

    def _draw(self, block: Block, entries: NDArray[Any]) -> NDArray[np.intp]:
        """Draw the positions of the held-out entries among all entries of the block; NaN are missing."""
        observed = np.flatnonzero(~np.isnan(entries))
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.repeat, block.index)))
        positions: NDArray[np.intp] = observed[generator.random(len(observed)) < self.holdout_fraction]
        return positions


@dataclass(frozen=True)
class ValueMask:
    """A view of blocks without the entries of a fold, or with these alone; those that a sparse matrix does not store belong to folds too.

    The fold of an entry is that of :class:`CodeMask`.
    """

    fold: int
    n_folds: int
    seed: int
    held_out: bool
    """Whether the held-out entries are kept rather than removed."""

    def __call__(self, block: Block) -> Block:
        M = block.values
        removed = block.work.array("removed", M.shape, np.uint8)
        mask_codes_by_fold(np.zeros(M.shape, np.uint8), block.start, self.fold, self.n_folds, self.seed, self.held_out, removed)
        values = block.work.array("masked", M.shape, M.dtype)
        np.copyto(values, M)
        values[removed == MISSING] = np.nan
        return block.with_matrix(values)


@dataclass(frozen=True, eq=False)
class MaskedSource(DenseSource):
    """The rows of a source seen through a mask: floating point, NaN where missing or removed."""

    source: RowSource
    missing_code: int | None
    mask: EntryMask
    blocks: Layout
    """Layout of the complete dataset, as the mask draws by block."""
    first: int = 0
    """Number of the first row in the dataset, where a block begins."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(self.source.dtype, np.float32)

    @property
    def chunk_rows(self) -> int | None:
        return self.source.chunk_rows

    @property
    def segments(self) -> tuple[int, ...]:
        return self.source.segments

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows from start to stop; the blocks that hold them are read completely, as the mask draws by block."""
        if start >= stop:
            return np.empty((0, *self.shape[1:]), self.dtype)
        starts = np.array([*self.blocks.block_starts, self.blocks.n_rows]) - self.first
        first, last = np.searchsorted(starts, [start, stop - 1], side="right") - [1, 0]
        edges = np.minimum(starts[first : last + 1], self.shape[0]).tolist()
        blocks = [self._block(begin, end) for begin, end in pairwise(edges)]
        return np.ascontiguousarray(np.concatenate(blocks)[start - edges[0] : stop - edges[0]])

    def _block(self, start: int, stop: int) -> NDArray[Any]:
        values = as_float(self.source.read(start, stop), self.missing_code, self.dtype)
        return self.mask(Block(values, None, self.blocks.block_of(self.first + start), self.first + start)).values

    def slice(self, rows: slice) -> MaskedSource:
        """Return the source of the rows, of which the first must begin a block."""
        return replace(self, source=self.source.slice(rows), first=self.first + rows.start)


def masked(dataset: Dataset, mask: EntryMask) -> Dataset:
    """Return the dataset seen through the mask; computing its column statistics reads it once."""
    source = MaskedSource(dataset.source, dataset.missing_code, mask, dataset.source.layout)
    return replace(dataset, source=source, missing_code=None, statistics=ColumnStatistics.of_source(source), stored_fingerprint=None)


@dataclass(frozen=True, eq=False)
class CodeMask:
    """A view of blocks as counts in bytes, without the entries of a fold, or with these alone.

    The fold of an entry is a hash of its row, its column and the seed, whatever the blocks and partitions.
    """

    codes: Codes
    fold: int
    n_folds: int
    seed: int
    held_out: bool
    """Whether the held-out entries are kept rather than removed."""

    def __eq__(self, other: object) -> bool:
        key = (self.fold, self.held_out, self.n_folds, self.seed)
        return isinstance(other, CodeMask) and key == (other.fold, other.held_out, other.n_folds, other.seed)

    def __hash__(self) -> int:
        return hash((self.fold, self.held_out, self.n_folds, self.seed))

    def __call__(self, block: Block) -> Block:
        G = self.codes(block)
        masked_codes = block.work.array("masked codes", G.shape, np.uint8)
        mask_codes_by_fold(G, block.start, self.fold, self.n_folds, self.seed, self.held_out, masked_codes)
        # Without a floating type, as the decoded matrix would overwrite the block's, which other folds still read.
        return replace(block, stored=masked_codes, missing_code=MISSING, dtype=None)
