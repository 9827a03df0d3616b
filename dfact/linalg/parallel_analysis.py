"""The number of principal components by parallel analysis: eigenvalues above those of unrelated data of the same size."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

from dfact.errors import ParameterError, warn

Array = NDArray[np.float64]

_ROWS_PER_COLUMN = 3
"""Rows of a pair of columns for each column, of which incomplete data need about so many: with 2, four factors are found in half of the
samples (the guide on evidence)."""


@dataclass(frozen=True)
class FactorCount:
    """A number of factors, or of components, and the criterion that chose it."""

    n_factors: int
    candidates: Array
    """Numbers of factors or components that were compared; for parallel analysis the ranks of the eigenvalues, from 1."""
    values: Array
    """The criterion for each candidate: eigenvalues, average squared partial correlations, or BIC."""
    reference: Array | None = None
    """The eigenvalues of unrelated data, for parallel analysis."""


def parallel_analysis(
    R: Array,
    n: int,
    *,
    eigenvalues: Callable[[Array], Array] | None = None,
    quantile: float | None = 0.95,
    repeats: int = 100,
    seed: int = 0,
    information: Array | None = None,
    shares: Array | None = None,
    deviations: Array | None = None,
) -> FactorCount:
    """Count the leading eigenvalues of R above those of unrelated normal data of the same size: parallel analysis (Horn 1965).

    The eigenvalues of R itself count principal components, as in Horn's paper. Other ``eigenvalues``, the largest first, are those of
    another function of R and of the random matrices: those with communalities on the diagonal count common factors.

    An eigenvalue is compared with this ``quantile`` of ``repeats`` random eigenvalues of the same rank, by default the 95th
    percentile (Hayton et al. 2004). None compares with their mean, as Horn did. Random correlation matrices are
    drawn from their distribution (Wishart), so the cost does not depend on n.

    Polychoric correlations of unrelated items vary more than Pearson's. With the ``information`` v (m) that the categories keep, the
    random correlations are divided by √(v_i v_j), which is their distribution to first order.

    With missing entries, ``shares`` (m, m) of the n rows have both of two different columns. A correlation over fewer rows varies
    more, so the random ones are divided by the roots of the shares, to first order as well. Their quantile decides whether there is
    a first component. A further eigenvalue is compared with their mean, or with the quantile of complete rows where that is larger:
    the first components leave less variance to the others than unrelated columns have, and with many missing entries the quantile
    would miss weak ones.

    A warning says when the pairs of columns have too few rows for that.

    With the ``deviations`` (m) of the columns, R is their covariance matrix, and the random matrices have the same variances.
    """
    if repeats < 1 or (quantile is not None and not 0 < quantile < 1):
        raise ParameterError(f"repeats={repeats} and quantile={quantile}, expected at least 1, and a number between 0 and 1 or None")
    rng = np.random.default_rng(seed)
    different = ~np.eye(len(R), dtype=bool)
    kept = np.ones_like(R) if shares is None else np.where(different, shares, 1)
    incomplete = bool((kept < 1).any())
    pairs = n * kept[different].mean() if incomplete else np.inf
    if pairs < _ROWS_PER_COLUMN * len(R):
        found = f"on average {pairs:.0f} rows have both of two of the {len(R)} columns, expected {_ROWS_PER_COLUMN} for each column"
        warn(f"{found}; parallel analysis can then miss weak factors, and count chance ones: take its number as an estimate")
    divisor = np.sqrt(kept if information is None else kept * np.outer(information, information))
    eigenvalues = eigenvalues or component_eigenvalues
    units = 1.0 if deviations is None else np.outer(deviations, deviations)
    random, complete = [], []
    for _ in range(repeats):
        drawn = _unrelated(n, len(R), rng)
        random.append(eigenvalues(_inflated(drawn, divisor) * units))
        if incomplete:
            complete.append(eigenvalues(_inflated(drawn, divisor / np.sqrt(kept)) * units))
    return _compare(eigenvalues(R), np.array(random), quantile, np.array(complete))


def parallel_analysis_of_many(
    values: Array, n: int, m: int, total: float, *, quantile: float | None = 0.95, repeats: int = 100, seed: int = 0
) -> FactorCount:
    """Count the leading eigenvalues (k,) of the covariance matrix of m columns of equal variance as :func:`parallel_analysis` does.

    Random covariance matrices are not formed: the eigenvalues of a Wishart matrix are those of a tridiagonal one with entries from
    χ distributions (Dumitriu & Edelman 2002), scaled to the ``total`` variance of the columns.
    """
    if repeats < 1 or (quantile is not None and not 0 < quantile < 1):
        raise ParameterError(f"repeats={repeats} and quantile={quantile}, expected at least 1, and a number between 0 and 1 or None")
    rng, k = np.random.default_rng(seed), len(values)
    freedom, size = max(n - 1, m), min(n - 1, m)
    random = np.empty((repeats, k))
    for repeat in range(repeats):
        diagonal = np.sqrt(rng.chisquare(freedom - np.arange(size)))
        below = np.sqrt(rng.chisquare(np.arange(size - 1, 0, -1)))
        squares = diagonal**2
        squares[1:] += below**2
        found = eigh_tridiagonal(squares, diagonal[:-1] * below, eigvals_only=True, select="i", select_range=(size - k, size - 1))
        random[repeat] = found[::-1] * total / squares.sum()
    return _compare(values, random, quantile)


def _compare(values: Array, random: Array, quantile: float | None, complete: Array | None = None) -> FactorCount:
    """Count the leading eigenvalues above the random ones of the same rank (repeats, k), and ``complete`` ones if entries miss."""
    reference = random.mean(axis=0) if quantile is None else np.quantile(random, quantile, axis=0)
    if quantile is not None and complete is not None and len(complete):
        reference[1:] = np.maximum(random.mean(axis=0), np.quantile(complete, quantile, axis=0))[1:]
    below = np.flatnonzero(values <= reference)
    return FactorCount(int(below[0]) if below.size else len(values), np.arange(1, len(values) + 1.0), values, reference)


def component_eigenvalues(R: Array) -> Array:
    """Return the eigenvalues of R (m), the largest first: the variances of its principal components."""
    return np.asarray(np.linalg.eigvalsh(R)[::-1], np.float64)


def _inflated(R: Array, divisor: Array) -> Array:
    """Return the matrix divided by another one (m, m), with ones on its diagonal."""
    one = np.eye(len(R))
    return np.divide(R, divisor, out=one, where=one == 0)


def _unrelated(n: int, m: int, rng: np.random.Generator) -> Array:
    """Draw the correlation matrix of n rows of m independent normal variables."""
    if n <= m:
        return np.atleast_2d(np.corrcoef(rng.standard_normal((n, m)), rowvar=False))
    # Bartlett's decomposition of a Wishart matrix with n − 1 degrees of freedom.
    L = np.tril(rng.standard_normal((m, m)), -1)
    np.fill_diagonal(L, np.sqrt(rng.chisquare(n - 1 - np.arange(m))))
    L /= np.linalg.norm(L, axis=1, keepdims=True)
    return L @ L.T
