"""The one jit wrapper of all kernels."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

# Reassociation lets a sum run in vector lanes; NaN and infinity keep their meaning, because NaN
# is how a kernel sees a missing entry ("fast" would let the compiler assume there is none).
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}


def kernel(function: F) -> F:
    """Compile a serial kernel that releases the GIL; threads come from the executor."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST_MATH)(function))
