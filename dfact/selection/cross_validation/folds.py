"""Folds of block cross-validation: which entries are held out together."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.confounders import as_frame
from dfact.data.sources.entrance import as_labels
from dfact.errors import ParameterError

_N_QUANTILES = 4  # strata of equal size for each continuous confounder


@dataclass(frozen=True, eq=False)
class Folds:
    """Assignment of rows and columns to blocks, and of blocks to folds. No array has the size of the data."""

    rows: NDArray[np.unsignedinteger]
    """(n,): the block of each row."""
    columns: NDArray[np.unsignedinteger]
    """(m,): the block of each column."""
    fold_of_block: NDArray[np.intp]
    """(row blocks, column blocks): the fold of each pair of blocks."""

    @property
    def n_folds(self) -> int:
        return int(self.fold_of_block.max()) + 1

    def held_out(self, fold: int) -> NDArray[np.bool_]:
        """Return a mask (row blocks, m): the columns that the fold holds out in the rows of each block."""
        held_out: NDArray[np.bool_] = (self.fold_of_block == fold)[:, self.columns]
        return held_out

    @property
    def smallest_training_shape(self) -> tuple[int, int]:
        """Minimum numbers, over folds, of the rows and of the columns of which a fold leaves some entries."""
        held_out = [self.fold_of_block == fold for fold in range(self.n_folds)]
        rows = min(int((~h.all(axis=1))[self.rows].sum()) for h in held_out)
        return rows, min(int((~h.all(axis=0))[self.columns].sum()) for h in held_out)

    @property
    def smallest_disjoint_shape(self) -> tuple[int, int]:
        """Minimum numbers, over blocks, of the rows and of the columns that a block is outside of."""
        return len(self.rows) - int(np.bincount(self.rows).max()), len(self.columns) - int(np.bincount(self.columns).max())


def assign_folds(
    shape: tuple[int, int],
    n_blocks: tuple[int, int],
    n_folds: int,
    generator: np.random.Generator,
    strata: NDArray[np.int64] | None = None,
    groups: NDArray[np.intp] | None = None,
) -> Folds:
    """Assign shuffled rows and columns to blocks whose sizes differ by at most one, and the blocks to folds likewise.

    ``strata`` (n,) numbers the stratum of each row: all blocks get the same share of its rows, to within one row. ``groups`` (n,)
    numbers the group of each row, from 0 without gaps: all of its rows are in one block, in the stratum of the first. Then blocks
    get the same number of groups, to within one.
    """
    first = np.arange(shape[0]) if groups is None else np.unique(groups, return_index=True)[1]
    order = generator.permutation(len(first))
    if strata is not None:
        order = order[np.argsort(strata[first][order], kind="stable")]
    rows, columns = (np.empty(size, np.min_scalar_type(count)) for size, count in zip((len(first), shape[1]), n_blocks, strict=True))
    rows[order] = np.arange(len(first)) % n_blocks[0]
    rows = rows if groups is None else rows[groups]
    columns[generator.permutation(shape[1])] = np.arange(shape[1]) % n_blocks[1]
    fold_of_block = np.empty(n_blocks[0] * n_blocks[1], np.intp)
    fold_of_block[generator.permutation(len(fold_of_block))] = np.arange(len(fold_of_block)) % n_folds
    return Folds(rows, columns, fold_of_block.reshape(n_blocks))


def assign_all_folds(
    shape: tuple[int, int],
    n_blocks: tuple[int, int],
    n_folds: int,
    repeats: int,
    seed: int,
    strata: NDArray[np.int64] | None = None,
    groups: NDArray[np.intp] | None = None,
) -> list[Folds]:
    """Assign the folds of each repeat; those of one repeat do not depend on the number of repeats."""
    return [assign_folds(shape, n_blocks, n_folds, np.random.default_rng([seed, repeat]), strata, groups) for repeat in range(repeats)]


def number_strata(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Number the combinations of levels that occur (n,); continuous columns count by quarters, missing values as a level."""
    columns: dict[str, Any] = {}
    for name, values in frame.items():
        if isinstance(values.dtype, pd.CategoricalDtype):
            columns[str(name)] = values.cat.codes.to_numpy()
        else:
            ranks = values.rank(method="first", pct=True).to_numpy(np.float64)
            columns[str(name)] = np.where(np.isnan(ranks), 0, np.ceil(ranks * _N_QUANTILES))
    return np.asarray(pd.DataFrame(columns).groupby(list(columns), sort=True).ngroup(), np.int64)


def resolve_strata(stratify: Any, confounders: pd.DataFrame | None, n_rows: int) -> NDArray[np.int64] | None:
    """Return the strata of labels (n,) or a table of them, by default those of the confounders; None without either."""
    frame = confounders if stratify is None else as_frame(stratify, n_rows)
    return None if frame is None or not len(frame.columns) else number_strata(frame)


def resolve_groups(groups: Any, n_rows: int) -> NDArray[np.intp] | None:
    """Return the numbers of the groups of rows by their labels (n,), from 0 without gaps; None without labels."""
    if groups is None:
        return None
    labels = np.asarray(as_labels("groups", groups))
    if labels.shape != (n_rows,):
        raise ParameterError(f"groups has shape {labels.shape}, expected a label for each of {n_rows} rows")
    return np.asarray(np.unique(labels, return_inverse=True)[1], np.intp)


def resolve_folds(n_blocks: Any, n_folds: int | None, *, disjoint: bool) -> int:
    """Return the number of folds, by default 10; for ``disjoint`` training that of blocks, of which there must be several each way."""
    if not disjoint:
        return 10 if n_folds is None else n_folds
    blocks = tuple(n_blocks) if isinstance(n_blocks, (tuple, list)) else (n_blocks, n_blocks)
    if min(blocks) < 2:
        raise ParameterError(f"n_blocks is {n_blocks!r}, expected at least 2 of rows and of columns with training='disjoint'")
    count = int(np.prod(blocks))
    if n_folds not in (None, count):
        raise ParameterError(f"n_folds is {n_folds}, expected {count} with training='disjoint', the number of blocks; leave it out")
    return count


def check_blocks(shape: tuple[int, int], n_blocks: Any, n_folds: Any) -> tuple[int, int]:
    """Return the numbers of row and column blocks; raise ParameterError if data of this shape does not allow them."""
    blocks = tuple(n_blocks) if isinstance(n_blocks, (tuple, list)) else (n_blocks, n_blocks)
    if len(blocks) != 2 or not all(isinstance(b, (int, np.integer)) and 1 <= b <= size for b, size in zip(blocks, shape, strict=True)):
        raise ParameterError(f"n_blocks is {n_blocks!r}, expected (row blocks, column blocks), at most {shape}")
    if not isinstance(n_folds, (int, np.integer)) or not 2 <= n_folds <= blocks[0] * blocks[1]:
        raise ParameterError(f"n_folds is {n_folds!r}, expected from 2 to the number of blocks, {blocks[0] * blocks[1]}")
    return int(blocks[0]), int(blocks[1])
