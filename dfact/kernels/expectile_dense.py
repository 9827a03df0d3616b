"""Expectile regression of rows with few missing entries: all rows share one curvature matrix, up to a factor per row.

n rows, m columns, k components; ρ_τ(t) = w(t)·t² with w(t) = τ for t ≥ 0 and 1 − τ for t < 0.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel

_HALVINGS = 12


@inlined
def residuals(v: NDArray[np.floating], x: NDArray[np.floating], Y: NDArray[np.floating], r: NDArray[np.floating]) -> None:
    """Set r = v − xᵀY."""
    k, m = Y.shape
    # The remainder of the division by four comes first, then four components at a time.
    a = k % 4
    if a == 0:
        for j in range(m):
            r[j] = v[j]
    elif a == 1:
        x0 = x[0]
        for j in range(m):
            r[j] = v[j] - x0 * Y[0, j]
    elif a == 2:
        x0, x1 = x[0], x[1]
        for j in range(m):
            r[j] = v[j] - (x0 * Y[0, j] + x1 * Y[1, j])
    else:
        x0, x1, x2 = x[0], x[1], x[2]
        for j in range(m):
            r[j] = v[j] - (x0 * Y[0, j] + x1 * Y[1, j] + x2 * Y[2, j])
    while a < k:
        x0, x1, x2, x3 = x[a], x[a + 1], x[a + 2], x[a + 3]
        for j in range(m):
            r[j] -= x0 * Y[a, j] + x1 * Y[a + 1, j] + x2 * Y[a + 2, j] + x3 * Y[a + 3, j]
        a += 4


@inlined
def weigh(tau: float, r: NDArray[np.floating], w: NDArray[np.floating], s: NDArray[np.floating]) -> float:
    """Set the weights w and s = w·r; w, s and r become 0 where r is NaN. Returns Σ ρ_τ."""
    zero, high = r.dtype.type(0), r.dtype.type(tau)
    low = r.dtype.type(1) - high
    for j in range(len(r)):
        error = r[j]
        seen = error == error
        error = error if seen else zero
        weight = (high if error >= zero else low) if seen else zero
        r[j] = error
        w[j] = weight
        s[j] = weight * error
    loss = zero
    for j in range(len(r)):
        loss += s[j] * r[j]
    return float(loss)


@inlined
def products(Y: NDArray[np.floating], s: NDArray[np.floating], g: NDArray[np.float64]) -> None:
    """Set g (k) = Ys."""
    k, m = Y.shape
    zero = s.dtype.type(0)
    a = 0
    while a + 4 <= k:
        g0, g1, g2, g3 = zero, zero, zero, zero
        for j in range(m):
            g0 += s[j] * Y[a, j]
            g1 += s[j] * Y[a + 1, j]
            g2 += s[j] * Y[a + 2, j]
            g3 += s[j] * Y[a + 3, j]
        g[a], g[a + 1], g[a + 2], g[a + 3] = g0, g1, g2, g3
        a += 4
    while a < k:
        g0 = zero
        for j in range(m):
            g0 += s[j] * Y[a, j]
        g[a] = g0
        a += 1


# One long function: split into two, it takes a sixth longer.
@kernel
def surrogate_rows(
    V: NDArray[np.floating],
    Y: NDArray[np.floating],
    U: NDArray[np.float64],
    values: NDArray[np.float64],
    tau: float,
    ridge: float,
    rounding: float,
    steps: int,
    gain: float,
    X: NDArray[np.floating],
    before: NDArray[np.floating],
    after: NDArray[np.floating],
    weights: NDArray[np.floating],
    gradient: NDArray[np.floating],
) -> None:
    """Step X (k, n) ← X + (c_i·YYᵀ + ridge)⁻¹ (−½ gradient of the objective of row i), c_i = Σ_j w/m; NaN in V (n, m) is missing.

    Y and the sums over columns may have further columns, of 0: if the vector length divides the number of columns, no loop
    ends with single entries.

    U (k, k) and ``values`` are the eigenvectors and eigenvalues of YYᵀ, Y (k, m). A step that does not lower its row's objective
    is halved. A row takes up to ``steps`` steps, until one lowers its loss by less than the fraction ``gain``.

    For each column these sums are added: Σ ρ_τ with the old X to before (m) and with the new one to after (m), Σ w to
    weights (m), and Σ w r x to gradient (k, m).
    """
    n, (k, m) = len(V), Y.shape
    # Views of a single array, at fixed distances in memory: these decide which instructions run, and thus how results are rounded.
    work = np.zeros(7 * m + 5 * k, V.dtype)
    # Slices, not unpacked rows, which Numba treats as strided.
    v, r, w = work[:m], work[m : 2 * m], work[2 * m : 3 * m]
    S, x, tile = work[3 * m : 7 * m].reshape((4, m)), work[7 * m : 7 * m + k], work[7 * m + k :].reshape((4, k))
    wide, Ut = np.empty(4 * k), U.T.copy()
    g, old, d, along = wide[:k], wide[k : 2 * k], wide[2 * k : 3 * k], wide[3 * k :]
    v[:] = np.nan
    for i in range(n):
        s = S[i % 4]
        for j in range(V.shape[1]):
            v[j] = V[i, j]
        for a in range(k):
            x[a] = X[a, i]
        residuals(v, x, Y, r)
        loss = weigh(tau, r, w, s)
        for j in range(m):
            before[j] += s[j] * r[j]
        for _ in range(steps):
            total = V.dtype.type(0)
            for j in range(m):
                total += w[j]
            share = total / V.shape[1]
            products(Y, s, g)
            for a in range(k):
                old[a] = x[a]
                g[a] -= ridge * old[a]
                d[a] = 0
            for a in range(k):
                along[a] = 0
            for a in range(k):
                for b in range(k):
                    along[b] += g[a] * U[a, b]
            for b in range(k):
                along[b] /= max(values[b], 0.0) * share + ridge
            for b in range(k):
                for a in range(k):
                    d[a] += along[b] * Ut[b, a]
            size = 0.0
            for a in range(k):
                size += old[a] * old[a]
            previous, allowed = loss, (loss + ridge * size) * (1 + rounding)
            length = 1.0
            for halving in range(_HALVINGS + 1):
                if halving == _HALVINGS:
                    length = 0.0
                size = 0.0
                for a in range(k):
                    x[a] = old[a] + length * d[a]
                for a in range(k):
                    size += float(x[a]) * float(x[a])
                residuals(v, x, Y, r)
                loss = weigh(tau, r, w, s)
                if loss + ridge * size <= allowed:  # NaN does not count as descent
                    break
                length *= 0.5
            if not loss <= (1 - gain) * previous:
                break
        for j in range(m):
            after[j] += s[j] * r[j]
            weights[j] += w[j]
        for a in range(k):
            X[a, i] = x[a]
            tile[i % 4, a] = x[a]
        if i % 4 == 3 or i == n - 1:
            for a in range(k):
                x0, x1, x2, x3 = tile[0, a], tile[1, a], tile[2, a], tile[3, a]
                for j in range(m):
                    gradient[a, j] += x0 * S[0, j] + x1 * S[1, j] + x2 * S[2, j] + x3 * S[3, j]
            tile[:] = 0
