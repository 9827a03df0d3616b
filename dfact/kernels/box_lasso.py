"""Box-constrained Lasso and its least-squares relatives, many right-hand sides at once."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel


@kernel
def box_lasso(
    X: NDArray[np.floating],
    H: NDArray[np.floating],
    G: NDArray[np.floating],
    n_free: int,
    penalty: float,
    upper: float,
    sweeps: int,
    tolerance: float,
) -> int:
    """Cyclic coordinate descent for every column x of X (k, n), in place:

        minimise ½ xᵀG x − hᵀx + penalty·Σx   over 0 ≤ x_r ≤ upper, r < n_free

    G (k, k) is the Gram matrix all columns share, H (n_free, n) holds the linear terms h.
    Components from n_free on are given and stay. Stops after ``sweeps`` sweeps, or when no entry
    of X moved by more than ``tolerance`` in one. Returns the number of sweeps.
    """
    k, n = X.shape
    dtype = X.dtype.type
    zero, beta, top, least = dtype(0), dtype(penalty), dtype(upper), dtype(tolerance)
    gradient = np.empty(n, X.dtype)
    for sweep in range(sweeps):
        # What entries moved by beyond the tolerance, as a sum: that runs in vector lanes, a maximum does not.
        moved = zero
        for r in range(n_free):
            if G[r, r] <= zero:
                continue
            # g = h_r − penalty − (G x)_r, one component at a time over all columns: the inner
            # loops run along contiguous memory and need no index arithmetic.
            for i in range(n):
                gradient[i] = H[r, i] - beta
            for q in range(k):
                coupling = G[r, q]
                for i in range(n):
                    gradient[i] -= coupling * X[q, i]
            scale = dtype(1) / G[r, r]
            for i in range(n):
                x = min(max(X[r, i] + gradient[i] * scale, zero), top)
                moved += max(abs(x - X[r, i]) - least, zero)
                X[r, i] = x
        if moved <= zero:
            return sweep + 1
    return sweeps
