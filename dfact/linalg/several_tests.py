"""p values of several tests, adjusted for their number; NaN ones are not tests."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def adjusted(p: Array) -> Array:
    """Return p values of any shape adjusted by Benjamini and Hochberg over those that are not NaN."""
    out: Array = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    if known.any():
        from scipy.stats import false_discovery_control  # takes long to import

        out[known] = false_discovery_control(p[known])
    return out


def holm(p: Array) -> Array:
    """Return p values of any shape adjusted by Holm's procedure; NaN ones are not tests."""
    result, known = np.full(p.shape, np.nan), ~np.isnan(p)
    flat = p[known]
    order = np.argsort(flat, kind="stable")
    steps = np.minimum(np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1)), 1.0)
    flat[order] = steps
    result[known] = flat
    return result
