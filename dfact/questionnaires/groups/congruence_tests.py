"""Congruences of factors of two groups: their test against equal loadings, and the intervals that belong to it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dfact.linalg.congruence import congruences

Array = NDArray[np.float64]
DRAWS_PER_TEST = 20
"""Least number of draws for each p value, with which Holm's procedure can still reject at 5%."""
_ANGLES = np.radians(np.linspace(0, 90, 181))  # between the loadings of two populations, of congruence 1 to 0


@dataclass(frozen=True)
class CongruenceTests:
    """Congruences of the factors of a group with the reference, and in draws in which both have the same loadings."""

    observed: Array
    """(k,)."""
    p: Array
    """(k,): share of draws with a congruence as low, unadjusted, of all draws and the observed one."""
    population: Array
    """(k,): congruence of the populations at which the observed one is the median of the draws; NaN if not determined."""
    low: Array
    high: Array
    """(k,) each: ends of the interval of the congruence of the populations; NaN if not determined."""

    @classmethod
    def of(cls, reference: Array, other: Array, draws: tuple[Array, Array], level: float) -> "CongruenceTests":
        """Test the loadings (k, m) of two groups, of length 1, by draws (B, k, m) of each group's loadings under equal ones.

        The interval inverts the test. With M the mean of both groups' loadings and d half of their difference, populations with the
        loadings M + t d and M − t d have draws that are moved to these as their means. The interval holds the congruences of those
        populations for whose t the observed congruence is not among the (1 − level)/2 lowest or highest of the draws. So it
        reaches 1 where the test does not reject at (1 − level)/2, and it allows for the noise that makes two samples less
        congruent than their populations.
        """
        mean, half = (reference + other) / 2, (reference - other) / 2
        observed, shares = congruences(reference, other), ((1 - level) / 2, 0.5, (1 + level) / 2)
        lengths, halves = np.linalg.norm(mean, axis=-1), np.linalg.norm(half, axis=-1)
        p, ends = np.empty(len(observed)), np.empty((3, len(observed)))
        for factor, value in enumerate(observed):
            A, B, d = draws[0][:, factor], draws[1][:, factor], half[factor]
            drawn = _moved_congruences(A, B, d, np.zeros(1))[0]
            p[factor] = (1 + (drawn <= value).sum()) / (len(drawn) + 1)
            if not halves[factor] or not lengths[factor]:  # bit-identical, or without loadings
                ends[:, factor] = np.nan
                continue
            A, B = (X - X.mean(axis=0) + mean[factor] for X in (A, B))
            steps = np.tan(_ANGLES / 2) * lengths[factor] / halves[factor]
            quantiles = np.quantile(_moved_congruences(A, B, d, steps), shares, axis=1, method="weibull")  # of B + 1, as p
            of_populations = congruences(mean[factor] + steps[:, None] * d, mean[factor] - steps[:, None] * d)
            found = [_crossing(curve, of_populations, value) for curve in quantiles]
            ends[:, factor] = [1.0 if p[factor] >= share else end for share, end in zip(shares, found, strict=True)]
        low = np.where(ends[2] == 1, observed, ends[2])  # more congruent than nearly all draws: the interval does not collapse
        return cls(observed, p, ends[1], low, ends[0])


def _moved_congruences(A: Array, B: Array, d: Array, steps: Array) -> Array:
    """Return the congruences (steps, B) of A + t d and B − t d, for draws A and B (B, m) and steps t."""
    AA, BB, AB, Ad, Bd = ((X * Y).sum(axis=-1) for X, Y in ((A, A), (B, B), (A, B), (A, d), (B, d)))
    dd, t = float(d @ d), steps[:, None]
    products, first, second = AB + t * (Bd - Ad) - t**2 * dd, AA + 2 * t * Ad + t**2 * dd, BB - 2 * t * Bd + t**2 * dd
    lengths = np.sqrt(np.maximum(first * second, 0))
    moved: Array = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return moved


def _crossing(curve: Array, of_populations: Array, value: float) -> float:
    """Return the congruence of the populations at which a falling curve of quantiles reaches the value.

    It is 1 if the curve begins below the value: no difference at all is needed. It is NaN if the curve never reaches the value.
    """
    below = curve <= value
    if below[0]:
        return 1.0
    if not below.any():
        return np.nan
    after = int(below.argmax())
    share = (curve[after - 1] - value) / (curve[after - 1] - curve[after])
    return float(of_populations[after - 1] + share * (of_populations[after] - of_populations[after - 1]))
