"""The memory of a fit of principal components, in bytes."""

from dataclasses import replace

import numpy as np

from dfact.engine.memory_plan import Footprint
from dfact.engine.tiles import RESIDENT_COLUMNS
from dfact.linalg.svd import basis_bytes, gram_size, tiled_gram_size

_PART = 1 << 12  # columns that are multiplied at once
MAX_PASSES = 30
"""Most passes of the block Krylov iteration, whose basis grows with each."""


def fit_footprint(k: int, m: int, dtype: "np.dtype[np.floating]", *, expects: bool) -> Footprint:
    """Return the memory of a fit of k components to m columns, with expectations of missing entries if it ``expects`` any."""
    size, t = dtype.itemsize, (k + 1) * (k + 2) // 2
    vectors = max(k, tiled_gram_size(m, k) // m)
    return Footprint(
        state_per_row=size * k,
        # The standardized entries and, of rows with missing ones, a mark for each entry; scores, and the moments of the expectations.
        work_per_row=size * (m + min(m, _PART) if expects else 2 * m) + 8 * (3 * k + expects * 5 * t),
        # Means and scales; products of components, also in the working precision; the state of the first tiles.
        broadcast=8 * (4 * m + gram_size(m, k) + k * m) + size * m * vectors + expects * (8 * (k + 1) * min(m, RESIDENT_COLUMNS)),
        result_per_row=size * k,
        tiled=max(8 * tiled_gram_size(m, k), expects * 8 * m * (t + k + 1)),
        converts=False,
        summed=8 * max(3 * m, gram_size(m, k)),
        tile_state=expects * 8 * (k + 1) * m,
        driver=basis_bytes(m, k, MAX_PASSES),
    )


def variances_footprint(fit: Footprint, m: int, dtype: "np.dtype[np.floating]") -> Footprint:
    """Return the memory of the covariances of few columns, given that of a fit."""
    work, summed = fit.work_per_row + (3 * dtype.itemsize + 1) * m, 4 * 8 * m * m
    return replace(fit, work_per_row=work, broadcast=fit.broadcast + summed, summed=max(fit.summed or 0, summed), converts=True)
