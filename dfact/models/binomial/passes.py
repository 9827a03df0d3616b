"""Passes of memberships by binomial likelihood."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, NoSums, PartialSums, Pass, Released, TiledPass, Withheld
from dfact.kernels.binomial import (
    add_deviances,
    column_slopes,
    count_columns,
    count_rows,
    newton_rows,
)
from dfact.kernels.entries import all_whole
from dfact.models.binomial.codes import Codes, FilledCodes
from dfact.models.binomial.row_block import FALL, ColumnWeights, Floats, RowBlock, normalized

_PART = 1 << 12  # columns of the filled counts that are multiplied at once
_LEAST_START = 1e-3  # of the memberships of a start: from 0 the EM's step does not move
_EXTRA, _MOVED = 4, 1e-3  # rounds of four further steps of a projection, for rows that the last step moved by more

Frequencies = tuple[NDArray[Any], None]
"""Broadcast value of a pass with the frequencies P (K, m) in its floating type, as a TileBroadcast gives it."""


@dataclass
class Memberships(RowFactors):
    """The memberships Qᵀ (K, rows), NaN for rows without an observed entry, and those before the last pass."""

    previous: NDArray[Any]


@dataclass
class CodeCounts(PartialSums, name="binomial_counts", disclosure=Released("numbers of observed genotypes")):
    """Sums over the observed entries of each column."""

    totals: NDArray[Any]
    """Sum of the counts (m,)."""
    observed: NDArray[Any]
    """Number of entries (m,)."""
    fractional: NDArray[Any]
    """Number of blocks with entries that are not whole numbers."""
    silent: NDArray[Any]
    """Number of rows without an observed entry."""


@dataclass(frozen=True)
class CountPass(Pass[BlockState, None, CodeCounts]):
    """Counts of the observed entries of each column, and a check that they are whole numbers."""

    codes: Codes
    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, CodeCounts]:
        stored = block.codes[0]
        fractional = stored.dtype.kind == "f" and not all_whole(stored)
        G = self.codes(block)
        totals, observed, rows = np.zeros(G.shape[1], np.int64), np.zeros(G.shape[1], np.int64), np.empty(len(G))
        count_columns(G, self.codes.trials, totals, observed)
        count_rows(G, self.codes.trials, rows)
        return state, CodeCounts(totals, observed, np.asarray(int(fractional)), np.asarray(int((rows == 0).sum())))


@dataclass
class LabelCounts(PartialSums, name="binomial_labels", disclosure=Withheld("has sums by label, which few rows may have")):
    """Sums over the observed entries of the rows with each label."""

    totals: NDArray[Any]
    """Sum of the counts (labels, m)."""
    observed: NDArray[Any]
    """Number of entries (labels, m)."""


@dataclass(frozen=True)
class LabelPass(TiledPass[BlockState, None, LabelCounts]):
    """Counts of the observed entries of each column, for the rows with each label apart."""

    codes: Codes
    n_labels: int
    dtype: np.dtype[Any]
    tiled = ("totals", "observed")

    def zeros(self, n_columns: int) -> LabelCounts:
        return LabelCounts(np.zeros((self.n_labels, n_columns)), np.zeros((self.n_labels, n_columns)))

    def accumulate(self, block: Block, state: BlockState, broadcast: None, total: LabelCounts) -> BlockState:
        assert block.covariates is not None, "the labels go with the rows"
        G, labels = self.codes(block), block.covariates[:, 0]
        counts = block.work.array("counts", (2, G.shape[1]), np.int64)
        for label in range(self.n_labels):
            if (rows := labels == label).any():
                counts.fill(0)
                count_columns(G[rows], self.codes.trials, counts[0], counts[1])
                total.totals[label] += counts[0]
                total.observed[label] += counts[1]
        return state


@dataclass
class StartSums(PartialSums, name="binomial_start", disclosure=Released("products of random numbers and genotypes, summed over rows")):
    """Normal equations of the columns given the memberships."""

    cross: NDArray[Any]
    """QᵀX (K, m) of the filled counts X."""
    gram: NDArray[Any]
    """QᵀQ (K, K)."""


@dataclass(frozen=True, eq=False)
class StartPass(TiledPass[BlockState, NDArray[Any], StartSums]):
    """Memberships by the broadcast projection (m, K) of the filled counts, at least 1e-3, and the normal equations of the columns."""

    view: FilledCodes
    dtype: np.dtype[Any]
    k: int
    tiled = ("cross",)

    def zeros(self, n_columns: int) -> StartSums:
        return StartSums(np.zeros((self.k, n_columns)), np.zeros((self.k, self.k)))

    def accumulate(self, block: Block, state: BlockState, broadcast: NDArray[Any], total: StartSums) -> Memberships:
        X, work = self.view(block), block.work
        Q = normalized(np.maximum(work.matmul(X, broadcast, "product"), _LEAST_START).astype(np.float64))
        weights = Q.T.astype(self.dtype)
        for start in range(0, X.shape[1], _PART):
            part = slice(start, start + _PART)
            total.cross[:, part] += work.matmul(weights, X[:, part], "part")
        total.gram += Q.T @ Q
        return _first(self.view.codes, block, Q)


@dataclass(frozen=True)
class RestartPass(Pass[RowFactors, None, NoSums]):
    """Memberships that begin at the row factors in the state, at least 1e-3; rows whose factors are NaN begin at equal ones."""

    codes: Codes
    dtype: np.dtype[Any]
    state_type = RowFactors

    def step(self, block: Block, state: RowFactors, broadcast: None) -> tuple[Memberships, NoSums]:
        factors = state.factors.T.astype(np.float64)
        Q = normalized(np.maximum(np.where(np.isnan(factors), 1.0, factors), _LEAST_START))
        return _first(self.codes, block, Q), NoSums()


def _first(codes: Codes, block: Block, Q: Floats) -> Memberships:
    """Return the state that begins with these memberships."""
    G, counts = codes(block), np.empty(len(Q))
    count_rows(G, codes.trials, counts)
    factors = Q.T.copy()
    factors[:, counts == 0] = np.nan
    return Memberships(factors, factors)


@dataclass
class StepSums(PartialSums, name="binomial_step", disclosure=Released("gradients and curvatures of allele frequencies, summed over rows")):
    """Sums of a pass over the rows, with their new memberships."""

    log_likelihood: NDArray[Any]
    sizes: NDArray[Any]
    """Sums of the memberships (K,)."""
    up: NDArray[Any]
    """A = Qᵀa (K, m), a = g/f."""
    down: NDArray[Any]
    """B = Qᵀb (K, m), b = (M − g)/(1 − f)."""
    curvature: NDArray[Any]
    """Σ q qᵀ(a/f + b/(1 − f)) of each column, minus its Hessian, (K(K+1)/2, m); (0, m) before an EM step."""


@dataclass(frozen=True)
class StepPass(TiledPass[Memberships, tuple[NDArray[Any], bool], StepSums]):
    """One Newton step of every row given P, its log-likelihood after the step, and the sums for the columns' steps.

    A row whose log-likelihood falls takes the EM's step instead, which cannot fall. Labelled rows stay as they are. The broadcast is
    the pair of P (K, m) in the floating type, and whether to begin at the memberships before the last pass, whose P was rejected.
    """

    codes: Codes
    k: int
    dtype: np.dtype[Any]
    newton: bool = True
    """Whether rows take Newton's steps rather than those of the EM algorithm."""
    curved: bool = True
    """Whether the curvatures are summed, for Newton's steps of the columns."""
    weights: ColumnWeights | None = None
    """Weights of the columns. The columns' own sums are without them, as they cancel in their steps, and 0 where the weight is."""
    state_type = Memberships
    tiled = ("up", "down", "curvature")

    def zeros(self, n_columns: int) -> StepSums:
        shapes = (self.k, n_columns), (self.k, n_columns), (self.k * (self.k + 1) // 2 if self.curved else 0, n_columns)
        return StepSums(np.zeros(()), np.zeros(self.k), *(np.zeros(shape) for shape in shapes))

    def accumulate(self, block: Block, state: Memberships, broadcast: tuple[NDArray[Any], bool], total: StepSums) -> Memberships:
        P, retry = broadcast
        begin = state.previous if retry else state.factors
        silent = np.isnan(begin[0])
        Q = np.where(silent[:, None], 1 / self.k, begin.T)
        rows = RowBlock(self.codes(block), P, self.codes.trials, block.work, self.weights)
        free = np.ones(len(Q), bool) if block.covariates is None else block.covariates[:, 0] < 0
        free &= ~silent
        before, slope, curvature = rows.slopes(Q, curved=self.newton)
        em = np.where(free[:, None], rows.em(Q, slope), Q)
        if self.newton:
            moved = Q.copy()
            newton_rows(moved, slope, curvature)
            Q = np.where(free[:, None], moved, Q)
        else:
            Q = em
        logs = rows.log_likelihoods(Q)
        worse = logs < before - FALL * np.abs(before)
        if self.newton and worse.any():
            Q = np.where(worse[:, None], em, Q)
            logs = rows.log_likelihoods(Q)
        self._add_columns(rows, Q, total)
        factors = Q.T.copy()
        factors[:, silent] = np.nan
        total.log_likelihood += logs.sum()
        total.sizes += Q[~silent].sum(axis=0)
        return Memberships(factors, begin.copy(), others=state.others)

    def _add_columns(self, rows: RowBlock, Q: Floats, total: StepSums) -> None:
        """Add A and B (K, m), and the curvatures if they are summed."""
        (first, second), narrow, work = rows.pairs, Q.astype(self.dtype), rows.work
        weights, products = np.ascontiguousarray(narrow.T), np.ascontiguousarray((narrow[:, first] * narrow[:, second]).T)
        for tile, _ in rows.tiles:
            F, A, B, S = rows.expected(narrow, tile), *(rows.array(name, tile) for name in "abs")
            column_slopes(rows.G, tile.start, F, rows.trials, A, B, S)
            total.up[:, tile] += work.matmul(weights, A, "sums")
            total.down[:, tile] += work.matmul(weights, B, "sums")
            if self.curved:
                total.curvature[:, tile] += work.matmul(products, S, "sums")


@dataclass
class ProjectionSums(PartialSums, name="binomial_projection", disclosure=Released("sums of log likelihoods")):
    log_likelihood: NDArray[Any]
    """Log-likelihood before the last step."""
    silent: NDArray[Any]
    """Number of rows without an observed entry."""


@dataclass(frozen=True)
class ProjectionPass(Pass[BlockState, Frequencies, ProjectionSums]):
    """Memberships given the broadcast frequencies: Newton steps of every row while its block is in memory.

    Labelled rows belong to their component alone.
    """

    codes: Codes
    dtype: np.dtype[Any]
    steps: int = 8

    def step(self, block: Block, state: BlockState, broadcast: Frequencies) -> tuple[Memberships, ProjectionSums]:
        K, G = len(broadcast[0]), self.codes(block)
        rows = RowBlock(G, broadcast[0], self.codes.trials, block.work)
        Q, labels = np.full((len(G), K), 1 / K), None if block.covariates is None else block.covariates[:, 0].astype(np.intp)
        free = np.ones(len(G), bool)
        if labels is not None:
            free = labels < 0
            Q[~free] = normalized(np.eye(K))[labels[~free]]
        logs, em, active = np.where(free, -np.inf, 0), Q.copy(), np.flatnonzero(free)
        # A membership that a long step has brought to its bound only doubles in each of the next: few rows need more steps.
        for steps in (self.steps, *(4,) * _EXTRA):
            if active.size:
                part = rows if len(active) == len(G) else replace(rows, G=G[active])
                Q[active], logs[active], em[active], change = part.climb(Q[active], steps, logs[active], em[active])
                active = active[change > _MOVED]
        if active.size:  # no further step has compared the last one with what came before it
            reached = replace(rows, G=G[active]).log_likelihoods(Q[active])
            worse = active[reached < logs[active] - FALL * np.abs(logs[active])]
            Q[worse] = em[worse]
        first = _first(self.codes, block, Q)
        return first, ProjectionSums(np.asarray(logs.sum()), np.asarray(int(np.isnan(first.factors[0]).sum())))


@dataclass
class Deviance(PartialSums, name="binomial_deviance", disclosure=Released("sums of deviances")):
    """Deviance of held-out entries from their expected counts."""

    total: NDArray[Any]
    count: NDArray[Any]
    """Number of the entries."""


@dataclass(frozen=True)
class DeviancePass(Pass[Memberships, Frequencies, Deviance]):
    """Σ g log(g/μ) + (M − g) log((M − g)/(M − μ)) over the entries of the view, μ = M QP, with the broadcast P."""

    codes: Codes
    dtype: np.dtype[Any]
    memberships: str = "factors"
    """Name of the state array with the memberships that belong to P."""
    state_type = Memberships

    def step(self, block: Block, state: Memberships, broadcast: Frequencies) -> tuple[Memberships, Deviance]:
        rows = RowBlock(self.codes(block), broadcast[0], self.codes.trials, block.work)
        factors = state.arrays()[self.memberships].T
        Q = np.where(np.isnan(factors), 1 / len(broadcast[0]), factors).astype(self.dtype)
        counts = np.zeros(2)
        for tile, _ in rows.tiles:
            add_deviances(rows.G, tile.start, rows.expected(Q, tile), self.codes.trials, counts)
        return state, Deviance(counts[0], counts[1])
