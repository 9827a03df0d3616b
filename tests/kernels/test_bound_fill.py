"""The kernel of the solver that keeps no n×m state, against a dense one."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dfact.kernels.bound_fill import bounded_step, tile_rows
from dfact.kernels.box_qp import coordinate_descent, fista


class Dense:
    """The same step with the multipliers A as an array of the data's size, in double precision."""

    def __init__(self, M: NDArray[Any], lower: NDArray[Any], upper: NDArray[Any]) -> None:
        self.observed, self.answers, self.lower, self.upper = ~np.isnan(M), np.nan_to_num(M), lower, upper
        self.A = np.zeros(M.shape)

    def target(self, R: NDArray[Any], rho: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """B, the weights of the rows, and what each row adds to the Lagrangian."""
        Z = np.clip(R - self.A / rho, self.lower, self.upper)
        before, self.A = self.A, np.where(R - self.A / rho != Z, self.A + rho * (Z - R), 0)
        gap = np.where((before == 0) & (Z == R), 0, Z - R)
        touched = (before != 0) | (self.upper < R) | (self.lower > R)
        weights = np.where(touched.any(axis=1), 1 + rho, 1)
        B = R + (self.observed * (self.answers - R) + rho * gap + self.A) / weights[:, None]
        return B, weights, (before * gap + rho / 2 * gap**2).sum(axis=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "m"), [(60, 30), (900, 150)])
@pytest.mark.parametrize(("squared", "accelerated"), [(False, False), (True, True)])
def test_a_step_is_that_of_the_dense_augmented_lagrangian(
    seed: int, dtype: type[np.floating], n: int, m: int, squared: bool, accelerated: bool
) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, (n, m)).astype(np.uint8)
    codes[rng.random(codes.shape) < 0.1] = 255
    M = np.where(codes == 255, dtype(np.nan), codes.astype(dtype))
    M.flags.writeable = codes.flags.writeable = False  # as all blocks are
    k, free, beta, tolerance = 6, 5, 0.1, 1e-4 if dtype == np.float32 else 1e-11
    lower, upper, counts = np.full(m, 0.8, dtype), np.linspace(2.2, 2.3, m, dtype=dtype), rng.uniform(0, 2, n).astype(dtype)
    dense, positions, values = Dense(M, lower, upper), np.empty(0, np.int32), np.empty(0, dtype)
    rows = tile_rows(n, k, m)
    assert (rows < n) == (n == 900)
    assert tile_rows(n, 50, 2000) == n
    assert tile_rows(0, k, m) == 1  # of a block of which no row was drawn
    target, gram, cross = np.empty((rows, m), dtype), np.empty((k, k), dtype), np.empty((k, m), dtype)
    for rho in (0.3, 0.4, 1.0):
        X, Q = rng.uniform(0.1, 1.5, (k, n)).astype(dtype), rng.uniform(0.2, 0.51, (k, m)).astype(dtype)
        X[:, ::3] = 0.7  # the model of these rows keeps within the bounds
        R = X.T.astype(np.float64) @ Q
        B, weights, bounds = dense.target(R, rho)
        assert set(weights > 1) == {True, False}
        strength, expected, G = beta / weights, X.astype(np.float64), (Q.astype(np.float64) @ Q.T)
        size = counts @ (np.square(expected[:free]) / 2 if squared else expected[:free]).sum(axis=0)
        H = Q[:free] @ B.T - (0 if squared else strength)
        (fista if accelerated else coordinate_descent)(expected, H, G, free, squared * strength, np.full(n, 0.9), 3, 0.0)

        new_positions, new_values, Qt = np.empty(M.size, np.int32), np.empty(M.size, dtype), np.ascontiguousarray(Q[:free].T)
        old, limits, new = (positions, values), (lower, upper, rho), (new_positions, new_values, gram, cross)
        given, settings = (Q, Qt, Q @ Q.T, *old, *limits), (beta, squared, 0.9, 3, accelerated, counts, target)
        again = tuple(array.copy() for array in (X, *new))
        found = bounded_step(M, np.nan, X, *given, *settings, *new)
        assert bounded_step(codes, 255.0, again[0], *given, *settings, *again[1:]) == found
        np.testing.assert_array_equal(again[0], X)
        np.testing.assert_array_equal(again[-1], cross)
        squares, penalty, penalty_w, count = found
        positions, values = new_positions[:count], new_values[:count]
        np.testing.assert_allclose(X, expected, atol=10 * tolerance)
        assert squares == pytest.approx(counts @ np.where(dense.observed, np.square(dense.answers - R), 0).sum(axis=1), rel=tolerance)
        assert penalty == pytest.approx(counts @ bounds, rel=10 * tolerance)
        assert penalty_w == pytest.approx(size, rel=tolerance)
        weighted = expected * weights * counts
        np.testing.assert_allclose(gram, weighted @ expected.T, rtol=10 * tolerance)
        np.testing.assert_allclose(cross, weighted @ B, rtol=10 * tolerance)
        sparse = np.zeros(M.size)
        sparse[positions] = values
        np.testing.assert_allclose(sparse.reshape(M.shape), dense.A, atol=10 * tolerance)
        assert (np.diff(positions) > 0).all()
