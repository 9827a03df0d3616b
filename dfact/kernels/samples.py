"""A sample of slices in algorithm 4: their factors at their optimum, and the subproblems of the other modes.

Shapes: b slices of I_2⋯I_N = m entries; R components. The factors A (R, ΣI_n) of modes 2 to N lie side by side, ``shape`` holds
their sizes I_n. ``observed`` (b, m) is 1 where an entry of ``values`` (b, m) is observed and 0 elsewhere, where the value is 0, too;
(0, 0) if nothing is missing. The R(R+1)/2 pairs of components come in the order of a lower triangle, row by row.
Products go through BLAS, those with the mask in single precision: enough for a sample.
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
    """Row r is the Kronecker product of the vectors a_r of the modes first to last − 1 (R, Π I_n)."""
    start, size = 0, 1
    for n in range(last):
        start += shape[n] if n < first else 0
        size *= shape[n] if n >= first else 1
    out = np.ones((len(A), size), A.dtype)
    for r in range(len(A)):
        row, done, place = out[r], 1, start
        for n in range(first, last):
            # From the end, so that what is read has not been written over.
            for p in range(done - 1, -1, -1):
                factor, into = row[p], row[p * shape[n] : (p + 1) * shape[n]]
                for i in range(shape[n] - 1, -1, -1):
                    into[i] = factor * A[r, place + i]
            done *= shape[n]
            place += shape[n]
    return out


@inlined
def contracted(T: Floats, A: Floats, shape: Sizes, keep: int) -> Doubles:
    """T (R, m) with each row r multiplied by the vectors a_r of all modes but ``keep`` (R, I_keep)."""
    left, right = khatri_rao(A, shape, 0, keep), khatri_rao(A, shape, keep + 1, len(shape))
    size, width = shape[keep], right.shape[1]
    out = np.zeros((len(T), size))
    for r in range(len(T)):
        for p in range(left.shape[1]):
            factor, part_of_row = left[r, p], T[r, p * size * width : (p + 1) * size * width]
            if width == 1:
                factor *= right[r, 0]  # of modes of one slice
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
def pairs_of(A: Doubles, shape: Sizes) -> tuple[NDArray[np.float32], Doubles]:
    """Products of the vectors of two components, each over its largest entry (R(R+1)/2, ΣI_n), and these (N−1, R).

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
    """The factors (R, b) of slices at their optimum given those of the other modes; ``ridge`` (b) is each slice's own.

    See :func:`dfact.kernels.elastic_net.solve_columns` for the objective, whose Gram matrices are Σ h_j h_jᵀ over the observed entries.
    """
    k, b = len(A), len(values)
    H = khatri_rao(A.astype(values.dtype), shape, 0, len(shape))
    U = np.dot(H, values.T).astype(np.float64)
    grams = np.empty((b if len(observed) else 1, k, k))
    if len(observed):
        pairs, sizes = pairs_of(A, shape)
        packed = np.dot(observed, khatri_rao(pairs, shape, 0, len(shape)).T)
        for r in range(k):
            for q in range(r + 1):
                scale = 1.0
                for n in range(len(shape)):
                    scale *= sizes[n, r] * sizes[n, q]
                for i in range(b):
                    grams[i, r, q] = grams[i, q, r] = scale * packed[i, r * (r + 1) // 2 + q]
    else:
        grams[0] = gram_product(A, shape, -1)
    X = np.zeros((k, b))
    solve_columns(X, U, grams, ridge, l1, nonnegative, tolerance)
    return X


@inlined
def gram_product(A: Doubles, shape: Sizes, but: int) -> Doubles:
    """The elementwise product of the Gram matrices of all modes ``but`` one (R, R)."""
    k, start = len(A), 0
    G = np.ones((k, k))
    for n in range(len(shape)):
        if n != but:
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
    """Σ (values − model)² over the observed entries of slices with the factors X (R, b)."""
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
    """Contract slices with their factors X (R, b): C (R, m), all that subproblems need of the data.

    Where ``exact`` what is missing is left out, and the mask is contracted with the products of two factors, each over its
    component's largest: P (R(R+1)/2, m). Else the model stands where an entry is missing, and P is (0, 0).
    """
    b = X.shape[1]
    rows = X.astype(values.dtype)
    if len(observed) == 0 or exact:
        C = np.dot(rows, values)
        if len(observed) == 0:
            return C, np.empty((0, 0), np.float32)
        products, _ = pairs_of(X, np.array([b]))
        return C, np.dot(products, observed)
    target = np.dot(rows.T, khatri_rao(A.astype(values.dtype), shape, 0, len(shape)))
    for i in range(b):
        for j in range(values.shape[1]):
            target[i, j] = values[i, j] if observed[i, j] != 0 else target[i, j]
    return np.dot(rows, target), np.empty((0, 0), np.float32)


@kernel
def subproblem(keep: int, X: Doubles, C: Floats, P: NDArray[np.float32], A: Doubles, shape: Sizes) -> tuple[Doubles, Doubles]:
    """The least squares problem of a mode, from :func:`contracted_slices`: linear terms U (R, I_keep) and Gram matrices G.

    G (R(R+1)/2, I_keep) are packed lower triangles, one for each slice of the mode; (R(R+1)/2, 1) is the one of all.
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
    pairs, sizes = pairs_of(A, shape)
    G = contracted(P, pairs, shape, keep)
    for r in range(k):
        for q in range(r + 1):
            scale = np.abs(X[r]).max() * np.abs(X[q]).max()
            for n in range(len(shape)):
                scale *= sizes[n, r] * sizes[n, q] if n != keep else 1.0
            G[r * (r + 1) // 2 + q] *= scale
    return U, G
