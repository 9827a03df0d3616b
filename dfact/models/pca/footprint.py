"""The memory of a fit of principal components, in bytes."""

from dataclasses import replace

import numpy as np

from dfact.engine.memory_plan import Footprint
from dfact.engine.tiles import RESIDENT_COLUMNS
from dfact.linalg.svd import OVERSAMPLING, basis_bytes, gram_size, is_wide, tiled_gram_size, uses_gram

_PART = 1 << 12  # columns that are multiplied at once
MAX_PASSES = 30
"""Most passes of the block Krylov iteration, whose basis grows with each."""
KEPT_BYTES = 1 << 28
"""Size up to which a model of data with missing entries keeps sums: some 400,000 columns for 10 components."""


def fit_footprint(k: int, m: int, dtype: "np.dtype[np.floating]", *, expects: bool) -> Footprint:
    """Return the memory of a fit of k components to m columns, or of an update by further rows.

    It ``expects`` missing entries, or counts those of each pair of few columns and keeps sums of the rows.
    """
    size, t = dtype.itemsize, (k + 1) * (k + 2) // 2
    expected = expects * 8 * m * (t + k + 1)
    pairs = 0 if expects or not uses_gram(m, k) else 3 * m * m
    kept = 2 * pairs if uses_gram(m, k) else (0 if is_wide(m, k) else (k + OVERSAMPLING + 3) * m)
    expected_kept = expected if keeps_expectations(k, m) else 0
    vectors = max(k, tiled_gram_size(m, k) // m)
    return Footprint(
        state_per_row=size * k,
        # The standardized entries and, of rows with missing ones, a mark for each entry; the model of the entries, or the moments of
        # the expectations; scores.
        work_per_row=size * (m + min(m, _PART) if expects and not expected_kept else 3 * m) + 8 * (3 * k + expects * 5 * t),
        # Means, scales and figures of the residuals; products of components, also in the working precision; the state of the first tiles.
        broadcast=8 * (8 * m + max(gram_size(m, k), pairs) + k * m)
        + size * m * vectors
        + expects * (8 * (k + 1) * min(m, RESIDENT_COLUMNS)),
        result_per_row=size * k,
        tiled=max(8 * tiled_gram_size(m, k), expected),
        converts=False,
        summed=8 * max(4 * m, gram_size(m, k), pairs),
        tile_state=expects * 8 * (k + 1) * m + expected_kept,
        driver=basis_bytes(m, k, MAX_PASSES) + 4 * expected_kept + (0 if expects else 8 * kept),
    )


def keeps_expectations(k: int, m: int) -> bool:
    """Return whether a model of data with missing entries keeps sums, to which those of further rows can be added."""
    return 8 * m * ((k + 1) * (k + 2) // 2 + k + 1) <= KEPT_BYTES


def variances_footprint(fit: Footprint, m: int, dtype: "np.dtype[np.floating]") -> Footprint:
    """Return the memory of the covariances of few columns, given that of a fit."""
    work, summed = fit.work_per_row + (3 * dtype.itemsize + 1) * m, 4 * 8 * m * m
    return replace(fit, work_per_row=work, broadcast=fit.broadcast + summed, summed=max(fit.summed or 0, summed), converts=True)
