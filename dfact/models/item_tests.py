"""Record of the anchored tests of items, part of a comparison of groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from dfact.lazy import special
from dfact.linalg.several_tests import adjusted
from dfact.models.estimator import add_saved_types
from dfact.models.fitted_schema import Shape

NEGLIGIBLE, LARGE = 0.17, 0.25
"""Differences over the item's standard deviation up to which ETS counts an item as class A, and above which as class C."""
SHARE = 0.05
"""False discovery rate of the tests, by the procedure of Benjamini and Hochberg over items and groups."""


@dataclass(frozen=True, eq=False)
class ItemTests:
    """Tests of m items, in g contrasts of a group with the reference, for a difference at equal factors; k factors.

    Differences and effects are in points, the group minus the reference.
    """

    difference: Annotated[NDArray[np.float64], Shape(("g", "m"))]
    """(g, m): difference of the item, the other confounders of the model held equal."""
    effect: Annotated[NDArray[np.float64], Shape(("g", "m"))]
    """(g, m): difference of the item at equal factors."""
    se: Annotated[NDArray[np.float64], Shape(("g", "m"), low=0)]
    """(g, m): standard error of the effect, by a delete-a-group jackknife."""
    sd: Annotated[NDArray[np.float64], Shape(("g", "m"), low=0)]
    """(g, m): standard deviation of the item within the two groups."""
    anchors: Annotated[NDArray[Any], Shape(("g", "m"), "integers")]
    """(g, m): 1 for items of the anchor, from which the difference of the groups in the factors is taken, else 0."""
    impact: Annotated[NDArray[np.float64], Shape(("g", "k"), finite=False)]
    """(g, k): difference of the group in each factor of the model, in standard deviations within the groups; NaN without loadings."""
    impact_se: Annotated[NDArray[np.float64], Shape(("g", "k"), finite=False)]
    """(g, k): standard error of the impact."""
    factor: Annotated[NDArray[Any], Shape(("m",), "integers")]
    """(m,): number of the factor with the item's largest loading."""
    df: int
    """Degrees of freedom of the standard errors: parts of the jackknife less one; the parts are of whole clusters, if these are known."""
    asked: Annotated[NDArray[Any], Shape(("g",), "integers")] | None = None
    """(g,): number of factors of the items within the groups by parallel analysis; None in comparisons of earlier versions."""
    n_factors: Annotated[NDArray[Any], Shape(("g",), "integers")] | None = None
    """(g,): largest of the numbers of factors with which the items were tested."""
    least: Annotated[NDArray[np.float64], Shape(("g", "m"), finite=False)] | None = None
    """(g, m): smallest t, in size, of an effect over the numbers of factors, whose p is that of the item; None in earlier comparisons."""
    residual: Annotated[NDArray[np.float64], Shape(("g",), finite=False)] | None = None
    """(g,): largest correlation within the groups that as many factors as the model has leave, of either sign."""
    residual_pair: Annotated[NDArray[Any], Shape(("g", "pair"), "integers")] | None = None
    """(g, 2): numbers of the two items of that correlation."""

    @property
    def t(self) -> NDArray[np.float64]:
        """(g, m): effects over their standard errors."""
        with np.errstate(invalid="ignore", divide="ignore"):
            t: NDArray[np.float64] = self.effect / self.se
        return t

    @property
    def p(self) -> NDArray[np.float64]:
        """(g, m): two-sided p values of Student's t distribution, each the largest over the numbers of factors."""
        p: NDArray[np.float64] = 2 * special.stdtr(self.df, -np.abs(self.t if self.least is None else self.least))
        return p

    @property
    def size(self) -> NDArray[np.float64]:
        """(g, m): effects in standard deviations of the items."""
        size: NDArray[np.float64] = self.effect / self.sd
        return size

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """(g, m): items whose test rejects at the false discovery rate, and whose effect is no less than 0.17 standard deviations."""
        flagged: NDArray[np.bool_] = (adjusted(self.p) <= SHARE) & (np.abs(self.size) >= NEGLIGIBLE)
        return flagged

    def of_numbers(self, items: Sequence[str]) -> list[dict[str, Any]]:
        """Return for each group what its number of factors was: that of the ``model``, the one ``asked`` by parallel analysis within the
        groups, those ``tested``, and the largest ``residual`` correlation with its ``pair`` of items. Empty in earlier comparisons.
        """
        if self.asked is None or self.n_factors is None or self.residual is None or self.residual_pair is None:
            return []
        k, found = self.impact.shape[1], []
        for asked, largest, residual, pair in zip(self.asked, self.n_factors, self.residual, self.residual_pair, strict=True):
            tested = sorted({k, min(k + 1, int(largest)), int(largest)})
            names = [items[j] for j in pair]
            found.append({"model": k, "asked": int(asked), "tested": tested, "residual": float(residual), "pair": names})
        return found

    def impact_interval(self, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return both ends of the intervals of the impact (g, k)."""
        width = special.stdtrit(self.df, (1 + level) / 2) * self.impact_se
        return self.impact - width, self.impact + width


add_saved_types(ItemTests)
