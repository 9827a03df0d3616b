"""A setting of a worker's C library: keep freed memory instead of returning it to the system."""

import ctypes
from contextlib import suppress


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for later allocations, which is its default.

    Dask's nannies start workers with settings that return freed memory to the system at once. The first access to new memory
    then costs as much as the arithmetic.
    """
    with suppress(OSError, AttributeError):  # another C library does not have these settings
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold, largest = -1, -3, 32 << 20
        libc.mallopt(mmap_threshold, largest)
        libc.mallopt(trim_threshold, 4 * largest)
