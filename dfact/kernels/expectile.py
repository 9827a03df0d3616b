"""Expectile regression, exact: every row has observed entries of its own.

n rows, m columns, k components; ρ_τ(t) = w(t)·t² with w(t) = τ for t ≥ 0 and 1 − τ for t < 0.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel, subroutine

_ROUNDS = 100  # maximum number of Newton steps; the first sweep of a fit needs some four, later ones one or two
_HALVINGS = 50
_ROUNDING = 1e-14
_LANES = 8  # number of rows that are solved at once, one in each vector lane
_EPSILON = np.finfo(np.float64).eps


class Systems(NamedTuple):
    """A batch of linear systems, one for the row or column in each lane."""

    G: NDArray[np.float64]
    """Σ w y yᵀ (k, k, lanes), lower triangles."""
    h: NDArray[np.float64]
    """Σ w b y (k, lanes)."""
    L: NDArray[np.float64]
    """Cholesky factors (k, k, lanes) with inverted diagonals, to save divisions."""
    x: NDArray[np.float64]
    """Solutions (k, lanes)."""
    total: NDArray[np.float64]
    least: NDArray[np.float64]


class Rows(NamedTuple):
    """A batch of rows, one per lane, each with at most ``room`` observed entries, and their quadratics at the current signs."""

    b: NDArray[np.float64]
    """The observed entries (lanes, room)."""
    Y: NDArray[np.float64]
    """The factors of their columns (lanes, k, room), entries last for vectorized loops."""
    r: NDArray[np.float64]
    w: NDArray[np.float64]
    """The weight of each entry in G and h."""
    wy: NDArray[np.float64]
    """Working space (room)."""
    systems: Systems


@subroutine
def weight(residual: float, tau: float) -> float:
    """Return w(residual)."""
    return tau if residual >= 0 else 1 - tau


@subroutine
def squared_norm(x: NDArray[np.float64]) -> float:
    """Return ‖x‖²."""
    total = 0.0
    for value in x:
        total += value * value
    return total


@subroutine
def load_row(
    indices: NDArray[np.integer], values: NDArray[np.floating], start: int, p: int, F: NDArray[np.float64], rows: Rows, lane: int
) -> None:
    """Load b and Y of the entries start to start + p, given the factors F (m, k) of all columns."""
    for i in range(p):
        rows.b[lane, i] = values[start + i]
        j = indices[start + i]
        for a in range(F.shape[1]):
            rows.Y[lane, a, i] = F[j, a]


@subroutine
def residuals(p: int, x: NDArray[np.float64], tau: float, rows: Rows, lane: int) -> float:
    """Set r = b − xᵀY. Returns Σ ρ_τ(r)."""
    b, Y, r = rows.b[lane], rows.Y[lane], rows.r[lane]
    for i in range(p):
        r[i] = b[i]
    for a in range(len(x)):
        for i in range(p):
            r[i] -= x[a] * Y[a, i]
    loss = 0.0
    for i in range(p):
        loss += r[i] * r[i] * (tau if r[i] >= 0 else 1 - tau)
    return loss


@subroutine
def quadratic(p: int, k: int, tau: float, rows: Rows, lane: int) -> None:
    """Set w, G and h for the signs of r."""
    b, Y, r, w, wy = rows.b[lane], rows.Y[lane], rows.r[lane], rows.w[lane], rows.wy
    for i in range(p):
        w[i] = tau if r[i] >= 0 else 1 - tau
    for a in range(k):
        for i in range(p):
            wy[i] = w[i] * Y[a, i]
        total = 0.0
        for i in range(p):
            total += wy[i] * b[i]
        rows.systems.h[a, lane] = total
        for c in range(a + 1):
            total = 0.0
            for i in range(p):
                total += wy[i] * Y[c, i]
            rows.systems.G[a, c, lane] = total


@subroutine
def update_signs(p: int, k: int, tau: float, rows: Rows, lane: int) -> int:
    """Update w, G and h to the signs of r, in time proportional to the number of entries whose sign has changed; returns it."""
    b, Y, r, w = rows.b[lane], rows.Y[lane], rows.r[lane], rows.w[lane]
    count = 0
    for i in range(p):
        change = weight(r[i], tau) - w[i]
        if change != 0:
            count += 1
            w[i] += change
            for a in range(k):
                scaled = change * Y[a, i]
                rows.systems.h[a, lane] += scaled * b[i]
                for c in range(a + 1):
                    rows.systems.G[a, c, lane] += scaled * Y[c, i]
    return count


@subroutine
def solve(ridge: float, systems: Systems) -> None:
    """Set x = (G + ridge·I)⁻¹ h in each lane, by the same operations in all lanes."""
    G, h, L, x, total, least = systems
    k = len(h)
    least[:] = 0
    for a in range(k):
        for lane in range(_LANES):
            least[lane] = max(least[lane], G[a, a, lane])
    # By rounding, a direction that only the ridge determines may get a pivot near 0 or, if G is large, above the ridge.
    for lane in range(_LANES):
        least[lane] = max(0.5 * ridge, k * _EPSILON * least[lane])
    for a in range(k):
        for c in range(a + 1):
            for lane in range(_LANES):
                total[lane] = G[a, c, lane]
            for q in range(c):
                for lane in range(_LANES):
                    total[lane] -= L[a, q, lane] * L[c, q, lane]
            if c < a:
                for lane in range(_LANES):
                    L[a, c, lane] = total[lane] * L[c, c, lane]
        for lane in range(_LANES):
            L[a, a, lane] = 1 / np.sqrt(max(total[lane] + ridge, least[lane]))
    for a in range(k):
        for lane in range(_LANES):
            total[lane] = h[a, lane]
        for q in range(a):
            for lane in range(_LANES):
                total[lane] -= L[a, q, lane] * x[q, lane]
        for lane in range(_LANES):
            x[a, lane] = total[lane] * L[a, a, lane]
    for a in range(k - 1, -1, -1):
        for lane in range(_LANES):
            total[lane] = x[a, lane]
        for q in range(a + 1, k):
            for lane in range(_LANES):
                total[lane] -= L[q, a, lane] * x[q, lane]
        for lane in range(_LANES):
            x[a, lane] = total[lane] * L[a, a, lane]


@subroutine
def newton_step(
    p: int, tau: float, ridge: float, rows: Rows, lane: int, x: NDArray[np.float64], new: NDArray[np.float64], loss: float
) -> tuple[float, bool]:
    """Move x, which has this loss, to the minimum for the signs of its residuals; ``rows.systems`` holds that in the row's lane.

    Returns Σ ρ_τ at the new x and whether it is the row's minimum; r holds the new residuals. A step that does not lower the
    objective is halved.
    """
    k, objective = len(x), loss + ridge * squared_norm(x)
    for a in range(k):
        new[a] = rows.systems.x[a, lane]
    loss = residuals(p, new, tau, rows, lane)
    halvings = 0
    while not loss + ridge * squared_norm(new) <= objective * (1 + _ROUNDING) and halvings < _HALVINGS:  # NaN does not count as descent
        halvings += 1
        for a in range(k):
            new[a] = 0.5 * (x[a] + new[a])
        loss = residuals(p, new, tau, rows, lane)
    if halvings == _HALVINGS:  # any further gain is below rounding
        return residuals(p, x, tau, rows, lane), True
    for a in range(k):
        x[a] = new[a]
    converged = update_signs(p, k, tau, rows, lane) == 0 and halvings == 0  # x is the minimum for the signs of its own residuals
    return loss, converged


@inlined
def allocate_systems(k: int) -> Systems:
    """Return systems of zeros as views of a single array, at fixed distances in memory: these decide which instructions run, and
    thus how results are rounded.
    """
    work = np.zeros((2 * k * (k + 1) + 2) * _LANES)
    GL, rest = work[: 2 * k * k * _LANES].reshape((2, k, k, _LANES)), work[2 * k * k * _LANES :].reshape((2 * k + 2, _LANES))
    return Systems(GL[0], rest[:k], GL[1], rest[k : 2 * k], rest[2 * k], rest[2 * k + 1])


@inlined
def allocate_rows(k: int, room: int) -> Rows:
    """Return memory for rows as views of a single array, like the systems."""
    work = np.empty(((k + 3) * _LANES + 1) * room)
    Y, rest = work[: k * _LANES * room], work[k * _LANES * room : (k + 3) * _LANES * room].reshape((3, _LANES, room))
    return Rows(rest[0], Y.reshape((_LANES, k, room)), rest[1], rest[2], work[(k + 3) * _LANES * room :], allocate_systems(k))


@subroutine
def add_to_columns(
    indices: NDArray[np.integer],
    tau: float,
    x: NDArray[np.float64],
    residuals: NDArray[np.float64],
    square: NDArray[np.float64],
    after: NDArray[np.float64],
    gradient: NDArray[np.float64],
    curvature: NDArray[np.float64],
) -> None:
    """Add a row's contributions to the sums over its columns; ``square`` (k(k+1)/2) is working space."""
    k, t = len(x), 0
    for a in range(k):
        for c in range(a + 1):
            square[t] = x[a] * x[c]
            t += 1
    for e in range(len(indices)):
        j, w, r = indices[e], weight(residuals[e], tau), residuals[e]
        after[j] += w * r * r
        if len(curvature) == 0:
            continue
        scaled = w * r
        for a in range(k):
            gradient[j, a] += scaled * x[a]
        for t in range(len(square)):
            curvature[j, t] += w * square[t]


@kernel
def expectile_rows(
    indptr: NDArray[np.integer],
    indices: NDArray[np.integer],
    values: NDArray[np.floating],
    Y: NDArray[np.float64],
    tau: float,
    ridge: float,
    X: NDArray[np.float64],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    gradient: NDArray[np.float64],
    curvature: NDArray[np.float64],
) -> None:
    """Solve X (k, n) ← argmin Σ_j ρ_τ(b_ij − x_iᵀy_j) + ridge‖x_i‖² exactly for every row i, over its stored entries.

    Newton's method on the signs solves for the minimum at the current signs of the residuals until these no longer change.

    For each column j, with factors Y (m, k), these sums are added: Σ_i ρ_τ with the old X to before (m) and with the new one to
    after (m), Σ_i w r x to gradient (m, k), and Σ_i w x xᵀ to curvature (m, k(k+1)/2), the lower triangle row by row, both at
    the new X. The last two are skipped if curvature has the shape (0, …).
    """
    n, k = len(indptr) - 1, X.shape[0]
    room = 0
    for i in range(n):
        room = max(room, indptr[i + 1] - indptr[i])
    rows = allocate_rows(k, room)
    xs, new, square = np.empty((_LANES, k)), np.empty(k), np.empty(k * (k + 1) // 2)
    losses, converged = np.empty(_LANES), np.empty(_LANES, np.bool_)
    for first in range(0, n, _LANES):
        count = min(_LANES, n - first)
        for lane in range(count):
            i, x = first + lane, xs[lane]
            start, p = indptr[i], indptr[i + 1] - indptr[i]
            load_row(indices, values, start, p, Y, rows, lane)
            for a in range(k):
                x[a] = X[a, i]
            losses[lane], converged[lane] = residuals(p, x, tau, rows, lane), False
            for e in range(p):
                r = rows.r[lane, e]
                before[indices[start + e]] += r * r * weight(r, tau)
            quadratic(p, k, tau, rows, lane)
        for _ in range(_ROUNDS):
            solve(ridge, rows.systems)
            left = 0
            for lane in range(count):
                if not converged[lane]:
                    p = indptr[first + lane + 1] - indptr[first + lane]
                    losses[lane], converged[lane] = newton_step(p, tau, ridge, rows, lane, xs[lane], new, losses[lane])
                    left += not converged[lane]
            if left == 0:
                break
        for lane in range(count):
            i, x = first + lane, xs[lane]
            for a in range(k):
                X[a, i] = x[a]
            add_to_columns(indices[indptr[i] : indptr[i + 1]], tau, x, rows.r[lane], square, after, gradient, curvature)


@kernel
def stored_residual_sums(
    indptr: NDArray[np.integer],
    indices: NDArray[np.integer],
    values: NDArray[np.floating],
    Y: NDArray[np.float64],
    X: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Add 1, 1, r, r², r³ of the residuals r = b − xᵀy of every column's stored entries to the rows of out (5, m); X (k, n), Y (m, k)."""
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            j, r = indices[e], values[e]
            for a in range(X.shape[0]):
                r -= X[a, i] * Y[j, a]
            out[0, j] += 1.0
            out[1, j] += 1.0
            out[2, j] += r
            out[3, j] += r * r
            out[4, j] += r * r * r


@kernel
def newton_columns(curvature: NDArray[np.float64], gradient: NDArray[np.float64], ridge: float, direction: NDArray[np.float64]) -> None:
    """Set direction (m, k) = (H_j + ridge·I)⁻¹ g_j for every column j: H in curvature (m, k(k+1)/2), lower triangles row by row."""
    m, k = gradient.shape
    systems = allocate_systems(k)
    for first in range(0, m, _LANES):
        count = min(_LANES, m - first)
        for lane in range(count):
            t = 0
            for a in range(k):
                systems.h[a, lane] = gradient[first + lane, a]
                for c in range(a + 1):
                    systems.G[a, c, lane] = curvature[first + lane, t]
                    t += 1
        solve(ridge, systems)
        for lane in range(count):
            for a in range(k):
                direction[first + lane, a] = systems.x[a, lane]


@kernel
def count_observed(V: NDArray[np.floating], indptr: NDArray[np.int64]) -> None:
    """Set indptr (n+1) as in CSR, for the entries of V (n, m) that are not NaN."""
    indptr[0] = 0
    for i in range(V.shape[0]):
        count = 0
        for j in range(V.shape[1]):
            count += V[i, j] == V[i, j]
        indptr[i + 1] = indptr[i] + count


@kernel
def take_observed(V: NDArray[np.floating], indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float64]) -> None:
    """Write the entries of V (n, m) that are not NaN, and their columns, row after row."""
    for i in range(V.shape[0]):
        e = indptr[i]
        for j in range(V.shape[1]):
            if V[i, j] == V[i, j]:
                indices[e], values[e] = j, V[i, j]
                e += 1
