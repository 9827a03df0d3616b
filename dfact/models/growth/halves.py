"""Halves of the new rows, on which the gain of a complete fit is estimated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dfact.engine.passes import Block, read_only
from dfact.models.growth.record import Gain


@dataclass(frozen=True)
class Half:
    """View of the blocks with every second row. A block of one row is in both halves."""

    parity: int

    def __call__(self, block: Block) -> Block:
        rows = np.flatnonzero((block.start + np.arange(block.stored.shape[0])) % 2 == self.parity)
        if rows.size == 0:
            return block
        covariates = None if block.covariates is None else block.covariates[rows]
        return replace(block, stored=read_only(block.stored[rows]), covariates=covariates)


HALVES = Half(0), Half(1)
ROWS_PER_COMPONENT = 10
"""Rows of a half for each component; fewer have too little to say on loadings of their own."""


def estimate_gain(own: list[tuple[float, float, float, float]], noise: float) -> Gain:
    """Estimate what a complete fit would gain, from loadings fitted to each half of the new rows.

    For each half there are the objectives of this half with the loadings of all rows and with its own, and those of the other half
    with the same two. Loadings of its own lower the objective of the half by the gain g of better loadings plus an optimism, and that
    of the other half by g minus as much, so the mean of the two is g, whatever the number of loadings and the distribution of the
    residuals. ``noise`` is a standard error of g, as a share of the objective, that the difference between the halves may understate.
    """
    gains = [((before - after) / before + (other - other_after) / other) / 2 for before, after, other, other_after in own]
    error = max(noise, abs(gains[0] - gains[1]) / 2)
    return Gain(max(float(np.mean(gains)), 0.0), float(error))
