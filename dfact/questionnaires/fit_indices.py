"""Indices of the fit of a factor model to a correlation matrix, and the reliability of factor scores."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtr, chdtrc, ndtri

Array = NDArray[np.float64]

FIT_INDICES = ("chi_square", "df", "p", "rmsea", "rmsea_low", "rmsea_high", "cfi", "tli", "srmr", "bic")
"""Names of the indices, in their order."""
SINGULAR = 1e-8
"""Smallest eigenvalue, or residual variance, of a matrix that counts as regular."""
_LOW, _HIGH = 0.95, 0.05  # percentiles of the 90% interval of RMSEA
_LARGE = 1e9  # a larger χ² is normal to 2e-9 of it, and beyond 1e10 SciPy's distribution function returns NaN


def degrees_of_freedom(m: int, k: int) -> int:
    """Return d = ((m − k)² − m − k)/2 of k factors of m items; negative if the model has more parameters than there are correlations."""
    return ((m - k) ** 2 - m - k) // 2


def discrepancy(R: Array, Sigma: Array) -> float:
    """Return F = log|Σ| − log|R| + tr(RΣ⁻¹) − m, twice the difference of the normal log-likelihoods of a row."""
    return float(np.linalg.slogdet(Sigma)[1] - np.linalg.slogdet(R)[1] + np.trace(np.linalg.solve(Sigma, R)) - len(R))


def bartlett_factor(n: float, m: int, k: int) -> float:
    """Return n − 1 − (2m + 5)/6 − 2k/3, by which F is multiplied to give χ² (Bartlett 1950)."""
    return n - 1 - (2 * m + 5) / 6 - 2 * k / 3


def fit_indices(R: Array, loadings: Array, uniquenesses: Array, n: float, *, regular: bool = True) -> "pd.Series[float]":
    """Compute the indices of fit of the correlations R (m, m) of n rows to Σ = ΛΛᵀ + Ψ.

    ``loadings`` Λ (m, k) belong to uncorrelated factors, or are any Λ with the same ΛΛᵀ. The indices are

    - ``chi_square`` χ² = (n − 1 − (2m + 5)/6 − 2k/3)·F, with F = log|Σ| − log|R| + tr(RΣ⁻¹) − m, its degrees of freedom
      ``df`` d = ((m − k)² − m − k)/2, and ``p``;
    - ``rmsea`` √max(0, χ²/(dn) − 1/(n − 1)), with the 90% interval ``rmsea_low``, ``rmsea_high`` from the noncentral χ²;
    - ``cfi`` 1 − max(χ² − d, 0)/max(χ₀² − d₀, 0), and ``tli`` ((F₀/d₀ − F/d)/(F₀/d₀ − 1/c), with the factor c of χ²),
      against the model without factors, F₀ = −log|R|;
    - ``srmr``, the root mean square of the residual correlations, in which the diagonal counts as m zeros;
    - ``bic`` χ² − d log n.

    χ² with Bartlett's factor, RMSEA, TLI and BIC are psych's, SRMR is lavaan's. Where R is singular, or was smoothed (not
    ``regular``), its determinant is that of the smoothing, and all indices but ``df`` and ``srmr`` are NaN. Those that divide
    by d are NaN where d is 0, and all but ``srmr`` and ``df`` where d is negative.

    References
    ----------
    Steiger & Lind (1980) and Browne & Cudeck (1992), RMSEA; Tucker & Lewis (1973); Bentler (1990), CFI.
    """
    m, k = loadings.shape
    common = loadings @ loadings.T
    residuals = (R - common)[np.tril_indices(m, -1)]
    d = degrees_of_freedom(m, k)
    values = dict.fromkeys(FIT_INDICES, np.nan)
    values |= {"df": float(d), "srmr": float(np.sqrt((residuals**2).sum() * 2 / (m * (m + 1))))}
    factor = bartlett_factor(n, m, k)
    if regular and d >= 0 and factor > 0 and np.linalg.eigvalsh(R)[0] > SINGULAR:
        F, F0 = discrepancy(R, common + np.diag(uniquenesses)), -float(np.linalg.slogdet(R)[1])
        d0 = m * (m - 1) / 2
        chi_square, null = factor * F, bartlett_factor(n, m, 0) * F0
        values |= {"chi_square": chi_square, "bic": chi_square - d * np.log(n)}
        if null > d0:
            values["cfi"] = 1 - max(chi_square - d, 0) / (null - d0)
        if d > 0:
            values["p"] = float(chdtrc(d, chi_square))
            values["rmsea"] = float(np.sqrt(max(0, chi_square / (d * n) - 1 / (n - 1))))
            values["rmsea_low"], values["rmsea_high"] = (
                float(np.sqrt(noncentrality(chi_square, d, probability) / ((n - 1) * d))) for probability in (_LOW, _HIGH)
            )
            values["tli"] = (F0 / d0 - F / d) / (F0 / d0 - 1 / factor)
    return pd.Series(values, index=pd.Index(FIT_INDICES, name="index"), name="fit")


def noncentrality(chi_square: float, df: float, probability: float) -> float:
    """Return the noncentrality for which a noncentral χ² is at most ``chi_square`` with this probability; 0 if there is none."""
    from scipy.stats import ncx2  # takes long to import

    def excess(noncentral: float) -> float:
        return float((ncx2.cdf(chi_square, df, noncentral) if noncentral > 0 else chdtr(df, chi_square)) - probability)

    if excess(0.0) <= 0:
        return 0.0
    if chi_square > _LARGE:
        z = float(ndtri(probability))  # mean + z·deviation = χ², solved for the deviation
        deviation = 2 * (np.sqrt(z**2 + chi_square - df / 2) - z)
        return float(deviation**2 / 4 - df / 2)
    high = max(chi_square, 1.0)
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-9, rtol=1e-12))


def score_reliability(R: Array, pattern: Array, correlations: Array) -> Array:
    """Return the squared correlation (k) of each factor with its scores by regression (determinacy²): diag(ΦΛᵀR⁻¹ΛΦ).

    NaN if R is singular.

    References
    ----------
    Grice (2001).
    """
    if np.linalg.eigvalsh(R)[0] <= SINGULAR:
        return np.full(len(correlations), np.nan)
    structure = pattern @ correlations
    reliability: Array = np.einsum("jr,jr->r", structure, np.linalg.solve(R, structure))
    return reliability
