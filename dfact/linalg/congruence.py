"""Tucker's congruence of components, and their matching one to one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.lazy import optimize


def congruence(A: NDArray[np.float64], B: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return aᵢbⱼᵀ/‖aᵢ‖‖bⱼ‖ (k, l) of the rows of A (k, m) and B (l, m); 0 where a row is 0.

    References
    ----------
    Lorenzo-Seva & ten Berge (2006).
    """
    lengths = np.outer(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
    return np.divide(A @ B.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def match(similarity: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the pairs of rows and columns (k,), (k,) of a matrix (k, k) with the largest sum of similarities, in the order of rows."""
    rows, columns = optimize.linear_sum_assignment(-similarity)
    return rows, columns
