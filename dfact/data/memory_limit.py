"""Limits of memory as users state them."""

from dfact.errors import ParameterError


def parse_bytes(limit: int | str) -> int:
    """Return a limit in bytes, given as a number or as text like ``"4GiB"`` or ``"500 MB"``."""
    from dask.utils import parse_bytes as parse

    try:
        size = int(parse(limit))
    except (ValueError, TypeError, OverflowError) as error:
        raise ParameterError(f"memory_limit is {limit!r}, expected bytes or a size like '4GiB'") from error
    if size <= 0:
        raise ParameterError(f"memory_limit is {limit!r}, expected more than 0")
    return size
