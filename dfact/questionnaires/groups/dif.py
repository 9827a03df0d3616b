"""Differential item functioning by an anchored difference: whether an item differs between groups that agree in the factors.

Shapes: m items, k factors, g contrasts of a group with the first, G parts of the rows, p regressors; L groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.linalg.anchor import anchor
from dfact.linalg.parallel_analysis import parallel_analysis
from dfact.questionnaires.groups.sums import MOST_LEVERAGE, CurvaturePass, Curves, NormalEquationsPass, ResidualsPass
from dfact.questionnaires.minres import LOWEST, minres

Array = NDArray[np.float64]
N_PARTS = 60
"""Parts of the rows, each of which the jackknife leaves out once; with clusters there may be fewer."""
_LEAST_ANCHORS = 4
_MAX_ROUNDS = 10  # of purification
_LEAST_UNIQUENESS = 0.2  # in the weights of the items: a Heywood case must not be the whole anchor
_STEPS = 2  # of Gauss and Newton from the uniquenesses of all rows to those without a part
_MOST_CURVATURE = 4.0
"""Largest factor of the curvature: simulated means were 1.5 to 3 where the variances differ."""
_COLLINEAR = 1e-8  # singular values below this share of the largest are 0
_ROUNDING = 1e-9
_LEAST_VARIANCE = 1e-6  # of a group's indicator, as a share, once other regressors are held equal


class Design(NamedTuple):
    """The layout of the regressors Z: an intercept, an indicator of each group but the first, and other confounders."""

    n_groups: int
    n_regressors: int
    rows: tuple[float, ...]
    """Effective number of rows of each group."""
    n_parts: int = N_PARTS


@dataclass(frozen=True, eq=False)
class DifTest:
    """The test of one contrast. Differences and effects are in points of the items."""

    difference: Array
    """Difference e of the items (m), other confounders being equal."""
    effect: Array
    """Effect d of the group on the items at equal factors (m)."""
    se: Array
    """Standard errors of d (m)."""
    sd: Array
    """Standard deviations of the items within the groups (m)."""
    anchors: NDArray[np.bool_]
    """Items that determine the difference of the factors (m)."""
    impact: Array
    """Difference of the factors in standard deviations within the groups (k); NaN if the items ask for more factors."""
    impact_se: Array
    asked: int
    """Number of factors of the items within the groups, by parallel analysis."""
    n_factors: int
    """Largest number of factors with which the items were tested."""
    residual: Array
    """Correlations of the items within the groups that the model's number of factors leaves (m, m)."""
    least: Array
    """Smallest t, in size, of the effects over the numbers of factors (m)."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of all rows."""

    shift: Array
    B: Array
    """Coefficients (m, p)."""
    inverse: Array
    """(ZᵀWZ)⁻¹ of each item (m, p, p)."""
    weights: Array
    """(L, m)."""
    cross: Array
    """(L, m, m)."""
    pairs: Array

    @property
    def covariances(self) -> Array:
        return self.cross / self.pairs


def anchored_dif(
    design: Design, shift: Array, components: Array, *, complete: bool, tiles: int, dtype: np.dtype[Any]
) -> Solver[list[DifTest]]:
    """Test each item in each contrast for a difference between groups that agree in k factors.

    With e_j the difference of item j between the group and the first one, all other confounders held equal by least squares, and λ_j
    its loadings on the factors that the covariances within the groups have in common,

        e_j = λ_jᵀδ + c κ_j + d_j,

    where δ is the impact, the difference of the groups in the factors, and d_j the effect of the group on the item. δ is what most
    items agree on: least absolute deviations find it, and items whose test rejects leave the anchor until no more do. The test of an
    item takes δ from the other anchors alone, weighted by 1/ψ: the difference of Bartlett's scores of the anchors. It does not
    condition on fallible scores, so that impact does not bias it.

    λ comes from the mean of both groups' covariances, in equal units. For normal factors and any smooth response curve
    f_j the mean slope of f_j is its covariance with the factor (Stein 1981), and the mean of both ends is the trapezoid rule of the
    slope between the groups, so that the linear form holds for ordered categories up to the third derivative. Groups with
    different variances differ also by half the curvature of f_j times the difference of the variances,
    κ_j = ½(v₁ − v₀)·mean of cov(x_j, t_j²)/v², with t_j the common part of item j and v = λ_jᵀΦλ_j; c between 0 and 4 corrects for
    the error of t.

    Standard errors are a delete-a-group jackknife of everything, loadings and anchor among it (Kott 2001). Parts of whole clusters
    make them those of a cluster sample.

    With fewer factors than the items have, what a missing factor differs in looks like effects on its items. So each item is tested with
    k factors, with k + 1, and with the number that parallel analysis finds within the groups, all from the same passes. Its p value is
    the largest of these: an intersection-union test, which rejects what all of them reject (Berger 1982). The effect and its standard
    error are those with k factors, or as many as parallel analysis asks for if these are more. In that case the model's factors do not
    explain what the items share, and there is no impact on them.

    Parameters
    ----------
    design : Design
        Regressors in the covariates of the rows, after their group, part and weight.
    shift : array (m,)
        Values near the means of the items.
    components : array (k, m)
        Loadings of the model, for whose factors the impact is reported; k is also the least number of factors of the test.
    complete : bool
        Whether no answer is missing.
    tiles : int
        Number of passes in which the sums of the parts are taken.
    dtype : dtype
        Floating type of the answers; sums are in double precision.

    Returns
    -------
    list of DifTest
        One for each group but the first.

    Raises
    ------
    DataError
        Groups that other confounders determine, items without common answers, or too few items for k factors.

    References
    ----------
    Berger (1982); Chen et al. (2023); Horn (1965); Kott (2001); Stein (1981).
    """
    k, m = components.shape
    if not _determines(m, k):
        raise DataError(f"{m} items do not determine {k} factors within the groups")
    totals = yield from _totals(design, shift, complete, dtype)
    states = [_Contrast.of(totals, group, components, design) for group in range(1, design.n_groups)]
    bounds = np.linspace(0, design.n_parts, min(tiles, design.n_parts) + 1).astype(int)
    for first, last in pairwise(bounds):
        pass_ = ResidualsPass(dtype, design.n_groups, (int(first), int(last)), complete)
        sums = yield from run(pass_, (shift, totals.B))
        for state in states:
            state.add(totals, sums)
    curves = [curve for state in states for curve in state.curves]
    curvature = yield from run(CurvaturePass(dtype, design.n_parts), (shift, totals.B, tuple(curves)))
    parts = np.split(curvature.sums, np.cumsum([len(state.curves) for state in states])[:-1])
    return [state.test(totals, sums) for state, sums in zip(states, parts, strict=True)]


def _determines(m: int, k: int) -> bool:
    """Return whether m items have degrees of freedom for k factors."""
    return k < m and (m - k) ** 2 >= m + k


def _totals(design: Design, shift: Array, complete: bool, dtype: np.dtype[Any]) -> Solver[_Sums]:
    equations = yield from run(NormalEquationsPass(dtype), shift)
    scale = np.sqrt(np.maximum(np.einsum("jpp->jp", equations.gram), np.finfo(float).tiny))
    gram = equations.gram / (scale[:, :, None] * scale[:, None, :])
    _refuse_determined_groups(gram, design)
    inverse = np.linalg.pinv(gram, rcond=_COLLINEAR, hermitian=True) / (scale[:, :, None] * scale[:, None, :])
    B = np.einsum("jpq,jq->jp", inverse, equations.products)
    sums = yield from run(ResidualsPass(dtype, design.n_groups, None, complete), (shift, B))
    return _Sums(shift, B, inverse, sums.weights[:, 0], sums.cross[:, 0], sums.pairs[:, 0])


def _refuse_determined_groups(gram: Array, design: Design) -> None:
    """Refuse groups without variance once the other regressors are held equal, of any item; ``gram`` has unit diagonals."""
    groups = np.arange(1, design.n_groups)
    others = np.r_[0, np.arange(design.n_groups, design.n_regressors)]
    cross = gram[:, groups[:, None], others]
    explained = cross @ np.linalg.pinv(gram[:, others[:, None], others], rcond=_COLLINEAR, hermitian=True) @ cross.swapaxes(1, 2)
    left = np.linalg.eigvalsh(gram[:, groups[:, None], groups] - explained)[:, 0]
    if left.min() < _LEAST_VARIANCE:
        raise DataError("the other confounders of the model determine the groups")


@dataclass(frozen=True, eq=False)
class _Extraction:
    """Factors of one number, of all rows and without each part."""

    k: int
    psi: Array
    """Uniquenesses of all rows (m)."""
    loadings: list[Array]
    """(…, m, k) each, of all rows first."""

    @property
    def precision(self) -> Array:
        return 1 / np.maximum(self.psi, _LEAST_UNIQUENESS)


class _Contrast:
    """The estimates of one contrast, of all rows (first) and without each part."""

    def __init__(self, group: int, sd: Array, scale: Array, components: Array, C: Array, asked: int, n_parts: int) -> None:
        self._group, self._sd, self._scale, self._components, self._n_parts = group, sd, scale, components, n_parts
        self._C, self._asked = C, asked
        k, m = components.shape
        self._extractions = [self._extract(each) for each in sorted({k, k + 1, max(k, asked)}) if _determines(m, each)]
        self._e: list[Array] = []
        self._weights: list[Array] = []  # Σ w of the answers in both groups (…, 2, m)

    @classmethod
    def of(cls, totals: _Sums, group: int, components: Array, design: Design) -> "_Contrast":
        sides = [0, group]
        if not (totals.pairs[sides] > 0).all():
            raise DataError("some items share no answers within a group")
        n = totals.weights[sides]
        spread = np.einsum("ljj->lj", totals.cross[sides])
        sd = np.sqrt(spread.sum(axis=0) / n.sum(axis=0))
        C = totals.covariances[sides] / np.outer(sd, sd)
        sizes = _common_size(C)
        if not (sizes > 0).all():
            raise DataError("the items have nothing in common within a group")
        scale = sd * np.sqrt(_mean(C, sizes).diagonal())
        C = totals.covariances[sides] / np.outer(scale, scale)
        C = _mean(C, _common_size(C))
        rows, pairs = design.rows[0] + design.rows[group], totals.pairs[sides].sum(axis=0)
        shares = None if pairs.size == 1 else pairs / pairs.max()
        asked = parallel_analysis(_correlations(C), max(round(rows), 2), shares=shares).n_factors
        found = cls(group, sd, scale, components, C, asked, design.n_parts)
        found._e.append((totals.B[:, group] / scale)[None])
        found._weights.append(n[None])
        return found

    def _extract(self, k: int) -> _Extraction:
        L, psi = _factors(self._C[None], minres(self._C, k).uniquenesses, k)
        return _Extraction(k, psi[0], [L])

    def add(self, totals: _Sums, sums: Any) -> None:
        """Add the estimates without each of the parts of these sums."""
        sides, scale = [0, self._group], self._scale
        pairs = totals.pairs[sides][:, None] - sums.pairs[sides]
        if not (pairs > _ROUNDING * totals.pairs[sides][:, None]).all():
            raise DataError("too few rows have answered some pairs of items within a group")
        C = (totals.cross[sides][:, None] - sums.cross[sides]) / pairs / np.outer(scale, scale)
        C = _mean(C, _common_size(C))
        for found in self._extractions:
            found.loadings.append(_factors(C, found.psi, found.k)[0])
        change = np.einsum("jp,apj->aj", totals.inverse[:, self._group], sums.scores) * (self._n_parts / (self._n_parts - 1))
        self._e.append((totals.B[:, self._group] - change) / scale)
        self._weights.append((totals.weights[sides][:, None] - sums.weights[sides]).swapaxes(0, 1))

    @property
    def curves(self) -> list[Curves]:
        return [Curves(self._group, self._scale, found.loadings[0][0], found.precision) for found in self._extractions]

    def test(self, totals: _Sums, curvature: Array) -> DifTest:
        """Test all items with each number of factors; ``curvature`` holds the sums of both groups by part (numbers, 2, G, m)."""
        largest = max(len(self._components), self._asked)  # or as many as the items determine
        own = max(i for i, found in enumerate(self._extractions) if found.k <= largest)
        tests = [self._test(totals, found, sums) for found, sums in zip(self._extractions, curvature, strict=True)]
        with np.errstate(invalid="ignore", divide="ignore"):
            t = np.stack([d[0] / _jackknife_se(d) for d, _, _ in tests])
        least = t[np.where(np.isnan(t), np.inf, np.abs(t)).argmin(axis=0), np.arange(t.shape[1])]
        d, anchors, impact = tests[own]
        effect, se = d[0] * self._scale, _jackknife_se(d) * self._scale
        if self._asked > len(self._components):
            impact = np.full_like(impact, np.nan)
        first = self._extractions[0]
        residual = _correlations(self._C, self._C - first.loadings[0][0] @ first.loadings[0][0].T)
        numbers = self._asked, self._extractions[-1].k
        found = (anchors, impact[0], _jackknife_se(impact))
        return DifTest(totals.B[:, self._group], effect, se, self._sd, *found, *numbers, residual, least)

    def _test(self, totals: _Sums, found: _Extraction, curvature: Array) -> tuple[Array, NDArray[np.bool_], Array]:
        """Purify the anchor, and return the effects (1 + G, m), the anchor (m), and the impact (1 + G, k)."""
        e, loadings, n = (np.concatenate(part) for part in (self._e, found.loadings, self._weights))
        total = curvature.sum(axis=1, keepdims=True)
        means = np.concatenate([total, total - curvature], axis=1) / n.swapaxes(0, 1)  # (2, 1 + G, m)
        C = totals.covariances[[0, self._group]] / np.outer(self._scale, self._scale)
        variances = _common_variances(C, loadings[0], found.precision)
        K = 0.25 * (variances[1] - variances[0]) * (means / variances[:, None] ** 2).sum(axis=0)
        factor = np.abs(self._components / self._scale).argmax(axis=0)
        explained, _ = _least_squares(K, loadings, found.precision)
        problem = _AnchorProblem(e, loadings, K - np.einsum("ajk,ak->aj", loadings, explained), found.precision, factor)
        anchors = problem.purify()
        d, shift, _ = problem.estimate(anchors)
        B = np.linalg.pinv((self._components / self._scale).T) @ loadings
        with np.errstate(invalid="ignore", divide="ignore"):
            impact = np.einsum("akl,al->ak", B, shift) / np.sqrt(np.einsum("akl,akl->ak", B, B))
        return d, anchors, impact


@dataclass(frozen=True, eq=False)
class _AnchorProblem:
    """Differences e (1 + G, m), loadings (1 + G, m, k) and curvatures (1 + G, m), of all rows and without each part.

    The curvature is orthogonal to the loadings, so that what both can explain counts as impact.
    """

    e: Array
    loadings: Array
    curvature: Array
    precision: Array
    """(m)."""
    factor: NDArray[np.intp]
    """The factor of each item's largest loading in the model (m)."""

    def estimate(self, anchors: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Return d (1 + G, m), each without its own item in the anchor, δ (1 + G, k), and t = d/se (m)."""
        k = self.loadings.shape[2]
        extended = np.concatenate([self.loadings, self.curvature[..., None]], axis=2)
        solution, d = _least_squares(self.e, extended, self.precision * anchors)
        c = float(solution[0, k])
        if not 0 < c < _MOST_CURVATURE:
            e = self.e - np.clip(c, 0, _MOST_CURVATURE) * self.curvature
            solution, d = _least_squares(e, self.loadings, self.precision * anchors)
        with np.errstate(invalid="ignore", divide="ignore"):
            t = d[0] / _jackknife_se(d)
        return d, solution[:, :k], t

    def purify(self) -> NDArray[np.bool_]:
        """Return the items that stay in the anchor (m): those whose test does not reject, and at least four of each factor."""
        everything = np.ones(self.e.shape[1], bool)
        d, _, _ = self.estimate(everything)
        scale = 1 / np.sqrt(self.precision)
        extended = np.c_[self.loadings[0], self.curvature[0]]
        c = np.clip(anchor(self.e[0], extended, scale).shift[-1], 0, _MOST_CURVATURE)
        robust = anchor(self.e[0] - c * self.curvature[0], self.loadings[0], scale).effects
        t = robust / _jackknife_se(d)
        anchors = self._accepted(t)
        for _ in range(_MAX_ROUNDS):
            _, _, t = self.estimate(anchors)
            accepted = self._accepted(t)
            if (accepted == anchors).all():
                break
            anchors = accepted
        return anchors

    def _accepted(self, t: Array) -> NDArray[np.bool_]:
        from scipy.stats import false_discovery_control  # takes long to import

        sizes = np.where(np.isnan(t), np.inf, np.abs(t))
        anchors: NDArray[np.bool_] = false_discovery_control(2 * stdtr(len(self.e) - 2, -sizes)) > 0.05
        for factor in np.unique(self.factor):
            items = np.flatnonzero(self.factor == factor)
            anchors[items[np.argsort(sizes[items], kind="stable")[:_LEAST_ANCHORS]]] = True
        return anchors


def _least_squares(e: Array, loadings: Array, weights: Array) -> tuple[Array, Array]:
    """Return δ (B, k) of weighted least squares of e (B, m), and the residuals d (B, m) of fits without the item."""
    weighted = loadings * weights[:, None]
    inverse = np.linalg.pinv(np.einsum("bjk,bjl->bkl", weighted, loadings, optimize=True), rcond=1e-10, hermitian=True)
    shift = np.einsum("bkl,bjl,bj->bk", inverse, weighted, e, optimize=True)
    leverage = np.einsum("bjk,bkl,bjl->bj", weighted, inverse, loadings, optimize=True)
    d = (e - np.einsum("bjk,bk->bj", loadings, shift)) / (1 - np.minimum(leverage, MOST_LEVERAGE))
    return shift, d


def _jackknife_se(estimates: Array) -> Array:
    """Return the standard errors of estimates (1 + G, …), of which the first is of all rows."""
    parts = estimates[1:]
    se: Array = np.sqrt((len(parts) - 1) / len(parts) * ((parts - parts.mean(axis=0)) ** 2).sum(axis=0))
    return se


def _common_size(C: Array) -> Array:
    """Return the norms of the off-diagonals of matrices (…, m, m)."""
    off = C * (1 - np.eye(C.shape[-1]))
    norms: Array = np.sqrt((off**2).sum(axis=(-2, -1)))
    return norms


def _mean(C: Array, sizes: Array) -> Array:
    """Return the mean of both groups' matrices (2, …, m, m), in units in which their common parts are equally large."""
    mean: Array = (C * (sizes.mean(axis=0) / sizes)[..., None, None]).mean(axis=0)
    return mean


def _correlations(C: Array, of: Array | None = None) -> Array:
    """Return the matrix ``of`` (m, m), by default C itself, over the standard deviations of C, with ones on the diagonal."""
    sd = np.sqrt(C.diagonal())
    R: Array = (C if of is None else of) / np.outer(sd, sd)
    np.fill_diagonal(R, 1)
    return R


def _factors(C: Array, start: Array, k: int) -> tuple[Array, Array]:
    """Return loadings (B, m, k) and uniquenesses (B, m) of matrices (B, m, m) near one whose uniquenesses are ``start`` (m).

    With P the projector on the m − k smallest eigenvectors of C − Ψ, minimum residuals have diag(P(C − Ψ)P) = 0. A step of Gauss
    and Newton adds (P∘P)⁻¹ diag(P(C − Ψ)P) to ψ.
    """
    m = C.shape[1]
    psi = np.tile(start, (len(C), 1))
    for step in range(_STEPS + 1):
        values, vectors = np.linalg.eigh(C - psi[:, :, None] * np.eye(m))
        if step < _STEPS:
            rest = vectors[:, :, : m - k]
            P = rest @ rest.swapaxes(1, 2)
            diagonal = np.einsum("bij,bj,bij->bi", rest, values[:, : m - k], rest, optimize=True)
            psi = np.maximum(psi + np.linalg.solve(P * P + 1e-8 * np.eye(m), diagonal[..., None])[..., 0], LOWEST)
    return vectors[:, :, m - k :] * np.sqrt(np.maximum(values[:, None, m - k :], 0)), psi


def _common_variances(C: Array, loadings: Array, precision: Array) -> Array:
    """Return λ_jᵀΦλ_j of the items in each group (2, m), Φ from the off-diagonals of its matrix (2, m, m) by iterated Bartlett weights."""
    weighted = loadings * precision[:, None]
    A = weighted @ np.linalg.pinv(loadings.T @ weighted, rcond=1e-10, hermitian=True)
    reduced, index = C.copy(), np.arange(C.shape[-1])
    variances = np.tile((loadings**2).sum(axis=1), (len(C), 1))
    for _ in range(30):
        reduced[:, index, index] = variances
        Phi = A.T @ reduced @ A
        variances = np.einsum("jk,lkq,jq->lj", loadings, Phi, loadings, optimize=True)
    return np.asarray(np.maximum(variances, 1e-3))


def weak_factors(anchors: Sequence[bool] | NDArray[np.bool_], factor: NDArray[np.intp]) -> dict[int, tuple[int, int]]:
    """Return the numbers of anchors and of items of each factor whose anchor is arbitrary: fewer than four, or than half of its items."""
    anchors = np.asarray(anchors, bool)
    counts = {int(f): (int(anchors[factor == f].sum()), int((factor == f).sum())) for f in np.unique(factor)}
    return {f: (n, size) for f, (n, size) in counts.items() if n < _LEAST_ANCHORS or 2 * n < size}
