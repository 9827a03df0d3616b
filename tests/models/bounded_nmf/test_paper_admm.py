"""The paper's algorithm with its inner ADMM, equations (1)-(4) and (15)-(17) in NumPy, beside the one that is used."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact.kernels.box_qp import coordinate_descent
from tests.conftest import planted_answers

Array = NDArray[np.float64]


def fista(G: Array, h: Array, weight: float, x: Array, steps: int, gradient: float = 1.0) -> Array:
    """Algorithm 1 for the columns of x: minimize weight·‖x‖₁ + ½xᵀGx − hᵀx. The printed step has twice this gradient."""
    L, previous, point, t = gradient * np.linalg.eigvalsh(G)[-1], x, x, 1.0
    for _ in range(steps):
        step = point - gradient * (G @ point - h) / L
        x = np.sign(step) * np.maximum(np.abs(step) - weight / L, 0)
        following = (1 + np.sqrt(1 + 4 * t * t)) / 2
        point, previous, t = x + (t - 1) / following * (x - previous), x, following
    return x


def inner_admm(A: Array, B: Array, rho: float, beta: float, top: float, y: Array, tau: float, rounds: int, steps: int = 40) -> Array:
    """Equations (15)-(17) for the columns b of B: minimize ρ/2‖b − Ax‖² + β‖x‖₁ over 0 ≤ x ≤ top."""
    G, h, mu, x = rho * A.T @ A + tau * np.eye(A.shape[1]), rho * A.T @ B, np.zeros_like(y), y
    for _ in range(rounds):
        x = fista(G, h + tau * (y - mu / tau), beta, x, steps)  # (15)
        y = np.clip(x + mu / tau, 0, top)  # (16)
        mu = mu + tau * (x - y)  # (17)
    return y


def paper(M: Array, Q: Array, rho: float, beta: float, top: float, iterations: int) -> tuple[Array, Array]:
    """Equations (1)-(4), each subproblem by the inner ADMM, from the loadings Q (m, k). Return W and Q."""
    observed, answers, gamma = ~np.isnan(M), np.nan_to_num(M), len(M) / M.shape[1] * top
    Z, dual, W = answers.copy(), np.zeros_like(M), np.zeros((len(M), Q.shape[1]))
    for _ in range(iterations):
        B = Z + dual / rho
        W = inner_admm(Q, B.T, rho, beta, 1.0, W.T, rho * np.trace(Q.T @ Q) / len(Q.T) / 3, 15).T  # (1)
        Q = inner_admm(W, B, rho, beta * gamma, top, Q.T, rho * np.trace(W.T @ W) / len(W.T) / 3, 15).T  # (2)
        R = W @ Q.T
        Z = np.clip((answers + rho * R - dual) / (rho + observed), 0, top)  # (3)
        dual = dual + rho * (Z - R)  # (4)
    return W, Q


def problem(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    A = rng.uniform(0, 1, (15, 4))
    return A, rng.uniform(-0.3, 1.2, (15, 12)) * np.repeat([0.2, 1.0, 2.5], 4)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_inner_admm_and_coordinate_descent_have_one_solution(seed: int) -> None:
    (A, B), rho, beta = problem(seed), 3.0, 1.2
    found = inner_admm(A, B, rho, beta, 1.0, np.full((4, 12), 0.5), 2.0, 400, 80)
    X = np.full((4, 12), 0.5)
    H = np.ascontiguousarray(rho * A.T @ B - beta)
    coordinate_descent(X, H, rho * A.T @ A, 4, np.zeros(12), np.full(12, 1.0), 5000, 1e-14)
    np.testing.assert_allclose(found, X, atol=1e-6)
    assert {(X == 0).any(), (X == 1).any()} == {True}


def test_the_printed_step_of_algorithm_1_has_half_the_penalty() -> None:
    """Equation (18) has ½f and the printed step the gradient of f: it solves the problem with half of λ. dfact has the penalty of (18)."""
    A, B = problem(2)
    G, h = A.T @ A + 0.1 * np.eye(4), A.T @ B
    printed = fista(G, h, 0.8, np.zeros((4, 12)), 2000, gradient=2.0)
    np.testing.assert_allclose(printed, fista(G, h, 0.4, np.zeros((4, 12)), 2000), atol=1e-8)
    assert np.abs(printed - fista(G, h, 0.8, np.zeros((4, 12)), 2000)).max() > 0.05


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_a_run_of_the_paper_and_one_of_dfact_end_at_one_objective(missing: float) -> None:
    M = planted_answers(60, 12, 2, seed=2, missing=missing)
    settings: dict[str, Any] = {"bounds": (0, 3), "q_max": 3, "beta": 0.5, "tol": 1e-9, "max_iter": 1500, "dtype": "float64"}
    start = np.random.default_rng(0).uniform(0.5, 2, (2, 12))
    W, Q = paper(M, start.T, 3.0, 0.5, 3.0, 300)
    objective = 0.5 * np.nansum((M - W @ Q.T) ** 2) + 0.5 * W.sum() + 0.5 * 60 / 12 * 3 * Q.sum()
    for solver in ("admm", "mm"):
        model = dfact.ICQF(2, solver=solver, init=start, **settings).fit(M)
        assert model.objective_history_[-1] == pytest.approx(objective, rel=1e-3)
        order = np.argsort([-np.corrcoef(model.components_[0], q)[0, 1] for q in Q.T])
        np.testing.assert_allclose(model.components_, Q.T[order], atol=0.03)
