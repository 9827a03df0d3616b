"""Centring and scaling of the columns, the principal components of complete or mean-filled data, and how many a fit may have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.linalg import eigh

from dfact.engine.requests import Solver, run
from dfact.errors import DataError, ParameterError
from dfact.linalg.correlation import MomentsPass
from dfact.linalg.svd import OVERSAMPLING, GramPass, SingularPairs, gram_pairs, is_wide, singular_pairs, uses_gram
from dfact.models.pca.footprint import MAX_PASSES
from dfact.models.pca.passes import ColumnMoments, Floats, PairSums, PairSumsPass, Standardized
from dfact.parameters import Values, is_count

COMPONENTS = Values(
    lambda value: value is None or is_count(value) or (isinstance(value, (float, np.floating)) and 0 < float(value) < 1),
    "an integer of at least 1, a share of the variance between 0 and 1, or None",
)


def check_number(value: Any, n: int, m: int, items: str, *, expects: bool) -> None:
    """Refuse a number that data with missing entries have no likelihood for, or that needs variances which are not computed.

    The data of n rows and m columns, called ``items``, ``expects`` missing entries if these are taken by expectation.
    """
    found = f"n_components is {value}"
    if is_count(value):
        if expects and value >= m:  # without noise there is no likelihood
            raise ParameterError(f"{found}, expected fewer than the {m} {items} of data with missing entries")
    elif expects:
        remedy = "as the variances depend on it; choose one by select_number_of_components, or use missing='mean' (--missing mean)"
        raise ParameterError(f"{found} for data with missing entries, expected an integer, {remedy}")
    elif not uses_gram(m, min(n, m)):
        raise ParameterError(f"{found} for {n} rows of {m} {items}, expected an integer; choose one by select_number_of_components")


Scale = Literal["standard", "binomial"] | None
_TOLERANCE = {"float32": 1e-4, "float64": 1e-7}
"""Relative residual of the singular pairs, about the error of the vectors; single precision rounds products to some 1e-6."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The standardization of the columns, and their moments thereafter."""

    mean: Floats
    """Means as the entries are stored (m,)."""
    offset: Floats
    """Value that the import subtracted from each column's entries (m,)."""
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
        counts = np.maximum(counts, 1)  # a column may have all of its entries held out
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
        return cls(mean, offset, divisor, np.where(varies, squares, 0) / divisor**2, counts, int(found.rows))

    def view(self, dtype: np.dtype[Any]) -> Standardized:
        """Return the view of a block with these columns."""
        return Standardized(self.mean, self.scale, dtype)


@dataclass(frozen=True)
class Spectrum:
    """The leading principal components of the standardized columns, 0 for missing entries."""

    pairs: SingularPairs
    gram: Floats | None = None
    """Sums of products of the standardized columns (m, m), for data of few columns."""
    pair_sums: PairSums | None = None
    """The same with the numbers of entries, if they are wanted."""
    leading: Floats | None = None
    """Leading right singular vectors, those of the components and further ones, times their singular values (r, m), for data of more."""

    def explaining(self, share: float) -> "Spectrum":
        """Return the spectrum with the fewest components whose shares of the variance sum above this one, of all components."""
        squares = np.square(self.pairs.values)
        total = float(squares.sum() if self.gram is None else np.trace(self.gram))
        cumulative = np.cumsum(squares / total) if total > 0 else np.ones(len(squares))
        count = min(int(np.searchsorted(cumulative, share, side="right")) + 1, len(squares))
        return replace(self, pairs=self.pairs.first(count))

    def further_variances(self, rows: int) -> Floats:
        """Return the known variances beyond those of the components, of this number of rows."""
        k = len(self.pairs.values)
        if self.gram is not None:
            squares = eigh(self.gram, eigvals_only=True)[::-1][k:]
        else:
            squares = np.empty(0) if self.leading is None else np.square(self.leading[k:]).sum(axis=1)
        found: Floats = np.maximum(squares, 0) / (rows - 1)
        return found


def decompose(
    view: Standardized,
    m: int,
    k: int,
    max_passes: int,
    on_pass: Callable[[int], None],
    *,
    pairwise: bool = False,
    below: Floats | None = None,
) -> Solver[Spectrum]:
    """Compute the k leading right singular vectors and values of the standardized columns, with what further rows need.

    ``pairwise`` sums count the entries of each pair of columns. ``below`` (r, m) are rows on the driver, for more columns than have
    a Gram matrix.
    """
    if uses_gram(m, k):
        if pairwise:
            found = yield from run(PairSumsPass(view.dtype, view), None)
            gram, pair_sums = found.cross, found
        else:
            gram, pair_sums = (yield from run(GramPass(view.dtype, view), None)).gram, None
        on_pass(1)
        return Spectrum(gram_pairs(gram, k), gram, pair_sums)
    tolerance = _TOLERANCE[view.dtype.name]
    limits: dict[str, Any] = {"tolerance": tolerance, "max_passes": min(max_passes, MAX_PASSES), "on_pass": on_pass}
    if is_wide(m, k):
        return Spectrum((yield from singular_pairs(m, k, view.dtype, view=view, **limits)))
    pairs = yield from singular_pairs(m, k, view.dtype, view=view, below=below, further=OVERSAMPLING, **limits)
    return Spectrum(pairs.first(k), leading=pairs.values[:, None] * pairs.vectors.T)


@dataclass(frozen=True)
class Variances:
    """The variances of the standardized columns, from which a number of components is chosen."""

    rows: int
    total: float
    """Sum of the variances of the columns."""
    leading: Floats
    """Largest variances of components (k,)."""
    covariances: Floats | None = None
    """Covariances over the rows that have both columns (m, m), for data of few columns."""
    shares: Floats | None = None
    """Shares of the rows that have both columns (m, m)."""


def find_variances(columns: Columns, dtype: np.dtype[Any], k: int, max_passes: int) -> Solver[Variances]:
    """Compute the covariances of few columns, or the k leading variances of many."""
    m, total = len(columns.mean), float(columns.squares.sum()) / (columns.rows - 1)
    if uses_gram(m, k):
        moments = yield from run(MomentsPass(dtype, complete_only=False), columns.mean)
        C = moments.covariances() / np.outer(columns.scale, columns.scale)
        undefined = np.argwhere(np.isnan(C))
        if undefined.size:
            raise DataError(f"columns {undefined[0].tolist()} have no two rows with both, expected some; choose by held-out entries")
        return Variances(
            columns.rows, total, eigh(C, eigvals_only=True, subset_by_index=(m - k, m - 1))[::-1], C, moments.counts / columns.rows
        )
    spectrum = yield from decompose(columns.view(dtype), m, k, max_passes, lambda _: None)
    return Variances(columns.rows, total, spectrum.pairs.values**2 / (columns.rows - 1))


def shrinkage(variances: Floats, further: Floats, rest: float, n: float, m: int) -> Floats:
    """Estimate how much the scores of new rows are shrunk (k,): their standard deviation is this share of that of the fitted rows.

    The components are those of largest variance in the fitted rows, in part by chance, and so the scores of these rows have the
    variances d_r, those of others less. With the variances d_j of all further directions it is

        s_r = 1 / (1 + 1/(n − 1) Σ_j d_j / (d_r − d_j))

    in the limit of many rows n and columns m, whatever the variances of the noise (Dey & Lee 2019: s is the variance of a component in
    the population, divided by d). Directions beyond the ``further`` ones, whose variances sum to ``rest``, count as if they shared it
    equally. No share is below 1/(1 + √(m/n)), that of a component on the verge of the noise of equal variance.
    """
    others = max(min(round(n) - 1, m) - len(variances) - len(further), 0)
    spread = np.append(further, rest / others if others else 0.0)
    numbers = np.append(np.ones(len(further)), others)
    gaps = np.maximum(variances[:, None] - spread, np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):
        excess = (numbers * spread / gaps).sum(axis=1) / max(n - 1, 1)  # columns may have one entry each
    found: Floats = np.maximum(1 / (1 + excess), 1 / (1 + np.sqrt(m / n)))
    return found
