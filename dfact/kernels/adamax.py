"""Adamax on subproblems that are solved, not only differentiated: algorithm 4 moves a mode's factors towards their sample's solution."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

BETA_1, BETA_2 = 0.9, 0.9999
# Lower bound of an entry's curvature, relative to the mean over its component's entries. With fewer observations than that, a
# sample's solution is mostly noise.
_LEAST = 0.25

Doubles = NDArray[np.float64]


@kernel
def adamax_updates(
    A: Doubles,
    U: Doubles,
    G: Doubles,
    ridge: Doubles,
    l1: float,
    shares: Doubles,
    nonnegative: bool,
    step: float,
    t: int,
    M: Doubles,
    S: Doubles,
    Z: Doubles,
) -> None:
    """Move every row r of A (R, I) in place towards its solution on a sample, given the current values of the others.

    U (R, I) are the sample's linear terms. G (R(R+1)/2, I) is the lower triangle, row by row, of the Gram matrix of each
    column i; if it is (R(R+1)/2, 1), all columns share one. With the sample's share τ = shares[r] of all data, the curvature
    d_i = G_rr,i, at least a quarter of its mean over the columns, and the moments M (R, I), S (R) and Z (R, I):

        v_i = U_r,i − Σ_q G_rq,i a_q,i,   ā = soft(v + d a, τ l1) / (d + τ ridge),   g = a − ā,
        M ← β₁M + (1−β₁)g,   S ← max(β₂S, ‖g‖),   a ← a − min(1, step‖a‖/S) M / (1−β₁ᵗ),
        Z ← β₁Z + (1−β₁)[ā = 0],   a ← 0 where most recent ā are 0: Z > ½(1−β₁ᵗ).

    A row of zeros stays so. A row with share 0, for which the sample has no data, stays as it is.
    """
    k, n = A.shape
    common = G.shape[1] == 1
    below = 0.0 if nonnegative else 1.0
    target = np.empty(n)
    for r in range(k):
        length = np.sqrt((A[r] * A[r]).sum())
        if length == 0.0 or not shares[r] > 0.0:
            continue
        for i in range(n):
            target[i] = U[r, i]
        for q in range(k):
            low, high = min(q, r), max(q, r)
            gram = G[high * (high + 1) // 2 + low]
            if common:
                for i in range(n):
                    target[i] -= gram[0] * A[q, i]
            else:
                for i in range(n):
                    target[i] -= gram[i] * A[q, i]
        curvatures = G[r * (r + 1) // 2 + r]
        least = _LEAST * curvatures.mean()
        threshold = shares[r] * l1
        for i in range(n):
            d = max(curvatures[0 if common else i], least)
            v = target[i] + d * A[r, i]
            moved = max(v - threshold, 0.0) + below * min(v + threshold, 0.0)
            target[i] = moved / (d + shares[r] * ridge[i])
        for i in range(n):
            M[r, i] = BETA_1 * M[r, i] + (1.0 - BETA_1) * (A[r, i] - target[i])
            Z[r, i] = BETA_1 * Z[r, i] + (1.0 - BETA_1) * (1.0 if target[i] == 0.0 else 0.0)
        distance = 0.0
        for i in range(n):
            distance += (A[r, i] - target[i]) ** 2
        S[r] = max(BETA_2 * S[r], np.sqrt(distance))
        if S[r] == 0.0:
            continue
        seen = 1.0 - BETA_1**t
        rate = min(1.0, step * length / S[r]) / seen
        for i in range(n):
            moved = A[r, i] - rate * M[r, i]
            A[r, i] = (moved if below > 0.0 else max(moved, 0.0)) if Z[r, i] <= 0.5 * seen else 0.0
