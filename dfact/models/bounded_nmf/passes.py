"""Passes of bounded non-negative factorization: an iteration of either solver, and the rows at their optimum given the loadings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.kernels.active_set import solve_rows
from dfact.kernels.admm import admm_fill
from dfact.kernels.bound_fill import bounded_step, tile_rows
from dfact.kernels.box_qp import coordinate_descent
from dfact.kernels.entries import filled, squared_error
from dfact.kernels.norms import solve_norm_rows
from dfact.kernels.sparse_products import times, transposed_times
from dfact.lazy import sp
from dfact.linalg.svd import Matrix, zero_filled
from dfact.models.bounded_nmf.problem import NMFProblem, Problem
from dfact.models.growth.baseline import Baseline, compute_baseline, factor_sums

_SWEEPS = 3  # coordinate sweeps of a row in an iteration; the next iteration continues from their result
_ROW_TOLERANCE = 1e-4  # of rows given the loadings, relative to w_max and to the bounds' width
_STORED_SWEEPS, _STORED_TOLERANCE = 2000, 1e-9  # of sparse rows given the loadings; the tolerance is relative to the largest factors


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
class Sums(
    PartialSums, name="bounded_nmf", disclosure=Released("products of row factors with one another and with the answers, summed over rows")
):
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

    @property
    def loss(self) -> float:
        """The objective without penalties."""
        return 0.5 * float(self.squares)


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
            W = generator.uniform(0, min(problem.w_max, 1.0), (problem.k, block.stored.shape[0]))
        elif (rows := stored_rows(block, problem)) is not None:
            W = np.clip((rows @ self.projection.astype(dtype)).T, 0, problem.w_max)
        else:
            W = block.work.matmul(self.projection.T.astype(dtype), filled_values(block).T, "start")
            np.clip(W, 0, problem.w_max, out=W)
        return np.ascontiguousarray(np.vstack([W, problem.covariates(block).T]).astype(dtype, copy=False))


def stored_rows(block: Block, problem: Problem) -> sp.csr_array | None:
    """Return the block as a sparse matrix if the problem needs its stored entries alone; None if it needs all, or some are missing."""
    M = block.matrix
    sparse = isinstance(problem, NMFProblem) and not problem.masked and not isinstance(M, np.ndarray)
    return M if sparse and block.implicit_value == 0 and not np.isnan(M.data).any() else None  # type: ignore[return-value]


def multiply(block: Block, rows: sp.csr_array, B: NDArray[Any]) -> NDArray[Any]:
    """Return the product of sparse rows with B (m, k), in working memory."""
    out = block.work.array("product of rows", (rows.shape[0], B.shape[1]), B.dtype)
    times(rows.data, rows.indices, rows.indptr, B, out)
    return out


def multiply_transposed(block: Block, rows: sp.csr_array, B: NDArray[Any]) -> NDArray[Any]:
    """Return Bᵀ (k, rows) times sparse rows, (k, m), in memory that lasts until the next block."""
    out = block.work.until_next_block((rows.shape[1], B.shape[1]), B.dtype)
    transposed_times(rows.data, rows.indices, rows.indptr, B, out)
    return out.T


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
class MMState(RowFactors):
    """The factors X = [W, C]ᵀ (k+c, rows), and the multiplier of each active bound with its position in the block."""

    positions: NDArray[np.int32]
    multipliers: NDArray[Any]
    norm: NDArray[np.float64]
    """‖M‖² (1); NaN if there are bounds or missing entries."""


class _Constants(NamedTuple):
    """Arrays that follow from the loadings and serve all blocks of a pass."""

    gram: NDArray[Any]
    """QᵀQ (k+c, k+c)."""
    curvature: NDArray[Any]
    """The same with the ridge of the rows."""
    transposed: NDArray[Any]
    """The loadings that the rows are solved for (m, k)."""
    lower: NDArray[Any]
    upper: NDArray[Any]


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
class MMPass(Pass[MMState, tuple[NDArray[Any], float], Sums]):
    """Step of the rows in the solver that splits off the bounds alone, with the sums for the loadings.

    Without bounds and missing entries the target B is M itself, and the model R need not be formed: all that depends on it
    follows from Gram matrices and the state's ``norm``.
    """

    problem: Problem
    row_start: RowStart
    dtype: np.dtype[Any]
    state_type = MMState

    def start(self, block: Block) -> MMState:
        X, s = self.row_start.factors(block, self.problem, self.dtype), self.problem.sample_weight(block, self.dtype)
        rows = stored_rows(block, self.problem)
        if rows is not None:
            norm = np.dot(np.repeat(s, np.diff(rows.indptr)).astype(np.float64), rows.data.astype(np.float64) ** 2)
        else:
            norm = np.nan if self.problem.bounded else np.einsum("i,ij,ij->", s, block.values, block.values, dtype=np.float64)
        return MMState(X, np.empty(0, np.int32), np.empty(0, self.dtype), np.atleast_1d(norm))

    def step(self, block: Block, state: MMState, broadcast: tuple[NDArray[Any], float]) -> tuple[MMState, Sums]:
        """``broadcast`` is Qᵀ (k+c, m) and ρ."""
        p, (Q, rho), X, work = self.problem, broadcast, state.factors, block.work
        constants = work.cached("loadings", broadcast, lambda: self._constants(Q))
        gram = constants.gram
        s = p.sample_weight(block, self.dtype)
        if not np.isnan(state.norm[0]):
            buffer, penalty = work.array("weighted", X.shape, X.dtype), np.asarray(s @ p.column_penalties(X[: p.k]))
            rows = stored_rows(block, p)
            M: Any = block.values if rows is None else rows
            H = work.matmul(Q, M.T, "linear") if rows is None else np.ascontiguousarray(multiply(block, rows, constants.transposed).T)
            Xs = np.multiply(X, s, out=buffer) if p.weighted else X
            # Differences of large numbers: in double precision.
            wide, H_wide = (work.converted(f"wide {i}", array, np.float64) for i, array in enumerate((Xs, H)))
            squares = max(state.norm[0] - 2 * np.vdot(wide, H_wide) + np.vdot((Xs @ X.T).astype(np.float64), gram), 0.0)
            p.solve(X, H[: p.k], constants.curvature, p.beta, p.w_max, _SWEEPS, 0.0)
            Xs = np.multiply(X, s, out=buffer) if p.weighted else X
            cross = work.matmul(Xs, M) if rows is None else multiply_transposed(block, rows, np.ascontiguousarray(Xs.T))
            return state, Sums(Xs @ X.T, cross, np.asarray(squares), np.asarray(0.5 * squares), penalty, np.empty(0))
        M, missing = block.codes
        # Sized for a multiplier of every entry, though only the first few are written.
        positions, multipliers = work.array("positions", (M.size,), np.int32), work.array("multipliers", (M.size,), self.dtype)
        target = work.array("target", (tile_rows(len(M), *Q.shape), Q.shape[1]), self.dtype)
        new_gram, cross = work.until_next_block(gram.shape, self.dtype), work.until_next_block(Q.shape, self.dtype)
        old, new = (state.positions, state.multipliers), (target, positions, multipliers, new_gram, cross)
        squared, w_max, accelerated = p.penalty == "l2", float(p.w_max), p.inner == "fista"
        norm = (p.norm_p, p.norm_q) if p.penalty == "norm" else ()
        own_penalty = s @ p.column_penalties(X[: p.k]) if norm or isinstance(p, NMFProblem) else None
        given = M, missing, X, Q, constants.transposed, constants.curvature, *old, constants.lower, constants.upper
        squares, bounds, penalty_w, count = bounded_step(*given, rho, p.beta, squared, w_max, _SWEEPS, accelerated, s, *new, *norm)
        state.positions, state.multipliers = positions[:count].copy(), multipliers[:count].copy()
        lagrangian, penalty = 0.5 * squares + bounds, np.asarray(penalty_w if own_penalty is None else own_penalty)
        return state, Sums(new_gram, cross, np.asarray(squares), np.asarray(lagrangian), penalty, np.empty(0))

    def _constants(self, Q: NDArray[Any]) -> _Constants:
        p, gram = self.problem, Q @ Q.T
        ridge = p.ridge_w if isinstance(p, NMFProblem) else 0.0
        curvature = gram + gram.dtype.type(ridge) * np.eye(len(gram), dtype=gram.dtype) if ridge else gram
        return _Constants(gram, curvature, np.ascontiguousarray(Q[: p.k].T), *p.limits(Q.shape[1], self.dtype))


@dataclass
class RowSums(
    Baseline, name="bounded_nmf_rows", disclosure=Released("sums of squares of residuals; moments of answers and of row factors")
):
    squares: NDArray[Any]
    """‖O∘(M − R)‖²."""
    penalty_w: NDArray[Any]
    unconverged: NDArray[Any]
    """Number of rows that are not at their optimum to the tolerance."""
    moments: NDArray[Any]
    """Number, sum and sum of squares of each column's answers (3, m)."""

    @property
    def loss(self) -> float:
        """The objective without penalties."""
        return 0.5 * float(self.squares)

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
        rows = stored_rows(block, p)
        if rows is not None:
            return self._solve_stored(rows, self.row_start.factors(block, p, self.dtype), Q, p.sample_weight(block, self.dtype))
        X, M = self.row_start.factors(block, p, self.dtype), filled_values(block)
        limits = p.limits(M.shape[1], np.float64)
        given = block.values, X, work.matmul(Q[: p.k], M.T, "linear"), work.converted("loadings", Q, np.float64), p.k
        if p.penalty == "norm":
            unconverged = solve_norm_rows(*given, p.beta, p.norm_p, p.norm_q, p.w_max, *limits, _ROW_TOLERANCE)
        else:
            unconverged = solve_rows(*given, *p.row_penalty, p.w_max, *limits, _ROW_TOLERANCE)
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

    def _solve_stored(self, M: sp.csr_array, X: NDArray[Any], Q: NDArray[Any], s: NDArray[Any]) -> tuple[RowFactors, RowSums]:
        """Solve sparse rows, whose Gram matrix is the same, by coordinate descent in double precision."""
        p, wide = self.problem, Q.astype(np.float64)
        linear, ridge = p.row_penalty
        gram, W = wide @ wide.T, X.astype(np.float64)
        H = np.ascontiguousarray((M @ wide.T).T)
        scale = float(np.abs(H).max(initial=0)) / (float(gram.diagonal().max()) or 1.0)
        coordinate_descent(
            W,
            H - linear,
            gram + ridge * np.eye(len(gram)),
            len(W),
            np.zeros(W.shape[1]),
            np.full(W.shape[1], np.inf),
            _STORED_SWEEPS,
            _STORED_TOLERANCE * scale,
        )
        squared, weights = M.astype(np.float64) ** 2, s.astype(np.float64)
        norms = np.asarray(squared.sum(axis=1)).ravel() - 2 * np.einsum("ki,ki->i", W, H) + np.einsum("ki,kl,li->i", W, gram, W)
        counts, answers, squares = np.full(M.shape[1], weights.sum()), M.T @ weights, squared.T @ weights
        moments = np.stack([counts, answers, squares])
        weighted = W * weights
        fit = 2 * np.einsum("jk,kj->j", M.T @ weighted.T, wide) - np.einsum("kj,kl,lj->j", wide, weighted @ W.T, wide)
        figures = factor_sums(W.T, weights)
        errors = answers - (W @ weights) @ wide, np.maximum(squares - fit, 0), _cubed_residuals(M, W, wide, weights)
        items = np.stack([counts, np.full(M.shape[1], weights @ weights), *errors])
        return RowFactors(W.astype(self.dtype)), RowSums(
            **figures,
            items=items,
            squares=np.asarray(max(float(weights @ norms), 0.0)),
            penalty_w=weights @ p.column_penalties(W),
            unconverged=np.asarray(0),
            moments=moments,
        )


def _cubed_residuals(M: sp.csr_array, W: NDArray[np.float64], Q: NDArray[np.float64], s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ s(M − R)³ (m,) over the rows of M (n, m), with the model R = WᵀQ only where M is not 0: elsewhere it is −R³."""
    rows, columns = np.repeat(np.arange(M.shape[0]), np.diff(M.indptr)), M.indices
    model = np.zeros(len(columns))
    for w, q in zip(W, Q, strict=True):
        model += w[rows] * q[columns]
    weighted = s[rows] * ((M.data - model) ** 3 + model**3)
    cubes: NDArray[np.float64] = np.bincount(columns, weighted, M.shape[1]).astype(np.float64)
    for w, q in zip(W * s, Q, strict=True):
        cubes -= q * np.einsum("km,km->m", Q, ((W * w) @ W.T) @ Q)
    return cubes
