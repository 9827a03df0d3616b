"""Passes of bounded non-negative factorization: an iteration of either solver, and the rows at their optimum given the loadings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.kernels.active_set import solve_rows
from dfact.kernels.admm import admm_fill
from dfact.kernels.bound_fill import bounded_step, tile_rows
from dfact.kernels.entries import filled, squared_error
from dfact.lazy import sp
from dfact.linalg.svd import Matrix, zero_filled
from dfact.models.bounded_nmf.problem import Problem
from dfact.models.growth.baseline import Baseline, compute_baseline

_SWEEPS = 3  # coordinate sweeps of a row in an iteration; the next iteration continues from their result
_ROW_TOLERANCE = 1e-4  # of rows given the loadings, relative to w_max and to the bounds' width


@dataclass(frozen=True)
class WeightedRows:
    """View of the zero-filled data with each row scaled by the root of its weight, whose singular vectors are a start."""

    problem: Problem
    unit: float = 1.0
    """Weight of a row that stays as it is."""

    def __call__(self, block: Block) -> Matrix:
        M = zero_filled(block)
        if not self.problem.weighted:
            return M
        scale = np.sqrt(self.problem.sample_weight(block, M.dtype) / M.dtype.type(self.unit))[:, None]
        return np.multiply(M, scale, out=M) if isinstance(M, np.ndarray) else sp.csr_array(M.multiply(scale))


@dataclass
class Sums(PartialSums, name="bounded_nmf"):
    """Sums of an iteration over the rows, each times its weight."""

    gram: NDArray[Any]
    """[W, C]ᵀ[W, C] (k+c, k+c) with the new W."""
    cross: NDArray[Any]
    """[W, C]ᵀB (k+c, m)."""
    squares: NDArray[Any]
    """‖O∘(M − R)‖² of the factors at the beginning of the pass."""
    lagrangian: NDArray[Any]
    """Share of the entries in the augmented Lagrangian."""
    penalty_w: NDArray[Any]
    """Penalty of W at the beginning of the pass."""
    residuals: NDArray[Any]
    """‖Z − R‖² and ‖ΔZ‖² of the ADMM (2,); (0,) if ρ is fixed."""


@dataclass(frozen=True)
class RowStart:
    """Initial factors of the rows: max(M P, 0) for the projection P (m, k), or uniformly random by ``seed``."""

    projection: NDArray[Any] | None
    seed: int | None = None

    @classmethod
    def from_loadings(cls, loadings: NDArray[Any]) -> RowStart:
        """Start at the least-squares factors of the rows given the loadings (k, m)."""
        return cls(np.linalg.pinv(loadings.astype(np.float64)))

    def factors(self, block: Block, problem: Problem, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return X = [W, C]ᵀ (k+c, rows)."""
        if self.projection is None:
            # Seeded by the block, so that the start does not depend on the worker that computes it.
            generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(block.index,)))
            W = generator.uniform(0, min(problem.w_max, 1.0), (problem.k, block.values.shape[0]))
        else:
            W = block.work.matmul(self.projection.T.astype(dtype), filled_values(block).T, "start")
            np.clip(W, 0, problem.w_max, out=W)
        return np.ascontiguousarray(np.vstack([W, problem.covariates(block).T]).astype(dtype, copy=False))


def filled_values(block: Block) -> NDArray[Any]:
    """Return the block's values with 0 for missing entries, in its working memory."""
    M = block.values
    return filled(M, out=block.work.array("filled", M.shape, M.dtype))


def split_start(block: Block, problem: Problem) -> NDArray[Any]:
    """Return the ADMM's S (rows, m) at the start: Z = M, A = 0 for answers; any value within the bounds for
    missing entries, which stands for Z = R, A = 0.
    """
    M = block.values
    missing = np.isnan(M, out=block.work.array("missing", M.shape, bool))
    return np.where(missing, problem.limits(M.shape[1], M.dtype)[0], M)


@dataclass
class ADMMState(RowFactors):
    """The factors X = [W, C]ᵀ (k+c, rows), of which W is updated, and the ADMM's S."""

    split: NDArray[Any]
    """(rows, m)."""


@dataclass
class SplitlessState(RowFactors):
    """The factors X = [W, C]ᵀ (k+c, rows), and the multiplier of each active bound with its position in the block."""

    positions: NDArray[np.int32]
    multipliers: NDArray[Any]
    norm: NDArray[np.float64]
    """‖M‖² (1); NaN if there are bounds or missing entries."""


@dataclass(frozen=True)
class ADMMPass(Pass[ADMMState, tuple[NDArray[Any], float, float], Sums]):
    """Steps 3 and 4 of one iteration and step 1 of the next, with the sums for step 2, in one pass."""

    problem: Problem
    row_start: RowStart
    dtype: np.dtype[Any]
    adaptive: bool = False
    state_type = ADMMState

    def start(self, block: Block) -> ADMMState:
        return ADMMState(self.row_start.factors(block, self.problem, self.dtype), split_start(block, self.problem))

    def step(self, block: Block, state: ADMMState, broadcast: tuple[NDArray[Any], float, float]) -> tuple[ADMMState, Sums]:
        """``broadcast`` is Qᵀ (k+c, m), the ρ of the previous pass, and ρ."""
        p, (Q, previous_rho, rho), X, S, work = self.problem, broadcast, state.factors, state.split, block.work
        s = p.sample_weight(block, self.dtype)
        penalty_w = s @ p.column_penalties(X[: p.k])
        R = work.matmul(X.T, Q, "model")
        B, residuals = work.array("target", R.shape, R.dtype), np.zeros(2 if self.adaptive else 0)
        squares, lagrangian = admm_fill(block.values, R, S, B, *p.limits(len(Q.T), self.dtype), previous_rho, rho, s, residuals)
        p.solve(X, work.matmul(Q[: p.k], B.T, "linear"), Q @ Q.T, p.beta / rho, p.w_max, _SWEEPS, 0.0)
        Xs = np.multiply(X, s, out=work.array("weighted", X.shape, X.dtype)) if p.weighted else X
        cross = work.matmul(Xs, B)
        return state, Sums(Xs @ X.T, cross, np.asarray(squares), np.asarray(lagrangian), np.asarray(penalty_w), residuals)


@dataclass(frozen=True)
class SplitlessPass(Pass[SplitlessState, tuple[NDArray[Any], float], Sums]):
    """Step of the rows in the solver that splits off the bounds alone, with the sums for the loadings.

    Without bounds and missing entries the target B is M itself, and the model R need not be formed: all that depends on it
    follows from Gram matrices and the state's ``norm``.
    """

    problem: Problem
    row_start: RowStart
    dtype: np.dtype[Any]
    state_type = SplitlessState

    def start(self, block: Block) -> SplitlessState:
        X, s = self.row_start.factors(block, self.problem, self.dtype), self.problem.sample_weight(block, self.dtype)
        norm = np.nan if self.problem.bounded else np.einsum("i,ij,ij->", s, block.values, block.values, dtype=np.float64)
        return SplitlessState(X, np.empty(0, np.int32), np.empty(0, self.dtype), np.atleast_1d(norm))

    def step(self, block: Block, state: SplitlessState, broadcast: tuple[NDArray[Any], float]) -> tuple[SplitlessState, Sums]:
        """``broadcast`` is Qᵀ (k+c, m) and ρ."""
        p, (Q, rho), X, work = self.problem, broadcast, state.factors, block.work
        gram, Qt, lower, upper = work.cached("loadings", broadcast, lambda: self._constants(Q))
        s = p.sample_weight(block, self.dtype)
        if not np.isnan(state.norm[0]):
            buffer, penalty = work.array("weighted", X.shape, X.dtype), np.asarray(s @ p.column_penalties(X[: p.k]))
            M, H = block.values, work.matmul(Q, block.values.T, "linear")
            Xs = np.multiply(X, s, out=buffer) if p.weighted else X
            # Differences of large numbers: in double precision.
            wide, H_wide = (work.converted(f"wide {i}", array, np.float64) for i, array in enumerate((Xs, H)))
            squares = max(state.norm[0] - 2 * np.vdot(wide, H_wide) + np.vdot((Xs @ X.T).astype(np.float64), gram), 0.0)
            p.solve(X, H[: p.k], gram, p.beta, p.w_max, _SWEEPS, 0.0)
            Xs = np.multiply(X, s, out=buffer) if p.weighted else X
            return state, Sums(Xs @ X.T, work.matmul(Xs, M), np.asarray(squares), np.asarray(0.5 * squares), penalty, np.empty(0))
        M, missing = block.codes
        # Sized for a multiplier of every entry, though only the first few are written.
        positions, multipliers = work.array("positions", (M.size,), np.int32), work.array("multipliers", (M.size,), self.dtype)
        target = work.array("target", (tile_rows(len(M), *Q.shape), Q.shape[1]), self.dtype)
        new_gram, cross = work.until_next_block(gram.shape, self.dtype), work.until_next_block(Q.shape, self.dtype)
        old, new = (state.positions, state.multipliers), (target, positions, multipliers, new_gram, cross)
        squared, w_max, accelerated = p.penalty == "l2", float(p.w_max), p.inner == "fista"
        squares, bounds, penalty_w, count = bounded_step(
            M, missing, X, Q, Qt, gram, *old, lower, upper, rho, p.beta, squared, w_max, _SWEEPS, accelerated, s, *new
        )
        state.positions, state.multipliers = positions[:count].copy(), multipliers[:count].copy()
        lagrangian = 0.5 * squares + bounds
        return state, Sums(new_gram, cross, np.asarray(squares), np.asarray(lagrangian), np.asarray(penalty_w), np.empty(0))

    def _constants(self, Q: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Compute QQᵀ, the transpose of the rows of Qᵀ that are solved for, and the bounds."""
        return Q @ Q.T, np.ascontiguousarray(Q[: self.problem.k].T), *self.problem.limits(Q.shape[1], self.dtype)


@dataclass
class RowSums(Baseline, name="bounded_nmf_rows"):
    squares: NDArray[Any]
    penalty_w: NDArray[Any]
    unconverged: NDArray[Any]
    """Number of rows that are not at their optimum to the tolerance."""
    moments: NDArray[Any]
    """Number, sum and sum of squares of each column's answers (3, m)."""

    def explained_share(self) -> float:
        """Return 1 − ‖O∘(M − R)‖² / ‖O∘(M − column means)‖²; NaN if every column is constant."""
        count, total, squares = self.moments
        # All sums are 0 for a column that only rows of weight 0 have answered.
        variation = float((squares - total**2 / np.where(count > 0, count, 1)).sum())
        return 1 - float(self.squares) / variation if variation > 0 else float("nan")


@dataclass(frozen=True)
class RowsPass(Pass[BlockState, NDArray[Any], RowSums]):
    """Factors of every row at their optimum given the loadings, independent of the previous state.

    It runs at the end of a fit, and in ``transform``. The loop over one row's bounds is :func:`dfact.kernels.active_set.solve_row`.
    """

    problem: Problem
    row_start: RowStart
    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[RowFactors, RowSums]:
        p, Q, work = self.problem, broadcast, block.work
        X, M = self.row_start.factors(block, p, self.dtype), filled_values(block)
        linear, ridge = (p.beta, 0.0) if p.penalty == "l1" else (0.0, p.beta)
        limits = p.limits(M.shape[1], np.float64)
        exact, H = work.converted("loadings", Q, np.float64), work.matmul(Q[: p.k], M.T, "linear")
        unconverged = solve_rows(block.values, X, H, exact, p.k, linear, ridge, p.w_max, *limits, _ROW_TOLERANCE)
        s = p.sample_weight(block, self.dtype)
        R = work.matmul(X.T, Q, "target")
        squares, figures = squared_error(block.values, R, s), compute_baseline(block.values, R, X[: p.k].T, s)
        missing = np.isnan(block.values, out=work.array("missing", M.shape, bool))
        counts = s @ work.converted("observed", np.logical_not(missing, out=missing), s.dtype)
        total = s.astype(np.float64) @ work.converted("wide", M, np.float64)
        moments = np.stack([counts, total, np.einsum("i,ij,ij->j", s, M, M, dtype=np.float64)])
        penalty_w = np.asarray(s @ p.column_penalties(X[: p.k]))
        return RowFactors(X), RowSums(
            **figures, squares=np.asarray(squares), penalty_w=penalty_w, unconverged=np.asarray(unconverged), moments=moments
        )
