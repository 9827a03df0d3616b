"""The decorators that compile all kernels, with the same options.

``kernel``
    is called from Python.
``subroutine``
    is called from compiled functions of its own module, or of the one other module that imports it. It is a function of its own in
    the compiled code and allocates nothing.
``inlined``
    is copied into each kernel that calls it. It may allocate, and kernels of several modules may call it.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

from dfact.code_cache import store_by_signature

F = TypeVar("F", bound=Callable[..., object])

# Reassociation lets the compiler vectorize a sum. NaN and infinity keep their meaning, because NaN marks a missing entry
# (with "fast" the compiler may assume that there is none).
# A loop that both sums and stores may be vectorized differently when its arrays happen to lie close together in memory, and then
# sums in another order. Therefore store in one loop and sum in the next.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


def kernel(function: F) -> F:
    """Compile a serial kernel that releases the GIL. Threads come from the executor."""
    return cast(F, store_by_signature(numba.njit(**_OPTIONS)(function), __file__))


def subroutine(function: F) -> F:
    """Compile a function that only kernels call. Without the wrapper for Python this takes half the time.

    It must not allocate, so Numba need not count references to its arrays. Counting took two thirds of the time
    where small functions read many arrays from a tuple.
    """
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, **_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a function into each kernel that calls it.

    Use it for functions that several kernels share, and for functions that allocate. If a shared function is not inlined, each
    kernel compiles a copy of its own. The copies may differ by rounding, and all kernels use the one that was loaded first.
    """
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)(function))
