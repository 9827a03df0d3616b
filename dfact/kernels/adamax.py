"""Adamax on subproblems that are solved, not only differentiated: algorithm 4's move of a mode's factors towards its sample's solution."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

BETA_1, BETA_2 = 0.9, 0.9999

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
    """Move every row r of A (R, I) towards its solution on a sample, the others as they are by then, in place.

    With the sample's share τ = shares[r] of the whole and the moments M (R, I), S (R) and Z (R, I):

        ā = soft(U_r − Σ_{q≠r} G_rq a_q, τ l1) / (G_rr + τ ridge),   g = a − ā,
        M ← β₁M + (1−β₁)g,   S ← max(β₂S, ‖g‖),   a ← a − min(1, step‖a‖/S) M / (1−β₁ᵗ),
        Z ← β₁Z + (1−β₁)[ā = 0],   a ← 0 where most ā of late are: Z > ½(1−β₁ᵗ).

    A row that is 0 stays so; one with share 0, of which the sample shows nothing, stays as it is.
    """
    k, n = A.shape
    below = 0.0 if nonnegative else 1.0
    target = np.empty(n)
    for r in range(k):
        length = np.sqrt((A[r] * A[r]).sum())
        if length == 0.0 or not shares[r] > 0.0:
            continue
        for i in range(n):
            target[i] = U[r, i]
        for q in range(k):
            if q != r:
                for i in range(n):
                    target[i] -= G[r, q] * A[q, i]
        threshold, distance = shares[r] * l1, 0.0
        for i in range(n):
            moved = max(target[i] - threshold, 0.0) + below * min(target[i] + threshold, 0.0)
            target[i] = moved / (G[r, r] + shares[r] * ridge[i])
            g = A[r, i] - target[i]
            M[r, i] = BETA_1 * M[r, i] + (1.0 - BETA_1) * g
            Z[r, i] = BETA_1 * Z[r, i] + (1.0 - BETA_1) * (1.0 if target[i] == 0.0 else 0.0)
            distance += g * g
        S[r] = max(BETA_2 * S[r], np.sqrt(distance))
        if S[r] == 0.0:
            continue
        seen = 1.0 - BETA_1**t
        rate = min(1.0, step * length / S[r]) / seen
        for i in range(n):
            moved = A[r, i] - rate * M[r, i]
            A[r, i] = (moved if below > 0.0 else max(moved, 0.0)) if Z[r, i] <= 0.5 * seen else 0.0
