"""Centring and scaling of the columns, and the principal components of complete or mean-filled data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, run
from dfact.linalg.svd import GramPass, SingularPairs, gram_pairs, singular_pairs, uses_gram
from dfact.models.pca.passes import ColumnMoments, Floats, Standardized

Scale = Literal["standard", "binomial"] | None
_TOLERANCE = {"float32": 1e-4, "float64": 1e-7}
"""Relative residual of the singular pairs, about the error of the vectors; single precision rounds products to some 1e-6."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The standardization of the columns, and their moments thereafter."""

    mean: Floats
    scale: Floats
    """Divisor of each centred column (m,); 1 without scaling, and for a constant column."""
    squares: Floats
    """Sum of squares of the observed standardized entries of each column (m,)."""
    observed: Floats
    """Number of observed entries of each column (m,)."""
    rows: int
    """Number of rows with an observed entry."""

    @classmethod
    def of(cls, found: ColumnMoments, shift: Floats, offset: Floats, scale: Scale) -> "Columns":
        """Make the standardization from the moments about the shift; answers as they were given are larger by the offset (m,)."""
        counts, sums, squares = found.moments
        about = sums / counts
        mean, squares = about + shift, np.maximum(squares - sums * about, 0)
        divisor = np.ones_like(mean)
        if scale == "standard":
            divisor = np.sqrt(squares / counts)
        elif scale == "binomial":
            p = (mean + offset) / 2
            divisor = np.sqrt(2 * np.maximum(p * (1 - p), 0))
        # Rounding leaves a constant column with a tiny variance.
        varies = squares > counts * (np.finfo(np.float64).eps * (np.abs(about) + np.abs(mean))) ** 2
        divisor = np.where(varies & (divisor > 0), divisor, 1.0)
        return cls(mean, divisor, np.where(varies, squares, 0) / divisor**2, counts, int(found.rows))

    def view(self, dtype: np.dtype[Any]) -> Standardized:
        """Return the view of a block with these columns."""
        return Standardized(self.mean, self.scale, dtype)


@dataclass(frozen=True)
class Spectrum:
    """The leading principal components of the standardized columns, 0 for missing entries."""

    pairs: SingularPairs
    gram: NDArray[np.float64] | None
    """Sums of products of the standardized columns (m, m), for data of few columns."""


def decompose(view: Standardized, m: int, k: int, max_passes: int, on_pass: Callable[[int], None]) -> Solver[Spectrum]:
    """Compute the k leading right singular vectors and values of the standardized columns."""
    if uses_gram(m, k):
        sums = yield from run(GramPass(view.dtype, view), None)
        on_pass(1)
        return Spectrum(gram_pairs(sums.gram, k), sums.gram)
    tolerance = _TOLERANCE[view.dtype.name]
    pairs = yield from singular_pairs(m, k, view.dtype, view=view, tolerance=tolerance, max_passes=max_passes, on_pass=on_pass)
    return Spectrum(pairs, None)
