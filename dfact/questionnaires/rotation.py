"""Rotations of factor loadings: varimax, promax and oblimin, and the order and signs of the rotated factors."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dfact.questionnaires.kernels.oblimin import minimize_oblimin

_ROUNDS, _TOLERANCE = 1000, 1e-12  # of the varimax rotation
_ROUNDS_BEFORE_PLANES = 20
_PLANE_ANGLE = 1e-4  # in radians; the singular value iteration ends nearer to a maximum
_STARTS_TOLERANCE, _START_ROUNDS = 1e-5, 1000  # of the oblimin rotation from each start
_FINAL_TOLERANCE, _FINAL_ROUNDS = 1e-9, 5000  # from the lowest of them
_TIE = 1e-7  # relative: starts whose criteria differ by less have found the same minimum

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rotation:
    """Oblique factors by a rotation."""

    pattern: Array
    """Loadings Λ (m, k)."""
    correlations: Array
    """Correlations Φ (k, k) of the factors."""
    criterion: float
    """The minimum of the criterion; of rows of length 1 with Kaiser's normalization."""


def varimax(loadings: Array, *, kaiser: bool = True) -> tuple[Array, Array]:
    """Return Λ T (m, k) and the rotation T (k, k) that maximizes Σ_r Var_j((ΛT)_jr²), with ``kaiser`` for rows of length 1 (Kaiser 1958).

    The iteration alternates between the criterion's linear part and its nearest rotation (the singular value iteration). It hardly
    leaves the neighbourhood of a saddle, where the unrotated loadings of clear, equally strong factors lie. So now and then, and when it
    stops, two factors at a time are rotated to the maximum in their plane, and it resumes unless none has moved.
    """
    A, lengths = _normalized(loadings, kaiser=kaiser)
    T, last = np.eye(A.shape[1]), 0.0
    for number in range(1, _ROUNDS + 1):
        B = A @ T
        U, s, Vt = np.linalg.svd(A.T @ (B**3 - B * (B**2).mean(axis=0)))
        T = U @ Vt
        stopped = s.sum() <= last * (1 + _TOLERANCE)
        turned = _rotate_planes(A @ T) if stopped or number % _ROUNDS_BEFORE_PLANES == 0 else None
        if stopped and turned is None:
            break
        T, last = (T, s.sum()) if turned is None else (T @ turned, 0.0)
    return (A @ T) * lengths, T


def _rotate_planes(B: Array) -> Array | None:
    """Return the rotation that takes each two columns of B (m, k) in turn to the maximum of varimax in their plane (Kaiser 1958).

    None if no two columns turn by more than 1e-4.
    """
    m, k = B.shape
    B, T, largest = B.copy(), np.eye(k), 0.0
    for r, s in combinations(range(k), 2):
        u, v = B[:, r] ** 2 - B[:, s] ** 2, 2 * B[:, r] * B[:, s]
        sine, cosine = 2 * (u @ v - u.sum() * v.sum() / m), u @ u - v @ v - (u.sum() ** 2 - v.sum() ** 2) / m
        angle = float(np.arctan2(sine, cosine)) / 4
        largest = max(largest, abs(angle))
        plane = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        B[:, [r, s]], T[:, [r, s]] = B[:, [r, s]] @ plane, T[:, [r, s]] @ plane
    return T if largest > _PLANE_ANGLE else None


def promax(loadings: Array, kappa: float = 4.0, *, kaiser: bool = True) -> tuple[Array, Array]:
    """Return oblique pattern loadings P (m, k) and the correlations Φ (k, k) of their factors: P Φ Pᵀ = ΛΛᵀ.

    The varimax loadings, with ``kaiser`` of rows of length 1, are fitted by least squares to their own signed κ-th powers. Factors keep
    variance 1, and rows are scaled back to their lengths (Hendrickson & White 1964; the normalization as in psych's "promax").
    """
    A, lengths = _normalized(loadings, kaiser=kaiser)
    B, _ = varimax(A, kaiser=kaiser)
    pattern, Phi = _fitted_to(B * np.abs(B) ** (kappa - 1), B)
    return pattern * lengths, Phi


def promax_spss(loadings: Array, kappa: float = 4.0) -> tuple[Array, Array]:
    """Return oblique pattern loadings P (m, k) and the correlations Φ (k, k) of their factors, as SPSS computes promax.

    The target holds the signed κ-th powers of the varimax loadings in rows of length 1, as in :func:`promax`. The least squares
    step fits the varimax loadings as they are, so an item counts by its communality. Grieder & Steiner (2022) compare the two.
    """
    B, _ = varimax(loadings)
    unit, _ = _normalized(B, kaiser=True)
    return _fitted_to(unit * np.abs(unit) ** (kappa - 1), B)


def _fitted_to(target: Array, B: Array) -> tuple[Array, Array]:
    """Return the loadings B U (m, k) of factors of variance 1 and their correlations (k, k); U fits B to the target by least squares."""
    U = np.linalg.lstsq(B, target, rcond=None)[0]
    U *= np.sqrt(np.linalg.inv(U.T @ U).diagonal())
    inverse = np.linalg.inv(U)
    return B @ U, inverse @ inverse.T


def oblimin(loadings: Array, *, kaiser: bool = False, n_starts: int = 10, seed: int = 0) -> Rotation:
    """Rotate loadings A (m, k) of uncorrelated factors by oblimin with γ = 0 (quartimin): minimize

        ¼ Σ_{r≠s} Σ_j λ_jr² λ_js²  over Λ = A T⁻ᵀ with columns of T (k, k) of length 1, and Φ = TᵀT

    by gradient projection (Jennrich 2002), from the identity and from ``n_starts`` random rotations. The lowest minimum wins;
    of equal ones, the first. The rows of A are not normalized, as in psych and GPArotation, unless ``kaiser``, as in SPSS.
    """
    k = loadings.shape[1]
    A, lengths = _normalized(loadings, kaiser=kaiser)
    if k == 1:
        return Rotation(loadings, np.ones((1, 1)), 0.0)
    rng = np.random.default_rng(seed)
    starts = [np.eye(k), *(np.linalg.qr(rng.standard_normal((k, k)))[0] for _ in range(n_starts))]
    A = np.ascontiguousarray(A, np.float64)
    best, lowest = starts[0], np.inf
    for start in starts:
        T = np.array(start, order="C")
        value = minimize_oblimin(A, T, _STARTS_TOLERANCE, _START_ROUNDS)
        if value < lowest - _TIE * abs(lowest) or lowest == np.inf:
            best, lowest = T, value
    value = minimize_oblimin(A, best, _FINAL_TOLERANCE, _FINAL_ROUNDS)
    return Rotation(_pattern(A, best) * lengths, best.T @ best, value)


def _pattern(A: Array, T: Array) -> Array:
    """Return A T⁻ᵀ (m, k)."""
    return np.asarray(np.linalg.solve(T, A.T).T, np.float64)


def ordered(pattern: Array, correlations: Array) -> tuple[Array, Array]:
    """Order the factors by the variance they explain, diag(Φ PᵀP), the largest first; flip signs so that loadings sum to above 0."""
    order = np.argsort(-explained(pattern, correlations), kind="stable")
    sign = np.where(pattern[:, order].sum(axis=0) < 0, -1.0, 1.0)
    return pattern[:, order] * sign, correlations[np.ix_(order, order)] * np.outer(sign, sign)


def explained(pattern: Array, correlations: Array) -> Array:
    """Return the variance that each factor explains, in items: diag(Φ PᵀP) (k), which add up to the sum of the communalities."""
    variances: Array = (correlations @ (pattern.T @ pattern)).diagonal()
    return variances


def _normalized(loadings: Array, *, kaiser: bool) -> tuple[Array, Array]:
    """Return rows of length 1 and their lengths (m, 1), without ``kaiser`` the loadings and ones. Rows of zeros stay."""
    if not kaiser:
        return loadings, np.ones((len(loadings), 1))
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    return loadings / np.where(lengths > 0, lengths, 1.0), lengths


def rotate_to_target(loadings: Array, target: Array, *, oblique: bool) -> Array:
    """Return loadings A (k, m) rotated to the target B (k, m), the closest to it by least squares.

    Orthogonal: the rotation T that minimizes ‖TᵀA − B‖² (Schönemann 1966). Oblique: each row of B is regressed on the rows of A, which
    makes Tucker's congruence with that row the highest that a combination of the factors has (Hurley & Cattell 1962; Korth &
    Tucker 1976). The length of an oblique factor follows from the regression, and has no meaning of its own.

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
