"""The row problem of ICQF solved to its optimum: each row with its own mask and its own bound constraints."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

_SWEEPS = 5  # coordinate sweeps between two attempts to solve on the free coordinates at once
_ROUNDS = 100
_MULTIPLIER_ROUNDS = 100
_BARRIER = 100.0  # weight of a violated bound against an answer's 1: multipliers settle in some ten rounds


@kernel
def box_qp(G: NDArray[np.float64], h: NDArray[np.float64], w: NDArray[np.float64], n_free: int, upper: float, tolerance: float) -> bool:
    """minimise ½ wᵀG w − hᵀw over 0 ≤ w_r ≤ upper, r < n_free, in place; the other w are given.

    Coordinate sweeps find which bounds are active; a linear solve on the free coordinates, cut at
    the first bound it meets, then ends what sweeps alone would approach slowly. Every step lowers
    the objective. Returns whether no coordinate moved by more than the tolerance in a sweep.
    """
    k = len(w)
    g = h - G @ w
    free = np.empty(n_free, np.int64)
    for _ in range(_ROUNDS):
        for _ in range(_SWEEPS):
            moved = 0.0
            for r in range(n_free):
                if G[r, r] <= 0.0:
                    continue
                x = min(max(w[r] + g[r] / G[r, r], 0.0), upper)
                step = x - w[r]
                if step != 0.0:
                    w[r] = x
                    moved = max(moved, abs(step))
                    for q in range(k):
                        g[q] -= step * G[q, r]
            if moved <= tolerance:
                return True
        count = 0
        for r in range(n_free):
            if 0.0 < w[r] < upper and G[r, r] > 0.0:
                free[count] = r
                count += 1
        if count == 0:
            continue
        A, b = np.empty((count, count)), np.empty(count)
        for i in range(count):
            b[i] = g[free[i]]
            for j in range(count):
                A[i, j] = G[free[i], free[j]]
            A[i, i] *= 1.0 + 1e-12  # collinear loadings leave the direction to the sweeps
        step_all = np.linalg.solve(A, b)
        share = 1.0
        for i in range(count):
            room = upper - w[free[i]] if step_all[i] > 0.0 else w[free[i]]
            if abs(step_all[i]) > room:
                share = min(share, room / abs(step_all[i]))
        for i in range(count):
            w[free[i]] = min(max(w[free[i]] + share * step_all[i], 0.0), upper)
        g = h - G @ w
    return False


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
    less the missing ones. Rows whose model leaves the bounds get multipliers on the entries that do
    (augmented Lagrangian). Returns the number of rows that did not come within the tolerances.
    """
    k, m = Q.shape
    G = Q @ Q.T
    feasible = tolerance * (upper - lower)
    unfinished = 0
    h, w, model = np.zeros(k), np.empty(k), np.empty(m)
    for i in range(M.shape[0]):
        Gi = G.copy()
        for j in range(m):
            if M[i, j] != M[i, j]:
                for r in range(k):
                    for q in range(k):
                        Gi[r, q] -= Q[r, j] * Q[q, j]
        for r in range(k):
            w[r] = X[r, i]
        for r in range(n_free):
            h[r] = H[r, i] - penalty
        done = box_qp(Gi, h, w, n_free, w_max, tolerance * w_max)
        dual = np.zeros(0)
        for _ in range(_MULTIPLIER_ROUNDS):
            model[:] = 0.0
            for r in range(k):
                for j in range(m):
                    model[j] += Q[r, j] * w[r]
            worst = 0.0
            for j in range(m):
                worst = max(worst, model[j] - upper, lower - model[j])
            if len(dual) == 0:
                if worst <= feasible:
                    break
                dual = np.zeros(m)
            # a ← max(0, a + ρ(r − upper)) above, and the mirror image below; it holds 0 elsewhere.
            change = 0.0
            for j in range(m):
                above = dual[j] + _BARRIER * (model[j] - upper)
                below = dual[j] + _BARRIER * (model[j] - lower)
                new = above if above > 0.0 else (below if below < 0.0 else 0.0)
                change = max(change, abs(new - dual[j]))
                dual[j] = new
            if worst <= feasible and change <= feasible * _BARRIER:
                break
            Gb, hb = Gi.copy(), h.copy()
            for j in range(m):
                if dual[j] != 0.0:
                    edge = upper if dual[j] > 0.0 else lower
                    for r in range(k):
                        hb[r] += Q[r, j] * (_BARRIER * edge - dual[j])
                        for q in range(k):
                            Gb[r, q] += _BARRIER * Q[r, j] * Q[q, j]
            done = box_qp(Gb, hb, w, n_free, w_max, tolerance * w_max)
        else:
            done = False
        if not done:
            unfinished += 1
        for r in range(n_free):
            X[r, i] = w[r]
    return unfinished
