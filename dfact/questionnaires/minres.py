"""Common factors of a correlation matrix by minimum residuals."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize

LOWEST = 0.005
"""Lower bound of a uniqueness; without it one might become negative (a Heywood case)."""
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
    """Extract minimum residual factors of the correlation matrix R (m, m): minimize f over 0.005 ≤ Ψ ≤ 1,

        f(Ψ) = min over Λ (m, k) of ½‖R − diag(Ψ) − ΛΛᵀ‖².

    The k leading eigenpairs of R − diag(Ψ) give Λ (Harman & Jones 1966; Jöreskog 1977,
    unweighted least squares). If no uniqueness is at its limit, the residual's diagonal is 0, and Λ
    minimizes the squared off-diagonal residuals. L-BFGS-B starts from 1 − squared multiple
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
    """Return the Λ (m, k) that minimizes ‖R − diag(Ψ) − ΛΛᵀ‖ for given Ψ."""
    m = len(R)
    values, vectors = eigh(R - np.diag(uniquenesses), subset_by_index=(m - k, m - 1))
    loadings: Array = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1]
    return loadings


def residual(uniquenesses: Array, R: Array, k: int) -> tuple[float, Array]:
    """Return f(Ψ) and its gradient −diag(R − diag(Ψ) − ΛΛᵀ); the gradient with respect to Λ is 0 at its minimum."""
    loadings = principal(uniquenesses, R, k)
    E = R - np.diag(uniquenesses) - loadings @ loadings.T
    return 0.5 * float(np.vdot(E, E)), -E.diagonal()
