"""Differences between groups of an ICQF: in its factors, loadings and residuals, and their split into impact and effects on items.

The model determines the differences of confounders up to a shift between factors and items, which the anchor of
:mod:`dfact.linalg.anchor` fixes. The penalty shrinks the loadings on confounders, and with them a small group towards the other groups;
the means of the residuals hold what it took. Their sum is therefore what is given: with complete answers, it is that of the mean answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, Released
from dfact.errors import warn
from dfact.lazy import pd
from dfact.linalg.anchor import anchor
from dfact.models.bounded_nmf.passes import RowsPass, RowSums
from dfact.models.fitted_schema import Shape
from dfact.models.item_tests import NEGLIGIBLE

FEWEST = 50
"""Rows that each side of a difference needs, as the mean answers of fewer say little about their group."""
_COLLINEAR = 1e-8  # eigenvalues of correlations of confounders up to this count as 0
_NOT_DETERMINED = 1e-6  # squared share of a coefficient that such eigenvectors hold
_ITEMS = 1 << 10  # solved at once
_LEAST_SHARE = 1e-3  # an item that alone has a loading on a factor has no residual
_SPLITS: WeakKeyDictionary[Any, tuple[tuple[Any, ...], GroupEffects]] = WeakKeyDictionary()  # of fitted models, which are not changed
Array = NDArray[np.float64]


@dataclass
class DifferenceSums(
    RowSums,
    name="bounded_nmf_differences",
    disclosure=Released("products of confounders with one another, with factors and with residuals, summed over rows"),
):
    """Sums of the last pass of a fit with p columns A (n, p) of confounders, the intercept last; S are the weights."""

    gram: NDArray[Any]
    """AᵀSA (p, p)."""
    cross: NDArray[Any]
    """AᵀSW (p, k)."""
    observed: NDArray[Any]
    """Upper triangle of AᵀSA over the observed entries of each item (p(p+1)/2, m)."""
    residuals: NDArray[Any]
    """AᵀS(O∘(M − R)) (p, m)."""
    spread: NDArray[Any]
    """Upper triangle of AᵀS²diag((M − R)²)A over the observed entries of each item (p(p+1)/2, m)."""


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
        entries = work.converted("observed", np.logical_not(missing, out=missing), self.dtype)
        observed = work.matmul(products, entries)
        products *= s
        spread = work.matmul(products, np.square(residuals, out=entries))
        weighted_residuals = work.matmul((A * s).astype(self.dtype, copy=False), residuals)
        return factors, DifferenceSums(
            **vars(sums),
            gram=weighted @ A.T.astype(np.float64),
            cross=weighted @ wide.T,
            observed=observed.astype(np.float64),
            residuals=weighted_residuals.astype(np.float64),
            spread=spread.astype(np.float64),
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
    errors: Annotated[Array, Shape(("q", "m"), finite=False)]
    """Standard errors of ``residuals`` (q, m), whatever the variances of the groups and the weights of the rows (White 1980)."""

    @classmethod
    def from_sums(cls, sums: Any) -> Self:
        """Solve the regressions of the factors and of the residuals on the confounders, by :class:`DifferenceSums` or stored ones."""
        p, m = sums.residuals.shape
        residuals, errors = np.empty((p, m)), np.empty((p, m))
        for start in range(0, m, _ITEMS):
            items = slice(start, start + _ITEMS)
            inverse, lost = _inverted(_symmetric(sums.observed[:, items], p))
            residuals[:, items] = np.where(lost, np.nan, (inverse @ sums.residuals[:, items].T[..., None])[..., 0]).T
            variances = np.einsum("...ij,...jk,...ki->...i", inverse, _symmetric(sums.spread[:, items], p), inverse)
            errors[:, items] = np.where(lost, np.nan, np.sqrt(np.maximum(variances, 0))).T
        inverse, lost = _inverted(np.asarray(sums.gram))
        factors = np.where(lost[:, None], np.nan, inverse @ np.asarray(sums.cross))
        count, total, squares = (np.asarray(row, np.float64) for row in sums.moments)
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        variance = np.divide(squares, count, out=np.zeros_like(total), where=count > 0) - mean**2
        variance[variance <= 1e-12 * mean**2] = 0  # of constant answers, up to rounding
        return cls(factors[:-1], residuals[:-1], np.sqrt(variance), errors[:-1])


def _symmetric(triangles: Array, p: int) -> Array:
    """Return the symmetric matrices (m, p, p) of which these are the upper triangles (p(p+1)/2, m)."""
    upper = np.triu_indices(p)
    matrices = np.empty((triangles.shape[1], p, p))
    matrices[:, upper[0], upper[1]] = matrices[:, upper[1], upper[0]] = triangles.T
    return matrices


def _inverted(grams: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return the inverses of the matrices (…, p, p) of normal equations, and which of the coefficients (…, p) they do not determine."""
    scale = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(grams / (scale[..., :, None] * scale[..., None, :]))
    used = values > _COLLINEAR
    inverse = np.where(used, 1 / np.where(used, values, 1.0), 0.0)
    inverses = (vectors * inverse[..., None, :]) @ np.swapaxes(vectors, -1, -2) / (scale[..., :, None] * scale[..., None, :])
    lost: NDArray[np.bool_] = (vectors**2 * ~used[..., None, :]).sum(axis=-1) > _NOT_DETERMINED
    return inverses, lost


class GroupEffects(NamedTuple):
    """The identified differences between groups: their impact on the factors, and their effects on the items."""

    impact: Array
    """Differences of the factors (q, k)."""
    effects: Array
    """Differences of the items at equal factors (q, m), in points."""
    errors: Array
    """Standard errors of the effects (q, m), in points. They take the anchor and the loadings as known."""


def split_differences(
    components: NDArray[Any], effects: NDArray[Any], differences: AdjustedDifferences, scale: Array
) -> tuple[Array, Array]:
    """Return the impact (q, k) and the effects (q, m) of a model with loadings (k, m) and effects (q, m), by the anchor."""
    Q = np.asarray(components, np.float64).T
    e = np.asarray(effects, np.float64) + differences.residuals
    gaps, known = differences.factors, np.isfinite(differences.residuals)
    impact, remaining = np.full(gaps.shape, np.nan), np.full(e.shape, np.nan)
    for row, usable in enumerate(known & (scale > 0)):
        if usable.any():
            shift = anchor(e[row, usable], Q[usable], scale[usable]).shift
            impact[row] = gaps[row] + shift
            remaining[row, known[row]] = (e[row] - Q @ shift)[known[row]]
    remaining[np.abs(remaining) <= 1e-11 * np.abs(np.where(known, e, 0)).max(axis=1, initial=0)[:, None]] = 0.0  # up to rounding
    return impact, remaining


def too_few_rows(model: Any) -> NDArray[np.bool_]:
    """Return which of the differences (q,) have fewer than ``FEWEST`` rows on one side."""
    return np.array([size is not None and min(size) < FEWEST for size in model.confounder_encoding_.difference_sizes()], bool)


def group_effects(model: Any) -> GroupEffects:
    """Return the identified differences of a fitted model, computed once; NaN for those with too few rows on one side."""
    m = model.components_.shape[1]
    if model.differences_ is None:  # without confounders
        return GroupEffects(np.zeros((0, len(model.components_))), np.zeros((0, m)), np.zeros((0, m)))
    key = (model.components_, model.confounder_components_, model.differences_)
    cached = _SPLITS.get(model)
    if cached is None or any(a is not b for a, b in zip(cached[0], key, strict=True)):
        shrunken = model.confounder_encoding_.differences()[1] @ model.confounder_components_
        split = split_differences(model.components_, shrunken, model.differences_, model.differences_.item_sd)
        parts = [*split, model.differences_.errors / _shares_of_noise(model.components_)]
        for part in parts:
            part[too_few_rows(model)] = np.nan
        cached = _SPLITS[model] = key, GroupEffects(*parts)
    return cached[1]


def _shares_of_noise(components: NDArray[Any]) -> Array:
    """Return the shares of the items' standard deviations that the residuals keep (m,), as the factors follow each row's noise.

    They are the roots of 1 − h for the leverages h of the items in the regression of a row on the loadings (k, m).
    """
    Q = np.asarray(components, np.float64)
    leverages = np.einsum("km,km->m", Q, np.linalg.pinv(Q @ Q.T) @ Q)
    shares: Array = np.sqrt(np.maximum(1 - leverages, _LEAST_SHARE))
    return shares


def anchor_items(model: Any) -> pd.DataFrame:
    """Count the items that carry the anchor: rows are differences and factors.

    ``items`` is the number of items whose largest loading is on the factor, ``anchors`` that of those with an effect below
    ``NEGLIGIBLE`` standard deviations of the item or below twice its standard error, and ``weak`` whether these are fewer than half.
    The split is then arbitrary.
    """
    encoding = model.confounder_encoding_
    names = () if encoding is None else encoding.differences()[0]
    split, Q = group_effects(model), np.asarray(model.components_, np.float64)
    limit = 2 * split.errors
    if model.differences_ is not None:
        limit = np.maximum(limit, NEGLIGIBLE * model.differences_.item_sd)
    members = (Q.argmax(axis=0) == np.arange(len(Q))[:, None]) & (Q > 0)
    negligible = np.nan_to_num(np.abs(split.effects), nan=np.inf) < limit
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
    lost |= too_few_rows(model)  # reports say that these are not given
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
