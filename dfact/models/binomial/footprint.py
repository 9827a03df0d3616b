"""The memory of a fit of memberships by binomial likelihood, in bytes."""

from dfact.engine.tiles import RESIDENT_COLUMNS

_TILE_STATE = 10  # arrays (K, m) of 8 bytes in the tiles' state: points, and Anderson's window


def state_bytes(k: int) -> int:
    """Return the bytes of a row's state: its memberships in double precision, and those before the last pass."""
    return 2 * 8 * k


def slopes_bytes(k: int) -> int:
    """Return the bytes of a row's memberships, slopes and curvatures while it steps."""
    return 8 * (4 * k + k * (k + 1))


def step_sums_bytes(k: int, m: int, *, curved: bool = True) -> int:
    """Return the bytes of the sums for the steps of the frequencies: Newton's if ``curved``, else the EM algorithm's."""
    return 8 * m * (2 * k + (k * (k + 1) // 2 if curved else 0))


def tile_state_bytes(k: int, m: int) -> tuple[int, int]:
    """Return the bytes of the tiles' state that stay in memory, and of all of it."""
    return 8 * _TILE_STATE * k * min(m, RESIDENT_COLUMNS), 8 * _TILE_STATE * k * m
