"""Make the C library of a worker keep the memory that is freed."""

import ctypes
from contextlib import suppress


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for what is allocated next, as it does unless told otherwise.

    Dask's nannies start workers so that it returns freed memory to the system at once; the first touch of new memory
    then costs as much as the arithmetic.
    """
    with suppress(OSError, AttributeError):  # another C library, which decides for itself
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold, largest = -1, -3, 32 << 20
        libc.mallopt(mmap_threshold, largest)
        libc.mallopt(trim_threshold, 4 * largest)
