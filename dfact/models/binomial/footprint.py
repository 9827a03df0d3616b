"""The memory of a fit of memberships by binomial likelihood, in bytes."""

from dataclasses import replace

from dfact.engine.memory_plan import Footprint
from dfact.engine.tiles import RESIDENT_COLUMNS

_TILE_STATE = 10  # arrays (K, m) of 8 bytes in the tiles' state: points, and Anderson's window
_FIGURES = 4  # sums of a column's residuals


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
    column = 8 * max(_TILE_STATE * k, 2 * k + _FIGURES + 2 * surrogate_bytes(k, 1) // 8)
    return column * min(m, RESIDENT_COLUMNS), column * m


def surrogate_bytes(k: int, m: int) -> int:
    """Return the bytes of the sums over seen rows, from which a model grows."""
    return 8 * m * (k + k * (k + 1) // 2)


def with_growth(fit: Footprint, k: int, m: int, *, update: bool) -> Footprint:
    """Return the memory of a fit that keeps sums of its rows, or of an ``update`` of these by new rows, which are summed by halves."""
    held = surrogate_bytes(k, m)
    return replace(
        fit,
        tiled=max(fit.tiled, (1 + update) * held + 8 * _FIGURES * m),
        driver=fit.driver + (1 + update) * held + 8 * _FIGURES * m,
    )
