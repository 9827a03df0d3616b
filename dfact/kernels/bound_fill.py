"""The row step of ICQF where only the bounds are split off: it keeps multipliers of the few active bounds alone."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.box_qp import accelerate, descend
from dfact.kernels.jit import inlined, kernel
from dfact.kernels.norms import descend_column

Floats = NDArray[np.floating]
Integers = NDArray[np.int32]
Codes = NDArray[np.floating | np.integer]
_TILE_PRODUCTS = 10**6  # number of multiplications up to which OpenBLAS does not pack the matrices first
_TILE_ENTRIES = 1 << 16  # entries of a tile: those of the target and of the data fit into a second-level cache
_TILE_ROWS = 16  # rows in a multiple of the vector lanes


def tile_rows(n: int, k: int, m: int) -> int:
    """Return how many of a block's n rows a step processes at once; all of them if small products would hold too few rows."""
    rows = min(_TILE_PRODUCTS // (k * m), _TILE_ENTRIES // m) // _TILE_ROWS * _TILE_ROWS
    return max(1, min(rows, n) if rows > _TILE_ROWS else n)


# One function: every part of a tile's step would need most of these arrays.
@kernel
def bounded_step(
    M: Codes,
    missing: float,
    X: Floats,
    Q: Floats,
    Qt: Floats,
    G: Floats,
    indices: Integers,
    values: Floats,
    lower: Floats,
    upper: Floats,
    rho: float,
    beta: float,
    squared: bool,
    w_max: float,
    sweeps: int,
    accelerated: bool,
    sample_weight: Floats,
    target: Floats,
    indices_new: Integers,
    values_new: Floats,
    gram: Floats,
    cross: Floats,
    norm_p: float = 0.0,
    norm_q: float = 0.0,
) -> tuple[float, float, float, int]:
    """Move the factors X (k, n) given Q (k, m), in place; update the multipliers of the bounds and the sums for the step of Q.

    Missing answers in M (n, m) are ``missing`` or NaN. The first f components of X move, within 0 and w_max, by ``sweeps``
    coordinate sweeps or ``accelerated`` gradient steps, with the penalty beta·Σx, or beta·Σ½x² if it is ``squared``. Qt (m, f)
    is the transpose of their rows of Q, G is QQ'. Their target B, the weights D of the rows and the multipliers are those of
    :func:`bound_fill`, which processes as many rows at a time as ``target`` (rows, m) has. Multipliers are written to indices_new
    and values_new (n·m), XDSX' to gram (k, k) and XDSB to cross (k, m), with the sample weights S (n).

    With norm_p and norm_q the penalty is beta·φ of :mod:`dfact.kernels.norms`, and not part of the sum that is returned. A call without
    them compiles no code for them.

    Returns the two sums of :func:`bound_fill`, the penalty before the step without beta, each row times its sample weight, and
    the number of multipliers.
    """
    n, m = M.shape
    k, rows, n_free = len(Q), len(target), Qt.shape[1]
    dtype = X.dtype.type
    strength, zero, half = dtype(beta), dtype(0), dtype(0.5)
    tile_cross, tile_gram = np.empty_like(cross), np.empty_like(gram)
    gram[:], cross[:] = zero, zero
    squares, bounds, penalty, used, count = 0.0, 0.0, 0.0, 0, 0
    # A tile stays in the cache while all steps are applied to it.
    for start in range(0, n, rows):
        size = min(rows, n - start)
        x, factors = np.ascontiguousarray(X[:, start : start + size]), np.empty((size, k), X.dtype)
        for q in range(k):
            for i in range(size):
                factors[i, q] = x[q, i]
        for i in range(size):
            counted = zero
            for q in range(n_free):
                counted += half * factors[i, q] * factors[i, q] if squared else factors[i, q]
            penalty += float(sample_weight[start + i] * counted)
        B, weights = target[:size], np.empty(size, X.dtype)
        np.dot(factors, Q, B)
        row_squares, row_bounds, used, count = bound_fill(
            M, missing, B, start, indices, values, used, lower, upper, rho, sample_weight, weights, indices_new, values_new, count
        )
        squares += row_squares
        bounds += row_bounds
        products = np.dot(B, Qt)
        ridge, top, linear = np.zeros(size, X.dtype), np.full(size, dtype(w_max)), np.empty((n_free, size), X.dtype)
        if squared:
            for i in range(size):
                ridge[i] = strength / weights[i]
        for q in range(n_free):
            for i in range(size):
                linear[q, i] = products[i, q] - (zero if squared or norm_p > 0.0 else strength / weights[i])
        if norm_p > 0.0:
            for i in range(size):
                descend_column(x, linear, G, n_free, i, float(strength / weights[i]), float(w_max), norm_p, norm_q, sweeps, 0.0)
        elif accelerated:
            accelerate(x, linear, G, n_free, ridge, top, sweeps, 0.0)
        else:
            descend(x, linear, G, n_free, ridge, top, sweeps, 0.0)
        # Entry by entry: for an assignment of arrays Numba compiles messages about their shapes, which takes seconds.
        for q in range(n_free):
            for i in range(size):
                X[q, start + i] = x[q, i]
        for i in range(size):
            weights[i] *= sample_weight[start + i]
        weighted = np.empty_like(x)
        for q in range(k):
            for i in range(size):
                weighted[q, i] = weights[i] * x[q, i]
        np.dot(weighted, x.T, tile_gram)
        np.dot(weighted, B, tile_cross)
        for q in range(k):
            for r in range(k):
                gram[q, r] += tile_gram[q, r]
            for j in range(m):
                cross[q, j] += tile_cross[q, j]
    return squares, bounds, penalty, count


# One function: the loops over a row share eight working arrays.
@inlined
def bound_fill(
    M: Codes,
    missing: float,
    R: Floats,
    start: int,
    indices: Integers,
    values: Floats,
    used: int,
    lower: Floats,
    upper: Floats,
    rho: float,
    sample_weight: Floats,
    weights: Floats,
    indices_new: Integers,
    values_new: Floats,
    count: int,
) -> tuple[float, float, int, int]:
    """Write the target B over the model R (rows, m) of the rows of M (n, m) from ``start`` on, and their multipliers.

    Missing answers in M are ``missing`` or NaN. The bounds lower ≤ Z ≤ upper (m) of the split Z = R have multipliers A, which
    are zero except where a bound is active. For these, indices holds i·m + j in ascending order and values the multipliers;
    those before ``used`` belong to earlier rows. A row that violates a bound or has a multiplier has the weight 1 + ρ and

        Z = clip(R − A/ρ),   A ← A + ρ(Z − R),   B = R + (O∘(M − R) + ρ(Z − R) + A) / weight

    All others have the weight 1, and B is M where answered, else R. Then ½·weight·‖B − R'‖² lies above the augmented
    Lagrangian of any other model R' of the row, up to a constant, and touches it at R. New multipliers are written from
    ``count`` on.

    Returns Σ (M − R)² over answered entries and Σ A(Z − R) + ρ/2 (Z − R)² with the old multipliers, each row counted
    times its sample_weight (n), and the numbers of old and of new multipliers so far.
    """
    dtype = R.dtype.type
    zero, half, one, p = dtype(0), dtype(0.5), dtype(1), dtype(rho)
    inverse, damp, code = one / p, one / (one + p), dtype(missing)
    m = M.shape[1]
    errors, dual, target, term = np.empty(m, R.dtype), np.zeros(m, R.dtype), np.empty(m, R.dtype), np.empty(m, R.dtype)
    # One byte per entry, eight in a word: most words are 0, but few rows consist of such words alone.
    flags = np.zeros(-(-m // 8) * 8, np.uint8)
    words = flags.view(np.uint64)
    active, touched = np.empty(len(words), np.int32), np.empty(len(flags), np.int32)
    squares, bounds = 0.0, 0.0
    for t in range(len(R)):
        i = start + t
        row_squares, row_bounds = zero, zero
        for j in range(m):
            answer = dtype(M[i, j])
            errors[j] = answer - R[t, j] if (answer == answer) & (answer != code) else zero
        # Summing values of a single type keeps the result independent of the type of M.
        for j in range(m):
            row_squares += errors[j] * errors[j]
        squares += float(sample_weight[i] * row_squares)
        for j in range(m):
            flags[j] = (R[t, j] > upper[j]) | (R[t, j] < lower[j])
        while used < len(indices) and indices[used] < (i + 1) * m:
            flags[indices[used] - i * m] = 1
            dual[indices[used] - i * m] = values[used]
            used += 1
        # Branches would be mispredicted: active bounds follow no pattern.
        n_active, n_touched = 0, 0
        for w in range(len(words)):
            active[n_active] = w
            n_active += words[w] != 0
        for w in active[:n_active]:
            for j in range(8 * w, 8 * w + 8):
                touched[n_touched] = j
                n_touched += flags[j]
        weights[t] = one if n_touched == 0 else one + p
        for e in range(n_touched):
            j = touched[e]
            r, a = R[t, j], dual[j]
            u = r - a * inverse
            z = min(max(u, lower[j]), upper[j])
            gap = z - r
            # Exactly zero within the bounds, where rounding would leave a little.
            new = a + p * gap if z != u else zero
            target[e] = r + (errors[j] + p * gap + new) * damp
            term[e] = gap * (a + half * p * gap)
            dual[j] = zero
            indices_new[count] = i * m + j
            values_new[count] = new
            count += new != zero
        for e in range(n_touched):
            row_bounds += term[e]
        bounds += float(sample_weight[i] * row_bounds)
        if n_touched == 0:
            for j in range(m):
                answer = dtype(M[i, j])
                R[t, j] = answer if (answer == answer) & (answer != code) else R[t, j]
        else:
            for j in range(m):
                R[t, j] += errors[j] * damp
            for e in range(n_touched):
                R[t, touched[e]] = target[e]
    return squares, bounds, used, count
