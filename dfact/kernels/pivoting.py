"""A bound-constrained least-squares problem on a tableau: free and held factors, entries at their bounds, and the step
of the dual active-set method of Goldfarb & Idnani (1983). Letters:
    d  factors w of a row, each with the multiplier y = (h − Gw − Q_E λ)_r
    E  entries that are at a bound of the model, each with the multiplier y = λ_j
    s  sides: 1 where an upper bound holds x (factor or entry), −1 a lower one, 0 none; F the factors with s = 0

At the optimum all x are within their bounds, y = 0 where s = 0, and s·y ≥ 0 elsewhere. The method maintains the conditions
on y and enforces one violated bound after the other. Each raises the dual objective, so the method terminates. With
K = [[G, Q_E], [Q_Eᵀ, 0]], I = F ∪ E and N the held factors, the tableau is

    T_II = −K_II⁻¹,   T_IN = K_II⁻¹ K_IN,   T_NN = K_NN − K_NI K_II⁻¹ K_IN

This module is compiled into the kernel in active_set.py. Numba renews its cache of that kernel when active_set.py changes,
which therefore contains a digest of this file.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import subroutine

_DEPENDENT = 1e-4  # a factor of which the others leave less than this fraction unexplained gets curvature of its own
_PINNED = 1e-6  # a factor or entry is taken as fixed if it can move by less than this fraction of what it could alone


class Tableau(NamedTuple):
    """The state of a row's solution: places 0 to d − 1 belong to the factors, the others to entries (or are empty, with T = 0)."""

    d: int
    T: NDArray[np.float64]
    x: NDArray[np.float64]
    """Factors, and the model at the entries without the part of the confounders."""
    y: NDArray[np.float64]
    side: NDArray[np.int64]
    item: NDArray[np.int64]
    """The item of each entry's place, −1 where the place is empty."""
    alone: NDArray[np.float64]
    """−T_pp if p were the only factor in F. For an entry, −T_pp if all factors were orthogonal and in F."""
    G: NDArray[np.float64]
    h: NDArray[np.float64]
    extra: NDArray[np.float64]
    """The curvature that was added to the diagonal of G (d)."""
    Qt: NDArray[np.float64]
    t: NDArray[np.float64]
    """Working space, like u."""
    u: NDArray[np.float64]


@subroutine
def sweep(state: Tableau, p: int, size: int) -> None:
    """Let place p enter I or leave it: T ← T − t tᵀ/T_pp with t = T_·p, then t ← ±t/T_pp and T_pp ← −1/T_pp."""
    T, t = state.T, state.t
    inverse = 1.0 / T[p, p]
    for j in range(size):
        t[j] = T[p, j]
    t[p] = 0.0
    for i in range(size):
        scaled = t[i] * inverse
        for j in range(size):
            T[i, j] -= scaled * t[j]
    enters = (p < state.d) == (inverse > 0.0)
    signed = inverse if enters else -inverse
    for j in range(size):
        T[p, j] = T[j, p] = signed * t[j]
    T[p, p] = -inverse


@subroutine
def free(state: Tableau, r: int, size: int) -> None:
    """Let factor r enter F. If it depends on F already, it gets some curvature of its own, around its current value."""
    missing = _DEPENDENT / state.alone[r] - state.T[r, r]
    if missing > 0.0:
        state.extra[r] += missing
        state.h[r] += missing * state.x[r]
        state.T[r, r] += missing
    state.side[r], state.y[r] = 0, 0.0
    sweep(state, r, size)


@subroutine
def border(state: Tableau, p: int, size: int) -> None:
    """Set the row and column of entry p, which is not yet in E: T_Ip = −T_IF q_F, T_Np = q_N − T_NF q_F, T_pp = −q_Fᵀ T_Fp."""
    d, T, side, q, free_q = state.d, state.T, state.side, state.Qt[state.item[p]], state.u
    for r in range(d):
        free_q[r] = q[r] if side[r] == 0 else 0.0
    rate = 0.0
    for i in range(size):
        total = 0.0
        for r in range(d):
            total -= T[i, r] * free_q[r]
        if i < d:
            rate += total * free_q[i]
            # Not total + q[i] - free_q[i]: the compiler may add q[i] first, which for large answers exceeds total by all its digits.
            total = total if side[i] == 0 else total + q[i]
        T[i, p] = total
    for i in range(size):
        T[p, i] = T[i, p]
    T[p, p] = -rate


@subroutine
def tabulate(state: Tableau, size: int) -> None:
    """Rebuild the tableau of the current F and E, and compute x and y on it."""
    d, T, side = state.d, state.T, state.side
    for i in range(size):
        for j in range(size):
            T[i, j] = state.G[i, j] if i < d and j < d else 0.0
    for r in range(d):
        T[r, r] += state.extra[r]
    for p in range(size):
        if p < d and side[p] == 0:
            free(state, p, size)
        elif p >= d and side[p] != 0:
            border(state, p, size)
            sweep(state, p, size)
    evaluate(state, size)


@subroutine
def evaluate(state: Tableau, size: int) -> None:
    """Solve on the tableau: with u = h on F and x elsewhere, x_F = −(T u)_F, y_E = −(T u)_E, y_N = h_N − (T u)_N."""
    d, T, x, y, side, h, u = state.d, state.T, state.x, state.y, state.side, state.h, state.u
    for i in range(size):
        u[i] = h[i] if i < d and side[i] == 0 else x[i]
    for i in range(size):
        total = 0.0
        for j in range(size):
            total -= T[i, j] * u[j]
        if i < d and side[i] == 0:
            x[i] = total
        else:
            y[i] = total + h[i] if i < d else total


@subroutine
def start_row(state: Tableau, scale: float, w_max: float) -> None:
    """Start a row without entries: free the factors that lie within their bounds, then every held one whose
    multiplier has the wrong sign. Added curvature is around the starting point.
    """
    d, x, y, side = state.d, state.x, state.y, state.side
    for r in range(d):
        state.alone[r] = 1.0 / max(state.G[r, r], 1e-6 * scale)
        state.h[r] += state.extra[r] * x[r]
        side[r] = -1 if x[r] <= 0.0 else (1 if x[r] >= w_max else 0)
        x[r] = min(max(x[r], 0.0), w_max)
    for p in range(d, len(side)):
        side[p], state.item[p] = 0, -1
    tabulate(state, d)
    wrong = True
    while wrong:
        wrong = False
        for r in range(d):
            if side[r] * y[r] < 0.0:
                free(state, r, d)
                wrong = True
        if wrong:
            evaluate(state, d)


@subroutine
def enforce(state: Tableau, p: int, bound: float, size: int) -> bool:
    """Bring x_p to the bound it violates: y_p moves until x_p has reached it, and each bound whose multiplier becomes 0
    before that is dropped. Returns False if no step reaches the bound.

    As y_p moves by 1, x_p moves by T_pp, x_F and the other y by ±T_·p.
    """
    d, T, x, y, side = state.d, state.T, state.x, state.y, state.side
    above = 1.0 if x[p] > bound else -1.0
    turn = above if p < d else -above
    while True:
        rate = -T[p, p]
        length, dropped = (max(above * (x[p] - bound), 0.0) / rate if rate > _PINNED * state.alone[p] else np.inf), p
        for i in range(size):
            slope = side[i] * turn * T[i, p]
            if slope < 0.0:
                reach = max(side[i] * y[i], 0.0) / -slope
                if reach < length:
                    length, dropped = reach, i
        if length == np.inf:
            return False
        x_p, y_p = x[p] - above * length * rate, y[p] + above * length
        for i in range(size):
            if i < d and side[i] == 0:
                x[i] += length * turn * T[i, p]
            else:
                y[i] += length * turn * T[i, p]
        x[p], y[p] = x_p, y_p
        if dropped == p:
            x[p], side[p] = bound, int(above)
            sweep(state, p, size)
            return True
        if dropped < d:
            free(state, dropped, size)
        else:
            leave(state, dropped, size)


@subroutine
def enter(state: Tableau, j: int, size: int) -> int:
    """Assign an empty place to item j and return it, −1 if there is none."""
    p, q = state.d, state.Qt[j]
    while p < len(state.item) and state.item[p] >= 0:
        p += 1
    if p == len(state.item):
        return -1
    state.item[p], state.side[p] = j, 0
    state.x[p], state.y[p], state.alone[p] = 0.0, 0.0, 0.0
    for r in range(state.d):
        state.x[p] += q[r] * state.x[r]
        state.alone[p] += q[r] * q[r] * state.alone[r]
    border(state, p, size)
    return p


@subroutine
def leave(state: Tableau, p: int, size: int) -> None:
    """Remove entry p from E, if it was in it, and empty its place."""
    if state.side[p] != 0:
        sweep(state, p, size)
    state.item[p], state.side[p] = -1, 0
    for i in range(size):
        state.T[i, p] = 0.0
        state.T[p, i] = 0.0
