"""The one jit wrapper of all kernels."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

# Reassociation lets a sum run in vector lanes; NaN and infinity keep their meaning, because NaN
# is how a kernel sees a missing entry ("fast" would let the compiler assume there is none).
# A loop that sums and also stores may run in other lanes where the arrays happen to lie close together, and then sums in another
# order: store in one loop, sum in the next.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


def kernel(function: F) -> F:
    """Compile a serial kernel that releases the GIL; threads come from the executor."""
    return cast(F, numba.njit(cache=True, **_OPTIONS)(function))


def part(function: F) -> F:
    """Compile a part of a kernel, which only kernels call: without the wrapper for Python, in half the time.

    It allocates nothing, so its arrays need no counts of references. Counting took two thirds of the time
    where small parts read many arrays from a tuple.
    """
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, **_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a part into each kernel that calls it.

    For parts of several kernels, and for parts that allocate. A part that is not inlined is compiled with each of several
    kernels, in ways that may differ by rounding, and all use the copy of the kernel that happened to be loaded first.
    """
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)(function))
