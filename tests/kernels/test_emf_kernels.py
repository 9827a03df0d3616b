"""The kernels of expectile regression against NumPy, a QP solver and SciPy's expectile."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import expectile

from dfact.kernels.expectile import count_observed, expectile_rows, take_observed
from dfact.kernels.expectile_dense import surrogate_rows

TAUS = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]


def losses(r: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    return r**2 * np.abs(tau - (r < 0))


def problem(seed: int, n: int = 12, m: int = 60, k: int = 4, observed: float = 0.6) -> tuple[Any, NDArray[np.float64]]:
    """Skewed data, row-compressed, and factors of the columns."""
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((m, k))
    V = rng.standard_normal((n, k)) @ Y.T + rng.exponential(2, (n, m))
    positions = np.nonzero(rng.random((n, m)) < observed)
    return sp.csr_array((V[positions], positions), shape=(n, m)), Y


def solve(A: Any, Y: NDArray[np.float64], tau: float, ridge: float, X: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """X, and the columns' sums."""
    m, k = Y.shape
    sums = np.zeros(m), np.zeros(m), np.zeros((m, k)), np.zeros((m, k * (k + 1) // 2))
    solution = X.copy()
    # The types of a pass, whose compiled code other tests use as well.
    given = A.indptr.astype(np.int64), A.indices.astype(np.int32), A.data, Y
    before = [array.copy() for array in given]
    expectile_rows(*given, tau, ridge, solution, *sums)
    for array, unchanged in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, unchanged)
    return solution, *sums


def quadratic_program(b: NDArray[np.float64], Y: NDArray[np.float64], tau: float, ridge: float) -> NDArray[np.float64]:
    """The x of min τ‖r⁺‖² + (1−τ)‖r⁻‖² + ridge‖x‖², b − Yx = r⁺ − r⁻, r± ≥ 0, as the paper writes it, from its dual by an active set.

    The multipliers ν = ν⁺ − ν⁻ of the equations minimize ‖ν⁺‖²/4τ + ‖ν⁻‖²/4(1−τ) + ‖Yᵀν‖²/4·ridge − νᵀb over ν± ≥ 0; x = Yᵀν/2·ridge.
    """
    p = len(b)
    signed = np.hstack([np.eye(p), -np.eye(p)])
    H = np.diag(np.repeat([0.25 / tau, 0.25 / (1 - tau)], p)) + signed.T @ Y @ Y.T @ signed / (4 * ridge)
    L = np.linalg.cholesky(H)
    multipliers, _ = nnls(L.T, np.linalg.solve(L, signed.T @ b / 2), maxiter=100 * p)
    x: NDArray[np.float64] = Y.T @ signed @ multipliers / (2 * ridge)
    return x


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_at_the_minimum_of_the_quadratic_program(tau: float, seed: int) -> None:
    A, Y = problem(seed)
    ridge = 0.1
    X = solve(A, Y, tau, ridge, np.random.default_rng(seed).standard_normal((Y.shape[1], A.shape[0])))[0]
    for i in range(A.shape[0]):
        J, b = A.indices[A.indptr[i] : A.indptr[i + 1]], A.data[A.indptr[i] : A.indptr[i + 1]]
        np.testing.assert_allclose(X[:, i], quadratic_program(b, Y[J], tau, ridge), atol=1e-8)


@pytest.mark.parametrize("tau", TAUS)
def test_one_component_of_ones_is_the_expectile(tau: float) -> None:
    b = np.random.default_rng(3).exponential(1, 50)
    A = sp.csr_array(b[None])
    x = solve(A, np.ones((50, 1)), tau, 1e-13, np.zeros((1, 1)))[0]
    np.testing.assert_allclose(x[0, 0], expectile(b, tau), rtol=1e-8)


@pytest.mark.parametrize("tau", TAUS)
def test_sums_over_columns(tau: float) -> None:
    A, Y = problem(7)
    old = np.random.default_rng(1).standard_normal((Y.shape[1], A.shape[0]))
    X, before, after, gradient, curvature = solve(A, Y, tau, 1e-6, old)
    V, seen = A.toarray(), A.astype(bool).toarray()
    for R, total in ((old.T @ Y.T, before), (X.T @ Y.T, after)):
        np.testing.assert_allclose(total, (losses(V - R, tau) * seen).sum(axis=0))
    r = V - X.T @ Y.T
    w = np.abs(tau - (r < 0)) * seen
    np.testing.assert_allclose(gradient, (w * r).T @ X.T, atol=1e-10)
    lower = np.tril_indices(Y.shape[1])
    np.testing.assert_allclose(curvature, np.einsum("ij,ai,bi->jab", w, X, X)[:, *lower], atol=1e-10)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_a_row_does_not_depend_on_the_rows_solved_beside_it(k: int) -> None:
    for seed in range(5):
        A, Y = problem(seed, n=21, k=k)
        start, rng = np.random.default_rng(seed).standard_normal((k, 21)), np.random.default_rng(seed)
        X = solve(A, Y, 0.2, 0.1, start)[0]
        for some in (np.arange(3, 20), rng.permutation(21), rng.permutation(21)[:5]):
            np.testing.assert_array_equal(solve(A[some], Y, 0.2, 0.1, start[:, some])[0], X[:, some])


def test_rows_with_fewer_entries_than_components_and_with_none() -> None:
    A = sp.csr_array(np.array([[0, 2.0, 0], [0, 0, 0], [1.0, 0, 3.0]]))
    Y = np.random.default_rng(0).standard_normal((3, 5))
    X = solve(A, Y, 0.3, 1e-8, np.ones((5, 3)))[0]
    np.testing.assert_allclose(X[:, 1], 0, atol=1e-12)
    np.testing.assert_allclose((X.T @ Y.T)[A.astype(bool).toarray()], A.data, atol=1e-6)


@pytest.mark.parametrize("scale", [1, 1e6, 1e12])
def test_rows_never_rise_where_the_ridge_is_below_rounding(scale: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A = sp.random_array((60, 40), density=0.1, format="csr", rng=rng) * scale
        Y = rng.standard_normal((40, 8)) * np.sqrt(scale) * np.logspace(0, -4, 8)
        old = rng.standard_normal((8, 60)) * np.sqrt(scale)
        X, before, after, *_ = solve(A, Y, 0.1, 1e-8, old)
        assert np.isfinite(X).all()
        assert after.sum() + 1e-8 * np.vdot(X, X) <= before.sum() + 1e-8 * np.vdot(old, old)


def surrogate_row(
    v: NDArray[np.float64], x: NDArray[np.float64], Y: NDArray[np.float64], tau: float, ridge: float, steps: int, gain: float
) -> NDArray[np.float64]:
    """The row's factors after its steps, Y (k, m)."""

    def entries(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        r = np.where(np.isnan(v), 0, v - x @ Y)
        w = np.abs(tau - (r < 0)) * ~np.isnan(v)
        return r, w, float(w @ r**2)

    for _ in range(steps):
        r, w, loss = entries(x)
        direction = np.linalg.solve(w.sum() / len(v) * Y @ Y.T + ridge * np.eye(len(x)), Y @ (w * r) - ridge * x)
        for length in [*0.5 ** np.arange(12), 0]:
            new = x + length * direction
            if entries(new)[2] + ridge * new @ new <= (loss + ridge * x @ x) * (1 + 1e-13):
                break
        x = new
        if not entries(x)[2] <= (1 - gain) * loss:
            break
    return x


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize(("k", "tau"), [(1, 0.1), (2, 0.5), (3, 0.02), (4, 0.8), (7, 0.98), (10, 0.1)])
@pytest.mark.parametrize("seed", range(2))
def test_surrogate_steps(k: int, tau: float, steps: int, seed: int) -> None:
    """With fewer columns than vectors hold, and with columns of 0 that fill them; some rows have no entry."""
    rng = np.random.default_rng([seed, k])
    n, m, ridge, gain = 30, 45, 0.01, 0.01
    Y = rng.standard_normal((k, m)) + 1
    V = rng.standard_normal((n, k)) @ Y + rng.exponential(2, (n, m))
    V[rng.random(V.shape) < 0.4], V[5] = np.nan, np.nan
    start = rng.standard_normal((k, n))
    expected = np.stack([surrogate_row(v, x, Y, tau, ridge, steps, gain) for v, x in zip(V, start.T, strict=True)], axis=1)
    values, U = np.linalg.eigh(Y @ Y.T)
    for dtype, room in ((np.float64, m), (np.float64, 64), (np.float32, 64)):
        padded = np.zeros((k, room), dtype)
        padded[:, :m] = Y
        X = start.astype(dtype)
        before, after, weights, gradient = np.zeros(room, dtype), np.zeros(room, dtype), np.zeros(room, dtype), np.zeros((k, room), dtype)
        rounding = 1e-13 if dtype == np.float64 else 1e-5
        given = V.astype(dtype)
        given.flags.writeable = False
        surrogate_rows(given, padded, U, values, tau, ridge, rounding, steps, gain, X, before, after, weights, gradient)
        if dtype == np.float64:
            np.testing.assert_allclose(X, expected, atol=1e-10)
        elif steps == 1:
            np.testing.assert_allclose(X, expected, atol=1e-3 * np.abs(expected).max())
        seen = ~np.isnan(V)
        tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == np.float64 else {"rtol": 1e-3, "atol": 1e-3 * n * np.nanmax(V)}
        for factors, total in ((start, before), (X, after)):
            np.testing.assert_allclose(total[:m], np.nansum(losses(V - factors.T @ Y, tau), axis=0), **tolerance)
        r = np.nan_to_num(V - X.T @ Y)
        w = np.abs(tau - (r < 0)) * seen
        np.testing.assert_allclose(weights[:m], w.sum(axis=0), rtol=1e-5, atol=1 if dtype == np.float32 else 0)
        np.testing.assert_allclose(gradient[:, :m], X @ (w * r), **tolerance)
        assert not any(array[..., m:].any() for array in (before, after, weights, gradient))


def test_observed_entries_of_a_block() -> None:
    V = np.random.default_rng(0).random((20, 9))
    V[V < 0.4] = np.nan
    V[3] = np.nan
    indptr = np.empty(21, np.int64)
    count_observed(V, indptr)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1])
    take_observed(V, indptr, indices, values)
    rows, columns = np.nonzero(~np.isnan(V))
    np.testing.assert_array_equal(indices, columns)
    np.testing.assert_array_equal(values, V[rows, columns])
    np.testing.assert_array_equal(np.diff(indptr), (~np.isnan(V)).sum(axis=1))


@pytest.mark.parametrize("k", [3, 10])
def test_bits_do_not_depend_on_the_state_of_the_heap(k: int) -> None:
    A, Y = problem(0, n=60, m=30, k=k, observed=0.3)
    X, rng = np.random.default_rng(1).random((k, 60)), np.random.default_rng(2)
    found = set()
    for _ in range(1500):
        held = [np.empty(size) for size in rng.integers(1, 40, rng.integers(0, 30))]
        rng.shuffle(held)
        del held[: len(held) // 2]  # holes
        found.add(b"".join(array.tobytes() for array in solve(A, Y, 0.5, 0.1, X)))
    assert len(found) == 1
