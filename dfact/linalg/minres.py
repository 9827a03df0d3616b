"""Common factors of a correlation matrix by minimum residuals, and their varimax and promax rotations."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize

LOWEST = 0.005
"""Lower bound of a uniqueness; without it one might become negative (a Heywood case)."""
_ROUNDS, _TOLERANCE = 1000, 1e-12  # of the varimax rotation
_RIDGE = 1e-6  # makes the correlation matrix invertible, from which the start is computed

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Extraction:
    """Common factors of a correlation matrix."""

    loadings: Array
    """Λ (m, k) of uncorrelated factors, the largest first."""
    uniquenesses: Array
    """Ψ (m), between 0.005 and 1."""
    objective: float
    n_iter: int
    converged: bool


def minres(R: Array, k: int, max_iter: int = 1000, tol: float = 1e-6) -> Extraction:
    """Extract minimum residual factors of the correlation matrix R (m, m): minimise f over 0.005 ≤ Ψ ≤ 1,

        f(Ψ) = min over Λ (m, k) of ½‖R − diag(Ψ) − ΛΛᵀ‖².

    The k leading eigenpairs of R − diag(Ψ) give Λ (Harman & Jones 1966; Jöreskog 1977,
    unweighted least squares). If no uniqueness is at its limit, the residual's diagonal is 0, and Λ
    minimises the squared off-diagonal residuals. L-BFGS-B starts from 1 − squared multiple
    correlations; ``tol`` bounds the projected gradient's largest entry.
    """
    start = np.clip(1 / np.linalg.inv(R + _RIDGE * np.eye(len(R))).diagonal(), LOWEST, 1.0)
    found = minimize(
        residual,
        start,
        args=(R, k),
        jac=True,
        method="L-BFGS-B",
        bounds=[(LOWEST, 1.0)] * len(R),
        options={"maxiter": max_iter, "maxfun": 2 * max_iter, "gtol": tol, "ftol": 1e-15, "maxcor": 20},
    )
    return Extraction(principal(found.x, R, k), found.x, float(found.fun), int(found.nit), bool(found.success))


def principal(uniquenesses: Array, R: Array, k: int) -> Array:
    """Return the Λ (m, k) that minimises ‖R − diag(Ψ) − ΛΛᵀ‖ for given Ψ."""
    m = len(R)
    values, vectors = eigh(R - np.diag(uniquenesses), subset_by_index=(m - k, m - 1))
    loadings: Array = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1]
    return loadings


def residual(uniquenesses: Array, R: Array, k: int) -> tuple[float, Array]:
    """Return f(Ψ) and its gradient −diag(R − diag(Ψ) − ΛΛᵀ); the gradient with respect to Λ is 0 at its minimum."""
    loadings = principal(uniquenesses, R, k)
    E = R - np.diag(uniquenesses) - loadings @ loadings.T
    return 0.5 * float(np.vdot(E, E)), -E.diagonal()


def varimax(loadings: Array) -> tuple[Array, Array]:
    """Return Λ T (m, k) and the rotation T (k, k) that maximises Σ_r Var_j((ΛT)_jr²), for rows of Λ of length 1 (Kaiser 1958).

    The iteration alternates between the criterion's linear part and its nearest rotation (the singular value iteration).
    """
    A, lengths = _normalized(loadings)
    T, last = np.eye(A.shape[1]), 0.0
    for _ in range(_ROUNDS):
        B = A @ T
        U, s, Vt = np.linalg.svd(A.T @ (B**3 - B * (B**2).mean(axis=0)))
        T = U @ Vt
        if s.sum() <= last * (1 + _TOLERANCE):
            break
        last = s.sum()
    return (A @ T) * lengths, T


def promax(loadings: Array, kappa: float = 4.0) -> tuple[Array, Array]:
    """Return oblique pattern loadings P (m, k) and the correlations Φ (k, k) of their factors: P Φ Pᵀ = ΛΛᵀ.

    The varimax loadings of rows of length 1 are fitted by least squares to their own signed κ-th powers. Factors keep
    variance 1, and rows are scaled back to their lengths (Hendrickson & White 1964; the normalization as in SPSS and in
    psych's ``kaiser``).
    """
    A, lengths = _normalized(loadings)
    B, _ = varimax(A)
    U = np.linalg.lstsq(B, B * np.abs(B) ** (kappa - 1), rcond=None)[0]
    U *= np.sqrt(np.linalg.inv(U.T @ U).diagonal())
    inverse = np.linalg.inv(U)
    return (B @ U) * lengths, inverse @ inverse.T


def ordered(pattern: Array, correlations: Array) -> tuple[Array, Array]:
    """Order the factors by the variance they explain, diag(Φ PᵀP), the largest first; flip signs so that loadings sum to above 0."""
    order = np.argsort(-explained(pattern, correlations), kind="stable")
    sign = np.where(pattern[:, order].sum(axis=0) < 0, -1.0, 1.0)
    return pattern[:, order] * sign, correlations[np.ix_(order, order)] * np.outer(sign, sign)


def explained(pattern: Array, correlations: Array) -> Array:
    """Return the variance that each factor explains, in items: diag(Φ PᵀP) (k), which add up to the sum of the communalities."""
    variances: Array = (correlations @ (pattern.T @ pattern)).diagonal()
    return variances


def _normalized(loadings: Array) -> tuple[Array, Array]:
    """Return rows of length 1 and their lengths (m, 1); an item without communality keeps its zeros."""
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    return loadings / np.where(lengths > 0, lengths, 1.0), lengths
