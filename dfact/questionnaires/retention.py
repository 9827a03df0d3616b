"""The number of common factors of a correlation matrix: parallel analysis, minimum average partials, BIC.

All need only the correlations R (m, m) and the number n of rows from which they were computed.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.linalg.parallel_analysis import FactorCount, component_eigenvalues
from dfact.questionnaires.fit_indices import SINGULAR, bartlett_factor, degrees_of_freedom, discrepancy
from dfact.questionnaires.minres import LOWEST, minres

Array = NDArray[np.float64]


def common_eigenvalues(R: Array) -> Array:
    """Return the eigenvalues (m) of R with the communalities of one minres factor on its diagonal, the largest first.

    Parallel analysis of these counts common factors, as psych's ``fa.parallel`` does. They are smaller than those of R, and so are the
    random ones, so that minor factors count too: their number is often the higher one.
    """
    return component_eigenvalues(R - np.diag(minres(R, 1).uniquenesses))


def minimum_average_partial(R: Array) -> FactorCount:
    """Choose the number of principal components whose removal minimizes the average squared partial correlation: MAP (Velicer 1976)."""
    values, V = np.linalg.eigh(R)
    A = (V * np.sqrt(np.maximum(values, 0)))[:, ::-1]
    m = len(R)
    averages = []
    C = R.copy()
    for k in range(m):
        scale = C.diagonal()
        if (scale <= SINGULAR).any():  # the components explain an item completely, so it has no partial correlations
            break
        partial = C**2 / np.outer(scale, scale)
        averages.append((partial.sum() - m) / (m * (m - 1)))
        C = C - np.outer(A[:, k], A[:, k])
    return FactorCount(int(np.argmin(averages)), np.arange(len(averages), dtype=float), np.array(averages))


def bic(R: Array, n: int, n_components: Sequence[int]) -> FactorCount:
    """Choose the number of factors with the lowest BIC of the factor model, χ² − d log n, among those with d ≥ 0.

    χ² = (n − 1 − (2m + 5)/6 − 2k/3)·(log|Σ| − log|R| + tr(RΣ⁻¹) − m) for the model's correlations
    Σ = ΛΛᵀ + Ψ by minres, with Bartlett's factor, and d = ((m − k)² − m − k)/2, as in psych's ``fa``.

    Raises
    ------
    DataError
        R is singular, so the likelihood is not defined.
    """
    m = len(R)
    usable = [k for k in n_components if 1 <= k <= m and (m - k) ** 2 >= m + k]
    if not usable:
        raise ParameterError(f"n_components={list(n_components)} leaves no degrees of freedom for {m} items, try fewer factors")
    if np.linalg.eigvalsh(R)[0] <= SINGULAR:
        raise DataError(
            "the correlation matrix is singular, so that BIC is not defined; leave out items that others determine, or add rows"
        )
    values = []
    for k in usable:
        found = minres(R, k)
        common = found.loadings @ found.loadings.T
        Sigma = common + np.diag(np.maximum(1 - common.diagonal(), LOWEST))
        chi_square = bartlett_factor(n, m, k) * discrepancy(R, Sigma)
        values.append(chi_square - degrees_of_freedom(m, k) * np.log(n))
    return FactorCount(usable[int(np.argmin(values))], np.array(usable, float), np.array(values))
