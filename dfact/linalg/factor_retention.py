"""How many common factors a correlation matrix has: parallel analysis, minimum average partials, BIC.

All need the correlations R (m, m) and the number n of rows they come from alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.linalg.minres import LOWEST, minres

Array = NDArray[np.float64]
_SINGULAR = 1e-8  # of the sum of all eigenvalues: what is left of a variable that others explain


@dataclass(frozen=True)
class FactorNumber:
    """A number of factors and what it was chosen by."""

    n_factors: int
    candidates: Array
    """Numbers of factors that were compared; of a parallel analysis those of the eigenvalues, from 1."""
    values: Array
    """The criterion of each: eigenvalues, average squared partial correlations, or BIC."""
    reference: Array | None = None
    """The eigenvalues of unrelated data, of a parallel analysis."""


def parallel_analysis(R: Array, n: int, *, quantile: float | None = 0.95, repeats: int = 100, seed: int = 0) -> FactorNumber:
    """Horn's parallel analysis (1965): the leading eigenvalues of R that exceed those of unrelated normal data of the same size.

    ``quantile`` is that of the ``repeats`` random eigenvalues of the same rank, by default the 95th
    percentile (Hayton, Allen & Scarpello 2004); None takes their mean, as Horn did. Random correlation
    matrices are drawn from their distribution (Wishart), so that n costs nothing.
    """
    if repeats < 1 or (quantile is not None and not 0 < quantile < 1):
        raise ParameterError(f"repeats={repeats} and quantile={quantile}, expected at least 1, and a number between 0 and 1 or None")
    rng = np.random.default_rng(seed)
    random = np.array([np.linalg.eigvalsh(_unrelated(n, len(R), rng))[::-1] for _ in range(repeats)])
    reference = random.mean(axis=0) if quantile is None else np.quantile(random, quantile, axis=0)
    values = np.asarray(np.linalg.eigvalsh(R)[::-1], np.float64)
    below = np.flatnonzero(values <= reference)
    return FactorNumber(int(below[0]) if below.size else len(R), np.arange(1, len(R) + 1.0), values, reference)


def _unrelated(n: int, m: int, rng: np.random.Generator) -> Array:
    """The correlation matrix of n rows of m independent normal variables."""
    if n <= m:
        return np.atleast_2d(np.corrcoef(rng.standard_normal((n, m)), rowvar=False))
    # Bartlett's decomposition of a Wishart matrix with n − 1 degrees of freedom.
    L = np.tril(rng.standard_normal((m, m)), -1)
    np.fill_diagonal(L, np.sqrt(rng.chisquare(n - 1 - np.arange(m))))
    L /= np.linalg.norm(L, axis=1, keepdims=True)
    return L @ L.T


def minimum_average_partial(R: Array) -> FactorNumber:
    """Velicer's MAP (1976): the number of principal components without which the squared partial correlations are smallest on average."""
    values, V = np.linalg.eigh(R)
    A = (V * np.sqrt(np.maximum(values, 0)))[:, ::-1]
    m = len(R)
    averages = []
    C = R.copy()
    for k in range(m):
        scale = C.diagonal()
        if (scale <= _SINGULAR).any():  # an item is explained in full: no partial correlations are left
            break
        partial = C**2 / np.outer(scale, scale)
        averages.append((partial.sum() - m) / (m * (m - 1)))
        C = C - np.outer(A[:, k], A[:, k])
    return FactorNumber(int(np.argmin(averages)), np.arange(len(averages), dtype=float), np.array(averages))


def bic(R: Array, n: int, n_components: Sequence[int]) -> FactorNumber:
    """The lowest BIC of the factor model, χ² − d log n, among these numbers of factors (those with d ≥ 0).

    χ² = (n − 1 − (2m + 5)/6 − 2k/3)·(log|Σ| − log|R| + tr(RΣ⁻¹) − m) for the model's correlations
    Σ = ΛΛᵀ + Ψ by minres, with Bartlett's factor, and d = ((m − k)² − m − k)/2: as psych's ``fa`` has it.

    Raises
    ------
    DataError
        R is singular: no likelihood is left.
    """
    m = len(R)
    usable = [k for k in n_components if 1 <= k <= m and (m - k) ** 2 >= m + k]
    if not usable:
        raise ParameterError(f"n_components={list(n_components)} leaves no degrees of freedom for {m} items, try fewer factors")
    if np.linalg.eigvalsh(R)[0] <= _SINGULAR:
        raise DataError(
            "the correlation matrix is singular, so that BIC is not defined; leave out items that others determine, or add rows"
        )
    determinant = np.linalg.slogdet(R)[1]
    values = []
    for k in usable:
        found = minres(R, k)
        common = found.loadings @ found.loadings.T
        Sigma = common + np.diag(np.maximum(1 - common.diagonal(), LOWEST))
        discrepancy = np.linalg.slogdet(Sigma)[1] - determinant + np.trace(np.linalg.solve(Sigma, R)) - m
        chi_square = (n - 1 - (2 * m + 5) / 6 - 2 * k / 3) * discrepancy
        values.append(chi_square - ((m - k) ** 2 - m - k) / 2 * np.log(n))
    return FactorNumber(usable[int(np.argmin(values))], np.array(usable, float), np.array(values))
