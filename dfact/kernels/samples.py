"""Samples of slices in algorithm 4: their optimal factors, and the subproblems of the other modes.

Shapes: b slices of I_2⋯I_N = m entries; R components. The factors A (R, ΣI_n) of modes 2 to N are stored side by side, ``shape``
holds their sizes I_n. ``observed`` (b, m) is 1 where an entry of ``values`` (b, m) is observed; elsewhere both are 0. Its shape is
(0, 0) if nothing is missing. The R(R+1)/2 pairs of components are in the order of a lower triangle, row by row.
BLAS computes the products; single precision is enough for those with the mask.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.elastic_net import solve_columns
from dfact.kernels.jit import inlined, kernel

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]
Sizes = NDArray[np.int64]


@inlined
def khatri_rao(A: Floats, shape: Sizes, first: int, last: int) -> Floats:
    """Return the Khatri-Rao product (R, Π I_n): row r is the Kronecker product of the vectors a_r of the modes first to last − 1."""
    start, size = 0, 1
    for n in range(last):
        start += shape[n] if n < first else 0
        size *= shape[n] if n >= first else 1
    out = np.ones((len(A), size), A.dtype)
    for r in range(len(A)):
        row, done, offset = out[r], 1, start
        for n in range(first, last):
            # Starting at the end, so that no entry is overwritten before it is read.
            for p in range(done - 1, -1, -1):
                factor, into = row[p], row[p * shape[n] : (p + 1) * shape[n]]
                for i in range(shape[n] - 1, -1, -1):
                    into[i] = factor * A[r, offset + i]
            done *= shape[n]
            offset += shape[n]
    return out


@inlined
def contracted(T: Floats, A: Floats, shape: Sizes, keep: int) -> Doubles:
    """Return T (R, m) with each row r multiplied by the vectors a_r of all modes but ``keep`` (R, I_keep)."""
    left, right = khatri_rao(A, shape, 0, keep), khatri_rao(A, shape, keep + 1, len(shape))
    size, width = shape[keep], right.shape[1]
    out = np.zeros((len(T), size))
    for r in range(len(T)):
        for p in range(left.shape[1]):
            factor, part_of_row = left[r, p], T[r, p * size * width : (p + 1) * size * width]
            if width == 1:
                factor *= right[r, 0]  # the product over modes with a single slice
                for i in range(size):
                    out[r, i] += factor * part_of_row[i]
                continue
            for i in range(size):
                total = T.dtype.type(0)
                for q in range(width):
                    total += right[r, q] * part_of_row[i * width + q]
                out[r, i] += factor * total
    return out


@inlined
def pair_products(A: Doubles, shape: Sizes) -> tuple[NDArray[np.float32], Doubles]:
    """Return products of the vectors of two components, each divided by its largest entry (R(R+1)/2, ΣI_n), and these (N−1, R).

    Products of the entries themselves may be too large for single precision.
    """
    k = len(A)
    sizes, pairs = np.ones((len(shape), k)), np.empty((k * (k + 1) // 2, A.shape[1]), np.float32)
    start = 0
    for n in range(len(shape)):
        for r in range(k):
            largest = np.abs(A[r, start : start + shape[n]]).max()
            sizes[n, r] = largest if largest > 0.0 else 1.0
            for q in range(r + 1):
                row, scale = pairs[r * (r + 1) // 2 + q], 1.0 / (sizes[n, r] * sizes[n, q])
                for i in range(start, start + shape[n]):
                    row[i] = A[r, i] * A[q, i] * scale
        start += shape[n]
    return pairs, sizes


@kernel
def optimal_slices(
    values: Floats, observed: NDArray[np.float32], A: Doubles, shape: Sizes, ridge: Doubles, l1: float, nonnegative: bool, tolerance: float
) -> Doubles:
    """Return the optimal factors (R, b) of slices given those of the other modes; ``ridge`` (b) differs by slice.

    The objective is as in :func:`dfact.kernels.elastic_net.solve_columns`, with the Gram matrices Σ h_j h_jᵀ over the observed
    entries.
    """
    k, b = len(A), len(values)
    H = khatri_rao(A.astype(values.dtype), shape, 0, len(shape))
    U = np.dot(H, values.T).astype(np.float64)
    grams = np.empty((b if len(observed) else 1, k, k))
    if len(observed):
        pairs, sizes = pair_products(A, shape)
        packed = np.dot(observed, khatri_rao(pairs, shape, 0, len(shape)).T)
        for r in range(k):
            for q in range(r + 1):
                scale = 1.0
                for n in range(len(shape)):
                    scale *= sizes[n, r] * sizes[n, q]
                for i in range(b):
                    grams[i, r, q] = grams[i, q, r] = scale * packed[i, r * (r + 1) // 2 + q]
    else:
        gram = gram_product(A, shape, -1)
        for r in range(k):
            for q in range(k):
                grams[0, r, q] = gram[r, q]
    X = np.zeros((k, b))
    solve_columns(X, U, grams, ridge, l1, nonnegative, tolerance)
    return X


@inlined
def gram_product(A: Doubles, shape: Sizes, skip: int) -> Doubles:
    """Return the elementwise product (R, R) of the Gram matrices of all modes except ``skip``."""
    k, start = len(A), 0
    G = np.ones((k, k))
    for n in range(len(shape)):
        if n != skip:
            for r in range(k):
                for q in range(k):
                    total = 0.0
                    for i in range(start, start + shape[n]):
                        total += A[r, i] * A[q, i]
                    G[r, q] *= total
        start += shape[n]
    return G


@kernel
def residual_squares(X: Doubles, values: Floats, observed: NDArray[np.float32], A: Doubles, shape: Sizes) -> float:
    """Return Σ (values − model)² over the observed entries of slices with the factors X (R, b)."""
    model = np.dot(X.T, khatri_rao(A, shape, 0, len(shape)))
    total = 0.0
    for i in range(len(values)):
        row = 0.0
        for j in range(values.shape[1]):
            error = values[i, j] - model[i, j]
            row += error * error if len(observed) == 0 or observed[i, j] != 0 else 0.0
        total += row
    return total


@kernel
def contracted_slices(
    X: Doubles, values: Floats, observed: NDArray[np.float32], A: Doubles, shape: Sizes, exact: bool
) -> tuple[Floats, NDArray[np.float32]]:
    """Contract slices with their factors X (R, b): C (R, m) is all that the subproblems need of the data.

    If ``exact``, missing entries are left out, and the mask is contracted with the products of two factors, each divided by its
    component's largest: P (R(R+1)/2, m). Otherwise the model is imputed for missing entries, and P has the shape (0, 0).
    """
    b = X.shape[1]
    rows = X.astype(values.dtype)
    if len(observed) == 0 or exact:
        C = np.dot(rows, values)
        if len(observed) == 0:
            return C, np.empty((0, 0), np.float32)
        products, _ = pair_products(X, np.array([b]))
        return C, np.dot(products, observed)
    target = np.dot(rows.T, khatri_rao(A.astype(values.dtype), shape, 0, len(shape)))
    for i in range(b):
        for j in range(values.shape[1]):
            target[i, j] = values[i, j] if observed[i, j] != 0 else target[i, j]
    return np.dot(rows, target), np.empty((0, 0), np.float32)


@kernel
def subproblem(keep: int, X: Doubles, C: Floats, P: NDArray[np.float32], A: Doubles, shape: Sizes) -> tuple[Doubles, Doubles]:
    """Return a mode's least squares problem, given :func:`contracted_slices`: linear terms U (R, I_keep) and Gram matrices G.

    G (R(R+1)/2, I_keep) holds a packed lower triangle for each slice of the mode, or (R(R+1)/2, 1) a common one.
    """
    k = len(A)
    U = contracted(C, A.astype(C.dtype), shape, keep)
    if len(P) == 0:
        gram = gram_product(A, shape, keep) * np.dot(X, X.T)
        G = np.empty((k * (k + 1) // 2, 1))
        for r in range(k):
            for q in range(r + 1):
                G[r * (r + 1) // 2 + q, 0] = gram[r, q]
        return U, G
    pairs, sizes = pair_products(A, shape)
    G = contracted(P, pairs, shape, keep)
    for r in range(k):
        for q in range(r + 1):
            scale = np.abs(X[r]).max() * np.abs(X[q]).max()
            for n in range(len(shape)):
                scale *= sizes[n, r] * sizes[n, q] if n != keep else 1.0
            G[r * (r + 1) // 2 + q] *= scale
    return U, G
