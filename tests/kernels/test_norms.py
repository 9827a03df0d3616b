"""Row and item problems with a norm as penalty: optimality conditions, a slow reference, and bounds of the model."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from dfact.kernels.norms import norm_descent, solve_norm_rows
from tests.cases import every

NORMS = [(2.0, 1.0), (1.5, 1.0), (3.0, 1.0), (1.0, 2.0), (2.0, 3.0), (1.3, 1.7), (20.0, 1.0), (1.0, 1.0), (2.0, 2.0)]
norms = pytest.mark.parametrize(("p", "q"), NORMS)


def phi(x: NDArray[Any], p: float, q: float) -> Any:
    return (x**p).sum() ** (q / p) / q


def gradient(x: NDArray[Any], p: float, q: float) -> Any:
    """The gradient of φ where x is not 0."""
    return (x**p).sum() ** (q / p - 1) * x ** (p - 1)


def violation(x: NDArray[Any], slope: NDArray[Any], s: float, top: float, p: float, q: float, edge: float = 1e-9) -> float:
    """Return how much the optimality conditions fail: ``slope`` is the gradient without the penalty."""
    if not x.any():
        if p == 1 or q > 1:
            return float(max(0.0, -(slope + (s if q == 1 else 0)).min()))
        dual = p / (p - 1)
        return float(max(0.0, (np.maximum(-slope, 0) ** dual).sum() ** (1 / dual) - s))
    slope = slope + s * gradient(x, p, q)
    inner = (x > edge) & (x < top - edge)
    return float(max(np.abs(slope[inner]).max(initial=0), -slope[x <= edge].min(initial=0), slope[x >= top - edge].max(initial=0)))


def problems(seed: int, k: int = 5, n: int = 40) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    A, B = rng.uniform(0, 1, (12, k)), rng.uniform(-0.3, 1, (12, n)) * np.repeat([0.05, 0.4, 1, 4], n // 4)
    return A, B, A.T @ A, np.ascontiguousarray(A.T @ B)


@norms
@every(seed=range(3))
@pytest.mark.parametrize("start", ["zero", "above"])
def test_columns_fulfil_the_optimality_conditions(p: float, q: float, start: str, seed: int) -> None:
    _, _, G, H = problems(seed)
    X = np.full(H.shape, 0.0 if start == "zero" else 0.9)
    strength, top = np.tile(np.linspace(0.02, 3.0, 10), 4), np.where(np.arange(H.shape[1]) % 2, 1.0, np.inf)
    norm_descent(X, H, G, 5, strength, top, p, q, 3000, 1e-10)
    worst = max(violation(X[:, i], G @ X[:, i] - H[:, i], strength[i], top[i], p, q) for i in range(H.shape[1]))
    assert worst <= 2e-7
    assert p > 3 or (X.max(axis=0) == 1).any()
    if q == 1:
        assert (X.max(axis=0) == 0).any()
        assert (X.max(axis=0) > 0).any()


@norms
def test_the_objective_is_that_of_a_general_solver(p: float, q: float) -> None:
    _, _, G, H = problems(7)
    X, n = np.full(H.shape, 0.5), H.shape[1]
    norm_descent(X, H, G, 5, np.full(n, 0.2), np.full(n, 1.0), p, q, 3000, 1e-10)
    for i in range(0, n, 7):

        def objective(x: NDArray[Any], h: NDArray[Any] = H[:, i]) -> float:
            return float(0.5 * x @ G @ x - h @ x + 0.2 * phi(np.maximum(x, 0), p, q))

        others = [minimize(objective, np.full(5, start), bounds=[(0, 1)] * 5, method="L-BFGS-B").fun for start in (0.01, 0.5)]
        assert objective(X[:, i]) <= min(0.0, *others) + 1e-9


@norms
def test_fixed_components_act_as_linear_terms(p: float, q: float) -> None:
    _, _, G, H = problems(3)
    X, rng = np.full(H.shape, 0.5), np.random.default_rng(0)
    X[3:] = rng.uniform(0, 1, (2, H.shape[1]))
    fixed, reduced, n = X[3:].copy(), np.full((3, H.shape[1]), 0.5), H.shape[1]
    norm_descent(X, np.ascontiguousarray(H[:3]), G, 3, np.full(n, 0.3), np.full(n, 1.0), p, q, 3000, 1e-10)
    np.testing.assert_array_equal(X[3:], fixed)
    rest = np.ascontiguousarray(H[:3] - G[:3, 3:] @ fixed)
    norm_descent(reduced, rest, np.ascontiguousarray(G[:3, :3]), 3, np.full(n, 0.3), np.full(n, 1.0), p, q, 3000, 1e-10)
    np.testing.assert_allclose(X[:3], reduced, atol=1e-9)


@norms
@every(seed=range(2))
def test_rows_are_optimal_within_the_bounds_of_the_model(p: float, q: float, seed: int) -> None:
    """At the optimum no feasible direction lowers the objective: compare with a general solver that has the constraints."""
    rng = np.random.default_rng(seed)
    n, m, k, c = 24, 15, 3, 1
    Q = rng.uniform(0, 1.2, (k + c, m)) * (rng.random((k + c, m)) < 0.7)
    M = rng.uniform(0, 2.0, (n, m))
    M[rng.random(M.shape) < 0.3] = np.nan
    M[0] = np.nan
    X = np.ascontiguousarray(np.vstack([np.full((k, n), 0.5), rng.uniform(0, 0.5, (c, n))]))
    lower, upper = np.zeros(m), np.full(m, 1.3)
    H = np.ascontiguousarray(Q[:k] @ np.nan_to_num(M).T)
    unconverged = solve_norm_rows(M, X, H, Q, k, 0.15, p, q, 1.0, lower, upper, 1e-4)
    assert unconverged == 0
    assert (X[:k, 0] == 0).all()  # a row without answers has the smallest penalty
    model = X.T @ Q
    assert model.max() <= 1.3 * (1 + 1e-4)
    assert (model > 1.3 * (1 - 1e-3)).any()
    for i in range(0, n, 4):

        def objective(w: NDArray[Any], i: int = i) -> float:
            error = np.nan_to_num(M[i] - np.concatenate([w, X[k:, i]]) @ Q)
            return float(0.5 * error @ error + 0.15 * phi(np.maximum(w, 1e-12), p, q))

        room = {"type": "ineq", "fun": lambda w, i=i: 1.3 - np.concatenate([w, X[k:, i]]) @ Q}
        found = minimize(objective, np.full(k, 0.1), bounds=[(0, 1)] * k, constraints=[room], method="SLSQP", options={"ftol": 1e-12})
        # The bounds hold to a ten thousandth of their width, so the objective may be lower by about as much.
        assert objective(X[:k, i]) == pytest.approx(min(found.fun, objective(np.zeros(k))), rel=2e-3, abs=1e-6)


def test_rows_that_cannot_keep_the_bounds_are_counted() -> None:
    Q, X = np.ones((2, 4)), np.array([[0.2, 0.2], [0.5, 3.0]])  # the confounder of row 1 alone exceeds the bound
    M = np.ones((2, 4))
    assert solve_norm_rows(M, X, np.ascontiguousarray(Q[:1] @ M.T), Q, 1, 0.1, 2.0, 1.0, 1.0, np.zeros(4), np.full(4, 2.0), 1e-4) == 1
