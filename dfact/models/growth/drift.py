"""Drift: whether new rows differ from those that a model has seen, by tests of items and factors with a familywise error rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from dfact.lazy import pd, special
from dfact.linalg.several_tests import holm
from dfact.models.fitted_schema import AtLeast, Shape
from dfact.models.growth.baseline import Baseline

Array = NDArray[np.float64]
LEVEL = 0.05
"""Probability that any test rejects although the new rows come from the same population."""
_SYMMETRIC = 1e-4  # skewness up to which the normal distribution is as good
_FEW = 20  # effective rows below which a mean or a variance is not tested
_OF_ITEMS = Annotated[Array, Shape(("m",), finite=False)]
_OF_FACTORS = Annotated[Array, Shape(("k",), finite=False)]
KINDS = {"residual": "mean residual", "missing": "missing share", "mean": "mean", "variance": "log of the ratio of variances"}
"""The tests of :attr:`Drift.table`, each with what it compares."""


@dataclass(frozen=True, eq=False)
class Drift:
    """Standardized differences of new rows from those that a model has seen, given its loadings before they were added.

    Items: the mean residual, in standard deviations of the residuals, and the missing share (Fisher's exact test with mid-p; with weights
    a z test), as a difference of shares. The test of mean residuals takes the larger of both variances, since an answer that is rare
    may be absent from the new rows, and allows for skewness: p is the larger of those by the normal and by Pearson's type III
    distribution. Factors: the mean (Welch's test), in standard deviations, and the variance,
    as the logarithm of the ratio of variances (Layard 1973, which does not assume normal factors). Holm's procedure holds the
    probability that any of all tests rejects at ``level`` if the new rows are a sample of the same population. A difference is NaN, and
    not tested, for fewer than 20 rows, or without variation.

    With clusters of new rows a p value is the larger of two: that of independent rows, and that of Student's t distribution with the
    variance between G parts of whole clusters and G − 1 degrees of freedom. With T_g a part's sum of the figure's deviations from its
    mean, and W the weight of the new rows, this variance is G/(G − 1)·ΣT_g²/W² (Cochran 1977). The model does not keep the clusters of the
    earlier rows. They are taken to be of the same kind and size: the variance of a mean is in proportion to the number of rows.

    References
    ----------
    Cochran (1977), chapter 9; Holm (1979); Layard (1973); Welch (1947), doi:10.1093/biomet/34.1-2.28.
    """

    level: Annotated[float, AtLeast(0)]
    rows: Annotated[float, AtLeast(0)]
    """Effective number of the new rows."""
    residual: _OF_ITEMS
    residual_p: _OF_ITEMS
    missing: _OF_ITEMS
    missing_p: _OF_ITEMS
    mean: _OF_FACTORS
    mean_p: _OF_FACTORS
    variance: _OF_FACTORS
    variance_p: _OF_FACTORS
    clusters: Annotated[float, AtLeast(0)] = 0.0
    """Number of clusters of the new rows; 0 if rows are taken as independent."""

    @classmethod
    def between(cls, seen: Baseline, new: Baseline, level: float = LEVEL) -> Self:
        """Compare new rows with those that the model has seen."""
        residual, residual_p = _compare_residuals(*(_item_moments(rows) for rows in (seen, new)))
        missing, missing_p = _compare_missing(seen, new)
        of_factors = [_factor_moments(rows) for rows in (seen, new)]
        mean, mean_p = _compare_means(*(moments[:3] for moments in of_factors))
        variance, variance_p = _compare_variances(*of_factors)
        effective = _effective(new.rows[0], new.rows[1])
        return cls(level, float(effective), residual, residual_p, missing, missing_p, mean, mean_p, variance, variance_p)

    @classmethod
    def between_clusters(cls, seen: Baseline, parts: Sequence[Baseline], n_clusters: int, level: float = LEVEL) -> Self:
        """Compare new rows, in parts of whole clusters, with those that the model has seen."""
        new = Baseline(*(np.sum([getattr(part, name) for part in parts], axis=0) for name in ("rows", "items", "factors")))
        found = cls.between(seen, new, level)
        p = {f"{kind}_p": np.fmax(getattr(found, f"{kind}_p"), value) for kind, value in _cluster_tests(seen, new, parts).items()}
        tested: dict[str, Any] = {name: np.where(np.isnan(getattr(found, name)), np.nan, value) for name, value in p.items()}
        return replace(found, clusters=float(n_clusters), **tested)

    @property
    def adjusted(self) -> dict[str, Array]:
        """Values of p, adjusted by Holm's procedure over all tests, by kind."""
        p = [getattr(self, f"{kind}_p") for kind in KINDS]
        parts = np.split(holm(np.concatenate(p)), np.cumsum([len(part) for part in p])[:-1])
        return dict(zip(KINDS, parts, strict=True))

    @property
    def found(self) -> bool:
        """Whether any test rejects."""
        return any(bool((p <= self.level).any()) for p in self.adjusted.values())

    def table(self, items: Any, factors: Any) -> pd.DataFrame:
        """Return the tests as a table: what was compared of which item or factor, the difference, p, adjusted p, and whether it drifted."""
        parts = []
        for kind, p in self.adjusted.items():
            names = factors if kind in ("mean", "variance") else items
            columns = {"of": list(map(str, names)), "compared": KINDS[kind], "difference": getattr(self, kind)}
            parts.append(pd.DataFrame(columns | {"p": getattr(self, f"{kind}_p"), "adjusted_p": p, "drifted": p <= self.level}))
        return pd.concat(parts, ignore_index=True)


def _cluster_tests(seen: Baseline, new: Baseline, parts: Sequence[Baseline]) -> dict[str, Array]:
    """Return the p values by kind from the variance between parts of whole clusters."""
    items, factors = (np.stack([getattr(part, name) for part in parts]) for name in ("items", "factors"))
    weights = np.stack([part.rows[0] for part in parts])[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        of_items = 1 + _effective(new.items[0], new.items[1]) / _effective(seen.items[0], seen.items[1])
        of_rows = 1 + _effective(*new.rows) / _effective(*seen.rows)
        residual, residual_seen = (rows.items[2] / rows.items[0] for rows in (new, seen))
        missing, missing_seen = (1 - rows.items[0] / rows.rows[0] for rows in (new, seen))
        mean, mean_seen = (rows.factors[0] / rows.rows[0] for rows in (new, seen))
        spread, spread_seen = (_factor_moments(rows)[2] for rows in (new, seen))
        squares = factors[:, 1] - 2 * mean * factors[:, 0] + mean**2 * weights  # of the deviations from the mean
        differences = {
            "residual": (residual - residual_seen, items[:, 2] - residual * items[:, 0], new.items[0], of_items),
            "missing": (missing - missing_seen, weights - items[:, 0] - missing * weights, new.rows[0], of_rows),
            "mean": (mean - mean_seen, factors[:, 0] - mean * weights, new.rows[0], of_rows),
            "variance": (np.log(spread / spread_seen), squares / squares.sum(axis=0) - weights / weights.sum(), 1.0, of_rows),
        }
        return {kind: _cluster_p(*figures) for kind, figures in differences.items()}


def _cluster_p(difference: Array, sums: Array, total: Any, ratio: Any) -> Array:
    """Return p of differences of means whose deviations have these sums in each part (G, …); NaN where no part varies."""
    G = len(sums)
    se = np.sqrt(G / (G - 1) * (sums**2).sum(axis=0) * ratio) / total
    p: Array = 2 * special.stdtr(G - 1, -np.abs(difference / se))
    return np.where(se > 0, p, np.nan)


def _effective(total: Any, squares: Any) -> Any:
    """Return Kish's effective number of rows, (Σs)²/Σs²; 0 without any."""
    return np.divide(np.square(total), squares, out=np.zeros_like(np.asarray(squares, np.float64)), where=np.asarray(squares) > 0)


def _item_moments(rows: Baseline) -> tuple[Array, Array, Array, Array]:
    """Return the effective number, the mean, the variance and the third central moment of each item's residuals."""
    total, squares, first, second, third = rows.items
    n, mean, variance = _moments(_effective(total, squares), total, first, second)
    with np.errstate(invalid="ignore", divide="ignore"):
        central = third / total - 3 * mean * second / total + 2 * mean**3
    return n, mean, variance, central


def _moments(n: Array, total: Array, first: Array, second: Array) -> tuple[Array, Array, Array]:
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = first / total
        variance = np.maximum(second / total - mean**2, 0) * n / (n - 1)
    return n, mean, np.where(n > 1, variance, np.nan)


def _factor_moments(rows: Baseline) -> tuple[Array, Array, Array, Array]:
    """Return the effective number, the mean, the variance and the fourth central moment of each factor."""
    total = rows.rows[0]
    n = np.full(rows.factors.shape[1], float(_effective(*rows.rows)))
    first, second, third, fourth = rows.factors / (total if total > 0 else np.nan)
    central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    return *_moments(n, np.full(len(n), total), rows.factors[0], rows.factors[1]), central


def _compare_residuals(seen: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return the differences of mean residuals in pooled standard deviations, and p values that allow for rare and skewed answers."""
    (n, mean, variance, third), (n_new, mean_new, variance_new, third_new) = seen, new
    largest = np.maximum(variance, variance_new)
    tested = (np.minimum(n, n_new) >= _FEW) & (largest > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        pooled = (n * variance + n_new * variance_new) / (n + n_new)
        parts = 1 / n + 1 / n_new
        difference = mean_new - mean
        z = difference / np.sqrt(largest * parts)
        cumulant = (n * third + n_new * third_new) / (n + n_new) * (1 / n_new**2 - 1 / n**2)
        skewness = cumulant / (largest * parts) ** 1.5
        p = 2 * np.maximum(special.stdtr(n + n_new - 2, -np.abs(z)), _pearson_tail(np.abs(z), np.sign(z) * skewness))
        standardized = difference / np.sqrt(pooled)
    return np.where(tested, standardized, np.nan), np.where(tested, np.minimum(p, 1), np.nan)


def _pearson_tail(z: Array, skewness: Array) -> Array:
    """Return P(Z > z) for a standardized variable of Pearson's type III with this skewness; 0 where the skewness is not above 0."""
    skewed = skewness > _SYMMETRIC
    shape = 4 / np.square(np.where(skewed, skewness, 1.0))
    return np.where(skewed, special.gammaincc(shape, np.maximum(shape + z * np.sqrt(shape), 0)), 0.0)


def _compare_means(seen: tuple[Array, Array, Array], new: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    """Return the differences of means in pooled standard deviations, and the p values of Welch's test."""
    (n, mean, variance), (n_new, mean_new, variance_new) = seen, new
    tested = (np.minimum(n, n_new) >= _FEW) & (variance > 0) & (variance_new > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        pooled = (n * variance + n_new * variance_new) / (n + n_new)
        parts = variance / n, variance_new / n_new
        t = (mean_new - mean) / np.sqrt(parts[0] + parts[1])
        freedom = (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (n_new - 1))
        difference = (mean_new - mean) / np.sqrt(pooled)
        p = 2 * special.stdtr(freedom, -np.abs(t))
    return np.where(tested, difference, np.nan), np.where(tested, p, np.nan)


def _compare_variances(seen: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return the logarithms of the ratios of variances, and p values with the pooled kurtosis."""
    (n, _, variance, fourth), (n_new, _, variance_new, fourth_new) = seen, new
    tested = (np.minimum(n, n_new) >= _FEW) & (variance > 0) & (variance_new > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(variance_new / variance)
        kurtosis = (n + n_new) * (n * fourth + n_new * fourth_new) / (n * variance + n_new * variance_new) ** 2
        tested &= kurtosis > 1
        z = ratio / np.sqrt((kurtosis - 1) * (1 / n + 1 / n_new))
        p = 2 * special.ndtr(-np.abs(z))
    return np.where(tested, ratio, np.nan), np.where(tested, p, np.nan)


def _compare_missing(seen: Baseline, new: Baseline) -> tuple[Array, Array]:
    """Return the differences of missing shares, and their p values."""
    n, n_new = seen.rows[0], new.rows[0]
    if not (n > 0 and n_new > 0):
        return np.full((2, seen.items.shape[1]), np.nan)[0], np.full(seen.items.shape[1], np.nan)
    missing, missing_new = (np.maximum(rows.rows[0] - rows.items[0], 0) for rows in (seen, new))
    difference, share = missing_new / n_new - missing / n, (missing + missing_new) / (n + n_new)
    varies = (share > 0) & (share < 1)
    p = np.full(len(share), np.nan)
    if all(rows.rows[0] == rows.rows[1] for rows in (seen, new)):  # without weights
        from scipy.stats import hypergeom  # takes long to import

        # Of many items most have one of a few pairs of counts, and each pair takes some 0.1 ms.
        counts = np.rint([missing + missing_new, missing_new])[:, varies]
        (all_missing, count), inverse = np.unique(counts, axis=1, return_inverse=True)
        drawn = hypergeom(round(n + n_new), all_missing, round(n_new))
        half = drawn.pmf(count) / 2
        p[varies] = np.minimum(2 * np.minimum(drawn.cdf(count) - half, drawn.sf(count - 1) - half), 1)[inverse]
    else:
        spread = share * (1 - share) * (1 / _effective(*seen.rows) + 1 / _effective(*new.rows))
        p[varies] = 2 * special.ndtr(-np.abs(difference[varies]) / np.sqrt(spread[varies]))
    return np.where(varies, difference, np.nan), p
