"""Reliability of scales and adequacy of correlations for a factor analysis.

C (m, m) are the covariances and R (m, m) the correlations of the items of a scale, all keyed to point the same way.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, fdtri

from dfact.questionnaires.fit_indices import bartlett_factor, degrees_of_freedom
from dfact.questionnaires.minres import minres
from dfact.questionnaires.rotation import oblimin

Array = NDArray[np.float64]
_ROUNDING = 1e-10  # of a variance, relative to the items' own
_TOLERANCE = 1e-10  # of the gradient of an extraction, so that figures are right to six digits


def alpha(C: Array) -> float:
    """Return Cronbach's alpha m/(m − 1)·(1 − tr C/ΣC); of R, the standardized alpha. NaN for one item, and for a constant sum."""
    m, total = len(C), above_rounding(C.sum(), np.trace(C))
    return float(m / (m - 1) * (1 - np.trace(C) / total)) if m > 1 else np.nan


def above_rounding(variances: Any, trace: float) -> Array:
    """Return variances of sums of items, NaN for those that are rounding errors of the items' own ones, whose sum is the ``trace``."""
    return np.where(np.asarray(variances) > _ROUNDING * trace, variances, np.nan)


def alpha_interval(value: float, n: float, m: int, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of an alpha of m items and n participants (Feldt et al. 1987):

    1 − (1 − α)·F_p at p = (1 ± level)/2, for F with n − 1 and (n − 1)(m − 1) degrees of freedom.
    """
    tail = (1 - level) / 2
    if m < 2 or n < 2:
        return np.nan, np.nan
    upper, lower = (float(fdtri(n - 1, (n - 1) * (m - 1), p)) for p in (1 - tail, tail))
    return 1 - (1 - value) * upper, 1 - (1 - value) * lower


def lambda6(R: Array) -> float:
    """Return Guttman's λ6 = 1 − Σ 1/(R⁻¹)_ii / ΣR of regular correlations."""
    return float(1 - (1 / np.linalg.inv(R).diagonal()).sum() / R.sum())


def average_correlation(R: Array) -> float:
    """Return the mean correlation of two items; NaN for one item."""
    m = len(R)
    return float((R.sum() - np.trace(R)) / (m * (m - 1))) if m > 1 else np.nan


def item_rest_correlations(C: Array) -> Array:
    """Return the correlation of each item with the sum of the others: (Σ_j c_ij − c_ii)/√(c_ii·s_{−i}), s_{−i} their variance (m)."""
    own, sums = C.diagonal(), C.sum(axis=1)
    rest = above_rounding(C.sum() - 2 * sums + own, np.trace(C))
    return np.asarray((sums - own) / np.sqrt(np.where(own > 0, own, np.nan) * rest))


def alpha_if_dropped(C: Array) -> Array:
    """Return alpha of the other items, for each item (m); NaN for fewer than three items, and for others whose sum is constant."""
    m, own, sums = len(C), C.diagonal(), C.sum(axis=1)
    if m < 3:
        return np.full(m, np.nan)
    rest = above_rounding(C.sum() - 2 * sums + own, np.trace(C))
    return np.asarray((m - 1) / (m - 2) * (1 - (np.trace(C) - own) / rest))


def keys(R: Array) -> Array:
    """Return the signs of the items (m) by their loadings on one minres factor, −1 for those to reverse: the fewer ones."""
    signs = np.where(minres(R, 1, tol=_TOLERANCE).loadings[:, 0] < 0, -1.0, 1.0) if len(R) > 1 else np.ones(len(R))
    return -signs if signs.sum() < 0 else signs


def omega(R: Array) -> float:
    """Return omega of one minres factor, (Σλ)²/((Σλ)² + Σψ) (McDonald 1999); NaN for one item."""
    if len(R) < 2:
        return np.nan
    loadings = minres(R, 1, tol=_TOLERANCE).loadings[:, 0]
    common = loadings.sum() ** 2
    return float(common / (common + (1 - loadings**2).sum()))


@dataclass(frozen=True)
class GeneralFactor:
    """A general factor and group factors of the items, by the transformation of Schmid & Leiman (1957).

    The shares are of the sum of the items as they are keyed in R: no item is reversed for its loading.
    """

    loadings: Array
    """Loadings g of the items on the general factor (m), which have a sum of at least 0."""
    group_loadings: Array
    """Loadings on the group factors (m, k), which are not correlated with each other or with the general factor; none for k = 1."""
    uniquenesses: Array
    omega_hierarchical: float
    """Share of the variance of the sum of the items that is due to the general factor, (Σg)²/ΣR; of one factor, omega total."""
    omega_total: float
    """Share due to the general factor and the group factors, 1 − Σu²/ΣR."""
    ecv: float
    """Share of the general factor in the common variance, Σg²/(Σg² + Σ of the squared loadings on group factors)."""


def schmid_leiman(R: Array, k: int) -> GeneralFactor:
    """Split the common variance of the items into a general factor and k group factors (Zinbarg et al. 2005).

    An oblimin rotation of k minres factors gives Λ and Φ, and one minres factor of Φ the loadings γ of the group factors on the
    general one; two group factors have γ = √|φ₁₂|, one is the general factor itself. Items load Λγ on the general factor and
    Λ√(1 − γ²) on the group factors.
    """
    extraction = minres(R, k, tol=_TOLERANCE)
    if k == 1:
        general, group = extraction.loadings[:, 0], np.empty((len(R), 0))
        communalities = general**2
    else:
        rotated = oblimin(extraction.loadings)
        pattern, Phi = rotated.pattern, rotated.correlations
        if k == 2:
            # The factors' signs are arbitrary, and the second is turned to correlate positively with the first.
            gamma = np.sqrt(abs(Phi[0, 1])) * np.array([1.0, -1.0 if Phi[0, 1] < 0 else 1.0])
        else:
            gamma = minres(Phi, 1, tol=_TOLERANCE).loadings[:, 0]
        general, group = pattern @ gamma, pattern * np.sqrt(np.maximum(1 - gamma**2, 0))
        communalities = np.einsum("jr,rs,js->j", pattern, Phi, pattern)
    general = -general if general.sum() < 0 else general
    uniquenesses, common = 1 - communalities, float((general**2).sum())
    total = omega_total(R, uniquenesses)
    return GeneralFactor(
        general,
        group,
        uniquenesses,
        omega_hierarchical=total if k == 1 else _share_of_sum(general.sum() ** 2, R),
        omega_total=total,
        ecv=common / (common + float((group**2).sum())),
    )


def omega_total(R: Array, uniquenesses: Array) -> float:
    """Return the share of the variance of the sum of the items that common factors explain, 1 − Σu²/ΣR (McDonald 1999).

    NaN if the sum does not vary, as that of an item and its reverse.
    """
    return 1 - _share_of_sum(uniquenesses.sum(), R)


def _share_of_sum(variance: float, R: Array) -> float:
    """Return the share of a variance in the variance of the sum of the items, ΣR; NaN if the sum does not vary."""
    total = float(R.sum())
    return float(variance) / total if total > _TOLERANCE * len(R) else np.nan


def n_group_factors(m: int, most: int) -> int:
    """Return the number of group factors that m items determine, with at least as many correlations as parameters: at most ``most``."""
    return max((k for k in range(1, most + 1) if k < m and degrees_of_freedom(m, k) >= 0), default=1)


def sampling_adequacy(R: Array) -> tuple[float, Array]:
    """Return the Kaiser-Meyer-Olkin measure of regular correlations, and that of each item (m) (Kaiser & Rice 1974):

    Σr²/(Σr² + Σp²) over all pairs, or those of an item, with their partial correlations p given all other items.
    """
    inverse = np.linalg.inv(R)
    scale = np.sqrt(inverse.diagonal())
    partial, simple = (inverse / np.outer(scale, scale)) ** 2, R**2
    np.fill_diagonal(partial, 0.0)
    simple = simple - np.diag(simple.diagonal())
    with np.errstate(invalid="ignore"):  # uncorrelated items have none
        items: Array = simple.sum(axis=0) / (simple.sum(axis=0) + partial.sum(axis=0))
        return float(np.divide(simple.sum(), simple.sum() + partial.sum())), items


@dataclass(frozen=True)
class SphericityTest:
    """Test that no two items are correlated."""

    chi_square: float
    df: int
    p: float


def bartlett(R: Array, n: float) -> SphericityTest:
    """Test whether regular correlations from n rows are those of unrelated items (Bartlett 1951):

    χ² = −(n − 1 − (2m + 5)/6)·log|R| with m(m − 1)/2 degrees of freedom.
    """
    m = len(R)
    chi_square, df = float(-bartlett_factor(n, m, 0) * np.linalg.slogdet(R)[1]), m * (m - 1) // 2
    return SphericityTest(chi_square, df, float(chdtrc(df, chi_square)))


def steiger(R: Array, counts: Array) -> SphericityTest:
    """Test whether correlations are those of unrelated items, each from its own number of rows in ``counts`` (m, m) (Steiger 1980):

    χ² = Σ_{i<j} (n_ij − 3)·artanh²(r_ij) with m(m − 1)/2 degrees of freedom; NaN where a pair has no more than three rows.
    """
    pairs = np.triu_indices(len(R), 1)
    n, r, df = counts[pairs], R[pairs], len(pairs[0])
    if not df or n.min() <= 3:
        return SphericityTest(np.nan, df, np.nan)
    with np.errstate(divide="ignore"):
        chi_square = float(((n - 3) * np.arctanh(r) ** 2).sum())
    return SphericityTest(chi_square, df, float(chdtrc(df, chi_square)))
