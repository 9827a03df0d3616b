"""Intervals of loadings over refits to resampled rows, and the reasons for which a loading has none.

An interval is the estimate ± t standard errors over the refits (Efron & Tibshirani 1993, chapter 12).
Percentile intervals are not used: penalized and bounded loadings of resamples are biased towards the bound, which the percentiles
take for the centre.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]
SAME_FACTOR = 0.85
"""Similarity below which two factors count as different (Lorenzo-Seva & ten Berge 2006)."""


@dataclass(frozen=True)
class Variance:
    """Variance of an estimate from its values in replicates of the data: Σ_r a_r (θ_r − c)², about the centre c."""

    scales: Array | None = None
    """Factors a_r of the replicates (R,); None for independent resamples: 1/(R − 1) about their mean."""
    df: float | None = None
    """Degrees of freedom of the t distribution of the intervals; None for R − 1 of R replicates."""

    def standard_error(self, samples: Array, estimate: Array) -> Array:
        """Return the standard errors of an ``estimate`` (…) from ``samples`` (R, …)."""
        if self.scales is None:
            return np.asarray(samples.std(axis=0, ddof=1))
        return np.asarray(np.sqrt(np.tensordot(self.scales, (samples - estimate) ** 2, 1)))

    def quantile(self, level: float, n_replicates: int) -> float:
        """Return the number of standard errors from the estimate to the ends of an interval."""
        return float(stdtrit(n_replicates - 1 if self.df is None else self.df, (1 + level) / 2))


INDEPENDENT = Variance()


def factor_intervals(
    estimate: Array, samples: Array, similarity: Array, level: float, variance: Variance, *, nonnegative: bool, penalized: bool = False
) -> tuple[Array, Array, Array]:
    """Return the standard errors of the loadings on a factor (m,), and both ends of their intervals, NaN where not determined.

    Parameters
    ----------
    estimate : array (m,)
        Loadings of the fit to all rows.
    samples : array (B, m)
        Loadings of the matched factor in each refit.
    similarity : array (B,)
        Similarity of the matched factor to the model's in each refit.
    level : float
        Level of the intervals.
    variance : Variance
        The formula of the standard errors.
    nonnegative : bool
        Whether loadings cannot be negative.
    penalized : bool
        Whether a penalty shrinks the loadings, less in more rows. The interval of independent resamples is then centred at the estimate
        minus its bias, the mean over the refits minus the estimate (Efron & Tibshirani 1993, chapter 10).
    """
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of fewer than two refits, which have no standard error
        se = variance.standard_error(samples, estimate)
    half = variance.quantile(level, len(samples)) * se
    centre = 2 * estimate - samples.mean(axis=0) if penalized and variance.scales is None else estimate
    low, high = centre - half, centre + half
    determined = (se > 0) & ~at_bound(samples)
    if nonnegative or (samples == 0).any():  # a loading of exactly 0 is not an estimate of a small one
        determined &= (low > 0) | (high < 0)
    if np.mean(similarity < SAME_FACTOR) > 1 - level:
        determined[:] = False
    return se, np.where(determined, low, np.nan), np.where(determined, high, np.nan)


def is_penalized(model: Any) -> bool:
    """Return whether a penalty shrinks the loadings of a model."""
    return bool(getattr(model, "beta", 0))


def at_bound(samples: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which loadings (m,) were exactly 0, the lowest or the highest value more than once in the refits (B, m).

    Such values come from a bound or a penalty: the loading's distribution has a point mass there. Refits that agree in all
    loadings, as those with equal replicate weights do, count once.
    """
    samples = np.unique(samples, axis=0)
    repeated = [(samples == value).sum(axis=0) > 1 for value in (samples.min(axis=0), samples.max(axis=0), 0)]
    return np.asarray(np.any(repeated, axis=0))


def summarize_samples(samples: Array, estimate: Array | None, level: float, variance: Variance) -> tuple[Array, Array, Array, Array]:
    """Return means, both ends of intervals about an ``estimate``, and standard errors, from its values in refits (B, …).

    They are intervals of ± t·se, centred as for penalized loadings: at the estimate minus its bias over independent resamples, since
    items with effects draw the anchor to their side, in the refits once more than in the estimate. Without an estimate the mean over
    the refits takes its place.
    """
    mean = samples.mean(axis=0)
    centre = mean if estimate is None else estimate
    se = variance.standard_error(samples, centre)
    half = variance.quantile(level, len(samples)) * se
    if variance.scales is None:
        centre = 2 * centre - mean
    return mean, centre - half, centre + half, se
