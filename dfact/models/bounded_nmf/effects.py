"""Differences between groups of an ICQF: in its factors, loadings and residuals, and their split into impact and effects on items.

The model determines the differences of confounders up to a shift between factors and items, which the anchor of
:mod:`dfact.linalg.anchor` fixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block
from dfact.errors import warn
from dfact.lazy import pd
from dfact.linalg.anchor import anchor
from dfact.models.bounded_nmf.passes import RowsPass, RowSums
from dfact.models.fitted_schema import Shape
from dfact.models.item_tests import NEGLIGIBLE

_COLLINEAR = 1e-8  # eigenvalues of correlations of confounders up to this count as 0
_NOT_DETERMINED = 1e-6  # squared share of a coefficient that such eigenvectors hold
_ITEMS = 1 << 10  # solved at once
_SPLITS: WeakKeyDictionary[Any, tuple[tuple[Any, ...], GroupEffects]] = WeakKeyDictionary()  # of fitted models, which are not changed
Array = NDArray[np.float64]


@dataclass
class DifferenceSums(RowSums, name="bounded_nmf_differences"):
    """Sums of the last pass of a fit with p columns A (n, p) of confounders, the intercept last; S are the weights."""

    gram: NDArray[Any]
    """AᵀSA (p, p)."""
    cross: NDArray[Any]
    """AᵀSW (p, k)."""
    observed: NDArray[Any]
    """Upper triangle of AᵀSA over the observed entries of each item (p(p+1)/2, m)."""
    residuals: NDArray[Any]
    """AᵀS(O∘(M − R)) (p, m)."""


@dataclass(frozen=True)
class DifferencesPass(RowsPass):
    """The last pass of a fit with confounders: the rows at their optimum, and the sums of which their differences follow."""

    columns: tuple[int, ...] = ()
    """Columns of C that make up A: independent unless confounders determine one another."""

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[RowFactors, DifferenceSums]:
        factors, sums = super().step(block, state, broadcast)
        k, X, work, s = self.problem.k, factors.factors, block.work, self.problem.sample_weight(block, self.dtype)
        A = np.ascontiguousarray(X[k:][list(self.columns)])
        wide, weighted = X[:k].astype(np.float64), A.astype(np.float64) * s
        upper = np.triu_indices(len(A))
        products = A[upper[0]]
        products *= A[upper[1]]
        products *= s
        residuals = work.matmul(X.T, broadcast, "target")
        np.subtract(block.values, residuals, out=residuals)
        missing = np.isnan(residuals, out=work.array("missing", residuals.shape, bool))
        np.copyto(residuals, 0, where=missing)
        observed = work.matmul(products, work.converted("observed", np.logical_not(missing, out=missing), self.dtype))
        weighted_residuals = work.matmul((A * s).astype(self.dtype, copy=False), residuals)
        return factors, DifferenceSums(
            **vars(sums),
            gram=weighted @ A.T.astype(np.float64),
            cross=weighted @ wide.T,
            observed=observed.astype(np.float64),
            residuals=weighted_residuals.astype(np.float64),
        )


@dataclass(frozen=True, eq=False)
class AdjustedDifferences:
    """Differences that the q confounders of a model make, each adjusted for the others by linear regression.

    They are of the order and names of ``ConfounderEncoding.differences``: each level minus the commonest one of its confounder, the
    highest value of a continuous confounder minus the lowest.
    """

    factors: Annotated[Array, Shape(("q", "k"), finite=False)]
    """Differences of W (q, k); NaN where confounders determine one another."""
    residuals: Annotated[Array, Shape(("q", "m"), finite=False)]
    """Differences of the observed residuals M − [W, C]Qᵀ (q, m), which the penalty leaves; NaN also for an item that was answered in one
    group only."""
    item_sd: Annotated[Array, Shape(("m",), low=0)]
    """Standard deviations of the items' answers (m,)."""

    @classmethod
    def from_sums(cls, sums: Any) -> Self:
        """Solve the regressions of the factors and of the residuals on the confounders, by :class:`DifferenceSums` or stored ones."""
        p, m = sums.residuals.shape
        upper = np.triu_indices(p)
        residuals = np.empty((p, m))
        for start in range(0, m, _ITEMS):
            items = slice(start, start + _ITEMS)
            grams = np.empty((sums.observed[:, items].shape[1], p, p))
            grams[:, upper[0], upper[1]] = grams[:, upper[1], upper[0]] = sums.observed[:, items].T
            residuals[:, items] = _regress(grams, sums.residuals[:, items].T[..., None])[..., 0].T
        factors = _regress(np.asarray(sums.gram)[None], np.asarray(sums.cross)[None])[0]
        count, total, squares = (np.asarray(row, np.float64) for row in sums.moments)
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        variance = np.divide(squares, count, out=np.zeros_like(total), where=count > 0) - mean**2
        variance[variance <= 1e-12 * mean**2] = 0  # of constant answers, up to rounding
        return cls(factors[:-1], residuals[:-1], np.sqrt(variance))


def _regress(grams: Array, sums: Array) -> Array:
    """Return the coefficients (…, p, r) of normal equations with matrices (…, p, p); NaN where they are not determined."""
    scale = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(grams / (scale[..., :, None] * scale[..., None, :]))
    used = values > _COLLINEAR
    inverse = np.where(used, 1 / np.where(used, values, 1.0), 0.0)
    coefficients = vectors @ (inverse[..., None] * (np.swapaxes(vectors, -1, -2) @ (sums / scale[..., None]))) / scale[..., None]
    lost = (vectors**2 * ~used[..., None, :]).sum(axis=-1) > _NOT_DETERMINED
    return np.where(lost[..., None], np.nan, coefficients)


class GroupEffects(NamedTuple):
    """The identified pair of q differences between groups."""

    impact: Array
    """Differences of the factors (q, k)."""
    effects: Array
    """Differences of the items at equal factors (q, m), in points."""


def split_differences(
    components: NDArray[Any], effects: NDArray[Any], differences: AdjustedDifferences, scale: Array, *, shrunken: bool = True
) -> GroupEffects:
    """Split effects (q, m) of a model with loadings (k, m) into impact and effects on items, by the anchor.

    If the effects are not to be ``shrunken`` by the penalty, the differences of the residuals are added to them: with complete answers,
    the split is then the same as for the mean answers.
    """
    Q = np.asarray(components, np.float64).T
    e = np.asarray(effects, np.float64)
    gaps, known = differences.factors, np.isfinite(differences.residuals)
    if not shrunken:
        e = e + differences.residuals
    impact, remaining = np.full(gaps.shape, np.nan), np.full(e.shape, np.nan)
    for row, usable in enumerate(known & (scale > 0)):
        if usable.any():
            shift = anchor(e[row, usable], Q[usable], scale[usable]).shift
            impact[row] = gaps[row] + shift
            remaining[row, known[row]] = (e[row] - Q @ shift)[known[row]]
    remaining[np.abs(remaining) <= 1e-11 * np.abs(np.where(known, e, 0)).max(axis=1, initial=0)[:, None]] = 0.0  # up to rounding
    return GroupEffects(impact, remaining)


def group_effects(model: Any) -> GroupEffects:
    """Return the identified pair of a fitted model, computed once."""
    if model.differences_ is None:  # without confounders
        return GroupEffects(np.zeros((0, len(model.components_))), np.zeros((0, model.components_.shape[1])))
    key = (model.components_, model.confounder_components_, model.differences_)
    cached = _SPLITS.get(model)
    if cached is None or any(a is not b for a, b in zip(cached[0], key, strict=True)):
        effects = model.confounder_encoding_.differences()[1] @ model.confounder_components_
        cached = _SPLITS[model] = key, split_differences(model.components_, effects, model.differences_, model.differences_.item_sd)
    return cached[1]


def anchor_items(model: Any) -> pd.DataFrame:
    """Count the items that carry the anchor: rows are differences and factors.

    ``items`` is the number of items whose largest loading is on the factor, ``anchors`` that of those with an effect below
    ``NEGLIGIBLE`` standard deviations of the item, and ``weak`` whether these are fewer than half. The split is then arbitrary.
    """
    encoding = model.confounder_encoding_
    names = () if encoding is None else encoding.differences()[0]
    effects, Q = group_effects(model).effects, np.asarray(model.components_, np.float64)
    limit = np.inf if model.differences_ is None else NEGLIGIBLE * model.differences_.item_sd
    members = (Q.argmax(axis=0) == np.arange(len(Q))[:, None]) & (Q > 0)
    negligible = np.nan_to_num(np.abs(effects), nan=np.inf) < limit
    anchors = (members & negligible[:, None, :]).sum(axis=2)
    index = pd.MultiIndex.from_product([names, model.get_feature_names_out()], names=["difference", "factor"])
    counts = np.broadcast_to(members.sum(axis=1), anchors.shape)
    return pd.DataFrame({"items": counts.ravel(), "anchors": anchors.ravel(), "weak": (2 * anchors < counts).ravel()}, index)


def impact_table(model: Any) -> pd.DataFrame:
    """Return the impact as a table, factors × differences."""
    encoding = model.confounder_encoding_
    names = [] if encoding is None else list(encoding.differences()[0])
    factors = pd.Index(model.get_feature_names_out(), name="factor")
    return pd.DataFrame(group_effects(model).impact.T, index=factors, columns=names)


def warn_of_effects(model: Any) -> None:
    """Warn of differences that the data does not determine, and of a weak anchor."""
    encoding, differences = model.confounder_encoding_, model.differences_
    if encoding is None or differences is None or not len(differences.factors):
        return
    names = np.asarray(encoding.differences()[0], object)
    lost = np.isnan(differences.factors).any(axis=1)
    if lost.any():
        found = f"the effects of {', '.join(names[lost])} are NaN, as the confounders determine one another"
        warn(f"{found}, expected each to vary at fixed values of the others; leave one out")
    single = np.isnan(differences.residuals[~lost])
    if single.any():
        row, item = np.argwhere(single)[0]
        more = f" and of {int(single.any(axis=0).sum()) - 1} more items" if single.any(axis=0).sum() > 1 else ""
        found = f"the effect of {names[~lost][row]} on {model.column_labels_[item]}{more} is NaN, as the answers are of one group only"
        warn(f"{found}; expected answers in each group, or leave the item out")
    counts = anchor_items(model)
    weak = counts[counts["weak"] & ~np.repeat(lost, len(model.components_))]
    if len(weak):
        (difference, factor), anchors, items = weak.index[0], weak["anchors"].iloc[0], weak["items"].iloc[0]
        more = f" and {len(weak) - 1} more" if len(weak) > 1 else ""
        found = f"{anchors} of {items} items of {factor} carry the anchor of {difference}{more}, expected at least half"
        warn(f"{found}; which items have DIF is then arbitrary")
