"""Kernels of CP: missing entries imputed by the model, and the column updates of the paper's algorithm 1 on a residual tensor.

Shapes: R components of N modes of I_1, …, I_N. A tensor is stored flat, its last mode fastest. From mode n it is
(P, I_n, Q) with P = I_1⋯I_{n−1} and Q = I_{n+1}⋯I_N, and the vectors of the other modes are h = h_P ⊗ h_Q.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]
Sizes = NDArray[np.int64]

_VANISHED = 1e-100  # products of three such numbers underflow to 0


@kernel
def fill_missing(M: Floats, R: Floats, first: int = 0) -> float:
    """Write the target over the model R (n, m): M where it is observed, R where it is missing (NaN).

    The columns of R are those of M from ``first`` on. Returns Σ (M − R)² over the observed entries.
    """
    zero, m = R.dtype.type(0), R.shape[1]
    total = 0.0
    for i in range(R.shape[0]):
        # Column numbers computed as sums might be negative, and the loop would not be vectorized. Slices avoid them.
        row, values, model = zero, M[i, first : first + m], R[i]
        for j in range(m):
            # A missing entry has error 0, without a branch, so that the loop is vectorized.
            target = values[j] if values[j] == values[j] else model[j]
            error = target - model[j]
            row += error * error
            model[j] = target
        total += float(row)
    return total


@kernel
def slice_residuals(M: Floats, R: Floats, out: Doubles) -> None:
    """Add Σ s, Σ s², Σ s e, Σ s e² and Σ s e³ over the rows to the rows of out (5, J), for data M (n, J·q; NaN = missing) with model R.

    s is the observed share of a row's q entries of slice j of mode 2, and e the mean of M − R over these.
    """
    items: int = out.shape[1]
    q = M.shape[1] // items
    for i in range(M.shape[0]):
        for j in range(items):
            count, total = 0, 0.0
            for e in range(j * q, (j + 1) * q):
                observed = M[i, e] == M[i, e]
                count += observed
                total += np.float64(M[i, e]) - np.float64(R[i, e]) if observed else 0.0
            share, part = count / q, total / q
            out[0, j] += share
            out[1, j] += share * share
            out[2, j] += part
            out[3, j] += part * part / share if count else 0.0
            out[4, j] += part * part * part / (share * share) if count else 0.0


@kernel
def subtract(M: Doubles, R: Doubles) -> float:
    """Write the residual M − R over the model R (n, m), NaN where M is missing. Returns Σ (M − R)² over the observed entries."""
    total = 0.0
    for i in range(M.shape[0]):
        row = 0.0
        for j in range(M.shape[1]):
            error = M[i, j] - R[i, j]
            row += error * error if error == error else 0.0
            R[i, j] = error
        total += row
    return total


@kernel
def observed_squares(M: Floats, row_squares: Doubles, row_counts: Doubles, column_squares: Doubles) -> None:
    """Set Σ M² and the number of observed entries of each row (n), and add Σ M² of each column to column_squares (m)."""
    zero = M.dtype.type(0)
    for i in range(M.shape[0]):
        squares, missing = 0.0, 0
        for j in range(M.shape[1]):
            value = M[i, j] if M[i, j] == M[i, j] else zero
            missing += M[i, j] != M[i, j]
            square = float(value) * float(value)
            squares += square
            column_squares[j] += square
        row_squares[i], row_counts[i] = squares, M.shape[1] - missing


@inlined
def kronecker(a: Doubles, shape: Sizes, first: int, last: int) -> Doubles:
    """Return the Kronecker product of the vectors of modes first to last − 1, which lie one after the other in a (ΣI_n)."""
    start, size = 0, 1
    for n in range(last):
        start += shape[n] if n < first else 0
        size *= shape[n] if n >= first else 1
    out = np.ones(size)
    done = 1
    for n in range(first, last):
        # Starting at the end, so that no entry is overwritten before it is read.
        for p in range(done - 1, -1, -1):
            for i in range(shape[n] - 1, -1, -1):
                out[p * shape[n] + i] = out[p] * a[start + i]
        done *= shape[n]
        start += shape[n]
    return out


@inlined
def add_component(E: Doubles, a: Doubles, shape: Sizes, sign: float) -> None:
    """Add a component: E += sign · a⁽¹⁾∘…∘a⁽ᴺ⁾."""
    left, size = kronecker(a, shape, 0, len(shape) - 1), shape[-1]
    last = a[len(a) - size :]
    for p in range(len(left)):
        scale, row = sign * left[p], E[p * size : (p + 1) * size]
        if scale != 0.0:
            for q in range(size):
                row[q] += scale * last[q]


@inlined
def slice_sums(W: Doubles, left: Doubles, right: Doubles, u: Doubles, d: Doubles) -> None:
    """Set u_i = (h∘δ_i)ᵀw_i and d_i = ‖h∘δ_i‖² (equations 20 and 19) for the slices of W (P, I, Q), NaN where δ = 0."""
    size, width = len(u), len(right)
    u[:], d[:] = 0.0, 0.0
    for p in range(len(left)):
        h, start = left[p], p * size * width
        if h == 0.0:
            continue
        if width == 1:
            h *= right[0]  # the product over modes with a single slice
            row = W[start : start + size]
            for i in range(size):
                seen = row[i] == row[i]
                u[i] += h * row[i] if seen else 0.0
                d[i] += h * h if seen else 0.0
            continue
        for i in range(size):
            row = W[start + i * width : start + (i + 1) * width]
            total, squares = 0.0, 0.0
            for q in range(width):
                seen = row[q] == row[q]
                total += right[q] * row[q] if seen else 0.0
                squares += right[q] * right[q] if seen else 0.0
            u[i] += h * total
            d[i] += h * h * squares


@kernel
def residual_sweep(E: Doubles, A: Doubles, shape: Sizes, ridge: Doubles, l1: float, nonnegative: bool, support: Doubles) -> None:
    """Run one iteration of algorithm 1 on the residual E (flat, NaN where missing) and the factors A (R, ΣI_n), in place.

    For each component and each of its modes a = soft(u, l1) / (d + ridge) (equations 20, 22, 24), with the
    ridge λ(1−α)R_n⁻¹ of all modes one after the other (ΣI_n). With a ``support`` (R, ΣI_n), 0 where an
    entry stays 0, it is algorithm 2; a support of shape (0, 0) stands for none.
    """
    least = 0.0 if nonnegative else -np.inf
    for r in range(len(A)):
        a = A[r]
        if not a.any():  # a component of zeros would stay so
            continue
        add_component(E, a, shape, 1.0)
        start = 0
        for n in range(len(shape)):
            u, d = np.empty(shape[n]), np.empty(shape[n])
            slice_sums(E, kronecker(a, shape, 0, n), kronecker(a, shape, n + 1, len(shape)), u, d)
            for i in range(shape[n]):
                curvature = d[i] + ridge[start + i]
                # Not a product with 0: the sign of the result would depend on the instructions that the compiler chooses.
                moved = max(max(u[i] - l1, 0.0) + min(u[i] + l1, 0.0), least)
                free = len(support) == 0 or support[r, start + i] != 0.0
                a[start + i] = moved / curvature if free and curvature > 0.0 else 0.0
            start += shape[n]
        add_component(E, a, shape, -1.0)


@kernel
def balance(squares: Doubles, sizes: Doubles, l2: float, l1: float) -> Doubles:
    """Return the scales c (N, R) of each component's modes that minimize their penalties, with Π_n c_n = 1.

    For each mode's vector a, squares (N, R) are aᵀR_n⁻¹a and sizes (N, R) ‖a‖₁. At the minimum the derivatives are equal:
    l2·squares·c² + l1·sizes·c = μ for all modes. Newton's method finds log μ, on a monotone function.
    """
    c = np.ones_like(squares)
    for r in range(squares.shape[1]):
        p, q = l2 * squares[:, r], l1 * sizes[:, r]
        if (p + q).min() <= _VANISHED:  # the component has almost vanished, so that products would underflow, or it has no penalty
            continue
        t = np.log(p + q).mean()
        for _ in range(50):
            excess, slope = 0.0, 0.0
            for n in range(len(p)):
                mu = np.exp(t)
                c[n, r] = 2.0 * mu / (q[n] + np.sqrt(q[n] * q[n] + 4.0 * p[n] * mu))
                excess += np.log(c[n, r])
                slope += mu / (c[n, r] * (2.0 * p[n] * c[n, r] + q[n]))
            if abs(excess) <= 1e-14 * len(p):
                break
            t -= excess / slope
    return c
