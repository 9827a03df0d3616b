"""Products of the rows of a CSR matrix M (n, m) with narrow matrices, without the checks that cost more than the product of a block."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

Floats = NDArray[np.floating]
Integers = NDArray[np.integer]


@kernel
def times(data: Floats, indices: Integers, indptr: Integers, B: Floats, out: Floats) -> None:
    """Set out (n, k) to M B, with B (m, k)."""
    for i in range(len(out)):
        for r in range(out.shape[1]):
            out[i, r] = 0.0
        first, last = indptr[i], indptr[i + 1]
        fours = last - (last - first) % 4
        # Four at a time: the row of out is read and written a quarter as often.
        for e in range(first, fours, 4):
            a, b, c, d = data[e], data[e + 1], data[e + 2], data[e + 3]
            p, q, s, t = indices[e], indices[e + 1], indices[e + 2], indices[e + 3]
            for r in range(out.shape[1]):
                out[i, r] += a * B[p, r] + b * B[q, r] + c * B[s, r] + d * B[t, r]
        for e in range(fours, last):
            value, j = data[e], indices[e]
            for r in range(out.shape[1]):
                out[i, r] += value * B[j, r]


@kernel
def transposed_times(data: Floats, indices: Integers, indptr: Integers, B: Floats, out: Floats) -> None:
    """Set out (m, k) to Mᵀ B, with B (n, k)."""
    for j in range(len(out)):
        for r in range(out.shape[1]):
            out[j, r] = 0.0
    for i in range(len(B)):
        for e in range(indptr[i], indptr[i + 1]):
            value, j = data[e], indices[e]
            for r in range(out.shape[1]):
                out[j, r] += value * B[i, r]
