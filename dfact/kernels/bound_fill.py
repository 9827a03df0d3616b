"""The target of the factor updates where only the bounds are split off, with the few multipliers of the bounds that are active."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, part

Floats = NDArray[np.floating]
Integers = NDArray[np.int32]
_TILE_PRODUCTS = 10**6  # multiplications up to which OpenBLAS multiplies matrices without packing them first
_TILE_ENTRIES = 1 << 16  # a tile of the target and of the data stay in a second-level cache
_TILE_ROWS = 16  # rows in a multiple of the vector lanes


@kernel
def bound_fill(
    M: Floats,
    X: Floats,
    Q: Floats,
    n_free: int,
    places: Integers,
    values: Floats,
    lower: Floats,
    upper: Floats,
    rho: float,
    sample_weight: Floats,
    B: Floats,
    H: Floats,
    weights: Floats,
    places_new: Integers,
    values_new: Floats,
) -> tuple[float, float, int]:
    """Write the target B (n, m) of the factors X (k, n), the linear terms H = QB' (n_free, n) of those that are free, and the multipliers.

    M (n, m) holds the answers, NaN where missing; R = X'Q is the model. The bounds lower ≤ Z ≤ upper (m) of the split
    Z = R have multipliers A, zero but where a bound is active; there places holds i·m + j, in rising order, and values
    the multipliers. A row that breaks a bound or has a multiplier has the weight 1 + ρ and

        Z = clip(R − A/ρ),   A ← A + ρ(Z − R),   B = R + (O∘(M − R) + ρ(Z − R) + A) / weight

    All others have the weight 1, and B is M where answered, else R. Then ½·weight·‖B − R'‖² lies above the augmented
    Lagrangian of any other model R' of the row, up to a constant, and touches it at R.

    Returns Σ (M − R)² over answered entries and Σ A(Z − R) + ρ/2 (Z − R)² with the old multipliers, each row counted
    by its sample_weight (n), and the number of the new multipliers, which are written to places_new and values_new (n·m).
    """
    n, m = M.shape
    k = len(Q)
    rows = min(_TILE_PRODUCTS // (k * m), _TILE_ENTRIES // m) // _TILE_ROWS * _TILE_ROWS
    rows = min(rows, n) if rows > _TILE_ROWS else n
    factors, linear = np.empty((rows, k), X.dtype), np.empty((rows, n_free), X.dtype)
    squares, bounds, used, count = 0.0, 0.0, 0, 0
    # All that is done to a tile finds it in the cache.
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        for r in range(k):
            for i in range(start, stop):
                factors[i - start, r] = X[r, i]
        np.dot(factors[: stop - start], Q, B[start:stop])
        tile_squares, tile_bounds, used, count = _fill(
            M, B, start, stop, places, values, used, lower, upper, rho, sample_weight, weights, places_new, values_new, count
        )
        squares += tile_squares
        bounds += tile_bounds
        np.dot(B[start:stop], Q[:n_free].T, linear[: stop - start])
        for r in range(n_free):
            for i in range(start, stop):
                H[r, i] = linear[i - start, r]
    return squares, bounds, count


@part
def _fill(
    M: Floats,
    R: Floats,
    start: int,
    stop: int,
    places: Integers,
    values: Floats,
    used: int,
    lower: Floats,
    upper: Floats,
    rho: float,
    sample_weight: Floats,
    weights: Floats,
    places_new: Integers,
    values_new: Floats,
    count: int,
) -> tuple[float, float, int, int]:
    """Write B over the rows start to stop of R; ``used`` and ``count`` are the numbers of old and new multipliers before and after them."""
    dtype = R.dtype.type
    zero, half, one, p = dtype(0), dtype(0.5), dtype(1), dtype(rho)
    inverse, damp = one / p, one / (one + p)
    m = M.shape[1]
    dual, target, term = np.zeros(m, R.dtype), np.empty(m, R.dtype), np.empty(m, R.dtype)
    # One byte an entry, eight in a word: most words are 0, and few rows have no other.
    flags = np.zeros(-(-m // 8) * 8, np.uint8)
    words = flags.view(np.uint64)
    active, touched = np.empty(len(words), np.int32), np.empty(len(flags), np.int32)
    squares, bounds = 0.0, 0.0
    for i in range(start, stop):
        row_squares, row_bounds = zero, zero
        for j in range(m):
            error = M[i, j] - R[i, j]
            error = error if error == error else zero
            row_squares += error * error
        squares += float(sample_weight[i] * row_squares)
        for j in range(m):
            flags[j] = (R[i, j] > upper[j]) | (R[i, j] < lower[j])
        while used < len(places) and places[used] < (i + 1) * m:
            flags[places[used] - i * m] = 1
            dual[places[used] - i * m] = values[used]
            used += 1
        # Without branches, which nobody could predict.
        n_active, n_touched = 0, 0
        for w in range(len(words)):
            active[n_active] = w
            n_active += words[w] != 0
        for w in active[:n_active]:
            for j in range(8 * w, 8 * w + 8):
                touched[n_touched] = j
                n_touched += flags[j]
        weights[i] = one if n_touched == 0 else one + p
        for e in range(n_touched):
            j = touched[e]
            r, a = R[i, j], dual[j]
            t = r - a * inverse
            z = min(max(t, lower[j]), upper[j])
            gap = z - r
            # Exactly zero within the bounds, where rounding would leave a little.
            new = a + p * gap if z != t else zero
            error = M[i, j] - r
            error = error if error == error else zero
            target[e] = r + (error + p * gap + new) * damp
            term[e] = gap * (a + half * p * gap)
            dual[j] = zero
            places_new[count] = i * m + j
            values_new[count] = new
            count += new != zero
        for e in range(n_touched):
            row_bounds += term[e]
        bounds += float(sample_weight[i] * row_bounds)
        if n_touched == 0:
            for j in range(m):
                R[i, j] = M[i, j] if M[i, j] == M[i, j] else R[i, j]
        else:
            for j in range(m):
                error = M[i, j] - R[i, j]
                error = error if error == error else zero
                R[i, j] += error * damp
            for e in range(n_touched):
                R[i, touched[e]] = target[e]
    return squares, bounds, used, count
