"""Halves of the new rows, on which the gain of a complete fit is estimated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from dfact.engine.passes import Block, read_only
from dfact.engine.requests import Solver
from dfact.models.growth.record import Gain

ROUNDS = 20
"""Maximum number of passes over the new rows that update the loadings, and of those over a half of them that estimate the gain."""
TOLERANCE = 1e-6
"""Relative change of the objective of all rows at which an update ends."""
OWN_TOLERANCE = 1e-4
"""The same of half of the new rows, under loadings of their own."""
ROWS_PER_FACTOR = 10
"""Rows of a half for each factor, fewer than which have too little to say on loadings of their own."""
L = TypeVar("L")


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


def estimate_gain(own: list[tuple[float, float, float, float]], noise: float) -> Gain:
    """Estimate what a complete fit would gain, from loadings fitted to each half of the new rows.

    For each half there are the objectives of this half with the loadings of all rows and with its own, and those of the other half
    with the same two. Loadings of its own lower the objective of the half by the gain g of better loadings plus an optimism, and that
    of the other half by g minus as much, so the mean of the two is g, whatever the number of loadings and the distribution of the
    residuals. ``noise`` is a standard error of g, as a share of the objective, that the difference between the halves may understate.
    """
    gains = [((before - after) / before + (other - other_after) / other) / 2 for before, after, other, other_after in own]
    error = max(noise, abs(gains[0] - gains[1]) / 2)
    return Gain(float(np.mean(gains)), float(error))


def compare_halves(
    before: list[float], noise: float, fit: Callable[[Half], Solver[L]], objective: Callable[[L, Half], Solver[float]]
) -> Solver[Gain]:
    """Fit loadings to each half of the new rows, and estimate the gain from the objectives of the halves.

    ``before`` has the objectives with the loadings of all rows; ``noise`` is that of :func:`estimate_gain`.
    """
    found = []
    for i, half in enumerate(HALVES):
        own = yield from fit(half)
        after = yield from objective(own, half)
        after_others = yield from objective(own, HALVES[1 - i])
        found.append((before[i], after, before[1 - i], after_others))
    return estimate_gain(found, noise)
