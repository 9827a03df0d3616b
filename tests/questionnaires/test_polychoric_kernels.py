"""Bit counting and polychoric estimates, each against plain NumPy and SciPy."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from dfact.questionnaires.kernels.polychoric import LIMIT, WORD, add_weights, correlate_tables, count_common, find_slots, pack_levels

Array = NDArray[Any]
MISSING = 255


def answers(n: int, n_levels: list[int], seed: int, missing: float = 0.1) -> Array:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(0, L, n) for L in n_levels]).astype(np.uint8)
    return np.where(rng.random(X.shape) < missing, MISSING, X).astype(np.uint8)


def packed(X: Array, starts: Array, missing_code: float = MISSING, complete_only: bool = False) -> tuple[Array, int, Array]:
    bits, fractions = np.zeros((starts[-1], -(-len(X) // WORD)), np.uint64), np.zeros(X.shape[1], np.int64)
    rows = pack_levels(X, missing_code, np.zeros(X.shape[1]), starts, X.shape[1], complete_only, bits, fractions)
    return bits, rows, fractions


def indicators(X: Array, n_levels: list[int]) -> Array:
    return np.column_stack([X[:, j] == level for j, L in enumerate(n_levels) for level in range(L)]).astype(np.int64)


@pytest.mark.parametrize(("n", "n_levels"), [(1, [2, 3]), (64, [2, 5, 3]), (1000, [4] * 9), (9000, [2, 6, 3, 5]), (300, [7] * 31)])
def test_counts_are_the_gram_matrix_of_the_indicators(n: int, n_levels: list[int]) -> None:
    X, starts = answers(n, n_levels, n), np.concatenate([[0], np.cumsum(n_levels)])
    bits, rows, _ = packed(X, starts)
    assert rows == (X != MISSING).any(axis=1).sum()
    G = indicators(X, n_levels).T @ indicators(X, n_levels)
    for first in (0, n_levels[0]):
        for dtype in (np.int32, np.int64):
            counts = np.zeros((starts[-1] * (starts[-1] + 1) - first * (first + 1)) // 2, dtype)
            count_common(bits, first, starts[-1], counts)
            expected = np.concatenate([G[r, : r + 1] for r in range(first, starts[-1])])
            np.testing.assert_array_equal(counts, expected)
            count_common(bits, first, starts[-1], counts)
            np.testing.assert_array_equal(counts, 2 * expected)


def test_missing_answers_and_fractions_have_no_bit() -> None:
    X = np.array([[0, 1], [np.nan, 1], [2, np.nan], [0.5, 0], [np.nan, np.nan]])
    starts = np.array([0, 3, 5])
    bits, rows, fractions = packed(X, starts, np.nan)
    np.testing.assert_array_equal(bits.ravel(), [0b00001, 0, 0b00100, 0b01000, 0b00011])
    assert rows == 4
    np.testing.assert_array_equal(fractions, [1, 0])
    bits, rows, _ = packed(X, starts, np.nan, complete_only=True)
    np.testing.assert_array_equal(bits.ravel(), [0b00001, 0, 0, 0b01000, 0b00001])
    assert rows == 2


@pytest.mark.parametrize(("n", "n_levels"), [(1, [2, 3]), (1000, [4] * 9), (700, [2, 6, 3, 5]), (300, [3] * 150)])
@pytest.mark.parametrize("complete_only", [False, True])
def test_weighted_counts_are_the_gram_matrix_of_the_weighted_indicators(n: int, n_levels: list[int], complete_only: bool) -> None:
    X, starts = answers(n, n_levels, n, missing=0.02), np.concatenate([[0], np.cumsum(n_levels)])
    rng = np.random.default_rng(n)
    drawn = rng.integers(1, 1 << 40, n) * (rng.random(n) < 0.9)
    contributing = (drawn > 0) & ((X != MISSING).all(axis=1) if complete_only else (X != MISSING).any(axis=1))
    weights, slots, fractions = drawn.copy(), np.empty(X.shape, np.int16), np.zeros(X.shape[1], np.int64)
    rows = find_slots(X, MISSING, np.zeros(X.shape[1]), starts, X.shape[1], complete_only, weights, slots, fractions)
    assert rows == contributing.sum()
    np.testing.assert_array_equal(weights, drawn * contributing)
    expected_slots = np.where((X != MISSING) & contributing[:, None], X + starts[:-1], -1)
    np.testing.assert_array_equal(slots, expected_slots)
    D = indicators(X, n_levels)
    G = (D * weights[:, None]).T @ D
    for item in (0, 1):
        first = starts[item]
        counts = np.zeros((starts[-1] * (starts[-1] + 1) - first * (first + 1)) // 2, np.int64)
        add_weights(slots, weights, item, first, counts)
        np.testing.assert_array_equal(counts, np.concatenate([G[r, : r + 1] for r in range(first, starts[-1])]))


def test_slots_leave_out_fractions() -> None:
    X, starts = np.array([[0.0, 1], [0.5, 1], [2, np.nan]]), np.array([0, 3, 5])
    weights, slots, fractions = np.ones(3, np.int64), np.empty((3, 2), np.int32), np.zeros(2, np.int64)
    assert find_slots(X, np.nan, np.zeros(2), starts, 2, False, weights, slots, fractions) == 3
    np.testing.assert_array_equal(slots, [[0, 4], [-1, 4], [2, -1]])
    np.testing.assert_array_equal(fractions, [1, 0])


@pytest.mark.parametrize("seed", [0, 1])
def test_weighted_tables_have_kishs_effective_number_of_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, squares = rng.integers(1, 1000, (3, 4)).astype(float), 5000.0
    effective = table.sum() ** 2 / squares
    a, b = (ndtri(table.sum(axis=axis).cumsum()[:-1] / table.sum()) for axis in (1, 0))
    plain, weighted = correlate(table * effective / table.sum(), a, b), correlate(table, a, b, squares)
    assert weighted == pytest.approx(plain, abs=1e-12)


def correlate(table: Array, a: Array | None = None, b: Array | None = None, squares: float | None = None) -> tuple[float, float]:
    """ρ and its standard error for a table, with thresholds of its margins by default, and with a sum of squared weights if given."""
    table = np.asarray(table, np.float64)
    A, B = table.shape
    a = ndtri(table.sum(axis=1).cumsum()[:-1] / table.sum()) if a is None else a
    b = ndtri(table.sum(axis=0).cumsum()[:-1] / table.sum()) if b is None else b
    thresholds = np.concatenate([b, a])
    G = np.zeros((A + B, A + B))
    G[B:, :B] = table
    counts = G[np.tril_indices(A + B)]
    R, errors, common = np.eye(2), np.zeros((2, 2)), np.zeros((2, 2))
    cuts, levels = np.array([0, B - 1, A + B - 2]), np.concatenate([np.arange(B), np.arange(A)])
    shares = multivariate_normal.cdf(thresholds[:, None])
    sums = np.empty((0, 0)) if squares is None else np.full((2, 2), squares)
    correlate_tables(counts[B * (B + 1) // 2 :], 1, np.array([0, B, A + B]), cuts, thresholds, shares, levels, R, errors, common, sums)
    assert common[1, 0] == pytest.approx(table.sum() if squares is None else table.sum() ** 2 / squares)
    assert (R[0, 1], errors[0, 1]) == pytest.approx((R[1, 0], errors[1, 0]), nan_ok=True)
    return float(R[1, 0]), float(errors[1, 0])


def likelihood(table: Array, a: Array, b: Array, rho: float) -> float:
    """Σ n log P by SciPy's bivariate normal distribution function."""
    corners_a, corners_b = (np.concatenate([[-9], thresholds, [9]]) for thresholds in (a, b))
    grid = np.array([[[x, y] for y in corners_b] for x in corners_a])
    F = multivariate_normal.cdf(grid, cov=[[1, rho], [rho, 1]])
    P = np.diff(np.diff(F, axis=0), axis=1)
    return float((table * np.log(np.maximum(P, 1e-300))).sum())


@pytest.mark.parametrize("rho", [0.0, 0.3, -0.6, 0.85, -0.93, 0.97])
@pytest.mark.parametrize("seed", [0, 1])
def test_estimates_maximise_the_likelihood(rho: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    Z = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], 800)
    a, b = np.sort(rng.normal(size=3)), np.sort(rng.normal(size=2))
    table = np.histogram2d(Z[:, 0], Z[:, 1], [np.concatenate([[-99], a, [99]]), np.concatenate([[-99], b, [99]])])[0]
    found, error = correlate(table, a, b)
    best = minimize_scalar(
        lambda r: -likelihood(table, a, b, r), bounds=(max(found - 0.05, -0.999), min(found + 0.05, 0.999)), method="bounded"
    )
    assert found == pytest.approx(best.x, abs=2e-5)
    assert abs(found - rho) < 4 * error
    assert error > 0
    assert correlate(table[::-1], -a[::-1], b)[0] == pytest.approx(-found, abs=1e-8)


@pytest.mark.parametrize(
    ("table", "expected", "tolerance"),
    [
        ([[40, 30], [0, 30]], 0.877246, 1e-6),  # lavaan: an empty cell of four counts ½
        ([[30, 40], [30, 0]], -0.877246, 1e-6),
        ([[30, 10, 0], [10, 20, 10], [0, 15, 25]], 0.823133, 1e-6),  # no correction of larger tables; psych has 0.823136
        ([[25, 25], [25, 25]], 0.0, 1e-8),
        ([[30, 10], [10, 30]], np.sin(np.pi / 4), 1e-7),  # P(both below 0) = ¼ + arcsin(ρ)/2π = 0.375
    ],
)
def test_published_tables(table: list[list[int]], expected: float, tolerance: float) -> None:
    assert correlate(np.array(table))[0] == pytest.approx(expected, abs=tolerance)


def test_limits_and_tables_without_variance() -> None:
    assert correlate(np.diag([20, 30, 50]))[0] == LIMIT
    assert np.isnan(correlate(np.diag([20, 30, 50]))[1])
    assert correlate(np.array([[0, 40], [60, 0]]))[0] == -LIMIT
    rho, error = correlate(np.array([[40, 60], [0, 0]]), np.array([0.3]), np.array([-0.2]))
    assert np.isnan(rho)
    assert np.isnan(error)
