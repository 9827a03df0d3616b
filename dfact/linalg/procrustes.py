"""Rotation of factor loadings to a target."""

import numpy as np
from numpy.typing import NDArray

from dfact.linalg.congruence import unit

Array = NDArray[np.float64]


_ROUNDS = 2  # more of them would draw oblique factors that differ towards those that agree


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


def rotate_to_each_other(A: Array, B: Array, *, oblique: bool) -> tuple[Array, Array]:
    """Return the loadings A (k, m) and B (k, m) of two groups, rotated twice to the mean of both, with rows of length 1.

    The factors correspond already. A target that was fitted to the answers of both groups draws them closer to each other than a
    target does to which other samples are rotated. Their mean has the same relation to the loadings in every sample.
    """
    A, B = unit(A), unit(B)
    for _ in range(_ROUNDS):
        target = (A + B) / 2
        A, B = (unit(rotate_to_target(loadings, target, oblique=oblique)) for loadings in (A, B))
    return A, B
