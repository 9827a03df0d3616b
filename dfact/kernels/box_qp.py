"""Box-constrained quadratic programs with one Gram matrix and many right-hand sides: the Lasso's, ridge's and least squares'.

For every column x of X (k, n), in place:

    minimize  ½ xᵀ(G + ridge·I)x − hᵀx   over 0 ≤ x_r ≤ upper, r < n_free

G (k, k) is the Gram matrix that all columns share. H (n_free, n) holds the linear terms h, minus the weight of an ℓ1
penalty; ridge (n) and upper (n) differ by column. Components from n_free on are fixed and have no ridge.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel

Floats = NDArray[np.floating]


@inlined
def descend(X: Floats, H: Floats, G: Floats, n_free: int, ridge: Floats, upper: Floats, sweeps: int, tolerance: float) -> int:
    """Run :func:`coordinate_descent` inside a kernel."""
    k, n = X.shape
    dtype = X.dtype.type
    zero, least = dtype(0), dtype(tolerance)
    gradient, inverse = np.empty(n, X.dtype), np.empty((n_free, n), X.dtype)
    for r in range(n_free):
        for i in range(n):
            inverse[r, i] = dtype(1) / (G[r, r] + ridge[i])
    quads = k // 4 * 4
    for sweep in range(sweeps):
        # The sum of the changes beyond the tolerance: unlike their maximum, it is vectorized.
        moved = zero
        for r in range(n_free):
            if G[r, r] <= zero:
                continue
            # g = h_r − (G x)_r, one component at a time over all columns: the inner loops run along
            # contiguous memory and need no index arithmetic.
            for i in range(n):
                gradient[i] = H[r, i] - ridge[i] * X[r, i]
            # Four at a time: the gradient is read and written a quarter as often.
            for q in range(0, quads, 4):
                a, b, c, d = G[r, q], G[r, q + 1], G[r, q + 2], G[r, q + 3]
                for i in range(n):
                    gradient[i] -= a * X[q, i] + b * X[q + 1, i] + c * X[q + 2, i] + d * X[q + 3, i]
            for q in range(quads, k):
                coupling = G[r, q]
                for i in range(n):
                    gradient[i] -= coupling * X[q, i]
            for i in range(n):
                x = min(max(X[r, i] + gradient[i] * inverse[r, i], zero), upper[i])
                moved += max(abs(x - X[r, i]) - least, zero)
                X[r, i] = x
        if moved <= zero:
            return sweep + 1
    return sweeps


@kernel
def coordinate_descent(X: Floats, H: Floats, G: Floats, n_free: int, ridge: Floats, upper: Floats, sweeps: int, tolerance: float) -> int:
    """Run cyclic coordinate descent from X: at most ``sweeps`` sweeps, or until one moves no entry by more than ``tolerance``.

    Returns the number of sweeps.
    """
    return descend(X, H, G, n_free, ridge, upper, sweeps, tolerance)


@inlined
def accelerate(X: Floats, H: Floats, G: Floats, n_free: int, ridge: Floats, upper: Floats, steps: int, tolerance: float) -> int:
    """Run :func:`fista` inside a kernel."""
    k, n = X.shape
    dtype = X.dtype.type
    zero, least = dtype(0), dtype(tolerance)
    norm = zero
    for r in range(n_free):
        row = zero
        for q in range(n_free):
            row += abs(G[r, q])
        norm = max(norm, row)
    if norm <= zero:
        return 0
    point, gradient = X.copy(), np.empty((n_free, n), X.dtype)
    momentum = 1.0
    for step in range(steps):
        following = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        weight = dtype((momentum - 1) / following)
        momentum = following
        moved = zero
        for r in range(n_free):
            for i in range(n):
                gradient[r, i] = H[r, i] - ridge[i] * point[r, i]
            for q in range(k):
                coupling = G[r, q]
                for i in range(n):
                    gradient[r, i] -= coupling * point[q, i]
        for r in range(n_free):
            for i in range(n):
                x = min(max(point[r, i] + gradient[r, i] / (norm + ridge[i]), zero), upper[i])
                change = x - X[r, i]
                moved += max(abs(change) - least, zero)
                point[r, i] = x + weight * change
                X[r, i] = x
        if moved <= zero:
            return step + 1
    return steps


@kernel
def fista(X: Floats, H: Floats, G: Floats, n_free: int, ridge: Floats, upper: Floats, steps: int, tolerance: float) -> int:
    """Run accelerated proximal gradient descent from X (FISTA, Beck & Teboulle 2009), at most ``steps`` steps.

    The proximal map of an ℓ1 penalty on a box is a clip, so it needs no inner iteration. The step is
    1/(‖G‖ + ridge), ‖G‖ bounded by its largest absolute row sum. Returns the number of steps.
    """
    return accelerate(X, H, G, n_free, ridge, upper, steps, tolerance)
