"""ICQF's passes: the ADMM's iteration and the rows given the loadings, block by block."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import Block, Partial, Startless, State
from dfact.kernels.admm import admm_fill
from dfact.kernels.bound_fill import answer_fill, bound_fill
from dfact.kernels.box_lasso import box_lasso
from dfact.kernels.entries import filled, squared_error
from dfact.kernels.rows import solve_rows

_SWEEPS = 3  # coordinate sweeps a row gets in an iteration; the next iteration goes on from there
_ROW_TOLERANCE = 1e-4  # of w_max and of the bounds' width: rows given the loadings are solved to this


@dataclass(frozen=True)
class Problem:
    """The constants of the objective, for one data set."""

    k: int
    beta: float
    gamma: float
    rho: float
    w_max: float
    q_max: float
    lower: float
    upper: float

    @property
    def loadings_penalty(self) -> float:
        """βγ; 0 without a penalty, though γ be infinite as q_max is."""
        return self.beta * self.gamma if self.beta else 0.0

    def penalty(self, sum_w: float, sum_q: float) -> float:
        """β‖W‖₁ + βγ‖Q‖₁; everything is non-negative."""
        return self.beta * sum_w + self.loadings_penalty * sum_q


@dataclass
class Sums(Partial):
    """What an iteration adds up over the rows."""

    gram: NDArray[Any]
    """[W, C]ᵀ[W, C] (k+c, k+c) with the new W."""
    cross: NDArray[Any]
    """[W, C]ᵀB (k+c, m)."""
    squares: NDArray[Any]
    """‖O∘(M − R)‖² of the factors the pass began with."""
    lagrangian: NDArray[Any]
    """The entries' share of the augmented Lagrangian."""
    sum_w: NDArray[Any]
    """‖W‖₁ of the factors the pass began with."""


@dataclass(frozen=True)
class Start:
    """Where the rows' factors begin: max(M P, 0) for the projection P (m, k), or uniformly random by ``seed``."""

    projection: NDArray[Any] | None
    seed: int | None = None

    def factors(self, block: Block, problem: Problem, dtype: np.dtype[Any]) -> NDArray[Any]:
        """X = [W, C]ᵀ (k+c, rows)."""
        if self.projection is None:
            # Seeded by the block, so that a start does not depend on who computes it.
            generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(block.index,)))
            W = generator.uniform(0, problem.w_max, (problem.k, block.values.shape[0]))
        else:
            W = np.clip(self.projection.T.astype(dtype) @ filled(block.values).T, 0, problem.w_max)
        C = np.empty((0, W.shape[1])) if block.covariates is None else block.covariates.T
        return np.ascontiguousarray(np.vstack([W, C]).astype(dtype))


def split_start(block: Block, problem: Problem) -> NDArray[Any]:
    """The ADMM's S (rows, m) at the start: Z = M, A = 0 where answered; where missing any value within
    the bounds stands for Z = R, A = 0.
    """
    return filled(block.values, problem.lower)


@dataclass(frozen=True)
class ADMMPass:
    """Steps 3 and 4 of one iteration and step 1 of the next, with the sums for step 2, in one visit of a block.

    State: the factors X = [W, C]ᵀ (k+c, rows), of which W moves, and the ADMM's S (rows, m).
    """

    problem: Problem
    begin: Start
    dtype: np.dtype[Any]

    def start(self, block: Block) -> State:
        X = self.begin.factors(block, self.problem, self.dtype)
        return {"factors": X, "split": split_start(block, self.problem)}

    def step(self, block: Block, state: State | None, shared: NDArray[Any]) -> tuple[State, Sums]:
        """``shared`` is Qᵀ (k+c, m)."""
        assert state is not None
        p, Q, X, S = self.problem, shared, state["factors"], state["split"]
        sum_w = X[: p.k].sum(dtype=np.float64)
        R = X.T @ Q
        B = np.empty_like(R)
        squares, lagrangian = admm_fill(block.values, R, S, B, p.lower, p.upper, p.rho)
        box_lasso(X, Q[: p.k] @ B.T, Q @ Q.T, p.k, p.beta / p.rho, p.w_max, _SWEEPS, 0.0)
        return state, Sums(X @ X.T, X @ B, np.asarray(squares), np.asarray(lagrangian), np.asarray(sum_w))


@dataclass(frozen=True)
class SplitlessPass:
    """One visit of a block where only the bounds are split off: the rows' step, with the sums for the loadings.

    State: the factors X = [W, C]ᵀ (k+c, rows), and where a bound is active its multiplier and its place in the block.
    Without bounds and missing entries the target B is M itself, and what the model R is needed for follows from Gram matrices.
    """

    problem: Problem
    begin: Start
    dtype: np.dtype[Any]

    def start(self, block: Block) -> State:
        none = {"places": np.empty(0, np.int32), "multipliers": np.empty(0, self.dtype)}
        return {"factors": self.begin.factors(block, self.problem, self.dtype), **none}

    def step(self, block: Block, state: State | None, shared: tuple[NDArray[Any], float]) -> tuple[State, Sums]:
        """``shared`` is Qᵀ (k+c, m) and ρ."""
        assert state is not None
        p, (Q, rho), X, M = self.problem, shared, state["factors"], block.values
        sum_w, gram = X[: p.k].sum(dtype=np.float64), Q @ Q.T
        if np.isinf(p.upper) and not np.isnan(M.min()):
            H = Q @ M.T
            squares = np.vdot(M, M) - 2 * np.vdot(X, H) + np.vdot(X @ X.T, gram)
            box_lasso(X, H[: p.k], gram, p.k, p.beta, p.w_max, _SWEEPS, 0.0)
            return state, Sums(X @ X.T, X @ M, np.asarray(squares), np.asarray(0.5 * squares), np.asarray(sum_w))
        B = X.T @ Q
        weights = np.empty(len(B), self.dtype)
        squares, beyond = answer_fill(M, B, state["places"], p.lower, p.upper, rho, weights)
        state, bounds = self._fill_bounds(M, B, state, rho, weights, beyond)
        H = Q[: p.k] @ B.T
        H -= self.dtype.type(p.beta) / weights
        box_lasso(X, H, gram, p.k, 0.0, p.w_max, _SWEEPS, 0.0)
        weighted = X * weights
        lagrangian = np.asarray(0.5 * squares + bounds)
        return state, Sums(weighted @ X.T, weighted @ B, np.asarray(squares), lagrangian, np.asarray(sum_w))

    def _fill_bounds(
        self, M: NDArray[Any], B: NDArray[Any], state: State, rho: float, weights: NDArray[Any], beyond: int
    ) -> tuple[State, float]:
        """The target B in the rows with an active bound, and the state with their new multipliers."""
        p, room = self.problem, beyond + len(state["places"])
        if not room:
            return state, 0.0
        places, multipliers = np.empty(room, np.int32), np.empty(room, self.dtype)
        old = state["places"], state["multipliers"]
        bounds, count = bound_fill(M, B, *old, p.lower, p.upper, rho, weights, places, multipliers)
        return {"factors": state["factors"], "places": places[:count].copy(), "multipliers": multipliers[:count].copy()}, bounds


@dataclass
class RowSums(Partial):
    squares: NDArray[Any]
    sum_w: NDArray[Any]
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
        H = Q[: p.k] @ M.T
        unfinished = solve_rows(block.values, X, H, Q.astype(np.float64), p.k, p.beta, p.w_max, p.lower, p.upper, _ROW_TOLERANCE)
        squares = squared_error(block.values, X.T @ Q)
        moments = np.stack(
            [(~np.isnan(block.values)).sum(axis=0), M.sum(axis=0, dtype=np.float64), np.einsum("ij,ij->j", M, M, dtype=np.float64)]
        )
        return {"factors": X}, RowSums(np.asarray(squares), X[: p.k].sum(dtype=np.float64), np.asarray(unfinished), moments)
