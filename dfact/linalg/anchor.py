"""Anchor of group effects: the split of differences between groups into differences of the factors (impact) and of single items."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dfact.errors import DataError, ParameterError
from dfact.lazy import optimize

_AT_BOUND = 1e-7  # distance of a dual variable from ±1 up to which it counts as there: ten times the solver's own tolerance
_ROUNDING = 1e-11  # remaining effects up to this share of the largest effect are 0
_SLACK = 1e-13  # the same share, by which an effect may have the wrong sign: rounding must not exclude every shift
_RANK = 1e-10  # singular values below this share of the largest one count as 0


class Anchored(NamedTuple):
    """Differences between groups, split by :func:`anchor`."""

    shift: NDArray[np.float64]
    """δ (k,): the part of the difference that the factors carry."""
    effects: NDArray[np.float64]
    """d = e − Qδ (m,): the differences of the items at equal factors."""


def anchor(effects: ArrayLike, loadings: ArrayLike, scale: ArrayLike | None = None) -> Anchored:
    """Split effects e (m,) of a group on m items into a shift δ (k,) of the factors and the effects d = e − Qδ that remain.

    A model [W, C]Qᵀ does not determine the effects of a group: with indicator g, (W + gδᵀ, e − Qδ) fits as well as (W, e). The split
    is the one for which most items show no effect, by least absolute deviations:

        δ = argmin Σ_j |e_j − (Qδ)_j| / s_j.

    It is invariant to that shift. If several δ attain the minimum, the one with the smallest Σ_j (d_j / s_j)² is taken, which keeps
    the invariance. A shift that changes no item, as that of a factor without loadings, is not determined: δ has minimum norm.

    The linear program is solved by its dual, max uᵀ(e/s) subject to Qᵀ(u/s) = 0, −1 ≤ u ≤ 1, which has k constraints.

    Parameters
    ----------
    effects : array (m,)
        Differences e of the items, in points.
    loadings : array (m, k)
        Loadings Q of the items on the factors.
    scale : array (m,), optional
        Scales s of the items, all above 0: standard errors of the effects, or standard deviations of the items. By default 1.

    Returns
    -------
    Anchored
        ``shift`` (k,) in units of the factors, and ``effects`` (m,) in points.

    Raises
    ------
    ParameterError
        Shapes that do not fit, or scales that are not positive.
    DataError
        Numbers that are not finite.

    References
    ----------
    Chen et al. (2023).

    Examples
    --------
    >>> from dfact.linalg.anchor import anchor
    >>> anchor([0.2, 0.2, 0.2, 0.5], [[1.0], [1.0], [1.0], [1.0]]).effects.round(2).tolist()
    [0.0, 0.0, 0.0, 0.3]
    """
    e, Q, s = _checked(effects, loadings, scale)
    k = Q.shape[1]
    if not e.any() or not Q.any():
        return Anchored(np.zeros(k), e)
    # In units of the largest entries: the solver's tolerances are absolute.
    size, widths = np.abs(e / s).max(), np.abs(Q / s[:, None]).max(axis=0)
    widths[widths == 0] = 1.0
    target, A = e / s / size, Q / s[:, None] / widths
    shift = _smallest_among_optimal(target, A, _dual(target, A)) * size / widths
    shift = _minimum_norm(shift, Q)
    remaining = e - Q @ shift
    return Anchored(shift, np.where(np.abs(remaining / s) <= _ROUNDING * size, 0.0, remaining))


def _checked(effects: ArrayLike, loadings: ArrayLike, scale: ArrayLike | None) -> tuple[NDArray[np.float64], ...]:
    e, Q = np.asarray(effects, np.float64), np.asarray(loadings, np.float64)
    s = np.ones(len(np.atleast_1d(e))) if scale is None else np.asarray(scale, np.float64)
    if e.ndim != 1 or Q.ndim != 2 or len(Q) != len(e) or s.shape != e.shape:
        raise ParameterError(
            f"effects, loadings and scale have shapes {e.shape}, {Q.shape} and {s.shape}, expected (m,), (m, k) and (m,) for m items; "
            "anchor one difference at a time"
        )
    for name, values in (("effects", e), ("loadings", Q), ("scale", s)):
        if not np.isfinite(values).all():
            raise DataError(f"{name} holds {values[~np.isfinite(values)][0]}, expected finite numbers; leave out items without one")
    if not (s > 0).all():
        raise ParameterError(f"scale holds {s.min():g}, expected numbers above 0; leave out items that do not vary")
    return e, Q, s


def _dual(target: NDArray[np.float64], A: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a u (m,) that maximizes uᵀe subject to Aᵀu = 0 and −1 ≤ u ≤ 1."""
    result = optimize.linprog(-target, A_eq=A.T, b_eq=np.zeros(A.shape[1]), bounds=(-1, 1), method="highs-ds")
    if result.x is None:  # never infeasible (u = 0) nor unbounded
        raise RuntimeError(f"the linear program of the anchor failed: {result.message}")
    solution: NDArray[np.float64] = result.x
    return solution


def _smallest_among_optimal(target: NDArray[np.float64], A: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the optimal δ (k,) with the smallest ‖e − Aδ‖.

    By complementary slackness δ is optimal if and only if r = e − Aδ is 0 where |u| < 1, and otherwise 0 or of the sign of u.
    """
    at_bound = np.abs(u) > 1 - _AT_BOUND
    inner, sign, outer = ~at_bound, np.sign(u[at_bound]), A[at_bound]
    shift = np.zeros(A.shape[1])
    if inner.any():
        shift += np.linalg.lstsq(A[inner], target[inner], rcond=_RANK)[0]
    free = _free_directions(A[inner], A)  # columns z of shifts that keep r at 0 where it must be
    if not free.shape[1]:
        return shift
    # With Aδ = A shift + B y for orthonormal B: min ‖y − y₀‖ subject to sign·(r − B y) ≥ 0, a least-distance problem.
    B, R = np.linalg.qr(outer @ free)
    residual = target[at_bound] - outer @ shift
    start = B.T @ residual
    G, h = -sign[:, None] * B, -sign * (residual - B @ start) - _SLACK
    return shift + free @ np.linalg.solve(R, start + _least_distance(G, h))


def _free_directions(inner: NDArray[np.float64], A: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthonormal basis (k, p) of the directions that ``inner`` maps to 0, without those that all of A maps to 0."""
    rows = _row_space(A)
    if len(inner) == 0:
        return rows
    _, singular, basis = np.linalg.svd(inner @ rows)
    rank = int((singular > _RANK * max(1.0, singular[0])).sum())
    directions: NDArray[np.float64] = rows @ basis[rank:].T
    return directions


def _row_space(A: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthonormal basis (k, rank) of the row space of A (m, k)."""
    _, singular, basis = np.linalg.svd(A, full_matrices=False)
    rows: NDArray[np.float64] = basis[singular > _RANK * singular[0]].T
    return rows


def _least_distance(G: NDArray[np.float64], h: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the y of minimum norm with G y ≥ h, by non-negative least squares (Lawson & Hanson 1974, chapter 23)."""
    if (h <= 0).all():
        return np.zeros(G.shape[1])
    E = np.vstack([G.T, h])
    multipliers, _ = optimize.nnls(E, np.r_[np.zeros(len(E) - 1), 1.0])
    r = E @ multipliers
    r[-1] -= 1
    return -r[:-1] / r[-1] if r[-1] else np.zeros(G.shape[1])


def _minimum_norm(shift: NDArray[np.float64], Q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove the part of a shift that changes no item."""
    rows = _row_space(Q)
    return rows @ (rows.T @ shift)
