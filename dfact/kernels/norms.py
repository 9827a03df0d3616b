"""ICQF's row and item problems with a norm as penalty: a box-constrained quadratic program of every column, plus its ℓp norm to a power.

For every column x of X (k, n), in place:

    minimize  ½ xᵀGx − hᵀx + s·φ(x)   over 0 ≤ x_r ≤ upper, r < n_free,    φ(x) = (Σ_{r < n_free} x_r^p)^(q/p) / q

G (k, k) is the Gram matrix that all columns share, H (n_free, n) holds the linear terms h, and strength (n) the weights s. φ is convex
for p, q ≥ 1. p = 2, q = 1 is the group lasso, whose penalty of a matrix is its L2,1 norm. Components from n_free on are fixed.

Where x is not 0, φ is smooth, and cyclic coordinate descent reaches the optimum. At 0 it has a kink if q = 1 < p. There 0 is the optimum
if and only if the dual norm (Σ max(h_r, 0)^p*)^(1/p*), 1/p + 1/p* = 1, is at most s. Otherwise a step leaves 0 along which the
objective falls, and descent does not return.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, subroutine

Floats = NDArray[np.floating]
_ROOT_STEPS, _ROOT_PRECISION = 60, 1e-11  # of a coordinate's optimum, by Newton steps within a bracket
_CANCELLED = 1e-10  # of a sum of powers, below which the rest of it is summed again
_ROUNDS, _SWEEPS = 300, 2000  # updates of a row's multipliers, and sweeps of all of them together
_STIFFNESS = 10.0  # of a row's violated bounds, relative to its curvature


@subroutine
def power(x: float, exponent: float) -> float:
    """Return x to a power, the common ones without a logarithm."""
    if exponent == 1.0:
        return x
    if exponent == 2.0:
        return x * x
    if exponent == 0.0:
        return 1.0
    if exponent == -0.5:
        root: float = np.sqrt(x)
        return 1.0 / root
    power: float = x**exponent
    return power


@subroutine
def solve_coordinate(curvature: float, g: float, s: float, rest: float, p: float, q: float, start: float, upper: float) -> float:
    """Return the x from 0 to upper that minimizes ½ curvature·x² − g·x + s/q·(rest + x^p)^(q/p)."""
    if g <= 0.0 or curvature <= 0.0:
        return 0.0
    if rest <= 0.0 and q == 1.0:
        return min(max((g - s) / curvature, 0.0), upper)
    if p == 1.0 and s * power(rest, q - 1.0) >= g:
        return 0.0
    low, high = 0.0, min(upper, g / curvature)
    x = start if 0.0 < start < high else high
    for _ in range(_ROOT_STEPS):
        powered = power(x, p)
        total = rest + powered
        pull = s * power(total, q / p - 1.0) * powered / x
        slope = curvature * x - g + pull
        if slope > 0.0:
            high = x
        else:
            low = x
        following = x - slope / (curvature + pull * ((q - p) * powered / total + p - 1.0) / x)
        if not low < following < high:
            following = 0.5 * (low + high)
        step = abs(following - x)
        x = following
        if step <= _ROOT_PRECISION * high:
            break
    return x


@subroutine
def linear_at_zero(X: Floats, H: Floats, G: Floats, n_free: int, i: int, r: int) -> float:
    """Return h_r of column i without the part that its fixed components explain."""
    h = float(H[r, i])
    for c in range(n_free, len(X)):
        h -= G[r, c] * X[c, i]
    return h


@subroutine
def dual_norm(X: Floats, H: Floats, G: Floats, n_free: int, i: int, p: float) -> float:
    """Return (Σ max(h_r, 0)^p*)^(1/p*) of column i at 0."""
    largest, dual, total = 0.0, p / (p - 1.0), 0.0
    for r in range(n_free):
        largest = max(largest, linear_at_zero(X, H, G, n_free, i, r))
    for r in range(n_free):
        total += (max(linear_at_zero(X, H, G, n_free, i, r), 0.0) / largest) ** dual if largest > 0.0 else 0.0
    norm: float = largest * total ** (1.0 / dual)
    return norm


@subroutine
def leave_zero(X: Floats, H: Floats, G: Floats, n_free: int, i: int, s: float, upper: float, p: float) -> None:
    """Move column i from 0 to the minimum along max(h, 0)^(p* − 1), the direction in which h exceeds the norm most."""
    largest, dual, total = 0.0, p / (p - 1.0), 0.0
    for r in range(n_free):
        largest = max(largest, linear_at_zero(X, H, G, n_free, i, r))
    for r in range(n_free):
        share = max(linear_at_zero(X, H, G, n_free, i, r), 0.0) / largest
        total += share**dual
        X[r, i] = share ** (dual - 1.0)
    curvature = 0.0
    for r in range(n_free):
        for t in range(n_free):
            curvature += G[r, t] * X[r, i] * X[t, i]
    step = min((largest * total - s * total ** (1.0 / p)) / curvature, upper) if curvature > 0.0 else 0.0
    for r in range(n_free):
        X[r, i] *= step


@subroutine
def sum_powers(X: Floats, n_free: int, i: int, skipped: int, p: float) -> float:
    """Return Σ x_r^p of column i without a component."""
    total = 0.0
    for r in range(n_free):
        total += power(float(X[r, i]), p) if r != skipped else 0.0
    return total


@subroutine
def descend_column(
    X: Floats, H: Floats, G: Floats, n_free: int, i: int, s: float, upper: float, p: float, q: float, sweeps: int, tolerance: float
) -> int:
    """Run :func:`norm_descent` on column i. Returns the number of sweeps."""
    kink = q == 1.0 and p > 1.0 and s > 0.0
    for sweep in range(sweeps):
        total = sum_powers(X, n_free, i, -1, p)
        if kink and (sweep == 0 or total <= 0.0):
            if dual_norm(X, H, G, n_free, i, p) <= s:
                for r in range(n_free):
                    X[r, i] = 0.0
                return sweep + 1
            if total <= 0.0:
                leave_zero(X, H, G, n_free, i, s, upper, p)
                total = sum_powers(X, n_free, i, -1, p)
        moved = 0.0
        for r in range(n_free):
            old = float(X[r, i])
            g = float(H[r, i]) + G[r, r] * old
            for t in range(len(X)):
                g -= G[r, t] * X[t, i]
            before = power(old, p)
            rest = max(total - before, 0.0)
            if rest <= _CANCELLED * total:
                rest = sum_powers(X, n_free, i, r, p)
            X[r, i] = solve_coordinate(G[r, r], g, s, rest, p, q, old, upper)
            new = float(X[r, i])
            total = rest + power(new, p)
            moved = max(moved, abs(new - old))
        if moved <= tolerance:
            return sweep + 1
    return sweeps


@kernel
def norm_descent(
    X: Floats, H: Floats, G: Floats, n_free: int, strength: Floats, upper: Floats, p: float, q: float, sweeps: int, tolerance: float
) -> None:
    """Run cyclic coordinate descent from X: at most ``sweeps`` sweeps of a column, or until one moves none of its entries by more than
    ``tolerance``.
    """
    for i in range(X.shape[1]):
        descend_column(X, H, G, n_free, i, float(strength[i]), float(upper[i]), p, q, sweeps, tolerance)


@subroutine
def constrain(
    x: Floats, h: Floats, A: Floats, h_free: Floats, A_free: Floats, Qt: Floats, y: Floats, lower: Floats, upper: Floats, mu: float, d: int
) -> bool:
    """Set A and h to the quadratic program of the augmented Lagrangian for the bounds that count at x. Returns whether these have changed.

    The bounds lower ≤ Qᵀx ≤ upper have multipliers y (2, m): y[0] of lower, y[1] of upper, and y[2], y[3] mark those that count.
    """
    changed, k = False, len(x)
    for r in range(d):
        h[r, 0] = h_free[r, 0]
        for t in range(k):
            A[r, t] = A_free[r, t]
    for j in range(len(Qt)):
        value = 0.0
        for r in range(k):
            value += Qt[j, r] * x[r, 0]
        for side in range(2):
            sign = 1.0 if side == 1 else -1.0
            bound = upper[j] if side == 1 else lower[j]
            active = 1.0 if y[side, j] + mu * sign * (value - bound) > 0.0 else 0.0
            changed = changed or active != y[2 + side, j]
            y[2 + side, j] = active
            if active == 1.0:
                for r in range(d):
                    h[r, 0] += Qt[j, r] * (mu * bound - sign * y[side, j])
                    for t in range(k):
                        A[r, t] += mu * Qt[j, r] * Qt[j, t]
    return changed


@subroutine
def raise_multipliers(x: Floats, Qt: Floats, y: Floats, lower: Floats, upper: Floats, slack: Floats, mu: float) -> bool:
    """Update the multipliers. Returns whether all bounds hold to the slack, as does the complementarity of their multipliers."""
    met = True
    for j in range(len(Qt)):
        value = 0.0
        for r in range(len(x)):
            value += Qt[j, r] * x[r, 0]
        for side in range(2):
            excess = value - upper[j] if side == 1 else lower[j] - value
            met = met and excess <= 0.5 * slack[j] and (y[side, j] <= 0.0 or excess >= -0.5 * slack[j])
            y[side, j] = max(y[side, j] + mu * excess, 0.0)
    return met


@kernel
def solve_norm_rows(
    M: Floats,
    X: Floats,
    H: Floats,
    Q: Floats,
    n_free: int,
    strength: float,
    p: float,
    q: float,
    w_max: float,
    lower: Floats,
    upper: Floats,
    tolerance: float,
) -> int:
    """Solve, for every row m of M (n, m; NaN = missing), with its x = X[:, i] = [w, c], in place:

        minimize ½‖o∘(m − Qᵀx)‖² + strength·φ(w)   over 0 ≤ w ≤ w_max and lower ≤ Qᵀx ≤ upper

    H (n_free, n) = Q·(M with zeros for NaN)ᵀ, Q (k+c, m), lower and upper (m). The bounds of the model are met by the method of
    multipliers, in which the curvature of a violated bound is a multiple of the row's own. ``tolerance`` is relative to w_max and to
    the bounds' width. Returns the number of rows that did not reach it.
    """
    k, m = Q.shape
    Qt, gram, slack = np.ascontiguousarray(Q.T), np.dot(Q, Q.T), tolerance * (upper - lower)
    edge = 0.01 * tolerance * (w_max if w_max < np.inf else 1.0)
    x, h, h_free, y = np.zeros((k, 1)), np.zeros((n_free, 1)), np.zeros((n_free, 1)), np.zeros((4, m))
    A, A_free = np.zeros((k, k)), np.zeros((k, k))
    unconverged = 0
    for i in range(len(M)):
        missing = 0
        for j in range(m):
            missing += 1 if M[i, j] != M[i, j] else 0
        build = 2 * missing > m
        for r in range(k):
            for t in range(k):
                A_free[r, t] = 0.0 if build else gram[r, t]
        for j in range(m):
            if missing > 0 and (M[i, j] == M[i, j]) == build:
                for r in range(k):
                    for t in range(k):
                        A_free[r, t] += Qt[j, r] * Qt[j, t] if build else -Qt[j, r] * Qt[j, t]
        diagonal = 0.0
        for r in range(k):
            x[r, 0] = X[r, i]
            diagonal = max(diagonal, A_free[r, r] if r < n_free else 0.0)
        for r in range(n_free):
            h_free[r, 0] = H[r, i]
        for side in range(4):
            for j in range(m):
                y[side, j] = 0.0
        # Without the bounds first: most rows keep them.
        left, done = _SWEEPS, False
        left -= descend_column(x, h_free, A_free, n_free, 0, strength, w_max, p, q, left, edge)
        largest = 0.0
        for j in range(m):
            norm = 0.0
            for r in range(n_free):
                norm += Qt[j, r] * Qt[j, r]
            largest = max(largest, norm)
        mu = _STIFFNESS * max(diagonal, 1e-300) / max(largest, 1e-300)
        for _ in range(_ROUNDS):
            if raise_multipliers(x, Qt, y, lower, upper, slack, mu):
                done = left > 0
                break
            constrain(x, h, A, h_free, A_free, Qt, y, lower, upper, mu, n_free)
            while left > 0:
                left -= descend_column(x, h, A, n_free, 0, strength, w_max, p, q, left, edge)
                if not constrain(x, h, A, h_free, A_free, Qt, y, lower, upper, mu, n_free):
                    break
            if left <= 0:
                break
        unconverged += 0 if done else 1
        for r in range(n_free):
            X[r, i] = x[r, 0]
    return unconverged
