"""Bounded non-negative factorization's passes: the ADMM's iteration and the rows given the loadings, block by block."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.engine.passes import Block, PartialSums, Pass, State
from dfact.kernels.active_set import solve_rows
from dfact.kernels.admm import admm_fill
from dfact.kernels.bound_fill import bounded_step, tile_rows
from dfact.kernels.entries import filled, squared_error
from dfact.linalg.svd import Matrix, zero_filled
from dfact.models.bounded_nmf.problem import Problem

_SWEEPS = 3  # coordinate sweeps a row gets in an iteration; the next iteration goes on from there
_ROW_TOLERANCE = 1e-4  # of w_max and of the bounds' width: rows given the loadings are solved to this


@dataclass(frozen=True)
class WeightedRows:
    """The zero-filled data with each row scaled by the root of its weight: what a start from singular vectors is made of."""

    problem: Problem

    def __call__(self, block: Block) -> Matrix:
        M = zero_filled(block)
        if not self.problem.weighted:
            return M
        scale = np.sqrt(self.problem.sample_weight(block, M.dtype))[:, None]
        return np.multiply(M, scale, out=M) if isinstance(M, np.ndarray) else sp.csr_array(M.multiply(scale))


@dataclass
class Sums(PartialSums, name="bounded_nmf"):
    """What an iteration adds up over the rows, each as often as its weight says."""

    gram: NDArray[Any]
    """[W, C]ᵀ[W, C] (k+c, k+c) with the new W."""
    cross: NDArray[Any]
    """[W, C]ᵀB (k+c, m)."""
    squares: NDArray[Any]
    """‖O∘(M − R)‖² of the factors the pass began with."""
    lagrangian: NDArray[Any]
    """The entries' share of the augmented Lagrangian."""
    penalty_w: NDArray[Any]
    """What the penalty counts in W of the factors the pass began with."""
    residuals: NDArray[Any]
    """‖Z − R‖² and ‖ΔZ‖² of the ADMM (2,); (0,) where ρ stays as it is."""


@dataclass(frozen=True)
class Start:
    """Where the rows' factors begin: max(M P, 0) for the projection P (m, k), or uniformly random by ``seed``."""

    projection: NDArray[Any] | None
    seed: int | None = None

    @classmethod
    def given(cls, loadings: NDArray[Any]) -> "Start":
        """The least-squares factors of the rows, given the loadings (k, m)."""
        return cls(np.linalg.pinv(loadings.astype(np.float64)))

    def factors(self, block: Block, problem: Problem, dtype: np.dtype[Any]) -> NDArray[Any]:
        """X = [W, C]ᵀ (k+c, rows)."""
        if self.projection is None:
            # Seeded by the block, so that a start does not depend on who computes it.
            generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(block.index,)))
            W = generator.uniform(0, min(problem.w_max, 1.0), (problem.k, block.values.shape[0]))
        else:
            W = block.work.matmul(self.projection.T.astype(dtype), filled_values(block).T, "start")
            np.clip(W, 0, problem.w_max, out=W)
        return np.ascontiguousarray(np.vstack([W, problem.covariates(block).T]).astype(dtype, copy=False))


def filled_values(block: Block) -> NDArray[Any]:
    """The block's values with 0 for missing entries, in its working memory."""
    M = block.values
    return filled(M, out=block.work.array("filled", M.shape, M.dtype))


def split_start(block: Block, problem: Problem) -> NDArray[Any]:
    """The ADMM's S (rows, m) at the start: Z = M, A = 0 where answered; where missing any value within
    the bounds stands for Z = R, A = 0.
    """
    M = block.values
    missing = np.isnan(M, out=block.work.array("missing", M.shape, bool))
    return np.where(missing, problem.limits(M.shape[1], M.dtype)[0], M)


@dataclass(frozen=True)
class ADMMPass:
    """Steps 3 and 4 of one iteration and step 1 of the next, with the sums for step 2, in one visit of a block.

    State: the factors X = [W, C]ᵀ (k+c, rows), of which W moves, and the ADMM's S (rows, m).
    """

    problem: Problem
    begin: Start
    dtype: np.dtype[Any]
    adaptive: bool = False

    def start(self, block: Block) -> State:
        X = self.begin.factors(block, self.problem, self.dtype)
        return {"factors": X, "split": split_start(block, self.problem)}

    def step(self, block: Block, state: State | None, broadcast: tuple[NDArray[Any], float, float]) -> tuple[State, Sums]:
        """``broadcast`` is Qᵀ (k+c, m), the ρ of the pass before, and ρ."""
        assert state is not None
        p, (Q, before, rho), X, S, work = self.problem, broadcast, state["factors"], state["split"], block.work
        s = p.sample_weight(block, self.dtype)
        penalty_w = s @ p.size(X[: p.k])
        R = work.matmul(X.T, Q, "model")
        B, residuals = work.array("target", R.shape, R.dtype), np.zeros(2 if self.adaptive else 0)
        squares, lagrangian = admm_fill(block.values, R, S, B, *p.limits(len(Q.T), self.dtype), before, rho, s, residuals)
        p.solve(X, work.matmul(Q[: p.k], B.T, "linear"), Q @ Q.T, p.beta / rho, p.w_max, _SWEEPS, 0.0)
        Xs = np.multiply(X, s, out=work.array("weighted", X.shape, X.dtype)) if p.weighted else X
        cross = work.matmul(Xs, B)
        return state, Sums(Xs @ X.T, cross, np.asarray(squares), np.asarray(lagrangian), np.asarray(penalty_w), residuals)


@dataclass(frozen=True)
class SplitlessPass:
    """One visit of a block where only the bounds are split off: the rows' step, with the sums for the loadings.

    State: the factors X = [W, C]ᵀ (k+c, rows), and where a bound is active its multiplier and its place in the block.
    Without bounds and missing entries the target B is M itself; what the model R is needed for follows from Gram
    matrices and the state ``norm``, ‖M‖², NaN for blocks with missing entries.
    """

    problem: Problem
    begin: Start
    dtype: np.dtype[Any]

    def start(self, block: Block) -> State:
        X, s = self.begin.factors(block, self.problem, self.dtype), self.problem.sample_weight(block, self.dtype)
        norm = np.nan if self.problem.bounded else np.einsum("i,ij,ij->", s, block.values, block.values, dtype=np.float64)
        return {"factors": X, "places": np.empty(0, np.int32), "multipliers": np.empty(0, self.dtype), "norm": np.atleast_1d(norm)}

    def step(self, block: Block, state: State | None, broadcast: tuple[NDArray[Any], float]) -> tuple[State, Sums]:
        """``broadcast`` is Qᵀ (k+c, m) and ρ."""
        assert state is not None
        p, (Q, rho), X, work = self.problem, broadcast, state["factors"], block.work
        gram, Qt, lower, upper = work.once("loadings", broadcast, lambda: self._constants(Q))
        s = p.sample_weight(block, self.dtype)
        if not np.isnan(state["norm"][0]):
            room, size = work.array("weighted", X.shape, X.dtype), np.asarray(s @ p.size(X[: p.k]))
            M, H = block.values, work.matmul(Q, block.values.T, "linear")
            Xs = np.multiply(X, s, out=room) if p.weighted else X
            # Differences of large numbers: in double precision.
            wide, H_wide = (work.converted(f"wide {i}", array, np.float64) for i, array in enumerate((Xs, H)))
            squares = state["norm"][0] - 2 * np.vdot(wide, H_wide) + np.vdot((Xs @ X.T).astype(np.float64), gram)
            p.solve(X, H[: p.k], gram, p.beta, p.w_max, _SWEEPS, 0.0)
            Xs = np.multiply(X, s, out=room) if p.weighted else X
            return state, Sums(Xs @ X.T, work.matmul(Xs, M), np.asarray(squares), np.asarray(0.5 * squares), size, np.empty(0))
        M, missing = block.codes
        # Room for a multiplier of every entry, of which the first few are touched.
        places, multipliers = work.array("places", (M.size,), np.int32), work.array("multipliers", (M.size,), self.dtype)
        target = work.array("target", (tile_rows(len(M), *Q.shape), Q.shape[1]), self.dtype)
        new_gram, cross = work.lasting(gram.shape, self.dtype), work.lasting(Q.shape, self.dtype)
        old, new = (state["places"], state["multipliers"]), (target, places, multipliers, new_gram, cross)
        squared, w_max, accelerated = p.penalty == "l2", float(p.w_max), p.inner == "fista"
        squares, bounds, penalty_w, count = bounded_step(
            M, missing, X, Q, Qt, gram, *old, lower, upper, rho, p.beta, squared, w_max, _SWEEPS, accelerated, s, *new
        )
        state = {**state, "places": places[:count].copy(), "multipliers": multipliers[:count].copy()}
        lagrangian = 0.5 * squares + bounds
        return state, Sums(new_gram, cross, np.asarray(squares), np.asarray(lagrangian), np.asarray(penalty_w), np.empty(0))

    def _constants(self, Q: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Compute QQᵀ, the transpose of the rows of Qᵀ that are solved for, and the bounds."""
        return Q @ Q.T, np.ascontiguousarray(Q[: self.problem.k].T), *self.problem.limits(Q.shape[1], self.dtype)


@dataclass
class RowSums(PartialSums, name="bounded_nmf_rows"):
    squares: NDArray[Any]
    penalty_w: NDArray[Any]
    unfinished: NDArray[Any]
    """Rows that are not at their optimum to the tolerance."""
    moments: NDArray[Any]
    """Number, sum and sum of squares of each column's answers (3, m)."""

    def explained_share(self) -> float:
        """1 − ‖O∘(M − R)‖² / ‖O∘(M − column means)‖²; NaN if every column is constant."""
        count, total, squares = self.moments
        variation = float((squares - total**2 / count).sum())
        return 1 - float(self.squares) / variation if variation > 0 else float("nan")


@dataclass(frozen=True)
class RowsPass(Pass[NDArray[Any], RowSums]):
    """The factors of every row at their optimum given the loadings, whatever state there was before."""

    problem: Problem
    begin: Start
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, broadcast: NDArray[Any]) -> tuple[State, RowSums]:
        p, Q, work = self.problem, broadcast, block.work
        X, M = self.begin.factors(block, p, self.dtype), filled_values(block)
        linear, ridge = (p.beta, 0.0) if p.penalty == "l1" else (0.0, p.beta)
        limits = p.limits(M.shape[1], np.float64)
        exact, H = work.converted("loadings", Q, np.float64), work.matmul(Q[: p.k], M.T, "linear")
        unfinished = solve_rows(block.values, X, H, exact, p.k, linear, ridge, p.w_max, *limits, _ROW_TOLERANCE)
        s = p.sample_weight(block, self.dtype)
        squares = squared_error(block.values, work.matmul(X.T, Q, "target"), s)
        missing = np.isnan(block.values, out=work.array("missing", M.shape, bool))
        counts = s @ work.converted("observed", np.logical_not(missing, out=missing), s.dtype)
        total = s.astype(np.float64) @ work.converted("wide", M, np.float64)
        moments = np.stack([counts, total, np.einsum("i,ij,ij->j", s, M, M, dtype=np.float64)])
        return {"factors": X}, RowSums(np.asarray(squares), s @ p.size(X[: p.k]), np.asarray(unfinished), moments)
