"""Bounded non-negative factorization's passes: the ADMM's iteration and the rows given the loadings, block by block."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.engine.passes import Block, Partial, Startless, State
from dfact.kernels.admm import admm_fill
from dfact.kernels.bound_fill import answer_fill, bound_fill
from dfact.kernels.entries import filled, squared_error
from dfact.kernels.rows import solve_rows
from dfact.linalg.svd import Matrix, zero_filled
from dfact.models.bounded_nmf_problem import Problem

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
        return M * scale if isinstance(M, np.ndarray) else sp.csr_array(M.multiply(scale))


@dataclass
class Sums(Partial):
    """What an iteration adds up over the rows, each as often as its weight says."""

    gram: NDArray[Any]
    """[W, C]ᵀ[W, C] (k+c, k+c) with the new W."""
    cross: NDArray[Any]
    """[W, C]ᵀB (k+c, m)."""
    squares: NDArray[Any]
    """‖O∘(M − R)‖² of the factors the pass began with."""
    lagrangian: NDArray[Any]
    """The entries' share of the augmented Lagrangian."""
    size_w: NDArray[Any]
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
            W = np.clip(self.projection.T.astype(dtype) @ filled(block.values).T, 0, problem.w_max)
        return np.ascontiguousarray(np.vstack([W, problem.covariates(block).T]).astype(dtype))


def split_start(block: Block, problem: Problem) -> NDArray[Any]:
    """The ADMM's S (rows, m) at the start: Z = M, A = 0 where answered; where missing any value within
    the bounds stands for Z = R, A = 0.
    """
    M = block.values
    return np.where(np.isnan(M), problem.limits(M.shape[1], M.dtype)[0], M)


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

    def step(self, block: Block, state: State | None, shared: tuple[NDArray[Any], float, float]) -> tuple[State, Sums]:
        """``shared`` is Qᵀ (k+c, m), the ρ of the pass before, and ρ."""
        assert state is not None
        p, (Q, before, rho), X, S = self.problem, shared, state["factors"], state["split"]
        s = p.sample_weight(block, self.dtype)
        size_w = s @ p.size(X[: p.k])
        R = X.T @ Q
        B, residuals = np.empty_like(R), np.zeros(2 if self.adaptive else 0)
        squares, lagrangian = admm_fill(block.values, R, S, B, *p.limits(len(Q.T), self.dtype), before, rho, s, residuals)
        p.solve(X, Q[: p.k] @ B.T, Q @ Q.T, p.beta / rho, p.w_max, _SWEEPS, 0.0)
        weighted = X * s if p.weighted else X
        return state, Sums(weighted @ X.T, weighted @ B, np.asarray(squares), np.asarray(lagrangian), np.asarray(size_w), residuals)


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

    def step(self, block: Block, state: State | None, shared: tuple[NDArray[Any], float]) -> tuple[State, Sums]:
        """``shared`` is Qᵀ (k+c, m) and ρ."""
        assert state is not None
        p, (Q, rho), X, M = self.problem, shared, state["factors"], block.values
        s, gram = p.sample_weight(block, self.dtype), Q @ Q.T
        size_w = np.asarray(s @ p.size(X[: p.k]))
        if not np.isnan(state["norm"][0]):
            H = Q @ M.T
            Xs = X * s if p.weighted else X
            # Differences of large numbers: in double precision.
            squares = state["norm"][0] - 2 * np.vdot(Xs.astype(np.float64), H) + np.vdot((Xs @ X.T).astype(np.float64), gram)
            p.solve(X, H[: p.k], gram, p.beta, p.w_max, _SWEEPS, 0.0)
            Xs = X * s if p.weighted else X
            return state, Sums(Xs @ X.T, Xs @ M, np.asarray(squares), np.asarray(0.5 * squares), size_w, np.empty(0))
        B = X.T @ Q
        weights = np.empty(len(B), self.dtype)
        squares, beyond = answer_fill(M, B, state["places"], *p.limits(len(Q.T), self.dtype), rho, weights, s)
        state, bounds = self._fill_bounds(M, B, state, rho, weights, s, beyond)
        p.solve(X, Q[: p.k] @ B.T, gram, self.dtype.type(p.beta) / weights, p.w_max, _SWEEPS, 0.0)
        Xs = X * (weights * s if p.weighted else weights)
        return state, Sums(Xs @ X.T, Xs @ B, np.asarray(squares), np.asarray(0.5 * squares + bounds), size_w, np.empty(0))

    def _fill_bounds(
        self, M: NDArray[Any], B: NDArray[Any], state: State, rho: float, weights: NDArray[Any], s: NDArray[Any], beyond: int
    ) -> tuple[State, float]:
        """The target B in the rows with an active bound, and the state with their new multipliers."""
        p, room = self.problem, beyond + len(state["places"])
        if not room:
            return state, 0.0
        places, multipliers = np.empty(room, np.int32), np.empty(room, self.dtype)
        old = state["places"], state["multipliers"]
        limits = p.limits(M.shape[1], self.dtype)
        bounds, count = bound_fill(M, B, *old, *limits, rho, weights, s, places, multipliers)
        return {**state, "places": places[:count].copy(), "multipliers": multipliers[:count].copy()}, bounds


@dataclass
class RowSums(Partial):
    squares: NDArray[Any]
    size_w: NDArray[Any]
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
class RowsPass(Startless):
    """The factors of every row at their optimum given the loadings, whatever state there was before."""

    problem: Problem
    begin: Start
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, shared: NDArray[Any]) -> tuple[State, RowSums]:
        p, Q, M = self.problem, shared, filled(block.values)
        X = self.begin.factors(block, p, self.dtype)
        linear, ridge = (p.beta, 0.0) if p.penalty == "l1" else (0.0, p.beta)
        limits = p.limits(M.shape[1], np.float64)
        exact = Q.astype(np.float64)
        unfinished = solve_rows(block.values, X, Q[: p.k] @ M.T, exact, p.k, linear, ridge, p.w_max, *limits, _ROW_TOLERANCE)
        s = p.sample_weight(block, self.dtype)
        squares = squared_error(block.values, X.T @ Q, s)
        counts = s @ ~np.isnan(block.values)
        moments = np.stack([counts, s.astype(np.float64) @ M, np.einsum("i,ij,ij->j", s, M, M, dtype=np.float64)])
        return {"factors": X}, RowSums(np.asarray(squares), s @ p.size(X[: p.k]), np.asarray(unfinished), moments)
