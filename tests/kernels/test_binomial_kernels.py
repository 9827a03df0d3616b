"""The kernels of the binomial likelihood against NumPy, finite differences and the conditions of optimality."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import xlog1py, xlogy

from dfact.kernels.binomial import (
    EDGE,
    add_deviances,
    add_log_likelihoods,
    column_slopes,
    count_columns,
    count_residuals,
    count_rows,
    encode,
    fill_codes,
    mask_codes_by_fold,
    newton_columns,
    newton_rows,
    row_slopes,
)

Array = NDArray[np.float64]
FIRST = 5


def block(seed: int, trials: int, n: int = 9, c: int = 1100) -> tuple[NDArray[np.uint8], Array, Array, Array]:
    """Codes, of which a tenth is missing, the counts of a tile with NaN, and its expected shares, some of them at the bounds."""
    rng = np.random.default_rng(seed)
    G = rng.integers(0, trials + 1, (n, FIRST + c)).astype(np.uint8)
    G[rng.random(G.shape) < 0.1] = 255
    F = rng.uniform(EDGE, 1 - EDGE, (n, c))
    F[rng.random(F.shape) < 0.05] = EDGE
    tile = G[:, FIRST:].astype(float)
    return G, np.where(tile <= trials, tile, np.nan), F, np.where(tile <= trials, 1.0, 0.0)


@pytest.mark.parametrize(("trials", "columns"), [(1, 1100), (2, 1100), (5, 1100), (2, 64), (2, 65), (2, 5)])
@pytest.mark.parametrize("seed", range(2))
def test_slopes_and_likelihoods_are_those_of_the_formula(seed: int, trials: int, columns: int) -> None:
    G, g, F, observed = block(seed, trials, c=columns)
    counts = np.nan_to_num(g)
    a, b = observed * counts / F, observed * (trials - counts) / (1 - F)
    curvature = a / F + b / (1 - F)
    A, B, C, S, T = (np.empty_like(F) for _ in range(5))
    row_slopes(G, FIRST, F, trials, C, S)
    column_slopes(G, FIRST, F, trials, A, B, T)
    for found, expected in ((A, a), (B, b), (C, a - b), (S, curvature), (T, curvature)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    logs, deviances = np.ones(len(G)), np.zeros(2)
    add_log_likelihoods(G, FIRST, F, trials, logs)
    add_deviances(G, FIRST, F, trials, deviances)
    likelihoods = observed * (xlogy(counts, F) + xlog1py(trials - counts, -F))
    np.testing.assert_allclose(logs, 1 + likelihoods.sum(axis=1), rtol=1e-12)
    saturated = observed * (xlogy(counts, counts / trials) + xlogy(trials - counts, 1 - counts / trials))
    np.testing.assert_allclose(deviances, [(saturated - likelihoods).sum(), observed.sum()], rtol=1e-10)


def test_a_product_of_least_likelihoods_is_above_0() -> None:
    G, F, logs = np.full((1, 5000), 2, np.uint8), np.full((1, 5000), EDGE, np.float32), np.zeros(1)
    add_log_likelihoods(G, 0, F, 2, logs)
    np.testing.assert_allclose(logs, 2 * 5000 * np.log(np.float32(EDGE).astype(float)), rtol=1e-6)


def test_codes_are_counted_filled_and_encoded() -> None:
    G, _, _, _ = block(0, 2)
    g = np.where(G <= 2, G, np.nan)
    totals, observed, rows, filled = np.zeros(G.shape[1], np.int64), np.zeros(G.shape[1], np.int64), np.empty(len(G)), np.empty(G.shape)
    count_columns(G, 2, totals, observed)
    count_rows(G, 2, rows)
    fill_codes(G, 2, np.arange(G.shape[1]) / 7, filled)
    np.testing.assert_array_equal(totals, np.nansum(g, axis=0))
    np.testing.assert_array_equal(observed, (~np.isnan(g)).sum(axis=0))
    np.testing.assert_array_equal(rows, (~np.isnan(g)).sum(axis=1))
    np.testing.assert_array_equal(filled, np.where(np.isnan(g), np.arange(G.shape[1]) / 7, g))
    encoded = np.empty_like(G)
    encode(g, encoded)
    np.testing.assert_array_equal(encoded, G)


@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_divide_the_entries_evenly_whatever_the_blocks(n_folds: int) -> None:
    rng = np.random.default_rng(n_folds)
    G = rng.integers(0, 3, (200, 500)).astype(np.uint8)
    folds, out = np.full(G.shape, -1), np.empty_like(G)
    for fold in range(n_folds):
        mask_codes_by_fold(G, 0, fold, n_folds, 7, True, out)
        assert (folds[out != 255] == -1).all()
        np.testing.assert_array_equal(out[out != 255], G[out != 255])
        folds[out != 255] = fold
        rest = np.empty_like(G[50:])
        mask_codes_by_fold(np.ascontiguousarray(G[50:]), 50, fold, n_folds, 7, False, rest)
        np.testing.assert_array_equal(rest == 255, out[50:] != 255)
    assert (folds >= 0).all()
    spread = np.sqrt(1 / n_folds * (1 - 1 / n_folds))
    for axis, size in ((0, 200), (1, 500)):
        shares = (folds == 0).mean(axis=axis)
        assert abs(shares.mean() - 1 / n_folds) < 0.01
        assert abs(shares.std() - spread / np.sqrt(size)) < 0.25 * spread / np.sqrt(size)
    mask_codes_by_fold(G, 0, 0, n_folds, 8, True, out)
    assert ((out != 255) == (folds == 0)).mean() < 0.9, "another seed, other folds"


def quadratics(seed: int, n: int, k: int) -> tuple[Array, Array, Array]:
    """Slopes (n, k), curvatures as matrices (n, k, k) and as lower triangles (n, k(k+1)/2)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, k, k + 2))
    H = X @ X.transpose(0, 2, 1)
    return 5 * rng.standard_normal((n, k)), H, H[:, *np.tril_indices(k)]


@pytest.mark.parametrize(("seed", "k"), list(product(range(3), (1, 2, 5, 9))))
def test_rows_come_to_the_maximum_on_the_simplex(seed: int, k: int) -> None:
    slopes, H, packed = quadratics(seed, 200, k)
    Q0 = np.maximum(np.random.default_rng(seed).dirichlet(np.full(k, 0.3), 200), EDGE)
    Q0 /= Q0.sum(axis=1, keepdims=True)
    Q = Q0.copy()
    newton_rows(Q, slopes, packed)
    np.testing.assert_allclose(Q.sum(axis=1), 1)
    assert Q.min() >= EDGE * (1 - 1e-4)
    gradient = slopes - np.einsum("nkl,nl->nk", H, Q - Q0)
    inside = Q > 1.01 * EDGE
    for g, free in zip(gradient, inside, strict=True):
        level = g[free].mean()
        np.testing.assert_allclose(g[free], level, atol=2e-2)  # rows are scaled to sum 1, and the bounds are not 0
        assert (g[~free] <= level + 2e-2).all()
    shifted = Q0.copy()  # what a step on the simplex does not depend on
    u = np.random.default_rng(seed).standard_normal((200, k, 1))
    newton_rows(shifted, slopes + 3, (H + u + u.transpose(0, 2, 1) + 8)[:, *np.tril_indices(k)])
    positive = np.linalg.eigvalsh(H + u + u.transpose(0, 2, 1) + 8).min(axis=1) > 0.1
    np.testing.assert_allclose(shifted[positive], Q[positive], atol=1e-6)


@pytest.mark.parametrize(("seed", "k"), list(product(range(3), (1, 2, 5, 9))))
def test_columns_come_to_the_maximum_in_the_box(seed: int, k: int) -> None:
    slopes, H, packed = quadratics(seed, 200, k)
    P0 = np.random.default_rng(seed).uniform(EDGE, 1 - EDGE, (k, 200))
    P0[np.random.default_rng(seed + 1).random(P0.shape) < 0.2] = EDGE
    P = P0.copy()
    newton_columns(P, np.ascontiguousarray(slopes.T), np.ascontiguousarray(packed.T))
    assert P.min() >= EDGE
    assert P.max() <= 1 - EDGE
    gradient = slopes - np.einsum("nkl,nl->nk", H, (P - P0).T)
    low, high = (P <= EDGE * 1.001).T, (P >= 1 - EDGE - 1e-9).T
    scale = 1 + np.abs(slopes).max()
    assert np.abs(gradient[~low & ~high]).max() < 1e-7 * scale
    assert (gradient[low] <= 1e-7 * scale).all()
    assert (gradient[high] >= -1e-7 * scale).all()


def test_singular_curvatures_leave_the_step_finite() -> None:
    rng = np.random.default_rng(0)
    p = rng.random((50, 3, 1))
    packed: Any = (p @ p.transpose(0, 2, 1))[:, *np.tril_indices(3)]
    Q, P = np.full((50, 3), 1 / 3), np.full((3, 50), 0.5)
    newton_rows(Q, rng.standard_normal((50, 3)), packed)
    newton_columns(P, rng.standard_normal((3, 50)), np.ascontiguousarray(packed.T))
    assert np.isfinite(Q).all()
    assert np.isfinite(P).all()


@pytest.mark.parametrize(("k", "rank"), [(60, 5), (60, 20), (100, 30)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_many_more_unknowns_than_the_data_determine_leave_the_step_finite(k: int, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random((4, k, rank))
    packed: Any = (p @ p.transpose(0, 2, 1)).astype(np.float32).astype(np.float64)[:, *np.tril_indices(k)]
    Q, P = np.full((4, k), 1 / k), np.full((k, 4), 0.5)
    newton_rows(Q, rng.standard_normal((4, k)), packed)
    newton_columns(P, rng.standard_normal((k, 4)), np.ascontiguousarray(packed.T))
    np.testing.assert_allclose(Q.sum(axis=1), 1)
    assert (Q > 0).all()
    assert ((P > 0) & (P < 1)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_residuals_are_counted_by_column(dtype: type) -> None:
    G, g, F, observed = block(3, 2)
    out = np.ones((4, G.shape[1]))
    count_residuals(G, FIRST, F.astype(dtype), 2, out)
    error = np.nan_to_num(g - 2 * F.astype(dtype).astype(np.float64))
    np.testing.assert_allclose(out[:, FIRST:] - 1, [observed.sum(0), *((error**power).sum(0) for power in (1, 2, 3))], atol=1e-12)
    assert (out[:, :FIRST] == 1).all()
