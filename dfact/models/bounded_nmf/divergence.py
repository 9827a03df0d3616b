"""Non-negative factorization at the generalized Kullback-Leibler divergence: passes over the rows, and steps of the loadings.

The variables ``Q`` hold the transpose Qᵀ (k, m) of the loadings; W are the factors of the rows, and R = WQᵀ is the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.engine.requests import Solver
from dfact.kernels.divergence import descend_dense, descend_stored
from dfact.lazy import sp
from dfact.models.bounded_nmf.passes import multiply_transposed, stored_rows
from dfact.models.bounded_nmf.problem import NMFProblem

_SWEEPS = 3  # over the factors of a row in an iteration
_FINAL_SWEEPS, _FINAL_TOLERANCE = 1000, 1e-6  # of rows at their optimum; the tolerance is relative to the sum of a row's factors
_FINAL_TOLERANCE_DOUBLE = 1e-9
_MAX_MOMENTUM = 0.95  # of the last step of log Q
_MOMENTUM_DELAY = 3
_LARGEST_FACTOR = 4.0  # by which the extrapolation multiplies a loading
_LEAST_MODEL = 1e-9  # of a held-out entry, relative to it
_FILL = 0.1  # of the mean loading of a component, in place of zeros of a start, which the steps would keep


@dataclass
class DivergenceSums(PartialSums, name="nmf_divergence", disclosure=Released("products of row factors and quotients, summed over rows")):
    """Sums of an iteration over the rows, each times its weight."""

    numerator: NDArray[Any]
    """Wᵀ(M/R) (k, m)."""
    denominator: NDArray[Any]
    """Wᵀ times the indicators of the observed entries: (k, m), or (k, 1) if no entry is missing."""
    divergence: NDArray[Any]
    penalty_w: NDArray[Any]

    @property
    def loss(self) -> float:
        """The objective without penalties."""
        return float(self.divergence)

    @property
    def lagrangian(self) -> float:
        """The same: no constraint is split off."""
        return self.loss


@dataclass
class DivergenceRowSums(PartialSums, name="nmf_divergence_rows", disclosure=Released("sums of divergences")):
    divergence: NDArray[Any]
    penalty_w: NDArray[Any]
    moments: NDArray[Any]
    """Number, sum, and sum of x log x of each column's entries x (3, m)."""

    @property
    def loss(self) -> float:
        """The objective without penalties."""
        return float(self.divergence)

    def explained_share(self) -> float:
        """Return 1 − D(M, R) / D(M, column means), a share of the deviance; NaN if every column is constant."""
        count, total, logs = self.moments
        safe = np.where(total > 0, total, 1.0)
        null = float((logs - np.where(total > 0, total * np.log(safe / np.where(count > 0, count, 1)), 0)).sum())
        return 1 - self.loss / null if null > 1e-12 * float(total.sum()) else float("nan")


@dataclass(frozen=True)
class DivergencePass(Pass[RowFactors, NDArray[Any], DivergenceSums]):
    """Coordinate sweeps over the factors of each row, and the sums for the step of the loadings. ``broadcast`` is Qᵀ (k, m)."""

    problem: NMFProblem
    start_loadings: NDArray[Any]
    """Qᵀ (k, m) of which the rows' start follows."""
    dtype: np.dtype[Any]
    state_type = RowFactors

    def start(self, block: Block) -> RowFactors:
        return RowFactors(np.ascontiguousarray(start_rows(block, self.problem, self.start_loadings, self.dtype).T))

    def step(self, block: Block, state: RowFactors, broadcast: NDArray[Any]) -> tuple[RowFactors, DivergenceSums]:
        Q, p, work = broadcast, self.problem, block.work
        totals = work.cached("totals", broadcast, lambda: Q.sum(axis=1, dtype=np.float64))
        W = np.ascontiguousarray(state.factors.T)
        divergences, ratio = descend(block, p, W, Q, totals, _SWEEPS, 0.0)
        s = p.sample_weight(block, self.dtype)
        weighted = W * s[:, None] if p.weighted else W
        numerator = work.matmul(weighted.T, ratio) if isinstance(ratio, np.ndarray) else multiply_transposed(block, ratio, weighted)
        denominator = weighted.sum(axis=0, dtype=np.float64)[:, None]
        if p.masked:
            seen = np.logical_not(np.isnan(block.values))
            denominator = work.matmul(weighted.T, work.converted("observed", seen, self.dtype))
        wide = s.astype(np.float64)
        penalty = wide @ p.column_penalties(W.T)
        return RowFactors(np.ascontiguousarray(W.T)), DivergenceSums(numerator, denominator, np.asarray(wide @ divergences), penalty)


@dataclass(frozen=True)
class DivergenceRowsPass(Pass[BlockState, NDArray[Any], DivergenceRowSums]):
    """Factors of every row at their optimum given the loadings Qᵀ (k, m), independent of the previous state."""

    problem: NMFProblem
    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[RowFactors, DivergenceRowSums]:
        Q, p, work = broadcast, self.problem, block.work
        totals = work.cached("totals", broadcast, lambda: Q.sum(axis=1, dtype=np.float64))
        W = start_rows(block, p, Q, self.dtype)
        tolerance = _FINAL_TOLERANCE if self.dtype == np.float32 else _FINAL_TOLERANCE_DOUBLE
        divergences, _ = descend(block, p, W, Q, totals, _FINAL_SWEEPS, tolerance)
        s = p.sample_weight(block, np.float64)
        rows = stored_rows(block, p)
        M: Any
        if rows is None:
            M = block.values.astype(np.float64)
            counts, M = s @ np.logical_not(np.isnan(M)), np.nan_to_num(M)
            logs = s @ (M * np.log(np.where(M > 0, M, 1)))
        else:
            M, counts = rows.astype(np.float64), np.full(rows.shape[1], s.sum())
            logs = sp.csr_array((M.data * np.log(np.where(M.data > 0, M.data, 1)), M.indices, M.indptr), shape=M.shape).T @ s
        moments = np.stack([counts, M.T @ s, logs])
        penalty = s @ p.column_penalties(W.T)
        return RowFactors(np.ascontiguousarray(W.T)), DivergenceRowSums(np.asarray(s @ divergences), penalty, moments)


@dataclass
class Losses(PartialSums, name="nmf_losses", disclosure=Released("sums of losses")):
    """Losses of observed entries, and their number, each entry times the weight of its row."""

    total: NDArray[Any]
    count: NDArray[Any]


@dataclass(frozen=True)
class LossPass(Pass[RowFactors, NDArray[Any], Losses]):
    """The loss of the model of the rows' factors in the state and the loadings Qᵀ (k, m). The state does not change."""

    problem: NMFProblem
    dtype: np.dtype[Any]
    state_type = RowFactors
    changes_state = False

    def step(self, block: Block, state: RowFactors, broadcast: NDArray[Any]) -> tuple[RowFactors, Losses]:
        M, R = block.values.astype(np.float64), (state.factors.T @ broadcast).astype(np.float64)
        seen, s = np.logical_not(np.isnan(M)), self.problem.sample_weight(block, np.float64)
        if self.problem.divergence:
            R = np.maximum(R, _LEAST_MODEL * M)
            positive = M > 0  # not where an entry is missing
            losses = R - M + np.where(positive, M, 0) * np.log(np.divide(M, R, out=np.ones_like(M), where=positive))
        else:
            losses = 0.5 * (M - R) ** 2
        return state, Losses(np.asarray(s @ np.where(seen, losses, 0).sum(axis=1)), np.asarray(s @ seen.sum(axis=1)))


def start_rows(block: Block, problem: NMFProblem, Q: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return equal factors for the components of each row, whose model has the row's sum over the observed entries (rows, k)."""
    rows = stored_rows(block, problem)
    if rows is not None:
        sums, weight = np.asarray(rows.sum(axis=1), np.float64), np.full(rows.shape[0], Q.sum(dtype=np.float64))
    else:
        missing = np.isnan(block.values)
        sums = np.where(missing, 0, block.values).sum(axis=1, dtype=np.float64)
        weight = np.logical_not(missing) @ Q.sum(axis=0, dtype=np.float64)
    level = np.divide(sums, weight, out=np.zeros_like(sums), where=weight > 0)
    factors: NDArray[Any] = np.repeat(level[:, None], len(Q), axis=1).astype(dtype)
    return factors


def descend(
    block: Block, problem: NMFProblem, W: NDArray[Any], Q: NDArray[Any], totals: NDArray[np.float64], sweeps: int, tolerance: float
) -> tuple[NDArray[np.float64], Any]:
    """Move the factors W (rows, k) of a block in place. Return the divergence of each row, and M/R as a matrix like M."""
    settings = Q, totals, *problem.row_penalty, sweeps, tolerance
    M = stored_rows(block, problem)
    if M is None:
        ratio = block.work.array("ratio", block.values.shape, W.dtype)
        return descend_dense(block.values, W, *settings, ratio), ratio
    entries = np.empty_like(M.data)
    divergences = descend_stored(M.data, M.indices, M.indptr, W, *settings, entries)
    return divergences, sp.csr_array((entries, M.indices, M.indptr), shape=M.shape)


class DivergenceDescent:
    """Multiplicative steps of the loadings, extrapolated in their logarithms, after Newton steps of the rows in each pass.

    A step is the minimum of the separable majorizer of Lee & Seung (2001), which needs the sums of a pass alone. Between passes log Q is
    extrapolated along its last step with Nesterov's weights, which restart when the step reverses the extrapolation or the objective
    has risen. Newton steps of the columns, with curvatures summed over the rows, overshoot: as components overlap, the columns would need
    the k×k curvatures of each, and from a start far from the optimum they still diverge.
    """

    earlier: None = None

    def __init__(self, problem: NMFProblem, Q: NDArray[Any], dtype: np.dtype[Any]) -> None:
        """``Q`` are the initial loadings (k, m)."""
        self.problem = problem
        self.pass_ = DivergencePass(problem, Q, dtype)
        self._previous: NDArray[Any] | None = None
        self._point: NDArray[Any] | None = None
        self._steps = 0
        self._lowest = np.inf
        self._risen = False

    @staticmethod
    def fill_start(Q: NDArray[Any]) -> NDArray[Any]:
        """Return initial loadings without zeros, which multiplicative steps would keep."""
        filled: NDArray[Any] = np.maximum(Q, _FILL * Q.mean(axis=1, keepdims=True, dtype=np.float64)).astype(Q.dtype)
        return filled

    def broadcast(self, Q: NDArray[Any]) -> NDArray[Any]:
        """Return the input of the next pass: Qᵀ."""
        return Q

    def loadings(self, sums: DivergenceSums, Q: NDArray[Any]) -> Solver[NDArray[Any]]:
        """Return the next loadings, from the sums of a pass."""
        yield from ()  # the step is too small for workers
        p = self.problem
        objective = sums.loss + p.penalties(float(sums.penalty_w), Q)
        self._risen, self._lowest = objective > self._lowest, objective
        linear, supply = sums.denominator + p.l1_q, Q.astype(np.float64) * sums.numerator
        # The positive root of ridge·h² + linear·h = supply, in the form that is exact without a ridge.
        root = linear + np.sqrt(linear**2 + 4 * p.ridge_q * supply)
        following: NDArray[Any] = np.divide(2 * supply, root, out=np.zeros_like(supply), where=root > 0).astype(Q.dtype)
        return following

    def next_point(self, Q: NDArray[Any]) -> NDArray[Any]:
        """Return the loadings extrapolated along their last step, at which the next pass begins."""
        previous, point = self._previous, self._point
        self._previous = self._point = Q
        if previous is not None and point is not None:
            reversed_ = float(np.vdot(point - Q, Q - previous)) > 0
            self._steps = 0 if reversed_ or self._risen else self._steps + 1
            weight = min(_MAX_MOMENTUM, self._steps / (self._steps + _MOMENTUM_DELAY))
            growth = np.divide(Q, previous, out=np.ones_like(Q, np.float64), where=previous > 0, dtype=np.float64)
            self._point = (Q * np.minimum(growth**weight, _LARGEST_FACTOR)).astype(Q.dtype)
        return self._point
