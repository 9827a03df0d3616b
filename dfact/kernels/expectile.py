"""Expectile regression: rows with their own observed entries solved exactly.

n rows, m columns, k components; ρ_ω(t) = w(t)·t² with w(t) = ω for t ≥ 0 and 1 − ω for t < 0.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, part

_ROUNDS = 100  # of signs; the first sweep of a fit needs some four, later ones one or two
_HALVINGS = 50
_ROUNDING = 1e-14
_EPSILON = np.finfo(np.float64).eps


class Row(NamedTuple):
    """One row's observed entries (p of at most `room`), and its quadratic at some signs."""

    b: NDArray[np.float64]
    """The entries (room)."""
    Y: NDArray[np.float64]
    """The factors of their columns (k, room): entries run along vector lanes."""
    r: NDArray[np.float64]
    w: NDArray[np.float64]
    """The weight with which each entry is part of G and h."""
    wy: NDArray[np.float64]
    G: NDArray[np.float64]
    """Σ w y yᵀ (k, k), lower triangle."""
    h: NDArray[np.float64]
    """Σ w b y (k)."""
    L: NDArray[np.float64]


@part
def weight(residual: float, omega: float) -> float:
    return omega if residual >= 0 else 1 - omega


@part
def squared_norm(x: NDArray[np.float64]) -> float:
    total = 0.0
    for value in x:
        total += value * value
    return total


@part
def load_row(indices: NDArray[np.integer], values: NDArray[np.floating], start: int, p: int, Y: NDArray[np.float64], row: Row) -> None:
    """Take in b and Y of the entries start to start + p."""
    for i in range(p):
        row.b[i] = values[start + i]
        j = indices[start + i]
        for a in range(Y.shape[1]):
            row.Y[a, i] = Y[j, a]


@part
def residuals(p: int, x: NDArray[np.float64], omega: float, row: Row) -> float:
    """Set r = b − xᵀY; returns Σ ρ_ω(r)."""
    for i in range(p):
        row.r[i] = row.b[i]
    for a in range(len(x)):
        for i in range(p):
            row.r[i] -= x[a] * row.Y[a, i]
    loss = 0.0
    for i in range(p):
        loss += row.r[i] * row.r[i] * (omega if row.r[i] >= 0 else 1 - omega)
    return loss


@part
def quadratic(p: int, k: int, omega: float, row: Row) -> None:
    """Set w, G and h at the signs of r."""
    for i in range(p):
        row.w[i] = omega if row.r[i] >= 0 else 1 - omega
    for a in range(k):
        for i in range(p):
            row.wy[i] = row.w[i] * row.Y[a, i]
        total = 0.0
        for i in range(p):
            total += row.wy[i] * row.b[i]
        row.h[a] = total
        for c in range(a + 1):
            total = 0.0
            for i in range(p):
                total += row.wy[i] * row.Y[c, i]
            row.G[a, c] = total


@part
def turn_signs(p: int, k: int, omega: float, row: Row) -> int:
    """Bring w, G and h to the signs of r, at the cost of the entries that change theirs; returns how many do."""
    count = 0
    for i in range(p):
        change = weight(row.r[i], omega) - row.w[i]
        if change != 0:
            count += 1
            row.w[i] += change
            for a in range(k):
                scaled = change * row.Y[a, i]
                row.h[a] += scaled * row.b[i]
                for c in range(a + 1):
                    row.G[a, c] += scaled * row.Y[c, i]
    return count


@part
def cholesky_solve(G: NDArray[np.float64], ridge: float, h: NDArray[np.float64], L: NDArray[np.float64], x: NDArray[np.float64]) -> None:
    """Set x = (G + ridge·I)⁻¹ h, G's lower triangle given (k, k); L is overwritten, its diagonal by its inverse: few divisions."""
    k, largest = len(h), 0.0
    for a in range(k):
        largest = max(largest, G[a, a])
    # Rounding may leave nothing of a direction that the ridge alone holds, or, where G is large, more than the ridge.
    least = max(0.5 * ridge, k * _EPSILON * largest)
    for a in range(k):
        for c in range(a + 1):
            total = G[a, c] + (ridge if a == c else 0.0)
            for q in range(c):
                total -= L[a, q] * L[c, q]
            L[a, c] = 1 / np.sqrt(max(total, least)) if a == c else total * L[c, c]
    for a in range(k):
        total = h[a]
        for q in range(a):
            total -= L[a, q] * x[q]
        x[a] = total * L[a, a]
    for a in range(k - 1, -1, -1):
        total = x[a]
        for q in range(a + 1, k):
            total -= L[q, a] * x[q]
        x[a] = total * L[a, a]


@part
def minimise(p: int, omega: float, ridge: float, row: Row, x: NDArray[np.float64], new: NDArray[np.float64], loss: float) -> float:
    """Move x to argmin Σ ρ_ω(b − xᵀY) + ridge‖x‖² from x with its residuals and loss; returns Σ ρ_ω there, its residuals in r.

    Newton on the signs: the minimum for the signs at hand, until it has these signs. A step that does not lower the
    objective is halved.
    """
    k = len(x)
    quadratic(p, k, omega, row)
    objective = loss + ridge * squared_norm(x)
    for _ in range(_ROUNDS):
        cholesky_solve(row.G, ridge, row.h, row.L, new)
        loss = residuals(p, new, omega, row)
        halvings = 0
        while not loss + ridge * squared_norm(new) <= objective * (1 + _ROUNDING) and halvings < _HALVINGS:  # NaN is no descent
            halvings += 1
            for a in range(k):
                new[a] = 0.5 * (x[a] + new[a])
            loss = residuals(p, new, omega, row)
        if halvings == _HALVINGS:  # rounding is all that is left to gain
            return residuals(p, x, omega, row)
        for a in range(k):
            x[a] = new[a]
        objective = loss + ridge * squared_norm(x)
        if turn_signs(p, k, omega, row) == 0 and halvings == 0:  # the minimum for the signs that it has
            break
    return loss


@kernel
def expectile_rows(
    indptr: NDArray[np.integer],
    indices: NDArray[np.integer],
    values: NDArray[np.floating],
    Y: NDArray[np.float64],
    omega: float,
    ridge: float,
    X: NDArray[np.float64],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    gradient: NDArray[np.float64],
    curvature: NDArray[np.float64],
) -> None:
    """X (k, n) ← argmin Σ_j ρ_ω(b_ij − x_iᵀy_j) + ridge‖x_i‖² for every row i, over its stored entries; exact.

    Of each column j, Y (m, k), are added up: Σ_i ρ_ω with the old X to before (m) and with the new one to after (m),
    Σ_i w r x to gradient (m, k), and Σ_i w x xᵀ to curvature (m, k(k+1)/2), the lower triangle row by row, both at the
    new X; the last two not where there is no room for them: (0, …).
    """
    n, k = len(indptr) - 1, X.shape[0]
    room = 0
    for i in range(n):
        room = max(room, indptr[i + 1] - indptr[i])
    # Parts of one array: which instructions run, and how they round, follows from what lies how close to what.
    longs, squares = (k + 4) * room, 2 * k * k
    work = np.empty(longs + squares + 3 * k)
    entries, GL = work[:longs].reshape((k + 4, room)), work[longs : longs + squares].reshape((2, k, k))
    h, x, new = work[longs + squares :].reshape((3, k))
    row = Row(entries[0], entries[4:], entries[1], entries[2], entries[3], GL[0], h, GL[1])
    square = np.empty(k * (k + 1) // 2)
    for i in range(n):
        start, p = indptr[i], indptr[i + 1] - indptr[i]
        load_row(indices, values, start, p, Y, row)
        for a in range(k):
            x[a] = X[a, i]
        loss = residuals(p, x, omega, row)
        for e in range(p):
            before[indices[start + e]] += row.r[e] * row.r[e] * weight(row.r[e], omega)
        minimise(p, omega, ridge, row, x, new, loss)
        t = 0
        for a in range(k):
            X[a, i] = x[a]
            for c in range(a + 1):
                square[t] = x[a] * x[c]
                t += 1
        for e in range(p):
            j, w, r = indices[start + e], weight(row.r[e], omega), row.r[e]
            after[j] += w * r * r
            if len(curvature) == 0:
                continue
            scaled = w * r
            for a in range(k):
                gradient[j, a] += scaled * x[a]
            for t in range(len(square)):
                curvature[j, t] += w * square[t]


@kernel
def newton_columns(curvature: NDArray[np.float64], gradient: NDArray[np.float64], ridge: float, direction: NDArray[np.float64]) -> None:
    """Set direction (m, k) = (H_j + ridge·I)⁻¹ g_j for every column j: H in curvature (m, k(k+1)/2), lower triangles row by row."""
    k = gradient.shape[1]
    H, L = np.empty((k, k)), np.empty((k, k))
    for j in range(len(gradient)):
        t = 0
        for a in range(k):
            for c in range(a + 1):
                H[a, c] = curvature[j, t]
                t += 1
        cholesky_solve(H, ridge, gradient[j], L, direction[j])


@kernel
def count_observed(V: NDArray[np.floating], indptr: NDArray[np.int64]) -> None:
    """Set indptr (n+1): where the entries of each row of V (n, m) that are not NaN begin, and where the last row's end."""
    indptr[0] = 0
    for i in range(V.shape[0]):
        count = 0
        for j in range(V.shape[1]):
            count += V[i, j] == V[i, j]
        indptr[i + 1] = indptr[i] + count


@kernel
def take_observed(V: NDArray[np.floating], indptr: NDArray[np.int64], indices: NDArray[np.int32], values: NDArray[np.float64]) -> None:
    """The entries of V (n, m) that are not NaN and their columns, row after row."""
    for i in range(V.shape[0]):
        place = indptr[i]
        for j in range(V.shape[1]):
            if V[i, j] == V[i, j]:
                indices[place], values[place] = j, V[i, j]
                place += 1
