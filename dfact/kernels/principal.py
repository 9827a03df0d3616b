"""Kernels of principal components: moments of columns, centred and scaled entries, and rows and columns of probabilistic PCA.

Probabilistic PCA (Tipping & Bishop 1999) models the observed entries o of a row as x_o = W_oᵀz + a_o + noise with z ~ N(0, I) of k
entries and noise of variance σ². With G = W_o W_oᵀ, b = W_o (x_o − a_o) and C = G + σ²I, z given x_o has mean C⁻¹b and covariance σ²C⁻¹.

A symmetric matrix (k, k) is packed as its lower triangle, row by row: t = k(k+1)/2 entries.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel, subroutine

Floats = NDArray[np.floating]
_LEAST_PIVOT = 1e-14  # of a matrix, relative to its diagonal
_LOG_2PI = np.log(2 * np.pi)


@kernel
def column_moments(raw: NDArray[np.generic], missing: float, shift: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Add number, sum and sum of squares of the observed entries of raw (n, m) minus the shift (m) to the rows of out (3, m)."""
    counts, sums, squares = out[0], out[1], out[2]
    for i in range(raw.shape[0]):
        row = raw[i]
        for j in range(raw.shape[1]):
            value = np.float64(row[j])
            observed = (value == value) & (value != missing)
            # Written without a branch, so that the loops are vectorized.
            difference = value - shift[j] if observed else 0.0
            counts[j] += 1.0 if observed else 0.0
            sums[j] += difference
            squares[j] += difference * difference


@kernel
def standardize(raw: NDArray[np.generic], missing: float, mean: NDArray[np.float64], factor: NDArray[np.float64], out: Floats) -> None:
    """Set out (n, m) to (raw − mean)·factor of its column, and to 0 where raw is NaN or the missing code."""
    for i in range(raw.shape[0]):
        row, target = raw[i], out[i]
        for j in range(raw.shape[1]):
            value = np.float64(row[j])
            target[j] = (value - mean[j]) * factor[j] if (value == value) & (value != missing) else 0.0


@kernel
def mark_observed(raw: NDArray[np.generic], missing: float, out: Floats) -> None:
    """Set out (n, m) to 1 where raw is observed, and to 0 where it is NaN or the missing code."""
    for i in range(raw.shape[0]):
        row, target = raw[i], out[i]
        for j in range(raw.shape[1]):
            value = row[j]
            target[j] = 1.0 if (value == value) & (value != missing) else 0.0


@kernel
def count_observed(raw: NDArray[np.generic], missing: float, out: NDArray[np.int64]) -> None:
    """Set out (n,) to the number of observed entries of each row of raw (n, m)."""
    for i in range(raw.shape[0]):
        row, count = raw[i], 0
        for j in range(raw.shape[1]):
            value = row[j]
            count += (value == value) & (value != missing)
        out[i] = count


@subroutine
def factorize(A: Floats, L: Floats) -> None:
    """Set the lower triangle of L (k, k) to Cholesky's factor of A; pivots are bounded below."""
    for u in range(A.shape[0]):
        for v in range(u + 1):
            total = A[u, v]
            for w in range(v):
                total -= L[u, w] * L[v, w]
            if u == v:
                L[u, u] = np.sqrt(max(total, _LEAST_PIVOT * A[u, u] + 1e-300))
            else:
                L[u, v] = total / L[v, v]


@subroutine
def substitute(L: Floats, b: Floats, x: Floats) -> None:
    """Set x (k,) to the solution of L Lᵀ x = b."""
    k = b.size
    for u in range(k):
        total = b[u]
        for w in range(u):
            total -= L[u, w] * x[w]
        x[u] = total / L[u, u]
    for u in range(k - 1, -1, -1):
        total = x[u]
        for w in range(u + 1, k):
            total -= L[w, u] * x[w]
        x[u] = total / L[u, u]


@inlined
def factorize_row(packed: Floats, noise: float, C: Floats, L: Floats) -> float:
    """Unpack G (t,), set C (k, k) to G + σ²I and L to its factor; return log |C|."""
    at, logs = 0, 0.0
    for r in range(C.shape[0]):
        for s in range(r + 1):
            C[r, s] = C[s, r] = packed[at]
            at += 1
        C[r, r] += noise
    factorize(C, L)
    for r in range(C.shape[0]):
        logs += 2 * np.log(L[r, r])
    return logs


@kernel
def posterior_rows(
    grams: Floats, products: Floats, squares: Floats, counts: NDArray[np.int64], noise: float, moments: Floats, likelihoods: Floats
) -> None:
    """Compute the expectations of each row, given G (n, t), b (n, k), ‖x_o − a_o‖² (n,) and the number of observed entries (n,).

    With ẑ = (z, 1), moments (n, (k+1)(k+2)/2) gets E[ẑẑᵀ], packed: its last k + 1 entries are E[ẑ]. likelihoods (n,) gets

        log p(x_o) = −½ (|o| log 2π + (|o| − k) log σ² + log |C| + (‖x_o − a_o‖² − bᵀC⁻¹b)/σ²).

    Rows without observed entries get zeros.
    """
    k = products.shape[1]
    C, L, z, b, unit, column = np.empty((k, k)), np.empty((k, k)), np.empty(k), np.empty(k), np.zeros(k), np.empty(k)
    for i in range(products.shape[0]):
        if counts[i] == 0:
            moments[i] = 0.0
            likelihoods[i] = 0.0
            continue
        logs = factorize_row(grams[i], noise, C, L)
        explained = 0.0
        for r in range(k):
            b[r] = products[i, r]
        substitute(L, b, z)
        for r in range(k):
            explained += b[r] * z[r]
        rest = (squares[i] - explained) / noise
        likelihoods[i] = -0.5 * (counts[i] * _LOG_2PI + (counts[i] - k) * np.log(noise) + logs + rest)
        for s in range(k):  # a column of C⁻¹ at a time
            unit[s] = 1.0
            substitute(L, unit, column)
            unit[s] = 0.0
            for r in range(s, k):
                moments[i, r * (r + 1) // 2 + s] = noise * column[r] + z[r] * z[s]
        last = k * (k + 1) // 2
        for r in range(k):
            moments[i, last + r] = z[r]
        moments[i, last + k] = 1.0


@kernel
def regress_columns(grams: NDArray[np.float64], cross: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Set each column of out (k+1, c) to the solution of S x = cross, given S, packed (t, c), and cross (k+1, c)."""
    k = cross.shape[0]
    S, L, x, b = np.empty((k, k)), np.empty((k, k)), np.empty(k), np.empty(k)
    for j in range(cross.shape[1]):
        at = 0
        for r in range(k):
            b[r] = cross[r, j]
            for s in range(r + 1):
                S[r, s] = S[s, r] = grams[at, j]
                at += 1
        factorize(S, L)
        substitute(L, b, x)
        for r in range(k):
            out[r, j] = x[r]


@kernel
def expected_scores(grams: Floats, products: Floats, weights: NDArray[np.float64], noise: float, out: Floats) -> None:
    """Set out (n, k) to the expected scores E[U(x − μ) | x_o] of rows with missing entries, U (k, m) with orthonormal rows.

    They are c + (I − G) D z with G = U_oU_oᵀ (n, t), packed, c = U_o(x_o − μ_o) (n, k), W = D U for the diagonal D of the weights
    (k,), and z = (DGD + σ²I)⁻¹ D c: the missing entries are replaced by their expectations. A σ² of 0 gives least squares.
    """
    k = products.shape[1]
    G, C, L = np.empty((k, k)), np.empty((k, k)), np.empty((k, k))
    z, b = np.empty(k), np.empty(k)
    for i in range(products.shape[0]):
        at = 0
        for r in range(k):
            b[r] = weights[r] * products[i, r]
            for s in range(r + 1):
                G[r, s] = G[s, r] = grams[i, at]
                C[r, s] = C[s, r] = weights[r] * weights[s] * G[r, s]
                at += 1
            C[r, r] += noise
        factorize(C, L)
        substitute(L, b, z)
        for r in range(k):
            z[r] *= weights[r]
        for r in range(k):
            total = products[i, r] + z[r]
            for s in range(k):
                total -= G[r, s] * z[s]
            out[i, r] = total
