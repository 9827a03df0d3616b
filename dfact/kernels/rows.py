"""The row problem of ICQF solved to its optimum: each row with its own mask and its own bound constraints.

The dual active-set method of Goldfarb & Idnani (1983), its linear algebra done by sweeps of a tableau. Letters:
    d  factors w of a row, each with the multiplier y = (h − Gw − Q_E λ)_r
    E  entries that are at a bound of the model, each with the multiplier y = λ_j
    s  sides: 1 where an upper bound holds x (factor or entry), −1 a lower one, 0 none; F the factors with s = 0

The optimum is where all x are within their bounds, y = 0 where s = 0 and s·y ≥ 0 elsewhere. The method keeps what is
said of y and enforces one violated bound after the other; the dual objective rises with each, so it ends. With
K = [[G, Q_E], [Q_Eᵀ, 0]], I = F ∪ E and N the held factors, the tableau is

    T_II = −K_II⁻¹,   T_IN = K_II⁻¹ K_IN,   T_NN = K_NN − K_NI K_II⁻¹ K_IN
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, part

_DEPENDENT = 1e-3  # a factor that others explain but for this share of it gets curvature of its own
_PINNED = 1e-6  # a factor or entry that can move by less than this share of what it could alone is taken as fixed
_ROUNDS = 200
_EDGE = 0.01  # what counts as beyond the factors' bounds, relative to what does beyond the model's
_STEPS = 50  # bounds enforced, per factor
_FRESH = 24  # bounds enforced on one tableau, whose rounding errors grow with every sweep
_WATCHED, _LOST = 1, 2


class Limits(NamedTuple):
    """The bounds of the factors, [0, w_max], and of the model, with what counts as beyond them."""

    w_max: float
    edge: float
    lower: float
    upper: float
    slack: float


class Tableau(NamedTuple):
    """The state of a row's solution: places 0 to d − 1 are the factors', the others entries' (or empty, with T = 0)."""

    d: int
    T: NDArray[np.float64]
    x: NDArray[np.float64]
    """Factors, and the model at the entries less what confounders add to it."""
    y: NDArray[np.float64]
    side: NDArray[np.int64]
    item: NDArray[np.int64]
    """The item of an entry's place, −1 in an empty one."""
    alone: NDArray[np.float64]
    """−T_pp if p were the only factor in F; for an entry, if the factors were orthogonal and in F."""
    G: NDArray[np.float64]
    h: NDArray[np.float64]
    extra: NDArray[np.float64]
    """What was added to the diagonal of G."""
    Qt: NDArray[np.float64]
    t: NDArray[np.float64]
    """Working space, as is u."""
    u: NDArray[np.float64]


class Space(NamedTuple):
    """Working space for one row."""

    w: NDArray[np.float64]
    """The row's factors and confounders, and a zero (k+1)."""
    Q: NDArray[np.floating]
    """The loadings in the rows' precision, and zeros (k+1, m)."""
    model: NDArray[np.floating]
    used: NDArray[np.int64]
    watched: NDArray[np.int64]
    """The items whose bounds are looked at (m), of which the first so many count."""
    seen: NDArray[np.int64]
    P: NDArray[np.float64]


@part
def sweep(state: Tableau, p: int, size: int) -> None:
    """Place p enters I or leaves it: T ← T − t tᵀ/T_pp with t = T_·p, then t ← ±t/T_pp and T_pp ← −1/T_pp."""
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


@part
def free(state: Tableau, r: int, size: int) -> None:
    """Factor r enters F. One that depends on F already gets some curvature of its own, around where it is."""
    missing = _DEPENDENT / state.alone[r] - state.T[r, r]
    if missing > 0.0:
        state.extra[r] += missing
        state.h[r] += missing * state.x[r]
        state.T[r, r] += missing
    state.side[r], state.y[r] = 0, 0.0
    sweep(state, r, size)


@part
def border(state: Tableau, p: int, size: int) -> None:
    """The row and column of entry p, before it is in E: T_Ip = −T_IF q_F, T_Np = q_N − T_NF q_F, T_pp = −q_Fᵀ T_Fp."""
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
            total += q[i] - free_q[i]
        T[i, p] = total
    for i in range(size):
        T[p, i] = T[i, p]
    T[p, p] = -rate


@part
def tabulate(state: Tableau, size: int) -> None:
    """The tableau of F and E as they are, and x and y on it."""
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


@part
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


@part
def begin(state: Tableau, scale: float, w_max: float) -> None:
    """Without entries, factors that start within their bounds are free, and in the end so is every held one whose
    multiplier has the wrong sign. Curvature that was added is around the start.
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


@part
def enforce(state: Tableau, p: int, bound: float, size: int) -> bool:
    """Bring x_p to the bound it violates: y_p moves until x_p is there, dropping each bound whose multiplier becomes 0
    on the way. Returns False if no step leads there.

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


@part
def enter(state: Tableau, j: int, size: int) -> int:
    """An empty place for item j, −1 if there is none."""
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


@part
def leave(state: Tableau, p: int, size: int) -> None:
    """Entry p leaves E, if it was there, and its place."""
    if state.side[p] != 0:
        sweep(state, p, size)
    state.item[p], state.side[p] = -1, 0
    for i in range(size):
        state.T[i, p] = 0.0
        state.T[p, i] = 0.0


@part
def give_up(state: Tableau, p: int, size: int, seen: NDArray[np.int64]) -> int:
    """No step brings p to its bound, for there is no solution: leave out entry p, or, where p is a factor, the entry
    that keeps it from its bound. The multiplier stays as it is, so all that is said of y stays true.

    Returns the entry's place, −1 if there is none.
    """
    lost = p
    if p < state.d:
        lost = -1
        for i in range(state.d, size):
            if state.item[i] >= 0 and (lost < 0 or abs(state.T[i, p]) > abs(state.T[lost, p])):
                lost = i
    if lost >= 0:
        seen[state.item[lost]] = _LOST
        for r in range(state.d):
            state.h[r] -= state.y[lost] * state.Qt[state.item[lost], r]
        leave(state, lost, size)
    return lost


@part
def worst_factor(state: Tableau, limits: Limits) -> int:
    """The factor furthest outside [0, w_max], −1 if none is."""
    worst, most = -1, limits.edge
    for r in range(state.d):
        excess = max(-state.x[r], state.x[r] - limits.w_max)
        if excess > most:
            worst, most = r, excess
    return worst


@part
def worst_entry(state: Tableau, space: Space, n_watched: int, limits: Limits) -> tuple[int, float]:
    """The watched item furthest outside the bounds, −1 if none is by more than half the slack, and its value in the model."""
    Qt, w, watched, seen = state.Qt, space.w, space.watched, space.seen
    worst, most, value = -1, 0.5 * limits.slack, 0.0
    for place in range(n_watched):
        j, model = watched[place], 0.0
        for r in range(Qt.shape[1]):
            model += Qt[j, r] * w[r]
        excess = max(limits.lower - model, model - limits.upper)
        if excess > most and seen[j] != _LOST:
            worst, most, value = j, excess, model
    return worst, value


@part
def model_of(space: Space) -> None:
    """Compute the model Qᵀw, four of the factors that are not 0 at a time."""
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


@part
def watch(space: Space, limits: Limits, n_watched: int) -> int:
    """Add the items whose model is outside the bounds to the watched ones; returns how many those are then."""
    model, seen, number = space.model, space.seen, space.model.dtype.type
    low, high, zero, excess = number(limits.lower - limits.slack), number(limits.upper + limits.slack), number(0), number(0)
    for j in range(len(model)):
        excess += max(model[j] - high, zero) + max(low - model[j], zero)
    if excess > zero:
        for j in range(len(model)):
            if (model[j] < low or model[j] > high) and seen[j] == 0:
                space.watched[n_watched], seen[j] = j, _WATCHED
                n_watched += 1
    return n_watched


@part
def masked_gram(
    answers: NDArray[np.floating], gram: NDArray[np.float64], Q: NDArray[np.float64], P: NDArray[np.float64], G: NDArray[np.float64]
) -> None:
    """G = Σ q_j q_jᵀ over the answered items j: all less the missing ones, or the answered ones where they are fewer.

    P (k, m) is working space for the loadings of these.
    """
    k, m = Q.shape
    missing = 0
    for j in range(m):
        missing += 1 if answers[j] != answers[j] else 0
    build, count = 2 * missing > m, 0
    for j in range(m):
        if (answers[j] == answers[j]) == build:
            for r in range(k):
                P[r, count] = Q[r, j]
            count += 1
    for r in range(k):
        for s in range(r + 1):
            total = 0.0
            for j in range(count):
                total += P[r, j] * P[s, j]
            G[r, s] = total if build else gram[r, s] - total
            G[s, r] = G[r, s]


@part
def solve_row(state: Tableau, space: Space, limits: Limits) -> bool:
    """Enforce what the row violates: bounds of its factors, then of the watched entries, then of all, until there is none.

    Returns whether all bounds could be enforced.
    """
    n_watched, size, done = 0, state.d, True
    for step in range(1, _STEPS * state.d):
        if step % _FRESH == 0:
            tabulate(state, size)
        p = worst_factor(state, limits)
        if p >= 0:
            bound = 0.0 if state.x[p] < 0.0 else limits.w_max
        else:
            for r in range(state.d):
                space.w[r] = state.x[r]
            j, value = worst_entry(state, space, n_watched, limits)
            if j < 0:
                model_of(space)
                before = n_watched
                n_watched = watch(space, limits, n_watched)
                if n_watched == before:
                    return done
                continue
            p = enter(state, j, size)
            if p < 0:
                return False
            size = max(size, p + 1)
            bound = (limits.lower if value < limits.lower else limits.upper) - (value - state.x[p])
        while not enforce(state, p, bound, size):
            done = False
            if give_up(state, p, size, space.seen) in (p, -1):
                break
    return False


@part
def load(X: NDArray[np.floating], H: NDArray[np.floating], i: int, penalty: float, state: Tableau, space: Space) -> None:
    """Row i as it is in X: x, and h = H_i − penalty less what the confounders explain."""
    d, k = state.d, len(X)
    for c in range(d, k):
        space.w[c] = X[c, i]
    for r in range(d):
        state.x[r], state.h[r] = X[r, i], H[r, i] - penalty
        for c in range(d, k):
            state.h[r] -= state.G[r, c] * space.w[c]
    for j in range(len(space.seen)):
        space.seen[j] = 0


@part
def store(X: NDArray[np.floating], i: int, state: Tableau, w_max: float) -> float:
    """Write the factors to row i of X. Returns the most that one moved, 0 if no curvature was added to the row."""
    moved, added = 0.0, False
    for r in range(state.d):
        w = min(max(state.x[r], 0.0), w_max)
        moved, added = max(moved, abs(w - X[r, i])), added or state.extra[r] > 0.0
        X[r, i] = w
    return moved if added else 0.0


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
    scale: float,
    limits: Limits,
) -> int:
    """The rows of a block one after the other, in working space for one; see :func:`solve_rows`."""
    k, m = Q.shape
    places = 2 * d + 1  # E has no more entries than F has factors, and one more may be on its way
    a, b, e = np.zeros((8, places + k)), np.zeros((3, places + k + 4), np.int64), np.zeros((2, m), np.int64)
    T, G, P = np.zeros((places, places)), np.zeros((k, k)), np.zeros((k, m))
    state = Tableau(d, T, a[0], a[1], b[0, :places], b[1, :places], a[2], G, a[3], a[4], Qt, a[5], a[6])
    space = Space(a[7, : k + 1], narrow, model, b[2], e[0], e[1], P)
    unfinished = 0
    for i in range(len(M)):
        masked_gram(M[i], gram, Q, space.P, state.G)
        for r in range(state.d):
            state.extra[r] = 0.0
        done = False
        for _ in range(_ROUNDS):
            load(X, H, i, penalty, state, space)
            begin(state, scale, limits.w_max)
            done = solve_row(state, space, limits)
            # With curvature added this is a step of the proximal point method; without any, it is the optimum.
            if store(X, i, state, limits.w_max) <= limits.edge:
                break
        unfinished += 0 if done else 1
    return unfinished


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

    H (n_free, n) = Q·(M with zeros for NaN)ᵀ, Q (k+c, m). ``tolerance`` is relative to w_max and to the bounds'
    width. Returns the number of rows that did not come within it.
    """
    gram, Qt = Q @ Q.T, np.ascontiguousarray(Q.T)
    narrow, model = np.vstack([Q, np.zeros((1, Q.shape[1]))]).astype(X.dtype), np.empty(Q.shape[1], X.dtype)
    limits = Limits(float(w_max), _EDGE * tolerance * w_max, float(lower), float(upper), tolerance * (upper - lower))
    scale = float(gram.diagonal()[:n_free].max()) or 1.0
    return solve_block(M, X, H, Q, Qt, narrow, model, gram, n_free, float(penalty), scale, limits)
