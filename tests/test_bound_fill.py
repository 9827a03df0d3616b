"""The kernels of the solver that keeps no n×m state, against a dense one."""

import numpy as np
import pytest

from dfact.kernels.bound_fill import bound_fill


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "m"), [(60, 30), (900, 150)])
def test_bound_fill_is_the_dense_augmented_lagrangian(seed: int, dtype: type[np.floating], n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    M = rng.integers(0, 4, (n, m)).astype(dtype)
    M[rng.random(M.shape) < 0.1] = np.nan
    M.flags.writeable = False
    observed, answers = ~np.isnan(M), np.nan_to_num(M)
    A = np.zeros(M.shape)
    places, values = np.empty(0, np.int32), np.empty(0, dtype)
    lower, upper = np.full(m, 0.8), np.linspace(2.2, 2.3, m)
    low, high, counts = lower.astype(dtype), upper.astype(dtype), rng.uniform(0, 2, n).astype(dtype)
    for rho in (0.3, 0.4, 1.0):
        X, Q = rng.uniform(0.4, 1, (3, n)).astype(dtype), rng.uniform(0.4, 1.02, (3, m)).astype(dtype)
        X[:, ::3] = 0.7  # the model of these rows keeps within the bounds
        R = X.T.astype(np.float64) @ Q
        Z = np.clip(R - A / rho, lower, upper)
        before, A = A, np.where(R - A / rho != Z, A + rho * (Z - R), 0)
        gap = np.where((before == 0) & (Z == R), 0, Z - R)
        touched = (before != 0) | (upper < R) | (lower > R)
        weight = np.where(touched.any(axis=1), 1 + rho, 1)
        expected = R + (observed * (answers - R) + rho * gap + A) / weight[:, None]
        B, H, weights = np.empty(M.shape, dtype), np.empty((2, n), dtype), np.empty(n, dtype)
        new_places, new_values = np.empty(M.size, np.int32), np.empty(M.size, dtype)
        squares, bounds, count = bound_fill(M, X, Q, 2, places, values, low, high, rho, counts, B, H, weights, new_places, new_values)
        assert set(weights > 1) == {True, False}
        places, values = new_places[:count], new_values[:count]
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(B, expected, atol=10 * tolerance)
        np.testing.assert_allclose(H, Q[:2] @ expected.T, rtol=10 * tolerance)
        np.testing.assert_allclose(weights, weight, rtol=1e-6)
        assert squares == pytest.approx(counts @ np.where(observed, np.square(answers - R), 0).sum(axis=1), rel=tolerance)
        assert bounds == pytest.approx(counts @ (before * gap + rho / 2 * gap**2).sum(axis=1), rel=10 * tolerance)
        dense = np.zeros(M.size)
        dense[places] = values
        np.testing.assert_allclose(dense.reshape(M.shape), A, atol=10 * tolerance)
        assert (np.diff(places) > 0).all()
