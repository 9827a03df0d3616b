"""Tucker's congruence of components, and their matching one to one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.lazy import optimize

Array = NDArray[np.float64]


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


def unit(loadings: Array) -> Array:
    """Return the rows (…, m) with length 1; rows of zeros stay."""
    lengths = np.linalg.norm(loadings, axis=-1, keepdims=True)
    scaled: Array = np.divide(loadings, lengths, out=np.zeros_like(loadings), where=lengths > 0)
    return scaled


def congruences(A: Array, B: Array) -> Array:
    """Return Tucker's congruence of each row of A (…, k, m) with the same row of B."""
    found: Array = (unit(A) * unit(B)).sum(axis=-1)
    return found


def centred_congruences(A: Array, B: Array) -> Array:
    """Return the congruences of non-negative loadings A (k, m) and B after each item's mean over the factors is subtracted.

    All factors are first scaled to length 1. The mean is taken over both groups, so that only the loadings differ.
    """
    A, B = unit(A), unit(B)
    mean = (A + B).mean(axis=0) / 2
    return congruences(A - mean, B - mean)
