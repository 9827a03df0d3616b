"""The row problem of ICQF solved to its optimum: each row with its own mask and its own bound constraints.

The bounds of a row's few factors are on a tableau (:mod:`dfact.kernels.pivoting`). Among the bounds of its many entries,
only those that an iterate has violated are checked, and only those that are active are on the tableau.

:func:`solve_rows` is called from Python, :func:`solve_block` loops over the rows, :func:`solve_row` over the violated bounds of
one row, and :func:`dfact.kernels.pivoting.enforce` over the steps that enforce one of them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, subroutine
from dfact.kernels.pivoting import Tableau, enforce, enter, leave, start_row, tabulate

TABLEAU_DIGEST = "3fa39f0c6ee5"  # of pivoting.py: a change there changes this file, and Numba then renews the kernels it has cached
_ROUNDS = 200
_EDGE = 0.01  # tolerance of the factors' bounds, relative to that of the model's bounds
_STEPS = 50  # maximum number of bounds enforced, per factor
_REBUILD_STEPS = 24  # bounds enforced on one tableau before it is rebuilt: its rounding errors grow with every sweep
_WATCHED, _INFEASIBLE = 1, 2


class Limits(NamedTuple):
    """The bounds of the factors, [0, w_max], and of the model of each item (m), with their tolerances."""

    w_max: float
    edge: float
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    slack: NDArray[np.float64]
    low: NDArray[np.floating]
    """lower − slack (m) in the rows' precision; high is upper + slack."""
    high: NDArray[np.floating]


class Space(NamedTuple):
    """Working space for one row."""

    w: NDArray[np.float64]
    """The row's factors and confounders, followed by a zero (k+1)."""
    Q: NDArray[np.floating]
    """The loadings in the rows' precision, followed by a row of zeros (k+1, m)."""
    model: NDArray[np.floating]
    used: NDArray[np.int64]
    watched: NDArray[np.int64]
    """The items whose bounds are checked (m); their number is passed as ``n_watched``."""
    seen: NDArray[np.int64]
    P: NDArray[np.float64]


@subroutine
def drop_infeasible(state: Tableau, p: int, size: int, seen: NDArray[np.int64]) -> int:
    """Drop one bound of an infeasible row, in which no step moves p to its bound: the bound of entry p or, if p is a factor, of
    the entry that keeps it from its bound. The multiplier stays as it is, so the conditions on y still hold.

    Returns the entry's place, −1 if there is none.
    """
    dropped = p
    if p < state.d:
        dropped = -1
        for i in range(state.d, size):
            if state.item[i] >= 0 and (dropped < 0 or abs(state.T[i, p]) > abs(state.T[dropped, p])):
                dropped = i
    if dropped >= 0:
        seen[state.item[dropped]] = _INFEASIBLE
        for r in range(state.d):
            state.h[r] -= state.y[dropped] * state.Qt[state.item[dropped], r]
        leave(state, dropped, size)
    return dropped


@subroutine
def worst_factor(state: Tableau, limits: Limits) -> int:
    """Return the factor furthest outside [0, w_max], −1 if none is."""
    worst, most = -1, limits.edge
    for r in range(state.d):
        excess = max(-state.x[r], state.x[r] - limits.w_max)
        if excess > most:
            worst, most = r, excess
    return worst


@subroutine
def worst_entry(state: Tableau, space: Space, n_watched: int, limits: Limits) -> tuple[int, float]:
    """Return the watched item furthest outside its bounds, −1 if none is by more than half the slack, and its modelled value."""
    Qt, w, watched, seen = state.Qt, space.w, space.watched, space.seen
    worst, most, value = -1, 0.5, 0.0
    for i in range(n_watched):
        j, model = watched[i], 0.0
        for r in range(Qt.shape[1]):
            model += Qt[j, r] * w[r]
        excess = max(limits.lower[j] - model, model - limits.upper[j]) / limits.slack[j]
        if excess > most and seen[j] != _INFEASIBLE:
            worst, most, value = j, excess, model
    return worst, value


@subroutine
def compute_model(space: Space) -> None:
    """Compute the model Qᵀw, four nonzero factors at a time."""
    Q, w, used, model = space.Q, space.w, space.used, space.model
    number, k, count = model.dtype.type, len(w) - 1, 0
    for r in range(k):
        used[count] = r
        count += 1 if w[r] != 0.0 else 0
    for r in range(count, count + 4):
        used[r] = k
    for j in range(len(model)):
        model[j] = number(0)
    for first in range(0, count, 4):
        a, b, c, d = used[first], used[first + 1], used[first + 2], used[first + 3]
        p, q, t, u = number(w[a]), number(w[b]), number(w[c]), number(w[d])
        for j in range(len(model)):
            model[j] += p * Q[a, j] + q * Q[b, j] + t * Q[c, j] + u * Q[d, j]


@subroutine
def watch_violated(space: Space, limits: Limits, n_watched: int) -> int:
    """Add the items whose model is outside the bounds to the watched ones. Returns the new number of watched items."""
    model, seen, number = space.model, space.seen, space.model.dtype.type
    low, high, zero, excess = limits.low, limits.high, number(0), number(0)
    for j in range(len(model)):
        excess += max(model[j] - high[j], zero) + max(low[j] - model[j], zero)
    if excess > zero:
        for j in range(len(model)):
            if (model[j] < low[j] or model[j] > high[j]) and seen[j] == 0:
                space.watched[n_watched], seen[j] = j, _WATCHED
                n_watched += 1
    return n_watched


@subroutine
def masked_gram(
    answers: NDArray[np.floating],
    gram: NDArray[np.float64],
    ridge: float,
    d: int,
    Q: NDArray[np.float64],
    space: Space,
    G: NDArray[np.float64],
) -> None:
    """Set G = Σ q_j q_jᵀ over the answered items j: the sum of all minus the missing ones, or that of the answered ones if fewer.

    The first d diagonal entries include the ridge, which gram includes already.
    """
    P, items = space.P, space.watched
    k, m = Q.shape
    missing = 0
    for j in range(m):
        missing += 1 if answers[j] != answers[j] else 0
    build, count = 2 * missing > m, 0
    for j in range(m):
        if (answers[j] == answers[j]) == build:
            items[count] = j
            count += 1
    for r in range(k):
        for i in range(count):
            P[r, i] = Q[r, items[i]]
        for s in range(r + 1):
            total = 0.0
            for i in range(count):
                total += P[r, i] * P[s, i]
            G[r, s] = total if build else gram[r, s] - total
            G[s, r] = G[r, s]
        if build and r < d:
            G[r, r] += ridge


@subroutine
def solve_row(state: Tableau, space: Space, limits: Limits) -> bool:
    """Enforce the bounds that the row violates: of its factors, then of the watched entries, then of all, until none is violated.

    Returns whether all bounds could be enforced.
    """
    n_watched, size, done = 0, state.d, True
    for step in range(1, _STEPS * state.d):
        if step % _REBUILD_STEPS == 0:
            tabulate(state, size)
        p = worst_factor(state, limits)
        if p >= 0:
            bound = 0.0 if state.x[p] < 0.0 else limits.w_max
        else:
            for r in range(state.d):
                space.w[r] = state.x[r]
            j, value = worst_entry(state, space, n_watched, limits)
            if j < 0:
                compute_model(space)
                before = n_watched
                n_watched = watch_violated(space, limits, n_watched)
                if n_watched == before:
                    return done
                continue
            p = enter(state, j, size)
            if p < 0:
                return False
            size = max(size, p + 1)
            bound = (limits.lower[j] if value < limits.lower[j] else limits.upper[j]) - (value - state.x[p])
        while not enforce(state, p, bound, size):
            done = False
            if drop_infeasible(state, p, size, space.seen) in (p, -1):
                break
    return False


@subroutine
def load_row(x: NDArray[np.floating], h: NDArray[np.floating], penalty: float, state: Tableau, space: Space) -> None:
    """Load a row's x, and its h minus the penalty and the part that the confounders explain."""
    d, k = state.d, len(x)
    for c in range(d, k):
        space.w[c] = x[c]
    for r in range(d):
        state.x[r], state.h[r] = x[r], h[r] - penalty
        for c in range(d, k):
            state.h[r] -= state.G[r, c] * space.w[c]
    for j in range(len(space.seen)):
        space.seen[j] = 0


@subroutine
def store_row(x: NDArray[np.floating], state: Tableau, w_max: float) -> float:
    """Write a row's factors to x. Returns the error that the added curvature still causes, as that of a single factor:
    the gradient without it is that curvature times the distance that the factor moved.
    """
    left = 0.0
    for r in range(state.d):
        w = min(max(state.x[r], 0.0), w_max)
        left = max(left, state.extra[r] * state.alone[r] * abs(w - x[r]))
        x[r] = w
    return left


@kernel
def solve_block(
    M: NDArray[np.floating],
    X: NDArray[np.floating],
    H: NDArray[np.floating],
    Q: NDArray[np.float64],
    Qt: NDArray[np.float64],
    narrow: NDArray[np.floating],
    model: NDArray[np.floating],
    gram: NDArray[np.float64],
    d: int,
    penalty: float,
    ridge: float,
    scale: float,
    limits: Limits,
) -> int:
    """Solve the rows of a block one after the other, in working space for one. X is (n, k+c), H (n, k), else as :func:`solve_rows`."""
    k, m = Q.shape
    places = 2 * d + 1  # E has no more entries than F has factors, and one more that is being enforced
    a, b, e = np.zeros((8, places + k)), np.zeros((3, places + k + 4), np.int64), np.zeros((2, m), np.int64)
    T, G, P = np.zeros((places, places)), np.zeros((k, k)), np.zeros((k, m))
    state = Tableau(d, T, a[0], a[1], b[0, :places], b[1, :places], a[2], G, a[3], a[4], Qt, a[5], a[6])
    space = Space(a[7, : k + 1], narrow, model, b[2], e[0], e[1], P)
    unconverged = 0
    for i in range(len(M)):
        masked_gram(M[i], gram, ridge, d, Q, space, state.G)
        for r in range(state.d):
            state.extra[r] = 0.0
        done = False
        for _ in range(_ROUNDS):
            load_row(X[i], H[i], penalty, state, space)
            start_row(state, scale, limits.w_max)
            done = solve_row(state, space, limits)
            # With added curvature this is a step of the proximal point method, without it the optimum.
            if store_row(X[i], state, limits.w_max) <= limits.edge:
                break
        else:
            done = False
        unconverged += 0 if done else 1
    return unconverged


def solve_rows(
    M: NDArray[np.floating],
    X: NDArray[np.floating],
    H: NDArray[np.floating],
    Q: NDArray[np.float64],
    n_free: int,
    penalty: float,
    ridge: float,
    w_max: float,
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    tolerance: float,
) -> int:
    """Solve, for every row m of M (n, m; NaN = missing), with its x = X[:, i] = [w, c], in place:

        minimize ½‖o∘(m − Qᵀx)‖² + penalty·Σw + ridge/2·‖w‖²   over 0 ≤ w ≤ w_max and lower ≤ Qᵀx ≤ upper

    H (n_free, n) = Q·(M with zeros for NaN)ᵀ, Q (k+c, m), lower and upper (m). ``tolerance`` is relative to w_max
    and to the bounds' width. Returns the number of rows that did not reach it.
    """
    gram, Qt = Q @ Q.T, np.ascontiguousarray(Q.T)
    gram[np.arange(n_free), np.arange(n_free)] += ridge
    narrow, model = np.vstack([Q, np.zeros((1, Q.shape[1]))]).astype(X.dtype), np.empty(Q.shape[1], X.dtype)
    edge, slack = _EDGE * tolerance * (w_max if np.isfinite(w_max) else 1.0), tolerance * (upper - lower)
    limits = Limits(float(w_max), edge, lower, upper, slack, (lower - slack).astype(X.dtype), (upper + slack).astype(X.dtype))
    scale = float(gram.diagonal()[:n_free].max()) or 1.0
    rows = np.ascontiguousarray(X.T)
    settings = n_free, float(penalty), float(ridge), scale
    unconverged = solve_block(M, rows, np.ascontiguousarray(H.T), Q, Qt, narrow, model, gram, *settings, limits)
    X[:n_free] = rows.T[:n_free]
    return unconverged
