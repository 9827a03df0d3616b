"""The row problem of ICQF solved to its optimum: each row with its own mask and its own bound constraints."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

_SWEEPS = 2  # coordinate sweeps between two Newton steps
_ROUNDS = 100
_MULTIPLIER_ROUNDS = 100
_SETTLE = 10
_BARRIER = 1000.0  # weight of a violated bound against an answer's 1: the multipliers settle in a few rounds


@kernel
def box_qp(G: NDArray[np.float64], h: NDArray[np.float64], w: NDArray[np.float64], n_free: int, upper: float, tolerance: float) -> bool:
    """minimise ½ wᵀG w − hᵀw over 0 ≤ w_r ≤ upper, r < n_free, in place; the other w are given.

    A projected Newton step on the coordinates that are not held by a bound, then coordinate sweeps,
    which find the bounds that hold. Newton steps that do not lower the objective when they are
    projected on the box are cut at the first bound instead, so every step lowers it. Returns whether
    no coordinate moved by more than the tolerance in a sweep.
    """
    k = len(w)
    g = h - G @ w
    free, L, step, trial = np.empty(n_free, np.int64), np.empty((n_free, n_free)), np.empty(n_free), np.empty(n_free)
    for _ in range(_ROUNDS):
        count = 0
        for r in range(n_free):
            held = (w[r] <= 0.0 and g[r] <= 0.0) or (w[r] >= upper and g[r] >= 0.0)
            if not held and G[r, r] > 0.0:
                free[count] = r
                count += 1
        newton_step(G, g, free[:count], L, step)
        share, gain = 1.0, 0.0
        for i in range(count):
            x = w[free[i]]
            if step[i] != 0.0:
                share = min(share, (upper - x if step[i] > 0.0 else x) / abs(step[i]))
            trial[i] = min(max(x + step[i], 0.0), upper) - x
        if share < 1.0:
            # The objective falls by gᵀd − ½ dᵀG d along the projected step d.
            for i in range(count):
                curve = 0.0
                for j in range(count):
                    curve += G[free[i], free[j]] * trial[j]
                gain += trial[i] * (g[free[i]] - 0.5 * curve)
            if gain <= 0.0:
                for i in range(count):
                    trial[i] = share * step[i]
        for i in range(count):
            w[free[i]] = min(max(w[free[i]] + trial[i], 0.0), upper)
            for q in range(k):
                g[q] -= trial[i] * G[free[i], q]
        for _ in range(_SWEEPS):
            moved = 0.0
            for r in range(n_free):
                if G[r, r] <= 0.0:
                    continue
                x = min(max(w[r] + g[r] / G[r, r], 0.0), upper)
                change = x - w[r]
                if change != 0.0:
                    w[r] = x
                    moved = max(moved, abs(change))
                    for q in range(k):
                        g[q] -= change * G[r, q]
            if moved <= tolerance:
                return True
    return False


@kernel
def newton_step(
    G: NDArray[np.float64], g: NDArray[np.float64], free: NDArray[np.int64], L: NDArray[np.float64], step: NDArray[np.float64]
) -> None:
    """step ← G_FF⁻¹ g_F by Cholesky, L Lᵀ = G_FF, for the coordinates F = free.

    A pivot that vanishes (collinear loadings) leaves its coordinate where it is: the sweeps move it.
    """
    n = len(free)
    for i in range(n):
        step[i] = g[free[i]]
        for j in range(i + 1):
            total = G[free[i], free[j]]
            for q in range(j):
                total -= L[i, q] * L[j, q]
            if i == j:
                L[i, i] = np.sqrt(total) if total > 1e-12 * G[free[i], free[i]] else np.inf
            else:
                L[i, j] = total / L[j, j]
        for j in range(i):
            step[i] -= L[i, j] * step[j]
        step[i] /= L[i, i]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            step[i] -= L[j, i] * step[j]
        step[i] /= L[i, i]


@kernel
def _add_outer(G: NDArray[np.float64], q: NDArray[np.float64], weight: float) -> None:
    """G += weight · q qᵀ."""
    for r in range(len(q)):
        scaled = weight * q[r]
        for s in range(len(q)):
            G[r, s] += scaled * q[s]


@kernel
def _activate(
    model: NDArray[np.float64],
    dual: NDArray[np.float64],
    lower: float,
    upper: float,
    active: NDArray[np.int8],
    G: NDArray[np.float64],
    Qt: NDArray[np.float64],
) -> tuple[int, float]:
    """Which bounds the augmented Lagrangian feels at the model: 1 the upper, −1 the lower, 0 none.

    Entries that come or go are added to or taken from G. Returns their number, and the largest violation.
    """
    changed, worst = 0, 0.0
    for j in range(len(model)):
        worst = max(worst, model[j] - upper, lower - model[j])
        now = 1 if dual[j] + _BARRIER * (model[j] - upper) > 0.0 else (-1 if dual[j] + _BARRIER * (model[j] - lower) < 0.0 else 0)
        if now != active[j]:
            changed += 1
            if (now == 0) != (active[j] == 0):
                _add_outer(G, Qt[j], _BARRIER if active[j] == 0 else -_BARRIER)
            active[j] = now
    return changed, worst


@kernel
def solve_row(
    G: NDArray[np.float64],
    h: NDArray[np.float64],
    w: NDArray[np.float64],
    Q: NDArray[np.float64],
    Qt: NDArray[np.float64],
    n_free: int,
    w_max: float,
    lower: float,
    upper: float,
    tolerance: float,
) -> bool:
    """minimise ½ wᵀG w − hᵀw over 0 ≤ w ≤ w_max and lower ≤ Qᵀw ≤ upper; G is overwritten.

    Augmented Lagrangian in the bounds: for given multipliers a the set of entries that the barrier
    acts on is guessed from the present model, the box problem with that set is solved, until the
    set stays; then a ← a + ρ(Qᵀw − bound) on it. Q (k, m) comes with its transpose Qt. Returns
    whether the optimum was reached.
    """
    k, m = Q.shape
    done = box_qp(G, h, w, n_free, w_max, tolerance * w_max)
    model, dual, active, hb = np.empty(m), np.zeros(m), np.zeros(m, np.int8), np.empty(k)
    for visit in range(1, _MULTIPLIER_ROUNDS + 1):
        model[:] = 0.0
        for r in range(k):
            if w[r] != 0.0:
                for j in range(m):
                    model[j] += Q[r, j] * w[r]
        if visit % _SETTLE == 0:  # a set that keeps changing: move on, the multipliers settle it
            _multiply(model, dual, lower, upper, active)
        changed, worst = _activate(model, dual, lower, upper, active, G, Qt)
        if changed == 0:
            if worst <= tolerance * (upper - lower):
                return done
            _multiply(model, dual, lower, upper, active)
        hb[:] = h
        for j in range(m):
            if active[j] != 0:
                pull = _BARRIER * (upper if active[j] > 0 else lower) - dual[j]
                for r in range(k):
                    hb[r] += Qt[j, r] * pull
        done = box_qp(G, hb, w, n_free, w_max, tolerance * w_max)
    return False


@kernel
def _multiply(model: NDArray[np.float64], dual: NDArray[np.float64], lower: float, upper: float, active: NDArray[np.int8]) -> None:
    """a ← a + ρ(model − bound) where a bound is active, else 0."""
    for j in range(len(model)):
        if active[j] > 0:
            dual[j] = max(0.0, dual[j] + _BARRIER * (model[j] - upper))
        elif active[j] < 0:
            dual[j] = min(0.0, dual[j] + _BARRIER * (model[j] - lower))
        else:
            dual[j] = 0.0


@kernel
def solve_rows(
    M: NDArray[np.floating],
    X: NDArray[np.floating],
    H: NDArray[np.floating],
    Q: NDArray[np.float64],
    n_free: int,
    penalty: float,
    w_max: float,
    lower: float,
    upper: float,
    tolerance: float,
) -> int:
    """For every row m of M (n, m; NaN = missing), with its x = X[:, i] = [w, c], in place:

        minimise ½‖o∘(m − Qᵀx)‖² + penalty·Σw   over 0 ≤ w ≤ w_max and lower ≤ Qᵀx ≤ upper

    H (n_free, n) = Q·(M with zeros for NaN)ᵀ, Q (k+c, m). The masked Gram matrix is that of all items
    less the missing ones. ``tolerance`` is relative to w_max and to the bounds' width. Returns the
    number of rows that did not come within it.
    """
    k, m = Q.shape
    Qt = np.ascontiguousarray(Q.T)
    gram = Q @ Qt
    unfinished = 0
    h, w = np.zeros(k), np.empty(k)
    for i in range(M.shape[0]):
        G = gram.copy()
        for j in range(m):
            if M[i, j] != M[i, j]:
                _add_outer(G, Qt[j], -1.0)
        for r in range(k):
            w[r] = X[r, i]
        for r in range(n_free):
            h[r] = H[r, i] - penalty
        if not solve_row(G, h, w, Q, Qt, n_free, w_max, lower, upper, tolerance):
            unfinished += 1
        for r in range(n_free):
            X[r, i] = w[r]
    return unfinished
