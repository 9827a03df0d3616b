"""CP's kernels against the same steps in plain NumPy; their inputs may be read-only."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from dfact.kernels.cp import balance, fill_missing, observed_squares, residual_sweep, subtract
from dfact.kernels.elastic_net import column_updates, row_optima

Array = NDArray[Any]
SHAPES = [(7, 5), (6, 5, 4), (4, 3, 5, 2), (5, 1, 4), (5, 4, 1), (6, 3, 1, 1), (6, 1)]


def soft(u: Array, threshold: float, nonnegative: bool) -> Array:
    return np.maximum(u - threshold, 0) + (0 if nonnegative else np.minimum(u + threshold, 0))


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def outer(vectors: list[Array]) -> Array:
    product = vectors[0]
    for vector in vectors[1:]:
        product = np.multiply.outer(product, vector)
    return product


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_fill_and_squares(dtype: type, missing: float) -> None:
    rng = np.random.default_rng(0)
    M, R = rng.standard_normal((2, 30, 41)).astype(dtype)
    M[rng.random(M.shape) < missing] = np.nan
    B, E = R.copy(), R.astype(np.float64)
    expected = np.nansum((M.astype(np.float64) - R) ** 2)
    assert fill_missing(read_only(M), B) == pytest.approx(expected, rel=1e-5 if dtype is np.float32 else 1e-12)
    np.testing.assert_array_equal(B, np.where(np.isnan(M), R, M))
    C = R[:, 5:20].copy()
    expected_part = np.nansum((M[:, 5:20].astype(np.float64) - C) ** 2)
    assert fill_missing(read_only(M), C, 5) == pytest.approx(expected_part, rel=1e-5 if dtype is np.float32 else 1e-12)
    np.testing.assert_array_equal(C, B[:, 5:20])
    assert subtract(M.astype(np.float64), E) == pytest.approx(expected)
    np.testing.assert_allclose(E, M.astype(np.float64) - R)
    rows, counts, columns = np.empty(30), np.empty(30), np.ones(41)
    observed_squares(M, rows, counts, columns)
    np.testing.assert_allclose(rows, np.nansum(M.astype(np.float64) ** 2, axis=1))
    np.testing.assert_array_equal(counts, (~np.isnan(M)).sum(axis=1))
    np.testing.assert_allclose(columns, 1 + np.nansum(M.astype(np.float64) ** 2, axis=0))


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", [0, 1])
def test_column_updates(seed: int, dtype: type, nonnegative: bool) -> None:
    rng = np.random.default_rng(seed)
    k, n, l1 = 4, 23, 0.7
    H, L, X = rng.standard_normal((k, n)) * 3, rng.standard_normal((k, 9)), rng.standard_normal((k, n))
    L[2] = 0
    G, ridge, support = L @ L.T, rng.random(n) * (rng.random(n) < 0.7), (rng.random((k, n)) < 0.6).astype(float)
    for mask in (np.ones_like(support), support):
        expected = X.copy()
        for _ in range(2):
            for r in range(k):
                u, d = H[r] - np.delete(G[r], r) @ np.delete(expected, r, axis=0), G[r, r] + ridge
                expected[r] = np.where(d > 0, soft(u, l1, nonnegative) / np.where(d > 0, d, 1), 0) * mask[r]
        found = X.astype(dtype)
        given = (read_only(array.astype(dtype)) for array in (H, G, ridge, mask if mask is support else mask[:0]))
        H_, G_, ridge_, mask_ = given
        column_updates(found, H_, G_, ridge_, l1, nonnegative, mask_, 2)
        np.testing.assert_allclose(
            found, expected, rtol=1e-4 if dtype is np.float32 else 1e-10, atol=1e-5 if dtype is np.float32 else 1e-12
        )


def check_optimal(X: Array, H: Array, G: Array, ridge: float, l1: float, nonnegative: bool) -> None:
    """Every column meets the conditions of Karush, Kuhn and Tucker."""
    for x, h, g in zip(X.T, H.T, G, strict=True):
        gradient = g @ x + ridge * x - h
        scale = np.abs(h).max() + np.abs(g).max() * np.abs(x).max()
        assert np.abs(gradient[x != 0] + l1 * np.sign(x[x != 0])).max(initial=0) <= 1e-9 * scale
        zero = gradient[x == 0]
        assert (-zero if nonnegative else np.abs(zero)).max(initial=-np.inf) <= l1 + 1e-8 * scale
        assert not nonnegative or x.min() >= 0


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(("l1", "ridge"), [(0.0, 0.0), (0.8, 0.0), (0.8, 0.5), (0.0, 2.0), (50.0, 0.1)])
def test_rows_are_at_their_optimum(l1: float, ridge: float, nonnegative: bool) -> None:
    rng = np.random.default_rng(3)
    k, n = 5, 40
    L = rng.standard_normal((n, k, 8)) + 2
    G, H, ridges = L @ L.transpose(0, 2, 1), rng.standard_normal((k, n)) * 4, np.full(n, ridge)
    X = np.zeros((k, n))
    assert row_optima(X, H, G, ridges, l1, nonnegative, 1e-12) == 0
    check_optimal(X, H, G, ridge, l1, nonnegative)
    broadcast = np.zeros((k, n))
    row_optima(broadcast, H, G[:1], ridges, l1, nonnegative, 1e-12)
    x, h, g = broadcast[:, 1], H[:, 1], G[0]

    def objective(z: Array) -> float:
        return float(0.5 * z @ (g + ridge * np.eye(k)) @ z - h @ z + l1 * np.abs(z).sum())

    bounds = [(0 if nonnegative else None, None)] * k
    assert objective(x) <= minimize(objective, np.zeros(k), method="L-BFGS-B", bounds=bounds).fun + 1e-6


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("collinear", [1e-2, 1e-4])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_at_their_optimum_if_loadings_are_nearly_collinear(seed: int, collinear: float, nonnegative: bool) -> None:
    """As with more components than the data has: coordinate descent alone does not find the signs in 10,000 sweeps."""
    rng = np.random.default_rng(seed)
    k, n, l1, ridge = 6, 2000, 0.05, 1e-9
    H = rng.standard_normal((3, 30))[rng.integers(0, 3, k)] + collinear * rng.standard_normal((k, 30))
    G, X = (H @ H.T)[None], np.zeros((k, n))
    targets = rng.standard_normal((n, 3)) @ rng.standard_normal((3, k)) @ H / k + 0.01 * rng.standard_normal((n, 30))
    linear = H @ targets.T
    assert row_optima(X, linear, G, np.full(n, ridge), l1, nonnegative, 1e-12) == 0
    check_optimal(X, linear, np.broadcast_to(G, (n, k, k)), ridge, l1, nonnegative)


def test_rows_with_fewer_entries_than_components() -> None:
    rng = np.random.default_rng(0)
    L = rng.standard_normal((10, 4, 2))
    G = L @ L.transpose(0, 2, 1)
    targets = rng.standard_normal((10, 2))
    H = np.einsum("nki,ni->kn", L, targets)
    X = np.zeros((4, 10))
    row_optima(X, H, G, np.zeros(10), 0.0, False, 1e-13)
    np.testing.assert_allclose(np.einsum("nki,kn->ni", L, X), targets, atol=1e-6)


def plain_sweep(Z: Array, factors: list[Array], ridges: list[Array], l1: float, nonnegative: bool, supports: list[Array] | None) -> None:
    """Algorithm 1 as printed, with arrays."""
    seen = ~np.isnan(Z)
    U = np.where(seen, Z - sum(outer([A[:, r] for A in factors]) for r in range(factors[0].shape[1])), 0)
    for r in range(factors[0].shape[1]):
        W = np.where(seen, U + outer([A[:, r] for A in factors]), 0)
        for n, A in enumerate(factors):
            h = outer([np.ones(A.shape[0]) if m == n else B[:, r] for m, B in enumerate(factors)])
            axes = tuple(m for m in range(Z.ndim) if m != n)
            u, d = (h * W).sum(axis=axes), (h**2 * seen).sum(axis=axes) + ridges[n]
            A[:, r] = np.where(d > 0, soft(u, l1, nonnegative) / np.where(d > 0, d, 1), 0)
            if supports is not None:
                A[:, r] *= supports[n][:, r]
        U = np.where(seen, W - outer([A[:, r] for A in factors]), 0)


def scattered(arrays: list[Array], rng: np.random.Generator) -> list[Array]:
    """Copies in a common buffer: in any order, near each other, at any multiple of 8 bytes."""
    buffer, position, copies = np.empty(sum(array.nbytes + 400 for array in arrays), np.uint8), 0, list(arrays)
    for i in rng.permutation(len(arrays)):
        position += 8 * int(rng.integers(0, 40))
        copies[i] = buffer[position : position + arrays[i].nbytes].view(arrays[i].dtype).reshape(arrays[i].shape)
        copies[i][...] = arrays[i]
        position += -(-arrays[i].nbytes // 8) * 8
    return copies


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_of_column_updates_do_not_depend_on_addresses(dtype: type, nonnegative: bool) -> None:
    """The sign of a zero is one of them."""
    rng = np.random.default_rng(0)
    for k, n in [(3, 4), (3, 7), (8, 9), (8, 64)]:
        L = rng.standard_normal((k, 9))
        X, H, ridge = rng.standard_normal((k, n)), 3 * rng.standard_normal((k, n)), rng.random(n)
        found = set()
        for _ in range(300):
            solution, *given = scattered([array.astype(dtype) for array in (X, H, L @ L.T, ridge)], rng)
            column_updates(solution, *given, 0.7, nonnegative, solution[:0], 2)
            found.add(solution.tobytes())
        assert len(found) == 1


@pytest.mark.parametrize("nonnegative", [False, True])
def test_bits_of_residual_sweeps_do_not_depend_on_addresses(nonnegative: bool) -> None:
    rng = np.random.default_rng(0)
    for shape in [(9, 8, 1), (17, 4, 6), (33, 3)]:
        sizes = np.array(shape)
        E, A, ridge = rng.standard_normal(sizes.prod()), np.abs(rng.standard_normal((4, sizes.sum()))), rng.random(sizes.sum())
        E[rng.random(len(E)) < 0.2] = np.nan
        found = set()
        for _ in range(300):
            residual, factors, *given = scattered([E, A, sizes, ridge], rng)
            residual_sweep(residual, factors, *given, 0.3, nonnegative, A[:0])
            found.add(residual.tobytes() + factors.tobytes())
        assert len(found) == 1


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("shape", SHAPES)
def test_algorithm_1_and_2(shape: tuple[int, ...], missing: float, nonnegative: bool, fixed: bool) -> None:
    rng = np.random.default_rng(len(shape))
    rank, l1 = 3, 0.3
    Z = rng.standard_normal(shape) * 3
    Z[rng.random(shape) < missing] = np.nan
    factors = [rng.standard_normal((size, rank)) for size in shape]
    supports = [(rng.random((size, rank)) < 0.7).astype(float) for size in shape] if fixed else None
    ridges = [rng.random(size) for size in shape]
    A = np.hstack([factor.T for factor in factors])
    support = np.empty((0, 0)) if supports is None else read_only(np.hstack([S.T for S in supports]))
    E = Z - sum(outer([factor[:, r] for factor in factors]) for r in range(rank))
    for _ in range(2):
        plain_sweep(Z, factors, ridges, l1, nonnegative, supports)
        residual_sweep(E.ravel(), A, np.array(shape), read_only(np.concatenate(ridges)), l1, nonnegative, support)
    np.testing.assert_allclose(A, np.hstack([factor.T for factor in factors]), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(E, Z - sum(outer([factor[:, r] for factor in factors]) for r in range(rank)), atol=1e-10)


@pytest.mark.parametrize(("l2", "l1"), [(2.0, 0.0), (0.0, 3.0), (1.5, 0.7)])
def test_balance_minimises_the_penalty(l2: float, l1: float) -> None:
    rng = np.random.default_rng(1)
    squares, sizes = np.exp(rng.standard_normal((2, 3, 6)) * 4)
    squares[1, 4] = sizes[1, 4] = 0  # nothing of this component is left
    c = balance(read_only(squares), read_only(sizes), l2, l1)
    np.testing.assert_allclose(c.prod(axis=0), 1, rtol=1e-12)
    np.testing.assert_array_equal(c[:, 4], 1)

    def penalty(scales: Array) -> Array:
        return np.asarray((l2 * squares * scales**2 / 2 + l1 * sizes * scales).sum(axis=0))

    for _ in range(20):
        step = np.exp(rng.standard_normal(c.shape) * 0.01)
        assert (penalty(c) <= penalty(c * step / step.prod(axis=0) ** (1 / 3)) * (1 + 1e-12))[[0, 1, 2, 3, 5]].all()
    np.testing.assert_array_equal(balance(squares, sizes, 0.0, 0.0), np.ones_like(squares))


@pytest.mark.parametrize("size", [1e-90, 1e-160, 1e-200, 1e-310, 0.0])
def test_balance_of_a_vanishing_component_is_finite(size: float) -> None:
    """With ℓ2 penalties alone a superfluous component shrinks beyond all numbers, and never is 0 before."""
    squares = np.array([[size, 4.0], [3 * size, 1.0], [size / 2, 2.0]])
    for l2, l1 in ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5)):
        c = balance(squares, np.sqrt(squares), l2, l1)
        assert np.isfinite(c).all()
        np.testing.assert_allclose(c.prod(axis=0), 1, rtol=1e-9)
