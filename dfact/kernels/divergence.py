"""Rows of a non-negative factorization at the generalized Kullback-Leibler divergence, by coordinate descent with Newton steps.

For every row x of data with non-negative weights h of the columns, in place:

    minimize  Σ_j (Hᵀw)_j − x_j log (Hᵀw)_j + l1·Σw + l2/2·‖w‖²   over w ≥ 0, with the sum over the observed entries j

The first sum is Σ_r w_r Σ_j h_rj, so that the loops run over the positive entries alone, as in Hsieh & Dhillon (2011).
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel, subroutine

Floats = NDArray[np.floating]
Integers = NDArray[np.integer]
_NEWTON = 0.683802  # decrement up to which a complete Newton step decreases a self-concordant function (Hien & Gillis 2021)
_FLOOR = 1e-9  # lowest model of a positive entry, relative to it


@subroutine
def sweep_row(w: Floats, x: Floats, P: Floats, R: Floats, count: int, linear: Floats, l1: float, l2: float, barrier: float) -> float:
    """Take a Newton step in each factor of a row w (k), given its positive entries x and their model R = Pᵀw (count).

    ``linear`` (k) is Σ_j h_rj over the observed entries j, and ``barrier`` the largest 1/√x. Returns the sum of the factors' changes.

    With gradient g and curvature c the divergence is self-concordant, with the decrement barrier·|g|/√c: a step to larger factors never
    overshoots, and one to smaller factors is complete up to a decrement of 0.68. Beyond it is damped, or the step of Lee & Seung (2001)
    if that is longer.
    """
    number, moved = x.dtype.type, 0.0
    zero, floor = number(0), number(_FLOOR)
    for r in range(len(w)):
        a, b = zero, zero
        for t in range(count):
            q = P[r, t] / R[t]
            weighted = x[t] * q
            a += weighted
            b += weighted * q
        old = float(w[r])
        demand, supply, curvature = float(linear[r]) + l1 + l2 * old, float(a), float(b) + l2
        if not curvature > 0.0:
            new = 0.0
        else:
            gradient = demand - supply
            step, decrement = gradient / curvature, barrier * gradient / np.sqrt(curvature)
            new = old - step
            if decrement > _NEWTON:
                new = min(old - step / (1 + decrement), old * supply / demand)
            new = max(new, 0.0)
        change = number(number(new) - w[r])
        if change != zero:
            w[r] = number(new)
            moved += abs(float(change))
            for t in range(count):
                R[t] = max(R[t] + change * P[r, t], floor * x[t])
    return moved


@subroutine
def model_row(w: Floats, x: Floats, P: Floats, R: Floats, count: int) -> None:
    """Set R = Pᵀw (count), at least a tiny share of x."""
    number = x.dtype.type
    zero, floor = number(0), number(_FLOOR)
    for t in range(count):
        R[t] = zero
    for r in range(len(w)):
        for t in range(count):
            R[t] += w[r] * P[r, t]
    for t in range(count):
        R[t] = max(R[t], floor * x[t])


@inlined
def descend_row(
    w: Floats, x: Floats, P: Floats, R: Floats, count: int, linear: Floats, l1: float, l2: float, sweeps: int, tolerance: float
) -> float:
    """Sweep over the factors of a row until their sum moves by less than ``tolerance``, relatively. Returns Σ x log (x/R) − x + Pᵀw."""
    least = np.inf
    for t in range(count):
        least = min(least, float(x[t]))
    model_row(w, x, P, R, count)
    for _ in range(sweeps):
        moved, size = sweep_row(w, x, P, R, count, linear, l1, l2, 1 / np.sqrt(least)), 0.0
        for r in range(len(w)):
            size += float(w[r])
        if moved <= tolerance * size:
            break
    model_row(w, x, P, R, count)
    divergence = 0.0
    for t in range(count):
        divergence += x[t] * np.log(x[t] / R[t]) - x[t]
    for r in range(len(w)):
        divergence += float(w[r]) * float(linear[r])
    return divergence


@kernel
def descend_dense(
    M: Floats,
    W: Floats,
    H: Floats,
    totals: NDArray[np.float64],
    l1: float,
    l2: float,
    sweeps: int,
    tolerance: float,
    ratio: Floats,
) -> NDArray[np.float64]:
    """Move the factors W (n, k) of the rows of M (n, m), NaN where missing, given the weights H (k, m) with the ``totals`` Σ_j h_rj (k).

    Sets ratio (n, m) to M/WH, 0 for missing entries. Returns the divergence of each row (n,).
    """
    n, m = M.shape
    k = len(H)
    divergences, complete = np.empty(n), False
    x, R, P = np.empty(m, W.dtype), np.empty(m, W.dtype), np.empty((k, m), W.dtype)
    positions, linear = np.empty(m, np.int64), np.empty(k)
    for i in range(n):
        count, n_missing = 0, 0
        for j in range(m):
            positions[count] = j
            count += M[i, j] > 0
            n_missing += M[i, j] != M[i, j]
        if count < m or not complete:
            for r in range(k):
                for t in range(count):
                    P[r, t] = H[r, positions[t]]
        complete = count == m
        for t in range(count):
            x[t] = M[i, positions[t]]
        for r in range(k):
            linear[r] = totals[r]
        if n_missing > 0:
            for r in range(k):
                for j in range(m):
                    linear[r] -= H[r, j] if M[i, j] != M[i, j] else 0.0
                linear[r] = max(linear[r], 0.0)
        divergences[i] = descend_row(W[i], x, P, R, count, linear, l1, l2, sweeps, tolerance)
        for j in range(m):
            ratio[i, j] = 0.0
        for t in range(count):
            ratio[i, positions[t]] = x[t] / R[t]
    return divergences


@kernel
def descend_stored(
    data: Floats,
    indices: Integers,
    indptr: Integers,
    W: Floats,
    H: Floats,
    totals: NDArray[np.float64],
    l1: float,
    l2: float,
    sweeps: int,
    tolerance: float,
    ratio: Floats,
) -> NDArray[np.float64]:
    """Move the factors W (n, k) of the rows of a sparse matrix as :func:`descend_dense` does; entries that it does not store are 0.

    Sets ratio, of the length of data, to the entries of M/WH. Returns the divergence of each row (n,).
    """
    n, k, longest = len(W), len(H), 0
    for i in range(n):
        longest = max(longest, indptr[i + 1] - indptr[i])
    x, R, P = np.empty(longest, W.dtype), np.empty(longest, W.dtype), np.empty((k, longest), W.dtype)
    positions, divergences = np.empty(longest, np.int64), np.empty(n)
    for i in range(n):
        count = 0
        for e in range(indptr[i], indptr[i + 1]):
            ratio[e] = 0.0
            if data[e] > 0:
                positions[count], x[count] = e, data[e]
                count += 1
        for r in range(k):
            for t in range(count):
                P[r, t] = H[r, indices[positions[t]]]
        divergences[i] = descend_row(W[i], x, P, R, count, totals, l1, l2, sweeps, tolerance)
        for t in range(count):
            ratio[positions[t]] = x[t] / R[t]
    return divergences
