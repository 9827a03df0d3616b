"""Mantel's test of differential item functioning, by passes of counts: stratum × group × item × level."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Withheld
from dfact.engine.requests import Solver, run
from dfact.lazy import special
from dfact.linalg.several_tests import adjusted
from dfact.questionnaires.kernels.strata import count_fractions, count_strata

Array = NDArray[np.float64]
_LEAST_ANCHORS = 4  # purification leaves at least so many items in the match
MAX_LEVELS = 100
"""Largest number of levels of an item whose answers count as ordered categories."""


@dataclass(frozen=True, eq=False)
class Strata:
    """Scales whose totals are the strata, and the items that count in them.

    The levels of an item run from its lowest to its highest answer; reversed items count from the highest.
    """

    low: Array
    """Lowest answer of each item (m,)."""
    high: Array
    """Highest answer of each item (m,)."""
    reverse: NDArray[np.bool_]
    """(m,)."""
    items: NDArray[np.int64]
    """Numbers of the items of all scales, scale by scale."""
    starts: NDArray[np.int64]
    """Range of each scale in ``items`` (scales + 1,)."""
    anchors: NDArray[np.bool_]
    """Items whose answers add up to the total, in each contrast (g, m)."""

    @classmethod
    def of(cls, low: Array, high: Array, reverse: NDArray[np.bool_], scales: Sequence[NDArray[np.intp]], n_contrasts: int) -> "Strata":
        """Make the strata of scales with these items, all of which count."""
        items = np.concatenate([np.asarray(scale, np.int64) for scale in scales]) if scales else np.empty(0, np.int64)
        starts = np.cumsum([0, *map(len, scales)]).astype(np.int64)
        return cls(low, high, reverse, items, starts, np.ones((n_contrasts, len(low)), bool))

    @property
    def scales(self) -> Iterator[NDArray[np.int64]]:
        """The items of each scale."""
        return (self.items[first:last] for first, last in zip(self.starts[:-1], self.starts[1:], strict=True))

    @property
    def shapes(self) -> NDArray[np.int64]:
        """Numbers of the strata and of the levels of the items (g, m, 2); 0 for an item in no scale, whose range may be any."""
        shapes = np.zeros((*self.anchors.shape, 2), np.int64)
        for items in self.scales:
            anchors, steps = self.anchors[:, items], (self.high - self.low)[items].astype(np.int64)
            shapes[:, items, 0] = 1 + (anchors * steps).sum(axis=1)[:, None] + np.where(anchors, 0, steps)
            shapes[:, items, 1] = steps + 1
        return shapes

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Begin of the table of each item in the counts (g, m)."""
        sizes = 2 * self.shapes.prod(axis=2).ravel()
        offsets: NDArray[np.int64] = (np.cumsum(sizes) - sizes).reshape(self.anchors.shape)
        return offsets

    @property
    def size(self) -> int:
        """Number of counts."""
        return int(2 * self.shapes.prod(axis=2).sum())


@dataclass
class StrataCounts(PartialSums, name="strata", disclosure=Withheld("has numbers of cells that few rows may share")):
    """Counts of answers by contrast, item, stratum, group and level."""

    counts: NDArray[Any]
    """Flat; the table of an item is (strata, 2, levels)."""
    fractions: NDArray[Any]
    """Number of answers to each item that are not whole numbers (m,)."""


@dataclass(frozen=True)
class StrataPass(Pass[BlockState, Strata, StrataCounts]):
    """The counts of answers in the broadcast strata; the first of a block's covariates is the group of its rows."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: Strata) -> tuple[BlockState, StrataCounts]:
        assert block.covariates is not None, "the first covariate is the group"
        s, values, groups = broadcast, block.values, np.ascontiguousarray(block.covariates[:, 0], np.int64)
        offsets, size = block.work.cached("tables", broadcast, lambda: (s.offsets, s.size))
        counts, fractions = block.work.zeros((size,), np.int64), block.work.zeros((values.shape[1],), np.int64)
        count_fractions(values, fractions)
        if not fractions.any():
            count_strata(values, groups, s.low, s.high, s.reverse, s.items, s.starts, s.anchors, offsets, counts)
        return state, StrataCounts(counts, fractions)


@dataclass(frozen=True, eq=False)
class MantelTest:
    """Mantel's test of each item in each contrast of a group with the reference (g, m); NaN for items in no scale."""

    n: Array
    """Number of participants in strata with both groups."""
    chi_square: Array
    """χ² with one degree of freedom (Mantel 1963), of two categories Mantel and Haenszel's without continuity correction."""
    p: Array
    smd: Array
    """Standardised mean difference of the answers as they were given, group less reference in equal strata, in points."""
    alpha: Array
    """Common odds ratio of Mantel and Haenszel of the higher answer, reference to group; NaN for more than two categories."""
    anchors: NDArray[np.bool_]
    """Items that count in the totals."""
    sd: Array
    """Standard deviation of the item within the groups, of the same participants."""
    alpha_se: Array
    """Standard error of log α; NaN for more than two categories."""

    @property
    def delta(self) -> Array:
        """Delta of the Educational Testing Service, −2.35 log α."""
        with np.errstate(divide="ignore"):
            delta: Array = -2.35 * np.log(self.alpha)
        return delta


def mantel_statistics(table: Array) -> tuple[float, float, float, float]:
    """Return n, χ², SMD and α of a table of counts (strata, 2, levels): reference first; strata without both groups count nothing.

    With F_s the sum of the answers x in the group, of n_Fs of the n_s participants in stratum s,

        χ² = (ΣF_s − ΣE_s)²/ΣV_s,   E_s = n_Fs/n_s·Σx,   V_s = n_Rs n_Fs/(n_s²(n_s − 1))·(n_s Σx² − (Σx)²).

    References
    ----------
    Mantel (1963); Holland & Thayer (1988).
    """
    table = table[(table.sum(axis=2) > 0).all(axis=1)]
    levels = np.arange(table.shape[2])
    n_ref, n_group = table.sum(axis=2).T
    n, both = n_ref + n_group, table.sum(axis=1)
    sums, squares = both @ levels, both @ levels**2
    group_sums = table[:, 1] @ levels
    variance = float((n_ref * n_group / (n**2 * np.maximum(n - 1, 1)) * (n * squares - sums**2)).sum())
    if not variance > 0:
        return float(n.sum()), np.nan, np.nan, np.nan
    chi_square = float((group_sums - n_group / n * sums).sum()) ** 2 / variance
    smd = float((group_sums - n_group * (table[:, 0] @ levels) / n_ref).sum() / n_group.sum())
    alpha = np.nan
    if len(levels) == 2:
        odds, inverse = (float((table[:, 0, a] * table[:, 1, 1 - a] / n).sum()) for a in (1, 0))
        alpha = odds / inverse if inverse else np.inf
    return float(n.sum()), chi_square, smd, alpha


def mantel_scales(table: Array) -> tuple[float, float]:
    """Return the standard deviation of the answers within both groups, and the standard error of log α, of such a table.

    With a, b the higher and lower answers of the first group and c, d those of the other one, of n in a stratum, P = (a + d)/n,
    Q = (b + c)/n, R = ad/n, S = bc/n: Var log α = ΣPR/2(ΣR)² + Σ(PS + QR)/2ΣRΣS + ΣQS/2(ΣS)².

    References
    ----------
    Robins et al. (1986).
    """
    table = table[(table.sum(axis=2) > 0).all(axis=1)]
    levels, groups = np.arange(table.shape[2]), table.sum(axis=0)
    n = groups.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = groups @ levels**2 - (groups @ levels) ** 2 / n
        sd = float(np.sqrt(max(spread.sum(), 0.0) / n.sum()))
        if len(levels) != 2:
            return sd, np.nan
        total = table.sum(axis=(1, 2))
        (b, a), (d, c) = table[:, 0].T, table[:, 1].T
        P, Q, R, S = (a + d) / total, (b + c) / total, a * d / total, b * c / total
        r, s = R.sum(), S.sum()
        variance = (P * R).sum() / (2 * r**2) + (P * S + Q * R).sum() / (2 * r * s) + (Q * S).sum() / (2 * s**2)
        return sd, float(np.sqrt(variance))


def _test(strata: Strata, counts: NDArray[Any]) -> MantelTest:
    n, chi_square, smd, alpha, sd, alpha_se = np.full((6, *strata.anchors.shape), np.nan)
    shapes, offsets = strata.shapes, strata.offsets
    for c, j in np.argwhere(shapes[:, :, 0] > 0):
        (n_strata, levels), start = shapes[c, j], offsets[c, j]
        table = counts[start : start + 2 * n_strata * levels].reshape(n_strata, 2, levels)
        n[c, j], chi_square[c, j], smd[c, j], alpha[c, j] = mantel_statistics(table)
        sd[c, j], alpha_se[c, j] = mantel_scales(table)
    smd = np.where(strata.reverse, -smd, smd)
    with np.errstate(divide="ignore"):
        alpha = np.where(strata.reverse, 1 / alpha, alpha)
    p = np.where(np.isnan(chi_square), np.nan, special.chdtrc(1, np.nan_to_num(chi_square)))
    return MantelTest(n, chi_square, p, smd, alpha, strata.anchors, sd, alpha_se)


def mantel_tests(strata: Strata, dtype: np.dtype[Any], *, level: float = 0.05) -> Solver[tuple[MantelTest, MantelTest] | NDArray[Any]]:
    """Test all items, and again with purified totals; return both tests, or the numbers of answers (m,) that are not whole numbers.

    While Benjamini and Hochberg's procedure flags anchors of a scale, the one with the largest χ² leaves its total, and all counts are
    taken again: one pass each, for all scales and contrasts at once. Four items at least stay.
    """
    first: MantelTest | None = None
    while True:
        sums = yield from run(StrataPass(dtype), strata)
        if sums.fractions.any():
            return np.asarray(sums.fractions)
        test = _test(strata, sums.counts)
        first = first or test
        anchors = strata.anchors.copy()
        for contrast in range(len(anchors)):
            for items in strata.scales:
                flagged = (adjusted(test.p[contrast, items]) <= level) & anchors[contrast, items]
                if flagged.any() and anchors[contrast, items].sum() > _LEAST_ANCHORS:
                    worst = np.where(flagged, test.chi_square[contrast, items], -np.inf).argmax()
                    anchors[contrast, items[worst]] = False
        if (anchors == strata.anchors).all():
            return first, test
        strata = replace(strata, anchors=anchors)
