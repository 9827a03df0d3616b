"""The oblimin rotation of factor loadings from one start, by gradient projection (Jennrich 2002).

Loadings A (m, k) of uncorrelated factors become the pattern Λ = A T⁻ᵀ, where the columns of T (k, k) have length 1. The criterion is
f = ¼ Σ_{r≠s} Σ_j λ_jr² λ_js², with the gradient G = ∂f/∂Λ, g_jr = λ_jr Σ_{s≠r} λ_js².
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, subroutine

Floats = NDArray[np.float64]

_HALVINGS = 20  # of a step; a smaller one is within rounding errors


@subroutine
def invert(T: Floats, work: Floats, out: Floats) -> None:
    """Set out (k, k) to T⁻¹ by Gauss-Jordan elimination with the largest pivots; a singular T gives infinity or NaN."""
    k = len(T)
    for r in range(k):
        for s in range(k):
            work[r, s] = T[r, s]
            out[r, s] = 1.0 if r == s else 0.0
    for c in range(k):
        pivot = c
        for r in range(c + 1, k):
            if abs(work[r, c]) > abs(work[pivot, c]):
                pivot = r
        if pivot != c:
            for s in range(k):
                work[c, s], work[pivot, s] = work[pivot, s], work[c, s]
                out[c, s], out[pivot, s] = out[pivot, s], out[c, s]
        scale = 1.0 / work[c, c]
        for s in range(k):
            work[c, s] *= scale
            out[c, s] *= scale
        for r in range(k):
            factor = work[r, c]
            if r != c and factor != 0.0:
                for s in range(k):
                    work[r, s] -= factor * work[c, s]
                    out[r, s] -= factor * out[c, s]


@subroutine
def criterion(A: Floats, inverse: Floats, pattern: Floats, slope: Floats) -> float:
    """Set pattern (m, k) to Λ = A T⁻ᵀ and slope (m, k) to G, given T⁻¹; return f = ¼ Σ_jr λ_jr g_jr."""
    m, k = A.shape
    value = 0.0
    for j in range(m):
        for r in range(k):
            total = 0.0
            for s in range(k):
                total += A[j, s] * inverse[r, s]
            pattern[j, r] = total
        squares = 0.0
        for r in range(k):
            squares += pattern[j, r] * pattern[j, r]
        for r in range(k):
            slope[j, r] = pattern[j, r] * (squares - pattern[j, r] * pattern[j, r])
        for r in range(k):
            value += pattern[j, r] * slope[j, r]
    return 0.25 * value


@subroutine
def project_slope(T: Floats, inverse: Floats, pattern: Floats, slope: Floats, product: Floats, out: Floats) -> float:
    """Set out (k, k) to the gradient by T, −T⁻ᵀ(GᵀΛ), minus its part along each column of T; return the sum of its squares."""
    m, k = pattern.shape
    for r in range(k):
        for s in range(k):
            product[r, s] = 0.0
    for j in range(m):
        for r in range(k):
            for s in range(k):
                product[r, s] += slope[j, r] * pattern[j, s]
    for r in range(k):
        for s in range(k):
            total = 0.0
            for u in range(k):
                total += inverse[u, r] * product[u, s]
            out[r, s] = -total
    for s in range(k):
        along = 0.0
        for r in range(k):
            along += T[r, s] * out[r, s]
        for r in range(k):
            out[r, s] -= along * T[r, s]
    square = 0.0
    for r in range(k):
        for s in range(k):
            square += out[r, s] * out[r, s]
    return square


@subroutine
def move(T: Floats, gradient: Floats, step: float, out: Floats) -> None:
    """Set out (k, k) to T − step · gradient with columns of length 1."""
    k = len(T)
    for s in range(k):
        for r in range(k):
            out[r, s] = T[r, s] - step * gradient[r, s]
        square = 0.0
        for r in range(k):
            square += out[r, s] * out[r, s]
        length = np.sqrt(square)
        for r in range(k):
            out[r, s] /= length


@kernel
def minimize_oblimin(A: Floats, T: Floats, tolerance: float, rounds: int) -> float:
    """Move T (k, k) to the minimum of f near it, where the projected gradient is at most the tolerance, in place; return f there."""
    m, k = A.shape
    inverse, work, product = np.empty((k, k)), np.empty((k, k)), np.empty((k, k))
    gradient, moved = np.empty((k, k)), np.empty((k, k))
    pattern, slope = np.empty((m, k)), np.empty((m, k))
    invert(T, work, inverse)
    value, step = criterion(A, inverse, pattern, slope), 1.0
    for _ in range(rounds):
        square = project_slope(T, inverse, pattern, slope, product, gradient)
        if square <= tolerance**2:
            break
        step *= 2
        fell = False
        for _ in range(_HALVINGS):
            move(T, gradient, step, moved)
            invert(moved, work, inverse)
            new = criterion(A, inverse, pattern, slope)
            if new < value - 0.5 * step * square:
                fell = True
                break
            step /= 2
        if not fell:
            break
        for r in range(k):
            for s in range(k):
                T[r, s] = moved[r, s]
        value = new
    return value
