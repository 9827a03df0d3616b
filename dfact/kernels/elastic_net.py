"""The elastic net with one Gram matrix and many right-hand sides: column updates, and exact solutions.

For every column x of X (k, n), in place:

    minimize  ½ xᵀG x − hᵀx + ridge/2·‖x‖² + l1·‖x‖₁,   x ≥ 0 where ``nonnegative``

H (k, n) holds the linear terms h; ridge (n) differs by column.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel

Floats = NDArray[np.floating]
_SWEEPS, _ROUNDS = 10, 1000  # coordinate sweeps before each attempt at the solution on the support, and number of attempts
_PATIENCE, _STEPS = 3, 10  # attempts before the active-set search, and its steps per component
_EDGE = 1e-9  # relative tolerance of the optimality conditions


@kernel
def column_updates(X: Floats, H: Floats, G: Floats, ridge: Floats, l1: float, nonnegative: bool, support: Floats, sweeps: int) -> None:
    """Sweep over x_r = soft(h_r − Σ_{q≠r} G_rq x_q, l1) / (G_rr + ridge), one component at a time over all columns.

    ``support`` (k, n) is 1 where an entry may differ from 0 and 0 elsewhere; shape (0, n) stands for no restriction.
    Entries without curvature become 0.
    """
    k, n = X.shape
    dtype = X.dtype.type
    zero, threshold, least = dtype(0), dtype(l1), dtype(0.0 if nonnegative else -np.inf)
    u = np.empty(n, X.dtype)
    for _ in range(sweeps):
        for r in range(k):
            # Loops along contiguous memory are vectorized.
            for i in range(n):
                u[i] = H[r, i]
            for q in range(k):
                coupling = G[r, q]
                if q != r and coupling != zero:
                    for i in range(n):
                        u[i] -= coupling * X[q, i]
            curvature = G[r, r]
            for i in range(n):
                d = curvature + ridge[i]
                # Not a product with 0: the sign of the result would depend on the instructions that the compiler chooses.
                moved = max(max(u[i] - threshold, zero) + min(u[i] + threshold, zero), least)
                X[r, i] = moved / d if d > zero else zero
            if len(support):
                for i in range(n):
                    X[r, i] *= support[r, i]


@inlined
def on_support(
    x: NDArray[np.float64], h: NDArray[np.float64], G: NDArray[np.float64], ridge: float, l1: float, y: NDArray[np.float64]
) -> bool:
    """Set y to the minimum with the zeros and signs of x, by Cholesky's decomposition. Returns False if it is not unique."""
    k = len(x)
    indices, L = np.empty(k, np.int64), np.zeros((k, k))
    size = 0
    for r in range(k):
        y[r] = 0.0
        if x[r] != 0.0:
            indices[size] = r
            size += 1
    for a in range(size):
        r = indices[a]
        for b in range(a + 1):
            total = G[r, indices[b]]
            for c in range(b):
                total -= L[a, c] * L[b, c]
            if b < a:
                L[a, b] = total / L[b, b]
            else:
                total += ridge
                if total <= 1e-12 * (G[r, r] + ridge):
                    return False
                L[a, a] = np.sqrt(total)
        total = h[r] - (l1 if x[r] > 0.0 else -l1)
        for c in range(a):
            total -= L[a, c] * y[indices[c]]
        y[r] = total / L[a, a]
    for a in range(size - 1, -1, -1):
        total = y[indices[a]]
        for c in range(a + 1, size):
            total -= L[c, a] * y[indices[c]]
        y[indices[a]] = total / L[a, a]
    return True


@inlined
def violation(r: int, y: NDArray[np.float64], h: NDArray[np.float64], G: NDArray[np.float64], l1: float, nonnegative: bool) -> float:
    """Return by how much the zero entry r of y violates its optimality condition, with the sign that it would get; 0 if it does not."""
    u, size = float(h[r]), float(abs(h[r]))
    for q in range(len(y)):
        u -= G[r, q] * y[q]
        size += abs(G[r, q] * y[q])
    limit = l1 + _EDGE * size
    if G[r, r] <= 0.0:
        return 0.0
    if u > limit:
        return u - limit
    return u + limit if u < -limit and not nonnegative else 0.0


@inlined
def is_optimal(
    x: NDArray[np.float64], y: NDArray[np.float64], h: NDArray[np.float64], G: NDArray[np.float64], l1: float, nonnegative: bool
) -> bool:
    """Return whether y, which has the zeros of x, has its signs too, and no zero entry would become nonzero."""
    k = len(x)
    for r in range(k):
        if x[r] != 0.0:
            if y[r] * x[r] < 0.0 and l1 + (1.0 if nonnegative else 0.0) > 0.0:
                return False
        elif violation(r, y, h, G, l1, nonnegative) != 0.0:
            return False
    return True


@inlined
def search_signs(
    x: NDArray[np.float64],
    h: NDArray[np.float64],
    G: NDArray[np.float64],
    ridge: float,
    l1: float,
    nonnegative: bool,
    y: NDArray[np.float64],
) -> bool:
    """Set y to the minimum by an active-set search from x, which is overwritten. Returns False if a support has no unique solution.

    As in the feature-sign search of Lee, Battle, Raina & Ng (2006), the objective decreases with every step: x moves towards
    the minimum of its support and signs until an entry becomes 0, which leaves the support. At the minimum
    the zero entry that violates its condition most joins. Rounding could repeat a support, hence the limit.
    """
    k, signs = len(x), np.sign(x)
    signed = nonnegative or l1 > 0.0
    for _ in range(_STEPS * k):
        if not on_support(signs, h, G, ridge, l1, y):
            return False
        share, leaving = 1.0, -1
        for r in range(k):
            if signed and signs[r] * y[r] < 0.0:
                reached = x[r] / (x[r] - y[r])
                if reached < share:
                    share, leaving = reached, r
        for r in range(k):
            x[r] += share * (y[r] - x[r])
        if leaving >= 0:
            x[leaving] = signs[leaving] = 0.0
            continue
        worst, joining = 0.0, -1
        for r in range(k):
            if signs[r] == 0.0:
                found = violation(r, y, h, G, l1, nonnegative)
                if abs(found) > abs(worst):
                    worst, joining = found, r
        if joining < 0:
            return True
        signs[joining] = np.sign(worst)
    return False


@inlined
def copy(source: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Copy a vector. For an assignment of arrays Numba compiles messages about their shapes, which takes seconds."""
    for r in range(len(out)):
        out[r] = source[r]


@inlined
def solve_columns(
    X: NDArray[np.float64],
    H: NDArray[np.float64],
    G: NDArray[np.float64],
    ridge: NDArray[np.float64],
    l1: float,
    nonnegative: bool,
    tolerance: float,
) -> int:
    """Bring every column of X to its optimum, starting from X. G (n, k, k) holds a Gram matrix per column, or (1, k, k) a common one.

    Coordinate descent finds the support and the signs. Given these, the solution is that of a linear
    system. If that takes long, as with nearly collinear loadings, an active-set search continues. If the solution
    is not unique, coordinate descent goes on until no entry moves by more than ``tolerance`` of
    the largest. Returns the number of columns that did not converge.
    """
    k, n = X.shape
    unconverged = 0
    x, y, h, start = np.empty(k), np.empty(k), np.empty(k), np.empty(k)
    below = 0.0 if nonnegative else 1.0
    for i in range(n):
        gram = G[i if len(G) > 1 else 0]
        copy(X[:, i], x)
        copy(H[:, i], h)
        done = False
        for attempt in range(1, _ROUNDS + 1):
            for _ in range(_SWEEPS):
                moved, largest = 0.0, 0.0
                for r in range(k):
                    u, d = h[r], gram[r, r] + ridge[i]
                    for q in range(k):
                        u -= gram[r, q] * x[q]
                    u += gram[r, r] * x[r]
                    new = (max(u - l1, 0.0) + below * min(u + l1, 0.0)) / d if d > 0.0 else 0.0
                    moved, largest = max(moved, abs(new - x[r])), max(largest, abs(new))
                    x[r] = new
            if on_support(x, h, gram, ridge[i], l1, y) and is_optimal(x, y, h, gram, l1, nonnegative):
                copy(y, x)
                done = True
                break
            if moved <= tolerance * largest:
                done = True
                break
            if attempt == _PATIENCE:
                copy(x, start)
                if search_signs(start, h, gram, ridge[i], l1, nonnegative, y):
                    copy(y, x)
                    done = True
                    break
        copy(x, X[:, i])
        unconverged += 0 if done else 1
    return unconverged


@kernel
def row_optima(
    X: NDArray[np.float64],
    H: NDArray[np.float64],
    G: NDArray[np.float64],
    ridge: NDArray[np.float64],
    l1: float,
    nonnegative: bool,
    tolerance: float,
) -> int:
    """Run :func:`solve_columns` from the solutions without ℓ1 penalty, and from X where these are not unique.

    If the loadings are nearly collinear, coordinate descent from other starting points takes long to find the signs.
    """
    k, n = X.shape
    all_free, x, h = np.ones(k), np.empty(k), np.empty(k)
    for i in range(n):
        copy(H[:, i], h)
        if on_support(all_free, h, G[i if len(G) > 1 else 0], ridge[i], 0.0, x):
            for r in range(k):
                X[r, i] = max(x[r], 0.0) if nonnegative else x[r]
    return solve_columns(X, H, G, ridge, l1, nonnegative, tolerance)
