"""The memory of a fit, and the steps of the frequencies that it allows."""

from typing import Any

import numpy as np

from dfact.data.memory_limit import parse_bytes
from dfact.engine.memory_plan import Footprint
from dfact.linalg.svd import gram_size, tiled_gram_size
from dfact.models.binomial.footprint import slopes_bytes, state_bytes, step_sums_bytes, tile_state_bytes, with_growth
from dfact.text import format_bytes

_LIMIT_SHARE = 8  # part of the memory limit that the sums of one thread may take, as others wait for it


def takes_newton_steps(k: int, m: int, memory_limit: int | str | None) -> bool:
    """Return whether the frequencies take Newton's steps: unless their sums exceed a part of the memory limit, if there is one.

    It depends on the model and the shape alone, as the steps determine the result.
    """
    return memory_limit is None or _LIMIT_SHARE * step_sums_bytes(k, m) <= parse_bytes(memory_limit)


def fit_footprint(k: int, m: int, dtype: np.dtype[Any], memory_limit: int | str | None, *, update: bool = False) -> Footprint:
    """Return the memory of a fit of K populations to m SNPs, or of an ``update`` of a model by new rows."""
    newton, note = takes_newton_steps(k, m, memory_limit), ""
    if not newton:
        size = step_sums_bytes(k, m)
        note = (
            f"the sums of Newton's steps of the frequencies take {format_bytes(size)}, expected at most an eighth of memory_limit; the "
            "frequencies take the EM algorithm's steps, in some 2 to 4 times as many passes: raise memory_limit to "
            f"{format_bytes(_LIMIT_SHARE * size)}"
        )
    vectors = max(k, tiled_gram_size(m, k) // m)  # of the start or the frequencies
    resident, tile_state = tile_state_bytes(k, m)
    footprint = Footprint(
        state_per_row=state_bytes(k),
        # The codes and, at the start, the filled counts; arrays of a tile of columns.
        work_per_row=m * (1 + dtype.itemsize) + 4 * dtype.itemsize * 1024 + slopes_bytes(k),
        # Also the means of the columns, and the state of the first tiles.
        broadcast=8 * (m + gram_size(m, k)) + dtype.itemsize * m * vectors + resident,
        result_per_row=dtype.itemsize * k,
        tiled=max(step_sums_bytes(k, m, curved=newton), 8 * tiled_gram_size(m, k)),
        converts=False,
        summed=8 * max(2 * m, gram_size(m, k)),
        tile_state=tile_state,
        note=note,
    )
    return with_growth(footprint, k, m, update=update) if newton or update else footprint
