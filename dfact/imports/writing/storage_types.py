"""Types of stored values, and the codes that stand for missing ones."""

from typing import Any

import numpy as np


def missing_code_for(dtype: np.dtype[Any]) -> int | None:
    """Return the code that is stored for a missing integer; None for floats, for which it is NaN."""
    if dtype.kind not in "iu":
        return None
    return int(np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min)


def smallest_integer(low: float, high: float) -> np.dtype[Any] | None:
    """Return the smallest of uint8, int16 and int32 that holds low to high and a missing code; None if none does."""
    for dtype in (np.dtype(np.uint8), np.dtype(np.int16), np.dtype(np.int32)):
        limits = np.iinfo(dtype)
        lowest, highest = (0, limits.max - 1) if dtype.kind == "u" else (limits.min + 1, limits.max)
        if lowest <= low and high <= highest:
            return dtype
    return None


def storage_type(low: float, high: float, *, integers: bool) -> np.dtype[Any]:
    """Choose the type of stored values from low to high: the smallest integer for integers, else single, if necessary double precision."""
    if integers:
        return smallest_integer(low, high) or np.dtype(np.float64)
    return np.dtype(np.float32 if max(-low, high) <= np.finfo(np.float32).max else np.float64)
