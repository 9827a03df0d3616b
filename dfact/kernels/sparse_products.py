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
        for e in range(indptr[i], indptr[i + 1]):
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
