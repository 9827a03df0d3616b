"""Kernels of memberships by binomial likelihood: slopes and curvatures of each entry, and Newton's steps of rows and columns.

An entry g of the codes G (n, m), a count of 0 to M, has the log-likelihood g log f + (M − g) log(1 − f) with f = Σ_k q_k p_k; a
code above M is missing, and its terms are 0. Rows q (K,) lie on the simplex with q_k ≥ 1e-5, frequencies p in [1e-5, 1 − 1e-5].
Blocks of rows are processed in tiles of columns, ``first`` to ``first`` + c of G, so that F (n, c) stays in the cache.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import inlined, kernel, subroutine

Floats = NDArray[np.floating]
Codes = NDArray[np.uint8]

EDGE = 1e-5
"""Bound of memberships and frequencies."""
_LANES = 64  # products of eight likelihoods that are formed side by side: the least is 1e-80, which is above 0
_LEAST_PRODUCT = 1e-140
_LEAST_PIVOT = 1e-8  # of a matrix, relative to its diagonal, which is summed in single precision


@kernel
def row_slopes(G: Codes, first: int, F: Floats, trials: int, C: Floats, S: Floats) -> None:
    """Set C (n, c) to a − b and S (n, c) to a/f + b/(1 − f), for a = g/f and b = (M − g)/(1 − f); both are 0 for missing entries."""
    one, zero, M = F.dtype.type(1), F.dtype.type(0), F.dtype.type(trials)
    for i in range(F.shape[0]):
        codes, f_row, c_row, s_row = G[i, first : first + F.shape[1]], F[i], C[i], S[i]
        for j in range(F.shape[1]):
            f, g = f_row[j], F.dtype.type(codes[j])
            rest = one - f
            inverse = one / (f * rest) if codes[j] <= trials else zero
            c_row[j] = (g - M * f) * inverse
            s_row[j] = (g * rest * rest + (M - g) * f * f) * inverse * inverse


@kernel
def column_slopes(G: Codes, first: int, F: Floats, trials: int, A: Floats, B: Floats, S: Floats) -> None:
    """Set A (n, c) to a, B to b, and S to a/f + b/(1 − f), as in :func:`row_slopes`."""
    one, zero, M = F.dtype.type(1), F.dtype.type(0), F.dtype.type(trials)
    for i in range(F.shape[0]):
        codes, f_row, a_row, b_row, s_row = G[i, first : first + F.shape[1]], F[i], A[i], B[i], S[i]
        for j in range(F.shape[1]):
            f, g = f_row[j], F.dtype.type(codes[j])
            rest = one - f
            inverse = one / (f * rest) if codes[j] <= trials else zero
            a, b = g * rest * inverse, (M - g) * f * inverse
            a_row[j] = a
            b_row[j] = b
            s_row[j] = (a * rest + b * f) * inverse


@kernel
def add_log_likelihoods(G: Codes, first: int, F: Floats, trials: int, out: NDArray[np.float64]) -> None:
    """Add Σ g log f + (M − g) log(1 − f) over the observed entries of each row to out (n,).

    Of genotypes, M = 2, eight likelihoods are multiplied in each lane, and then the lanes, before a logarithm is taken.
    """
    one, n_columns, span = F.dtype.type(1), F.shape[1], _LANES * 8
    likelihoods, product = np.empty(span, F.dtype), np.empty(_LANES)
    for i in range(F.shape[0]):
        codes, f_row, total, running = G[i, first : first + n_columns], F[i], 0.0, 1.0
        if trials != 2:
            for j in range(n_columns):
                if codes[j] <= trials:
                    g = float(codes[j])
                    total += g * np.log(np.float64(f_row[j])) + (trials - g) * np.log(np.float64(one - f_row[j]))
            out[i] += total
            continue
        for start in range(0, n_columns, span):
            count = min(span, n_columns - start)
            some_codes, some = codes[start : start + count], f_row[start : start + count]
            for j in range(count):
                f, g = some[j], some_codes[j]
                rest = one - f
                likelihood = (f if g >= 2 else rest) * (f if g >= 1 else rest)
                likelihoods[j] = likelihood if g <= 2 else one
            if count <= _LANES:  # of the columns of a narrow tile each has a lane
                for lane in range(_LANES):
                    product[lane] = np.float64(likelihoods[lane]) if lane < count else 1.0
            else:
                for j in range(count, span):
                    likelihoods[j] = one
                for lane in range(_LANES):
                    product[lane] = (
                        np.float64(likelihoods[lane])
                        * np.float64(likelihoods[lane + _LANES])
                        * np.float64(likelihoods[lane + 2 * _LANES])
                        * np.float64(likelihoods[lane + 3 * _LANES])
                        * np.float64(likelihoods[lane + 4 * _LANES])
                        * np.float64(likelihoods[lane + 5 * _LANES])
                        * np.float64(likelihoods[lane + 6 * _LANES])
                        * np.float64(likelihoods[lane + 7 * _LANES])
                    )
            for lane in range(_LANES // 2):
                running *= product[lane] * product[lane + _LANES // 2]  # at least 1e-140 · 1e-160
                if running < _LEAST_PRODUCT:
                    total += np.log(running)
                    running = 1.0
        out[i] += total + np.log(running)


@kernel
def encode(values: Floats, out: Codes) -> None:
    """Set out (n, m) to the values, whole numbers from 0 to 254, and to 255 where they are NaN."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j]
            out[i, j] = np.uint8(np.int32(value)) if value == value else np.uint8(255)


@kernel
def fill_codes(G: Codes, trials: int, fill: Floats, out: Floats) -> None:
    """Set out (n, m) to the codes, and to the fill (m) of their column where they are missing."""
    for i in range(G.shape[0]):
        for j in range(G.shape[1]):
            out[i, j] = G[i, j] if G[i, j] <= trials else fill[j]


@kernel
def mask_codes_by_fold(G: Codes, start: int, fold: int, n_folds: int, seed: int, keep: bool, out: Codes) -> None:
    """Copy the codes whose entries belong to a fold (``keep``), or all others; the rest are 255, missing.

    The fold of an entry is a hash of the number of its row (the first is ``start``), its column and the seed.
    """
    shift, folds, salt = np.uint64(32), np.uint64(n_folds), np.uint64(seed) * np.uint64(0xD6E8FEB86659FD93)
    for i in range(G.shape[0]):
        row = np.uint64(start + i) * np.uint64(0x9E3779B97F4A7C15) + salt
        for j in range(G.shape[1]):
            h = row + np.uint64(j) * np.uint64(0xC2B2AE3D27D4EB4F)
            h = (h ^ (h >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            held_out = np.int64(((h >> shift) * folds) >> shift) == fold
            out[i, j] = G[i, j] if held_out == keep else np.uint8(255)


@kernel
def add_deviances(G: Codes, first: int, F: Floats, trials: int, counts: NDArray[np.float64]) -> None:
    """Add Σ g log(g/μ) + (M − g) log((M − g)/(M − μ)) over the observed entries, μ = Mf, to counts[0], and their number to counts[1]."""
    for i in range(F.shape[0]):
        total, observed = 0.0, 0
        for j in range(F.shape[1]):
            code = G[i, first + j]
            if code <= trials:
                g, f = float(code), np.float64(F[i, j])
                if g > 0:
                    total += g * np.log(g / (trials * f))
                if g < trials:
                    total += (trials - g) * np.log((trials - g) / (trials * (1 - f)))
                observed += 1
        counts[0] += total
        counts[1] += observed


@subroutine
def solve_free(H: Floats, free: NDArray[np.int64], n: int, right: Floats, L: Floats, out: Floats) -> None:
    """Solve H x = right for the n free unknowns by Cholesky's factorization L (K, K); pivots are bounded below, so H may be singular."""
    for u in range(n):
        for v in range(u + 1):
            total = H[free[u], free[v]]
            for w in range(v):
                total -= L[u, w] * L[v, w]
            if u == v:
                least = _LEAST_PIVOT * H[free[u], free[u]] + 1e-30
                L[u, u] = np.sqrt(max(total, least))
            else:
                L[u, v] = total / L[v, v]
    for u in range(n):
        total = right[u]
        for w in range(u):
            total -= L[u, w] * out[w]
        out[u] = total / L[u, u]
    for u in range(n - 1, -1, -1):
        total = out[u]
        for w in range(u + 1, n):
            total -= L[w, u] * out[w]
        out[u] = total / L[u, u]


@subroutine
def is_finite(values: Floats, n: int) -> bool:
    """Check whether the first n values are finite."""
    total = 0.0
    for u in range(n):
        total += abs(values[u])
    return total < np.inf


@subroutine
def gradient(slope: Floats, H: Floats, d: Floats, out: Floats) -> None:
    """Set out (K,) to slope − H d."""
    for k in range(d.size):
        total = slope[k]
        for u in range(d.size):
            total -= H[k, u] * d[u]
        out[k] = total


@inlined
def maximize(x: Floats, slope: Floats, H: Floats, simplex: bool, work: Floats, places: NDArray[np.int64]) -> None:
    """Move x (K,) to the maximum of slope·d − dᵀHd/2 over x + d in [1e-5, 1 − 1e-5] or, on the simplex, x + d ≥ 1e-5 with Σd = 0.

    A primal active-set method. ``work`` (K + 5, K) and ``places`` (2, K) are working space.
    """
    K = x.size
    d, rest, move, ones, unit, L = work[0], work[1], work[2], work[3], work[4], work[5:]
    free, fixed = places[0], places[1]
    high, scale = np.inf if simplex else 1 - EDGE, 0.0
    for k in range(K):
        d[k], unit[k] = 0.0, 1.0
        fixed[k] = -1 if x[k] <= EDGE * (1 + 1e-7) else (1 if x[k] >= high - 1e-12 else 0)
        scale = max(scale, abs(slope[k]))
    for _ in range(8 * K):
        n = 0
        for k in range(K):
            if fixed[k] == 0:
                free[n] = k
                n += 1
        gradient(slope, H, d, rest)
        level = rest[free[0]] if simplex and n else 0.0
        if n > (1 if simplex else 0):
            for u in range(n):
                ones[u] = rest[free[u]]
            solve_free(H, free, n, ones, L, move)
            if simplex:
                solve_free(H, free, n, unit, L, ones)
                above, below = 0.0, 0.0
                for u in range(n):
                    above += move[u]
                    below += ones[u]
                level = above / below
                for u in range(n):
                    move[u] -= level * ones[u]
            if not is_finite(move, n):  # with more unknowns than the data determine, the factor L may overflow
                break
            step, blocking = 1.0, -1
            for u in range(n):
                z = x[free[u]] + d[free[u]]
                t = 1.0
                if z + move[u] < EDGE:
                    t = max((EDGE - z) / move[u], 0.0)
                elif z + move[u] > high:
                    t = max((high - z) / move[u], 0.0)
                if t < step:
                    step, blocking = t, u
            for u in range(n):
                d[free[u]] += step * move[u]
            if blocking >= 0:
                k = free[blocking]
                fixed[k] = 1 if move[blocking] > 0 else -1
                d[k] = (high if move[blocking] > 0 else EDGE) - x[k]
                continue
            gradient(slope, H, d, rest)
        # At the maximum of the free unknowns: the gradient of each fixed one points out of its bounds, or it is released.
        gain, released = 1e-9 * (1 + scale), -1
        for k in range(K):
            inward = -fixed[k] * (rest[k] - level)
            if inward > gain:
                gain, released = inward, k
        if released < 0:
            break
        fixed[released] = 0
    for k in range(K):
        x[k] = min(max(x[k] + d[k], EDGE), 1 - EDGE if not simplex else 1.0)


@kernel
def newton_rows(Q: NDArray[np.float64], slopes: NDArray[np.float64], curvatures: NDArray[np.float64]) -> None:
    """Move each row of Q (n, K) to the maximum of its quadratic on the simplex, in place.

    The slopes are (n, K), the curvatures (n, K(K+1)/2) lower triangles row by row, of minus the Hessian. On the simplex a matrix
    u1ᵀ + 1uᵀ may be added to them, and a number to the slopes.
    """
    K = Q.shape[1]
    H, work, places = np.empty((K, K)), np.empty((K + 5, K)), np.empty((2, K), np.int64)
    for i in range(Q.shape[0]):
        trace, at = 0.0, 0
        for k in range(K):
            for u in range(k + 1):
                H[k, u] = H[u, k] = curvatures[i, at]
                at += 1
            trace += H[k, k]
        for k in range(K):  # along (1, …, 1), which no step takes, the curvature may be 0
            for u in range(K):
                H[k, u] += trace / K
        maximize(Q[i], slopes[i], H, True, work, places)
        total = 0.0
        for k in range(K):
            total += Q[i, k]
        for k in range(K):
            Q[i, k] /= total


@kernel
def newton_columns(P: NDArray[np.float64], slopes: NDArray[np.float64], curvatures: NDArray[np.float64]) -> None:
    """Move each column of P (K, c) to the maximum of its quadratic in its box, in place.

    The slopes are (K, c), the curvatures (K(K+1)/2, c) lower triangles.
    """
    K = P.shape[0]
    H, work, places = np.empty((K, K)), np.empty((K + 5, K)), np.empty((2, K), np.int64)
    x, slope = np.empty(K), np.empty(K)
    for j in range(P.shape[1]):
        at = 0
        for k in range(K):
            x[k], slope[k] = P[k, j], slopes[k, j]
            for u in range(k + 1):
                H[k, u] = H[u, k] = curvatures[at, j]
                at += 1
        maximize(x, slope, H, False, work, places)
        for k in range(K):
            P[k, j] = x[k]


@kernel
def count_rows(G: Codes, trials: int, out: NDArray[np.float64]) -> None:
    """Set out (n,) to the number of observed entries of each row."""
    for i in range(G.shape[0]):
        count = 0
        for j in range(G.shape[1]):
            count += G[i, j] <= trials
        out[i] = count


@kernel
def count_columns(G: Codes, trials: int, totals: NDArray[np.int64], observed: NDArray[np.int64]) -> None:
    """Add the sum and the number of the observed entries of each column to totals (m) and observed (m)."""
    for i in range(G.shape[0]):
        for j in range(G.shape[1]):
            code = G[i, j]
            totals[j] += code if code <= trials else 0
            observed[j] += code <= trials


@kernel
def count_residuals(G: Codes, first: int, F: Floats, trials: int, out: NDArray[np.float64]) -> None:
    """Add 1, r, r² and r³ for the residuals r = g − Mf of the observed entries of F (n, c) to the rows of out (4, m), by column."""
    for i in range(F.shape[0]):
        for j in range(F.shape[1]):
            # Written without a branch, so that the loop is vectorized.
            code = G[i, first + j]
            observed = np.float64(1.0 if code <= trials else 0.0)
            error = observed * (np.float64(code) - trials * np.float64(F[i, j]))
            out[0, first + j] += observed
            out[1, first + j] += error
            out[2, first + j] += error * error
            out[3, first + j] += error * error * error
