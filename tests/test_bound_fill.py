"""The kernels of the solver that keeps no n×m state, against a dense one."""

import numpy as np
import pytest

from dfact.kernels.bound_fill import answer_fill, bound_fill


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bound_fill_is_the_dense_augmented_lagrangian(seed: int, dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(seed)
    M = rng.integers(0, 4, (60, 30)).astype(dtype)
    M[rng.random(M.shape) < 0.1] = np.nan
    M.flags.writeable = False
    observed, answers = ~np.isnan(M), np.nan_to_num(M)
    A = np.zeros(M.shape)
    places, values = np.empty(0, np.int32), np.empty(0, dtype)
    lower, upper = np.full(30, 0.25), np.linspace(2.9, 3, 30)
    low, high, counts = lower.astype(dtype), upper.astype(dtype), rng.uniform(0, 2, 60).astype(dtype)
    for rho in (0.3, 0.4, 1.0):
        R = rng.uniform(0.2, 3.05, M.shape)
        R[::3] = np.minimum(R[::3], 2.9)
        Z = np.clip(R - A / rho, lower, upper)
        before, A = A, np.where(R - A / rho != Z, A + rho * (Z - R), 0)
        gap = np.where((before == 0) & (Z == R), 0, Z - R)
        touched = (before != 0) | (upper < R) | (lower > R)
        weight = np.where(touched.any(axis=1), 1 + rho, 1)
        expected = R + (observed * (answers - R) + rho * gap + A) / weight[:, None]
        B, weights = R.astype(dtype), np.empty(len(R), dtype)
        squares, beyond = answer_fill(M, B, places, low, high, rho, weights, counts)
        new_places, new_values = np.empty(beyond + len(places), np.int32), np.empty(beyond + len(places), dtype)
        bounds, count = bound_fill(M, B, places, values, low, high, rho, weights, counts, new_places, new_values)
        places, values = new_places[:count], new_values[:count]
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(B, expected, atol=10 * tolerance)
        np.testing.assert_allclose(weights, weight, rtol=1e-6)
        assert squares == pytest.approx(counts @ np.where(observed, np.square(answers - R), 0).sum(axis=1), rel=tolerance)
        assert bounds == pytest.approx(counts @ (before * gap + rho / 2 * gap**2).sum(axis=1), rel=10 * tolerance)
        dense = np.zeros(M.size)
        dense[places] = values
        np.testing.assert_allclose(dense.reshape(M.shape), A, atol=10 * tolerance)
        assert (np.diff(places) > 0).all()
