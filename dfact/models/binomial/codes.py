"""Counts of a block as bytes, and as a matrix without missing entries, and a check of their range."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.validation import locate_outside
from dfact.engine.passes import Block
from dfact.errors import DataError
from dfact.kernels.binomial import encode, fill_codes
from dfact.kernels.entries import recode

MISSING = 255
"""Code of a missing entry. A kernel takes every code above the number of trials as missing."""
MAX_TRIALS = 254


@dataclass(frozen=True)
class Codes:
    """View of a block (rows, m) as counts of 0 to M in bytes, in its working memory; missing entries have a code above M."""

    trials: int
    """Number of trials M: the highest count."""
    offset: NDArray[Any] | None = None
    """Value that the import subtracted from each column's answers (m,); None if it subtracted nothing."""

    def __call__(self, block: Block) -> NDArray[np.uint8]:
        stored, missing = block.codes
        out = block.work.array("codes", stored.shape, np.uint8)
        self._read(stored, missing, out)
        return out

    def _read(self, stored: NDArray[Any], missing: float, out: NDArray[np.uint8]) -> None:
        """Set out (rows, c) to the counts."""
        if self.offset is None and stored.dtype.kind == "f" and np.isnan(missing):
            encode(stored, out)
        elif stored.dtype != np.uint8 or self.offset is not None:
            recode(stored, missing, np.zeros(stored.shape[1]) if self.offset is None else -self.offset, MISSING, out)
        else:
            np.copyto(out, stored)
            if missing <= self.trials:
                out[out == missing] = MISSING


@dataclass(frozen=True, eq=False)
class FilledCodes:
    """View of a block (rows, m) in floating point, with the fill (m) of its column for a missing entry."""

    codes: Codes
    fill: NDArray[np.float64]
    dtype: np.dtype[Any]

    def __call__(self, block: Block) -> NDArray[Any]:
        G = self.codes(block)
        out = block.work.array("filled", G.shape, self.dtype)
        fill_codes(G, self.codes.trials, block.work.cached("fill", self.fill, lambda: self.fill.astype(self.dtype)), out)
        return out


def require_counts(dataset: Dataset, highest: float, model: str, limit: str) -> None:
    """Raise DataError if an observed value is outside 0 to ``highest``; the message names the ``model`` and calls that ``limit``."""
    observed = dataset.statistics.observed > 0
    least = (dataset.statistics.minimum + dataset.offset)[observed].min(initial=0)
    largest = (dataset.statistics.maximum + dataset.offset)[observed].max(initial=0)
    if np.isfinite([least, largest]).all() and least >= 0 and largest <= highest:
        return
    where = locate_outside(dataset, -dataset.offset, highest - dataset.offset, original_units=True)
    kind = "Negative values" if least < 0 else f"Values above {limit}"
    raise DataError(f"{kind} in data passed to {model}: {where}, expected 0 to {highest:g}")
