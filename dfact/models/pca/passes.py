"""Passes of principal component analysis: moments of the columns, their products, scores, and the sums of the EM algorithm."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Released, TiledPass
from dfact.kernels.entries import residual_sums
from dfact.kernels.principal import column_moments, count_observed, expected_scores, mark_observed, posterior_rows, standardize
from dfact.models.growth.baseline import ITEM_SUMS, Baseline, factor_sums

N_ROW_GROUPS = 20
"""Number of groups of rows whose sums give the standard errors of a mean error."""
_PART = 1 << 12  # columns that are multiplied at once
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Standardized:
    """View of a block (rows, m): centred columns, divided by their scale, 0 for missing entries; a copy in its working memory."""

    mean: Floats
    scale: Floats
    dtype: np.dtype[Any]
    factor: Floats = field(init=False)
    """1/scale (m,)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", 1 / self.scale)

    def __call__(self, block: Block) -> NDArray[Any]:
        stored, missing = block.codes
        out = block.work.array("standardized", stored.shape, self.dtype)
        standardize(stored, missing, self.mean, self.factor, out)
        return out


def observed_counts(block: Block) -> NDArray[np.int64]:
    """Return the number of observed entries of each row."""
    stored, missing = block.codes
    counts = np.empty(len(stored), np.int64)
    count_observed(stored, missing, counts)
    return counts


@dataclass
class ColumnMoments(PartialSums, name="pca_columns", disclosure=Released("sums and squares of the columns", counts=("rows",))):
    """Moments of the observed entries of each column."""

    moments: NDArray[Any]
    """Number, sum and sum of squares, of the entries minus their shift (3, m)."""
    rows: NDArray[Any]
    """Number of rows with an observed entry."""


@dataclass(frozen=True)
class ColumnMomentsPass(Pass[BlockState, Floats, ColumnMoments]):
    """Moments of the columns about the broadcast shift (m,)."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: Floats) -> tuple[BlockState, ColumnMoments]:
        stored, missing = block.codes
        moments = block.work.zeros((3, stored.shape[1]))
        column_moments(stored, missing, broadcast, moments)
        return state, ColumnMoments(moments, np.asarray((observed_counts(block) > 0).sum()))


@dataclass
class PairSums(
    PartialSums,
    name="pca_pairs",
    disclosure=Released("products of the columns, summed over rows", counts=("counts", "rows"), products=True),
):
    """Sums over the rows in which both of two columns are observed."""

    counts: NDArray[Any]
    """Number of these rows (m, m)."""
    sums: NDArray[Any]
    """Σ x_i over the rows where column j is observed as well (m, m)."""
    cross: NDArray[Any]
    """Σ x_i x_j (m, m)."""
    rows: NDArray[Any]
    """Number of rows with an observed entry."""

    def cells(self, broadcast: Any) -> Iterator[NDArray[Any]]:
        """Yield the numbers of rows with an entry in one column and none in another (m, m)."""
        del broadcast
        yield np.rint(self.counts.diagonal()[:, None] - self.counts)

    @classmethod
    def complete(cls, gram: NDArray[Any], rows: int) -> "PairSums":
        """Return the sums of centred columns without missing entries, given their Gram matrix (m, m)."""
        return cls(np.full(gram.shape, float(rows)), np.zeros(gram.shape), gram, np.asarray(float(rows)))


@dataclass(frozen=True)
class PairSumsPass(Pass[BlockState, None, PairSums]):
    """The products of the viewed columns, 0 for missing entries, with what centring them elsewhere needs."""

    dtype: np.dtype[Any]
    view: Standardized

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, PairSums]:
        work, X, counts = block.work, self.view(block), observed_counts(block)
        m = X.shape[1]
        cross, rows = work.matmul(X.T, X), np.asarray((counts > 0).sum())
        if (counts == m).all():
            numbers, sums = (work.until_next_block((m, m), np.float64) for _ in range(2))
            numbers[:] = len(X)
            sums[:] = X.sum(axis=0, dtype=np.float64)[:, None]
            return state, PairSums(numbers, sums, cross, rows)
        observed = work.array("observed", X.shape, self.dtype)
        mark_observed(*block.codes, observed)
        return state, PairSums(work.matmul(observed.T, observed), work.matmul(X.T, observed), cross, rows)


@dataclass(frozen=True, eq=False)
class Projection:
    """Constants of the expected scores."""

    components: Floats
    """U (k, m) with orthonormal rows."""
    weights: Floats
    """√(λ − σ²) of each component (k,)."""
    noise: float
    """σ²."""
    divisors: Floats
    """Numbers by which the scores are divided (k,)."""
    fills_zeros: bool
    """Whether missing entries count as the mean of their column, in place of their expectation."""

    def pairs(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the products u_r u_s of each column, packed (k(k+1)/2, m)."""
        return packed_products(self.components, dtype)


def packed_products(A: Floats, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the products a_r a_s, r ≥ s, of the entries of each column of A (k, m), as (k(k+1)/2, m)."""
    first, second = np.tril_indices(len(A))
    narrow = A.astype(dtype)
    products: NDArray[Any] = narrow[first] * narrow[second]
    return products


@dataclass
class ScoreSums(PartialSums, name="pca_scores", disclosure=Released("products of scores, summed over rows")):
    empty: NDArray[Any]
    """Number of rows without an observed entry."""


@dataclass(frozen=True)
class ScorePass(Pass[BlockState, Projection, ScoreSums]):
    """Scores of every row, NaN without an observed entry; state ``factors`` (k, rows)."""

    dtype: np.dtype[Any]
    view: Standardized

    def step(self, block: Block, state: BlockState, broadcast: Projection) -> tuple[BlockState, ScoreSums]:
        counts = observed_counts(block)
        scores = project(block, self.view(block), counts, broadcast)
        return as_state(scores, counts, broadcast, self.dtype), ScoreSums(np.asarray((counts == 0).sum()))


def project(block: Block, X: NDArray[Any], counts: NDArray[np.int64], p: Projection) -> Floats:
    """Return the scores (rows, k) before whitening, given the standardized entries (rows, m) and their number in each row (rows,)."""
    work, dtype = block.work, X.dtype
    components = work.cached("components", p, lambda: np.ascontiguousarray(p.components.T, dtype))
    scores: Floats = work.matmul(X, components, "scores").astype(np.float64)
    gaps = np.flatnonzero((counts < X.shape[1]) & (counts > 0))
    if gaps.size and not p.fills_zeros:
        pairs = work.cached("pairs", p, lambda: p.pairs(dtype))
        observed = work.array("observed", (len(gaps), X.shape[1]), dtype)
        mark_observed(block.codes[0][gaps], block.codes[1], observed)
        grams, found = work.matmul(observed, pairs.T, "grams"), np.empty((len(gaps), len(p.weights)))
        expected_scores(grams, scores[gaps], p.weights, p.noise, found)
        scores[gaps] = found
    return scores


def as_state(scores: Floats, counts: NDArray[np.int64], p: Projection, dtype: np.dtype[Any]) -> RowFactors:
    """Return the scores as the state of their block, whitened if they shall be; NaN without an observed entry."""
    divided = scores / p.divisors
    divided[counts == 0] = np.nan
    return RowFactors(divided.T.astype(dtype))


@dataclass
class MeasuredScores(Baseline, name="pca_measured_scores", disclosure=Released("moments of scores and of residuals")):
    """Figures of the rows: residuals of the standardized columns, moments of the scores before whitening."""

    empty: NDArray[Any]
    """Number of rows without an observed entry."""


@dataclass(frozen=True)
class MeasurePass(Pass[BlockState, Projection, MeasuredScores]):
    """The scores of a :class:`ScorePass`, with the figures by which new rows are compared with earlier ones."""

    dtype: np.dtype[Any]
    view: Standardized

    def step(self, block: Block, state: BlockState, broadcast: Projection) -> tuple[BlockState, MeasuredScores]:
        work, X, counts = block.work, self.view(block), observed_counts(block)
        scores = project(block, X, counts, broadcast)
        components = work.cached("rows of components", broadcast, lambda: np.ascontiguousarray(broadcast.components, self.dtype))
        model = work.matmul(work.converted("narrow scores", scores, self.dtype), components, "model")
        if (counts < X.shape[1]).any():
            observed = work.array("observed", X.shape, self.dtype)
            mark_observed(*block.codes, observed)
            X[observed == 0] = np.nan
        items = work.zeros((ITEM_SUMS, X.shape[1]))
        residual_sums(X, model, np.ones(len(X)), items)
        known = scores[counts > 0]
        figures = factor_sums(known, np.ones(len(known)))
        return as_state(scores, counts, broadcast, self.dtype), MeasuredScores(
            **figures, items=items, empty=np.asarray((counts == 0).sum())
        )


Loadings = tuple[NDArray[Any], float]
"""Broadcast value of the EM algorithm: W above a, (k+1, m), in double precision, as a TileBroadcast gives it; and σ²."""


@dataclass
class ExpectationSums(
    PartialSums,
    name="pca_expectation",
    disclosure=Released("products of expected scores with one another and with the data, summed over rows"),
):
    """Sums over the rows, with ẑ = (z, 1)."""

    grams: NDArray[Any]
    """Σ E[ẑẑᵀ] over the rows that have an entry in the column, packed ((k+1)(k+2)/2, m)."""
    cross: NDArray[Any]
    """Σ E[ẑ] x (k+1, m)."""
    total: NDArray[Any]
    """Σ E[ẑẑᵀ] over all rows, packed; its last entry is the number of rows with an observed entry."""
    log_likelihood: NDArray[Any]


@dataclass(frozen=True)
class ExpectationPass(TiledPass[BlockState, Loadings, ExpectationSums]):
    """The expectations of the EM algorithm, and the log-likelihood of the broadcast loadings."""

    dtype: np.dtype[Any]
    view: Standardized
    k: int
    tiled = ("grams", "cross")

    def zeros(self, n_columns: int) -> ExpectationSums:
        t = (self.k + 1) * (self.k + 2) // 2
        return ExpectationSums(np.zeros((t, n_columns)), np.zeros((self.k + 1, n_columns)), np.zeros(t), np.zeros(()))

    def accumulate(self, block: Block, state: BlockState, broadcast: Loadings, total: ExpectationSums) -> BlockState:
        work, X, (stored, missing) = block.work, self.view(block), block.codes
        moments, likelihoods = _expect(block, X, broadcast, self.dtype)
        k, part_columns = self.k, slice(-self.k - 1, None)
        z, narrow = work.converted("z", moments[:, part_columns], self.dtype), work.converted("moments", moments, self.dtype)
        for start in range(0, X.shape[1], _PART):
            part = slice(start, start + _PART)
            observed = work.array("observed", (len(X), X[:, part].shape[1]), self.dtype)
            mark_observed(stored[:, part], missing, observed)
            total.grams[:, part] += work.matmul(narrow.T, observed, "part")
            total.cross[:, part] += work.matmul(z.T, X[:, part], "part")
        total.total += moments.sum(axis=0)
        total.log_likelihood += likelihoods.sum()
        assert moments.shape[1] == (k + 1) * (k + 2) // 2, "the moments of the loadings' components"
        return state


def _expect(block: Block, X: NDArray[Any], broadcast: Loadings, dtype: np.dtype[Any]) -> tuple[Floats, Floats]:
    """Return the packed E[ẑẑᵀ] of each row (rows, t), and its log-likelihood (rows,), given its standardized entries, 0 where missing."""
    A, noise = broadcast
    work, k, (stored, missing) = block.work, len(A) - 1, block.codes
    rows, n_columns = X.shape
    t = (k + 1) * (k + 2) // 2
    grams, products = np.zeros((rows, t)), np.zeros((rows, k + 1))
    for start in range(0, n_columns, _PART):
        part = slice(start, min(start + _PART, n_columns))
        observed = work.array("observed", (rows, part.stop - part.start), dtype)
        mark_observed(stored[:, part], missing, observed)
        grams += work.matmul(observed, packed_products(A[:, part], dtype).T, "grams")
        products += work.matmul(X[:, part], A[:, part].T.astype(dtype), "products")
    # The last k + 1 entries of the packed products are those of a with W and with itself.
    squares = np.einsum("ij,ij->i", X, X, dtype=np.float64) - 2 * products[:, k] + grams[:, t - 1]
    b = products[:, :k] - grams[:, t - k - 1 : t - 1]
    moments, likelihoods = np.empty((rows, t)), np.empty(rows)
    posterior_rows(grams, b, squares, observed_counts(block), noise, moments, likelihoods)
    return moments, likelihoods


@dataclass
class LikelihoodSums(PartialSums, name="pca_likelihood", disclosure=Released("sums of log likelihoods", counts=("rows",))):
    log_likelihood: NDArray[Any]
    rows: NDArray[Any]
    """Number of rows with an observed entry."""


@dataclass(frozen=True)
class LikelihoodPass(Pass[BlockState, Loadings, LikelihoodSums]):
    """Log-likelihood of every row, in double precision, NaN without an observed entry; state ``factors`` (1, rows)."""

    dtype: np.dtype[Any]
    view: Standardized
    log_scale: Floats
    """log of the columns' scales (m,): densities are those of the data as they are."""

    def step(self, block: Block, state: BlockState, broadcast: Loadings) -> tuple[BlockState, LikelihoodSums]:
        X, (stored, missing) = self.view(block), block.codes
        _, likelihoods = _expect(block, X, broadcast, self.dtype)
        observed = block.work.array("observed", X.shape, self.dtype)
        mark_observed(stored, missing, observed)
        likelihoods -= observed @ self.log_scale
        counts = observed_counts(block)
        total = LikelihoodSums(np.asarray(likelihoods[counts > 0].sum()), np.asarray((counts > 0).sum()))
        likelihoods[counts == 0] = np.nan
        return RowFactors(likelihoods[None]), total


@dataclass
class HeldOutSquares(PartialSums, name="pca_held_out", disclosure=Released("sums of squared held-out errors", groups="squares")):
    """Squared errors of standardized entries by group of rows; row i is in the group i modulo their number."""

    squares: NDArray[Any]
    counts: NDArray[Any]
    """Number of entries in each group."""


@dataclass(frozen=True)
class HeldOutPass(Pass[RowFactors, NDArray[Any], HeldOutSquares]):
    """Errors of the model of the scores in the state, given the components (k, m) that they multiply."""

    dtype: np.dtype[Any]
    view: Standardized
    state_type = RowFactors
    changes_state = False

    def step(self, block: Block, state: RowFactors, broadcast: NDArray[Any]) -> tuple[RowFactors, HeldOutSquares]:
        X, (stored, missing) = self.view(block), block.codes
        model = block.work.matmul(np.nan_to_num(state.factors).T, broadcast, "model")
        observed = block.work.array("observed", X.shape, self.dtype)
        mark_observed(stored, missing, observed)
        np.subtract(X, model, out=model)
        np.multiply(model, observed, out=model)
        squares, counts = np.einsum("ij,ij->i", model, model, dtype=np.float64), observed.sum(axis=1, dtype=np.float64)
        groups = (block.start + np.arange(len(X))) % N_ROW_GROUPS
        return state, HeldOutSquares(np.bincount(groups, squares, N_ROW_GROUPS), np.bincount(groups, counts, N_ROW_GROUPS))
