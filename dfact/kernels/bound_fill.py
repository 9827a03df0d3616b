"""The target of the factor updates where only the bounds are split off, with the few multipliers of the bounds that are active."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

Floats = NDArray[np.floating]
Integers = NDArray[np.int32]


@kernel
def answer_fill(
    M: Floats, R: Floats, places: Integers, lower: Floats, upper: Floats, rho: float, weights: Floats, sample_weight: Floats
) -> tuple[float, int]:
    """Write the target B over the model R (n, m) in the rows where no bound is active: the answers M, R where they are missing (NaN).

    A bound is active in a row that breaks it, or that has a multiplier: places holds their positions i·m + j
    in rising order. weights (n) ← 1 + rho for rows with an active bound, whose R stays, else 1.
    Returns Σ (m − r)² over answered entries of all rows, each counted by its sample_weight (n), and the
    number of entries beyond the bounds.
    """
    dtype = R.dtype.type
    zero, one = dtype(0), dtype(1)
    n, m = R.shape
    squares, count, e = 0.0, 0, 0
    for i in range(n):
        row_squares, beyond = zero, 0
        for j in range(m):
            r = R[i, j]
            error = M[i, j] - r
            error = error if error == error else zero
            row_squares += error * error
            beyond += (r > upper[j]) | (r < lower[j])
        squares += float(sample_weight[i] * row_squares)
        count += beyond
        active = beyond > 0
        while e < len(places) and places[e] < (i + 1) * m:
            active = True
            e += 1
        weights[i] = one + dtype(rho) if active else one
        if not active:
            for j in range(m):
                R[i, j] = M[i, j] if M[i, j] == M[i, j] else R[i, j]
    return squares, count


@kernel
def bound_fill(
    M: Floats,
    R: Floats,
    places: Integers,
    values: Floats,
    lower: Floats,
    upper: Floats,
    rho: float,
    weights: Floats,
    sample_weight: Floats,
    places_new: Integers,
    values_new: Floats,
) -> tuple[float, int]:
    """Update the multipliers A, and write the target B over R (n, m) in the rows with an active bound, whose weight is above 1.

    The bounds lower ≤ Z ≤ upper (m) of the split Z = R have multipliers A, zero but where a bound is
    active; there places holds i·m + j, in rising order, and values the multipliers:

        Z = clip(R − A/ρ),   A ← A + ρ(Z − R),   B = R + (O∘(M − R) + ρ(Z − R) + A) / weight

    Then ½·weight·‖B − R'‖² lies above the augmented Lagrangian of any other model R' of the row, up
    to a constant, and touches it at R. Returns Σ A(Z − R) + ρ/2 (Z − R)² with the old multipliers, each
    row counted by its sample_weight (n), and the number of the new multipliers, which are written; they
    are at most the old ones and the entries beyond the bounds.
    """
    dtype = R.dtype.type
    zero, half, one, p = dtype(0), dtype(0.5), dtype(1), dtype(rho)
    inverse, damp = one / p, one / (one + p)
    n, m = R.shape
    dual = np.zeros(m, R.dtype)
    bounds, count, e = 0.0, 0, 0
    for i in range(n):
        if weights[i] > one:
            while e < len(places) and places[e] < (i + 1) * m:
                dual[places[e] - i * m] = values[e]
                e += 1
            row_bounds = zero
            for j in range(m):
                r, a = R[i, j], dual[j]
                t = r - a * inverse
                z = min(max(t, lower[j]), upper[j])
                gap = z - r
                # Exactly zero within the bounds, where rounding would leave a little.
                new = a + p * gap if z != t else zero
                dual[j] = new
                error = M[i, j] - r
                error = error if error == error else zero
                row_bounds += gap * (a + half * p * gap)
                R[i, j] = r + (error + p * gap + new) * damp
            bounds += float(sample_weight[i] * row_bounds)
            for j in range(m):
                if dual[j] != zero:
                    places_new[count] = i * m + j
                    values_new[count] = dual[j]
                    count += 1
                    dual[j] = zero
    return bounds, count
