"""Rotation of factor loadings to a target."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rotate_to_target(loadings: Array, target: Array, *, oblique: bool) -> Array:
    """Return loadings A (k, m) rotated to the target B (k, m), the closest to it by least squares.

    Orthogonal: the rotation T that minimises ‖TᵀA − B‖² (Schönemann 1966). Oblique: each row of B is regressed on the rows of A, which
    makes Tucker's congruence with that row the highest that a combination of the factors has (Hurley & Cattell 1962; Korth &
    Tucker 1976). The length of an oblique factor is that of the regression, and has no meaning of its own.

    References
    ----------
    Korth & Tucker (1976), "Procrustes matching by congruence coefficients", Psychometrika 41, doi:10.1007/BF02296973; Hurley & Cattell
    (1962), "The Procrustes program", Behavioral Science 7, doi:10.1002/bs.3830070216; Schönemann (1966), "A generalized solution of the
    orthogonal Procrustes problem", Psychometrika 31, doi:10.1007/BF02289451.
    """
    if oblique:
        combination = np.linalg.lstsq(loadings.T, target.T, rcond=None)[0]
        return np.asarray(combination.T @ loadings, np.float64)
    U, _, Vt = np.linalg.svd(loadings @ target.T)
    return np.asarray((U @ Vt).T @ loadings, np.float64)
